"""The allowed multiple of the error of honest implementations, and errors that are always allowed.

Comes in: an API and a dtype. Goes out: an `Allowed`. Called by `auto`. The numbers were chosen so
that, on the honest implementations and planted faults of `scripts/verdicts`, a limit lies between
the worst honest error and four times that; `accuracy/VERDICTS.md` shows the resulting verdicts. Larger
limits of single operators are in `operators.accuracy`.
"""

import functools
from dataclasses import dataclass, replace

from ray_precheck.operators.accuracy import ALLOWANCE
from ray_precheck.schema.dtypes import DTYPES


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
# Honest kernels flush the subnormals of formats with the exponents of float32 to 0 (MindSpore's on
# the CPU do); those of float16 are far too large for that.
_FLUSHED = 2.0 ** DTYPES["float32"].min_exponent
_BY_DTYPE = {
    "float16": _HALF,
    "bfloat16": replace(_HALF, flushed=_FLUSHED),
    "float32": replace(_WIDE, flushed=_FLUSHED),
    "complex64": replace(_WIDE, flushed=_FLUSHED),
    "float64": _FINEST,
    "complex128": _FINEST,
}

_IN_FLOAT32 = ("float32", "complex64")
# Dtypes in which kernels also compute, so that inputs and each step may be off by some of its units.
# A kernel of a half type computes in float32, and errs far less than its inputs' units.
COMPUTED_IN = ("float32", "float64", "complex64", "complex128")


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
