"""Number formats: their names in each framework, their bits, how they are held in NumPy.

Comes in: dtype names as dumps and frameworks spell them (`Float32`, `torch.bfloat16`).
Goes out: canonical names (`float32`) and their formats; `numerics.arrays` computes with these.
Called by everything that touches numbers. A value of a format that NumPy lacks (bfloat16, fp8)
is held in a float32 array whose elements are exactly representable in that format: its *carrier*.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


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


def is_differentiable(dtype: str) -> bool:
    """Return whether gradients exist for a dtype: for floats and complex numbers."""
    return DTYPES[dtype].kind in ("float", "complex")
