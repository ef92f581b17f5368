"""The sketch and the health of each tensor of a record.

Comes in: tensors. Goes out: the fields of an element that name the row of its sketch in `sketches.npy` and
count what is unusual about its values. Called by the recorder of a capture with sketches.

A sketch is keyed by the place in the whole tensor, so the part of a DTensor is sketched at the places that
its placement gives it: the sketches of all parts add up to that of the whole.

On an accelerator both are computed there, as small tensors that travel to the host later, so that nothing
waits for the device inside a step; on the CPU `numerics.sketch` does it in less time. The map from an index
to bucket and sign is that of `sketch_map`. Products are made by multiplying and adding, never by a matrix
product, because devices compute those in TF32 or HF32. The sums are float32, so equal tensors on two kinds of
devices have sketches that differ by some 1e-7 of their norm.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ray_precheck.capture.pytorch.tensors.memory import (
    Glimpse,
    SeenTensors,
    array_of,
    first_address,
    glimpse_of,
)
from ray_precheck.capture.pytorch.tensors.sums import KINDS
from ray_precheck.capture.pytorch.tensors.values import WITHOUT_VALUES, DeviceValues, host_summary
from ray_precheck.capture.recording.measures import (
    Placing,
    local_part,
    sketch_part,
)
from ray_precheck.capture.writing.elements import health_field, statistics_text
from ray_precheck.dump.tensors import SketchFile
from ray_precheck.numerics.arrays import smallest_normal
from ray_precheck.numerics.everything import Everything, everything
from ray_precheck.numerics.one_pass import EndsAndSums
from ray_precheck.numerics.sketch import (
    BLOCK,
    BUCKETS,
    GROUPS,
    ROW,
    ROWS,
    Array,
    fixed_signs,
    is_summed_unscaled,
    rotations,
    row_signs,
    sketch,
)
from ray_precheck.numerics.statistics import (
    Health,
    TensorSummary,
    headroom,
    health_of,
    largest_finite,
)

# Blocks whose tables are made at a time: 2 million elements; a table has 1 MB, most of it places.
_TABLE = 256
_CHUNK = _TABLE * BLOCK
# Values are multiplied by a power of two where the largest is beyond 2^100 or below 2^-80, so that sums of
# float32 hold them. For float64 there are steps: the largest beyond 2^300 is divided by 2^400.
_STEPS = {torch.float64: (100, 300, 500, 700, 900)}
_MARGIN, _LEAST = 100, 80
# The names of dtypes by the numbers that the extension has for them.
_NAMES = {kind: str(dtype)[6:] for dtype, kind in KINDS.items()}
_NO_SUMS = EndsAndSums(0.0, 0.0, 0.0, 0.0)


class Sketching:
    """Writes sketches, those of the same tensor once."""

    def __init__(
        self,
        file: SketchFile,
        device: DeviceValues,
        glimpse: Callable[[torch.Tensor], Glimpse] = glimpse_of,
    ) -> None:
        self._file = file
        self._device = device
        self.seen = SeenTensors(self._dense, ordered=True, glimpse=glimpse)
        # The tensor that was looked at last, and what was found in it.
        self._last: tuple[torch.Tensor, Everything | TensorSummary | None] | None = None

    def summary(self, tensor: torch.Tensor) -> TensorSummary | None:
        """Return the statistics of a tensor on the CPU, whose `fields` may be asked for next."""
        found = _everything_in(tensor)
        if found is None:
            summary = host_summary(tensor)
            self._last = tensor, summary
            return summary
        self._last = tensor, found
        top, bottom, total, squares = found.sums
        if not tensor.dim():
            return TensorSummary.of_single(top)
        return TensorSummary(top, bottom, total / tensor.numel(), math.sqrt(squares))

    def look(self, tensor: torch.Tensor) -> str:
        """Return the statistics of a tensor on the CPU, and behind a zero byte its fields."""
        summary = statistics_text(self.summary(tensor))
        more = self._of_host(tensor)
        self._last = None  # its memory may be given back
        return f"{summary}\0{more}"

    def take(
        self,
        kind: int,
        largest_finite: float,
        below: int,
        zero: int,
        nan: int,
        positive: int,
        negative: int,
        largest: float,
        row: bytes,
    ) -> str | None:
        """Return the fields of a tensor in which the extension has found these numbers of an `Everything`,
        and a sketch, 64 float32 with the largest absolute one before rounding; None where it must be
        scaled."""
        if nan or positive or negative or not is_summed_unscaled(largest_finite):
            return None
        sketched = self._file.append_row(row, largest)
        if sketched is None or not below:
            return sketched and f", {sketched}"
        found = Everything(_NO_SUMS, below, zero, nan, positive, negative, largest_finite, None)
        return f", {sketched}{health_field(found.health(_NAMES[kind]))}"

    def fields(self, tensor: torch.Tensor, dense: torch.Tensor | None) -> str:
        """Return the fields of a tensor whose values are `dense`, with a comma in front; "" for none."""
        if dense is None or dense.dtype in WITHOUT_VALUES or not dense.numel():
            return ""
        if type(tensor).__name__ == "DTensor":
            return self._sharded(tensor, dense)
        found = self.seen.of(dense)
        self._last = None  # its memory may be given back
        return found

    def _dense(self, tensor: torch.Tensor) -> str:
        if tensor.is_cpu:
            return self._of_host(tensor)
        dtype = str(tensor.dtype)[6:]
        tensor = tensor.detach()
        row = self._device.later(device_sketch(tensor), self._row)
        health = self._device.later(
            device_health(tensor),
            lambda numbers: health_field(health_from(np.array(numbers), dtype)),
        )
        return row + health

    def _of_host(self, tensor: torch.Tensor) -> str:
        last = self._last
        found = last[1] if last and last[0] is tensor else None
        if not isinstance(found, Everything) and tensor.dtype in KINDS:
            found = _everything_in(tensor.detach().contiguous()) or found
        if isinstance(found, Everything):
            buckets = found.buckets
            if buckets is None:
                buckets = sketch(host_values(tensor)[0], 0, found.largest)
            if found.is_usual:
                return self._written(buckets, "")
            return self._written(buckets, health_field(found.health(str(tensor.dtype)[6:])))
        values, dtype = host_values(tensor)
        if values.dtype.kind != "f":
            return self._written(sketch(values), health_field(health_of(values, dtype)))
        ends: Any = (values.max(), values.min()) if found is None else found[:2]
        high, low = float(ends[0]), float(ends[1])
        health = health_field(health_of(values, dtype, high, low))
        largest = math.nan if math.isnan(high) else max(high, -low)
        return self._written(sketch(values, 0, largest), health)

    def _sharded(self, tensor: Any, dense: torch.Tensor) -> str:
        """Return the fields of the local part of a DTensor, whose values travel to the host here.

        A part that several processes hold says so on all but the first, so that a sum takes it once.
        """
        values, dtype = host_values(dense.cpu())
        health = health_field(health_of(values, dtype))
        mesh = tensor.device_mesh
        coordinate = mesh.get_coordinate()
        placings = [_placing(placement) for placement in tensor.placements]
        try:
            part = local_part(tuple(tensor.shape), tuple(mesh.shape), coordinate or (), placings)
        except ValueError:  # a sum that is not made yet, or a mesh without this process
            return health
        again = "" if part.counted else ', "sketch_counted": false'
        sketched = sketch_part(values, tuple(tensor.shape), part.offsets)
        return self._written(sketched, health) + again

    def _row(self, numbers: list[Any]) -> str:
        return f", {self._file.append(buckets_of(np.array(numbers)))}"

    def _written(self, buckets: Any, health: str) -> str:
        return f", {self._file.append(buckets)}{health}"


def _everything_in(tensor: torch.Tensor) -> Everything | None:
    """Return what one pass finds in a contiguous tensor on the CPU; None where there is no such pass."""
    if tensor.dtype not in KINDS or not tensor.numel():
        return None
    if not tensor.is_contiguous() or tensor.is_neg():
        return None
    return everything(first_address(tensor), tensor.numel(), KINDS[tensor.dtype])


def host_values(tensor: torch.Tensor) -> tuple[np.ndarray[Any, Any], str]:
    """Return the values of a tensor on the CPU, halves widened to float32, and its own dtype's name."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    name = str(tensor.dtype)[6:]
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    elif tensor.dtype is torch.complex32:
        tensor = tensor.to(torch.complex64)
    return array_of(tensor), name


