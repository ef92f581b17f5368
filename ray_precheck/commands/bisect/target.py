"""What `bisect` asks of a target, and where targets are found.

A target is a folder of `targets/`, or of another package with an entry point of the group
`ray_precheck.bisect`. Its module `target.py` has `TARGET`, an object that implements `Target`. The command
calls it in this order: `survey` looks at what the user gave and names the rungs; `opener` is pickled for each
worker, where it opens what runs trials; `further` is asked, each time that the trials asked so far are
answered, what to look at next (the operator inside of what was found); `lines` says what was found in the
user's own code.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ray_precheck.commands.bisect.options import BisectConfig
from ray_precheck.searching.bisection import Rung, RungFinding, Trial, TrialAnswer


@dataclass(frozen=True, slots=True)
class OutputRow:
    """How one output of a trial differs from the golden one; a row of `bisect_outputs_{stamp}.csv`."""

    name: str
    dtype: str
    shape: str
    distance: float | None
    index: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What a trial said. `exit` is how its process or command ended ("0", "SIGSEGV", "timeout", "" where it
    goes on), `metric` the distance of the worst output in units of what honest runs differ by."""

    answer: TrialAnswer
    exit: str = ""
    metric: float | None = None
    message: str = ""
    outputs: tuple[OutputRow, ...] = ()


class TrialRunner(Protocol):
    """Runs one trial after the other, in the check process of a worker."""

    def run(self, trial: Trial, rung: Rung) -> TrialResult:
        """Run with the switches of `trial.enabled` on and the rung's other ones off."""

    def close(self) -> None:
        """End the processes that were started."""


class TrialOpener(Protocol):
    """Opens a runner; pickled once for each worker."""

    def open(self, scratch: Path) -> TrialRunner:
        """Return a runner, which may write below `scratch`, a folder of its own that is removed later."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a target found before the first trial.

    `rungs` are tried in their order. `facts` are kept by the target for itself. `notes` are sentences for the
    user (what cannot be tried here, and why). `fingerprint` are the settings that must be the same in a run
    that resumes this one. `is_exact`: equal runs gave the same bits, so that verdicts need no repeats.
    """

    rungs: tuple[Rung, ...]
    notes: tuple[str, ...] = ()
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    facts: Any = None
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """What is printed of a finding: sentences, and the lines that switch it off, each with its language."""

    said: tuple[str, ...] = ()
    code: tuple[tuple[str, str], ...] = ()


class Target(Protocol):
    """One kind of thing that can be bisected."""

    name: str
    text: str
    config: type[BisectConfig]

    def survey(self, config: Any, scratch: Path, say: Callable[[str], None]) -> Survey:
        """Check what was given and name the rungs and their switches.

        Raises:
            UsageError: it cannot be bisected; one sentence.
        """

    def opener(self, config: Any, survey: Survey) -> TrialOpener:
        """Return what opens runners."""

    def further(
        self, config: Any, survey: Survey, found: Sequence[RungFinding], scratch: Path
    ) -> Sequence[Rung]:
        """Return what is tried next, given all findings so far; () at the end. It is called in a thread."""

    def lines(self, config: Any, survey: Survey, finding: RungFinding) -> Lines:
        """Return what to say of a finding."""

    def close_up(
        self, config: Any, survey: Survey, found: Sequence[RungFinding], out: Path, scratch: Path
    ) -> Iterator[str]:
        """Write what the user asked for at the end (a bundle, a cropped model); yield what is said of it."""
