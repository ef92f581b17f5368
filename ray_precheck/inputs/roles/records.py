"""The roles in calls whose arguments no row of the table can tell apart: subscripts, sparse tensors in the
making, and the updates of optimizers.

Comes in: an `ApiRecord`. Goes out: the roles of its tensor arguments by path. Called by `inputs.roles.table`.

Drawn numbers are no indices of compressed rows: these rise, and those beside them are different in each row.
So they are spread evenly, and only the values are drawn. A second moment of an optimizer is a mean of
squares: never negative, and large where the first moment, or the gradient, is large. Steps are counted as
they were recorded; where the dump has no statistics they are those of step 10.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ray_precheck.inputs.roles.role import DistinctTogether, Ranked, Role, Within, index_into
from ray_precheck.inputs.roles.rules import Arguments
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import (
    COMPRESSED,
    Constant,
    MappingSpec,
    SequenceSpec,
    TensorSpec,
    ValueSpec,
)

_MAKES = {f"sparse_{layout}_tensor": axis for layout, axis in COMPRESSED.items()}
_ARGUMENTS = (
    "compressed|crow_indices|ccol_indices",
    "plain|col_indices|row_indices",
    "values",
    "size",
)
MADE = frozenset({*_MAKES, "spdiags"})
PREFIX = "Optimizer"
_SQUARES = Within(0.0, float("inf"), (0.0, 1.0))
# Numbers that are used where the dump has no statistics.
_UNKNOWN = {
    "step": Within(0.0, float("inf"), (10.0, 10.0)),
    "lr": Within(0.0, 1.0, (1e-3, 1e-3), only_unknown=True),
    # Its square is at most the mean square.
    "grad_avg": Within(-float("inf"), float("inf"), (-0.1, 0.1), only_unknown=True),
    "grad_scale": Within(0.0, float("inf"), (1.0, 1.0)),
}
# What a second moment grows with: a state, or the gradients.
_GROWS_WITH = {
    "exp_avg_sq": "exp_avg",
    "max_exp_avg_sq": "exp_avg",
    "variance": "grads",
    "square_avg": "grad_avg",
}
_FACTORS = ("row_var", "col_var")


@dataclass(frozen=True, slots=True)
class Even(Role):
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
class Different(Role):
    """Whole numbers of the recorded range that are all different."""

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return numbers at even distances from the lowest on."""
        low, high = int(spec.low or 0), int(spec.high or 0)
        step = max(1, (high - low) // max(values.size - 1, 1))
        return (low + step * np.arange(values.size)).reshape(values.shape).astype(values.dtype)


def sparse_roles(record: ApiRecord) -> dict[str, Role]:
    """Return the roles of the indices of a call that makes a sparse tensor."""
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


def index_put_roles(record: ApiRecord) -> dict[str, Role]:
    """Return the roles of the index tensors of `index_put` and `index_put_`."""
    arguments = Arguments(record, ("input", "indices", "values", "accumulate"))
    shape, place = arguments.shape("input"), arguments.find("indices")
    if shape is None or place is None or not isinstance(place[1], SequenceSpec):
        return {}
    accumulates = arguments.value("accumulate", False) is True
    return _indexed(shape, place[1].items, place[0], written=not accumulates)


def subscript_roles(record: ApiRecord, *, written: bool) -> dict[str, Role]:
    """Return the roles of the index tensors of `x[...]`."""
    if len(record.args) < 2 or not isinstance(record.args[0], TensorSpec):
        return {}
    shape, index = record.args[0].shape, record.args[1]
    if isinstance(index, SequenceSpec):
        return _indexed(shape, index.items, "input_args.1", written=written)
    return _indexed(shape, (index,), "", written=written, alone="input_args.1")


def _indexed(
    shape: tuple[int, ...],
    items: tuple[ValueSpec, ...],
    path: str,
    *,
    written: bool,
    alone: str = "",
) -> dict[str, Role]:
    """Return a role for each whole-number tensor among the parts of a subscript."""
    taken = sum(map(_dimensions, items))
    found: dict[str, tuple[int, TensorSpec]] = {}
    dim = 0
    for position, item in enumerate(items):
        if isinstance(item, Constant) and item.value is Ellipsis:
            dim += max(len(shape) - taken, 0)
        elif isinstance(item, TensorSpec) and DTYPES[item.dtype].kind in ("int", "uint"):
            if dim < len(shape) and shape[dim]:
                found[alone or f"{path}.{position}"] = (shape[dim], item)
            dim += 1
        else:
            dim += _dimensions(item)
    together = len({spec.shape for _, spec in found.values()}) == 1
    if not written:
        return {at: index_into(extent) for at, (extent, _) in found.items()}
    # Broadcast against each other, distinct rows and columns address distinct places.
    if not together:
        return {at: DistinctTogether((extent,), 0, at) for at, (extent, _) in found.items()}
    extents = tuple(extent for extent, _ in found.values())
    return {at: DistinctTogether(extents, place, "subscript") for place, at in enumerate(found)}


def _dimensions(item: ValueSpec) -> int:
    """Return how many dimensions a part of a subscript takes."""
    if isinstance(item, TensorSpec) and item.dtype == "bool":
        return len(item.shape)
    if isinstance(item, Constant) and (item.value is None or item.value is Ellipsis):
        return 0
    return 1


@dataclass(frozen=True, slots=True)
class SecondMoment(Ranked):
    """Means of squares beside what was squared."""

    def bounded(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec with a range of numbers that are not negative."""
        return _SQUARES.bounded(spec)


def optimizer_roles(record: ApiRecord) -> dict[str, Role]:
    """Return the roles of an update's tensors by path."""
    found: dict[str, Role] = {}
    for position, group in enumerate(record.args):
        if isinstance(group, MappingSpec):
            found |= _of_group(dict(group.items), f"input_args.{position}")
    scale = dict(record.kwargs).get("grad_scale")
    if isinstance(scale, TensorSpec):
        found["input_kwargs.grad_scale"] = _UNKNOWN["grad_scale"]
    return found


def _of_group(group: dict[str, ValueSpec], path: str) -> dict[str, Role]:
    found: dict[str, Role] = {}
    if isinstance(group.get("lr"), TensorSpec):
        found[f"{path}.lr"] = _UNKNOWN["lr"]
    state = group.get("state")
    states = dict(state.items) if isinstance(state, MappingSpec) else {}
    squared = _tensors(group.get("grads"), f"{path}.grads")
    for name, values in states.items():
        source = _GROWS_WITH.get(name)
        beside = squared
        if source in states:
            beside = _tensors(states[source], f"{path}.state.{source}")
        for place, (own, spec) in _tensors(values, f"{path}.state.{name}").items():
            role = _role(name, spec, beside.get(place))
            if role is not None:
                found[own] = role
    return found


def _role(name: str, spec: TensorSpec, squared: tuple[str, TensorSpec] | None) -> Role | None:
    if name in _UNKNOWN:
        return _UNKNOWN[name]
    if name in _FACTORS:
        return _SQUARES
    if name not in _GROWS_WITH or DTYPES[spec.dtype].kind != "float":
        return None
    if squared is None or squared[1].shape != spec.shape:
        return _SQUARES
    path, beside = squared
    return SecondMoment(path, beside) if DTYPES[beside.dtype].kind == "float" else _SQUARES


def _tensors(values: ValueSpec | None, path: str) -> dict[int, tuple[str, TensorSpec]]:
    """Return path and spec of the tensors of a list, by their place in it."""
    items = values.items if isinstance(values, SequenceSpec) else ()
    return {
        place: (f"{path}.{place}", spec)
        for place, spec in enumerate(items)
        if isinstance(spec, TensorSpec)
    }
