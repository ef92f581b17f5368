"""The formats to which a device rounds the operands of float32 products: TF32, HF32, bfloat16.

Comes in: what the settings of a framework say, or the field `float32` of a dump's header. Goes out: a
`Float32`. Read by captures, by the checks, which compute in the same formats, and by what compares captures.

    "float32": {"products": "tf32", "convolutions": ["tf32", "ieee"], "recurrent": "tf32"}

Where a step began and ended with different settings both stand there, and the coarser one counts; what
computes in full float32 is left out, and a dump without the field is one of full float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

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
