"""The sketch and the health of a torch tensor, computed on its own device.

Comes in: a dense tensor, and where its values begin in the whole tensor. Goes out: small tensors on the
same device, which the caller copies to the host when the step is over, so that nothing waits for the device
inside a step; `buckets_of` and `health_from` read the copies. Called for each tensor of a capture with
sketches that is on an accelerator; on the CPU `numerics.sketch` does it in less time.

The map from an index to bucket and sign is that of `sketch`. Products are made by multiplying and
adding, never by a matrix product, because devices compute those in TF32 or HF32. The sums are float32, so
equal tensors on two kinds of devices have sketches that differ by some 1e-7 of their norm.
"""

from functools import lru_cache

import numpy as np
import torch

from ray_precheck.numerics.arrays import smallest_normal
from ray_precheck.numerics.sketch import (
    BLOCK,
    BUCKETS,
    GROUPS,
    ROW,
    ROWS,
    Array,
    fixed_signs,
    rotations,
    row_signs,
)
from ray_precheck.numerics.statistics import (
    Health,
    headroom,
    largest_finite,
)

# Blocks whose tables are made at a time: 2 million elements; a table has 1 MB, most of it places.
_TABLE = 256
_CHUNK = _TABLE * BLOCK
# Values are multiplied by a power of two where the largest is beyond 2^100 or below 2^-80, so that sums of
# float32 hold them. For float64 there are steps: the largest beyond 2^300 is divided by 2^400.
_STEPS = {torch.float64: (100, 300, 500, 700, 900)}
_MARGIN, _LEAST = 100, 80


