"""What PyTorch says of values that a script saves by name.

Comes in: tensors and plain values. Goes out: their JSON, files of tensors, and gradients when they arrive.
Made by the debugger for each step in which `save` is called.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ray_precheck.capture.pytorch.elements import Elements
from ray_precheck.capture.pytorch.tensors.files import CapturedFiles
from ray_precheck.capture.pytorch.tensors.text import TensorTexts
from ray_precheck.capture.pytorch.tensors.values import sliced, values_look
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.writing.log import TENSORS
from ray_precheck.capture.writing.text import quoted


class SavedTorchTensors:
    """The tensors of one step."""

    framework = "pytorch"
    tensor = torch.Tensor

    def __init__(self, settings: CaptureSettings, folder: Path) -> None:
        self._settings = settings
        self._texts = TensorTexts(values_look(settings.summary_mode)[0])
        self._elements = Elements(self._tensor)
        self._files = CapturedFiles(folder / TENSORS) if settings.saves_tensors else None

    def text(self, value: Any, place: str) -> str:
        """Return a value as JSON."""
        return self._elements.one(value, place)

    def on_gradient(self, tensor: torch.Tensor, take: Callable[[torch.Tensor], None]) -> None:
        """Let `take` have the gradient of a tensor that requires one."""
        if tensor.requires_grad:
            tensor.register_hook(take)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Leave the hooks where they are: what arrives later is written nowhere."""

    def _tensor(self, tensor: torch.Tensor, place: str) -> str:
        if self._settings.slices:
            tensor = sliced(tensor, self._settings.slices)
        fields = self._texts.fields(tensor)
        dense = self._texts.dense(tensor) if self._files is not None else None
        dense = self._texts.saved(tensor, dense)
        if self._files is None or dense is None:
            return f"{{{fields}}}"
        return f'{{{fields}, "data_name": {quoted(self._files.save(dense, place))}}}'
