"""What the record of an optimizer's update says.

Comes in: an optimizer of torch, before and after its step. Goes out: its parameters with a gradient in
`Entry`s, parted into records, and the values that a record has. Called by `capture.pytorch.optimizers`.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

# What one record may hold: to check 8.4 million elements of Adam in float32 takes 2.4 GB of memory, and
# 500 parameters of Adam are 1 MB of JSON.
MOST_ELEMENTS, MOST_PARAMETERS = 1 << 23, 500
_RESERVED = frozenset({"param_dtype", "names", "group", "params", "param_names", "grads", "state"})
NameOf = Callable[[torch.Tensor], str]


@dataclass(frozen=True)
class Member:
    """A parameter with a gradient, and its name."""

    name: str
    parameter: torch.Tensor
    states: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """Parameters of one group that have the same dtype and the same states."""

    number: int
    options: dict[str, Any]
    members: list[Member]


def entries_of(optimizer: Optimizer, name_of: NameOf) -> tuple[list[Entry], int]:
    """Return the parameters with a gradient, and how many have none."""
    numbers = itertools.count()
    without_gradient, found = 0, []
    for number, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or []
        alike: dict[tuple[Any, ...], list[Member]] = defaultdict(list)
        for place, parameter in enumerate(group["params"]):
            index = next(numbers)
            if parameter.grad is None:
                without_gradient += 1
                continue
            own = str(names[place]) if place < len(names) else ""
            states = tuple(sorted(_states(optimizer, parameter)))
            member = Member(own or name_of(parameter) or str(index), parameter, states)
            alike[parameter.dtype, states].append(member)
        options = {str(key): value for key, value in group.items() if key not in _RESERVED}
        found += [Entry(number, options, members) for members in alike.values()]
    return found, without_gradient


def told_of(optimizer: Optimizer, without_gradient: int) -> dict[str, Any]:
    """Return what is to be said of an optimizer besides its groups."""
    kind = type(optimizer)
    about: dict[str, Any] = {
        "optimizer": f"{kind.__module__}.{kind.__qualname__}",
        "without_gradient": without_gradient,
    }
    if any(
        hasattr(parameter, "placements")
        for group in optimizer.param_groups
        for parameter in group["params"]
    ):
        about["sharded"] = True
    options = {
        name: value
        for name, value in vars(optimizer).items()
        if not name.startswith("_") and type(value) in (bool, int, float, str)
    }
    if options:
        about["options"] = options
    scale = getattr(optimizer, "grad_scale", None)
    if isinstance(scale, torch.Tensor):
        about["grad_scale"] = scale
    return about


def parted(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Yield the entries of each record, in order; one parameter is never parted."""
    part: list[Entry] = []
    elements = count = 0
    for entry in entries:
        taken: list[Member] = []
        for member in entry.members:
            size = member.parameter.numel()
            if count and (elements + size > MOST_ELEMENTS or count >= MOST_PARAMETERS):
                yield [*part, *_some(entry, taken)]
                part, taken, elements, count = [], [], 0, 0
            taken.append(member)
            elements, count = elements + size, count + 1
        part += _some(entry, taken)
    if part:
        yield part


def _some(entry: Entry, members: list[Member]) -> list[Entry]:
    return [Entry(entry.number, entry.options, members)] if members else []


def _states(optimizer: Optimizer, parameter: torch.Tensor) -> dict[str, Any]:
    """Return the states of a parameter that are not None, in the order of their names."""
    found = optimizer.state.get(parameter)
    if not isinstance(found, dict):
        return {}
    named = {str(name): value for name, value in found.items() if value is not None}
    return dict(sorted(named.items()))


def sparse(entries: list[Entry]) -> dict[str, list[str]]:
    """Return the names of parameters whose gradient is sparse, if there are any."""
    names = [
        member.name
        for entry in entries
        for member in entry.members
        if member.parameter.grad is not None and member.parameter.grad.layout is not torch.strided
    ]
    return {"sparse": names} if names else {}


def given(entry: Entry, optimizer: Optimizer) -> dict[str, Any]:
    """Return what a group gets, as the record has it."""
    parameters = [member.parameter for member in entry.members]
    found = {
        **entry.options,
        "group": entry.number,
        "param_dtype": str(parameters[0].dtype),
        "names": [member.name for member in entry.members],
        "params": parameters,
        "grads": [parameter.grad for parameter in parameters],
    }
    return _with_states(found, [_states(optimizer, parameter) for parameter in parameters])


def made(entry: Entry, optimizer: Optimizer) -> dict[str, Any]:
    """Return what a step has made of a group."""
    parameters = [member.parameter for member in entry.members]
    states = [_states(optimizer, parameter) for parameter in parameters]
    return _with_states({"params": parameters}, states)


def _with_states(found: dict[str, Any], states: list[dict[str, Any]]) -> dict[str, Any]:
    names = sorted({name for state in states for name in state})
    if names:
        found["state"] = {name: [state.get(name) for state in states] for name in names}
    return found
