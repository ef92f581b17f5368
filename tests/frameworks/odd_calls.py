"""Honest calls with odd arguments: which does the precheck accuse, and why does it skip others?

Comes in: nothing. Goes out: torch's own samples of its operators (`torch.testing._internal`'s op_db:
forward, backward and in place) in float32, bfloat16, float16, int64, complex64 and bool, and the calls of
`_BY_HAND`; and what `auto` says of their records. Each is called through its public name under a `Capture`;
then each record is checked as `run_ut` does, in this process. All calls are torch's own, unchanged: an
accused one is a mistake of the precheck, or has to be explained. Used by `test_odd_calls`.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from coverage_samples import operators_of_torch

from ray_precheck.capture import Capture
from ray_precheck.foreign import caught
from scripts.honest.child import checked_dump

DTYPES = ("float32", "bfloat16", "float16", "int64", "complex64", "bool")
# What gives no numbers to compare (uninitialised memory, compilers), or needs another process.
_LEFT_OUT = "empty* new_empty* resize* jiterator* *_like_fn to_sparse sparse.* torch.ops.*"
_CALLS_OF_A_DUMP = 400


@dataclass(frozen=True, slots=True)
class OddCall:
    """A call that is made when asked; `derives`: its outputs get gradients."""

    label: str
    run: Callable[[], Any]
    derives: bool = False


def _t(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    """Return normal numbers that need a gradient."""
    return torch.randn(shape).to(dtype).requires_grad_(grad)


def by_hand() -> Iterator[OddCall]:
    """Make the calls that op_db has not, in the three float dtypes."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        made = lambda *shape, dtype=dtype: _t(*shape, dtype=dtype)  # noqa: E731
        for label, call in _BY_HAND.items():
            yield OddCall(f"{label} {dtype}", lambda call=call, made=made: call(made), True)


