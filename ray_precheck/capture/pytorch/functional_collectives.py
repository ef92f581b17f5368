"""The functional collectives of torch in a captured step: those of DTensor, and those that a script calls.

Comes in: each call of an operator of the namespace `_c10d_functional`, in backward passes, too. Goes out: its
record, `Distributed.functional.{name}.{n}`. Put on by `collectives` for the time of a captured step.

The functions that a script imports call these operators, some for dimension 0 alone, and
move what has arrived to its dimension afterwards: a record has what the operator got and gave. What it gave
is there when somebody has waited for it (`wait_tensor`), as an `AsyncCollectiveTensor` does where it is used.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as distributed

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.calls import detour, is_compiling
from ray_precheck.capture.pytorch.tensors.text import address_of, tensors_in
from ray_precheck.foreign import caught

_SPACES = ("_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::")
# Operators by their names in a record: those of the functions that call them.
_NAMES = {
    "all_gather_into_tensor": "all_gather_tensor",
    **{
        name: name
        for name in (
            "all_reduce reduce_scatter_tensor all_to_all_single broadcast all_reduce_coalesced"
            " all_gather_into_tensor_coalesced reduce_scatter_tensor_coalesced shard_dim_alltoall"
        ).split()
    },
}
_WAIT = "_c10d_functional::wait_tensor"
_TENSORS = ("input", "inputs", "self")
# Tensors without values, by which a compiler or an export tries what a program does.
_TRACED = ("FakeTensor", "FunctionalTensor")


class Finish(Protocol):
    """Writes the record of a collective with what it gave; () for nothing, as where it has not arrived."""

    def __call__(self, outputs: tuple[Any, ...], fields: str = "") -> None:
        """Write it, with further fields."""


Begin = Callable[..., Finish | None]


class Functional(NamedTuple):
    """A call of a functional collective: its name, what it reads, its other arguments, and its group."""

    name: str
    tensors: Any
    named: Mapping[str, Any]
    group: Any


class FunctionalCollectives:
    """Records functional collectives while they are watched.

    `begin` takes a name, arguments, keyword arguments and a frame, and returns what writes the record, None
    where none is wanted; `run` makes a call whose own calls have no records; `is_off` says that none is
    recorded now.
    """

    def __init__(
        self,
        begin: Begin,
        run: Callable[[Callable[[], Any]], Any],
        is_off: Callable[[], bool],
        group_field: Callable[[Any], str],
    ) -> None:
        self._begin, self._run, self._is_off = begin, run, is_off
        self._group_field = group_field
        # What has not arrived, by the address of its memory, which lives as long.
        self._pending: dict[int, _Arrival] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See each functional collective."""
        packet = private_parts.find(private_parts.OPERATORS)
        if packet is None:
            yield
            return
        with detour(packet, "__call__", self._called(packet.__call__)):
            try:
                yield
            finally:
                for arrival in {id(each): each for each in self._pending.values()}.values():
                    arrival.end()
                self._pending.clear()

    def _called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(operator: Any, /, *args: Any, **kwargs: Any) -> Any:
            space, _, name = operator._qualified_op_name.partition("::")
            if f"{space}::" not in _SPACES:
                return original(operator, *args, **kwargs)
            if operator._qualified_op_name == _WAIT:
                result = original(operator, *args, **kwargs)
                self._waited(args[0] if args else kwargs.get("tensor"))
                return result
            if name not in _NAMES or self._is_off() or is_compiling():
                return original(operator, *args, **kwargs)
            found = _read(operator, name, args, kwargs)
            if found is None:
                return original(operator, *args, **kwargs)
            frame = sys._getframe(1)
            tensors = _arrived(found.tensors)
            finish = self._begin(f"functional.{found.name}", (tensors,), found.named, frame)
            result = self._run(lambda: original(operator, *args, **kwargs))
            if finish is not None:
                self._wait_for(result, finish, self._group_field(found.group))
            return result

        return called

    def _wait_for(self, result: Any, finish: Finish, group: str) -> None:
        """Write the record when all that was given has arrived."""
        outputs = tensors_in(result)
        arrival = _Arrival(result, finish, group, {address_of(each) for each in outputs} - {0})
        if not arrival.addresses:
            arrival.end()
        for address in arrival.addresses:
            self._pending[address] = arrival

    def _waited(self, tensor: Any) -> None:
        address = address_of(tensor) if isinstance(tensor, torch.Tensor) else 0
        arrival = self._pending.pop(address, None)
        if arrival is not None:
            arrival.take(address)


class _Arrival:
    """What a collective has given, until somebody has waited for all of it."""

    def __init__(self, result: Any, finish: Finish, group: str, addresses: set[int]) -> None:
        self.addresses = addresses
        self._result, self._finish, self._group = result, finish, group

    def take(self, address: int) -> None:
        self.addresses.discard(address)
        if not self.addresses:
            self._finish((self._result,), self._group)

    def end(self) -> None:
        """Write the record without what has been given."""
        self._finish((), self._group)


def _read(
    operator: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Functional | None:
    """Return what an operator is called with, by the names of its schema; None for another call."""
    schema, _ = caught(lambda: operator.default._schema)
    if schema is None:
        return None
    named = dict(zip((each.name for each in schema.arguments), args, strict=False)) | kwargs
    tensors = next((named.pop(each) for each in _TENSORS if each in named), None)
    found = tensors_in(tensors)
    if not found or any(type(each).__name__ in _TRACED for each in found):
        return None
    group = named.pop("group_name", None)
    if isinstance(group, str):
        resolve, label = private_parts.find(private_parts.GROUP_NAMES), group
        group = None if resolve is None else caught(lambda: resolve(label))[0]
    named.pop("group_size", None)
    if "reduce_op" in named:
        named["op"] = named.pop("reduce_op")
    if "src" in named and group is not None:
        named["src"] = distributed.get_global_rank(group, named["src"])
    return Functional(_NAMES[name], tensors, named, group)


def _arrived(tensors: Any) -> Any:
    """Return what an operator reads, after it has arrived: the call waits for it, too."""
    if isinstance(tensors, list | tuple):
        return [_arrived(each) for each in tensors]
    if type(tensors).__name__ != "AsyncCollectiveTensor":
        return tensors
    with torch.no_grad():
        return tensors.trigger_wait()
