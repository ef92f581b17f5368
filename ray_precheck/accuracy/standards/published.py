"""The published standards, which are msprobe's, and the choice among them by API and dtype.

Comes in: a `Comparison`. Goes out: a `Judgement`. Called by `accuracy.outputs`; the ratios of `benchmark` are
also those of `ray_precheck.compare_results`. Source: msprobe, compare/algorithm.py and of
precision_standard/ binary_consistency.py, benchmark_compare.py, absolute_threshold.py, ulp_compare.py and
thousandth_standard.py; limits in `thresholds`.

The lists of APIs are in `operators.accuracy`. The choice by dtype is that of mindstudio-probe 26.2,
precision_standard/standard_register.py, _get_standard_category: `binary` for integers and booleans,
units in the last place for fp8 outputs, `benchmark` for APIs in no list.
msprobe 26.2 itself judges every float16, bfloat16 and float32 output by `benchmark` before it looks
into the lists; its versions up to 25 looked into them first, as is done here.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ray_precheck.accuracy.metrics import (
    Chunk,
    Errors,
    Wrong,
    chunks,
    is_measurable,
    measure_errors,
    relative_errors,
    rounded_bench,
)
from ray_precheck.accuracy.standards.base import (
    Cells,
    Comparison,
    Finding,
    Judgement,
    Standard,
    conclude,
    kernel_of,
    mismatched,
)
from ray_precheck.accuracy.standards.honest import Measure, explained
from ray_precheck.accuracy.thresholds import (
    ABSOLUTE_RTOL,
    ABSOLUTE_SMALL_VALUE_ATOL,
    BENCHMARK_SMALL_VALUE_ATOL,
    RATIO_LIMITS,
    RATIO_METRICS,
    RELATIVE_ERR_EPS,
    SMALL_VALUE,
    SMALLEST_REFERENCE_ERR,
    THOUSANDTH_LIMIT,
    THOUSANDTH_SHARE,
    ULP_MEAN_LIMIT,
    ULP_SHARE_LIMIT,
    ULP_THRESHOLD,
    limit_of,
)
from ray_precheck.numerics.arrays import machine_epsilon, pieces, same_values, spacing
from ray_precheck.operators.accuracy import LEVEL, PUBLISHED_STANDARD
from ray_precheck.schema.dtypes import DTYPES, Array

METRIC_NAMES = {
    "max_rel_err": "largest relative error",
    "mean_rel_err": "mean relative error",
    "rmse": "RMSE",
    "small_value_err": "share of wrong small values",
}
RATIO_HEADINGS = {
    "max_rel_err": "MaxRelErrRatio",
    "mean_rel_err": "MeanRelErrRatio",
    "rmse": "RMSERatio",
    "small_value_err": "SmallValueErrRatio",
}
_KINDS = {
    "InfNanErrShare": "share of NaN and infinities that differ",
    "RelErrShare": "share of elements whose relative error is above {rtol:.4g}",
    "AbsErrShare": "share of small values whose absolute error is above {small_value_atol:.4g}",
}
_FP8 = ("float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, slots=True)
class Binary:
    """Every element equals the bench as the tested dtype holds it; NaN equals NaN, 0 equals -0.

    `different` is the share of elements that may differ.
    """

    name: ClassVar[str] = "binary"
    columns: ClassVar[tuple[str, ...]] = ("DifferentShare",)

    different: float = 0.0

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by the share of elements that differ."""
        wrong = _different(comparison)
        findings = []
        if not wrong.share <= self.different:
            basis = "" if self.different else "every element must equal the bench"
            metric = "share of elements that differ"
            findings.append(_found(wrong, metric, wrong.share, self.different, basis))
        columns = (("Standard", self.name), ("DifferentShare", wrong.share))
        return conclude(comparison, findings, columns)


