"""Captures in the script itself, by a context manager.

Comes in: arguments of `Capture`. Goes out: a running session. Called by users, as
`ray_precheck.capture.Capture` and `ray_precheck.capture.step`.
"""

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

from ray_precheck.capture.account import closing_sentence
from ray_precheck.capture.probe import Probe
from ray_precheck.capture.recording.scope import Scope
from ray_precheck.capture.session import Session, raised, say
from ray_precheck.capture.settings import BY_HAND, CaptureSettings, capture_settings
from ray_precheck.capture.writing.claim import require_own
from ray_precheck.capture.writing.elements import FrameworkValues
from ray_precheck.descriptors.descriptor import (
    Capturing,
    Framework,
    added_frameworks,
    built_in_frameworks,
    find_framework,
    is_framework,
    load_part,
)
from ray_precheck.errors import UsageError

_running: list[Session] = []


class Capture:
    """Captures the steps of a training, as a context manager.

        with Capture("dump", steps="0-2") as capture:
            for batch in loader:
                train(batch)          # a step ends with the step of the optimizer

    `level` is L1 (calls), L0 (modules) or mix (both), `task` statistics, tensor or structure. `steps` is a
    number, a text such as "0-2,5" or an iterable of numbers; all by default. `step_by` says what ends a
    step: the first optimizer's `step` (optimizer), the next call of the model (forward), or
    `capture.step()` (manual). `model` gives modules their names at L0 and mix; without it the module that
    is called first is the model. The other arguments are the fields of `CaptureSettings`.

    Raises:
        UsageError: an argument is wrong, or `path` cannot be a folder of these captures.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        model: Any = None,
        framework: str = "",
        **settings: Any,
    ) -> None:
        chosen = capture_settings(path=path, **settings)
        Scope(chosen.scope, chosen.chosen)
        require_models(model)
        probe = find_probe(framework or framework_behind(model))
        require_own(chosen, probe.framework)
        self._session = Session(chosen, probe, models=model)

    @property
    def captured(self) -> list[Path]:
        """The folders of the steps that are finished."""
        return list(self._session.captured)

    def step(self) -> None:
        """End a step.

        Raises:
            UsageError: something else ends the steps of this capture.
        """
        how = self._session.settings.step_by
        if how != BY_HAND:
            raise UsageError(
                f"the steps of this capture end by the {how}; give Capture"
                " step_by='manual' to end them with step()"
            )
        self._session.step()

    def start(self) -> "Capture":
        """Begin to capture; `with` does it, too.

        Raises:
            UsageError: another capture is running.
        """
        begin_running(self._session)
        self._session.start()
        atexit.register(self._stop_at_exit)
        return self

    def _stop_at_exit(self) -> None:
        self._stop(raised(getattr(sys, "last_value", None)))

    def stop(self) -> None:
        """End the capture and write the step that is open; say what came of it."""
        self._stop("")

    def _stop(self, cut_short: str) -> None:
        session = self._session
        if session not in _running:
            return
        _running.remove(session)
        atexit.unregister(self._stop_at_exit)
        session.stop(cut_short)
        account = session.account
        text = closing_sentence(session.settings, [account])
        if not account.failure:  # which was told when it happened
            say(text)

    def __enter__(self) -> "Capture":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(raised(error))


def begin_running(session: Session) -> None:
    """Take note of a session that `step` ends the steps of.

    Raises:
        UsageError: another one is running.
    """
    if _running:
        raise UsageError("another capture is running in this process; stop it first")
    _running.append(session)


def stop_with_child(session: Session) -> None:
    """Stop a session at the end of a child of multiprocessing, which ends without atexit."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(session, session.stop, exitpriority=0)


def step() -> None:
    """End a step of the capture that is running, for scripts that call no optimizer.

    Does nothing where nothing is captured, and where something else ends the steps, so that a script may
    keep the call.
    """
    for session in _running:
        if session.settings.step_by == BY_HAND:
            session.step()


def find_probe(framework: str) -> Probe:
    """Return the probe of a framework; of the one that is imported already where none is named.

    Raises:
        UsageError: none is imported, or the name is unknown.
    """
    probe: Probe = load_part(capturing_of(framework or _imported()).probe)()
    return probe


def capturing_of(framework: str) -> Capturing:
    """Return how a framework is captured.

    Raises:
        UsageError: it is not known, or cannot be captured.
    """
    found = find_framework(framework).capturing if is_framework(framework) else None
    if found is None:
        names = " or ".join(each.name for each in captured_frameworks())
        raise UsageError(f"framework is {framework!r}; expected {names}")
    return found


def captured_frameworks() -> Iterator[Framework]:
    """Yield the frameworks that can be captured, those of this package first, PyTorch before MindSpore."""
    for each in chain(reversed(built_in_frameworks()), added_frameworks()):
        if each.capturing is not None:
            yield each


def framework_behind(model: Any) -> str:
    """Return the framework of a model, "" where there is no model."""
    models = model if isinstance(model, list | tuple) else [model]
    roots = [kind.__module__.partition(".")[0] for each in models for kind in type(each).__mro__]
    if {*roots} == {"builtins"}:
        return ""
    packages = {each.package: each.name for each in captured_frameworks()}
    return next((packages[root] for root in roots if root in packages), "")


def require_models(model: Any) -> None:
    """Require that an argument is a model, a list of models, or None.

    Raises:
        UsageError: it is none of them.
    """
    for each in model if isinstance(model, list | tuple) else [model]:
        if each is not None and not framework_behind(each):
            kinds = ", a ".join(
                found.capturing.model for found in captured_frameworks() if found.capturing
            )
            raise UsageError(
                f"model is a {type(each).__name__}; expected a {kinds}, or a list of them"
            )


def find_saved_tensors(framework: str) -> Callable[[CaptureSettings, Path], FrameworkValues]:
    """Return what a framework says of values that a script saves by name."""
    found: Callable[[CaptureSettings, Path], FrameworkValues]
    found = load_part(capturing_of(framework).saved_values)
    return found


def _imported() -> str:
    captured = list(captured_frameworks())
    found = [each.name for each in captured if each.package in sys.modules]
    if len(found) != 1:
        problem = "both are imported" if found else "neither is imported yet"
        raise UsageError(
            f"the framework of a capture is {' or '.join(each.title for each in captured)}, and {problem};"
            f" name it: framework={' or '.join(repr(each.name) for each in captured)}"
        )
    return found[0]
