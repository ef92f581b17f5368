"""The beginning of a capture in one process of a script.

Comes in: what the command put into the environment, when a framework was imported. Goes out: a session that
waits, of a capture or of a step that is verified. Called by `start.sitecustomize`, in training ranks, in
launchers, and in helpers that only import a framework.
"""

from typing import Any

from ray_precheck.capture.capturing import find_probe
from ray_precheck.capture.process import RUNNING, Running
from ray_precheck.capture.session import say
from ray_precheck.foreign import caught


def begin(framework: str, found: dict[str, Any]) -> None:
    """Wait for the first call of a model; `found` has what `launch.environment` put there: the settings, the
    folder of notes, and the time when the command began. A fault is one sentence, and the script goes on."""
    if framework in RUNNING:
        return
    _, error = caught(lambda: _begin(framework, found))
    if error is not None:
        say(f"{framework} cannot be captured, {type(error).__name__}: {error}; the script goes on")


def _begin(framework: str, found: dict[str, Any]) -> None:
    if "verify" in found:
        from ray_precheck.capture.verifying.process import Tracing

        running: Running = Tracing(framework, found)
    else:
        running = Running(found, find_probe(framework))
    RUNNING[framework] = running
    running.begin()
