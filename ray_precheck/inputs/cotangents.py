"""The incoming gradients (cotangents) of the outputs of an API, for its backward check.

Comes in: a record and the outputs' shapes. Goes out: one `HostTensor` or None for each output.
Called by `check`, once for device and bench alike.
"""

from dataclasses import replace

from ray_precheck.errors import NotCheckable
from ray_precheck.inputs.generate import TensorSource
from ray_precheck.inputs.layouts import placed_alone
from ray_precheck.numerics.rounding import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES, is_differentiable
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import HostTensor, TensorSpec, walk_specs


def assign_cotangents(
    record: ApiRecord,
    outputs: list[HostTensor | None],
    source: TensorSource,
    *,
    may_reshape: bool,
) -> list[HostTensor | None]:
    """Return the incoming gradient of every output, None where it has none (zeros).

    `outputs` are the flattened outputs, None for those that are no tensors. Gradients and outputs
    are matched by position where their numbers agree; PyTorch records the gradients of an autograd
    node, which may have other outputs too, so otherwise each gradient goes to the first float
    output of its size that has none yet, and of which the record does not say that it needs none (one that
    says so of all outputs saw them detached). With `may_reshape` (generated gradients) a gradient that fits
    none takes the shape of the first one left: outputs such as those of `masked_select` have another size
    for other values.

    Raises:
        NotCheckable: no gradient fits any output.
    """
    grads = record.grads_in or ()
    by_position = len(grads) == len(outputs)
    cotangents: list[HostTensor | None] = [None] * len(outputs)
    constant = _constant(record, len(outputs))
    for position, spec in enumerate(grads):
        if not isinstance(spec, TensorSpec):
            continue
        candidates = [position] if by_position else sorted(set(range(len(outputs))) - constant)
        free = {
            place: output
            for place in candidates
            if cotangents[place] is None
            and (output := outputs[place]) is not None
            and is_differentiable(output.dtype)
        }
        fitting = (place for place, output in free.items() if output.data.size == spec.size)
        chosen = next(fitting, None)
        if chosen is None and may_reshape and free:
            chosen = next(iter(free))
            # The norm is that of as many elements as were recorded.
            shape = free[chosen].shape
            spec = replace(spec, shape=shape, norm=None, stride=None, offset=0, storage=None)
        if chosen is not None:
            tensor = source.tensor(spec, f"backward input.{position}").dense
            cotangent = _shaped_like(tensor, free[chosen])
            cotangents[chosen] = placed_alone(cotangent, spec, may_change=may_reshape)
    if all(cotangent is None for cotangent in cotangents):
        shapes = [list(spec.shape) for spec in grads if isinstance(spec, TensorSpec)]
        raise NotCheckable(f"no output fits the incoming gradients of shapes {shapes}")
    return cotangents


def _constant(record: ApiRecord, count: int) -> set[int]:
    """Return the places of the `count` outputs that need no gradient, if the record tells them apart."""
    recorded = [leaf for spec in record.outputs for _, leaf in walk_specs(spec, "")]
    needed = {
        place: leaf.requires_grad
        for place, leaf in enumerate(recorded)
        if isinstance(leaf, TensorSpec)
    }
    if len(recorded) != count or not any(needed.values()):
        return set()
    return {place for place, needs in needed.items() if needs is False}


def _shaped_like(tensor: HostTensor, output: HostTensor) -> HostTensor:
    """Return the gradient with its output's shape and dtype, as autograd wants it."""
    data = tensor.data.reshape(output.shape)
    if DTYPES[output.dtype].kind == "float":
        data = data.real  # a record may name a complex gradient for a real output
    if tensor.dtype != output.dtype:
        data = round_to_dtype(data, output.dtype)
    return replace(output, data=data, layout=None)
