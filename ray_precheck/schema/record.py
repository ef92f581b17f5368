"""One API call of a dump, forward and backward."""

from collections.abc import Iterator
from dataclasses import dataclass

from ray_precheck.schema.values import TensorSpec, ValueSpec, walk_specs


@dataclass(frozen=True, slots=True)
class ApiName:
    """The name of one API call: `Torch.linalg.inv.0` is prefix Torch, api linalg.inv, number 0."""

    prefix: str
    api: str
    number: int

    def __str__(self) -> str:
        return f"{self.prefix}.{self.api}.{self.number}"

    @property
    def type_name(self) -> str:
        """The API without the number of the call: `Torch.linalg.inv`."""
        return f"{self.prefix}.{self.api}"


@dataclass(frozen=True, slots=True)
class ApiRecord:
    """The dump's description of one API call.

    `grads_in` are the incoming gradients of the outputs, `grads_out` the gradients of the inputs; both
    are None if the call has no backward record. `gradient_of` has for each of `grads_out` the number of
    the input tensor that it belongs to, None for one that belongs to none; it is None where the dump does
    not say so. `autocast` is the dtype in which autocast let operators compute, "" without autocast;
    `autocast_device` the kind of the device (cuda, npu), "" for the CPU and where the dump does not say.
    `changed` has by argument path the tensors that the call changed, as they were after it, but for those
    that are outputs: an in-place call's first argument, `out`. It is None where the dump does not say.
    `framework` is that of the dump, on which the meaning of a name depends; "" if it is unknown.
    """

    name: ApiName
    args: tuple[ValueSpec, ...]
    kwargs: tuple[tuple[str, ValueSpec], ...]
    outputs: tuple[ValueSpec, ...]
    grads_in: tuple[ValueSpec, ...] | None = None
    grads_out: tuple[ValueSpec, ...] | None = None
    gradient_of: tuple[int | None, ...] | None = None
    autocast: str = ""
    autocast_device: str = ""
    framework: str = ""
    changed: tuple[tuple[str, TensorSpec], ...] | None = None

    @property
    def has_backward(self) -> bool:
        """Whether the dump has a backward record of this call."""
        return self.grads_in is not None

    def input_leaves(self) -> Iterator[tuple[str, ValueSpec]]:
        """Yield every leaf of the inputs with its argument path, positional ones first."""
        for position, spec in enumerate(self.args):
            yield from walk_specs(spec, f"input_args.{position}")
        for key, spec in self.kwargs:
            yield from walk_specs(spec, f"input_kwargs.{key}")

    def input_tensors(self) -> Iterator[tuple[str, TensorSpec]]:
        """Yield every tensor among the inputs with its argument path."""
        for path, spec in self.input_leaves():
            if isinstance(spec, TensorSpec):
                yield path, spec