def judge_without_errors(comparison: Comparison) -> Judgement | None:
    """Judge outputs without measurable errors: integers and booleans by equality; NaN and
    infinities that the bench lacks, or has elsewhere, are an error. None where errors can be
    measured."""
    if not is_measurable(comparison.dtype):
        return Binary().judge(comparison)
    return mismatched(comparison)


def _found(
    wrong: Wrong, metric: str, value: float, limit: float, basis: str, relation: str = "at most"
) -> Finding:
    """Return the finding of a metric with the elements that are beyond the limit."""
    return Finding(metric, value, limit, relation, basis, wrong.count, wrong.total, wrong.at)


def _different(comparison: Comparison) -> Wrong:
    device_flat, bench_flat = comparison.device_out.reshape(-1), comparison.bench_out.reshape(-1)
    wrong = Wrong()
    for piece in pieces(len(device_flat)):
        device, bench = device_flat[piece], rounded_bench(bench_flat[piece], comparison.dtype)
        differs = (~same_values(device, bench)).astype(np.float64)
        wrong = wrong.plus(differs, np.ones(differs.shape, bool), 0.0, piece.start)
    return wrong


_CPU, _COMPOSED, _ROUNDED = "the CPU", "a composed implementation", "the rounded bench"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Four errors of the device, each with a limit as a multiple of the error of torch's operator on
    the CPU, the reference.

    The reference runs in the recorded dtypes. If it cannot run, is the kernel under test, or has an
    error that rounding does not explain, the reference is a composed implementation in float64 that
    rounds after each step, or else the correctly rounded bench. `level` (L0, L1, L2) chooses the
    limits, by default the level of the API; each limit may also be given by itself. Integers and
    booleans must be equal.
    """

    name: ClassVar[str] = "benchmark"
    columns: ClassVar[tuple[str, ...]] = ("Reference", *RATIO_HEADINGS.values(), "DifferentShare")

    level: str | None = None
    max_rel_err: float | None = None
    mean_rel_err: float | None = None
    rmse: float | None = None
    small_value_err: float | None = None

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by the ratios of the errors."""
        found = judge_without_errors(comparison)
        if found is not None:
            return found
        errors = measure_errors(comparison.device_out, comparison.bench_out, comparison.dtype)
        label, reference, note = _reference(comparison)
        ratios = error_ratios(errors, reference, comparison.dtype)
        limits = self.limits(comparison.type_name, comparison.framework)
        findings = [
            _finding(comparison, metric, getattr(errors, metric), reference, limits[metric], label)
            for metric in RATIO_METRICS
            # Written so that a NaN fails.
            if not ratios[metric] <= limits[metric]
        ]
        cells = [(RATIO_HEADINGS[metric], ratio) for metric, ratio in ratios.items()]
        level = self.level or level_of(comparison.type_name, comparison.framework)
        standard = f"{self.name} {level}"
        found = conclude(
            comparison, findings, [("Standard", standard), ("Reference", label), *cells]
        )
        if not findings:
            return found
        return replace(found, message="; ".join(filter(None, [found.message, note])))

    def limits(self, type_name: str, framework: str = "") -> dict[str, float]:
        """Return the limit of each ratio for an API."""
        published = ratio_limits(self.level or level_of(type_name, framework))
        own = {metric: getattr(self, metric) for metric in RATIO_METRICS}
        return published | {metric: limit for metric, limit in own.items() if limit is not None}


def level_of(type_name: str, framework: str = "") -> str:
    """Return the level of an API, `Mint.matmul`: L2 and L1 as listed, L0 for all others."""
    return LEVEL.of(type_name, framework) or "L0"


def ratio_limits(level: str) -> dict[str, float]:
    """Return the limits of a level by metric."""
    return dict(zip(RATIO_METRICS, RATIO_LIMITS[level], strict=True))


def error_ratios(errors: Errors, reference: Errors, dtype: str) -> dict[str, float]:
    """Return |error| / max(|reference's error|, the smallest that counts) by metric."""
    smallest = limit_of(SMALLEST_REFERENCE_ERR, dtype)
    return {
        metric: getattr(errors, metric) / max(getattr(reference, metric), smallest)
        for metric in RATIO_METRICS
    }


