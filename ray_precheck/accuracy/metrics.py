"""The distance between a tested output and the bench.

Comes in: two arrays of one shape. Goes out: `Metrics`, of a bench that is rounded to the tested dtype, for
every run; and `Errors`, of one that is not rounded, as the published standards define them. Called by
`accuracy.outputs` and by the standards. The arrays are read in chunks, so that intermediate float64 copies
are small for outputs of any size.

Every definition of `Errors` is msprobe's (compare/algorithm.py, see `thresholds`). Elements where either side
is NaN or infinite, once the bench is rounded to the tested dtype, have no error there: whether they agree is
said by `Metrics.mismatch`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ray_precheck.accuracy.thresholds import (
    BENCHMARK_SMALL_VALUE_ATOL,
    RELATIVE_ERR_EPS,
    SMALL_VALUE,
    limit_of,
)
from ray_precheck.numerics.arrays import (
    add_squares,
    overflow_from,
    pieces,
    round_to_dtype,
    same_values,
)
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.result import Metrics

# Squares of float64 numbers outside of this range over- or underflow; the arrays are scaled then.
_SAFE_LARGE, _SAFE_SMALL = 1e140, 1e-140


@dataclass(slots=True)
class MetricSums:
    """Running values over the pieces of two arrays, from which `Metrics` are made.

    `worst_at` is the flat place of the largest error, where the bench has the magnitude `bench_at_worst`;
    `mismatch_at` is that of the first NaN or infinity of one side alone, -1 for none.
    """

    dot: float = 0.0
    device_square: float = 0.0
    bench_square: float = 0.0
    max_abs_err: float = -1.0
    max_rel_err: float = 0.0
    worst_at: int = 0
    bench_at_worst: float = 0.0
    bench_largest: float = 0.0
    left_out: int = 0
    mismatch_at: int = -1

    def add_tile(
        self, device: Array, bench: Array, start: int, smallest_normal: float
    ) -> bool | None:
        """Add a tile, two `(N,)` arrays of real numbers whose first element is at the flat place `start`.

        Returns whether both are equal; None, and nothing is added, where squares would over- or underflow.
        """
        device_largest, device_finite = _range(device)
        bench_largest, bench_finite = _range(bench)
        if _scale(device_largest) != 1.0 or _scale(bench_largest) != 1.0:
            return None
        self.bench_largest = max(self.bench_largest, bench_largest)
        are_finite = device_finite and bench_finite
        return self.add(device, bench, start, (1.0, 1.0), smallest_normal, are_finite=are_finite)

    def add(
        self,
        device: Array,
        bench: Array,
        start: int,
        scales: tuple[float, float],
        smallest_normal: float,
        *,
        are_finite: bool,
    ) -> bool:
        """Add a piece; return whether both sides are equal in all elements that are finite."""
        device, bench = _wide(device), _wide(bench)
        if "c" in (device.dtype.kind, bench.dtype.kind):
            device, bench = device.astype(np.complex128), bench.astype(np.complex128)
        if not are_finite:
            device, bench = _finite(self, device, bench, start)
        is_comparable = device.dtype == bench.dtype and scales[0] == scales[1]
        if is_comparable and bool((device == bench).all()):
            _add_equal(self, device, start, scales[0])
            return True
        with np.errstate(over="ignore"):
            _add_chunk(self, device, bench, start, scales, smallest_normal)
        return False

    def metrics(self, shape: tuple[int, ...]) -> Metrics:
        """Return the metrics of two arrays of a shape without a mismatch; they have an element."""
        return Metrics(
            cosine=_cosine(self) if math.prod(shape) > 1 else None,
            max_abs_err=max(self.max_abs_err, 0.0),
            max_rel_err=self.max_rel_err,
            worst_index=unravelled(self.worst_at, shape),
            bench_at_worst=self.bench_at_worst,
            bench_largest=self.bench_largest,
            left_out=self.left_out,
        )


def metrics_of(device_out: Array, bench_out: Array, smallest_normal: float) -> Metrics:
    """Measure how far `device_out` is from `bench_out`.

    Both have one shape, any of NumPy's number types; complex numbers are compared as such.

    - cosine = <d, b> / (|d| |b|) over all elements (complex: over real and imaginary parts);
      1 where both are all zero, 0 where one of them is; None for fewer than two elements.
    - max_abs_err = max |d - b|, max_rel_err = max |d - b| / max(|b|, smallest_normal).

    NaN and infinite elements that agree (the same kind, infinities with the same sign) are left
    out. Where they do not agree, `mismatch` names the first one and max_abs_err is infinite.
    Empty arrays agree: `accuracy.outputs` says that nothing was compared. `smallest_normal` is that of the
    tested dtype.

    Raises:
        ValueError: the shapes differ.
    """
    if device_out.shape != bench_out.shape:
        raise ValueError(f"shapes differ: {device_out.shape} and {bench_out.shape}")
    device_flat, bench_flat = device_out.reshape(-1), bench_out.reshape(-1)
    device_largest, device_finite = _range(device_flat)
    bench_largest, bench_finite = _range(bench_flat)
    scales = _scale(device_largest), _scale(bench_largest)
    sums = MetricSums(bench_largest=bench_largest)
    are_finite = device_finite and bench_finite
    for chunk in pieces(len(device_flat)):
        device, bench = device_flat[chunk], bench_flat[chunk]
        sums.add(device, bench, chunk.start, scales, smallest_normal, are_finite=are_finite)
    return _metrics(sums, device_out.shape, device_flat, bench_flat)


def _wide(values: Array) -> Array:
    """Return values as float64, complex128 or, for integers, as they are."""
    if values.dtype.kind == "c":
        return np.asarray(values, np.complex128)
    if values.dtype.kind in "iu":
        return values
    return np.asarray(values, np.float64)


def _finite(sums: MetricSums, device: Array, bench: Array, start: int) -> tuple[Array, Array]:
    """Return both with 0 where one of them is not finite; count where they agree in that, and note
    where they do not."""
    finite = np.isfinite(device) & np.isfinite(bench)
    if finite.all():
        return device, bench
    agree = ~finite & same_values(device, bench)
    differ = ~finite & ~agree
    if sums.mismatch_at < 0 and differ.any():
        sums.mismatch_at = start + int(np.argmax(differ))
    sums.left_out += int(np.count_nonzero(agree))
    return np.where(finite, device, 0), np.where(finite, bench, 0)


def _add_equal(sums: MetricSums, values: Array, start: int, scale: float) -> None:
    """Add a chunk that both sides have alike, as most outputs are: what `_add_chunk` adds then."""
    if sums.max_abs_err < 0.0:
        sums.max_abs_err, sums.worst_at = 0.0, start
        sums.bench_at_worst = float(magnitudes(values[:1])[0])
    parts = _scaled(values, scale)
    square = float(np.dot(parts, parts))
    sums.dot += square
    sums.device_square += square
    sums.bench_square += square


def _add_chunk(
    sums: MetricSums,
    device: Array,
    bench: Array,
    start: int,
    scales: tuple[float, float],
    smallest_normal: float,
) -> None:
    error = absolute_difference(device, bench)
    worst = int(np.argmax(error))
    if error[worst] > sums.max_abs_err:
        sums.max_abs_err, sums.worst_at = float(error[worst]), start + worst
        sums.bench_at_worst = float(magnitudes(bench[worst : worst + 1])[0])
    relative = magnitudes(bench)
    np.maximum(relative, smallest_normal, out=relative)
    np.divide(error, relative, out=relative)
    sums.max_rel_err = max(sums.max_rel_err, float(relative.max()))
    device_parts, bench_parts = _scaled(device, scales[0]), _scaled(bench, scales[1])
    sums.dot += float(np.dot(device_parts, bench_parts))
    sums.device_square += float(np.dot(device_parts, device_parts))
    sums.bench_square += float(np.dot(bench_parts, bench_parts))


def absolute_difference(device: Array, bench: Array) -> Array:
    """Return |device - bench| as float64; 64-bit integers are subtracted before they are rounded."""
    if device.dtype.kind in "iu" and bench.dtype.kind in "iu":
        if device.dtype.kind != bench.dtype.kind:
            return _mixed_difference(device, bench)
        larger, smaller = np.maximum(device, bench), np.minimum(device, bench)
        # Modulo 2**64 the difference of two integers is exact even where int64 overflows.
        return (larger.astype(np.uint64) - smaller.astype(np.uint64)).astype(np.float64)
    return np.asarray(np.abs(device - bench), dtype=np.float64)


def _mixed_difference(device: Array, bench: Array) -> Array:
    """Return |device - bench| of signed and unsigned integers."""
    signed, unsigned = (device, bench) if device.dtype.kind == "i" else (bench, device)
    unsigned = unsigned.astype(np.uint64)
    at_least_0 = np.maximum(signed, 0).astype(np.uint64)
    exact = np.maximum(at_least_0, unsigned) - np.minimum(at_least_0, unsigned)
    below_0 = np.minimum(signed, 0).astype(np.float64)
    return np.asarray(exact.astype(np.float64) - below_0)


def magnitudes(values: Array) -> Array:
    """Return |values| as float64; |smallest int64| does not fit into an int64."""
    wide = values if values.dtype.kind == "c" else np.asarray(values, np.float64)
    return np.asarray(np.abs(wide), dtype=np.float64)


def _parts(values: Array) -> Array:
    """Return the values as real float64 numbers, complex ones as pairs."""
    if values.dtype.kind == "c":
        return np.ascontiguousarray(values).view(np.float64)
    return np.asarray(values, np.float64)


def _scaled(values: Array, scale: float) -> Array:
    """Return the parts of values times a scale, which is 1 but for very large and very small ones."""
    return _parts(values) if scale == 1.0 else _parts(values) * scale


def _range(flat: Array) -> tuple[float, bool]:
    """Return the largest finite magnitude of the parts, 0 for none, and whether there are only such."""
    largest, all_finite = 0.0, True
    for piece in pieces(len(flat)):
        chunk = flat[piece]
        # Those two need no copy to have their ends taken.
        parts = chunk if chunk.dtype.char in "fd" else _parts(_wide(chunk))
        here = max(float(np.maximum.reduce(parts)), -float(np.minimum.reduce(parts)))
        if not math.isfinite(here):
            all_finite = False
            magnitude = np.abs(parts)
            here = float(np.max(magnitude, initial=0.0, where=np.isfinite(magnitude)))
        largest = max(largest, here)
    return largest, all_finite


def _scale(largest: float) -> float:
    """Return the power of two that brings numbers up to `largest` near 1, or 1 if none is needed.

    Of 0 it is 1, too.
    """
    if _SAFE_SMALL < largest < _SAFE_LARGE:
        return 1.0
    return float(2.0 ** -max(min(np.frexp(largest)[1], 1022), -1022))


def _metrics(sums: MetricSums, shape: tuple[int, ...], device: Array, bench: Array) -> Metrics:
    if not len(bench):
        return Metrics(None, 0.0, 0.0)
    found, at = sums.metrics(shape), sums.mismatch_at
    if at < 0:
        return found
    index = unravelled(at, shape)
    return replace(
        found,
        max_abs_err=float("inf"),
        max_rel_err=float("inf"),
        worst_index=index,
        bench_at_worst=float(magnitudes(bench[at : at + 1])[0]),
        mismatch=f"at index {list(index)} it is {device[at]} where the bench has {bench[at]}",
    )


def _cosine(sums: MetricSums) -> float:
    if 0.0 in (sums.device_square, sums.bench_square):
        return float(sums.device_square == sums.bench_square)
    cosine = sums.dot / (math.sqrt(sums.device_square) * math.sqrt(sums.bench_square))
    return min(max(cosine, -1.0), 1.0)  # NaN stays NaN


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


def chunks(device_out: Array, bench_out: Array, dtype: str, start: int = 0) -> Iterator[Chunk]:
    """Yield both arrays piece by piece, in float64 or complex128; `start` is the place of the first element.

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
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.subtract(device, bench)
            error = np.abs(error, out=error) if is_real else np.abs(error)
        if is_real and np.max(magnitude) < beyond and np.max(error) < np.inf:
            finite = np.ones(len(error), bool)
        else:
            # Comparing is cheaper than rounding, which only complex numbers need: their parts overflow.
            stays = magnitude < beyond if is_real else np.isfinite(rounded_bench(bench, dtype))
            finite = np.isfinite(device) & stays
            error, magnitude = np.where(finite, error, 0.0), np.where(finite, magnitude, 0.0)
        yield Chunk(start + piece.start, device, bench, magnitude, error, finite)


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


