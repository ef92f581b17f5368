"""The faults that `bench_verdicts` plants in what a device returned: edits of a result, and wrong runs.

Comes in: a `Subject` with honest results. Goes out: for each fault its name, the place of the result that is
wrong, and all results, of which the others are honest. Called by `bench_verdicts.main`. Faults are those that
a bench which looks at a part might miss: single elements anywhere and in corners, differences that cancel in
sums and in projections with equal signs, tiles, and errors that are small everywhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ray_precheck.frameworks.base import mapped_call
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


EDITS: dict[str, Edit] = {
    **{
        f"element 5 %, {where}": _element(0.05, where)
        for where in ("any", "last row", "last column")
    },
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
}


def edited(subject: Subject, at: Place, name: str, rng: Generator) -> Fault | None:
    """Return one of `EDITS` at one result, None where it changes nothing."""
    right = subject.honest[at]
    # A gradient may lie transposed in memory; rows are edited in place.
    wide = np.array(right.data, np.float64, order="C")
    rows = wide.reshape(-1, wide.shape[-1]) if wide.ndim else wide.reshape(1, 1)
    finite = rows[np.isfinite(rows)]
    with np.errstate(all="ignore"):
        EDITS[name](rows, float(np.sqrt(np.mean(finite**2))) if finite.size else 1.0, rng)
    wrong = HostTensor(right.dtype, round_to_dtype(wide, right.dtype))
    return (name, at, {**subject.honest, at: wrong}) if _differs(right, wrong) else None


def wrong_runs(subject: Subject, count: int, rng: Generator) -> Iterator[Fault]:
    """Yield what a device returns that runs the call, or a part of it, wrongly: `count` ways, by chance."""
    runs = _runs(subject)
    names = list(runs)
    for number in rng.permutation(len(names))[:count]:
        results = runs[names[number]]()
        places = [at for at, one in results.items() if _differs(subject.honest.get(at), one)]
        if not places:
            continue
        at = places[rng.integers(len(places))]
        part = _part_of(subject.honest[at], results[at], rng) if rng.random() < 0.5 else None
        name = names[number] + (", one part" if part else "")
        yield name, at, {**subject.honest, at: part or results[at]}


def _differs(right: HostTensor | None, wrong: HostTensor) -> bool:
    if right is None or right.shape != wrong.shape:
        return False
    return not np.array_equal(right.data, wrong.data, equal_nan=True)


def _part_of(right: HostTensor, wrong: HostTensor, rng: Generator) -> HostTensor | None:
    """Return a result of which one matrix (a sample, a head), or one row, is wrong; None of a vector."""
    if right.data.ndim < 2:
        return None
    data = np.array(right.data)
    parts = (-1, *right.shape[-2:]) if right.data.ndim > 2 else (-1, right.shape[-1])
    mine, others = data.reshape(parts), wrong.data.reshape(parts)
    differ = np.flatnonzero((mine != others).any(tuple(range(1, mine.ndim))))
    place = differ[rng.integers(len(differ))]
    mine[place] = others[place]
    return replace(right, data=data)


def _runs(subject: Subject) -> dict[str, Callable[[], Tensors]]:
    """Return the ways to run a call wrongly, by name."""
    known, run = subject.known, subject.computed
    found: dict[str, Callable[[], Tensors]] = {
        f"inputs cut to {name}": partial(run, partial(_mapped, change=partial(_cut_to, bits)))
        for bits, name in ((8, "bf16"), (11, "tf32"))
    }
    bits = DTYPES[subject.dtype].mantissa_bits + 1
    found["result cut, not rounded"] = partial(
        run, finish=lambda one: subject.rounded(_cut_to(bits, one))
    )
    found["x 1.003"] = partial(run, finish=lambda one: subject.rounded(_times(one, 1.003)))
    if known.k is not None:
        place, axis = known.k
        for lost in (1, 8, 32, 64):
            tail = partial(run, _zeroed(place, axis, slice(-lost, None)))
            found[f"k without its last {lost}"] = partial(_forward_of, tail)
        if known.bias < 0 and "attention" not in known.tags:
            found["added up in a half type"] = partial(_added_in_half, subject, place, axis)
    if known.bias >= 0:
        for factor, name in ((0.0, "without the bias"), (2.0, "bias twice")):
            other = partial(run, _argument(known.bias, partial(np.multiply, factor)))
            found[name] = partial(_forward_of, other)
    if known.weight >= 0:
        found["another's weight"] = partial(run, _argument(known.weight, _of_another))
    if "conv" in known.tags:
        found["one wrong tap"] = partial(run, _argument(1, _without_tap))
        if known.padding >= 0:
            found["border padded with the other side"] = partial(_padded, subject)
    if any(direction == "backward" for direction, _ in subject.honest):
        found |= _of_gradients(subject)
    return found | (_of_attention(subject) if "attention" in known.tags else {})


def _forward_of(run: Callable[[], Tensors]) -> Tensors:
    return {at: one for at, one in run().items() if at[0] == "forward"}


def _added_in_half(subject: Subject, place: int, axis: int) -> Tensors:
    """Add up four parts of k, rounding after each to a half type."""
    extent = subject.inputs.call.args[place].shape[axis]
    half = "bfloat16" if subject.dtype == "float32" else subject.dtype
    edges = [extent * part // 4 for part in range(5)]
    total: Tensors = {}
    for begin, end in pairwise(edges):

        def kept(data: Array, begin: int = begin, end: int = end) -> Array:
            moved = np.zeros_like(data)
            window = np.moveaxis(moved, axis, 0)
            window[begin:end] = np.moveaxis(data, axis, 0)[begin:end]
            return moved

        for at, one in subject.computed(_argument(place, kept)).items():
            if at[0] == "forward":
                before = total[at].data if at in total else np.zeros_like(one.data)
                added = round_to_dtype(before.astype(np.float64) + one.data, half)
                total[at] = HostTensor(half, added)
    return {
        at: HostTensor(subject.dtype, _carried(one, subject.dtype)) for at, one in total.items()
    }


def _carried(tensor: HostTensor, dtype: str) -> Array:
    return round_to_dtype(tensor.data.astype(np.float64), dtype)


def _padded(subject: Subject) -> Tensors:
    own = subject.checker.device().resolve(subject.inputs.record.name)

    def circular(x: Any, w: Any, b: Any, stride: Any, padding: int, *rest: Any) -> Any:
        sides = [padding] * 2 * (x.dim() - 2)
        return own(torch.nn.functional.pad(x, sides, mode="circular"), w, b, stride, 0, *rest)

    return subject.computed(function=circular)


def _of_gradients(subject: Subject) -> dict[str, Callable[[], Tensors]]:
    def short(index: tuple[slice, slice]) -> Tensors:
        incoming: list[HostTensor | None] = []
        for each in subject.cotangents:
            if each is not None and each.data.ndim > 1:
                data = np.array(each.data)
                data.reshape(-1, data.shape[-1])[index] = 0
                each = replace(each, data=data, layout=None)
            incoming.append(each)
        found = subject.computed(cotangents=incoming)
        return {at: one for at, one in found.items() if at[0] == "backward"}

    every = slice(None)
    return {
        "gradient without the last row": partial(short, (slice(-1, None), every)),
        "gradient without the last 8 columns": partial(short, (every, slice(-8, None))),
    }


def _of_attention(subject: Subject) -> dict[str, Callable[[], Tensors]]:
    attention = torch.nn.functional.scaled_dot_product_attention

    def scaled(q: Any, k: Any, v: Any, **kwargs: Any) -> Any:
        return attention(q, k, v, **kwargs, scale=q.shape[-1] ** -0.5 * 1.01)

    def masked(chunk: bool) -> Callable[..., Any]:
        def run(q: Any, k: Any, v: Any, is_causal: bool = False, **kwargs: Any) -> Any:
            mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool)
            mask = mask.tril(0 if chunk else 1) if is_causal else mask
            if chunk:
                mask[-32:, 16:32] = False
            return attention(q, k, v, attn_mask=mask, **kwargs)

        return run

    found: dict[str, Callable[[], Tensors]] = {}
    found |= {"softmax scale x 1.01": partial(subject.computed, function=scaled)}
    if subject.known.case.kwargs.get("is_causal", False):
        found["causal mask off by one"] = partial(subject.computed, function=masked(False))
    if "attn_mask" not in subject.known.case.kwargs:
        found["chunk lost in online softmax"] = partial(subject.computed, function=masked(True))
    return found


def _argument(place: int, change: Callable[[Array], Array]) -> Callable[[HostCall], HostCall]:
    """Return what changes the floating argument at a place, rounded to its dtype."""

    def changed(call: HostCall) -> HostCall:
        args = list(call.args)
        tensor = args[place]
        if isinstance(tensor, HostTensor):
            data = round_to_dtype(change(tensor.data.astype(np.float64)), tensor.dtype)
            args[place] = HostTensor(tensor.dtype, data)
        return HostCall(tuple(args), call.kwargs)

    return changed


def _zeroed(place: int, axis: int, part: slice) -> Callable[[HostCall], HostCall]:
    def change(data: Array) -> Array:
        np.moveaxis(data, axis, 0)[part] = 0
        return data

    return _argument(place, change)


def _of_another(weight: Array) -> Array:
    """Give each expert, head, sample or input channel the weight of the one before."""
    return np.roll(weight, 1, weight.ndim - 3 if weight.ndim > 2 else 0)


def _without_tap(weight: Array) -> Array:
    weight[..., -1] = 0
    return weight


def _mapped(call: HostCall, change: Callable[[Any], Any]) -> HostCall:
    return mapped_call(call, change)


def _cut_to(bits: int, value: Any) -> Any:
    """Cut a float tensor to a number of bits, towards 0."""
    if not isinstance(value, HostTensor) or DTYPES[value.dtype].kind != "float":
        return value
    part, exponent = np.frexp(value.data.astype(np.float64))
    data = np.ldexp(np.trunc(np.ldexp(part, bits)), exponent - bits)
    return HostTensor(value.dtype, round_to_dtype(data, value.dtype))


def _times(tensor: HostTensor, factor: float) -> HostTensor:
    return replace(tensor, data=(tensor.data.astype(np.float64) * factor).astype(tensor.data.dtype))
