"""One tensor or value of a pair of operators: what was captured, how it differs, and the verdict.

Goes out: `TensorRow` and `ComparisonMode`. Called by all of this room, and by the jobs that compare captures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ray_precheck.trace.difference.elements import ElementDifference
from ray_precheck.trace.difference.magnitudes import BesideMask
from ray_precheck.trace.items import OUTPUT, Item

PASS, WARNING, ERROR, UNMATCHED = "pass", "warning", "error", "unmatched"
_ORDER = {"": 0, PASS: 0, WARNING: 1, ERROR: 2, UNMATCHED: 3}
NOT_THERE = "N/A"
# Said of tensors whose files cannot be read.
BY_STATISTICS = "statistics are compared instead"


class ComparisonMode(Enum):
    """What two dumps have in common, which decides the columns: files of tensors, statistics, or digests
    alone."""

    REAL = "real"
    STATISTICS = "statistics"
    DIGESTS = "digests"


@dataclass(slots=True)
class TensorRow:
    """One tensor or value of a pair of operators.

    A side that is not there is None, and its name `N/A`. `tensors` says that both sides are tensors, and
    `reshaped` that their shapes differ. `statistics` are the cells of the statistics
    (`statistics.statistics_cells`). `elements` is there where both files were read. `unread` says why
    files were not compared. `layout` says that other shapes, or values in another order, hold the same
    values. `relative_l2` is measured, or with `estimated` an estimate from sketches; `noise` is the
    relative L2 distance of two golden runs. All three are None where they are not known. `beside` is there
    where a mask hides how far the other elements are apart. `slack` is the L2 distance that honest updates
    of an unsteady parameter explain, 0 for all others (`unsteady`); `is_late` says that such updates may have
    come before.
    """

    target_name: str
    golden_name: str
    target: Item | None
    golden: Item | None
    tensors: bool = False
    reshaped: bool = False
    statistics: tuple[str, ...] = ()
    elements: ElementDifference | None = None
    unread: str = ""
    layout: str = ""
    relative_l2: float | None = None
    estimated: bool = False
    noise: float | None = None
    beside: BesideMask | None = None
    slack: float = 0.0
    is_late: bool = False
    saved: "Callable[[], Sequence[TensorRow]]" = tuple
    result: str = ""
    messages: list[str] = field(default_factory=list)

    @property
    def item(self) -> Item:
        """The value on the target side, or on the golden side where that is the only one."""
        found = self.target if self.target is not None else self.golden
        if found is None:
            raise ValueError("a row has at least one side")
        return found

    @property
    def name(self) -> str:
        """The name of that value."""
        return self.target_name if self.target is not None else self.golden_name

    @property
    def both(self) -> tuple[Item, Item]:
        """The target and the golden value of a row that both sides have."""
        if self.target is None or self.golden is None:
            raise ValueError(f"{self.target_name} against {self.golden_name}: only one side has it")
        return self.target, self.golden

    @property
    def is_output(self) -> bool:
        """Whether it is an output of the operator; parameters and gradients count as inputs."""
        found = self.target if self.target is not None else self.golden
        return found is not None and found.part == OUTPUT

    @property
    def is_matched(self) -> bool:
        """Whether both sides have it."""
        return self.target is not None and self.golden is not None

    def note(self, result: str, message: str) -> None:
        """Add a message; the result becomes the worse of the present one and `result`."""
        if _ORDER[result] > _ORDER[self.result]:
            self.result = result
        self.messages.append(f"{result}: {message}" if result != PASS else message)
