"""The faults that `verdicts.py` plants, in the tested side only.

Comes in: a `Run`, whose inputs, cotangents and native results are there. Goes out: for each fault
the results, forward and backward, as a device that has it would give them. The float64 bench is
never touched.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ray_precheck.frameworks.base import map_leaves
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import HostCall, HostTensor
from scripts.verdicts.honest import OWN
from scripts.verdicts.subject import REFUSALS, Results, Run

Edit = Callable[[Array, str], Array]

_BLOCK = 16
_TINY = 1e-5
_LAST_SHARE = 16
_ATEN = torch.ops.aten


def planted(run: Run) -> Iterator[tuple[str, Results]]:
    """Yield every fault by name with the results that it leaves; those that cannot be run not."""
    for name, edit in EDITS.items():
        yield name, {key: _edited(leaf, edit) for key, leaf in run.native.items()}
    for name, attempt in _RERUNS.items():
        try:
            results = attempt(run)
        except REFUSALS:
            continue
        if results:
            yield name, results


def _edited(leaf: HostTensor, edit: Edit) -> HostTensor:
    """Edit an output in float64 and round it to its dtype."""
    if DTYPES[leaf.dtype].kind != "float":
        wide = leaf.data if edit not in _OF_FLOATS else None
        return leaf if wide is None else HostTensor(leaf.dtype, edit(wide, leaf.dtype))
    with np.errstate(all="ignore"):
        changed = edit(leaf.data.astype(np.float64), leaf.dtype)
        return HostTensor(leaf.dtype, round_to_dtype(changed, leaf.dtype))


def _factor(excess: float) -> Edit:
    return lambda out, _: out * (1 + excess)


def _last_block_zeroed(out: Array, _: str) -> Array:
    flat = out.copy().reshape(-1)
    flat[len(flat) - len(flat) // _LAST_SHARE :] = 0
    return flat.reshape(out.shape)


def _one_element(out: Array, _: str) -> Array:
    """Give one element the size of all: the neighbour's value would often be near."""
    flat = out.copy().reshape(-1)
    if len(flat):
        place = len(flat) // 3
        if out.dtype.kind == "b":
            flat[place] = ~flat[place]
        elif out.dtype.kind in "iu":
            flat[place] += 1
        else:
            finite = flat[np.isfinite(flat)]
            flat[place] = flat[place] + (np.sqrt(np.mean(finite**2)) if len(finite) else 1.0)
    return flat.reshape(out.shape)


def _tiny_signs(out: Array, _: str) -> Array:
    return np.where(np.abs(out) < _TINY, -out, out)


def _rows_shifted(out: Array, _: str) -> Array:
    return np.roll(out, 1, axis=0) if out.ndim else out


