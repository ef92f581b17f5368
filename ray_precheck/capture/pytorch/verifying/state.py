"""The state from which a step starts, so that it can run again from there.

Comes in: models and optimizers. Goes out: their state with that of the random generators, and all of it back
in its place. Called by `steps` around each run of a step.

Values are written back into the tensors that were there, because optimizers and the script hold these.
What else a step changes (attributes of modules, a place in a list of batches) is not known here: such a
step does not repeat itself, which its verification says.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from ray_precheck.capture.pytorch.verifying.digests import device_module, devices_in_use
from ray_precheck.capture.verifying.step import Restore, other_random_states


def saved_state(
    models: Sequence[torch.nn.Module], optimizers: Sequence[Optimizer]
) -> list[Restore]:
    """Return what puts the state back as it is now; it may be called several times.

    It is of parameters with their gradients, buffers, the mode of modules (training or not), the
    optimizers' states and hyperparameters, and the random generators of torch, its devices, numpy and
    Python.
    """
    module = device_module()
    return [
        *(_module(each) for model in models for each in model.modules()),
        *(_group(group) for optimizer in optimizers for group in optimizer.param_groups),
        *(_optimizer(optimizer) for optimizer in optimizers),
        partial(torch.set_rng_state, torch.get_rng_state()),
        *(partial(module.set_rng_state, module.get_rng_state(n), n) for n in devices_in_use()),
        *other_random_states(),
    ]


def _module(module: torch.nn.Module) -> Restore:
    """Save the own parameters and buffers of a module."""
    tables: list[dict[str, Any]] = [module.__dict__["_parameters"], module.__dict__["_buffers"]]
    parts = [
        (table, name, tensor, _tensor(tensor))
        for table in tables
        for name, tensor in table.items()
        if tensor is not None
    ]
    training = module.training

    def restore() -> None:
        module.training = training
        for table, name, tensor, put_back in parts:
            put_back()
            table[name] = tensor

    return restore


def _group(group: dict[str, Any]) -> Restore:
    """Save the hyperparameters of a group, and its parameters, which may be of no model that is known."""
    parts = [_tensor(parameter) for parameter in group["params"]]
    others = _copied({name: value for name, value in group.items() if name != "params"})

    def restore() -> None:
        for put_back in parts:
            put_back()
        group.update(_copied(others))

    return restore


def _optimizer(optimizer: Optimizer) -> Restore:
    saved = {parameter: _copied(state) for parameter, state in optimizer.state.items()}

    def restore() -> None:
        optimizer.state.clear()
        optimizer.state.update({parameter: _copied(state) for parameter, state in saved.items()})

    return restore


def _tensor(tensor: torch.Tensor) -> Restore:
    """Save the values of a tensor, and its gradient."""
    values = tensor.detach().clone()
    gradient = tensor.grad
    gradient_values = None if gradient is None else gradient.detach().clone()

    def restore() -> None:
        with torch.no_grad():
            tensor.copy_(values)
            if gradient is not None and gradient_values is not None:
                gradient.copy_(gradient_values)
        tensor.grad = gradient

    return restore


def _copied(value: Any) -> Any:
    """Return a copy of nested states, with tensors of their own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(each) for each in value)
    return copy.deepcopy(value)
