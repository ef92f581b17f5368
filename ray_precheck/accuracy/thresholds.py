"""Limits of the standards, each with its source.

Called by the standards, and by the comparisons of two result sets and of two captures. "msprobe" below is
mindstudio-probe 26.2, its paths count from `msprobe/pytorch/api_accuracy_checker/`; the same
files stand in github.com/Ascend/msprobe and, as debug/accuracy_tools/msprobe, in gitee.com/ascend/mstt.

The limits of `auto`, at the end, are multiples of the error of honest implementations, and errors that are
always allowed. They were chosen so that, on the honest implementations and planted faults of
`scripts/verdicts`, a limit lies between the worst honest error and four times that; `accuracy/VERDICTS.md`
shows the resulting verdicts. Larger limits of single operators are in `operators.accuracy`.
"""

import functools
from dataclasses import dataclass, replace
from typing import TypeVar

from ray_precheck.operators.accuracy import ALLOWANCE
from ray_precheck.schema.dtypes import DTYPES

# The rule of msprobe's precheck for MindSpore, the same for every dtype: cosine similarity above,
# largest absolute error below. 0.99 is mindstudio-probe 26.2, core/common/const.py, CompareConst.
# COS_THRESHOLD. Its MAX_ABS_ERR_THRESHOLD is 0.001 there; the contract of this project is the
# stricter 0.0001, so that an output that passes here passes there.
COSINE_LIMIT = 0.99
MAX_ABS_ERR_LIMIT = 0.0001

# An error of up to this many units in the last place of the output is rounding noise: a sum of n
# terms in one precision may be off by n/2 units, and blocked sums of a few thousand terms stay
# within a few (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2).
# It explains a verdict in its Message and never changes one.
ROUNDING_NOISE_ULP = 8.0

# The tables below are msprobe's precision_standard/standard_config.py, class StandardConfig, and
# have a row for each dtype; every dtype without one has the row of `DEFAULT_DTYPE`, as there.
DEFAULT_DTYPE = "float32"

# _small_value: an element whose bench is not above it is a small value, judged by its absolute
# error instead of its relative one.
SMALL_VALUE = {"float16": 2.0**-10, "bfloat16": 2.0**-10, "float32": 2.0**-20}
# _benchmark_small_value_atol and _threshold_small_value_atol: a small value whose absolute error
# is above it is wrong. 1e-16 means that small values must be equal.
BENCHMARK_SMALL_VALUE_ATOL = {"float16": 1e-16, "bfloat16": 1e-16, "float32": 2.0**-30}
ABSOLUTE_SMALL_VALUE_ATOL = {"float16": 2.0**-16, "bfloat16": 1e-16, "float32": 2.0**-30}
# _rtol: the relative error that no other element may be above.
ABSOLUTE_RTOL = {"float16": 2.0**-10, "bfloat16": 2.0**-8, "float32": 2.0**-20}
# _minmum_err: no error of the reference counts as less than this, so that a ratio to an error of
# nearly nothing says nothing.
SMALLEST_REFERENCE_ERR = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-14}
# compare/algorithm.py, get_abs_bench_with_eps: the term added to the divisor of a relative error.
# That is the machine epsilon of the dtype in which msprobe holds the bench (float32 for float16,
# float64 for float32), and BFLOAT16_EPS for bfloat16.
RELATIVE_ERR_EPS = {"float16": 2.0**-23, "bfloat16": 2.0**-8, "float32": 2.0**-52}

# get_benchmark_ratio_threshold and _small_value_threshold["error_threshold"]: how many times the
# error of the reference an error may be, by level, in the order of `RATIO_METRICS`.
RATIO_METRICS = ("max_rel_err", "mean_rel_err", "rmse", "small_value_err")
RATIO_LIMITS = {
    "L0": (10.0, 2.0, 2.0, 2.0),
    "L1": (5.0, 1.5, 1.5, 2.0),
    "L2": (2.0, 1.2, 1.2, 2.0),
}
# precision_standard/ulp_compare.py with core/common/const.py (ULP_FLOAT32_THRESHOLD,
# ULP_FLOAT16_THRESHOLD) and StandardConfig.get_ulp_threshold: an element that is more units in the
# last place off than the threshold is wrong; float32 passes where the mean is below its limit or
# the share of the wrong ones below its own, the half types by the share alone (None: no limit).
# The fp8 formats have the limits of the half types (_get_fp8_ulp_err_status).
_HALVES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
ULP_THRESHOLD = {"float32": 32.0, **dict.fromkeys(_HALVES, 1.0)}
ULP_MEAN_LIMIT: dict[str, float | None] = {"float32": 64.0, **dict.fromkeys(_HALVES)}
ULP_SHARE_LIMIT = {"float32": 0.05, **dict.fromkeys(_HALVES, 0.001)}

