"""The results of a call that are tested: those in the dump, or those of the device.

Made by `check.device`, by `held_by_dump` for captured results (real mode), and by
`measured_elsewhere` where another process has run the device. The next station is the bench.
"""

from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from ray_precheck.check.attempt import Attempt, Measured
from ray_precheck.check.inputs import Inputs
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import CallPlan, Leaf, tensors_of
from ray_precheck.inputs.generate import GeneratedTensors, TensorSource
from ray_precheck.inputs.roles.records import PREFIX as OPTIMIZER
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import (
    Constant,
    HostCall,
    HostTensor,
    MappingSpec,
    SequenceSpec,
    TensorSpec,
    ValueSpec,
    walk_specs,
)


@dataclass(frozen=True, slots=True)
class UnderTest:
    """A call with the outputs that are tested; `outputs` is None where the device raised.

    `measured` are the results of the device, None where it has not run. `cotangents` are the incoming
    gradients of a device that has run in this process. `is_captured`: the outputs are the dump's.
    `bench` is the outcome of the bench's forward pass, if the second try has run it. `note` is the
    sentence that the device was tested because the dump lacks a result, "" if it was not. `changed` are the
    tensors of `CallPlan.changed` after the call, None where the dump does not have them.
    """

    inputs: Inputs
    outputs: list[Leaf] | None
    measured: Measured | None = None
    cotangents: list[HostTensor | None] | None = None
    is_captured: bool = False
    bench: Attempt | None = None
    note: str = ""
    changed: tuple[HostTensor, ...] | None = None

    @property
    def caveat(self) -> str:
        """A sentence about a limit of the device's precision that may explain errors of float32, "" for
        none."""
        caveat = "" if self.measured is None else self.measured.caveat
        if not caveat:
            return ""
        tensors = [spec for _, spec in self.inputs.record.input_tensors()]
        return caveat if any(spec.dtype == "float32" for spec in tensors) else ""

    def with_measured(self, **changes: Any) -> "UnderTest":
        """Return the call with changed fields of `measured`."""
        assert self.measured is not None
        return replace(self, measured=replace(self.measured, **changes))


def held_by_dump(inputs: Inputs, measured: Measured | None) -> UnderTest | None:
    """Return the captured results of a call; None where the dump holds none.

    Raises:
        NotCheckable: a file cannot be used, or the dump does not describe an output.
    """
    outputs = captured_outputs(inputs.record, inputs.source)
    if outputs is None:
        return None
    changed = captured_changes(inputs.record, inputs.source, inputs.call, inputs.plan)
    return UnderTest(inputs, outputs, measured, is_captured=True, changed=changed)


def measured_elsewhere(inputs: Inputs, measured: Measured, note: str) -> UnderTest:
    """Return a call with the results of a device in another process."""
    return UnderTest(inputs, measured.outputs, measured, note=note, changed=measured.changed)


def handed_over(tested: UnderTest) -> Measured:
    """Return the results of the device for a bench in another process, with the generated inputs if
    their source has kept them."""
    assert tested.measured is not None
    source = tested.inputs.source
    if not isinstance(source, GeneratedTensors):
        return tested.measured
    return replace(tested.measured, inputs=source.drawn, notes=tuple(source.notes))


def captured_outputs(record: ApiRecord, source: TensorSource) -> list[Leaf] | None:
    """Return the captured outputs, flattened as a backend flattens them; None if there are none.

    Raises:
        NotCheckable: a file cannot be used, or the dump does not describe an output.
    """
    if not record.outputs:
        return None
    leaves: list[Leaf] = []
    for position, spec in enumerate(record.outputs):
        path = f"output.{position}"
        if isinstance(spec, MappingSpec) and record.name.prefix == OPTIMIZER:
            _collect_group(spec, path, source, leaves)
        else:
            _collect(spec, path, source, leaves)
    return leaves


