"""What a record says of a tensor beyond dtype, shape and statistics: how it holds its values, the structure
of these, and its layout in memory.

Comes in: the JSON of the tensor. Goes out: a `Storage`, None for the usual one, or an `UnknownSpec` with the
reason where the dump does not say enough to build the tensor again; a `Structure`; strides, offset and the
argument whose memory is shared; `NotCheckable` where one of them contradicts itself. Called by `dump.decode`.

msprobe records no structure and no layout. A structure is there where a look at the values showed more than
their statistics; fields of it that are not known here are those of later captures, and are passed over.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import shown
from ray_precheck.schema.dtypes import QUANTIZED
from ray_precheck.schema.values import (
    COMPRESSED,
    Nested,
    Quantized,
    Sparse,
    Storage,
    Structure,
    TensorSpec,
    UnknownSpec,
)

_USUAL = (None, "torch.strided")
_LAYOUT = "torch.sparse_"
_MOST_CHANNELS = 1 << 20


def decode_storage(
    value: Mapping[str, Any], shape: tuple[int, ...], path: str
) -> Storage | UnknownSpec | None:
    """Return how the tensor of an element holds its values.

    Raises:
        NotCheckable: its description contradicts itself, e.g. more places than the shape has.
    """
    layout, kind = value.get("layout"), value.get("type")
    if isinstance(value.get("nested"), dict):
        return _nested(value["nested"], shape, path)
    if isinstance(kind, str) and kind.endswith("NestedTensor"):
        return UnknownSpec("the dump does not say of which sizes this nested tensor is")
    dtype = str(value.get("dtype")).rpartition(".")[2]
    if dtype in QUANTIZED:
        if value.get("scale") is None or value.get("zero_point") is None:
            return UnknownSpec(f"the dump has no scale and zero point of this {dtype} tensor")
        return _quantized(value, shape, path)
    if not isinstance(layout, str) or not layout.startswith("torch.") or layout in _USUAL:
        return None
    found, name = value.get("sparse"), layout.removeprefix(_LAYOUT)
    if not isinstance(found, dict) or not (name == "coo" or name in COMPRESSED):
        return UnknownSpec(
            f"this tensor has the layout {shown(layout)}, of which the dump has no indices"
        )
    return _sparse(name, found, shape, path)


def _sparse(name: str, found: dict[str, Any], shape: tuple[int, ...], path: str) -> Sparse:
    block = _numbers(found.get("block", []), f"{path}: block")
    storage = Sparse(
        layout=name,
        shape=shape,
        nnz=_number(found.get("nnz"), f"{path}: nnz"),
        dense_dim=_number(found.get("dense_dim", 0), f"{path}: dense_dim"),
        coalesced=found.get("coalesced") is not False,
        distinct=_number(found.get("distinct", found.get("nnz")), f"{path}: distinct"),
        fewest=_number(found.get("fewest", 0), f"{path}: fewest"),
        most=_number(found.get("most", found.get("nnz")), f"{path}: most"),
        block=block,
    )
    dimensions = len(storage.sparse_shape)
    fits = storage.dense_dim <= len(shape) and dimensions >= (0 if name == "coo" else 2)
    fits = fits and (len(block) == 2) is name.startswith("b") and all(block)
    fits = fits and all(e % s == 0 for e, s in zip(storage.sparse_shape[-2:], block, strict=False))
    if fits:
        lines, width = storage.grid
        low, high = (storage.distinct,) * 2 if name == "coo" else (storage.nnz,) * 2
        fits = storage.fewest <= storage.most <= width and storage.distinct <= storage.nnz
        fits = fits and storage.fewest * lines <= low and high <= storage.most * lines
        fits = fits and (storage.nnz == storage.distinct or not storage.coalesced)
        fits = fits and (storage.distinct > 0 or not storage.nnz)
    if not fits:
        raise NotCheckable(
            f"{path}: no sparse tensor of shape {shown(list(shape))} is {shown(found)}"
        )
    return storage


def _quantized(value: Mapping[str, Any], shape: tuple[int, ...], path: str) -> Quantized:
    axis = value.get("axis")
    scale, zero_point = (
        _floats(value[name] if axis is not None else [value[name]], f"{path}: {name}")
        for name in ("scale", "zero_point")
    )
    is_axis = axis is None or (type(axis) is int and 0 <= axis < len(shape))
    wanted = shape[axis] if is_axis and axis is not None else 1
    if not is_axis or not len(scale) == len(zero_point) == wanted:
        raise NotCheckable(
            f"{path}: {len(scale)} scales and {len(zero_point)} zero points do not fit the axis"
            f" {shown(axis)} of shape {shown(list(shape))}"
        )
    return Quantized(scale, zero_point, axis)


def _nested(found: dict[str, Any], shape: tuple[int, ...], path: str) -> Nested:
    sizes = found.get("sizes", [])
    if not isinstance(sizes, list):
        raise NotCheckable(f"{path}: sizes {shown(sizes)} are no lists of numbers")
    storage = Nested(
        tuple(_numbers(each, f"{path}: sizes") for each in sizes),
        _numbers(found.get("offsets", []), f"{path}: offsets"),
        _numbers(found.get("lengths", []), f"{path}: lengths"),
        _number(found.get("ragged", 0), f"{path}: ragged"),
    )
    if storage.is_jagged:
        fits = _is_jagged(storage, shape)
    else:
        fits = shape == (sum(math.prod(each) for each in storage.sizes),)
    if not fits:
        raise NotCheckable(
            f"{path}: no nested tensor of {shown(list(shape))} values is {shown(found)}"
        )
    return storage


def _is_jagged(storage: Nested, shape: tuple[int, ...]) -> bool:
    """Return whether the offsets rise inside of the values, and the lengths stay inside of the offsets."""
    offsets, ragged = storage.offsets, storage.ragged
    if not 1 <= ragged <= len(shape):
        return False
    steps = [after - before for before, after in itertools.pairwise(offsets)]
    fits = min(steps, default=0) >= 0 and offsets[-1] <= shape[ragged - 1]
    if storage.lengths:
        pairs = zip(storage.lengths, steps, strict=False)
        fits = fits and len(storage.lengths) == len(steps) and all(n <= step for n, step in pairs)
    return fits


def _number(value: Any, what: str) -> int:
    if type(value) is not int or value < 0:
        raise NotCheckable(f"{what} {shown(value)} is not a number of 0 or more")
    return value


def _numbers(values: Any, what: str) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise NotCheckable(f"{what} {shown(values)} is no list of numbers")
    return tuple(_number(each, what) for each in values)


def _floats(values: Sequence[Any], what: str) -> tuple[float, ...]:
    fits = isinstance(values, list) and len(values) <= _MOST_CHANNELS
    if not fits or not all(type(each) in (int, float) and math.isfinite(each) for each in values):
        raise NotCheckable(f"{what} {shown(values)} is no finite number, or list of them")
    return tuple(float(each) for each in values)


_KINDS_OF_ROWS = ("zero_rows", "masked_rows", "equal_rows")


def structure_of(value: Mapping[str, Any], shape: tuple[int, ...], path: str) -> Structure | None:
    """Return what the element of a tensor of this shape says of the structure of its values.

    Raises:
        NotCheckable: no tensor of this shape is so.
    """
    found = value.get("structure")
    if found is None:
        return None
    if not isinstance(found, dict):
        raise NotCheckable(f"{path}: structure must be an object, not {shown(found)}")
    size = math.prod(shape)
    distinct = _count(found, "distinct", size, "elements", path) if "distinct" in found else None
    if distinct == 0 and size:
        raise NotCheckable(f"{path}: structure has 0 distinct values of {size} elements")
    rows = _count(found, "rows", size, "elements", path)
    if rows and size % rows:
        raise NotCheckable(f"{path}: {size} elements do not lie in {rows} rows of one length")
    zero, masked, equal = (_count(found, name, rows, "rows", path) for name in _KINDS_OF_ROWS)
    if zero + masked + equal > rows:
        raise NotCheckable(
            f"{path}: structure has {zero} zero, {masked} masked and {equal} equal rows of {rows}"
        )
    means, deviation = _row_means(found, rows, path)
    nan = _count(found, "nan", size, "elements", path)
    return Structure(distinct, rows, zero, masked, equal, means, deviation, nan)


def _count(found: dict[str, Any], name: str, most: int, of: str, path: str) -> int:
    count = found.get(name, 0)
    if type(count) is not int or not 0 <= count <= most:
        raise NotCheckable(
            f"{path}: structure's {name} must be a count of at most {most} {of}, not {shown(count)}"
        )
    return count


def _row_means(
    found: dict[str, Any], rows: int, path: str
) -> tuple[tuple[float, float] | None, float]:
    means, deviation = found.get("row_means"), found.get("row_deviation", 0.0)
    if means is None:
        return None, 0.0
    is_pair = isinstance(means, list) and len(means) == 2 and all(map(_is_finite, means))
    if not rows or not is_pair:
        raise NotCheckable(
            f"{path}: structure's row_means must be the smallest and the largest mean of its rows, not"
            f" {shown(means)} of {rows} rows"
        )
    low, high = map(float, means)
    if low > high:
        raise NotCheckable(f"{path}: structure's row_means [{low:g}, {high:g}] fall")
    if not _is_finite(deviation) or deviation < 0:
        raise NotCheckable(
            f"{path}: structure's row_deviation must be a number of 0 or more, not {shown(deviation)}"
        )
    return (low, high), float(deviation)


def _is_finite(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def finite(value: Any) -> float | None:
    """Return a finite extreme; None if the record has none, or if it is NaN or infinite."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


