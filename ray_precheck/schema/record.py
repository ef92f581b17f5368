"""One API call of a dump, forward and backward."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ray_precheck.schema.values import Constant, SequenceSpec, TensorSpec, ValueSpec, walk_specs


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
    # Each station of a check asks for the tensors, and the arguments are walked once.
    _tensors: list[tuple[str, TensorSpec]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @property
    def has_backward(self) -> bool:
        """Whether the dump has a backward record of this call."""
        return self.grads_in is not None

    @property
    def is_indexed_by_tuple(self) -> bool:
        """Whether `x[0, 1]` was called, which the dump writes like `x[[0, 1]]`.

        Our own captures say which of the two it was. Other lists are rare, and all of whole numbers: they
        keep the number of dimensions of what is read, which a tuple of whole numbers lowers; where
        something is written, they count rows that there need not be columns for.
        """
        if self.name.api not in ("__getitem__", "__setitem__") or len(self.args) < 2:
            return False
        tensor, index = self.args[:2]
        if not isinstance(index, SequenceSpec) or index.is_list:
            return False
        numbers = [i.value for i in index.items if isinstance(i, Constant) and type(i.value) is int]
        if len(numbers) < len(index.items) or not isinstance(tensor, TensorSpec):
            return True
        shape = tensor.shape
        if self.name.api == "__setitem__":
            value = self.args[2] if len(self.args) > 2 else None
            rows = list(value.shape) if isinstance(value, TensorSpec) else []
            del rows[max(len(rows) - len(shape) + len(numbers), 0) :]
            extents = zip(numbers, shape, strict=False)
            fits = len(numbers) <= len(shape) and all(-n <= at < n for at, n in extents)
            return fits and all(extent == 1 for extent in rows)
        out = self.outputs[0] if self.outputs else None
        return not isinstance(out, TensorSpec) or len(out.shape) != len(shape)

    def input_leaves(self) -> Iterator[tuple[str, ValueSpec]]:
        """Yield every leaf of the inputs with its argument path, positional ones first."""
        for position, spec in enumerate(self.args):
            yield from walk_specs(spec, f"input_args.{position}")
        for key, spec in self.kwargs:
            yield from walk_specs(spec, f"input_kwargs.{key}")

    def input_tensors(self) -> Iterator[tuple[str, TensorSpec]]:
        """Return every tensor among the inputs with its argument path."""
        if not self._tensors:
            self._tensors.extend(
                (path, spec) for path, spec in self.input_leaves() if isinstance(spec, TensorSpec)
            )
        return iter(self._tensors)
