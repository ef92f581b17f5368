"""Number formats: their names in each framework, their bits, how they are held in NumPy.

Comes in: dtype names as dumps and frameworks spell them (`Float32`, `torch.bfloat16`).
Goes out: canonical names (`float32`) and their formats; `numerics.arrays` computes with these.
Called by everything that touches numbers. A value of a format that NumPy lacks (bfloat16, fp8)
is held in a float32 array whose elements are exactly representable in that format: its *carrier*.

Also here: the formats to which a device rounds the operands of float32 products: TF32, HF32, bfloat16.

    "float32": {"products": "tf32", "convolutions": ["tf32", "ieee"], "recurrent": "tf32"}

Where a step began and ended with different settings both stand there, and the coarser one counts; what
computes in full float32 is left out, and a dump without the field is one of full float32.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
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
# Comparing with a dtype of NumPy takes a tenth of the time of comparing with its name.
CARRIERS: dict[str, np.dtype[Any]] = {name: np.dtype(each.carrier) for name, each in DTYPES.items()}
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
_LONGEST_KEPT = 64


def canonical_dtype(text: str) -> str | None:
    """Return the canonical name of a dtype as a dump spells it, None if it is unknown.

    `Float32`, `mindspore.float32`, `torch.float32` and `float32` are all `float32`; `torch.qint8` is `int8`.
    """
    # A dump may hold a text of any length where a dtype should stand, which is not to be kept.
    return (_canonical if len(text) <= _LONGEST_KEPT else _canonical.__wrapped__)(text)


@lru_cache(1 << 8)
def _canonical(text: str) -> str | None:
    name = text.rsplit(".", 1)[-1].strip().lower()
    name = _ALIASES.get(name, name)
    return name if name in DTYPES else None


def is_differentiable(dtype: str) -> bool:
    """Return whether gradients exist for a dtype: for floats and complex numbers."""
    return DTYPES[dtype].kind in ("float", "complex")


FULL = "ieee"
# Bits of fraction of an operand. TF32: NVIDIA A100 Tensor Core GPU Architecture, 2020; HF32: CANN's
# documentation of `allow_hf32`. All of them have the 8 bits of exponent of float32.
FRACTION_BITS = {FULL: 23, "hf32": 11, "tf32": 10, "bf16": 7}
_SHOWN = {FULL: "full float32", "hf32": "HF32", "tf32": "TF32", "bf16": "bfloat16"}
_KINDS = {
    "products": "matrix products",
    "convolutions": "convolutions",
    "recurrent": "recurrent layers",
}
# Layers that cuDNN computes as a whole, with a setting of its own.
_RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))


@dataclass(frozen=True, slots=True)
class Float32:
    """The format of the operands of each kind of float32 product, a key of `FRACTION_BITS`; false where
    all are full. Sums are float32 in all of them."""

    products: str = FULL
    convolutions: str = FULL
    recurrent: str = FULL

    def __bool__(self) -> bool:
        return any(each != FULL for each in self._by_kind().values())

    def _by_kind(self) -> dict[str, str]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def of_call(self, type_name: str) -> "Float32":
        """Return the formats inside of a call: those of a recurrent layer are its own."""
        is_layer = type_name.rpartition(".")[2] in _RECURRENT
        found = self.recurrent
        return replace(self, products=found, convolutions=found) if is_layer else self

    def __str__(self) -> str:
        """The words of a sentence: `TF32 (10 bits of fraction) in convolutions`."""
        kinds: dict[str, list[str]] = {}
        for kind, name in self._by_kind().items():
            if name != FULL:
                kinds.setdefault(name, []).append(_KINDS[kind])
        return (
            " and ".join(
                f"{_SHOWN[name]} ({FRACTION_BITS[name]} bits of fraction) in {_listed(of)}"
                for name, of in kinds.items()
            )
            or _SHOWN[FULL]
        )


FULL_FLOAT32 = Float32()


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def header_field(begin: Float32, end: Float32) -> dict[str, object] | None:
    """Return the header's field of a step; None where all of it was full float32."""
    found: dict[str, object] = {}
    for kind, last in end._by_kind().items():
        first = begin._by_kind()[kind]
        if {first, last} != {FULL}:
            found[kind] = last if first == last else [first, last]
    return found or None


def from_header(value: Any) -> Float32:
    """Return the formats by which a step is judged: of several the coarsest; unknown ones are ignored."""
    if not isinstance(value, Mapping):
        return FULL_FLOAT32
    return Float32(**{kind: _coarsest(value.get(kind)) for kind in _KINDS})


def _coarsest(value: Any) -> str:
    names = value if isinstance(value, list) else [value]
    known = [each for each in names if isinstance(each, str) and each in FRACTION_BITS]
    return min(known, key=FRACTION_BITS.__getitem__, default=FULL)