def _one_nan(out: Array, _: str) -> Array:
    flat = out.copy().reshape(-1)
    if len(flat):
        flat[len(flat) // 2] = np.nan
    return flat.reshape(out.shape)


def _clamped(out: Array, dtype: str) -> Array:
    largest = DTYPES[dtype].largest
    return np.where(np.isinf(out), np.copysign(largest, out), out)


def _flushed(out: Array, dtype: str) -> Array:
    return np.where(np.abs(out) < 2.0 ** DTYPES[dtype].min_exponent, 0.0, out)


EDITS: dict[str, Edit] = {
    "factor 1 + 1e-3": _factor(1e-3),
    "factor 1 + 1e-2": _factor(1e-2),
    "factor 1 + 0.1": _factor(0.1),
    "last 1/16 zeroed": _last_block_zeroed,
    "one element wrong": _one_element,
    "signs below 1e-5 flipped": _tiny_signs,
    "rows shifted by one": _rows_shifted,
    "NaN at one place": _one_nan,
    "infinity clamped": _clamped,
    "subnormals flushed": _flushed,
}
# Those that also make sense for integers and booleans are not here.
_OF_FLOATS = [
    EDITS[name]
    for name in EDITS
    if name not in ("one element wrong", "rows shifted by one", "last 1/16 zeroed")
]


def _inputs_in_bfloat16(run: Run) -> Results:
    def rounded(value: Any) -> Any:
        if isinstance(value, HostTensor) and DTYPES[value.dtype].kind == "float":
            data = round_to_dtype(value.data.astype(np.float64), "bfloat16")
            return HostTensor(value.dtype, round_to_dtype(data.astype(np.float64), value.dtype))
        return value

    call = HostCall(map_leaves(run.call.args, rounded), map_leaves(run.call.kwargs, rounded))
    return run.tested(run.function, call=call, cotangents=[rounded(c) for c in run.cotangents])


def _accumulated_in(dtype: torch.dtype) -> Callable[[Run], Results]:
    """Sum blocks one after the other into an accumulator of a half type, wherever sums are."""

    def attempt(run: Run) -> Results:
        function = OWN.get(run.type_name, {}).get("composed", run.function)
        mode = _LowAccumulation(dtype)
        results = run.tested(function, mode)
        return results if mode.used else {}

    return attempt


class _LowAccumulation(TorchDispatchMode):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self.used = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        own = _ACCUMULATIONS.get(func)
        if own is None or not args[-1 if func in _PRODUCTS else 0].is_floating_point():
            return func(*args, **(kwargs or {}))
        self.used = True
        return own(self._dtype, *args, **(kwargs or {}))


def _low_product(dtype: torch.dtype, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    blocks = zip(a.split(_BLOCK, -1), b.split(_BLOCK, -2 if b.dim() > 1 else -1), strict=True)
    total: torch.Tensor | None = None
    for left, right in blocks:
        part = (left.float() @ right.float()).to(dtype)
        total = part if total is None else (total.float() + part.float()).to(dtype)
    assert total is not None
    return total.to(a.dtype)


def _low_addmm(
    dtype: torch.dtype, bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **_: Any
) -> torch.Tensor:
    return (_low_product(dtype, a, b).float() + bias.float()).to(a.dtype)


def _low_sum(
    dtype: torch.dtype, x: torch.Tensor, dim: Any = None, keepdim: bool = False, **_: Any
) -> torch.Tensor:
    dims = (
        list(range(x.dim())) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    )
    dims = sorted(d % x.dim() for d in dims) if x.dim() else []
    kept = [d for d in range(x.dim()) if d not in dims]
    terms = x.permute(*dims, *kept).reshape(-1, *[x.shape[d] for d in kept])
    total = torch.zeros([x.shape[d] for d in kept], dtype=dtype)
    for block in terms.split(_BLOCK):
        total = (total.float() + block.float().sum(0)).to(dtype)
    shape = [1 if d in dims else x.shape[d] for d in range(x.dim())]
    return (total.reshape(shape) if keepdim else total).to(x.dtype)


def _low_mean(
    dtype: torch.dtype, x: torch.Tensor, dim: Any = None, keepdim: bool = False, **_: Any
) -> torch.Tensor:
    total = _low_sum(dtype, x, dim, keepdim)
    return (total.float() / (x.numel() / max(total.numel(), 1))).to(x.dtype)


_PRODUCTS = {_ATEN.mm.default, _ATEN.bmm.default, _ATEN.mv.default, _ATEN.dot.default}
_ACCUMULATIONS: dict[Any, Callable[..., torch.Tensor]] = {
    **dict.fromkeys(_PRODUCTS, _low_product),
    _ATEN.addmm.default: _low_addmm,
    _ATEN.baddbmm.default: _low_addmm,
    _ATEN.sum.default: _low_sum,
    _ATEN.sum.dim_IntList: _low_sum,
    _ATEN.mean.default: _low_mean,
    _ATEN.mean.dim: _low_mean,
}


def _term_missing(run: Run) -> Results:
    """Leave the last eighth of the rows of each incoming gradient out of the sum."""
    if not run.plan.differentiable:
        return {}
    short: list[HostTensor | None] = []
    for cotangent in run.cotangents:
        if cotangent is not None:
            data = cotangent.data.copy()
            flat = data.reshape(-1)
            flat[len(flat) - max(1, len(flat) // 8) :] = 0
            cotangent = HostTensor(cotangent.dtype, data)
        short.append(cotangent)
    results = run.tested(run.function, cotangents=short)
    return {key: leaf for key, leaf in results.items() if key[0] == "backward"}


def _detached(run: Run) -> Results:
    """Take the inner statistics of a composed operator for constants: the gradient lacks a term."""
    function = _WITHOUT_TERM.get(run.type_name)
    if function is None or not run.plan.differentiable:
        return {}
    results = run.tested(function)
    return {key: leaf for key, leaf in results.items() if key[0] == "backward"}


def _softmax_without_sum(x: torch.Tensor, dim: int) -> torch.Tensor:
    powers = (x - x.amax(dim, keepdim=True).detach()).exp()
    return powers / powers.sum(dim, keepdim=True).detach()


def _log_softmax_without_sum(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x - x.logsumexp(dim, keepdim=True).detach()


def _layer_norm_without_variance(
    x: torch.Tensor, _: list[int], weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    apart = x - x.mean(-1, keepdim=True)
    scale = ((apart * apart).mean(-1, keepdim=True) + 1e-5).rsqrt().detach()
    return apart * scale * weight + bias


def _rms_norm_without_mean(x: torch.Tensor, _: list[int], weight: torch.Tensor) -> torch.Tensor:
    return x * (x * x).mean(-1, keepdim=True).rsqrt().detach() * weight


_WITHOUT_TERM: dict[str, Callable[..., torch.Tensor]] = {
    "Functional.softmax": _softmax_without_sum,
    "Functional.log_softmax": _log_softmax_without_sum,
    "Functional.layer_norm": _layer_norm_without_variance,
    "Functional.rms_norm": _rms_norm_without_mean,
    "Functional.silu": lambda x: x * torch.sigmoid(x).detach(),
    "Functional.gelu": lambda x, **_: x * 0.5 * (1 + (x / 2**0.5).erf()).detach(),
    "Torch.logsumexp": lambda x, dim: (
        (x - x.amax(dim, keepdim=True)).exp().sum(dim).log() + x.amax(dim).detach()
    ),
    "Torch.var": lambda x, dim: (
        (x * (x - x.mean(dim, keepdim=True)).detach()).sum(dim) / (x.shape[dim] - 1)
    ),
    "Torch.mul": lambda x, y: x * y.detach() + 0 * y,
    "Torch.square": lambda x: x * x.detach(),
}

_RERUNS: dict[str, Callable[[Run], Results]] = {
    "inputs rounded to bf16": _inputs_in_bfloat16,
    "accumulated in bf16": _accumulated_in(torch.bfloat16),
    "accumulated in fp16": _accumulated_in(torch.float16),
    "gradient missing rows": _term_missing,
    "gradient missing a term": _detached,
}
FAULTS = (*EDITS, *_RERUNS)
