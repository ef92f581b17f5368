"""The updates of optimizers: the references of `Optimizer.{class}`.

Comes in: the groups of a record, with torch tensors (`frameworks.pytorch.optimizers` has their form).
Goes out: parameters and states after the step; the arguments stay as they are. Named by the descriptor of
PyTorch, called by the registry.

Sources. SGD: PyTorch's documentation of torch.optim.SGD (momentum with dampening; Nesterov after
Sutskever et al., ICML 2013). Adam: Kingma and Ba, arXiv 1412.6980, algorithm 1; AMSGrad: Reddi et al.,
ICLR 2018, with the largest of the uncorrected second moments, as PyTorch documents it. AdamW: Loshchilov
and Hutter, arXiv 1711.05101, algorithm 2, with the decay times the learning rate, as PyTorch documents
it. RMSprop: PyTorch's documentation of torch.optim.RMSprop (Hinton, lecture 6e of Neural Networks for
Machine Learning; centered after Graves, arXiv 1308.0850). Adafactor: Shazeer and Stern, arXiv 1804.04235,
algorithms 4 to 6, with PyTorch's changes (its documentation of torch.optim.Adafactor: no first moment,
step size min(lr, 1 / sqrt(t)), decoupled decay).
Lion: Chen et al., arXiv 2302.06675, algorithm 2.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.pytorch.optimizers import (
    SIGNATURE,
    ParameterGroup,
    as_outputs,
    parameter_state,
    read_groups,
)
from ray_precheck.frameworks.pytorch.signatures import Row, rows

# The key of a group whose hyperparameters are numbers of float32, as fused kernels on a GPU have them:
# 1 - 0.999f is off by 1.3e-5 (aten/src/ATen/native/cuda/fused_adam_utils.cuh).
SINGLE_NUMBERS = "single_numbers"
# The key of a group whose products are added by the operators that torch's optimizers call, each one step.
JOINED_STEPS = "joined_steps"
Tensor = torch.Tensor
State = dict[str, Any]
# Returns a parameter and its states after a step, of the parameter, its gradient and its states before.
Update = Callable[[Tensor, Tensor, State, ParameterGroup], tuple[Tensor, State]]


def update_groups(api: str, *groups: Any, **record: Any) -> list[Any]:
    """Return the output of a record of `Optimizer.{api}`.

    Raises:
        NotCheckable: the record is none that the reference knows, or lacks a hyperparameter.
    """
    outputs = []
    for group in read_groups(api, groups, **record):
        params, states = [], []
        for place, (param, grad) in enumerate(zip(group.params, group.grads, strict=True)):
            gradient = -grad if group.options.get("maximize") else grad
            after, state = UPDATES[api](param, gradient, parameter_state(group, place), group)
            params.append(after)
            states.append(state)
        outputs.append(as_outputs(params, states))
    return outputs


def sgd(param: Tensor, grad: Tensor, state: State, group: ParameterGroup) -> tuple[Tensor, State]:
    """Return a parameter and its momentum after a step of SGD.

    g = g + decay p;  b = momentum b + (1 - dampening) g, at first b = g
    p = p - lr (g + momentum b if nesterov, else b)
    """
    lr, decay, momentum = _numbers(group, "lr", "weight_decay", "momentum")
    grad = grad + param * decay
    if not momentum:
        return param - grad * lr, state
    buffer = state.get("momentum_buffer")
    (dampening,) = _numbers(group, "dampening")
    buffer = grad if buffer is None else buffer * momentum + grad * (1.0 - dampening)
    step = grad + buffer * momentum if group.options.get("nesterov") else buffer
    return param - step * lr, {**state, "momentum_buffer": buffer}


def adam(
    param: Tensor, grad: Tensor, state: State, group: ParameterGroup, *, decoupled: bool = False
) -> tuple[Tensor, State]:
    """Return a parameter, its moments and its step number after a step of Adam.

        m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
        p = p - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)

    With `amsgrad` the largest v so far takes the place of v. The decay is added to the gradient; if it
    is decoupled, p is first multiplied by 1 - lr decay. Of a complex parameter both parts count alone.
    """
    lr, decay, eps = _numbers(group, "lr", "weight_decay", "eps")
    beta1, beta2 = _pair("betas", group.options.get("betas"))
    power = _single_power if group.options.get(SINGLE_NUMBERS) else math.pow
    if group.options.get("decoupled_weight_decay", decoupled):
        param = param * (1.0 - lr * decay)
    else:
        grad = _with_decay(grad, param, decay, group)
    p, g = _real(param), _real(grad)
    moments = [_moment(state, name, param) for name in ("exp_avg", "exp_avg_sq")]
    m, v = (_real(moment) for moment in moments)
    t = _step_number(state)
    m = _mixed(m, g, beta1, group)
    v = _with_product(v * beta2, g, g, 1.0 - beta2, group)
    after = {"exp_avg": m, "exp_avg_sq": v}
    if group.options.get("amsgrad"):
        after["max_exp_avg_sq"] = torch.maximum(_real(_moment(state, "max_exp_avg_sq", param)), v)
    largest = after.get("max_exp_avg_sq", v)
    # In torch's order, since each step may be rounded.
    root = largest.sqrt() / math.sqrt(1.0 - power(beta2, t))
    p = _with_quotient(p, m, root + eps, lr / (1.0 - power(beta1, t)), group)
    if param.is_complex():
        p = torch.view_as_complex(p)
        after = {name: torch.view_as_complex(value) for name, value in after.items()}
    return p, {**state, **after, "step": torch.tensor(t)}


def adamw(param: Tensor, grad: Tensor, state: State, group: ParameterGroup) -> tuple[Tensor, State]:
    """Return what `adam` returns; the decay is decoupled."""
    return adam(param, grad, state, group, decoupled=True)


def rmsprop(
    param: Tensor, grad: Tensor, state: State, group: ParameterGroup
) -> tuple[Tensor, State]:
    """Return a parameter, its means, its momentum and its step number after a step of RMSprop.

        g = g + decay p;  v = alpha v + (1 - alpha) g^2
        b = momentum b + g / (sqrt(v) + eps);  p = p - lr b

    With `centered` v - a^2 takes the place of v under the root, a = alpha a + (1 - alpha) g. Of a complex
    parameter both parts count alone.
    """
    lr, decay, eps = _numbers(group, "lr", "weight_decay", "eps")
    alpha, momentum = _numbers(group, "alpha", "momentum")
    p, g = _real(param), _real(_with_decay(grad, param, decay, group))
    v = _real(_moment(state, "square_avg", param)) * alpha
    v = _with_product(v, g, g, 1.0 - alpha, group)
    after = {"square_avg": v}
    if group.options.get("centered"):
        a = _real(_moment(state, "grad_avg", param))
        after["grad_avg"] = a = a + (g - a) * (1.0 - alpha)
        v = v - a * a
    root = v.sqrt() + eps
    if momentum > 0:
        step = _real(_moment(state, "momentum_buffer", param)) * momentum
        after["momentum_buffer"] = step = _with_quotient(step, g, root, -1.0, group)
        p = p - step * lr
    else:
        p = _with_quotient(p, g, root, lr, group)
    if param.is_complex():
        p = torch.view_as_complex(p)
        after = {name: torch.view_as_complex(value) for name, value in after.items()}
    return p, {**state, **after, "step": torch.tensor(_step_number(state))}


def adafactor(
    param: Tensor, grad: Tensor, state: State, group: ParameterGroup
) -> tuple[Tensor, State]:
    """Return a parameter, the factors of its second moment and its step number after Adafactor.

        rho = min(lr, 1 / sqrt(t));  alpha = max(eps2, RMS(p)) rho;  1 - beta2 = t^beta2_decay
        R, C = means of g^2 over columns, rows, decayed by beta2;  V = R C / max(mean(R), eps1)
        u = g / max(sqrt(V), eps1);  p = p - lr decay p - alpha u / max(1, RMS(u) / d)

    V of a vector is decayed itself. eps1 is the machine epsilon of the parameter's own dtype if the
    optimizer was given None.
    """
    lr, decay, clip, fading = _numbers(group, "lr", "weight_decay", "d", "beta2_decay")
    eps1, eps2 = _epsilons(group)
    t = _step_number(state)
    fresh = t**fading
    alpha = max(eps2, _rms(param)) * min(lr, t**-0.5)
    after: State = {**state, "step": torch.tensor(t)}
    if grad.dim() > 1:
        for name, dim in (("row_var", -1), ("col_var", -2)):
            # By way of the norm, as torch has it: in a half type its rounding counts twice.
            norm = torch.linalg.vector_norm(grad, dim=dim, keepdim=True)
            mean = norm * norm / max(grad.shape[dim], 1)
            after[name] = _moment(state, name, mean) * (1.0 - fresh) + mean * fresh
        row = after["row_var"]
        variance = row * after["col_var"] / row.mean(-2, keepdim=True).clamp(min=eps1)
    else:
        variance = _moment(state, "variance", grad) * (1.0 - fresh) + grad * grad * fresh
        after["variance"] = variance
    update = grad / variance.clamp(min=eps1 * eps1).sqrt()
    clipped = alpha / max(1.0, _rms(update) / clip)
    return param * (1.0 - lr * decay) - update * clipped, after


def lion(param: Tensor, grad: Tensor, state: State, group: ParameterGroup) -> tuple[Tensor, State]:
    """Return a parameter and its momentum after a step of Lion.

    p = p (1 - lr decay) - lr sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g
    """
    if param.is_complex():
        raise NotCheckable("Lion of complex parameters has no reference")
    lr, decay = _numbers(group, "lr", "weight_decay")
    beta1, beta2 = _pair("betas", group.options.get("betas"))
    m = _moment(state, "exp_avg", param)
    direction = (m * beta1 + grad * (1.0 - beta1)).sign()
    after = {**state, "exp_avg": m * beta2 + grad * (1.0 - beta2)}
    return param * (1.0 - lr * decay) - direction * lr, after


UPDATES: dict[str, Update] = {
    "SGD": sgd,
    "Adam": adam,
    "AdamW": adamw,
    "RMSprop": rmsprop,
    "Adafactor": adafactor,
    "Lion": lion,
}


def _reference(api: str) -> Callable[..., list[Any]]:
    """Return the reference of an optimizer, under the name of its formula."""

    @functools.wraps(UPDATES[api])
    def run(*groups: Any, **record: Any) -> list[Any]:
        return update_groups(api, *groups, **record)

    return run


OPTIMIZER_ROWS: dict[str, tuple[Row, ...]] = {
    f"Optimizer.{api}": rows(_reference(api), SIGNATURE) for api in UPDATES
}


def _with_decay(grad: Tensor, param: Tensor, decay: float, group: ParameterGroup) -> Tensor:
    if group.options.get(JOINED_STEPS) and decay:
        return torch.add(grad, param, alpha=decay)
    return grad + param * decay


def _mixed(before: Tensor, now: Tensor, share: float, group: ParameterGroup) -> Tensor:
    """Return `share` of a mean, and the rest of what is added to it."""
    if group.options.get(JOINED_STEPS):
        return torch.lerp(before, now, 1.0 - share)
    return before * share + now * (1.0 - share)


def _with_product(
    total: Tensor, one: Tensor, other: Tensor, factor: float, group: ParameterGroup
) -> Tensor:
    if group.options.get(JOINED_STEPS):
        return torch.addcmul(total, one, other, value=factor)
    return total + one * other * factor


def _with_quotient(
    total: Tensor, dividend: Tensor, divisor: Tensor, factor: float, group: ParameterGroup
) -> Tensor:
    """Return a total less a quotient times a factor."""
    if group.options.get(JOINED_STEPS):
        return torch.addcdiv(total, dividend, divisor, value=-factor)
    return total - dividend / divisor * factor


def _numbers(group: ParameterGroup, *names: str) -> tuple[float, ...]:
    return tuple(_as_number(name, group.options.get(name)) for name in names)


def _as_number(name: str, value: Any) -> float:
    """Return a hyperparameter, which may be a tensor of one element."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotCheckable(f"the record has no number {name}, but {value!r}")
    return float(value)


