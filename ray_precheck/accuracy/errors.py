"""The errors of an output against the float64 bench, as the published standards define them.

Comes in: two arrays of one shape, the bench not rounded to the tested dtype, and that dtype. Goes
out: `Errors` and its like. Called by the standards, for the device and for the reference. The
arrays are read in chunks, so that the float64 copies on the way stay small.

Every definition is msprobe's (compare/algorithm.py, see `thresholds`). Elements where either side
is NaN or infinite, once the bench is rounded to the tested dtype, have no error here: whether they
agree is said by `Metrics.mismatch`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ray_precheck.accuracy.thresholds import (
    BENCHMARK_SMALL_VALUE_ATOL,
    DEFAULT_DTYPE,
    RELATIVE_ERR_EPS,
    SMALL_VALUE,
)
from ray_precheck.numerics.arrays import add_squares, pieces
from ray_precheck.numerics.rounding import overflow_from, round_to_dtype
from ray_precheck.schema.dtypes import DTYPES, Array

T = TypeVar("T")


def limit_of(table: dict[str, T], dtype: str) -> T:
    """Return a dtype's row of a table; the default row where it has none."""
    return table.get(dtype, table[DEFAULT_DTYPE])


def is_measurable(dtype: str) -> bool:
    """Return whether a dtype has errors to be measured: floats and complex numbers have."""
    return DTYPES[dtype].kind in ("float", "complex")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of both arrays, `(N,)`: the bench's magnitudes, and the absolute errors.

    `finite` is where both sides are finite; elsewhere the error is 0. `start` is the flat position
    of the first element.
    """

    start: int
    device: Array
    bench: Array
    magnitude: Array
    abs_err: Array
    finite: Array


def chunks(device_out: Array, bench_out: Array, dtype: str) -> Iterator[Chunk]:
    """Yield both arrays piece by piece, in float64 or complex128.

    Raises:
        ValueError: the shapes differ.
    """
    if device_out.shape != bench_out.shape:
        raise ValueError(f"shapes differ: {device_out.shape} and {bench_out.shape}")
    wide = np.complex128 if "c" in (device_out.dtype.kind, bench_out.dtype.kind) else np.float64
    device_flat, bench_flat = device_out.reshape(-1), bench_out.reshape(-1)
    is_real = wide is np.float64 and DTYPES[dtype].kind == "float"
    beyond = overflow_from(dtype) if is_real else np.inf
    for piece in pieces(len(device_flat)):
        device = device_flat[piece].astype(wide, copy=False)
        bench = bench_flat[piece].astype(wide, copy=False)
        magnitude = np.abs(bench)
        # Comparing is cheaper than rounding, which only complex numbers need: their parts overflow.
        stays = magnitude < beyond if is_real else np.isfinite(rounded_bench(bench, dtype))
        finite = np.isfinite(device) & stays
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.abs(device - bench)
        if not finite.all():
            error, magnitude = np.where(finite, error, 0.0), np.where(finite, magnitude, 0.0)
        yield Chunk(piece.start, device, bench, magnitude, error, finite)


def rounded_bench(bench_out: Array, dtype: str) -> Array:
    """Return the bench as `dtype` would hold it; integers and booleans as they are."""
    kinds = {"float": "f", "complex": "c"}
    if kinds.get(DTYPES[dtype].kind) == bench_out.dtype.kind:
        return round_to_dtype(bench_out, dtype)
    return bench_out


@dataclass(frozen=True, slots=True)
class Errors:
    """How far an output is from the bench, over elements whose magnitude is above the small value.

    With e = |d - b| and r = e / (|b| + eps):
    - `max_rel_err` = max r, at `worst_index`; `mean_rel_err` = mean r; `rmse` = sqrt(mean e^2);
    - `small_value_err`: the share of the small values whose e is above their absolute limit.

    All are 0 where there is no such element. `elements` counts all, `normal` those above the small
    value and `small` those that are not, finite ones only.
    """

    elements: int
    normal: int
    small: int
    max_rel_err: float
    mean_rel_err: float
    rmse: float
    small_value_err: float
    worst_index: tuple[int, ...] = ()


def measure_errors(device_out: Array, bench_out: Array, dtype: str) -> Errors:
    """Measure an output of `dtype`; float and complex ones only.

    Raises:
        ValueError: the shapes differ.
    """
    small_value, atol = limit_of(SMALL_VALUE, dtype), limit_of(BENCHMARK_SMALL_VALUE_ATOL, dtype)
    normal = small = small_wrong = worst_at = 0
    max_rel, sum_rel, scale, squares = -1.0, 0.0, 0.0, 0.0
    for chunk in chunks(device_out, bench_out, dtype):
        is_small = chunk.finite & (chunk.magnitude <= small_value)
        is_normal = chunk.finite & ~is_small
        small += int(np.count_nonzero(is_small))
        small_wrong += int(np.count_nonzero(is_small & (chunk.abs_err > atol)))
        count = int(np.count_nonzero(is_normal))
        if not count:
            continue
        normal += count
        relative = np.where(is_normal, relative_errors(chunk, dtype), -1.0)
        at = int(np.argmax(relative))
        if relative[at] > max_rel:
            max_rel, worst_at = float(relative[at]), chunk.start + at
        sum_rel += float(np.sum(relative, where=is_normal))
        scale, squares = add_squares(scale, squares, chunk.abs_err[is_normal])
    return Errors(
        elements=device_out.size,
        normal=normal,
        small=small,
        max_rel_err=max(max_rel, 0.0),
        mean_rel_err=sum_rel / normal if normal else 0.0,
        rmse=scale * math.sqrt(squares / normal) if normal else 0.0,
        small_value_err=small_wrong / small if small else 0.0,
        worst_index=unravelled(worst_at, device_out.shape) if normal else (),
    )


def relative_errors(chunk: Chunk, dtype: str) -> Array:
    """Return |d - b| / (|b| + eps), `(N,)` float64."""
    return np.asarray(chunk.abs_err / (chunk.magnitude + limit_of(RELATIVE_ERR_EPS, dtype)))


def unravelled(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of a flat position."""
    return tuple(int(i) for i in np.unravel_index(flat, shape))


@dataclass(frozen=True, slots=True)
class Wrong:
    """Elements that are beyond a limit: how many, of how many, the worst of them and its value."""

    count: int = 0
    total: int = 0
    largest: float = 0.0
    at: int = -1

    @property
    def share(self) -> float:
        """The share of all that counted; 0 of none."""
        return self.count / self.total if self.total else 0.0

    def plus(self, values: Array, considered: Array, limit: float, start: int) -> "Wrong":
        """Add those of `values`, where they are `considered`, that are above `limit` or NaN."""
        held = np.where(considered, np.where(np.isnan(values), np.inf, values), -1.0)
        count = self.count + int(np.count_nonzero(held > limit))
        total = self.total + int(np.count_nonzero(considered))
        place = int(np.argmax(held)) if held.size else 0
        if held.size and held[place] > limit and held[place] > self.largest:
            return Wrong(count, total, float(held[place]), start + place)
        return Wrong(count, total, self.largest, self.at)