@dataclass(slots=True)
class ErrorSums:
    """Running values over the chunks of an output of `dtype`, from which `Errors` are made."""

    dtype: str
    elements: int = 0
    normal: int = 0
    small: int = 0
    small_wrong: int = 0
    worst_at: int = 0
    max_rel: float = -1.0
    sum_rel: float = 0.0
    scale: float = 0.0
    squares: float = 0.0

    def add(self, chunk: Chunk) -> None:
        """Add a chunk."""
        self.elements += len(chunk.abs_err)
        is_normal = chunk.magnitude > limit_of(SMALL_VALUE, self.dtype)
        error, count = chunk.abs_err, int(np.count_nonzero(is_normal))
        has_small = count < len(error)
        if has_small:
            # What is not finite has a magnitude and an error of 0.
            self.small += int(np.count_nonzero(chunk.finite)) - count
            atol = limit_of(BENCHMARK_SMALL_VALUE_ATOL, self.dtype)
            self.small_wrong += int(np.count_nonzero((error > atol) & ~is_normal))
        if not count:
            return
        self.normal += count
        relative = relative_errors(chunk, self.dtype)
        if has_small:
            relative, error = np.where(is_normal, relative, -1.0), np.where(is_normal, error, 0.0)
        at = int(np.argmax(relative))
        if relative[at] > self.max_rel:
            self.max_rel, self.worst_at = float(relative[at]), chunk.start + at
        if has_small:
            np.maximum(relative, 0.0, out=relative)
        self.sum_rel += float(np.sum(relative))
        self.scale, self.squares = add_squares(self.scale, self.squares, error)

    def errors(self, shape: tuple[int, ...]) -> Errors:
        """Return the errors of an output of a shape."""
        normal = self.normal
        return Errors(
            elements=self.elements,
            normal=normal,
            small=self.small,
            max_rel_err=max(self.max_rel, 0.0),
            mean_rel_err=self.sum_rel / normal if normal else 0.0,
            rmse=self.scale * math.sqrt(self.squares / normal) if normal else 0.0,
            small_value_err=self.small_wrong / self.small if self.small else 0.0,
            worst_index=unravelled(self.worst_at, shape) if normal else (),
        )


def measure_errors(device_out: Array, bench_out: Array, dtype: str) -> Errors:
    """Measure an output of `dtype`; float and complex ones only.

    Raises:
        ValueError: the shapes differ.
    """
    sums = ErrorSums(dtype)
    for chunk in chunks(device_out, bench_out, dtype):
        sums.add(chunk)
    return sums.errors(device_out.shape)


def relative_errors(chunk: Chunk, dtype: str) -> Array:
    """Return |d - b| / (|b| + eps), `(N,)` float64."""
    found = chunk.magnitude + limit_of(RELATIVE_ERR_EPS, dtype)
    return np.asarray(np.divide(chunk.abs_err, found, out=found))


def unravelled(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of a flat position."""
    index = []
    for extent in reversed(shape):
        flat, at = divmod(flat, extent)
        index.append(at)
    return tuple(reversed(index))


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
