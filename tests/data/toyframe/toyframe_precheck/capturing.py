"""Toyframe, as a capture sees it: each operator is replaced by one that is recorded."""

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import toyframe

from ray_precheck.capture.recording.scope import Scope
from ray_precheck.capture.settings import CaptureSettings


class ToyStep:
    """The records of one step."""

    dark = None

    def __init__(self, settings: CaptureSettings, folder: Path) -> None:
        self.scope = Scope(settings.scope, settings.chosen)
        self._folder = folder
        self._level = settings.level
        self._data: dict[str, Any] = {}
        self._is_on = True

    @property
    def records(self) -> int:
        return len(self._data)

    def record(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if self._is_on:
            number = sum(key.startswith(f"Toy.{name}.") for key in self._data)
            self._data[f"Toy.{name}.{number}.forward"] = {
                "input_args": [_described(each) for each in args],
                "input_kwargs": {key: _described(each) for key, each in kwargs.items()},
                "output": [_described(out)],
            }

    def pause(self) -> None:
        self._is_on = False

    def resume(self) -> None:
        self._is_on = True

    def finish(self, cut_short: str = "") -> None:
        self._is_on = False
        header = {"task": "statistics", "level": self._level, "framework": "toyframe"}
        text = json.dumps({**header, "dump_data_dir": None, "data": self._data})
        (self._folder / "dump.json").write_text(text)

    def abandon(self) -> None:
        self._is_on = False


class ToyProbe:
    """Toyframe in this process. It has no models and no optimizers: its first operator begins a step."""

    framework = "toyframe"
    why_unseen = ""

    def __init__(self) -> None:
        self._step: ToyStep | None = None
        self._on_forward: Callable[[], None] = lambda: None

    def rank(self) -> int | None:
        return None

    def is_loader(self) -> bool:
        return False

    def watch_steps(self, on_step: Callable[[], None], on_forward: Callable[[], None]) -> None:
        self._on_forward = on_forward
        for name, function in toyframe.OPERATORS.items():
            setattr(toyframe, name, self._recorded(name, function))

    def unwatch_steps(self) -> None:
        for name, function in toyframe.OPERATORS.items():
            setattr(toyframe, name, function)

    def begin(
        self,
        settings: CaptureSettings,
        folder: Path,
        models: Any,
        on_failure: Callable[[str], None],
    ) -> ToyStep:
        self._step = ToyStep(settings, folder)
        return self._step

    def _recorded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            self._on_forward()
            out = function(*args, **kwargs)
            if self._step is not None:
                self._step.record(name, args, kwargs, out)
            return out

        return recorded


def _described(value: Any) -> dict[str, Any]:
    if not isinstance(value, toyframe.Tensor):
        return {"type": type(value).__name__, "value": value}
    array = value.values
    return {
        "type": "toyframe.Tensor",
        "dtype": array.dtype.str[1:],
        "shape": list(array.shape),
        "Max": float(array.max()),
        "Min": float(array.min()),
        "Mean": float(array.mean()),
        "Norm": float((array.astype(float) ** 2).sum() ** 0.5),
    }
