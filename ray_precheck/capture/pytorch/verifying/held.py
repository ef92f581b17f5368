"""Whether the dump holds what the tensors held, in a run that is verified.

Comes in: each tensor that the recorder writes, at the time when it writes it. Goes out: where the record or
the file says something else. Put around the recorder's elements by the tracing of a captured run.

Statistics are computed anew in float64, from a copy and without what is remembered of tensors; files are read
back when the step has ended.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import torch

from ray_precheck.capture.pytorch.elements import Elements
from ray_precheck.capture.pytorch.recorder import TorchRecorder
from ray_precheck.capture.pytorch.tensors.device_values import MARK
from ray_precheck.capture.pytorch.tensors.summary import WITHOUT_VALUES
from ray_precheck.capture.pytorch.tensors.values import sliced
from ray_precheck.capture.pytorch.verifying.digests import dense_of
from ray_precheck.capture.verifying.digests import Digests
from ray_precheck.capture.writing.log import TENSORS
from ray_precheck.foreign import caught
from ray_precheck.numerics.statistics import MAX, MEAN, MIN, NORM

# Sums of float32 are this exact, as shares of the root mean square and of the norm.
_OF_MEAN, _OF_NORM, _OF_SIZES = 1e-4, 1e-4, 1e-6


class HeldValues:
    """Compares what is written with what the tensors hold; `count` is the number of tensors."""

    def __init__(self, recorder: TorchRecorder, digests: Digests) -> None:
        self.count = 0
        self._recorder = recorder
        self._of = digests.of
        self._files = recorder.folder / TENSORS
        self._differences: list[str] = []
        self._digests: dict[str, tuple[str, str]] = {}
        self._write = recorder.elements.of_tensor
        recorder.elements = Elements(self._told)

    def differences(self) -> list[str]:
        """Return the places that say something else, after the step."""
        for name, (place, digest) in self._digests.items():
            saved, error = caught(lambda name=name: torch.load(self._files / name))  # type: ignore[misc]
            if error is not None or self._of(saved) != digest:
                self._differences.append(f"the file of {place}")
        self._digests.clear()
        return self._differences

    def _told(self, tensor: torch.Tensor, place: str) -> str:
        text = self._write(tensor, place)
        if self._recorder.settings.slices:
            tensor = sliced(tensor, self._recorder.settings.slices)
        dense = dense_of(tensor)
        if dense is None or MARK in text or not dense.numel() or dense.dtype in WITHOUT_VALUES:
            return text
        self.count += 1
        values = dense.detach().clone().resolve_conj().resolve_neg().cpu()
        element = json.loads(text)
        where = f"{self._recorder.place} {place}"
        wrong = [name for name, is_same in _compared(element, values) if not is_same]
        if wrong:
            self._differences.append(f"{' and '.join(wrong)} of {where}")
        if "data_name" in element:
            self._digests[element["data_name"]] = where, self._of(values)
        return text


def _compared(element: dict[str, Any], values: torch.Tensor) -> Iterator[tuple[str, bool]]:
    """Yield the name of each statistic that an element has, and whether it is that of the values."""
    slack = 0.0
    if values.is_complex():
        values, slack = values.to(torch.complex128).abs(), _OF_SIZES
    wide = values.to(torch.float64)
    norm = float(torch.linalg.vector_norm(wide))
    told = norm if wide.dim() else float(wide)  # a single number is all of its statistics
    expected = {
        MAX: (float(wide.max()), slack * norm),
        MIN: (float(wide.min()), slack * norm),
        MEAN: (float(wide.mean()), _OF_MEAN * norm / math.sqrt(wide.numel())),
        NORM: (told, _OF_NORM * norm),
    }
    for name, (value, room) in expected.items():
        found = element.get(name)
        if isinstance(found, bool | int | float | str):
            yield name, _is_same(float(found), value, room)


def _is_same(found: float, expected: float, slack: float) -> bool:
    if not (math.isfinite(found) and math.isfinite(expected)):
        return found == expected or (math.isnan(found) and math.isnan(expected))
    # The room is no number where the norm is infinite.
    return found == expected or abs(found - expected) <= slack
