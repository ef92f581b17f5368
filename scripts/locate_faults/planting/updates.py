"""A wrong update of an optimizer, and the honest errors of updates.

Comes in: an optimizer whose step is captured. Goes out: `Size`s. Acts of `runs`: their hooks are put on
before those of the capture, and so change the parameters before the capture sees them. The reference is
torch's own optimizer on float64 copies of parameters, gradients and states.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from scripts.locate_faults.planted import Change, Size, size_of, worst_size
from scripts.locate_faults.planting.runs import Act, unseen

# The key of errors of updates.
UPDATE = "update"


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    found = [each for group in optimizer.param_groups for each in group["params"]]
    return [each for each in found if each.grad is not None]


def _in_float64(optimizer: Optimizer) -> tuple[Optimizer, list[Tensor]]:
    """Return an optimizer of the same kind on float64 copies, and these."""
    groups, copies = [], {}
    for group in optimizer.param_groups:
        for each in group["params"]:
            copies[each] = torch.nn.Parameter(each.detach().double())
            if each.grad is not None:
                copies[each].grad = each.grad.detach().double()
        groups.append({**group, "params": [copies[each] for each in group["params"]]})
    made = type(optimizer)(groups)  # type: ignore[call-arg]
    made.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return made, [copies[each] for each in _parameters(optimizer)]


@dataclass
class UpdateFault(Act):
    """Changes what an update adds to the largest parameter; `moved` says by how much, None before."""

    change: Change
    moved: Size | None = None

    @contextmanager
    def around_update(self, optimizer: Optimizer) -> Iterator[None]:
        """Hook the step of the optimizer."""
        victim = max(_of_all(optimizer), key=lambda each: each.numel())
        before: list[Tensor] = []

        def begin(stepped: Optimizer, *_: Any) -> None:
            before[:] = [victim.detach().clone()]

        def end(stepped: Optimizer, *_: Any) -> None:
            with unseen(), torch.no_grad():
                right = victim.detach().clone()
                added = self.change(right - before[0])
                victim.data.copy_(before[0] + added)
                self.moved = size_of(victim, right)

        with _hooked(begin, end):
            yield


@dataclass
class UpdateWatch(Act):
    """Measures the error of an update, of all parameters the worst."""

    errors: dict[str, Size] = field(default_factory=dict)
    _reference: tuple[Optimizer, list[Tensor]] | None = None
    _made: list[Tensor] = field(default_factory=list)

    @contextmanager
    def around_update(self, optimizer: Optimizer) -> Iterator[None]:
        """Keep copies of what the optimizer gets and of what it makes."""

        def begin(stepped: Optimizer, *_: Any) -> None:
            with unseen():
                self._reference = _in_float64(stepped)

        def end(stepped: Optimizer, *_: Any) -> None:
            with unseen():
                self._made = [each.detach().clone() for each in _parameters(stepped)]

        with _hooked(begin, end):
            yield

    def finish(self) -> None:
        """Make the update in float64; its own hooks are gone, and so are those of the capture."""
        if self._reference is None:
            return
        other, parameters = self._reference
        other.step()
        pairs = zip(self._made, parameters, strict=True)
        self.errors[UPDATE] = worst_size(size_of(one, right) for one, right in pairs)
        self._reference = None


def _of_all(optimizer: Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


@contextmanager
def _hooked(begin: Any, end: Any) -> Iterator[None]:
    handles = [register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
