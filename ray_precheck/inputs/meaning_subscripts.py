"""The meanings of subscripts: index tensors of `x[...]`, and of `index_put`.

Comes in: an `ApiRecord`. Goes out: the meanings of its index tensors by path. Called by
`inputs.meaning_table`.
"""

from ray_precheck.inputs.meaning import DistinctTogether, Meaning, index_into
from ray_precheck.inputs.meaning_rules import Arguments
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import Constant, SequenceSpec, TensorSpec, ValueSpec


def index_put_meanings(record: ApiRecord) -> dict[str, Meaning]:
    """Return the meanings of the index tensors of `index_put` and `index_put_`."""
    arguments = Arguments(record, ("input", "indices", "values", "accumulate"))
    shape, place = arguments.shape("input"), arguments.find("indices")
    if shape is None or place is None or not isinstance(place[1], SequenceSpec):
        return {}
    accumulates = arguments.value("accumulate", False) is True
    return _indexed(shape, place[1].items, place[0], written=not accumulates)


def subscript_meanings(record: ApiRecord, *, written: bool) -> dict[str, Meaning]:
    """Return the meanings of the index tensors of `x[...]`."""
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
) -> dict[str, Meaning]:
    """Return a meaning for each whole-number tensor among the parts of a subscript."""
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
    if (
        not together
    ):  # broadcast against each other: distinct rows and columns address distinct places
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
