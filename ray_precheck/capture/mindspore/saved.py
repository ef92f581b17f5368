"""What MindSpore says of values that a script saves by name.

Comes in: tensors and plain values. Goes out: their JSON, files of tensors, and gradients when they arrive.
Made by the debugger for each step in which `save` is called.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms

from ray_precheck.capture.mindspore.elements import MindSporeElements
from ray_precheck.capture.mindspore.tensors import MindSporeTensors
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.writing.log import TENSORS


class SavedMindSporeTensors:
    """The tensors of one step."""

    framework = "mindspore"
    tensor = ms.Tensor

    def __init__(self, settings: CaptureSettings, folder: Path) -> None:
        self._is_saved = settings.saves_tensors
        self._texts = MindSporeTensors(settings, folder / TENSORS)
        self._elements = MindSporeElements(self._tensor)
        self._handles: list[Any] = []

    def text(self, value: Any, place: str) -> str:
        """Return a value as JSON."""
        return self._elements.one(value, place)

    def on_gradient(self, tensor: ms.Tensor, take: Callable[[ms.Tensor], None]) -> None:
        """Let `take` have the gradient of a tensor; a tensor that gets none never calls it."""
        self._handles.append(tensor.register_hook(take))

    def close(self) -> None:
        """Take the hooks away; those of parameters would stay for all steps."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _tensor(self, tensor: ms.Tensor, place: str) -> str:
        return self._texts.text(tensor, place, is_saved=self._is_saved)
