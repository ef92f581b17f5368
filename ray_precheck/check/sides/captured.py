"""The outputs and gradients of a call that a dump captured (real mode).

Comes in: a record and the source of its tensors. Goes out: leaves, as a backend gives them. Called by
the forward and backward checks where captured results are tested.
"""

from ray_precheck.datagen.generate import TensorSource
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Leaf
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import (
    Constant,
    HostTensor,
    SequenceSpec,
    TensorSpec,
    ValueSpec,
    walk_specs,
)


def captured_outputs(record: ApiRecord, source: TensorSource) -> list[Leaf] | None:
    """Return the captured outputs, flattened as a backend flattens them; None if there are none.

    Raises:
        NotCheckable: a file cannot be used, or the dump does not describe an output.
    """
    if not record.outputs:
        return None
    leaves: list[Leaf] = []
    for position, spec in enumerate(record.outputs):
        _collect(spec, f"output.{position}", source, leaves)
    return leaves


def _collect(spec: ValueSpec, path: str, source: TensorSource, leaves: list[Leaf]) -> None:
    if isinstance(spec, TensorSpec):
        leaves.append(source.tensor(spec, path))
    elif isinstance(spec, Constant):
        leaves.append(spec.value)
    elif isinstance(spec, SequenceSpec) and not _has_tensor(spec):
        leaves.append([item.value for item in spec.items if isinstance(item, Constant)])
    elif isinstance(spec, SequenceSpec):
        for position, item in enumerate(spec.items):
            _collect(item, f"{path}.{position}", source, leaves)
    else:
        raise NotCheckable(f"{path}: the dump does not describe this output well enough")


def _has_tensor(spec: ValueSpec) -> bool:
    return any(isinstance(leaf, TensorSpec) for _, leaf in walk_specs(spec, ""))


def has_captured_gradients(record: ApiRecord) -> bool:
    """Return whether the dump holds a gradient of the call's inputs."""
    return any(isinstance(spec, TensorSpec) for spec in record.grads_out or ())


def captured_gradients(
    record: ApiRecord, source: TensorSource, shapes: list[tuple[int, ...] | None]
) -> dict[int, tuple[int, HostTensor]]:
    """Match captured gradients with computed ones of these shapes (None: none was computed).

    Returns a dict from the position among the computed ones to (position in the dump, tensor);
    {} where the dump holds no gradient. They match by position where the lists are equally long,
    else in order where the dump has as many tensors as were computed.

    Raises:
        NotCheckable: the captured gradients are not those of the call's arguments.
    """
    specs = dict(enumerate(record.grads_out or ()))
    tensors = {i: spec for i, spec in specs.items() if isinstance(spec, TensorSpec)}
    if not tensors:
        return {}
    computed = [i for i, shape in enumerate(shapes) if shape is not None]
    if len(specs) == len(shapes) and set(tensors) <= set(computed):
        pairs = {i: i for i in tensors}
    elif len(tensors) == len(computed):
        pairs = dict(zip(computed, tensors, strict=True))
    else:
        pairs = {}
    if not pairs or any(shapes[mine] != tensors[theirs].shape for mine, theirs in pairs.items()):
        found = [list(spec.shape) for spec in tensors.values()]
        wanted = [list(shape) if shape is not None else None for shape in shapes]
        raise NotCheckable(
            f"the captured gradients have shapes {found}, those of the call {wanted};"
            " --tested device checks the gradients of its arguments"
        )
    return {
        mine: (theirs, source.tensor(tensors[theirs], f"backward output.{theirs}"))
        for mine, theirs in pairs.items()
    }
