"""The table of references for torch's own functions that are not simply run in float64.

Named by the registry. Every other function of torch is its own reference.
"""

from typing import Any

import numpy as np
import torch

from ray_precheck.frameworks.pytorch.signatures import Row, rows
from ray_precheck.schema.result import Uncompared

_WORKSPACE = tuple(
    Uncompared(f"{what}, which the kernel keeps for its backward pass")
    for what in ("offset2bag", "bag_size", "max_indices")
)


def embedding_bag(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return the sums, means or maxima of bags; the kernel's other outputs depend on the dtype."""
    return (torch.embedding_bag(*args, **kwargs)[0], *_WORKSPACE)


def unscale(
    gradients: list[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor
) -> list[torch.Tensor]:
    """Divide gradients by the loss scale in place; found_inf becomes 1 where one is not finite."""
    for gradient in gradients:
        if not bool(gradient.isfinite().all()):
            found_inf.fill_(1)
        gradient.mul_(inv_scale)
    return gradients


def update_scale(
    scale: torch.Tensor,
    tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> torch.Tensor:
    """Let a loss scale grow in place after `interval` steps without infinity, or back off."""
    if bool(found_inf):
        tracker.zero_()
        return scale.mul_(backoff)
    tracker += 1
    if int(tracker) == interval:
        tracker.zero_()
        # The scale itself is of float32, and stays where it would become infinite.
        if bool((scale * growth).float().isfinite()):
            scale.mul_(growth)
    return scale


def interpolate(x: torch.Tensor, mode: str = "nearest", **given: Any) -> torch.Tensor:
    """Resize images; the nearest pixel is found in float32, in which torch's kernels compute its place."""
    if mode not in ("nearest", "nearest-exact"):
        return torch.nn.functional.interpolate(x, mode=mode, **given)
    # What the arguments mean is asked of float64's kernel, for the shape alone.
    shape = torch.nn.functional.interpolate(x.detach(), mode=mode, **given).shape
    factors = None if given.get("recompute_scale_factor") else given.get("scale_factor")
    for dim in range(2, x.dim()):
        factor = factors[dim - 2] if isinstance(factors, tuple | list) else factors
        x = x.index_select(dim, _nearest(x.shape[dim], shape[dim], factor, mode))
    return x


def _nearest(extent: int, out: int, factor: float | None, mode: str) -> torch.Tensor:
    """Return the places of the nearest pixels, `(out,)` int64 (torch 2.13,
    ATen/native/cpu/UpSampleKernel.cpp)."""
    scale = np.float32(1.0 / factor) if factor else np.float32(extent) / np.float32(out)
    half = 0.5 if mode == "nearest-exact" else 0.0
    # As fused multiply-add rounds it: once, after the subtraction.
    source = ((np.arange(out) + half) * np.float64(scale) - half).astype(np.float32)
    found = source + np.float32(half)
    return torch.from_numpy(np.minimum(np.floor(found).astype(np.int64), extent - 1))


def nextafter(
    input: torch.Tensor, other: torch.Tensor, dtype: str, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the numbers of a dtype that are next to those of `input`, towards `other`."""
    # torch's own for its place in the graph, which has no derivative; its values are those of float64.
    result = torch.nextafter(input, other, out=out)
    result.data.copy_(_next_of_dtype(input.detach(), other.detach(), getattr(torch, dtype)))
    return result


def nextafter_(input: torch.Tensor, other: torch.Tensor, dtype: str) -> torch.Tensor:
    """Do the same in place."""
    found = _next_of_dtype(input.detach(), other.detach(), getattr(torch, dtype))
    input.detach().copy_(found)
    return input.detach()  # there is no derivative


def _next_of_dtype(input: torch.Tensor, other: torch.Tensor, narrow: torch.dtype) -> torch.Tensor:
    shape = (input + other).shape
    x, towards = input.to(narrow).expand(shape), other.to(narrow).expand(shape)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[narrow.itemsize]
    # The magnitudes of floats are in the order of their bits.
    away = torch.where((towards > x) == (x > 0), 1, -1).to(whole)
    moved = (x.contiguous().view(whole) + away).view(narrow)
    least = torch.ones_like(x, dtype=whole).view(narrow).copysign(towards)
    moved = torch.where(x == 0, least, moved)
    moved = torch.where(x.isnan() | towards.isnan(), torch.nan, moved)
    return torch.where(x == towards, towards, moved)


TORCH_ROWS: dict[str, tuple[Row, ...]] = {
    "Torch.embedding_bag": rows(
        embedding_bag,
        "weight indices offsets scale_grad_by_freq mode sparse per_sample_weights"
        " include_last_offset padding_idx",
    ),
    **dict.fromkeys(
        ("Functional.interpolate", "Functional.upsample"),
        rows(
            interpolate,
            "input size scale_factor mode align_corners recompute_scale_factor antialias",
            "input size scale_factor mode align_corners",
        ),
    ),
    **dict.fromkeys(
        ("Torch.nextafter", "Tensor.nextafter"), rows(nextafter, "input other dtype out")
    ),
    "Tensor.nextafter_": rows(nextafter_, "self other dtype"),
    "Torch._amp_foreach_non_finite_check_and_unscale_": rows(
        unscale, "self>gradients found_inf inv_scale"
    ),
    "Torch._amp_update_scale_": rows(
        update_scale,
        "self>scale growth_tracker>tracker found_inf scale_growth_factor>growth"
        " scale_backoff_factor>backoff growth_interval>interval",
    ),
}
