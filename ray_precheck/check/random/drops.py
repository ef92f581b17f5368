"""The rules of calls that drop elements: dropout in all its forms, rrelu, attention with dropout.

Comes in: a `RandomCall`. Goes out: `StatisticalTest`s. Called through the table of `check.random.rules`.
"""

from collections.abc import Callable

import numpy as np

from ray_precheck.accuracy.random.attention import attention_tests
from ray_precheck.accuracy.random.dropout import (
    Dropping,
    Mask,
    alpha_dropout,
    dropout,
    dropout_gradient_tests,
    dropout_tests,
    mask_of,
    recorded_mask_tests,
    rrelu_gradient_tests,
    rrelu_tests,
)
from ray_precheck.accuracy.random.statistics import StatisticalTest
from ray_precheck.check.random.arguments import RandomCall
from ray_precheck.errors import NotCheckable
from ray_precheck.numerics.rounding import machine_epsilon
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import HostTensor

RRELU = "input lower=0.125 upper=0.3333333333333333 ..."
_Make = Callable[[float, int | None], Dropping]
# How an API drops, and over how many leading dimensions it decides separately, by the number of
# dimensions of its input (torch.nn.functional: an input without a batch has one dimension less).
DROPPINGS: dict[str, tuple[_Make, dict[int, int] | None]] = {
    "dropout": (dropout, None),
    "dropout1d": (dropout, {2: 1, 3: 2}),
    "dropout2d": (dropout, {3: 2, 4: 2}),
    "dropout3d": (dropout, {4: 1, 5: 2}),
    "feature_dropout": (dropout, {}),
    "alpha_dropout": (alpha_dropout, None),
    "feature_alpha_dropout": (alpha_dropout, {}),
}
_CHANNEL_DIMS = 2


def _dropped(call: RandomCall, api: str) -> tuple[Mask, Dropping]:
    x, out = call.tensor("input"), call.out
    if x.shape != out.shape:
        raise NotCheckable(f"its output has shape {list(out.shape)}, its input {list(x.shape)}")
    make, by_dims = DROPPINGS[api]
    units = None if by_dims is None else by_dims.get(len(x.shape), _CHANNEL_DIMS)
    keeps = "keep_prob" in call.arguments  # a primitive of MindSpore
    dropping = make(1 - call.number("keep_prob") if keeps else call.number("p"), units)
    return mask_of(x, out, dropping), dropping


def drop_rule(api: str) -> Callable[[RandomCall], list[StatisticalTest]]:
    """Return the rule of an API of `DROPPINGS`."""
    return lambda call: dropout_tests(*_dropped(call, api))


def drop_gradient_rule(
    api: str,
) -> Callable[[RandomCall, HostTensor | None, HostTensor], list[StatisticalTest]]:
    """Return the rule of the gradient of an API of `DROPPINGS`: its mask is that of the output."""

    def rule(
        call: RandomCall, incoming: HostTensor | None, grad: HostTensor
    ) -> list[StatisticalTest]:
        return dropout_gradient_tests(*_dropped(call, api), incoming, grad)

    return rule


def returned_mask(call: RandomCall) -> list[StatisticalTest]:
    """Test the mask that native_dropout returns beside its output."""
    mask = call.outputs[1]
    if not isinstance(mask, HostTensor) or mask.shape != call.out.shape:
        raise NotCheckable("its second output is no mask of the shape of the first")
    return recorded_mask_tests(_dropped(call, "dropout")[0], mask)


def rrelu(call: RandomCall) -> list[StatisticalTest]:
    """Test the slopes that rrelu draws."""
    return rrelu_tests(call.tensor("input"), call.out, call.number("lower"), call.number("upper"))


def rrelu_gradient(
    call: RandomCall, incoming: HostTensor | None, grad: HostTensor
) -> list[StatisticalTest]:
    """Test its gradient, which has the same slopes."""
    return rrelu_gradient_tests(call.tensor("input"), call.out, incoming, grad)


def attention(call: RandomCall) -> list[StatisticalTest]:
    """Test scaled_dot_product_attention with dropout."""
    query, key, value = (call.tensor(name) for name in ("query", "key", "value"))
    scale = call.arguments.get("scale")
    return attention_tests(
        query.data.astype(np.float64),
        key.data.astype(np.float64),
        value.data.astype(np.float64),
        call.out.data.astype(np.float64),
        bias=_bias(call, query.shape[-2], key.shape[-2]),
        probability=call.number("dropout_p"),
        scale=None if scale is None else float(scale),
        unit=machine_epsilon(call.out.dtype),
    )


def _bias(call: RandomCall, length: int, source: int) -> Array | None:
    mask = call.arguments.get("attn_mask")
    if isinstance(mask, HostTensor):
        is_bool = DTYPES[mask.dtype].kind == "bool"
        return np.where(mask.data, 0.0, -np.inf) if is_bool else mask.data.astype(np.float64)
    if call.flag("is_causal"):
        return np.triu(np.full((length, source), -np.inf), 1)
    return None
