"""The faults that `bench_verdicts` plants in what a device returned: edits of a result, and wrong runs.

Comes in: a `Subject` with honest results. Goes out: for each fault its name, the place of the result that is
wrong, and all results, of which the others are honest. Called by `bench_verdicts.main`. Faults are chosen as an
attacker on a bench that looks at a part would: single elements anywhere and in corners, differences that cancel
in sums and in projections with equal signs, tiles, and errors that are small everywhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import HostCall, HostTensor
from scripts.bench_verdicts.subject import Place, Subject, Tensors

Generator = np.random.Generator
# Changes a float64 array `(rows, columns)` in place; the other arguments are its RMS and random numbers.
Edit = Callable[[Array, float, Generator], None]
Fault = tuple[str, Place, Tensors]


def _element(share: float, where: str = "any") -> Edit:
    """One element off by a share of the RMS."""

    def edit(out: Array, rms: float, rng: Generator) -> None:
        rows, columns = out.shape
        row, column = rng.integers(rows), rng.integers(columns)
        row = rows - 1 if where in ("last row", "corner") else row
        column = columns - 1 if where in ("last column", "corner") else column
        out[row, column] += share * rms * rng.choice([-1.0, 1.0])

    return edit


def _set(value: float) -> Edit:
    def edit(out: Array, rms: float, rng: Generator) -> None:
        out[rng.integers(out.shape[0]), rng.integers(out.shape[1])] = value

    return edit


def _row(change: Callable[[Array], Array]) -> Edit:
    def edit(out: Array, rms: float, rng: Generator) -> None:
        row = rng.integers(len(out))
        out[row] = change(out[row])

    return edit


def _column(change: Callable[[Array], Array]) -> Edit:
    return lambda out, rms, rng: _row(change)(out.T, rms, rng)


def _tile(size: int, change: Callable[[Array, Array], Array]) -> Edit:
    """A tile, changed with its neighbour to the right (of the last one: to the left)."""

    def edit(out: Array, rms: float, rng: Generator) -> None:
        high, wide = (min(size, extent) for extent in out.shape)
        row = rng.integers(out.shape[0] // high) * high
        column = rng.integers(out.shape[1] // wide) * wide
        other = column - wide if column + 2 * wide > out.shape[1] else column + wide
        other = max(other, 0)
        tile = out[row : row + high, column : column + wide]
        tile[:] = change(tile.copy(), out[row : row + high, other : other + wide].copy())

    return edit


def _transposed(tile: Array, _: Array) -> Array:
    return tile.T if tile.shape[0] == tile.shape[1] else tile[::-1]


def _swapped(out: Array, rms: float, rng: Generator) -> None:
    """Two rows take each other's place: all sums over rows stay."""
    if len(out) > 1:
        one, other = rng.choice(len(out), 2, replace=False)
        out[[one, other]] = out[[other, one]]


def _neighbours(share: float, axis: int) -> Edit:
    """+d and -d beside each other: they cancel in a projection with equal signs."""

    def edit(out: Array, rms: float, rng: Generator) -> None:
        lines = out if axis else out.T
        row, column = rng.integers(lines.shape[0]), rng.integers(max(lines.shape[1] - 1, 1))
        lines[row, column : column + 2] += share * rms * np.array([1.0, -1.0])[: lines.shape[1]]

    return edit


def _checkerboard(share: float, size: int) -> Edit:
    def edit(out: Array, rms: float, rng: Generator) -> None:
        tile = out[: size or None, : size or None]
        signs = 1.0 - 2.0 * (np.add.outer(np.arange(tile.shape[0]), np.arange(tile.shape[1])) % 2)
        tile += share * rms * signs

    return edit


