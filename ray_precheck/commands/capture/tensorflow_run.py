"""A script of TensorFlow that runs as it would alone, with TensorFlow's debugger turned on.

Comes in: the words of a command, the folder, and what is kept of tensors. Goes out: the exit code of the
script, and one sentence about what was captured. Called by the command `capture --framework tensorflow`.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ray_precheck.capture.launch import (
    end_by,
    environment,
    program_of,
    run_program,
)
from ray_precheck.capture.process import started
from ray_precheck.capture.settings import STATISTICS, STRUCTURE, TENSOR, CaptureSettings
from ray_precheck.errors import UsageError

# What TensorFlow's debugger calls what is kept. FULL_HEALTH counts NaN and infinities.
MODES = {TENSOR: "FULL_TENSOR", STATISTICS: "FULL_HEALTH", STRUCTURE: "NO_TENSOR"}
_EVENTS = "tfdbg_events.*"


def run_with_debugger(
    words: Sequence[str],
    folder: Path,
    task: str,
    tell: Callable[[str], None],
    *,
    v1: bool = False,
) -> int:
    """Run a script until its end, tell what was captured, and return its exit code. With `v1` the debugging
    sessions of v1 that wait for a user write their tensors into the folder instead.

    Raises:
        UsageError: there is no such program or script, or the folder holds something else.
    """
    program = program_of(words)
    folder = folder.absolute()
    _clear(folder)
    with tempfile.TemporaryDirectory(prefix="ray_precheck_capture_") as notes:
        settings = CaptureSettings(path=folder)
        variables = environment(
            settings,
            Path(notes),
            time.time(),
            {"tensorflow": "tensorflow"},
            folder=str(folder),
            mode=MODES[task],
            v1=v1,
        )
        status = run_program([program, *words[1:]], variables)
        has_started = bool(started(Path(notes)))
    tell(_sentence(folder, has_started))
    return status if status >= 0 else end_by(-status)


def _clear(folder: Path) -> None:
    """Remove the event files of an earlier capture.

    Raises:
        UsageError: the folder holds something else, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        earlier = [*folder.glob(_EVENTS), *folder.glob(f"proc*/{_EVENTS}")]
        others = {each.name for each in folder.iterdir()} - {
            each.relative_to(folder).parts[0] for each in earlier
        }
        if others:
            raise UsageError(
                f"{folder} holds {min(others)}, which is no file of TensorFlow's debugger; name a folder of"
                " its own with -o"
            )
        for each in earlier:
            each.unlink()
    except OSError as error:
        raise UsageError(f"-o {folder} cannot be used: {error.strerror or error}") from None


def _sentence(folder: Path, has_started: bool) -> str:
    """Return the sentence about what was captured."""
    files = [*folder.glob(_EVENTS), *folder.glob(f"proc*/{_EVENTS}")]
    if not files:
        why = (
            "no Python of the script imported TensorFlow"
            if has_started
            else "no Python was started that looks at PYTHONPATH (its options -S, -I and -E keep the capture"
            " out)"
        )
        return f"nothing was captured: {why}"
    size = sum(each.stat().st_size for each in files)
    folders = sorted({str(each.parent) for each in files})
    return f"{size / 1e6:.1f} MB of TensorFlow's debugger in {', '.join(folders)}; compare -tp reads it"