def _reference(comparison: Comparison) -> tuple[str, Errors, str]:
    """Return the name of the reference, its errors, and the reason why the CPU's own kernel is refused,
    "" if it is not."""
    implementations = comparison.implementations()
    kernel, note = kernel_of(implementations), ""
    if kernel is not None:
        note = Measure().refutation(comparison, kernel, explained(comparison))
        if not note:
            return _CPU, measure_errors(kernel, comparison.bench_out, comparison.dtype), ""
    # Each implementation is a run of its own, made when it is read: only the first is wanted.
    implementation = next(iter(implementations), None)
    label = _ROUNDED if implementation is None else _COMPOSED
    if implementation is None:
        implementation = comparison.bench_once
    return label, measure_errors(implementation, comparison.bench_out, comparison.dtype), note


def _finding(
    comparison: Comparison, metric: str, value: float, reference: Errors, ratio: float, label: str
) -> Finding:
    smallest = limit_of(SMALLEST_REFERENCE_ERR, comparison.dtype)
    theirs = getattr(reference, metric)
    limit = ratio * max(theirs, smallest)
    basis = f"{ratio:g} times that of {label}, {theirs:.4g}"
    if theirs < smallest:
        basis += f", of which less than {smallest:.4g} does not count"
    wrong = _beyond(comparison, metric, limit)
    return _found(wrong, METRIC_NAMES[metric], value, limit, basis)


def _beyond(comparison: Comparison, metric: str, limit: float) -> Wrong:
    """Return the elements whose own error is beyond the limit of a metric."""
    dtype = comparison.dtype
    wrong = Wrong()
    for chunk in chunks(comparison.device_out, comparison.bench_out, dtype):
        is_small = chunk.finite & (chunk.magnitude <= limit_of(SMALL_VALUE, dtype))
        is_normal = chunk.finite & ~is_small
        if metric == "small_value_err":
            atol = limit_of(BENCHMARK_SMALL_VALUE_ATOL, dtype)
            wrong = wrong.plus(chunk.abs_err, is_small, atol, chunk.start)
        elif metric == "rmse":
            wrong = wrong.plus(chunk.abs_err, is_normal, limit, chunk.start)
        else:
            wrong = wrong.plus(relative_errors(chunk, dtype), is_normal, limit, chunk.start)
    return wrong


