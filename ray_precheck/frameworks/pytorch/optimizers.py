"""The updates of optimizers on the device under test.

Comes in: the name `Optimizer.{class}`. Goes out: a function of a record's groups
(`frameworks.pytorch.optimizer_record`) that runs the step and returns parameters and states after it.
Called by the torch backend.

The step is that of torch's own class, made with the recorded hyperparameters and states. torch has no
Lion: its update is computed in the recorded dtypes by the operators that the packages with a Lion use
(lion-pytorch, timm).
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.pytorch.optimizer_record import (
    STATES,
    ParameterGroup,
    as_outputs,
    parameter_state,
    read_groups,
)
from ray_precheck.operators.refused import require_allowed
from ray_precheck.schema.record import ApiName

Tensor = torch.Tensor
_ANY_RATE = 1e-3  # Of older versions of SGD it is a required argument.
# Hyperparameters that say how torch computes the update, not which one.
_WAYS = ("foreach", "fused", "capturable")
# Hyperparameters that must reach the optimizer if they are set: an older torch may lack them.
_MATTER = ("decoupled_weight_decay", "maximize", "nesterov", "amsgrad")


def resolve_optimizer(name: ApiName) -> Callable[..., Any]:
    """Return the function that runs a step of an optimizer.

    Raises:
        NotCheckable: it is none of those with a reference, or the installed torch does not have it.
    """
    require_allowed(name, "pytorch")
    if name.api not in STATES:
        raise NotCheckable(f"{name.type_name} is not an optimizer that is run here")
    if name.api == "Lion":
        return _lion
    kind = vars(torch.optim).get(name.api)
    if kind is None:
        raise NotCheckable(f"torch {torch.__version__} has no torch.optim.{name.api}")
    return functools.partial(_torchs, name.api, kind)


def _torchs(api: str, kind: Callable[..., Any], *groups: Any, **record: Any) -> list[Any]:
    """Run a step of torch's own class; the groups are those of one optimizer."""
    found = read_groups(api, groups, **_without_notes(record))
    _require_own_dtypes(found)
    try:
        return _stepped(kind, found, fused=True)
    except RuntimeError as error:
        if "fused" not in str(error):
            raise
        # The capture was made where fused kernels are; this device has none.
        return _stepped(kind, found, fused=False)


def _stepped(kind: Callable[..., Any], groups: list[ParameterGroup], *, fused: bool) -> list[Any]:
    parameters = [[_parameter(*pair) for pair in _pairs(group)] for group in groups]
    optimizer = kind([{"params": params} for params in parameters], lr=_ANY_RATE)
    for group, params, settings in zip(groups, parameters, optimizer.param_groups, strict=True):
        # A schedule may have brought numbers that the constructor does not take.
        settings.update(_options(kind, group, settings, fused=fused))
        on_device = bool(settings.get("fused") or settings.get("capturable"))
        for place, param in enumerate(params):
            state = parameter_state(group, place)
            if state:
                optimizer.state[param] = {
                    name: _owned(name, value, on_device=on_device) for name, value in state.items()
                }
    optimizer.step()
    return [
        as_outputs(
            [param.detach() for param in params],
            [dict(optimizer.state[param]) for param in params],
        )
        for params in parameters
    ]


def _without_notes(record: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of a record that bear on the update."""
    names = ("optimizer", "sparse", "sharded", "options", "grad_scale")
    return {name: record[name] for name in names if name in record}


def _require_own_dtypes(groups: list[ParameterGroup]) -> None:
    for group in groups:
        for param, grad in _pairs(group):
            if param.dtype != grad.dtype:
                raise NotCheckable(
                    f"a gradient is {grad.dtype} and its parameter {param.dtype}; torch takes"
                    " gradients of the parameter's dtype alone"
                )


def _pairs(group: ParameterGroup) -> list[tuple[Tensor, Tensor]]:
    return list(zip(group.params, group.grads, strict=True))


def _parameter(values: Tensor, grad: Tensor) -> torch.nn.Parameter:
    """Return a parameter with values of its own, so that the step can be made twice."""
    parameter = torch.nn.Parameter(values.detach().clone())
    parameter.grad = grad.clone()
    return parameter


def _owned(name: str, value: Any, *, on_device: bool) -> Any:
    """Return a state as the optimizer holds it: it counts steps on the host, but for some kernels."""
    if not isinstance(value, Tensor):
        return value
    return value.cpu().clone() if name == "step" and not on_device else value.clone()


def _options(
    kind: Callable[..., Any], group: ParameterGroup, known: dict[str, Any], *, fused: bool
) -> dict[str, Any]:
    """Return the hyperparameters that the installed torch knows.

    Raises:
        NotCheckable: the installed torch lacks one that changes the update.
    """
    options: dict[str, Any] = {}
    for name, value in group.options.items():
        if name in _WAYS:
            on_cpu = all(param.device.type == "cpu" for param in group.params)
            unusable = (name == "fused" and not fused) or (name == "capturable" and on_cpu)
            if name in known and isinstance(value, bool) and not unusable:
                options[name] = value
        elif name in known and name != "differentiable":
            options[name] = tuple(value) if isinstance(value, list) else value
        elif name in _MATTER and value and getattr(kind, "__name__", "") != "AdamW":
            raise NotCheckable(
                f"torch {torch.__version__} has no {name} of torch.optim.{kind.__name__}"
            )
    return options


def _lion(*groups: Any, **record: Any) -> list[Any]:
    """Run a step of Lion by torch's operators, in the dtypes of the tensors."""
    outputs = []
    for group in read_groups("Lion", groups, **_without_notes(record)):
        lr, (beta1, beta2) = group.options["lr"], group.options["betas"]
        params, states = [], []
        for place, (given, gradient) in enumerate(_pairs(group)):
            param = given.clone()
            grad = -gradient if group.options.get("maximize") else gradient
            before = parameter_state(group, place).get("exp_avg")
            momentum = torch.zeros_like(param) if before is None else before.clone()
            param.mul_(1 - lr * group.options["weight_decay"])
            update = momentum.clone().mul_(beta1).add_(grad, alpha=1 - beta1).sign_()
            param.add_(update, alpha=-lr)
            momentum.mul_(beta2).add_(grad, alpha=1 - beta2)
            params.append(param)
            states.append({"exp_avg": momentum})
        outputs.append(as_outputs(params, states))
    return outputs