def _set(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    y = x.detach().clone()
    y[index] = value
    return y


_BY_HAND: dict[str, Callable[[Callable[..., torch.Tensor]], Any]] = {
    "rms_norm without eps": lambda t: F.rms_norm(t(4, 16) * 1e-3, (16,)),
    "rms_norm eps": lambda t: F.rms_norm(t(4, 16), (16,), t(16), 1e-6),
    "set two": lambda t: _set(t(4, 5), (1, 2), 3.0),
    "set three": lambda t: _set(t(4, 5, 6), (1, 2, -1), 3.0),
    "set row": lambda t: _set(t(4, 5, 6), (1, 2), t(6).detach()),
    "set list": lambda t: _set(t(4, 5), [1, 2], 3.0),
    "set slice": lambda t: _set(t(4, 5), (slice(1, 3), ..., None), 3.0),
    "set mask": lambda t: _set(t(4, 5), torch.arange(4) > 1, 0.1),
    "get two": lambda t: t(4, 5, 6)[1, 2],
    "get list": lambda t: t(4, 5, 6)[[1, 2]],
    "eq scalar": lambda t: torch.full_like(t(4, 5), 0.1) == 0.1,
    "ne scalar": lambda t: torch.full_like(t(4, 5), 0.1).ne(0.1),
    "ge scalar": lambda t: torch.full_like(t(4, 5), 0.1).ge(0.1),
    "le scalar": lambda t: torch.full_like(t(4, 5), 0.7).le(0.7),
    "gt scalar": lambda t: torch.gt(torch.full_like(t(4, 5), 0.7), 0.7),
    "lt scalar": lambda t: torch.lt(torch.full_like(t(4, 5), 0.1), 0.1),
    "isclose": lambda t: torch.isclose(t(4, 5).detach(), t(4, 5).detach(), atol=0.1),
    "floor_divide scalar": lambda t: torch.arange(1, 40).to(t(1).dtype) // 0.1,
    "floor_divide": lambda t: torch.floor_divide(t(40).detach(), 0.3),
    "div floor": lambda t: torch.div(torch.arange(40).to(t(1).dtype), 0.7, rounding_mode="floor"),
    "div trunc": lambda t: torch.div(torch.arange(40).to(t(1).dtype), 0.1, rounding_mode="trunc"),
    "remainder scalar": lambda t: torch.remainder(torch.arange(40).to(t(1).dtype), 0.1),
    "fmod scalar": lambda t: torch.fmod(torch.arange(40).to(t(1).dtype), 0.1),
    "remainder": lambda t: t(40).detach() % 0.3,
    "add scalar": lambda t: t(4, 50) + 0.1,
    "add alpha": lambda t: torch.add(t(4, 50), t(4, 50), alpha=0.1),
    "sub scalar": lambda t: t(4, 50) - 1000.1,
    "rsub scalar": lambda t: 0.1 - t(4, 50),
    "mul scalar": lambda t: t(4, 50) * 0.1,
    "div scalar": lambda t: t(4, 50) / 0.3,
    "rdiv scalar": lambda t: 0.1 / t(4, 50),
    "pow scalar": lambda t: t(4, 50).abs() ** 2.3,
    "rpow scalar": lambda t: 1.7 ** t(4, 50),
    "clamp": lambda t: t(4, 50).clamp(-0.1, 0.3),
    "clamp ties": lambda t: torch.full_like(t(4, 50), 0.1).clamp(max=0.1),
    "threshold": lambda t: F.threshold(torch.full_like(t(4, 5), 0.1), 0.1, 0.7),
    "hardshrink": lambda t: F.hardshrink(torch.full_like(t(4, 5), 0.3), 0.3),
    "softshrink": lambda t: F.softshrink(torch.full_like(t(4, 5), 0.3), 0.3),
    "where scalar": lambda t: torch.where(t(4, 5) > 0, 0.1, t(4, 5)),
    "masked_fill": lambda t: t(4, 5).masked_fill(torch.eye(4, 5) > 0, 0.1),
    "full_like": lambda t: torch.full_like(t(4, 5), 0.1),
    "lerp": lambda t: torch.lerp(t(4, 5), t(4, 5), 0.1),
    "addcmul": lambda t: torch.addcmul(t(4, 50), t(4, 50), t(4, 50), value=0.1),
    "addcdiv": lambda t: torch.addcdiv(t(4, 50), t(4, 50), t(4, 50) + 5, value=0.1),
    "heaviside": lambda t: torch.heaviside(torch.zeros_like(t(4)).detach(), t(4).detach()),
    "nan_to_num": lambda t: torch.nan_to_num(
        torch.tensor([1.0, float("inf"), -float("inf"), float("nan")]).to(t(1).dtype)
    ),
    "nextafter": lambda t: torch.nextafter(t(4, 5).detach(), t(4, 5).detach()),
    "nextafter in place": lambda t: t(4, 5).detach().nextafter_(t(4, 5).detach()),
    "nextafter ends": lambda t: torch.nextafter(
        t(3).detach(), torch.tensor([float("inf"), -float("inf"), 0.0]).to(t(1).dtype)
    ),
    "i0e": lambda t: torch.special.i0e(t(40) * 10),
    "matrix_rank": lambda t: torch.linalg.matrix_rank((t(5, 3).detach() @ t(3, 5).detach()).float()),
    "norm": lambda t: torch.norm(t(4, 5)),
    "norm p": lambda t: torch.norm(t(4, 5), p=3, dim=-1),
    "norm zero": lambda t: torch.linalg.vector_norm(torch.zeros_like(t(4, 5)), ord=0),
    "norm inf": lambda t: torch.linalg.vector_norm(t(4, 5), ord=float("inf"), dim=0),
    "norm dtype": lambda t: torch.linalg.vector_norm(t(4, 5), dtype=torch.float32),
    "renorm": lambda t: torch.renorm(t(4, 5), 2, 0, 0.7),
    "normalize": lambda t: F.normalize(t(4, 5) * 1e-4, dim=-1),
    "cosine_similarity": lambda t: F.cosine_similarity(t(4, 5), t(4, 5), dim=-1),
    "cosine_similarity small": lambda t: F.cosine_similarity(t(4, 5) * 1e-4, t(4, 5) * 1e-5),
    "pairwise_distance": lambda t: F.pairwise_distance(t(4, 5), t(4, 5), p=1.5, keepdim=True),
    "interpolate scale": lambda t: F.interpolate(t(1, 2, 7, 9), scale_factor=1.3, mode="bilinear"),
    "interpolate recompute": lambda t: F.interpolate(
        t(1, 2, 7, 9), scale_factor=1.3, mode="bilinear", recompute_scale_factor=True
    ),
    "interpolate nearest": lambda t: F.interpolate(t(1, 2, 7, 9), scale_factor=(0.7, 2.3)),
    "interpolate nearest-exact": lambda t: F.interpolate(
        t(1, 2, 10, 9), scale_factor=0.6, mode="nearest-exact"
    ),
    "interpolate bicubic": lambda t: F.interpolate(
        t(1, 2, 7, 9), size=(5, 13), mode="bicubic", align_corners=True
    ),
    "interpolate area": lambda t: F.interpolate(t(1, 2, 7, 9), scale_factor=0.7, mode="area"),
    "interpolate antialias": lambda t: F.interpolate(
        t(1, 2, 7, 9), scale_factor=0.7, mode="bilinear", antialias=True
    ),
    "interpolate linear": lambda t: F.interpolate(t(1, 2, 70), scale_factor=3.7, mode="linear"),
    "interpolate trilinear": lambda t: F.interpolate(
        t(1, 2, 3, 4, 5), scale_factor=1.7, mode="trilinear"
    ),
    "conv2d groups dilation": lambda t: F.conv2d(
        t(2, 4, 9, 9), t(8, 2, 3, 3), t(8), 2, 1, (2, 1), 2
    ),
    "conv2d same": lambda t: F.conv2d(t(2, 4, 9, 9), t(8, 4, 3, 2), padding="same"),
    "conv1d": lambda t: F.conv1d(t(2, 4, 19), t(8, 1, 3), groups=4, dilation=3),
    "conv3d": lambda t: F.conv3d(t(1, 2, 5, 5, 5), t(4, 2, 2, 3, 1), stride=(1, 2, 1)),
    "conv_transpose2d": lambda t: F.conv_transpose2d(
        t(2, 4, 5, 5), t(4, 3, 3, 3), stride=2, padding=1, output_padding=1, groups=2, dilation=2
    ),
    "max_pool2d ceil": lambda t: F.max_pool2d(t(1, 2, 7, 7), 3, 2, 1, 1, ceil_mode=True),
    "max_pool2d dilation": lambda t: F.max_pool2d(
        t(1, 2, 9, 9), 2, 2, dilation=3, return_indices=True
    ),
    "avg_pool2d ceil": lambda t: F.avg_pool2d(t(1, 2, 7, 7), 3, 2, 1, True, False),
    "avg_pool2d divisor": lambda t: F.avg_pool2d(t(1, 2, 7, 7), 3, divisor_override=7),
    "lp_pool2d": lambda t: F.lp_pool2d(t(1, 2, 7, 7), 1.5, 3, ceil_mode=True),
    "pad reflect": lambda t: F.pad(t(1, 2, 7, 7), (3, 2, 1, 0), "reflect"),
    "pad circular": lambda t: F.pad(t(1, 2, 7, 7), (3, 2, 1, 0), "circular"),
    "pad replicate": lambda t: F.pad(t(1, 2, 7, 7), (3, 2, 1, 0), "replicate"),
    "pad constant": lambda t: F.pad(t(1, 2, 7, 7), (3, -2, 1, -1), value=0.1),
    "unfold": lambda t: F.unfold(t(1, 2, 7, 7), 3, 2, 1, 2),
    "fold": lambda t: F.fold(t(1, 18, 9), (7, 7), 3, 1, 0, 2),
    "grid_sample": lambda t: F.grid_sample(
        t(1, 2, 7, 7), t(1, 5, 5, 2), "bicubic", "reflection", align_corners=True
    ),
    "grid_sample 3d": lambda t: F.grid_sample(
        t(2, 3, 5, 6, 7).detach(), t(2, 9, 9, 9, 3).detach() / 2, "bilinear", align_corners=False
    ),
    "affine_grid": lambda t: F.affine_grid(t(2, 2, 3), [2, 3, 5, 5], align_corners=True),
    "cross_entropy": lambda t: F.cross_entropy(
        t(6, 5), torch.tensor([0, 1, -100, 3, 4, 2]), t(5).detach().abs(), label_smoothing=0.1
    ),
    "cross_entropy sum": lambda t: F.cross_entropy(
        t(6, 5, 2), torch.full((6, 2), 3), reduction="sum", ignore_index=3
    ),
    "nll_loss": lambda t: F.nll_loss(t(6, 5), torch.tensor([0, 1, 2, 3, 4, 2]), ignore_index=2),
    "kl_div": lambda t: F.kl_div(t(6, 5), t(6, 5), reduction="batchmean", log_target=True),
    "smooth_l1": lambda t: F.smooth_l1_loss(t(6, 50), t(6, 50), beta=0.1),
    "huber": lambda t: F.huber_loss(t(6, 50), t(6, 50), delta=0.1),
    "gaussian_nll": lambda t: F.gaussian_nll_loss(t(6, 5), t(6, 5), t(6, 5).detach().abs()),
    "poisson_nll": lambda t: F.poisson_nll_loss(t(6, 5), t(6, 5).detach().abs(), full=True),
    "soft_margin overflows": lambda t: F.soft_margin_loss(t(40) * 8, t(40).detach().sign()),
    "triplet": lambda t: F.triplet_margin_loss(t(6, 5), t(6, 5), t(6, 5), p=1.5, swap=True),
    "cosine_embedding": lambda t: F.cosine_embedding_loss(
        t(6, 5), t(6, 5), torch.tensor([1, -1, 1, 1, -1, 1])
    ),
    "var": lambda t: t(4, 5, 6).var((-1, 0), correction=0),
    "std correction": lambda t: torch.std(t(4, 5, 6), -2, correction=2.5, keepdim=True),
    "var of one": lambda t: torch.var(t(4, 2), 1, correction=1),
    "sum empty": lambda t: torch.sum(t(0, 5), 0),
    "mean empty": lambda t: torch.mean(t(0, 5)),
    "prod empty": lambda t: torch.prod(t(4, 0), -1),
    "logsumexp": lambda t: torch.logsumexp(t(4, 5) * 50, (-1, 0)),
    "softmax 0-d": lambda t: F.softmax(t(), -1),
    "cumsum 0-d": lambda t: torch.cumsum(t(), 0),
    "sort 0-d": lambda t: torch.sort(t()),
    "median even": lambda t: torch.median(t(4, 6), -1, keepdim=True),
    "quantile": lambda t: torch.quantile(t(40).float(), 0.3, interpolation="midpoint"),
    "topk": lambda t: torch.topk(t(4, 6), 3, -2, largest=False),
    "cat empty": lambda t: torch.cat([t(0), t(3, 4), t(2, 4)]),
    "matmul empty": lambda t: t(3, 0) @ t(0, 4),
    "matmul 1-d": lambda t: torch.matmul(t(4), t(2, 4, 3)),
    "addmm beta": lambda t: torch.addmm(t(3, 4), t(3, 5), t(5, 4), beta=0.1, alpha=0.7),
    "baddbmm": lambda t: torch.baddbmm(t(1, 3, 4), t(2, 3, 5), t(2, 5, 4), beta=0, alpha=0.7),
    "layer_norm": lambda t: F.layer_norm(t(4, 5, 6) * 1e-3, (5, 6), eps=1e-12),
    "batch_norm": lambda t: F.batch_norm(
        t(4, 3, 5), torch.zeros(3), torch.ones(3), training=True, momentum=0.3
    ),
    "group_norm": lambda t: F.group_norm(t(4, 6, 5), 3, t(6), eps=0.1),
    "local_response_norm": lambda t: F.local_response_norm(t(2, 6, 5), 3, alpha=0.1, k=2.0),
    "instance_norm": lambda t: F.instance_norm(t(2, 3, 7), weight=t(3)),
    "gelu tanh": lambda t: F.gelu(t(4, 50), approximate="tanh"),
    "elu": lambda t: F.elu(t(4, 50), 0.7),
    "celu": lambda t: F.celu(t(4, 50), 0.7),
    "softplus": lambda t: F.softplus(t(4, 50) * 10, 0.7, 5),
    "leaky_relu": lambda t: F.leaky_relu(t(4, 50), 0.1),
    "hardtanh": lambda t: F.hardtanh(t(4, 50), -0.1, 0.3),
    "attention": lambda t: F.scaled_dot_product_attention(
        t(1, 4, 5, 8), t(1, 2, 5, 8), t(1, 2, 5, 8), is_causal=True, scale=0.3, enable_gqa=True
    ),
    "embedding": lambda t: F.embedding(torch.tensor([[0, 1], [1, 1]]), t(4, 3), padding_idx=-1),
    "embedding max_norm": lambda t: F.embedding(
        torch.tensor([0, 1, 1]), t(4, 3).detach(), max_norm=0.7
    ),
    "embedding_bag": lambda t: F.embedding_bag(
        torch.tensor([0, 1, 1, 2]), t(4, 3), torch.tensor([0, 0, 3]), mode="mean"
    ),
    "ctc": lambda t: F.ctc_loss(
        t(9, 2, 5).float().log_softmax(-1), torch.ones(2, 3, dtype=torch.long), (9, 8), (3, 2)
    ),
    "index_put repeated": lambda t: torch.zeros_like(t(5)).index_put_(
        (torch.arange(64) % 3,), t(64).detach(), accumulate=True
    ),
    "put repeated": lambda t: torch.zeros_like(t(5)).put(
        torch.arange(256) % 3, t(256).detach(), accumulate=True
    ),
    "index_add": lambda t: t(5).index_add(0, torch.arange(64) % 3, t(64), alpha=0.7),
    "scatter_add": lambda t: t(5).scatter_add(0, torch.arange(64) % 3, t(64)),
    "scatter_reduce": lambda t: t(5).scatter_reduce(
        0, torch.arange(64) % 3, t(64), "mean", include_self=False
    ),
    "masked_scatter": lambda t: t(4, 5).masked_scatter(torch.eye(4, 5) > 0, t(4)),
    "segment_reduce": lambda t: torch.segment_reduce(
        t(9, 2).float(), "max", lengths=torch.tensor([2, 0, 4, 3])
    ),
    "repeat_interleave": lambda t: t(3, 2).repeat_interleave(torch.tensor([2, 0, 3]), 0),
    "tensor": lambda t: torch.tensor([0.1, 2.0], dtype=None) * t(2),
    "tensor of int": lambda t: torch.tensor([1, 2], dtype=int),
    "tensor of float": lambda t: torch.tensor([1, 2], dtype=float),
    "infinite": lambda t: torch.exp(t(3).detach().abs() * 0 + 1e4),
    "division by zero": lambda t: t(3) / 0.0,
    "log of zero": lambda t: torch.log(torch.zeros_like(t(3))),
    "arange": lambda t: torch.arange(0.0, 1.0, 0.1, dtype=t(1).dtype),
    "linspace": lambda t: torch.linspace(0.1, 0.7, 9, dtype=t(1).dtype),
    "roll": lambda t: torch.roll(t(3, 4), (1, -2), (0, -1)),
    "diff": lambda t: torch.diff(t(3, 9), n=2, dim=-1, prepend=t(3, 1)),
    "cdist": lambda t: torch.cdist(t(3, 4).float(), t(5, 4).float(), p=1.5),
    "bucketize": lambda t: torch.bucketize(t(9).detach(), torch.tensor([-0.1, 0.1]).to(t(1).dtype)),
    "histc": lambda t: torch.histc(t(90).detach().float(), 7, -1, 1),
    "einsum": lambda t: torch.einsum("bij,bkj->ik", t(2, 3, 4), t(2, 5, 4)),
    "fft": lambda t: torch.fft.rfft(t(9).float(), n=12, norm="ortho"),
    "stft": lambda t: torch.stft(t(90).float(), 16, 5, window=torch.hann_window(16), return_complex=True),
    "complex": lambda t: torch.complex(t(3).float(), t(3).float()).abs(),
    "angle": lambda t: torch.angle(torch.complex(t(3).float(), t(3).float())),
    "copysign": lambda t: torch.copysign(t(9), -0.0),
    "round decimals": lambda t: torch.round(t(90), decimals=2),
    "logit eps": lambda t: torch.logit(t(90), eps=0.1),
    "xlogy": lambda t: torch.xlogy(t(9), 0.1),
    "float_power": lambda t: torch.float_power(t(9).abs(), 0.3),
    "ldexp": lambda t: torch.ldexp(t(9), torch.tensor(3)),
    "hypot": lambda t: torch.hypot(t(9), t(9)),
    "dist": lambda t: torch.dist(t(9), t(9), 1.5),
    "sum dtype": lambda t: t(90).sum(dtype=torch.float32),
    "softmax dtype": lambda t: F.softmax(t(9), -1, dtype=torch.float32),
}  # fmt: skip


def of_op_db(patterns: Sequence[str], samples: int) -> Iterator[OddCall]:
    """Make so many samples of each operator and dtype, spread over all that torch has."""
    for op in operators_of_torch():
        is_left_out = any(fnmatch(op.name, each) for each in _LEFT_OUT.split())
        if is_left_out or not any(fnmatch(op.name, each) for each in patterns):
            continue
        for name in DTYPES:
            dtype = getattr(torch, name)
            if dtype in op.supported_dtypes("cpu"):
                yield from _samples(op, dtype, samples)


def _samples(op: Any, dtype: torch.dtype, samples: int) -> Iterator[OddCall]:
    derives = dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
    torch.manual_seed(0)
    found, error = caught(lambda: list(op.sample_inputs("cpu", dtype, requires_grad=derives)))
    if found is None:  # a helper of torch's tests that lacks an optional package
        print(f"no samples: {op.name} in {dtype}: {error}", file=sys.stderr)
        return
    chosen = sorted({round(i) for i in np.linspace(0, len(found) - 1, min(samples, len(found)))})
    for at in chosen:
        label = f"{op.name} {str(dtype).removeprefix('torch.')} sample {at} of {len(found)}"
        sample = found[at]
        yield OddCall(label, lambda sample=sample: _called(op, sample), derives)
    in_place = getattr(torch.Tensor, f"{op.name}_", None)
    if in_place is not None and found and torch.is_tensor(found[0].input):
        first = found[0]
        yield OddCall(
            f"{op.name}_ {dtype}",
            lambda: in_place(first.input.detach().clone(), *first.args, **first.kwargs),
        )


def _called(op: Any, sample: Any) -> Any:
    """Call an operator through its public name, which alone is captured; else as torch's tests do."""
    home: Any = torch
    for part in op.name.split("."):
        home = getattr(home, part, None)
    function = home or getattr(torch.Tensor, op.name, None)
    try:
        return function(sample.input, *sample.args, **sample.kwargs)
    except TypeError:
        return op.op(sample.input, *sample.args, **sample.kwargs)


def _run(call: OddCall) -> bool:
    """Make a call, and derive its outputs by one; return whether torch took it."""
    torch.manual_seed(1)

    def run() -> None:
        outputs = call.run()
        if call.derives:
            leaves = [outputs] if torch.is_tensor(outputs) else list(outputs or ())
            leaves = [x for x in leaves if torch.is_tensor(x) and x.grad_fn is not None]
            if leaves:
                torch.autograd.backward(leaves, [torch.randn_like(x) for x in leaves])

    _, error = caught(run)
    if error is not None:  # what torch refuses is no call
        print(f"refused: {call.label}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
    return error is None


@dataclass(slots=True)
class OddRecords:
    """How many calls torch took, how many records they have, and the messages of those that do not pass."""

    calls: int = 0
    records: int = 0
    accused: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def examined(calls: Sequence[OddCall], task: str, folder: Path) -> OddRecords:
    """Capture the calls in one dump and check it; return how many torch took, and what was found."""
    with Capture(folder, task=task, step_by="manual", stacks=False, framework="pytorch"):
        taken = sum(map(_run, calls))
    (path,) = folder.glob("step0/*/dump.json")
    found = checked_dump(path, "auto")
    return OddRecords(taken, found["calls"], found["accused"], found["skipped"])


def reason(message: str) -> str:
    """Return the reason of a SKIP without names and numbers."""
    return re.sub(r"\d+", "N", message.partition(": ")[2])[:110]
