"""What the parts of a search for the operator to blame share, and the report of all of them.

Goes out: a `LocationSearch`, made by `run` for the parts `replayed_dump`, `pairs` and `exchange`; and a
`LocationReport`, read by the command line, by a diagnosis, and by programs that import the package.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from ray_precheck.commands.locate.options import LocationConfig, SearchOptions
from ray_precheck.commands.locate.walk.places import DumpRoots, RootPlace
from ray_precheck.options.declared import group_of, settings_of
from ray_precheck.running.session import RunSession
from ray_precheck.store.results import read_table

if TYPE_CHECKING:
    import pandas

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class LocationSearch:
    """What the parts of a search share. `folder` has the results; `first_step` is the step whose weights the
    runs began with."""

    config: LocationConfig
    folder: Path
    session: RunSession
    first_step: str

    @property
    def options(self) -> SearchOptions:
        """The options that the parts carry."""
        return group_of(self.config, SearchOptions)

    def fingerprint(self, **inputs: str) -> dict[str, str]:
        """Return the settings that another run must have to resume a part that has these inputs."""
        return inputs | settings_of(self.config)


@dataclass(frozen=True, slots=True)
class PartEnd(Generic[Found]):
    """What a part of a search has found, None where it stopped before its end, and why it did."""

    found: Found | None
    completed: bool = True
    stop_reason: str = ""


@dataclass(frozen=True, slots=True)
class LocationReport:
    """The report of a search. `completed` is False if it stopped before its end: `table` was not written.

    `places` has the roots, the likeliest culprit first. `notes` are sentences about captures that were cut
    off and dumps without a partner. `errors` has the folder of saved tensors for each dump, by its label.
    """

    folder: Path
    table: Path
    places: tuple[RootPlace, ...]
    dumps: tuple[DumpRoots, ...]
    completed: bool
    stop_reason: str = ""
    notes: tuple[str, ...] = ()
    errors: dict[str, Path] | None = None
    graphs: tuple[Path, ...] = ()
    is_compared: bool = False

    @property
    def located(self) -> "pandas.DataFrame":
        """`locate_{timestamp}.csv` as a data frame."""
        return read_table(self.table)

    @property
    def judged(self) -> int:
        """How many records have an own error, replayed or estimated."""
        return sum(dump.located.judged for dump in self.dumps)

    @property
    def compared(self) -> int:
        """How many records have a partner in the golden run."""
        return sum(dump.located.compared for dump in self.dumps)
