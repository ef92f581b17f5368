"""`benchmark`: the device's error against float64, beside the error of a reference.

Comes in: a `Comparison`. Goes out: a `Judgement`. Called by `accuracy.outputs`; the ratios are also
those of `ray_precheck.compare_results`. Source: msprobe, precision_standard/benchmark_compare.py;
limits in `thresholds`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from ray_precheck.accuracy.metrics import (
    Errors,
    Wrong,
    chunks,
    limit_of,
    measure_errors,
    relative_errors,
    rounded_bench,
)
from ray_precheck.accuracy.standards.base import Comparison, Finding, Judgement, conclude, kernel_of
from ray_precheck.accuracy.standards.binary import judge_without_errors
from ray_precheck.accuracy.standards.honest import Measure, explained
from ray_precheck.accuracy.thresholds import (
    BENCHMARK_SMALL_VALUE_ATOL,
    RATIO_LIMITS,
    RATIO_METRICS,
    SMALL_VALUE,
    SMALLEST_REFERENCE_ERR,
)
from ray_precheck.operators.accuracy import LEVEL

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
        implementation = rounded_bench(comparison.bench_out, comparison.dtype)
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
    return Finding(
        metric=METRIC_NAMES[metric],
        value=value,
        limit=limit,
        basis=basis,
        wrong=wrong.count,
        total=wrong.total,
        at=wrong.at,
    )


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
