"""Captures under msprobe's name: the import changes, and the script stays.

    from ray_precheck.capture import PrecisionDebugger    # was: from msprobe.pytorch import ..

Comes in: a config.json of msprobe and calls of `start`, `stop` and `step`. Goes out: the dumps. Called by
scripts. As with msprobe there is one debugger in a process, whose constructor does nothing the second time,
and its methods are called on the class or on the object.
"""

import atexit
import functools
import itertools
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ray_precheck.capture.account import entries_without_a_call
from ray_precheck.capture.capturing import (
    find_probe,
    find_saved_tensors,
    framework_behind,
    require_models,
)
from ray_precheck.capture.msprobe_config import DebuggerConfig, read_config
from ray_precheck.capture.recording.recorder import CallName, SeenCall
from ray_precheck.capture.session import Session, say
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.writing.elements import FrameworkValues
from ray_precheck.capture.writing.log import TENSORS
from ray_precheck.errors import UsageError
from ray_precheck.options.declared import ranges_of

# The file is looked at again after this time: while capturing, and while `dump_enable` is false.
_INTERVAL_S, _INTERVAL_OFF_S = 0.5, 3.0
_DEBUG_FILE = "debug.json"


class PrecisionDebugger:
    """Captures what runs between `start` and `stop`; `step` ends a step.

    `framework`, "pytorch" or "mindspore", is needed where both are imported and `start` is given no model.

    Raises:
        UsageError: the configuration has a wrong key or value.
    """

    _instance: ClassVar["PrecisionDebugger | None"] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> "PrecisionDebugger":
        """Return the one debugger of the process."""
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __init__(
        self,
        config_path: str | None = None,
        task: str | None = None,
        dump_path: str | None = None,
        level: str | None = None,
        step: list[int | str] | None = None,
        *,
        framework: str = "",
    ) -> None:
        if hasattr(self, "_config"):
            return
        try:
            self._config = read_config(config_path, task, dump_path, level, step)
        except UsageError:
            type(self)._instance = None
            raise
        self._framework = framework
        self._path = config_path
        self._given = (task, dump_path, level, step)
        self._changed = self._signature()
        self._looked = time.monotonic()
        self._session: Session | None = None
        self._saver: _SavedValues | None = None
        self._is_running = False
        self._starts = 0
        self._custom: dict[tuple[int, str], Any] = {}
        self._tokens: Any = None
        for notice in self._config.notices:
            say(notice)

    @classmethod
    def start(
        cls,
        model: Any = None,
        token_range: Any = None,
        rank_id: int | None = None,
        scheduled_tokens: Any = None,
    ) -> None:
        """Record calls from here on.

        `model` is the model, or a list of models, whose modules have records at L0 and mix. With
        `token_range` [first, last] only these calls of the model are recorded, from 0 on. `rank_id` is the
        rank where the process has none of torch.distributed. `scheduled_tokens` has no meaning here.

        Raises:
            UsageError: there is no debugger yet, or an argument is wrong.
        """
        self = cls._get()
        self._look_again()
        if self._config.enabled is False:
            return
        require_models(model)
        session = self._opened(model)
        if rank_id is not None:
            session.rank = _require_number("rank_id", rank_id)
        if model is not None:
            session.models = model
        self._starts += 1
        self._is_running = True
        if self._config.is_debug:
            return
        if token_range is not None:
            self._count_tokens(model, token_range)
        elif not self._tokens:
            session.resume()

    @classmethod
    def stop(cls) -> None:
        """Record nothing until the next `start`, which goes on with the same step."""
        self = cls._get()
        self._is_running = False
        if self._session is not None:
            self._session.pause()
        if self._tokens is not None:
            self._tokens.remove()
            self._tokens = None
        self._look_again()

    forward_backward_dump_end = stop

    @classmethod
    def step(cls) -> None:
        """End the step, and write its dump."""
        self = cls._get()
        if self._session is not None:
            if self._saver is not None:
                self._saver.finish()
                self._saver = None
            self._session.end_step()
            if self._is_running and not self._config.is_debug:
                self._session.resume()
        self._look_again()

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Write a value into debug.json of the step, and its gradients; at the level `debug` alone."""
        self = cls._get()
        if not self._config.is_debug or self._config.enabled is False:
            return
        if not isinstance(name, str):
            raise UsageError(f"the name of a saved value is {name!r}; expected a text")
        session = self._opened(None)
        if self._saver is None:
            folder = session.claim_step()
            if folder is None:
                return
            tensors = find_saved_tensors(session.account.framework)
            self._saver = _SavedValues(session.settings, folder, tensors(session.settings, folder))
        self._saver.save(variable, name, save_backward)

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """Give the step that runs another number; the next ones count from there."""
        number = _require_number("the first step", step)
        cls._get()._opened(None).number = number

    @classmethod
    def register_custom_api(cls, module: Any, api: str, api_prefix: str | None = None) -> None:
        """Record the calls of a function `module.api` of the script, as `{api_prefix}.{api}`."""
        self = cls._get()
        original = _attribute(module, api)
        prefix = str(api_prefix or getattr(module, "__name__", "Custom"))
        self._custom.setdefault((id(module), api), original)

        @functools.wraps(original)  # by which ms.jit finds the function that it is to compile
        def recorded(*args: Any, **kwargs: Any) -> Any:
            opened = self._session.open_step if self._session is not None else None
            record: Callable[..., Any] | None = getattr(opened, "custom_call", None)
            if record is None:
                return original(*args, **kwargs)
            frame, run = sys._getframe(1), partial(original, *args, **kwargs)
            return record(SeenCall(CallName(prefix, api), frame, args, kwargs, run))

        setattr(module, api, recorded)

    @classmethod
    def restore_custom_api(cls, module: Any, api: str) -> None:
        """Take back `register_custom_api`."""
        self = cls._get()
        _attribute(module, api)
        original = self._custom.pop((id(module), api), None)
        if original is not None:
            setattr(module, api, original)

    @classmethod
    def _get(cls) -> "PrecisionDebugger":
        if cls._instance is None:
            raise UsageError(
                "there is no PrecisionDebugger yet; make one before its methods are used"
            )
        return cls._instance

    def _opened(self, model: Any) -> Session:
        if self._session is None:
            probe = find_probe(self._framework or framework_behind(model))
            self._session = Session(self._config.settings, probe, models=model)
            self._session.watch()
            atexit.register(self._close)
        return self._session

    def _close(self) -> None:
        """Write what is open at the end of the script, and say so if nothing was captured."""
        session = self._session
        if session is None or not session.is_ours:
            return
        if self._saver is not None:
            self._saver.finish()
            return
        session.stop_at_exit()
        account, steps = session.account, session.settings.steps
        if self._config.is_debug:  # what `save` writes is in no account
            return
        for text in entries_without_a_call([account]):
            say(text)
        if not account.captured and not account.removed and not account.failure:
            asked = f", step {ranges_of(steps)} was asked for" if steps is not None else ""
            say(
                f"nothing was captured: start() was called {self._starts} times, step()"
                f" {account.steps} times{asked}"
            )

    def _count_tokens(self, model: Any, token_range: Any) -> None:
        first, last = _token_range(token_range)
        root = model[0] if isinstance(model, list | tuple) and model else model
        if root is None or not hasattr(root, "register_forward_pre_hook"):
            raise UsageError(
                "token_range counts the calls of a model; give start(model=...) the model"
            )
        session, count = self._opened(model), 0

        def called(*_: Any) -> None:
            nonlocal count
            if first <= count <= last:
                session.resume()
            else:
                session.pause()
            count += 1

        if self._tokens is None:
            self._tokens = root.register_forward_pre_hook(called)

    def _signature(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path or "")
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def _look_again(self) -> None:
        """Read `dump_enable` again where the configuration has it and its file has changed."""
        interval = _INTERVAL_OFF_S if self._config.enabled is False else _INTERVAL_S
        if self._config.enabled is None or time.monotonic() - self._looked < interval:
            return
        self._looked = time.monotonic()
        changed = self._signature()
        if changed is None or changed == self._changed:
            return
        self._changed = changed
        try:
            found = read_config(self._path, *self._given)
        except UsageError as error:
            say(f"{error}; dump_enable counts as false until that is mended")
            self._enable(False)
            return
        if found.settings != self._config.settings:
            say(
                f"{self._path} has changed: dump_enable is read, its other values hold from the start"
            )
        if found.enabled is not None:
            self._enable(found.enabled)

    def _enable(self, enabled: bool) -> None:
        was = self._config
        self._config = DebuggerConfig(was.settings, enabled, was.is_debug, was.notices)
        if not enabled and self._session is not None:
            self._session.pause()


def _require_number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{name} is {value!r}; expected a number that is not negative")
    return value


def _token_range(found: Any) -> tuple[int, int]:
    is_pair = isinstance(found, list | tuple) and len(found) == 2
    if not is_pair or not all(type(each) is int for each in found) or found[0] > found[1]:
        raise UsageError(f"token_range is {found!r}; expected [first, last]")
    return found[0], found[1]


def _attribute(module: Any, name: str) -> Any:
    if not hasattr(module, name):
        raise UsageError(f"{getattr(module, '__name__', module)!s} has no {name}")
    return getattr(module, name)


class _SavedValues:
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
                value, gradient_key, partial(self._data.__setitem__, gradient_key)
            )

    def _waiting(self, value: Any, place: str, put: Callable[[Any], None]) -> Any:
        """Return a value with null for each tensor, which `put` replaces when its gradient arrives."""
        if isinstance(value, self._tensors.elements.tensor):
            self._tensors.on_gradient(value, lambda gradient: put(self._read(gradient, place)))
            return None
        if isinstance(value, dict):
            named: dict[str, Any] = {}
            for key, each in value.items():
                inner = self._waiting(each, f"{place}.{key}", partial(named.__setitem__, str(key)))
                named[str(key)] = inner
            return named
        if isinstance(value, list | tuple):
            listed: list[Any] = [None] * len(value)
            for index, each in enumerate(value):
                listed[index] = self._waiting(
                    each, f"{place}.{index}", partial(listed.__setitem__, index)
                )
            return listed
        return None

    def _read(self, value: Any, place: str) -> Any:
        return json.loads(self._tensors.elements.one(value, place))

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
        part = self._folder / f"{_DEBUG_FILE}.part"
        part.write_text(
            json.dumps({**header, "data": self._data}, indent=1) + "\n", encoding="utf-8"
        )
        os.replace(part, self._folder / _DEBUG_FILE)