def device_sketch(
    tensor: torch.Tensor, start: int = 0, largest: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the sketch of a contiguous range of elements, `(65,)` float32 on the tensor's device.

    The tensor is taken in row-major order; `start` is the global index of its first element. NaN and
    infinity count as 0, a complex value as two elements. `largest` is the largest absolute value of the
    finite ones, a tensor of no dimensions, if it is known. The last of the 65 values is the exponent of
    the power of two by which the buckets must be multiplied. Nothing waits for the device.
    """
    flat, parts = _real_values(tensor)
    start *= parts
    total = torch.zeros(BUCKETS, dtype=torch.float32, device=flat.device)
    if not flat.numel():
        return torch.cat([total, total[:1]])
    factor, exponent = _scale(flat, largest if parts == 1 else None)
    end = start + flat.numel()
    for chunk in range(start // _CHUNK, -(-end // _CHUNK)):
        lower, upper = max(start, chunk * _CHUNK), min(end, (chunk + 1) * _CHUNK)
        piece = flat[lower - start : upper - start]
        if factor is not None:
            piece = torch.nan_to_num(piece, nan=0.0, posinf=0.0, neginf=0.0) * factor
        total = total + _sketch_chunk(piece.float(), chunk, lower - chunk * _CHUNK)
    return torch.cat([total, exponent])


def buckets_of(copied: Array) -> Array:
    """Return the sketch that a result of `device_sketch` holds, `(64,)` float64."""
    wide = copied.astype(np.float64)
    return np.ldexp(wide[:BUCKETS], int(wide[BUCKETS]))


def device_health(tensor: torch.Tensor) -> torch.Tensor:
    """Return the counts of NaN, +inf, -inf, zero and subnormal and the largest finite absolute value.

    They are `(6,)` float64 on the CPU and CUDA, where counts are exact; elsewhere `(6,)` float32 (an NPU
    has no float64), exact up to 16,777,216. Integers have zeros only. Nothing waits for the device.
    """
    flat, _ = _real_values(tensor)
    wide = torch.float64 if flat.device.type in ("cpu", "cuda") else torch.float32
    if not flat.is_floating_point() or not flat.numel():
        zero = (flat == 0).sum()
        return torch.stack([_none(zero)] * 3 + [zero] + [_none(zero)] * 2).to(wide)
    sizes = flat.abs()
    small = (sizes < smallest_normal(str(flat.dtype)[6:])).sum()
    zero = (flat == 0).sum()
    counts = [(flat != flat).sum(), (flat == torch.inf).sum(), (flat == -torch.inf).sum()]
    values = [*counts, zero, small - zero, _finite(sizes).amax()]
    return torch.stack([value.to(wide) for value in values])


def health_from(copied: Array, dtype: str) -> Health:
    """Return the health that a result of `device_health` holds; `dtype` is the tensor's ("bfloat16")."""
    nan, positive, negative, zero, subnormal = (int(count) for count in copied[:5])
    limit = largest_finite(dtype)
    room = None if limit is None else headroom(float(copied[5]), limit)
    return Health(nan, positive, negative, zero, subnormal, room)


def _none(count: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(count)


def _real_values(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a tensor's values as a real vector in row-major order, and how many each value has."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj()).reshape(-1), 2
    return tensor.resolve_neg().reshape(-1), 1


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _scale(
    flat: torch.Tensor, largest: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the power of two to multiply by (None for integers), and the exponent that undoes it."""
    if not flat.is_floating_point():
        return None, torch.zeros(1, dtype=torch.float32, device=flat.device)
    if flat.dtype is torch.float16:  # its sums fit
        one = torch.ones((), dtype=flat.dtype, device=flat.device)
        return one, torch.zeros(1, dtype=torch.float32, device=flat.device)
    if largest is None:
        largest = _finite(flat.abs()).amax()
    factor = torch.ones_like(largest)
    exponent = torch.zeros_like(largest)
    for limit in _STEPS.get(flat.dtype, (_MARGIN,)):
        shift = limit + _MARGIN if flat.dtype is torch.float64 else _MARGIN
        for found, power in (
            (largest >= 2.0**limit, shift),
            ((largest > 0) & (largest < 2.0 ** (_MARGIN - _LEAST - limit)), -shift),
        ):
            factor = torch.where(found, 2.0**-power, factor)
            exponent = torch.where(found, float(power), exponent)
    return factor.to(flat.dtype), exponent.to(torch.float32).reshape(1)


def _sketch_chunk(piece: torch.Tensor, chunk: int, offset: int) -> torch.Tensor:
    """Return the sketch of float32 values that begin at an offset in a chunk of 256 blocks."""
    signs, places = _tables(chunk, piece.device)
    first, last = offset // BLOCK, -(-(offset + piece.numel()) // BLOCK)
    before = offset - first * BLOCK
    after = (last - first) * BLOCK - before - piece.numel()
    if before or after:
        piece = torch.nn.functional.pad(piece, (before, after))
    products = piece.view(-1, BLOCK) * _fixed_signs(piece.device)
    rows = products.view(-1, ROWS, ROW).mul_(signs[first:last, :, None]).sum(1)
    slots = torch.nn.functional.pad(rows, (0, GROUPS * BUCKETS - ROW))
    return torch.gather(slots, 1, places[first:last]).view(-1, BUCKETS).sum(0)


@lru_cache(maxsize=8)
def _fixed_signs(device: torch.device) -> torch.Tensor:
    return torch.tensor(fixed_signs(), device=device)


@lru_cache(maxsize=32)
def _tables(chunk: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the signs of a chunk's rows, `(256, 16)`, and which column is in each bucket, `(256, 512)`."""
    blocks = np.arange(chunk * _TABLE, (chunk + 1) * _TABLE, dtype=np.int64)
    signs = torch.tensor(row_signs(blocks), device=device)
    rotated = torch.tensor(rotations(blocks), device=device)
    places = (torch.arange(BUCKETS, device=device) - rotated[:, :, None]) % BUCKETS
    columns = places + BUCKETS * torch.arange(GROUPS, device=device)[:, None]
    return signs, columns.reshape(_TABLE, GROUPS * BUCKETS)
