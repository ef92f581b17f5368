"""Quantized tensors of a bench, and the quantized operators of `torch.ops.quantized`.

Comes in: a `HostTensor` with whole numbers and their scale; the name of an operator. Goes out: what a bench
computes with, `Exact`; a function that packs weights anew, as packed ones are recorded by their parts. Called
by `run` and by the backend.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import flatten_outputs, map_leaves
from ray_precheck.schema.dtypes import QUANTIZED
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostTensor, Quantized

_PACKS = {
    **dict.fromkeys(
        ("linear", "linear_relu", "linear_dynamic", "linear_relu_dynamic"), "linear_prepack"
    ),
    **{f"conv{n}d{end}": f"conv{n}d_prepack" for n in (1, 2, 3) for end in ("", "_relu")},
}
OPERATORS = frozenset({*_PACKS, "add", "add_relu", "mul", "mul_relu", "cat"})


@dataclass(frozen=True, slots=True)
class Exact:
    """A quantized tensor of a bench: the numbers that it means, float64, not yet rounded to its steps.

    `stored` is the dtype of its whole numbers; `whole` are those of an input.
    """

    values: torch.Tensor
    storage: Quantized
    stored: str
    whole: torch.Tensor | None = None

    def host(self) -> HostTensor:
        """Return it in steps, float64, within the whole numbers of its dtype."""
        ends = np.iinfo(self.stored)
        steps = self.storage.steps(self.values.detach().numpy())
        return HostTensor(self.stored, np.clip(steps, ends.min, ends.max), storage=self.storage)


def exact_of(tensor: HostTensor) -> Exact:
    """Return a quantized input of a bench."""
    storage = tensor.storage
    assert isinstance(storage, Quantized)
    meant = torch.from_numpy(np.array(storage.meant(tensor.data)))
    return Exact(meant, storage, tensor.dtype, torch.tensor(tensor.data))


def is_leaf(value: Any) -> bool:
    """Return whether a result is a tensor of a bench or of a device."""
    return torch.is_tensor(value) or isinstance(value, Exact)


def rounded_to(values: torch.Tensor, storage: Quantized, dtype: torch.dtype | str) -> Exact:
    """Return the result of an operator that quantizes it, with a dtype such as `torch.qint8`."""
    name = str(dtype).removeprefix("torch.")
    if name not in {*QUANTIZED, *QUANTIZED.values()}:
        raise NotCheckable(f"a result of dtype {name} cannot be compared")
    return Exact(values, storage, QUANTIZED.get(name, name))


def on_meaning(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a bench that computes with what quantized arguments mean, and quantizes as the first of them."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        given: list[Exact] = []

        def meant(value: Any) -> Any:
            if not isinstance(value, Exact):
                return value
            given.append(value)
            return value.values

        plain = map_leaves(args, meant), map_leaves(kwargs, meant)
        result = function(*plain[0], **plain[1])
        return map_leaves(result, lambda leaf: _as(given[0], leaf)) if given else result

    return called


def _as(first: Exact, leaf: Any) -> Any:
    if not torch.is_tensor(leaf) or not leaf.is_floating_point():
        return leaf
    if first.storage.axis is not None and leaf.shape != first.values.shape:
        raise NotCheckable("several scales, in another shape than before, cannot be followed")
    return rounded_to(leaf, first.storage, first.stored)


def resolve_quantized(name: ApiName) -> Callable[..., Any]:
    """Return an operator of `torch.ops.quantized` that takes the parts of packed weights.

    Raises:
        NotCheckable: it is none of those that have a bench.
    """
    if name.api not in OPERATORS:
        raise NotCheckable(f"{name.type_name} is not a quantized operator that may be called")
    found: Any = getattr(torch.ops.quantized, name.api)
    pack = _PACKS.get(name.api)
    return found if pack is None else functools.partial(_packed, found, pack)


def _packed(operator: Any, pack: str, x: Any, parts: Any, *others: Any, **named: Any) -> Any:
    """Call an operator with weights that are packed from their recorded parts."""
    if not isinstance(parts, dict) or "weight" not in parts:
        raise NotCheckable("the dump does not describe the packed weights")
    ways = [list(parts[key]) for key in ("stride", "padding", "dilation") if key in parts]
    groups = [parts["groups"]] if "groups" in parts else []
    weight = getattr(torch.ops.quantized, pack)(parts["weight"], parts.get("bias"), *ways, *groups)
    return operator(x, weight, *others, **named)


def flattened(result: Any) -> list[Any]:
    """Return the leaves of a result."""
    return flatten_outputs(result, is_leaf)