def captured_changes(
    record: ApiRecord, source: TensorSource, call: HostCall, plan: CallPlan
) -> tuple[HostTensor, ...] | None:
    """Return the tensors of `plan.changed` as they were after the call; None where the dump does not say.

    Raises:
        NotCheckable: a file cannot be used.
    """
    if record.changed is None:
        return None
    after, before = dict(record.changed), tensors_of(call)
    paths = [path for path, _ in record.input_tensors()]
    return tuple(
        source.tensor(after[paths[i]], f"changed {paths[i]}") if paths[i] in after else before[i]
        for i in plan.changed
    )


def _collect_group(group: MappingSpec, path: str, source: TensorSource, leaves: list[Leaf]) -> None:
    """Collect what an optimizer has made of a group: its parameters, then the states by their names, as
    the bench has them. The order of other APIs' dicts is not known."""
    for name, spec in sorted(group.items, key=itemgetter(0)):
        if isinstance(spec, MappingSpec):
            _collect_group(spec, f"{path}.{name}", source, leaves)
        else:
            _collect(spec, f"{path}.{name}", source, leaves)


def _collect(spec: ValueSpec, path: str, source: TensorSource, leaves: list[Leaf]) -> None:
    if isinstance(spec, TensorSpec):
        leaves.append(source.tensor(spec, path).dense)
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
    {} where the dump holds no gradient. Where the dump does not say to which input each belongs, they
    match by position if the lists are equally long, else in order if the dump has as many tensors as
    were computed.

    Raises:
        NotCheckable: the captured gradients are not those of the call's arguments.
    """
    specs = dict(enumerate(record.grads_out or ()))
    tensors = {i: spec for i, spec in specs.items() if isinstance(spec, TensorSpec)}
    if not tensors:
        return {}
    if record.gradient_of is not None:
        pairs = _by_number(record.gradient_of, tensors)
        return _matched(record, source, tensors, pairs, shapes)
    computed = [i for i, shape in enumerate(shapes) if shape is not None]
    if len(specs) == len(shapes) and set(tensors) <= set(computed):
        pairs = {i: i for i in tensors}
    elif len(tensors) == len(computed):
        pairs = dict(zip(computed, tensors, strict=True))
    else:
        pairs = {}
    return _matched(record, source, tensors, pairs, shapes)


def _by_number(
    gradient_of: tuple[int | None, ...], tensors: dict[int, TensorSpec]
) -> dict[int, int]:
    """Return pairs of the number of an input and the position of its gradient in the dump.

    Raises:
        NotCheckable: the dump has several gradients of one input.
    """
    pairs: dict[int, int] = {}
    for theirs in tensors:
        mine = gradient_of[theirs]
        if mine is not None and mine in pairs:
            raise NotCheckable(
                f"backward: the dump has two gradients of input tensor {mine} (gradient_of)"
            )
        if mine is not None:
            pairs[mine] = theirs
    return pairs


def _matched(
    record: ApiRecord,
    source: TensorSource,
    tensors: dict[int, TensorSpec],
    pairs: dict[int, int],
    shapes: list[tuple[int, ...] | None],
) -> dict[int, tuple[int, HostTensor]]:
    """Return the captured gradients that are compared with computed ones of these shapes.

    Raises:
        NotCheckable: there is none, or they are not those of the call's arguments.
    """
    sizes = dict(enumerate(shapes))
    if not pairs or any(sizes.get(mine) != tensors[each].shape for mine, each in pairs.items()):
        found = [list(spec.shape) for spec in tensors.values()]
        wanted = [list(shape) if shape is not None else None for shape in shapes]
        raise NotCheckable(
            f"the captured gradients have shapes {found}, those of the call {wanted};"
            " --tested device checks the gradients of its arguments"
        )
    return {
        mine: (theirs, source.tensor(tensors[theirs], f"backward output.{theirs}").dense)
        for mine, theirs in pairs.items()
    }