@dataclass(frozen=True, slots=True)
class Absolute:
    """No element may have a relative error above `rtol`, no small value an absolute one above
    `small_value_atol`; NaN and infinities must agree, where the largest finite number counts as
    near infinity. Elements up to `small_value` are small. Integers and booleans must be equal.
    """

    name: ClassVar[str] = "absolute"
    columns: ClassVar[tuple[str, ...]] = (*_KINDS, "DifferentShare")

    rtol: float | None = None
    small_value: float | None = None
    small_value_atol: float | None = None

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by the shares of elements beyond the limits; each must be 0."""
        if not is_measurable(comparison.dtype):
            return Binary().judge(comparison)
        limits = self.limits(comparison.dtype)
        wrong = _wrong(comparison, limits)
        findings = [
            _found(
                kind,
                _KINDS[heading].format_map(limits),
                kind.share,
                0.0,
                f"the largest such error is {kind.largest:.4g}",
            )
            for heading, kind in wrong.items()
            if kind.count
        ]
        cells = [(heading, kind.share) for heading, kind in wrong.items()]
        return conclude(comparison, findings, [("Standard", self.name), *cells])

    def limits(self, dtype: str) -> dict[str, float]:
        """Return the limits for a dtype, by their names."""
        tables = {
            "rtol": ABSOLUTE_RTOL,
            "small_value": SMALL_VALUE,
            "small_value_atol": ABSOLUTE_SMALL_VALUE_ATOL,
        }
        own = {name: getattr(self, name) for name in tables}
        return {
            name: limit_of(table, dtype) if own[name] is None else own[name]
            for name, table in tables.items()
        }


def _wrong(comparison: Comparison, limits: dict[str, float]) -> dict[str, Wrong]:
    special = normal = small = Wrong()
    for chunk in chunks(comparison.device_out, comparison.bench_out, comparison.dtype):
        is_small = chunk.finite & (chunk.magnitude <= limits["small_value"])
        relative = relative_errors(chunk, comparison.dtype)
        clipped = _clipped_relative_errors(chunk, comparison.dtype)
        rtol = limits["rtol"]
        special = special.plus(clipped, ~chunk.finite, rtol, chunk.start)
        normal = normal.plus(relative, chunk.finite & ~is_small, rtol, chunk.start)
        small = small.plus(chunk.abs_err, is_small, limits["small_value_atol"], chunk.start)
    return dict(zip(_KINDS, (special, normal, small), strict=True))


def _clipped_relative_errors(chunk: Chunk, dtype: str) -> Array:
    """Return the relative errors after both sides are clipped to the finite numbers of the dtype.

    NaN on both sides is no error; NaN on one is NaN.
    """
    if chunk.finite.all():
        return np.zeros(chunk.finite.shape)
    device, bench = (_clipped(side, dtype) for side in (chunk.device, chunk.bench))
    with np.errstate(over="ignore", invalid="ignore"):
        divisor = np.abs(chunk.bench) + limit_of(RELATIVE_ERR_EPS, dtype)
        # An infinite bench is as large as its clipped self.
        divisor = np.where(np.isinf(divisor), DTYPES[dtype].largest, divisor)
        relative = np.abs(device - bench) / divisor
    return np.where(np.isnan(device) & np.isnan(bench), 0.0, relative)


def _clipped(values: Array, dtype: str) -> Array:
    largest = DTYPES[dtype].largest
    rounded = rounded_bench(values, dtype).astype(values.dtype)
    if rounded.dtype.kind != "c":
        return np.asarray(np.clip(rounded, -largest, largest))
    real, imaginary = (np.clip(part, -largest, largest) for part in (rounded.real, rounded.imag))
    return np.asarray(real + 1j * imaginary)


@dataclass(frozen=True, slots=True)
class Ulp:
    """The mean error is below `mean` units, or the share of elements that are more than `threshold`
    units off is below `share`; half types and fp8 have no limit for the mean.

    A unit is 2**(e - mantissa bits) for a bench in [2**e, 2**(e+1)), that of 1 for a bench of 0.
    Integers and booleans must be equal.
    """

    name: ClassVar[str] = "ulp"
    columns: ClassVar[tuple[str, ...]] = (
        "MaxUlpErr",
        "MeanUlpErr",
        "UlpErrShare",
        "DifferentShare",
    )

    threshold: float | None = None
    mean: float | None = None
    share: float | None = None

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by the mean and the share."""
        found = judge_without_errors(comparison)
        if found is not None:
            return found
        dtype = comparison.dtype
        threshold = limit_of(ULP_THRESHOLD, dtype) if self.threshold is None else self.threshold
        mean_limit = limit_of(ULP_MEAN_LIMIT, dtype) if self.mean is None else self.mean
        share_limit = limit_of(ULP_SHARE_LIMIT, dtype) if self.share is None else self.share
        wrong, largest, mean = _measure(comparison, threshold)
        findings = []
        passes = wrong.share < share_limit or (mean_limit is not None and mean < mean_limit)
        if not passes:
            metric = f"share of elements more than {threshold:g} units in the last place off"
            basis = _mean_note(mean, mean_limit, largest)
            findings.append(_found(wrong, metric, wrong.share, share_limit, basis, "below"))
        cells = [("MaxUlpErr", largest), ("MeanUlpErr", mean), ("UlpErrShare", wrong.share)]
        return conclude(comparison, findings, [("Standard", self.name), *cells])


