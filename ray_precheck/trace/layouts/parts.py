"""The values of a tensor, or of a part of it, and what they are put together to.

Comes in: elements of dumps with their files and sketches. Goes out: `PartValues`: statistics, and where they
are known all elements and the sketch. Called by `wholes`. Statistics of shards join in any order and along
any dimension; sketches of shards add up where they were made with the indices of the whole (DTensors); of
addends of a sum only the means and sketches add up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ray_precheck.dump.tensors import CapturedTensors, read_sketches, sketch_of
from ray_precheck.errors import NotCheckable
from ray_precheck.numerics.sketch import Array, estimated_norm
from ray_precheck.numerics.statistics import FIELDS, MAX, MEAN, MIN, NORM, STATISTICS
from ray_precheck.schema.dtypes import canonical_dtype
from ray_precheck.schema.values import TensorSpec
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import CaptureSide

DISTRIBUTED = "global_shape"
# Above this distance of all elements values are looked at for another order of the parts; statistics that
# agree within the second are those of the same values.
_MOVED, _SAME = 1e-3, 1e-4
# Statistics of replicas differ by no more where kernels are not deterministic.
_REPLICA = 1e-5


@dataclass(frozen=True, slots=True)
class PartValues:
    """The values of a tensor of this shape. `statistics` has None for what is not known, `array` all elements
    and `buckets` the sketch, None where they are not known. `is_global`: the sketch is made with the indices
    of the whole tensor of which this is a part."""

    shape: tuple[int, ...]
    statistics: Mapping[str, float | None]
    array: Array | None = None
    buckets: Array | None = None
    is_global: bool = False

    @property
    def size(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)


class PartFiles:
    """The files of tensors and sketches of a rank."""

    def __init__(self, side: CaptureSide) -> None:
        self._sketches = read_sketches(side.folder)
        self._tensors = CapturedTensors(side.data_folder)

    def values(self, element: Mapping[str, Any]) -> PartValues:
        """Return the values of an element."""
        item = Item("", "", element)
        shape = item.shape or ()
        statistics = {name: item.number(name) for name in FIELDS}
        row = sketch_of(element, self._sketches)
        return PartValues(shape, statistics, self._array(item, shape), row, DISTRIBUTED in element)

    def _array(self, item: Item, shape: tuple[int, ...]) -> Array | None:
        dtype = canonical_dtype(item.dtype)
        if dtype is None or not item.file:
            return None
        try:
            data = self._tensors.tensor(TensorSpec(dtype, shape, data_name=item.file), "").data
        except NotCheckable:
            return None
        return np.asarray(data).reshape(shape)


def scaled(values: PartValues, factor: float) -> PartValues:
    """Return values times a positive number."""
    if factor == 1.0:
        return values
    statistics = {
        name: None if each is None else each * factor for name, each in values.statistics.items()
    }
    array = None if values.array is None else values.array * values.array.dtype.type(factor)
    buckets = None if values.buckets is None else values.buckets * factor
    return replace(values, statistics=statistics, array=array, buckets=buckets)


def joined_parts(parts: Sequence[PartValues], dim: int, blocks: int = 1) -> PartValues:
    """Return the tensor of which these are shards along a dimension.

    `blocks`: each shard has so many blocks of it, and the first blocks of all shards come first (the queries,
    keys and values of a fused projection; with blocks of one row every n-th sample).
    """
    shape = list(parts[0].shape)
    if shape:
        shape[dim] = sum(part.shape[dim] for part in parts)
    sizes = [part.size for part in parts]
    statistics: dict[str, float | None] = dict.fromkeys(FIELDS)
    filled = [part for part in parts if part.size]
    for statistic in STATISTICS:
        numbers = [part.statistics[statistic.field] for part in filled]
        known = [number for number in numbers if number is not None]
        if known and len(known) == len(filled):
            statistics[statistic.field] = statistic.joined(known, [size for size in sizes if size])
    arrays = [part.array for part in filled if part.array is not None]
    array = None
    if shape and arrays and len(arrays) == len(filled):
        array = _in_blocks(arrays, dim, blocks)
    buckets = filled[0].buckets if len(filled) == 1 else None
    rows = [part.buckets for part in parts if part.is_global and part.buckets is not None]
    if len(rows) == len(parts):
        buckets = np.sum(rows, axis=0)
    return PartValues(tuple(shape), statistics, array, buckets, is_global=True)


def _in_blocks(arrays: Sequence[Array], dim: int, blocks: int) -> Array | None:
    if blocks == 1:
        return np.concatenate(arrays, axis=dim)
    if len({each.shape for each in arrays}) > 1 or arrays[0].shape[dim] % blocks:
        return None
    split = [np.split(each, blocks, axis=dim) for each in arrays]
    found: Array = np.concatenate([each[at] for at in range(blocks) for each in split], axis=dim)
    return found


def added_parts(parts: Sequence[PartValues]) -> PartValues:
    """Return the sum of tensors."""
    arrays = [part.array for part in parts if part.array is not None]
    rows = [part.buckets for part in parts if part.buckets is not None]
    array = np.sum(arrays, axis=0) if len(arrays) == len(parts) else None
    buckets = np.sum(rows, axis=0) if len(rows) == len(parts) else None
    means = [mean for part in parts if (mean := part.statistics[MEAN]) is not None]
    statistics: dict[str, float | None] = dict.fromkeys(FIELDS)
    if len(means) == len(parts):
        total = math.fsum(means)
        single = {MAX: total, MIN: total, NORM: abs(total)} if parts[0].size == 1 else {}
        statistics |= {MEAN: total, **single}
    if array is not None and array.size:
        statistics = of_array(array)
    return PartValues(
        parts[0].shape, statistics, array, buckets, all(part.is_global for part in parts)
    )


def rooted_parts(parts: Sequence[PartValues]) -> PartValues:
    """Return the Euclidean norms of tensors, of whose shards these are the norms: of several norms without
    their values only the norm of all is known."""
    norms = [norm for part in parts if (norm := part.statistics[NORM]) is not None]
    statistics: dict[str, float | None] = dict.fromkeys(FIELDS)
    if len(norms) == len(parts):
        fields = FIELDS if parts[0].size == 1 else (NORM,)
        statistics |= dict.fromkeys(fields, math.hypot(*norms))
    return PartValues(parts[0].shape, statistics)


def with_statistics_of(values: PartValues, whole: PartValues, times: int) -> PartValues:
    """Return a sum with the statistics of what a collective made of the same addends, a sum or a mean of so
    many: they are those of the sum where sketches, else means, agree by one factor alone."""
    mean, norm = values.statistics[MEAN], whole.statistics[NORM]
    if mean is None or values.statistics[NORM] is not None or whole.shape != values.shape:
        return values
    if norm is None or not math.isfinite(norm):
        return values
    fitting = []
    for factor in (1.0, 1 / times, float(times)):
        other = scaled(whole, factor)
        far = distance_between(values, other).exact
        its = other.statistics[MEAN]
        if far is None and its is not None:
            far = abs(its - mean) * math.sqrt(whole.size) / (factor * norm or 1.0)
        if far is not None and far <= _SAME:
            fitting.append(other.statistics)
    # A mean of nearly nothing fits by every factor.
    return replace(values, statistics=fitting[0]) if len(fitting) == 1 else values


def of_array(array: Array) -> dict[str, float | None]:
    """Return the statistics of elements, which are at least one."""
    wide = array.astype(np.float64) if array.dtype.kind in "fiub" else np.abs(array)
    return {
        MAX: float(wide.max()), MIN: float(wide.min()), MEAN: float(wide.mean()),
        NORM: float(np.linalg.norm(wide.reshape(-1))),
    }  # fmt: skip


def are_replicas(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Return whether two elements tell of the same values, but for the order of their sums."""
    if one.get("shape") != two.get("shape"):
        return False
    if all(one.get(name) == two.get(name) for name in (*FIELDS, "md5")):
        return True
    first, second = Item("", "", one), Item("", "", two)
    norm = first.norm
    if norm is None or not math.isfinite(norm):
        return False
    root = math.sqrt(max(1, math.prod(first.shape or ())))
    for name in FIELDS:
        ours, theirs = first.number(name), second.number(name)
        if ours is None or theirs is None:
            return False
        if abs(ours - theirs) > _REPLICA * norm / (root if name == MEAN else 1.0):
            return False
    return True


