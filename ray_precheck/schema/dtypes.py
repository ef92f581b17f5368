"""Number formats: their names in each framework, how they are held in NumPy, how they round.

Comes in: dtype names as dumps and frameworks spell them (`Float32`, `torch.bfloat16`).
Goes out: canonical names (`float32`), rounding to a format, one unit in the last place.
Called by everything that touches numbers. A value of a format that NumPy lacks (bfloat16, fp8)
is held in a float32 array whose elements are exactly representable in that format: its *carrier*.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# Arrays are worked on in pieces of this many elements, so that temporary copies stay small.
CHUNK_ELEMENTS = 1 << 18


@dataclass(frozen=True, slots=True)
class DType:
    """One number format.

    `kind` is float, complex, int, uint or bool. `carrier` is the NumPy dtype that holds it.
    For floats `mantissa_bits` counts the stored bits of the fraction, `min_exponent` is the exponent
    of the smallest normal number (2**min_exponent) and `largest` the largest finite value; larger
    numbers become `overflow`: infinity, or NaN in a format without infinities.
    """

    name: str
    kind: str
    bits: int
    carrier: str
    mantissa_bits: int = 0
    min_exponent: int = 0
    largest: float = 0.0
    overflow: float = math.inf


# IEEE 754-2019 table 3.5 for float16 to float64; bfloat16 is the upper half of a float32; the fp8
# formats are those of the OCP 8-bit Floating Point Specification (OFP8) 1.0, table 1.
_FLOATS = (
    DType("float64", "float", 64, "float64", 52, -1022, float(np.finfo(np.float64).max)),
    DType("float32", "float", 32, "float32", 23, -126, float(np.finfo(np.float32).max)),
    DType("float16", "float", 16, "float16", 10, -14, 65504.0),
    DType("bfloat16", "float", 16, "float32", 7, -126, 3.3895313892515355e38),
    DType("float8_e4m3fn", "float", 8, "float32", 3, -6, 448.0, math.nan),
    DType("float8_e5m2", "float", 8, "float32", 2, -14, 57344.0),
)
_OTHERS = (
    *(DType(f"int{bits}", "int", bits, f"int{bits}") for bits in (8, 16, 32, 64)),
    *(DType(f"uint{bits}", "uint", bits, f"uint{bits}") for bits in (8, 16, 32, 64)),
    DType("bool", "bool", 8, "bool"),
    DType("complex64", "complex", 64, "complex64", 23, -126, float(np.finfo(np.float32).max)),
    DType("complex128", "complex", 128, "complex128", 52, -1022, float(np.finfo(np.float64).max)),
)
DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in (*_FLOATS, *_OTHERS)}
# torch's whole numbers that stand for others by a scale and a zero point, by the numbers that are stored.
QUANTIZED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
_ALIASES = {
    **QUANTIZED,
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int32",
    "short": "int16",
    "long": "int64",
    "bool_": "bool",
    "cfloat": "complex64",
    "cdouble": "complex128",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e5m2": "float8_e5m2",
}


def canonical_dtype(text: str) -> str | None:
    """Return the canonical name of a dtype as a dump spells it, None if it is unknown.

    `Float32`, `mindspore.float32`, `torch.float32` and `float32` are all `float32`; `torch.qint8` is `int8`.
    """
    name = text.rsplit(".", 1)[-1].strip().lower()
    name = _ALIASES.get(name, name)
    return name if name in DTYPES else None


def round_to_dtype(values: Array, dtype: str) -> Array:
    """Round float64 `values` once, to nearest and ties to even, to `dtype`'s carrier.

    Values beyond the largest finite number become infinite, as IEEE 754 asks (NaN in e4m3fn). A cast through
    float32 would round twice, so formats that NumPy lacks are rounded in float64 arithmetic, in
    chunks. Complex values round their two parts; integers and booleans are cast.
    """
    info = DTYPES[dtype]
    if info.carrier == dtype == values.dtype:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        if info.kind != "float" or info.carrier == dtype:
            return values.astype(info.carrier, copy=False)
        rounded = np.empty(values.shape, info.carrier)
        source, target = values.reshape(-1), rounded.reshape(-1)
        for start in range(0, len(source), CHUNK_ELEMENTS):
            chunk = slice(start, start + CHUNK_ELEMENTS)
            target[chunk] = _rounded(source[chunk].astype(np.float64, copy=False), info)
    return rounded


@cache
def overflow_from(dtype: str) -> float:
    """Return the smallest float64 magnitude that `round_to_dtype` does not keep finite.

    It is half a unit beyond the largest number of a float dtype, or the next number where the tie
    rounds to the largest one (e4m3fn, whose largest number is even). Of float64 it is infinity.
    """
    info = DTYPES[dtype]
    spacing = 2.0 ** (math.frexp(info.largest)[1] - 1 - info.mantissa_bits)
    tie = info.largest + spacing / 2
    return (
        math.nextafter(tie, math.inf)
        if np.isfinite(round_to_dtype(np.asarray(tie), dtype))
        else tie
    )


def saturated_like(values: Array, tested: Array, dtype: str) -> Array:
    """Return float64 `values` with those beyond a format without infinities at its largest number,
    where `tested`, of the same shape, has that.

    OFP8 1.0, section 5.2, allows two conversions: to NaN (ml_dtypes, torch before 2.13) and to the
    largest number with the same sign (torch 2.13), of infinities, too. Others stay as they are.
    """
    info = DTYPES[dtype]
    if info.kind != "float" or info.overflow == math.inf:
        return values
    largest = np.copysign(info.largest, values)
    return np.where((np.abs(values) > info.largest) & (tested == largest), largest, values)


def _rounded(wide: Array, info: DType) -> Array:
    """Round normal numbers as the integers that their bits are, which takes a third of the time."""
    cut = DTYPES["float64"].mantissa_bits - info.mantissa_bits
    bits = np.ascontiguousarray(wide).view(np.uint64)
    is_odd = (bits >> np.uint64(cut)) & np.uint64(1)
    bits = bits + is_odd + np.uint64((1 << (cut - 1)) - 1)
    rounded = (bits & ~np.uint64((1 << cut) - 1)).view(np.float64)
    magnitude = np.abs(wide)
    # A subnormal number has fewer bits. A carry beyond a NaN or an infinity makes another number of it.
    below = magnitude < 2.0**info.min_exponent
    if below.any():
        spacing = 2.0 ** (info.min_exponent - info.mantissa_bits)
        rounded = np.where(below, np.rint(wide / spacing) * spacing, rounded)
    if not (magnitude <= info.largest).all():
        rounded = np.where(np.isfinite(wide), rounded, wide)
        beyond = np.abs(rounded) > info.largest
        rounded = np.where(beyond, np.copysign(info.overflow, wide), rounded)
    return rounded


def quantum(values: Array, dtype: str) -> Array:
    """Return the spacing of `dtype`'s numbers at each of `values` (one unit in the last place).

    For x of a binade [2**e, 2**(e+1)) it is 2**(e - mantissa_bits), never below the spacing of the
    subnormals, 2**(min_exponent - mantissa_bits). Float64 in, float64 out; 0 and non-finite values
    have the spacing of the subnormals.
    """
    info = DTYPES[dtype]
    magnitude = np.abs(np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0))
    exponent = np.frexp(magnitude)[1] - 1
    exponent = np.maximum(np.where(magnitude > 0, exponent, info.min_exponent), info.min_exponent)
    return np.asarray(np.ldexp(1.0, exponent - info.mantissa_bits))


def is_differentiable(dtype: str) -> bool:
    """Return whether gradients exist for a dtype: for floats and complex numbers."""
    return DTYPES[dtype].kind in ("float", "complex")
