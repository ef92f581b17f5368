"""Values that a script saves by name, as `PrecisionDebugger.save` of msprobe's level `debug`.

Comes in: tensors and plain values, also in lists and dicts. Goes out: debug.json in the folder of the step,
with the gradients that arrived until its end, and files of tensors where the task is `tensor`.

    {"task": .., "level": "debug", "framework": "pytorch", "dump_data_dir": ..,
     "data": {"x.0.debug": {..}, "x_grad.0.debug": {..}}}
"""

import itertools
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
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

DEBUG_FILE = "debug.json"


class SavedValues:
    """Collects the values of one step."""

    def __init__(self, settings: CaptureSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._texts = TensorTexts(values_look(settings.summary_mode)[0])
        self._elements = Elements(self._tensor)
        self._files = CapturedFiles(folder / TENSORS) if settings.saves_tensors else None
        self._counts: dict[str, Iterator[int]] = defaultdict(itertools.count)
        self._data: dict[str, Any] = {}

    def save(self, value: Any, name: str, save_backward: bool) -> None:
        """Take a value under a name, whose calls are counted, and wait for its gradients."""
        number = next(self._counts[name])
        key, gradient_key = f"{name}.{number}.debug", f"{name}_grad.{number}.debug"
        self._data[key] = json.loads(self._elements.one(value, key))
        if save_backward:
            self._data[gradient_key] = self._waiting(
                value, gradient_key, _setter(self._data, gradient_key)
            )

    def _waiting(self, value: Any, place: str, put: Callable[[Any], None]) -> Any:
        """Return a value with null for each tensor, which `put` replaces when its gradient arrives."""
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                value.register_hook(  # type: ignore[no-untyped-call]
                    lambda gradient: put(self._gradient(gradient, place))
                )
            return None
        if isinstance(value, dict):
            named: dict[str, Any] = {}
            for key, each in value.items():
                inner = self._waiting(each, f"{place}.{key}", _setter(named, str(key)))
                named[str(key)] = inner
            return named
        if isinstance(value, list | tuple):
            listed: list[Any] = [None] * len(value)
            for index, each in enumerate(value):
                listed[index] = self._waiting(each, f"{place}.{index}", _setter(listed, index))
            return listed
        return None

    def _gradient(self, gradient: torch.Tensor, place: str) -> Any:
        return json.loads(self._elements.one(gradient, place))

    def _tensor(self, tensor: torch.Tensor, place: str) -> str:
        if self._settings.slices:
            tensor = sliced(tensor, self._settings.slices)
        fields = self._texts.fields(tensor)
        dense = self._texts.dense(tensor) if self._files is not None else None
        if self._files is None or dense is None:
            return f"{{{fields}}}"
        return f'{{{fields}, "data_name": {quoted(self._files.save(dense, place))}}}'

    def finish(self) -> None:
        """Write debug.json, which appears as a whole."""
        folder = str((self._folder / TENSORS).absolute()) if self._settings.saves_tensors else None
        header = {
            "task": self._settings.task,
            "level": "debug",
            "framework": "pytorch",
            "dump_data_dir": folder,
        }
        part = self._folder / f"{DEBUG_FILE}.part"
        part.write_text(
            json.dumps({**header, "data": self._data}, indent=1) + "\n", encoding="utf-8"
        )
        os.replace(part, self._folder / DEBUG_FILE)


def _setter(holder: Any, index: str | int) -> Callable[[Any], None]:
    def put(found: Any) -> None:
        holder[index] = found

    return put
