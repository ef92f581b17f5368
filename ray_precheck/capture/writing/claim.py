"""The right of a capture to its folder: dumps of one configuration only, and none of an earlier run.

Comes in: the folder and the settings. Goes out: `capture.json` there, or an error that names what differs.
Called by the command before a script starts, and by each of its processes when its first step begins;
several may come at once, also from several machines, and each removes what it replaces itself.

    capture.json    {"framework": "pytorch", "settings": {"level": "L1", ..}}
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray_precheck.capture.settings import CaptureSettings, settings_to_json
from ray_precheck.capture.writing.log import LOG, open_locked
from ray_precheck.errors import UsageError
from ray_precheck.foreign import from_json, read_file
from ray_precheck.options.declared import ranges_of

CONFIGURATION = "capture.json"
# Where the dumps go, how many stay and what asks for them does not change what is in them.
_OTHERS = ("path", "max_bytes", "keep_steps", "watch", "triggers", "trigger_most")
# How often a folder is made that others remove meanwhile: at most once for each rank that begins with it.
_TRIES = 100


def require_own(settings: CaptureSettings, framework: str = "") -> None:
    """Require that a folder is empty, or has captures of these settings.

    Raises:
        UsageError: it has captures with other settings, or dumps of another tool.
    """
    known = _read(settings.path)
    foreign = None if known is not None else next(_step_folders(settings.path), None)
    if foreign is not None:
        # Another process of this capture may have claimed the folder and begun a step in between.
        known = _read(settings.path)
    if known is not None:
        _require_same(settings.path, known, _wanted(settings, framework))
    elif foreign is not None:
        raise UsageError(
            f"{settings.path} has dumps that no capture of this package made ({foreign.name});"
            " name another folder"
        )


def claim(settings: CaptureSettings, framework: str) -> None:
    """Write `capture.json`, or find that it says the same.

    Raises:
        UsageError: the folder has captures with other settings, or dumps of another tool.
        OSError: it cannot be written.
    """
    path, wanted = settings.path, _wanted(settings, framework)
    path.mkdir(parents=True, exist_ok=True)
    # Looked at before the file is made: another process that makes it first may add steps at once.
    had_steps = next(_step_folders(path), None) is not None
    if _create(path, wanted) and had_steps:
        (path / CONFIGURATION).unlink(missing_ok=True)
    require_own(settings, framework)


def _wanted(settings: CaptureSettings, framework: str) -> dict[str, Any]:
    found = settings_to_json(settings)
    kept = {name: value for name, value in found.items() if name not in _OTHERS}
    return {"framework": framework, "settings": kept}


def _create(path: Path, wanted: dict[str, Any]) -> bool:
    """Write the file where there is none; it appears as a whole."""
    handle, name = tempfile.mkstemp(prefix=f".{CONFIGURATION}.", dir=path)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(wanted, indent=1) + "\n")
        os.chmod(name, 0o640)
        try:
            os.link(name, path / CONFIGURATION)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            if (path / CONFIGURATION).exists():
                return False
            os.replace(name, path / CONFIGURATION)
        return True
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def _read(path: Path) -> dict[str, Any] | None:
    file = path / CONFIGURATION
    try:
        found = from_json(read_file(file))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise UsageError(
            f"{file} cannot be read: {error}; it says which capture the dumps are of; name another"
            " folder, or remove the file with the dumps"
        ) from None
    if not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
        raise UsageError(f"{file} was not written by a capture; name another folder")
    return found


def _require_same(path: Path, known: dict[str, Any], wanted: dict[str, Any]) -> None:
    differing = []
    if wanted["framework"] and known.get("framework") not in ("", wanted["framework"]):
        differing.append(f"framework {known.get('framework')} there, {wanted['framework']} here")
    there, here = known["settings"], wanted["settings"]
    for name in sorted({*there, *here}):
        if there.get(name) != here.get(name):
            differing.append(
                f"{name} {_shown(there.get(name))} there, {_shown(here.get(name))} here"
            )
    if differing:
        raise UsageError(
            f"{path} has captures of another configuration: {'; '.join(differing)}; name another"
            " folder, or remove that one"
        )


def _shown(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(each, int) for each in value):
        return ranges_of(value)
    if value is None or value == []:
        return "not given"
    return str(value)


def remove_earlier(path: Path, name: str, began: float) -> int:
    """Remove what an earlier run left of this process: folders older than `began`, seconds of the epoch.

    `name` is `rank{R}`, or `proc{PID}`, which stands for all processes without a rank. One that still lives
    belongs to this run, though it may have begun before this process: its folder stays. Returns how many were
    removed; steps that this run does not reach are among them.
    """
    pattern = name if name.startswith("rank") else "proc*"
    removed = 0
    for folder in earlier_dumps(path, began, pattern):
        if _is_written(folder) or _is_of_another(folder):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()
        removed += 1
    return removed


def _is_of_another(folder: Path) -> bool:
    """Return whether the folder of a process is that of another one of this machine, which lives."""
    number = folder.name.removeprefix("proc")
    if not number.isdigit() or int(number) == os.getpid():
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        pass
    return True


def new_folder(folder: Path) -> None:
    """Make the folder of a rank in a step anew.

    Other ranks remove the folder of the step where it is empty, perhaps between the two that are made here.

    Raises:
        OSError: it cannot be made.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for tries_left in reversed(range(_TRIES)):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            return
        except (FileNotFoundError, FileExistsError):
            if not tries_left:
                raise


def require_unwritten(folder: Path) -> None:
    """Require that no other process writes into the folder of a rank.

    Raises:
        UsageError: one does.
    """
    if _is_written(folder):
        raise UsageError(
            f"{folder} is being written by another process; end that first, or name another folder"
        )


def _is_written(folder: Path) -> bool:
    """Return whether a process holds the lock of the log in a folder."""
    try:
        os.close(open_locked(folder / LOG, os.O_RDONLY))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def earlier_dumps(path: Path, began: float, pattern: str = "*") -> list[Path]:
    """Return the folders of ranks and processes that were last changed before a time."""
    found = []
    for step in _step_folders(path):
        for folder in sorted(step.glob(pattern)):
            with suppress(OSError):
                if folder.is_dir() and folder.stat().st_mtime < began:
                    found.append(folder)
    return found


def _step_folders(path: Path) -> Iterator[Path]:
    """Yield the folders of steps, which begin with `step` and a number."""
    for folder in sorted(path.glob("step*")) if path.is_dir() else ():
        if folder.name[len("step") :].isdigit() and folder.is_dir():
            yield folder


def size_of(folder: Path) -> int:
    """Return the bytes of the files below a folder; a file with several names counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                found = os.stat(os.path.join(parent, name))
                sizes[found.st_dev, found.st_ino] = found.st_size
    return sum(sizes.values())
