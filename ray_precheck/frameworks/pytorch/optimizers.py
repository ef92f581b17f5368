"""The updates of optimizers: their records in a dump, and the step on the device under test.

Comes in: the name `Optimizer.{class}`, and the arguments of a call. Goes out: a function of a record's groups
that runs the step and returns parameters and states after it, for the torch backend; `ParameterGroup`s, or
`NotCheckable` where the record is none of the optimizer that the reference knows. The references
(`bench.optimizers`) read records here, too, so that both sides refuse the same ones.

A record (`capture.pytorch.updates` writes it) has a dict for each group of parameters:

    input_args    [{"lr": .., "betas": [..], .., "param_dtype": "torch.float32", "names": [..],
                    "params": [..], "grads": [..], "state": {"exp_avg": [..], "step": [..], ..}}, ..]
    input_kwargs  {"optimizer": "torch.optim.adamw.AdamW", "without_gradient": 0, ..}
    output        [{"params": [..], "state": {"exp_avg": [..], ..}}, ..]

Parameters that have no state have no field `state`. The states of an output stand in the order of their
names.

The step is that of torch's own class, made with the recorded hyperparameters and states. torch has no
Lion: its update is computed in the recorded dtypes by the operators that the packages with a Lion use
(lion-pytorch, timm).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ray_precheck.errors import NotCheckable
from ray_precheck.operators.refused import require_allowed
from ray_precheck.schema.record import ApiName

# The keys of a group that are no hyperparameters.
RESERVED = ("param_dtype", "names", "group", "params", "grads", "state")
# The keywords of a record, in the grammar of `frameworks.pytorch.signatures`.
SIGNATURE = """*groups optimizer sparse sharded options grad_scale without_gradient> part> parts>
    closure>"""
_OTHER = "--bench-module FILE can add a bench"
# The states that each optimizer keeps. Lion is in packages of others: lion-pytorch, timm, ...
STATES = {
    "SGD": frozenset({"momentum_buffer"}),
    "Adam": frozenset({"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
    "AdamW": frozenset({"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
    "RMSprop": frozenset({"step", "square_avg", "momentum_buffer", "grad_avg"}),
    "Adafactor": frozenset({"step", "row_var", "col_var", "variance"}),
    "Lion": frozenset({"exp_avg"}),
}
# Those that a parameter has all, or none of; matrices of Adafactor have factors in the place of `variance`.
_WHOLE: dict[str, tuple[str, ...]] = {
    "SGD": (),
    "Adam": ("step", "exp_avg", "exp_avg_sq"),
    "AdamW": ("step", "exp_avg", "exp_avg_sq"),
    "RMSprop": ("step", "square_avg"),
    "Adafactor": ("step",),
    "Lion": ("exp_avg",),
}
# What packages with a Lion have in its groups: those that change nothing, and those that change the
# update unless they have this value.
_LION_IDLE = frozenset(
    """lr betas weight_decay maximize foreach fused capturable differentiable initial_lr lr_scale
    use_triton""".split()
)
_LION_OFF: Mapping[str, tuple[object, ...]] = {"cautious_factor": (1, None)}
Tensor = torch.Tensor
_ANY_RATE = 1e-3  # Of older versions of SGD it is a required argument.
# Hyperparameters that say how torch computes the update, not which one.
_WAYS = ("foreach", "fused", "capturable")
# Hyperparameters that must reach the optimizer if they are set: an older torch may lack them.
_MATTER = ("decoupled_weight_decay", "maximize", "nesterov", "amsgrad")


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters with their gradients, states and hyperparameters (`options`).

    `state` has, by name, a value for each parameter; {} before the first step. `param_dtype` is the
    dtype that the parameters have in the dump, "" if the dump does not tell: the tensors may have
    been widened.
    """

    options: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor]
    state: dict[str, list[Any]]
    param_dtype: str = ""


def read_groups(
    api: str,
    groups: Sequence[Any],
    *,
    optimizer: str = "",
    sparse: Sequence[str] = (),
    sharded: bool = False,
    options: Mapping[str, Any] | None = None,
    grad_scale: Tensor | None = None,
) -> list[ParameterGroup]:
    """Return the groups of a record of `Optimizer.{api}`; gradients are divided by `grad_scale`.

    Raises:
        NotCheckable: the class is another one of the same name, a gradient is sparse, a hyperparameter
            or state is unknown here, or the lists do not fit each other.
    """
    if api != "Lion" and optimizer and not optimizer.startswith("torch.optim."):
        raise NotCheckable(f"it is the update of {optimizer}, not of torch.optim.{api}; {_OTHER}")
    if sparse:
        raise NotCheckable(f"the gradient of {sparse[0]} is sparse; dense ones are checked")
    if sharded and api == "Adafactor":
        raise NotCheckable(
            "its parameters are sharded, and the factors of Adafactor are means over the whole ones"
        )
    if api == "Lion":
        _require_plain_lion({**(options or {})}, optimizer)
    found = [_group(api, group) for group in groups]
    if not found:
        raise NotCheckable("the record has no group of parameters")
    if api == "Lion":
        for group in found:
            _require_plain_lion(group.options, optimizer)
    if isinstance(grad_scale, Tensor):
        for group in found:
            group.grads[:] = [grad / grad_scale.to(grad) for grad in group.grads]
    return found


