"""Which outputs of a call have one right value, and whether an output has it.

Comes in: the name and the arguments of a call; a `Comparison`. Goes out: flags. Called by `check.judge`
before outputs are compared, and by `auto`. Pure NumPy.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ray_precheck.accuracy.metrics import rounded_bench
from ray_precheck.accuracy.standards.base import Comparison
from ray_precheck.numerics.arrays import same_values
from ray_precheck.numerics.rounding import round_to_dtype, smallest_normal
from ray_precheck.operators.exact import Exactness
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import HostCall, HostTensor

# Kernels may flush what is smaller than the normal numbers of float32 to 0, in formats with its exponents.
_FLUSHED = smallest_normal("float32")


def is_exact(known: Exactness | None, call: HostCall, place: int, dtype: str) -> bool:
    """Return whether the output at `place`, of a dtype, is an exact function of the arguments of a call, by
    what is known of the operator."""
    if known is None or (known.outputs is not None and place >= known.outputs):
        return False
    if _computes(known, call):
        return False
    if DTYPES[dtype].kind in ("float", "complex"):
        return known.floats and (known.of_complex or not _has_complex(call))
    return not known.compares or _compares_as_given(call)


def exact_elements(comparison: Comparison) -> Array:
    """Return flags, bool `(N,)`, of the elements that are the bench, rounded once to the dtype; NaN equals
    NaN, and 0 equals -0.

    A cast of float64 to a half type may go by way of float32 (c10::Half and c10::BFloat16 are made of
    floats), which rounds twice: where it is within a half of float32's unit of a tie.
    """
    dtype = comparison.dtype
    out, bench = comparison.device_out.reshape(-1), comparison.bench_out.reshape(-1)
    once = rounded_bench(bench, dtype)
    same = same_values(out, once)
    info = DTYPES[dtype]
    if info.kind != "float" or info.mantissa_bits >= DTYPES["float64"].mantissa_bits:
        return np.asarray(same)
    if info.mantissa_bits < DTYPES["float32"].mantissa_bits:
        by_float32 = round_to_dtype(bench.astype(np.float64), "float32").astype(np.float64)
        same |= out == round_to_dtype(by_float32, dtype)
    if info.min_exponent == DTYPES["float32"].min_exponent:
        same |= (out == 0) & (np.abs(bench) < _FLUSHED)
    return np.asarray(same)


def _computes(known: Exactness, call: HostCall) -> bool:
    """Return whether a call has an argument with which its operator computes."""
    for name, position in known.unless:
        value = call.kwargs.get(name)
        if value is None and position is not None and position < len(call.args):
            value = call.args[position]
        if value is not None and value is not False and not (isinstance(value, int) and not value):
            return True
    return False


def _has_complex(call: HostCall) -> bool:
    return any(DTYPES[each.dtype].kind == "complex" for each in _tensors(call))


def _compares_as_given(call: HostCall) -> bool:
    """Return whether no number changes in the dtype in which floats are compared with it.

    A Python number, a tensor without dimensions, and whole numbers take the dtype of the other side's floats
    first (torch's type promotion): what is decided then, the bench decides with more digits.
    """
    floats = [each for each in _tensors(call) if DTYPES[each.dtype].kind == "float"]
    sized = [each for each in floats if each.shape] or floats
    if not sized:
        return True
    widest = max((each.dtype for each in sized), key=lambda dtype: DTYPES[dtype].mantissa_bits)
    leaves = _leaves((call.args, call.kwargs))
    values: list[Any] = [each for each in leaves if isinstance(each, int | float)]
    values += [each.data for each in _tensors(call) if each.dtype != widest]
    with np.errstate(over="ignore", invalid="ignore"):
        return all(
            np.array_equal(round_to_dtype(wide, widest), wide, equal_nan=True)
            for wide in (np.asarray(value, np.float64) for value in values)
        )


def _tensors(call: HostCall) -> list[HostTensor]:
    leaves = _leaves((call.args, call.kwargs))
    return [each for each in leaves if isinstance(each, HostTensor)]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        yield value
        return
    for each in value:
        yield from _leaves(each)
