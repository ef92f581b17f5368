"""How values differ by their sketches or statistics, where files of tensors are not there.

Comes in: two values of a record. Goes out: a `ValueEvidence`. Called by the walk, through `Evidence`.
A sketch estimates the L2 distance (`numerics.sketch`). Statistics cannot: their largest relative
difference stands for it, each against the size that it has in a tensor of that norm.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from ray_precheck.commands.locate.walk.evidence import OwnError, ValueEvidence
from ray_precheck.commands.locate.walk.noise import has_half_digits
from ray_precheck.numerics.arrays import epsilon_of
from ray_precheck.numerics.statistics import FIELDS, MAX, NORM, STATISTICS
from ray_precheck.trace.difference.reading import Source as CaptureSource
from ray_precheck.trace.difference.reading import sketched_distance
from ray_precheck.trace.items import Item

_NORM = FIELDS.index(NORM)
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
        mine, other = target.element or {}, golden.element or {}
        if mine.get("shape") != other.get("shape") and target.shape != golden.shape:
            return OTHER
        by_statistics = statistics_difference(target, golden)
        if by_statistics.difference == math.inf:
            return by_statistics
        distance = sketched_distance((self.target, self.golden), target, golden)
        return by_statistics if distance is None else ValueEvidence(distance)

    def own(self, key: str) -> OwnError | None:
        """Return None: nothing was replayed."""
        return None


def statistics_difference(target: Item, golden: Item) -> ValueEvidence:
    """Return the largest relative difference of Max, Min, Mean and Norm, or whether digests agree.

    Norm counts against itself, the others at least against the root mean square of the elements: single
    values near 0, and means of values that cancel, differ by as much in honest runs as large values do.
    """
    mine, other = target.element or {}, golden.element or {}
    if None in (mine.get(MAX), other.get(MAX)):
        if target.digest and golden.digest:
            return SAME if target.digest == golden.digest else UNKNOWN
        return UNKNOWN
    ours: tuple[Any, ...] = tuple(map(mine.get, FIELDS))
    theirs: tuple[Any, ...] = tuple(map(other.get, FIELDS))
    if ours == theirs:  # Weights, and all that is before the first difference.
        return SAME
    if _are_finite(ours) and _are_finite(theirs):
        return _of_finite(ours, theirs, golden)
    differing = [name for name in FIELDS if mine.get(name) != other.get(name)]
    worst = 0.0
    norm, norm2 = target.norm, golden.norm
    root = math.sqrt(max(1, math.prod(golden.shape or ())))
    for name in differing:
        one, two = target.number(name), golden.number(name)
        if one is None or two is None:
            continue
        if one == two or (one != one and two != two):
            continue
        if not (math.isfinite(one) and math.isfinite(two)):
            return OTHER
        size = max(abs(one), abs(two))
        if norm and norm2 and math.isfinite(norm) and math.isfinite(norm2):
            size = max(size, norm / root, norm2 / root)
        share = abs(one - two) / size
        if share > worst:
            worst = share
    return ValueEvidence(worst)


def _are_finite(numbers: tuple[Any, ...]) -> bool:
    """Return whether all are finite floats, as nearly all are."""
    for each in numbers:  # noqa: SIM110, a loop is twice as fast as `all`
        if type(each) is not float or not -math.inf < each < math.inf:
            return False
    return True


def _of_finite(ours: tuple[float, ...], theirs: tuple[float, ...], golden: Item) -> ValueEvidence:
    """Return what the loop over all kinds of numbers returns, for finite ones, and its slack."""
    least = 0.0
    if ours[_NORM] and theirs[_NORM]:
        least = max(ours[_NORM], theirs[_NORM]) / math.sqrt(max(1, math.prod(golden.shape or ())))
    worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        if one != other:
            share = abs(one - other) / max(abs(one), abs(other), least)
            if share > worst:
                worst = share
    if not has_half_digits(golden.dtype):
        return ValueEvidence(worst)
    certain = 0.0
    for statistic, one, other in zip(STATISTICS, ours, theirs, strict=True):
        if one != other:
            rounded = epsilon_of(golden.dtype) if statistic.is_end else 0.0
            share = abs(one - other) / max(abs(one), abs(other), least)
            certain = max(certain, share - rounded)
    return ValueEvidence(worst, slack=worst - certain)