def _constant_along(size: int, share: float, axis: int) -> Edit:
    """A difference that is the same along a block of rows, or columns."""

    def edit(out: Array, rms: float, rng: Generator) -> None:
        lines = out if axis else out.T
        begin = rng.integers(max(len(lines) // size, 1)) * size
        lines[begin : begin + size, rng.integers(lines.shape[1])] += share * rms

    return edit


def _cancelling_block(size: int, share: float) -> Edit:
    """Differences in a block of columns of one row, whose sum and alternating sum are 0."""

    def edit(out: Array, rms: float, rng: Generator) -> None:
        width = min(size, out.shape[1]) // 4 * 4
        pattern = np.tile([1.0, 1.0, -1.0, -1.0], width // 4)
        out[rng.integers(len(out)), :width] += share * rms * pattern

    return edit


def _scaled(factor: float) -> Edit:
    def edit(out: Array, rms: float, rng: Generator) -> None:
        out *= factor

    return edit


def _flipped(out: Array, rms: float, rng: Generator) -> None:
    """The sign of one element of at least the size of the RMS."""
    large = np.argwhere(np.abs(out) >= rms)
    row, column = large[rng.integers(len(large))] if len(large) else (0, 0)
    out[row, column] *= -1.0


def _cut(out: Array, rms: float, rng: Generator) -> None:
    """Each result one unit of a half type nearer to 0 in its last digits: an early truncation to 8 bits."""
    out[:] = np.ldexp(np.trunc(np.ldexp(*_parts(out))), np.frexp(out)[1] - 8)


def _parts(out: Array) -> tuple[Array, int]:
    return np.frexp(out)[0], 8


EDITS: dict[str, Edit] = {
    **{f"element 5 %, {where}": _element(0.05, where) for where in ("any", "last row", "last column")},
    "element 5 %, corner": _element(0.05, "corner"),
    "element 50 %": _element(0.5),
    "element 1 RMS": _element(1.0),
    "element 4 RMS": _element(4.0),
    "NaN": _set(np.nan),
    "infinity": _set(np.inf),
    "element 0": _set(0.0),
    "sign of an element": _flipped,
    "row x 1.01": _row(lambda row: row * 1.01),
    "row x 1.003": _row(lambda row: row * 1.003),
    "row 0": _row(np.zeros_like),
    "row reversed": _row(lambda row: row[::-1].copy()),
    "column x 1.01": _column(lambda column: column * 1.01),
    "column 0": _column(np.zeros_like),
    **{f"tile {size} x 1.01": _tile(size, lambda tile, _: tile * 1.01) for size in (16, 64)},
    **{f"tile {size} 0": _tile(size, lambda tile, _: tile * 0.0) for size in (16, 64)},
    **{f"tile {size} stale": _tile(size, lambda _, other: other) for size in (16, 64)},
    **{f"tile {size} transposed": _tile(size, _transposed) for size in (16, 64)},
    "rows swapped": _swapped,
    "columns swapped": lambda out, rms, rng: _swapped(out.T, rms, rng),
    "+d -d in a row": _neighbours(0.1, 1),
    "+d -d in a column": _neighbours(0.1, 0),
    "checkerboard 16, 5 %": _checkerboard(0.05, 16),
    "checkerboard, 1 %": _checkerboard(0.01, 0),
    **{f"constant along {n} rows": _constant_along(n, 0.05, 1) for n in (8, 16)},
    **{f"constant along {n} columns": _constant_along(n, 0.05, 0) for n in (8, 16)},
    "block of a row that cancels": _cancelling_block(16, 0.05),
    "all x 1.003": _scaled(1.003),
    "all cut to 8 bits": _cut,
}


def edited(subject: Subject, at: Place, name: str, rng: Generator) -> Fault:
    """Return one of `EDITS` at one result."""
    right = subject.honest[at]
    wide = np.array(right.data, np.float64)
    rows = wide.reshape(-1, wide.shape[-1]) if wide.ndim else wide.reshape(1, 1)
    finite = rows[np.isfinite(rows)]
    with np.errstate(all="ignore"):
        EDITS[name](rows, float(np.sqrt(np.mean(finite**2))) if finite.size else 1.0, rng)
    wrong = HostTensor(right.dtype, round_to_dtype(wide, right.dtype))
    return name, at, {**subject.honest, at: wrong}


def wrong_runs(subject: Subject, rng: Generator) -> Iterator[Fault]:
    """Yield what a device returns that runs the call, or a part of it, wrongly."""
    for name, results in _runs(subject):
        for at, wrong in results.items():
            right = subject.honest.get(at)
            if right is None or right.shape != wrong.shape:
                continue
            yield name, at, {**subject.honest, at: wrong}
            part = _part_of(right, wrong, rng)
            if part is not None:
                yield f"{name}, one part", at, {**subject.honest, at: part}


def _part_of(right: HostTensor, wrong: HostTensor, rng: Generator) -> HostTensor | None:
    """Return a result of which one row of the first axes (a batch, a head, a token) is that of another."""
    if right.data.ndim < 2:
        return None
    data, many = np.array(right.data), right.data.reshape(-1, *right.shape[-2:])
    leading = data.reshape(many.shape) if len(many) > 1 else data.reshape(-1, data.shape[-1])
    place = rng.integers(len(leading))
    leading[place] = wrong.data.reshape(leading.shape)[place]
    return replace(right, data=data)


def _runs(subject: Subject) -> Iterator[tuple[str, Tensors]]:
    known = subject.known
    if known.k is not None:
        for lost in (1, 8, 32, 64):
            changed = subject.computed(_zeroed_tail(known.k[0], known.k[1], lost))
            yield f"k without its last {lost}", _only(changed, "forward")
    yield from _of_gradients(subject)
    for bits, name in ((8, "bf16"), (11, "tf32")):
        changed = subject.computed(lambda call, bits=bits: _mapped(call, _truncated(bits)))  # type: ignore[misc]
        if not _same(changed, subject.honest):
            yield f"inputs cut to {name}", changed
    if known.bias >= 0:
        yield "without the bias", _only(subject.computed(_argument(known.bias, lambda b: b * 0)), "forward")
        yield "bias twice", _only(subject.computed(_argument(known.bias, lambda b: b * 2)), "forward")
    if known.weight >= 0:
        rolled = _argument(known.weight, lambda w: np.roll(w, 1, w.ndim - 3 if w.ndim > 2 else 0))
        yield "another's weight", subject.computed(rolled)
    if "conv" in known.tags:
        yield "one wrong tap", subject.computed(_argument(1, _without_tap))
        yield "border not padded with 0", _only(subject.computed(_argument(0, _border)), "forward")
    if "attention" in known.tags:
        yield from _of_attention(subject)


def _of_gradients(subject: Subject) -> Iterator[tuple[str, Tensors]]:
    if not any(direction == "backward" for direction, _ in subject.honest):
        return
    for name, index in (
        ("without the last row", (slice(-1, None), slice(None))),
        ("without the last 8 columns", (slice(None), slice(-8, None))),
    ):
        short: list[HostTensor | None] = []
        for each in subject.cotangents:
            if each is not None and each.data.ndim > 1:
                data = np.array(each.data)
                data.reshape(-1, data.shape[-1])[index] = 0
                each = replace(each, data=data, layout=None)
            short.append(each)
        yield f"incoming gradient {name}", _only(subject.computed(cotangents=short), "backward")


def _of_attention(subject: Subject) -> Iterator[tuple[str, Tensors]]:
    attention = torch.nn.functional.scaled_dot_product_attention

    def scaled(q: Any, k: Any, v: Any, **kwargs: Any) -> Any:
        return attention(q, k, v, **kwargs, scale=q.shape[-1] ** -0.5 * 1.01)

    def shifted(q: Any, k: Any, v: Any, is_causal: bool = False, **kwargs: Any) -> Any:
        length = q.shape[-2]
        mask = torch.ones(length, length, dtype=torch.bool).tril(1) if is_causal else None
        return attention(q, k, v, attn_mask=mask, **kwargs)

    def dropped(q: Any, k: Any, v: Any, is_causal: bool = False, **kwargs: Any) -> Any:
        length = q.shape[-2]
        mask = torch.ones(length, length, dtype=torch.bool)
        mask = mask.tril() if is_causal else mask
        mask[-32:, 16:32] = False
        return attention(q, k, v, attn_mask=mask, **kwargs)

    yield "softmax scale x 1.01", subject.computed(function=scaled)
    causal = subject.known.case.kwargs.get("is_causal", False)
    if causal:
        yield "causal mask off by one", subject.computed(function=shifted)
    if "attn_mask" not in subject.known.case.kwargs:
        yield "chunk lost in online softmax", subject.computed(function=dropped)


def _argument(place: int, change: Callable[[Array], Array]) -> Callable[[HostCall], HostCall]:
    def changed(call: HostCall) -> HostCall:
        args = list(call.args)
        tensor = args[place]
        if isinstance(tensor, HostTensor):
            data = round_to_dtype(change(np.float64(tensor.data)), tensor.dtype)
            args[place] = HostTensor(tensor.dtype, data)
        return HostCall(tuple(args), call.kwargs)

    return changed


def _zeroed_tail(place: int, axis: int, count: int) -> Callable[[HostCall], HostCall]:
    def change(data: Array) -> Array:
        data = np.array(data)
        np.moveaxis(data, axis, 0)[-count:] = 0
        return data

    return _argument(place, change)


def _without_tap(weight: Array) -> Array:
    weight = np.array(weight)
    weight[..., -1] = 0
    return weight


def _border(data: Array) -> Array:
    """Shift the data by one: the border then has other neighbours."""
    return np.roll(data, 1, -1)


def _truncated(bits: int) -> Callable[[Any], Any]:
    def cut(value: Any) -> Any:
        if not isinstance(value, HostTensor) or DTYPES[value.dtype].kind != "float":
            return value
        part, exponent = np.frexp(np.float64(value.data))
        data = np.ldexp(np.trunc(np.ldexp(part, bits)), exponent - bits)
        return HostTensor(value.dtype, round_to_dtype(data, value.dtype))

    return cut


def _mapped(call: HostCall, change: Callable[[Any], Any]) -> HostCall:
    from ray_precheck.frameworks.base import mapped_call

    return mapped_call(call, change)


def _only(results: Tensors, direction: str) -> Tensors:
    return {at: one for at, one in results.items() if at[0] == direction}


def _same(one: Tensors, other: Tensors) -> bool:
    return all(np.array_equal(one[at].data, other[at].data, equal_nan=True) for at in other)