_LARGEST = 2**63 - 1


def layout_of(
    value: dict[str, Any], shape: tuple[int, ...], path: str
) -> tuple[tuple[int, ...] | None, int, str]:
    """Return the strides (None: those of a contiguous tensor), the offset and the path of an argument
    whose memory a tensor shares ("" for none).

    Raises:
        NotCheckable: they are not those of a tensor of this shape.
    """
    stride, offset, shares = value.get("stride"), value.get("offset"), value.get("shares")
    if stride is not None:
        whole = isinstance(stride, list) and all(_is_count(step) for step in stride)
        if not whole or len(stride) != len(shape):
            raise NotCheckable(
                f"{path}: stride {shown(stride)} is not a list of {len(shape)} steps of 0 or more"
            )
        stride = tuple(stride)
    if offset is not None and not _is_count(offset):
        raise NotCheckable(f"{path}: offset {shown(offset)} is not a count of elements")
    if shares is not None and not isinstance(shares, str):
        raise NotCheckable(f"{path}: shares {shown(shares)} is not the path of an argument")
    return stride, offset or 0, shares or ""


def lazy_of(value: dict[str, Any], path: str) -> str:
    """Return what was still to be done to a tensor's memory: "conj", "neg" or "".

    Raises:
        NotCheckable: it is something else.
    """
    lazy = value.get("lazy", "")
    if lazy not in ("", "conj", "neg"):
        raise NotCheckable(f"{path}: lazy {shown(lazy)} is neither conj nor neg")
    return str(lazy)


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number <= _LARGEST


def require_earlier(tensors: Iterable[tuple[str, TensorSpec]]) -> None:
    """Require that each tensor of a call shares the memory of one before it, if it shares any.

    Raises:
        NotCheckable: it names another path.
    """
    earlier: set[str] = set()
    for path, spec in tensors:
        if spec.shares and spec.shares not in earlier:
            raise NotCheckable(
                f"forward {path}: shares {shown(spec.shares)} names no tensor before it"
            )
        earlier.add(path)
