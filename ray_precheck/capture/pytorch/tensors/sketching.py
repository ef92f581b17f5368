"""The sketch and the health of each tensor of a record.

Comes in: tensors. Goes out: the fields of an element that name the row of its sketch in `sketches.npy` and
count what is unusual about its values. Called by the recorder of a capture with sketches.

A sketch is keyed by the place in the whole tensor, so the part of a DTensor is sketched at the places that
its placement gives it: the sketches of all parts add up to that of the whole.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ray_precheck.capture.pytorch.tensors.device_values import DeviceValues
from ray_precheck.capture.pytorch.tensors.glimpse import Glimpse, glimpse_of
from ray_precheck.capture.pytorch.tensors.memory import array_of
from ray_precheck.capture.pytorch.tensors.seen import SeenTensors
from ray_precheck.capture.pytorch.tensors.sketch import (
    buckets_of,
    device_health,
    device_sketch,
    health_from,
)
from ray_precheck.capture.pytorch.tensors.summary import WITHOUT_VALUES
from ray_precheck.capture.writing.elements import health_text
from ray_precheck.capture.writing.shards import PartsDoNotAddUp, Placing, local_part, sketch_part
from ray_precheck.dump.sketches import SketchFile
from ray_precheck.numerics.sketch import sketch
from ray_precheck.numerics.statistics import TensorSummary, health_of


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
        self._ends: tuple[torch.Tensor | None, tuple[float, float] | None] = None, None

    def note(self, tensor: torch.Tensor, summary: TensorSummary | None) -> None:
        """Take the statistics of a tensor of floats, whose `fields` may be asked for next."""
        if summary is not None and tensor.is_floating_point():
            self._ends = tensor, (summary.max, summary.min)  # type: ignore[assignment]

    def fields(self, tensor: torch.Tensor, dense: torch.Tensor | None) -> str:
        """Return the fields of a tensor whose values are `dense`, with a comma in front; "" for none."""
        if dense is None or dense.dtype in WITHOUT_VALUES or not dense.numel():
            return ""
        if type(tensor).__name__ == "DTensor":
            return self._sharded(tensor, dense)
        found = self.seen.of(dense)
        self._ends = None, None  # its memory may be given back
        return found

    def _dense(self, tensor: torch.Tensor) -> str:
        if tensor.is_cpu:
            return self._of_host(tensor)
        dtype = str(tensor.dtype)[6:]
        tensor = tensor.detach()
        row = self._device.later(device_sketch(tensor), self._row)
        health = self._device.later(
            device_health(tensor),
            lambda numbers: _health_field(health_text(health_from(np.array(numbers), dtype))),
        )
        return row + health

    def _of_host(self, tensor: torch.Tensor) -> str:
        values, dtype = host_values(tensor)
        if values.dtype.kind != "f":
            return self._written(sketch(values), health_text(health_of(values, dtype)))
        ends = self._ends[1] if self._ends[0] is tensor else None
        high, low = ends or (float(values.max()), float(values.min()))
        largest = math.nan if math.isnan(high) else max(high, -low)
        health = health_text(health_of(values, dtype, high, low))
        return self._written(sketch(values, 0, largest), health)

    def _sharded(self, tensor: Any, dense: torch.Tensor) -> str:
        """Return the fields of the local part of a DTensor, whose values travel to the host here.

        A part that several processes hold says so on all but the first, so that a sum takes it once.
        """
        values, dtype = host_values(dense.cpu())
        health = health_text(health_of(values, dtype))
        mesh = tensor.device_mesh
        coordinate = mesh.get_coordinate()
        placings = [_placing(placement) for placement in tensor.placements]
        try:
            part = local_part(tuple(tensor.shape), tuple(mesh.shape), coordinate or (), placings)
        except (
            PartsDoNotAddUp,
            ValueError,
        ):  # a sum that is not made yet, or a mesh without this process
            return _health_field(health)
        again = "" if part.counted else ', "sketch_counted": false'
        sketched = sketch_part(values, tuple(tensor.shape), part.offsets)
        return self._written(sketched, health) + again

    def _row(self, numbers: list[Any]) -> str:
        return f", {self._file.append(buckets_of(np.array(numbers)))}"

    def _written(self, buckets: Any, health: str | None) -> str:
        return f", {self._file.append(buckets)}{_health_field(health)}"


def host_values(tensor: torch.Tensor) -> tuple[np.ndarray[Any, Any], str]:
    """Return the values of a tensor on the CPU, halves widened to float32, and its own dtype's name."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    name = str(tensor.dtype)[6:]
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    elif tensor.dtype is torch.complex32:
        tensor = tensor.to(torch.complex64)
    return array_of(tensor), name


def _health_field(text: str | None) -> str:
    return f', "health": {text}' if text else ""


def _placing(placement: Any) -> Placing:
    """Return a placement in the words of `shards`: the dimension of a shard, None for a replica, else
    its name."""
    if type(placement).__name__ == "Shard":
        return int(placement.dim)
    return None if placement.is_replicate() else str(placement)