def _group(api: str, given: Any) -> ParameterGroup:
    if not isinstance(given, dict):
        raise NotCheckable("a group of parameters is no dict; expected params, grads and state")
    params, grads = (_tensors(given, name) for name in ("params", "grads"))
    state = given.get("state") or {}
    if not isinstance(state, dict):
        raise NotCheckable("the state of a group is no dict of lists")
    unknown = sorted(set(state) - STATES[api])
    if unknown:
        raise NotCheckable(f"the state {unknown[0]} is none of the {api} that the reference knows")
    for name, values in (("grads", grads), *state.items()):
        if not isinstance(values, list) or len(values) != len(params):
            raise NotCheckable(f"{name} of a group does not have a value for each parameter")
    options = {name: value for name, value in given.items() if name not in RESERVED}
    dtype = given.get("param_dtype")
    group = ParameterGroup(
        options, params, grads, dict(state), dtype if isinstance(dtype, str) else ""
    )
    for place, (param, grad) in enumerate(zip(params, grads, strict=True)):
        if not param.is_floating_point() and not param.is_complex():
            raise NotCheckable(f"parameter {place} is {param.dtype}, which no optimizer updates")
        _require_shape(f"gradient {place}", grad, param.shape)
        _require_states(api, group, place)
    return group


def _require_states(api: str, group: ParameterGroup, place: int) -> None:
    """Raise where a parameter lacks some of its states, or has them in other shapes."""
    state = parameter_state(group, place)
    if not state:
        return
    shape = group.params[place].shape
    shapes = {"step": torch.Size([]), "row_var": (*shape[:-1], 1)}
    shapes["col_var"] = (*shape[:-2], 1, *shape[-1:])
    wanted = list(_WHOLE[api])
    wanted += ["max_exp_avg_sq"] if group.options.get("amsgrad") else []
    wanted += ["grad_avg"] if group.options.get("centered") else []
    if api == "Adafactor":
        wanted += ["row_var", "col_var"] if len(shape) > 1 else ["variance"]
    for name in wanted:
        if name not in state:
            raise NotCheckable(f"parameter {place} has states, but no {name}")
    for name, value in state.items():
        if isinstance(value, Tensor):
            _require_shape(f"{name} of parameter {place}", value, shapes.get(name, shape))
        elif name != "step" or not isinstance(value, int | float):
            raise NotCheckable(f"{name} of parameter {place} is no tensor")


def _require_shape(what: str, tensor: Tensor, shape: Sequence[int]) -> None:
    one = not len(shape) and tensor.numel() == 1  # a step may be counted in one element
    if tensor.shape != torch.Size(shape) and not one:
        raise NotCheckable(f"{what} has shape {list(tensor.shape)}; expected {list(shape)}")


def _tensors(given: dict[str, Any], name: str) -> list[Tensor]:
    values = given.get(name)
    if not isinstance(values, list) or not all(isinstance(value, Tensor) for value in values):
        raise NotCheckable(f"{name} of a group is no list of tensors")
    return list(values)


def _require_plain_lion(options: Mapping[str, Any], optimizer: str) -> None:
    """Raise for what changes the update from the one that was published."""
    for name, value in options.items():
        is_off = isinstance(value, bool | int | float) and value in _LION_OFF.get(name, ())
        if name in _LION_IDLE or is_off or value is None or value is False or type(value) is str:
            continue
        raise NotCheckable(
            f"{name}={value} of {optimizer or 'this Lion'} is unknown to the reference of the"
            f" published Lion; {_OTHER}"
        )


def parameter_state(group: ParameterGroup, place: int) -> dict[str, Any]:
    """Return the states of one parameter by name; those that are None are left out."""
    return {
        name: values[place] for name, values in group.state.items() if values[place] is not None
    }


def as_outputs(
    params: Sequence[Tensor], states: Sequence[Mapping[str, Any]]
) -> dict[str, list[Any] | dict[str, list[Any]]]:
    """Return the output of a group: its parameters and, by name, their states after the step."""
    names = sorted({name for state in states for name, value in state.items() if value is not None})
    found: dict[str, list[Any] | dict[str, list[Any]]] = {"params": list(params)}
    if names:
        found["state"] = {name: [state.get(name) for state in states] for name in names}
    return found


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
