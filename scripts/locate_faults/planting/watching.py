"""What a fault moves, and the worst honest error of the same result: the truth that findings are held to.

Comes in: calls as they are made. Goes out: `Size`s by key. Acts of `runs`. The truth does not depend on the
standard `auto`, or on anything else of the precheck: a call is computed again by torch in float64 from the
very inputs, in the process that captures, and the error of an honest run is the distance to that.

Random calls have no such reference, and are not chosen as victims; neither are views, whose memory is that
of another call.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ray_precheck.foreign import caught
from scripts.locate_faults.planted import Change, Size, size_of
from scripts.locate_faults.planting.runs import Act, MadeStep, only_tensor

_LEAST_ELEMENTS = 16
_RANDOM = ("rand", "bernoulli", "multinomial", "normal_", "uniform_", "exponential_")


def is_random(call: MadeStep) -> bool:
    """Return whether a call draws numbers; dropout and attention do where their probability is not 0."""
    if call.kwargs.get("dropout_p"):
        return True
    if "dropout" in call.name.name:
        given = call.args[1] if len(call.args) > 1 else None
        return call.kwargs.get("p", given) != 0
    return any(word in call.name.name for word in _RANDOM)


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested arguments."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_of(each)


def is_view(call: MadeStep, result: Tensor) -> bool:
    """Return whether a result shares its memory with an argument, and is no change of it in place."""
    memory = result.untyped_storage().data_ptr()
    shares = any(
        each.untyped_storage().data_ptr() == memory for each in tensors_of((call.args, call.kwargs))
    )
    return shares and not call.name.in_place


def widened(value: Any) -> Any:
    """Return nested arguments with copies of their tensors, floats and their dtypes in float64."""
    if isinstance(value, Tensor):
        copied = value.detach().clone()
        return copied.double() if copied.is_floating_point() else copied
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    if isinstance(value, dict):
        return {name: widened(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        items = [widened(each) for each in value]
        return items if type(value) is list else tuple(items)
    return value


@dataclass
class Listing(Act):
    """Lists calls that can be victims, by their keys: the name of each without its number.

    `random` are the keys of calls that draw numbers.
    """

    victims: dict[str, str] = field(default_factory=dict)
    differentiated: dict[str, str] = field(default_factory=dict)
    random: list[str] = field(default_factory=list)

    def after(self, call: MadeStep, result: Any) -> None:
        """Take note of a call whose result is of floats, not random, and in memory of its own."""
        if is_random(call):
            self.random.append(call.key)
        found = only_tensor(result)
        has_floats = any(each.is_floating_point() for each in tensors_of((call.args, call.kwargs)))
        if found is None or not has_floats or found.numel() < _LEAST_ELEMENTS:
            return
        if is_random(call) or is_view(call, found):
            return
        self.victims[call.key] = call.name.key
        if found is result and found.requires_grad and not call.name.in_place:
            self.differentiated[call.key] = call.name.key


@dataclass
class CallWatch(Act):
    """Measures the errors of the results of some calls against float64, and keeps the results."""

    keys: frozenset[str]
    errors: dict[str, Size] = field(default_factory=dict)
    results: dict[str, Tensor] = field(default_factory=dict)
    _waiting: dict[str, Any] = field(default_factory=dict)

    def before(self, call: MadeStep) -> None:
        """Copy the arguments, which the call may change."""
        if call.key in self.keys and call.is_recorded:
            self._waiting[call.key] = (widened(call.args), widened(call.kwargs))

    def after(self, call: MadeStep, result: Any) -> None:
        """Compute the call in float64."""
        found = only_tensor(result)
        if call.key not in self._waiting or found is None:
            return
        args, kwargs = self._waiting.pop(call.key)
        self.results[call.key] = found.detach().clone()
        reference, error = caught(lambda: only_tensor(call.function(*args, **kwargs)))
        if error is None and reference is not None and reference.shape == found.shape:
            self.errors[call.key] = size_of(found, reference)


@dataclass
class PlantedCall(Act):
    """Writes other values into the result of a call; `moved` says by how much, None before."""

    key: str
    change: Change
    is_hidden: bool = False
    moved: Size | None = None

    def after(self, call: MadeStep, result: Any) -> None:
        """Change the result of the victim."""
        found = only_tensor(result)
        if call.key != self.key or call.is_recorded == self.is_hidden or found is None:
            return
        right = found.detach().clone()
        found.data.copy_(self.change(right))
        self.moved = size_of(found, right)


@dataclass
class Hidden(Act):
    """Keeps the results of calls that the capture does not see, and finds their neighbours.

    `producers` and `consumers` are the keys of the recorded calls that made the hidden call's arguments,
    and that were given its result.
    """

    results: dict[str, Tensor] = field(default_factory=dict)
    producers: dict[str, list[str]] = field(default_factory=dict)
    consumers: dict[str, list[str]] = field(default_factory=dict)
    _made_by: dict[int, tuple[Tensor, str]] = field(default_factory=dict)
    _hidden: dict[int, str] = field(default_factory=dict)

    def before(self, call: MadeStep) -> None:
        """Look where the arguments come from."""
        for each in tensors_of((call.args, call.kwargs)):
            memory = each.untyped_storage().data_ptr()
            if call.is_recorded and memory in self._hidden:
                self.consumers[self._hidden[memory]].append(call.key)
            if not call.is_recorded and memory in self._made_by:
                self.producers.setdefault(call.key, []).append(self._made_by[memory][1])

    def after(self, call: MadeStep, result: Any) -> None:
        """Take note of who made the result."""
        for each in tensors_of(result):
            memory = each.untyped_storage().data_ptr()
            # The tensor is kept, so that no other one gets its memory.
            if call.is_recorded:
                self._made_by[memory] = (each, call.key)
            else:
                self._hidden[memory] = call.key
                self._made_by[memory] = (each, "")
                self.results[call.key] = each.detach().clone()
                self.consumers.setdefault(call.key, [])


def honest_differences(runs: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Size]:
    """Return how far the results of the same calls are apart in two runs."""
    return {key: size_of(each, other[key]) for key, each in runs.items() if key in other}
