"""What a diagnosis has found: the reports of its parts, and why a part could not be done.

Goes out: the nouns `Part`, `Suspect`, `SuspectCheck` and `Findings`. Made by `run`, read by
the modules that write the page.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from ray_precheck.dump.folders import FoundDump
from ray_precheck.store.results import ResultRow

if TYPE_CHECKING:
    from ray_precheck.commands.compare.run import ComparisonReports
    from ray_precheck.commands.locate.search import LocationReport
    from ray_precheck.commands.overflow.run import OverflowReport
    from ray_precheck.commands.precheck.run import PrecheckReport


# In the place of what a part would have told; its reason stands in the section of what could not be checked.
UNSAID = "This could not be said; the reason stands below."


class Part(Enum):
    """A part of a diagnosis, in the order in which they run; the value is the command that does it alone."""

    COMPARE = "compare"
    LOCATE = "locate"
    OVERFLOW = "overflow_check"
    PRECHECK = "run_ut"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A call that the precheck is to look at, by its name in its dump."""

    dump: FoundDump
    call: str


@dataclass(frozen=True, slots=True)
class SuspectCheck:
    """The precheck of the suspects of one dump on the device of this machine.

    `rows` are those of the suspects. `is_whole`: no suspect was known, and every call of the dump was
    checked; then `rows` are those in error.
    """

    dump: FoundDump
    report: "PrecheckReport"
    rows: tuple[ResultRow, ...]
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    """The reports of the parts that were done. `not_done` has a sentence for each part that was not, and
    `unchecked` one for each dump whose suspects could not be prechecked. `left_out` counts suspects beyond
    those that are prechecked."""

    target: Path
    golden: Path | None
    dumps: tuple[FoundDump, ...]
    comparison: "ComparisonReports | None" = None
    overflow: "OverflowReport | None" = None
    location: "LocationReport | None" = None
    suspects: tuple[Suspect, ...] = ()
    left_out: int = 0
    checks: tuple[SuspectCheck, ...] = ()
    not_done: Mapping[Part, str] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()

    def place_of(self, dump: FoundDump) -> Path:
        """Return the folder of a dump's results below that of all results."""
        return dump.place if len(self.dumps) > 1 else Path()
