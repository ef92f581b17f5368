"""What two captures have besides their records: files of tensors, sketches; and the mode of a comparison.

Comes in: two open captures. Goes out: a `Reading`. Called by the jobs that compare captures, once for
each pair of dumps.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from ray_precheck.dump.mapped import MappedTensors
from ray_precheck.dump.sketches import read_sketches, sketch_of
from ray_precheck.numerics.sketch import Array, estimated_norm
from ray_precheck.numerics.statistics import MAX
from ray_precheck.trace.difference.row import ComparisonMode
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import CaptureSide

# The records that are looked at for what a dump has: those of calls without a tensor are few in a row.
_RECORDS = 200


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one capture: its tensors, None where there are none, and its sketches."""

    tensors: MappedTensors | None = None
    sketches: Array | None = None

    def sketch(self, item: Item) -> Array | None:
        """Return the sketch of a tensor, `(64,)` float64; None where it has none."""
        if self.sketches is None or item.element is None:
            return None
        return sketch_of(item.element, self.sketches)


@dataclass(frozen=True, slots=True)
class Reading:
    """How two captures are compared, and where their files are."""

    mode: ComparisonMode
    target: Source = field(default_factory=Source)
    golden: Source = field(default_factory=Source)
    same_framework: bool = True
    framework: str = ""

    def read_whole(self) -> "Reading":
        """Return the same reading with files that are read and not mapped."""
        return replace(self, target=_whole(self.target), golden=_whole(self.golden))


def reading_of(target: CaptureSide, golden: CaptureSide) -> Reading:
    """Return how two captures are compared: by the best that both have.

    Raises:
        DumpError: the file of the sketches of either is none.
    """
    mode = mode_of(common_kinds(target, golden))
    ours, theirs = target.header.framework, golden.header.framework
    same = not ours or not theirs or ours == theirs
    return Reading(mode, _source(target, mode), _source(golden, mode), same, ours)


def sketched_distance(sources: tuple[Source, Source], target: Item, golden: Item) -> float | None:
    """Return the relative L2 distance of two tensors as their sketches estimate it, infinite where only the
    golden norm is 0; None where one has no sketch. What a sketch has of NaN and infinities is 0."""
    ours, theirs = sources[0].sketch(target), sources[1].sketch(golden)
    if ours is None or theirs is None:
        return None
    difference = estimated_norm(ours - theirs)
    norm = golden.norm
    if norm is None or not 0 < norm < math.inf:
        norm = estimated_norm(theirs)
    return difference / norm if norm else (math.inf if difference else 0.0)


def mode_of(common: set[ComparisonMode]) -> ComparisonMode:
    """Return the best that two captures have in common; statistics where they have nothing."""
    return next((mode for mode in ComparisonMode if mode in common), ComparisonMode.STATISTICS)


def common_kinds(target: CaptureSide, golden: CaptureSide) -> set[ComparisonMode]:
    """Return what two captures have in common.

    Digests of another kind have another length (a CRC-32 8 digits, the exclusive or 16 behind 0x), and equal
    none of the other side.
    """
    common = kinds_of(target) & kinds_of(golden)
    if ComparisonMode.DIGESTS in common and _digest_length(target) != _digest_length(golden):
        common.discard(ComparisonMode.DIGESTS)
    return common


def kinds_of(side: CaptureSide) -> set[ComparisonMode]:
    """Return what the first records of a capture have: files, statistics, digests."""
    return _has(_first_items(side))


def _first_items(side: CaptureSide) -> Iterator[Item]:
    return (item for entry in islice(side.entries, _RECORDS) for item in side.items(entry))


def _digest_length(side: CaptureSide) -> int:
    return next((len(item.digest) for item in _first_items(side) if item.digest), 0)


def _source(side: CaptureSide, mode: ComparisonMode) -> Source:
    return Source(
        MappedTensors(side.data_folder) if mode is ComparisonMode.REAL else None,
        _sketches(side) if mode is not ComparisonMode.DIGESTS else None,
    )


def _whole(source: Source) -> Source:
    tensors = source.tensors
    return source if tensors is None else replace(source, tensors=tensors.read_whole())


def _sketches(side: CaptureSide) -> Array | None:
    found = read_sketches(side.folder)
    return found if len(found) else None


def _has(items: Iterable[Item]) -> set[ComparisonMode]:
    found: set[ComparisonMode] = set()
    for item in items:
        if not item.is_tensor:
            continue
        if item.file:
            found.add(ComparisonMode.REAL)
        if item.statistic(MAX) is not None:
            found.add(ComparisonMode.STATISTICS)
        if item.digest:
            found.add(ComparisonMode.DIGESTS)
    return found
