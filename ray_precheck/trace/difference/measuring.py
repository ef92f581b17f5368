"""The rows of a pair of operators, and what is measured of each: its elements, its statistics, its sketches.

Comes in: the values of two aligned operators and a `Reading`. Goes out: rows, filled in. Called by the job
that compares captures, for each pair. No verdict is made here; the cells of a row are made in `rows`.

Also here: which value of the target is compared with which value of the golden operator; what two captures
have besides their records: files of tensors, sketches; and the mode of a comparison.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice

from ray_precheck.dump.mapped import MappedTensor, MappedTensors
from ray_precheck.dump.tensors import read_sketches, sketch_of
from ray_precheck.errors import NotCheckable
from ray_precheck.numerics.sketch import Array, estimated_norm
from ray_precheck.numerics.statistics import MAX
from ray_precheck.schema.dtypes import canonical_dtype
from ray_precheck.trace.difference.elements import (
    beside_mask,
    element_difference,
    is_out_of_range,
    may_be_masked,
    other_layout,
    other_order,
    same_statistics,
    scaled_distance,
)
from ray_precheck.trace.difference.rows import (
    NOT_THERE,
    ComparisonMode,
    TensorRow,
    statistics_cells,
)
from ray_precheck.trace.forms import FormedSide
from ray_precheck.trace.items import OUTPUT, Item, parameter_names, parameter_place
from ray_precheck.trace.side import CaptureSide

Pair = tuple[Item | None, Item | None]
_Key = Callable[[Item], Hashable]


def pair_items(
    target: Sequence[Item], golden: Sequence[Item], *, same_framework: bool = True
) -> list[Pair]:
    """Return pairs in which each value of both sides is exactly once, None where there is no other.

    Values of the same path are a pair. Of those that are left, tensors of one part (inputs, parameters,
    outputs) with one shape are paired at the same position, then in any order, because frameworks and
    versions name, order and pass arguments differently; then tensors at the same position whatever their
    shapes. Values that are no tensors have to be of one type. Between frameworks the names of keywords
    say less than shapes do: a tensor with another shape under the same path waits until shapes have
    been tried. The order is that of the target, with what only the golden side has at the end of its part.
    Values that both sides say are one tensor of the model (`Item.origin`) are a pair before all others, and
    outputs that are two of them are none. Of updates and buckets that have other parameters those of one name
    are pairs.
    """
    by_origin = any(item.origin for item in target) and any(item.origin for item in golden)
    is_bucket = bool(target and target[0].bucket_name)
    if same_framework and not by_origin and not is_bucket and _are_alike(target, golden):
        return [*zip(target, golden, strict=True)]
    matches: dict[int, int] = {}
    left = [*range(len(golden))]
    places = {id(item): place for items in (target, golden) for item, place in _places(items)}
    by_shape: list[_Key] = [
        lambda item: (_part(item), places[id(item)], _alike(item)),
        lambda item: (_part(item), _alike(item)),
    ]
    keys: list[_Key] = [lambda item: (item.path, item.part), *by_shape]
    if not same_framework:
        keys = [lambda item: (item.path, item.part, _alike(item)), *by_shape, keys[0]]
    keys.append(
        lambda item: (_part(item), places[id(item)]) if item.is_tensor else (id(item), item.path)
    )
    named = [_by_parameter(side) for side in (target, golden)]
    if all(named) and [*named[0].values()] != [*named[1].values()]:
        keys = [partial(_named_or, named[0] | named[1], key) for key in keys]
    if by_origin:
        keys = [_original, *(partial(_unlike_original, key) for key in keys)]
    for key in keys:
        if not left or len(matches) == len(target):
            break
        left = _match(target, golden, matches, left, key)
    return _in_order(target, golden, matches, left)


def _by_parameter(items: Sequence[Item]) -> dict[int, tuple[str, ...]]:
    """Return what the values of an update or a bucket are, with the names of their parameters; empty for
    other records."""
    names = parameter_names(items)
    found: dict[int, tuple[str, ...]] = {}
    for item in items:
        part, _, path = item.path.partition(".")
        if item.bucket_name:
            found[id(item)] = (part, item.bucket_name)
        elif (place := parameter_place(item)) is not None and place in names:
            found[id(item)] = (part, *path.split(".")[1:-1], names[place])
    return found


def _named_or(named: Mapping[int, tuple[str, ...]], key: _Key, item: Item) -> Hashable:
    """Return the key of a value: the parameter that it is of, where an update has it."""
    return named.get(id(item)) or key(item)


def _original(item: Item) -> Hashable:
    return (item.part, item.origin) if item.origin else id(item)


def _unlike_original(key: _Key, item: Item) -> Hashable:
    """Return the key of a value that may have a partner of another origin: no output that has one may."""
    return id(item) if item.origin and item.part == OUTPUT else key(item)


def _are_alike(target: Sequence[Item], golden: Sequence[Item]) -> bool:
    """Return whether both sides have the same paths in the same order, as nearly all operators do."""
    if len(target) != len(golden):
        return False
    for ours, theirs in zip(target, golden, strict=True):
        if ours.path != theirs.path or ours.part != theirs.part:
            return False
    return True


def _places(items: Sequence[Item]) -> list[tuple[Item, int]]:
    """Return each value with its number among the tensors, or the others, of its part."""
    counts: dict[Hashable, int] = {}
    found = []
    for item in items:
        kind = (_part(item), item.is_tensor)
        found.append((item, counts.get(kind, 0)))
        counts[kind] = counts.get(kind, 0) + 1
    return found


def _part(item: Item) -> Hashable:
    """Return the part in which an item may have a partner: what a call has changed is none of its results."""
    return item.part, item.is_changed


def _alike(item: Item) -> Hashable:
    return ("tensor", item.shape) if item.is_tensor else ("value", item.type_name)


def _match(
    target: Sequence[Item],
    golden: Sequence[Item],
    matches: dict[int, int],
    left: list[int],
    key: _Key,
) -> list[int]:
    """Pair what has no pair yet and equal keys, in order; return what is left of the golden side."""
    waiting: dict[Hashable, list[int]] = {}
    for place in reversed(left):
        waiting.setdefault(key(golden[place]), []).append(place)
    taken = set()
    for place, item in enumerate(target):
        if place not in matches and (found := waiting.get(key(item))):
            matches[place] = found.pop()
            taken.add(matches[place])
    return [place for place in left if place not in taken]


def _in_order(
    target: Sequence[Item], golden: Sequence[Item], matches: dict[int, int], left: list[int]
) -> list[Pair]:
    pairs: list[Pair] = []
    rest = [golden[place] for place in left]
    for place, item in enumerate(target):
        mate = matches.get(place)
        pairs.append((item, None if mate is None else golden[mate]))
        last = place + 1 == len(target) or target[place + 1].part != item.part
        if last and rest:
            pairs += [(None, other) for other in rest if other.part == item.part]
            rest = [other for other in rest if other.part != item.part]
    return pairs + [(None, other) for other in rest]


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
    possible = {*_KINDS.values()}
    if isinstance(side, FormedSide):
        possible = {kind for name, kind in _KINDS.items() if side.formed.form.has(name)}
    return _has(_first_items(side), possible)


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


# What a tensor has, by the field that tells.
_KINDS = {
    "data_name": ComparisonMode.REAL,
    MAX: ComparisonMode.STATISTICS,
    "md5": ComparisonMode.DIGESTS,
}


def _has(items: Iterable[Item], possible: set[ComparisonMode]) -> set[ComparisonMode]:
    found: set[ComparisonMode] = set()
    for item in items:
        if found == possible:
            break
        if not item.is_tensor:
            continue
        if item.file:
            found.add(ComparisonMode.REAL)
        if item.statistic(MAX) is not None:
            found.add(ComparisonMode.STATISTICS)
        if item.digest:
            found.add(ComparisonMode.DIGESTS)
    return found


dtype_of = cache(canonical_dtype)
# Only values that differ by so much of their norm are looked at for another order.
_MOVED = 1e-3


def rows_of_operators(
    target_key: str,
    golden_key: str,
    target: Sequence[Item],
    golden: Sequence[Item],
    reading: Reading,
) -> list[TensorRow]:
    """Return all rows of a pair of operators, measured but not judged.

    An operator that only one side has comes with the key "" and no values on the other.
    """
    rows = []
    for ours, theirs in pair_items(target, golden, same_framework=reading.same_framework):
        row = TensorRow(_named(target_key, ours), _named(golden_key, theirs), ours, theirs)
        measure(row, reading)
        rows.append(row)
    return rows


def _named(key: str, item: Item | None) -> str:
    if item is None:
        return NOT_THERE
    return f"{key}.{item.path}" if item.path else key


def measure(row: TensorRow, reading: Reading) -> None:
    """Fill in a row: its elements where both sides have files, its statistics, its sketches."""
    target, golden = row.target, row.golden
    if reading.mode is not ComparisonMode.DIGESTS:
        row.statistics = statistics_cells(target, golden)
    if target is None or golden is None:
        return
    _compare_kinds(row, target, golden)
    if not row.tensors:
        return
    if reading.mode is ComparisonMode.REAL:
        _measure_elements(row, target, golden, reading)
    if row.elements is None and reading.mode is not ComparisonMode.DIGESTS:
        if not row.reshaped:
            row.relative_l2 = sketched_distance((reading.target, reading.golden), target, golden)
            row.estimated = row.relative_l2 is not None
        if row.reshaped and not row.layout and _may_be_another_layout(target, golden):
            row.layout = "the statistics agree, as those of the same values in another layout do"


def _may_be_another_layout(target: Item, golden: Item) -> bool:
    """Return whether as many elements on both sides have the same statistics."""
    sizes = [math.prod(side.shape or ()) for side in (target, golden)]
    return sizes[0] == sizes[1] > 0 and same_statistics(target, golden)


def _compare_kinds(row: TensorRow, target: Item, golden: Item) -> None:
    """Note whether both are tensors, and whether their shapes differ.

    Nearly all pairs have the same dtype and shape, and are looked at once.
    """
    ours, theirs = target.element, golden.element
    if ours is None or theirs is None:
        return
    dtype, shape = ours.get("dtype"), ours.get("shape")
    if not isinstance(dtype, str) or not isinstance(shape, list):
        return
    if shape == theirs.get("shape") and dtype == theirs.get("dtype"):
        row.tensors = True
    elif target.is_tensor and golden.is_tensor:
        row.tensors, row.reshaped = True, shape != theirs["shape"]


def _measure_elements(row: TensorRow, target: Item, golden: Item, reading: Reading) -> None:
    opened: list[MappedTensor] = []
    reasons = []
    for side, item, source in (
        ("target", target, reading.target),
        ("golden", golden, reading.golden),
    ):
        try:
            opened.append(open_item(item, source.tensors))
        except NotCheckable as reason:
            reasons.append(f"{side}: {reason}")
    row.unread = "; ".join(reasons)
    if reasons:
        return
    ours, theirs = opened
    if ours.shape != theirs.shape:
        row.layout = other_layout(ours, theirs)
        return
    rtol, atol = tolerances(ours.dtype, theirs.dtype)
    row.elements = element_difference(ours, theirs, rtol, atol)
    row.relative_l2 = row.elements.relative_l2
    if is_out_of_range(row.elements):
        row.relative_l2 = scaled_distance(ours, theirs)
    if may_be_masked(row.elements, _largest(golden)):
        row.beside = beside_mask(ours, theirs)
    if row.relative_l2 > _MOVED and same_statistics(target, golden):
        row.layout = other_order(ours, theirs)


def _largest(item: Item) -> float | None:
    """Return the largest magnitude of a tensor, as its statistics say; None where they do not."""
    ends = [end for end in item.ends if end is not None]
    largest = max(map(abs, ends), default=math.nan) if len(ends) == 2 else math.nan
    return largest if math.isfinite(largest) else None


def open_item(item: Item, tensors: MappedTensors | None) -> MappedTensor:
    """Map the file of a tensor.

    Raises:
        NotCheckable: there is none, or it cannot be read.
    """
    dtype = dtype_of(item.dtype)
    if tensors is None:
        raise NotCheckable("the capture has no files of tensors")
    if dtype is None:
        raise NotCheckable(f"the dtype {item.dtype} is not read")
    return tensors.open(item.spec(dtype))


# Source: the table in the documentation of torch.testing.assert_close (torch 2.13): rtol and atol by
# dtype, 0 and 0 for all others; of two dtypes the larger ones count. Complex64 has those of float32.
_BY_DTYPE = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


def tolerances(target: str, golden: str) -> tuple[float, float]:
    """Return rtol and atol for two canonical dtypes."""
    pairs = [_BY_DTYPE.get(dtype, (0.0, 0.0)) for dtype in (target, golden)]
    return max(rtol for rtol, _ in pairs), max(atol for _, atol in pairs)