@dataclass(frozen=True, slots=True)
class JoinedDistance:
    """How far two tensors are apart, relative to the norm of the second, by all that is known of both: by
    elements or sketches, by statistics; None where nothing is."""

    exact: float | None = None
    statistics: float | None = field(default=None)

    @property
    def value(self) -> float | None:
        """The best that is known."""
        return self.exact if self.exact is not None else self.statistics

    @property
    def is_apart(self) -> bool:
        """Whether the elements are others at their places."""
        return self.exact is not None and self.exact > _MOVED

    @property
    def is_moved(self) -> bool:
        """Whether the same values stand in another order."""
        return (
            self.is_apart
            and self.statistics is not None and self.statistics < _SAME
        )  # fmt: skip


def distance_between(ours: PartValues, theirs: PartValues) -> JoinedDistance:
    """Return how far the values of two tensors of one shape are apart."""
    exact = None
    if (
        ours.array is not None
        and theirs.array is not None
        and ours.array.shape == theirs.array.shape
    ):
        exact = _elements_apart(ours.array, theirs.array)
    elif ours.buckets is not None and theirs.buckets is not None:
        norm = estimated_norm(theirs.buckets)
        exact = _share(estimated_norm(ours.buckets - theirs.buckets), norm)
    return JoinedDistance(exact, _statistics_apart(ours, theirs))


def _elements_apart(ours: Array, theirs: Array) -> float:
    with np.errstate(all="ignore"):
        kind = np.complex128 if "c" in (ours.dtype.kind, theirs.dtype.kind) else np.float64
        one, two = ours.astype(kind), theirs.astype(kind)
        same = (one == two) | (np.isnan(one) & np.isnan(two))
        difference = np.where(same, 0, one - two)
        found = float(np.linalg.norm(difference.reshape(-1)))
        norm = float(np.linalg.norm(np.nan_to_num(two).reshape(-1)))
    return math.inf if math.isnan(found) else _share(found, norm)


def _statistics_apart(ours: PartValues, theirs: PartValues) -> float | None:
    norm = theirs.statistics[NORM]
    if norm is None:
        norm = ours.statistics[NORM]
    size = max(1, theirs.size)
    found = []
    for statistic in STATISTICS:
        one, two = ours.statistics[statistic.field], theirs.statistics[statistic.field]
        if one is None or two is None:
            continue
        if one == two or (math.isnan(one) and math.isnan(two)):
            found.append(0.0)
        elif not math.isfinite(one) or not math.isfinite(two):
            found.append(math.inf)
        else:
            scale = norm if norm is not None and math.isfinite(norm) else abs(two) * math.sqrt(size)
            found.append(_share(abs(one - two) * statistic.distance(size), scale))
    return max(found, default=None)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else (math.inf if part else 0.0)
