"""Values that a script saves by name, as `PrecisionDebugger.save` of msprobe's level `debug`.

Comes in: tensors and plain values, also in lists and dicts. Goes out: debug.json in the folder of the step,
with the gradients that arrived until its end, and files of tensors where the task is `tensor`. Called by the
debugger; what is said of a tensor is said by its framework.

    {"task": .., "level": "debug", "framework": "pytorch", "dump_data_dir": ..,
     "data": {"x.0.debug": {..}, "x_grad.0.debug": {..}}}
"""

import itertools
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.writing.elements import PlainElements
from ray_precheck.capture.writing.log import TENSORS

DEBUG_FILE = "debug.json"


class FrameworkValues:
    """What a framework says of saved values; `elements` writes them."""

    framework: ClassVar[str]
    elements: PlainElements

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def text(self, value: Any, place: str) -> str:
        """Return a value as JSON; the files of its tensors have names that begin with `place`."""
        return self.elements.one(value, place)

    def on_gradient(self, tensor: Any, take: Callable[[Any], None]) -> None:
        """Let `take` have the gradient of a tensor when it arrives; where none does it is never called."""
        self._handles.append(tensor.register_hook(take))

    def close(self) -> None:
        """Wait for no gradient any more; hooks of parameters would stay for all steps."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class SavedValues:
    """Collects the values of one step."""

    def __init__(self, settings: CaptureSettings, folder: Path, tensors: FrameworkValues) -> None:
        self._settings = settings
        self._folder = folder
        self._tensors = tensors
        self._counts: dict[str, Iterator[int]] = defaultdict(itertools.count)
        self._data: dict[str, Any] = {}

    def save(self, value: Any, name: str, save_backward: bool) -> None:
        """Take a value under a name, whose calls are counted, and wait for its gradients."""
        number = next(self._counts[name])
        key, gradient_key = f"{name}.{number}.debug", f"{name}_grad.{number}.debug"
        self._data[key] = self._read(value, key)
        if save_backward:
            self._data[gradient_key] = self._waiting(
                value, gradient_key, _setter(self._data, gradient_key)
            )

    def _waiting(self, value: Any, place: str, put: Callable[[Any], None]) -> Any:
        """Return a value with null for each tensor, which `put` replaces when its gradient arrives."""
        if isinstance(value, self._tensors.elements.tensor):
            self._tensors.on_gradient(value, lambda gradient: put(self._read(gradient, place)))
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

    def _read(self, value: Any, place: str) -> Any:
        return json.loads(self._tensors.text(value, place))

    def finish(self) -> None:
        """Write debug.json, which appears as a whole."""
        self._tensors.close()
        folder = str((self._folder / TENSORS).absolute()) if self._settings.saves_tensors else None
        header = {
            "task": self._settings.task,
            "level": "debug",
            "framework": self._tensors.framework,
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
