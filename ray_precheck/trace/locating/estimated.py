"""How values differ by their sketches or statistics, where files of tensors are not there.

Comes in: two values of a record. Goes out: a `ValueEvidence`. Called by the walk, through `Evidence`.
A sketch estimates the L2 distance (`capture.measures.sketch`). Statistics cannot: their largest relative
difference stands for it, each against the size that it has in a tensor of that norm.
"""

import math
from dataclasses import dataclass, field

from ray_precheck.capture.measures.sketch import estimated_norm
from ray_precheck.trace.difference.reading import Source as CaptureSource
from ray_precheck.trace.items import Item
from ray_precheck.trace.locating.evidence import OwnError, ValueEvidence

UNKNOWN, SAME, OTHER = ValueEvidence(), ValueEvidence(0.0), ValueEvidence(math.inf)


@dataclass(frozen=True, slots=True)
class EstimatedEvidence:
    """Differences of values by sketches, where both sides have them, else by statistics, else by digests."""

    target: CaptureSource = field(default_factory=CaptureSource)
    golden: CaptureSource = field(default_factory=CaptureSource)
    estimates: bool = True

    @property
    def sees_elements(self) -> bool:
        """Whether both sides have sketches."""
        sides = self.target.sketches, self.golden.sketches
        return all(each is not None and len(each) > 0 for each in sides)

    def value(self, key: str, target: Item, golden: Item) -> ValueEvidence:
        """Return how a value of a record differs from its partner."""
        if target.shape != golden.shape:
            return OTHER
        ours, theirs = self.target.sketch(target), self.golden.sketch(golden)
        by_statistics = statistics_difference(target, golden)
        if by_statistics.difference == math.inf or ours is None or theirs is None:
            return by_statistics
        difference = estimated_norm(ours - theirs)
        norm = golden.number("Norm")
        if norm is None or not 0 < norm < math.inf:
            norm = estimated_norm(theirs)
        if not norm:
            return OTHER if difference else SAME
        return ValueEvidence(difference / norm)

    def own(self, key: str) -> OwnError | None:
        """Return None: nothing was replayed."""
        return None


def statistics_difference(target: Item, golden: Item) -> ValueEvidence:
    """Return the largest relative difference of Max, Min, Mean and Norm, or whether digests agree.

    Norm counts against itself, the others at least against the root mean square of the elements: single
    values near 0, and means of values that cancel, differ by as much in honest runs as large values do.
    """
    known = target.statistic("Max"), golden.statistic("Max")
    if None in known:
        if target.digest and golden.digest:
            return SAME if target.digest == golden.digest else UNKNOWN
        return UNKNOWN
    worst = 0.0
    norm, norm2 = target.number("Norm"), golden.number("Norm")
    root = math.sqrt(max(1, math.prod(golden.shape or ())))
    for name in ("Max", "Min", "Mean", "Norm"):
        ours, theirs = target.number(name), golden.number(name)
        if ours is None or theirs is None:
            continue
        if ours == theirs or (ours != ours and theirs != theirs):
            continue
        if not (math.isfinite(ours) and math.isfinite(theirs)):
            return OTHER
        size = max(abs(ours), abs(theirs))
        if norm and norm2 and math.isfinite(norm) and math.isfinite(norm2):
            size = max(size, norm / root, norm2 / root)
        worst = max(worst, abs(ours - theirs) / size)
    return ValueEvidence(worst)
