"""The meanings of the indices from which sparse tensors are made.

Comes in: a record of a call that makes one. Goes out: the meanings of its tensor arguments by path. Called by
`inputs.meaning_table`.

Drawn numbers are no indices of compressed rows: these rise, and those beside them are different in each row.
So they are spread evenly, and only the values are drawn.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ray_precheck.inputs.meaning import Meaning
from ray_precheck.inputs.meaning_rules import Arguments
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.storage import COMPRESSED
from ray_precheck.schema.values import TensorSpec

_MAKES = {f"sparse_{layout}_tensor": axis for layout, axis in COMPRESSED.items()}
_ARGUMENTS = (
    "compressed|crow_indices|ccol_indices",
    "plain|col_indices|row_indices",
    "values",
    "size",
)
MADE = frozenset({*_MAKES, "spdiags"})


@dataclass(frozen=True, slots=True)
class Even(Meaning):
    """Whole numbers in rows of `width`: where each of `lines` begins (`running`), or the places in them."""

    lines: int
    width: int
    count: int
    running: bool = False

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the numbers; what was drawn does not count."""
        begins = np.arange(self.lines + 1) * self.count // max(self.lines, 1)
        if not self.running:
            sizes = np.diff(begins)
            rank = np.arange(self.count) - np.repeat(begins[:-1], sizes)
            begins = rank * self.width // np.repeat(np.maximum(sizes, 1), sizes)
        return np.broadcast_to(begins, values.shape).astype(values.dtype)


@dataclass(frozen=True, slots=True)
class Different(Meaning):
    """Whole numbers of the recorded range that are all different."""

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return numbers at even distances from the lowest on."""
        low, high = int(spec.low or 0), int(spec.high or 0)
        step = max(1, (high - low) // max(values.size - 1, 1))
        return (low + step * np.arange(values.size)).reshape(values.shape).astype(values.dtype)


def sparse_meanings(record: ApiRecord) -> dict[str, Meaning]:
    """Return the meanings of the indices of a call that makes a sparse tensor."""
    api = record.name.api.rpartition(".")[2]
    if api == "spdiags":
        offsets = Arguments(record, ("diagonals", "offsets", "shape")).find("offsets")
        return {offsets[0]: Different()} if offsets else {}
    arguments = Arguments(record, _ARGUMENTS)
    compressed, plain = (arguments.find(name.partition("|")[0]) for name in _ARGUMENTS[:2])
    if compressed is None or plain is None:
        return {}
    places: Any = plain[1]
    lines = compressed[1].shape[-1] - 1 if isinstance(compressed[1], TensorSpec) else -1
    if lines < 0 or not isinstance(places, TensorSpec) or not places.shape:
        return {}
    width, count = _width(arguments, api, places), places.shape[-1]
    return {
        compressed[0]: Even(lines, width, count, running=True),
        plain[0]: Even(lines, width, count),
    }


def _width(arguments: Arguments, api: str, places: TensorSpec) -> int:
    """Return how many places a row has, in blocks where there are any."""
    size, values = arguments.value("size"), arguments.tensor("values")
    dimension = -1 - COMPRESSED[api.split("_")[1]]
    if not isinstance(size, tuple | list) or values is None or len(size) < 2:
        return int(places.high or 0) + 1
    block = values.shape[len(places.shape) :][:2] if "_bs" in api else (1, 1)
    extent = size[dimension]
    return int(extent) // max(block[dimension], 1) if type(extent) is int else 1