def _mean_note(mean: float, limit: float | None, largest: float) -> str:
    alternative = "" if limit is None else f"; a mean below {limit:g} would do as well"
    return f"the mean is {mean:.4g} units, the largest error {largest:.4g}{alternative}"


def _measure(comparison: Comparison, threshold: float) -> tuple[Wrong, float, float]:
    """Return the elements beyond the threshold, the largest error and the mean, in units."""
    wrong, largest, total = Wrong(), 0.0, 0.0
    for chunk in chunks(comparison.device_out, comparison.bench_out, comparison.dtype):
        units = ulp_errors(chunk, comparison.dtype)
        wrong = wrong.plus(units, chunk.finite, threshold, chunk.start)
        largest = max(largest, float(units.max()))
        total += float(units.sum())
    return wrong, largest, total / wrong.total if wrong.total else 0.0


def ulp_errors(chunk: Chunk, dtype: str) -> Array:
    """Return the errors in units in the last place of the bench, `(N,)` float64."""
    units = spacing(chunk.magnitude, dtype)
    return np.asarray(chunk.abs_err / np.where(chunk.magnitude > 0, units, machine_epsilon(dtype)))


@dataclass(frozen=True, slots=True)
class Thousandth:
    """A share of at least `share` of the elements has a relative error below `limit`.

    Integers and booleans must be equal.
    """

    name: ClassVar[str] = "thousandth"
    columns: ClassVar[tuple[str, ...]] = ("ThousandthShare", "DifferentShare")

    limit: float = THOUSANDTH_LIMIT
    share: float = THOUSANDTH_SHARE

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by the share of elements near the bench."""
        found = judge_without_errors(comparison)
        if found is not None:
            return found
        # The next number below the limit, because a relative error at the limit counts as wrong.
        beyond = float(np.nextafter(self.limit, 0.0))
        wrong = Wrong()
        for chunk in chunks(comparison.device_out, comparison.bench_out, comparison.dtype):
            relative = relative_errors(chunk, comparison.dtype)
            wrong = wrong.plus(relative, chunk.finite, beyond, chunk.start)
        near = (wrong.total - wrong.count) / wrong.total if wrong.total else 1.0
        findings = []
        if not near >= self.share:
            metric = f"share of elements with a relative error below {self.limit:g}"
            basis = f"the largest relative error is {wrong.largest:.4g}"
            findings.append(_found(wrong, metric, near, self.share, basis, "at least"))
        cells: Cells = (("Standard", self.name), ("ThousandthShare", near))
        return conclude(comparison, findings, cells)


def published_standard(type_name: str, dtype: str, direction: str, framework: str = "") -> str:
    """Return the name of the standard that is published for an API of a framework's dump, `Mint.matmul`,
    and a dtype.

    The lists are of forward operators: an operator that moves data forward may sum backward (`gather`),
    so a float gradient is judged by `benchmark` if the list says `binary`; so is what a call changes beside
    its outputs (the weights that `embedding` renormalises).
    """
    if DTYPES[dtype].kind not in ("float", "complex"):
        return "binary"
    if dtype in _FP8:
        return "ulp"
    standard = PUBLISHED_STANDARD.of(type_name, framework) or "benchmark"
    return "benchmark" if standard == "binary" and direction != "forward" else standard


_CHOICES: dict[str, Standard] = {
    each.name: each for each in (Benchmark(), Absolute(), Binary(), Ulp(), Thousandth())
}


@dataclass(frozen=True, slots=True)
class Published:
    """Leaves each output to the standard that msprobe's lists name for it."""

    name: ClassVar[str] = "published"
    columns: ClassVar[tuple[str, ...]] = tuple(
        dict.fromkeys(heading for each in _CHOICES.values() for heading in each.columns)
    )

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by the standard of the API, the dtype and the direction."""
        name = published_standard(
            comparison.type_name, comparison.dtype, comparison.direction, comparison.framework
        )
        return _CHOICES[name].judge(comparison)