def _placing(placement: Any) -> Placing:
    """Return what `local_part` is told of a placement: the dimension of a shard, None for a replica, else its
    name."""
    if type(placement).__name__ == "Shard":
        return int(placement.dim)
    return None if placement.is_replicate() else str(placement)


def device_sketch(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sketch of a tensor, `(65,)` float32 on its device.

    The tensor is taken in row-major order. NaN and infinity count as 0, a complex value as two elements. The
    last of the 65 values is the exponent of the power of two by which the buckets must be multiplied. Nothing
    waits for the device.
    """
    flat = _real_values(tensor)
    total = torch.zeros(BUCKETS, dtype=torch.float32, device=flat.device)
    if not flat.numel():
        return torch.cat([total, total[:1]])
    factor, exponent = _scale(flat)
    for chunk, piece in enumerate(torch.split(flat, _CHUNK)):
        scaled = piece if factor is None else _finite(piece) * factor
        total = total + _sketch_chunk(scaled.float(), chunk)
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
    flat = _real_values(tensor)
    wide = torch.float64 if flat.device.type in ("cpu", "cuda") else torch.float32
    if not flat.is_floating_point() or not flat.numel():
        zero = (flat == 0).sum()
        none = torch.zeros_like(zero)
        return torch.stack([none, none, none, zero, none, none]).to(wide)
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


def _real_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values as a real vector in row-major order."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj()).reshape(-1)
    return tensor.resolve_neg().reshape(-1)


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _scale(flat: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the power of two to multiply by (None for integers), and the exponent that undoes it."""
    if not flat.is_floating_point():
        return None, torch.zeros(1, dtype=torch.float32, device=flat.device)
    if flat.dtype is torch.float16:  # its sums fit
        one = torch.ones((), dtype=flat.dtype, device=flat.device)
        return one, torch.zeros(1, dtype=torch.float32, device=flat.device)
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


def _sketch_chunk(piece: torch.Tensor, chunk: int) -> torch.Tensor:
    """Return the sketch of the float32 values of a chunk of 256 blocks, of which the last may be shorter."""
    signs, places = _tables(chunk, piece.device)
    blocks = -(-piece.numel() // BLOCK)
    if piece.numel() < blocks * BLOCK:
        piece = torch.nn.functional.pad(piece, (0, blocks * BLOCK - piece.numel()))
    products = piece.view(-1, BLOCK) * _fixed_signs(piece.device)
    rows = products.view(-1, ROWS, ROW).mul_(signs[:blocks, :, None]).sum(1)
    slots = torch.nn.functional.pad(rows, (0, GROUPS * BUCKETS - ROW))
    return torch.gather(slots, 1, places[:blocks]).view(-1, BUCKETS).sum(0)


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