# "Double thousandth": core/common/const.py THOUSAND_RATIO_THRESHOLD and THOUSANDTH_PASS_VALUE: the
# share of the elements whose relative error is below the first must be at least the second.
THOUSANDTH_LIMIT = 0.001
THOUSANDTH_SHARE = 0.999
# Honest kernels flush the subnormals of formats with the exponents of float32 to 0 (MindSpore's on
# the CPU do); those of float16 are far too large for that.
_FLUSHED = 2.0 ** DTYPES["float32"].min_exponent
_IN_FLOAT32 = ("float32", "complex64")
# Dtypes in which kernels also compute, so that inputs and each step may be off by some of its units.
# A kernel of a half type computes in float32, and errs far less than its inputs' units.
COMPUTED_IN = ("float32", "float64", "complex64", "complex128")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Allowed:
    """The limits of an error.

    `rmse`, `largest` and `relative` are factors of the worst honest implementation's error. `scatter`
    widens the first two for few elements, by 1 + scatter / sqrt(n). Where implementations are not exact,
    these errors are always allowed: `units` in the last place, `least_relative` as a relative error, and
    `share` of the magnitude, which fast approximations take: with `adds` of the largest element, else of
    each element. Elements below `flushed` may be 0. `input_units` is the error of the inputs that a stable
    algorithm may have the effect of (its backward error), in units in the last place.
    """

    rmse: float
    largest: float
    scatter: float
    units: float
    relative: float = 64.0
    least_relative: float = 0.25
    share: float = 0.0
    adds: bool = False
    flushed: float = 0.0
    input_units: float = 0.5


# In half types rounding is nearly all of the error, and the implementations know it well. Wider kernels
# differ in the order of their sums, by far less than the errors that are worth finding.
_HALF = Allowed(rmse=2.4, largest=3.0, scatter=1.0, units=1.0)
_WIDE = Allowed(rmse=8.0, largest=8.0, scatter=1.0, units=8.0)
# The operands of float32 products have fewer bits (TF32), and the implementations round them as the device
# does: theirs is nearly all of the error. Honest results had 0.99 to 1.08 times the implementations' RMSE
# in a GPT, a convolutional network and an LSTM; operands of bfloat16 instead had 2.4 to 4.3 times
# (tests/frameworks/test_float32.py).
COARSE_RMSE, COARSE_LARGEST = 2.0, 3.0
# The float64 bench rounds like the tested side, and in chains that no implementation has: Welford's
# variance in torch is off by 11 times what the composed one explains (700 terms, in either order).
_FINEST = replace(_WIDE, rmse=16.0, largest=16.0)
_BY_DTYPE = {
    "float16": _HALF,
    "bfloat16": replace(_HALF, flushed=_FLUSHED),
    "float32": replace(_WIDE, flushed=_FLUSHED),
    "complex64": replace(_WIDE, flushed=_FLUSHED),
    "float64": _FINEST,
    "complex128": _FINEST,
}


@functools.cache
def allowed(type_name: str, dtype: str, framework: str = "") -> Allowed:
    """Return the limits for an API, `Mint.matmul`, and a dtype of floats."""
    rule = _BY_DTYPE.get(dtype, _WIDE if DTYPES[dtype].bits >= 64 else _HALF)
    allowance = ALLOWANCE.of(type_name, framework)
    if allowance is None:
        return rule
    if allowance.input_units and dtype in COMPUTED_IN:
        return replace(rule, input_units=allowance.input_units)
    if allowance.half_units and dtype not in COMPUTED_IN:
        return replace(rule, units=allowance.half_units)
    if allowance.share and dtype in _IN_FLOAT32:
        return replace(rule, share=allowance.share, adds=allowance.adds)
    return rule


def limit_of(table: dict[str, T], dtype: str) -> T:
    """Return a dtype's row of a table; the default row where it has none."""
    return table.get(dtype, table[DEFAULT_DTYPE])