def _pair(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise NotCheckable(f"the record has no two numbers {name}, but {value!r}")
    return _as_number(name, value[0]), _as_number(name, value[1])


def _epsilons(group: ParameterGroup) -> tuple[float, float]:
    """Return both epsilons of Adafactor."""
    value = group.options.get("eps")
    if isinstance(value, list | tuple) and len(value) == 2 and value[0] is None:
        dtype = getattr(torch, group.param_dtype.removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise NotCheckable("the record does not tell the dtype of the parameters, nor eps[0]")
        value = [torch.finfo(dtype).eps, value[1]]
    return _pair("eps", value)


def _moment(state: State, name: str, like: Tensor) -> Tensor:
    """Return a state that starts with zeros."""
    found = state.get(name)
    return torch.zeros_like(like) if found is None else found


def _step_number(state: State) -> float:
    """Return the number of this step; the first one is 1."""
    return float(state.get("step", 0)) + 1.0


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _single_power(base: float, exponent: float) -> float:
    """Return a power in float32 that is off by 2 units in the last place, which counts where it is taken
    from 1; CUDA's `powf` may be off by 4 (CUDA C++ Programming Guide, mathematical functions)."""
    nearest = np.float32(base**exponent)
    return base if exponent == 1.0 else float(nearest + 2.0 * np.spacing(nearest))


def _rms(tensor: Tensor) -> float:
    """Return the root of the mean of the squares; 0 of no elements."""
    return math.sqrt(float((tensor * tensor).mean())) if tensor.numel() else 0.0
