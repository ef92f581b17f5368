"""Ties between a process and its family that the kernel keeps: prctl(2), Linux alone.

Called by every process that must not outlive its parent, and by those that wait for all descendants.

Where the processes of a run take their modules from: nothing comes from the working directory. This package
is the same one in all of them, whatever lies in the folder in which a command was started; beside it, a
checkout has files that nobody asked for, so that the folder around the package is no place to look for
other modules either. PYTHONPATH stays in force, less its entries that are empty or relative. It imports
nothing that Python has not loaded already.

The processes that descend from a process: the time and memory of a record are those of all of them. Only
Linux has /proc/PID/task/TID/children; on other systems no process is found.

psutil's `children(recursive=True)` reads every process of the machine, which takes 2.3 ms of CPU among 105
processes and 8.0 ms among 405, against 0.06 to 0.2 ms here (measured), and a worker calls this again and
again while a record is late.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from concurrent.futures import ThreadPoolExecutor

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, even if it hangs or runs C code.

    `parent` is the process id that the parent has: where it has ended before, this process ends now.
    Elsewhere than on Linux nothing is done.
    """
    if sys.platform != "linux":
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


# A process that asks to end with its parent ends with the *thread* that started it, so one thread that lives
# as long as this process starts them all. By process id: a fork has not the thread of its parent.
_LAUNCHERS: dict[int, "ThreadPoolExecutor"] = {}


def launch(start: Callable[[], "subprocess.Popen[bytes]"]) -> "subprocess.Popen[bytes]":
    """Start a process that is to end with this one (`end_with_parent`)."""
    from concurrent.futures import ThreadPoolExecutor

    own = os.getpid()
    if own not in _LAUNCHERS:
        _LAUNCHERS[own] = ThreadPoolExecutor(1, thread_name_prefix="launcher")
    return _LAUNCHERS[own].submit(start).result()


def adopt_orphans() -> bool:
    """Make this process the parent of descendants whose parent ends; return whether that was done."""
    return sys.platform == "linux" and _prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0


def _prctl(option: int, value: int) -> int:
    found: int = ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
    return found


# The folder around this package.
HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# HOME as nobody else spells it, in the path of Ray's workers. The package takes it off once it is found.
MARKED_HOME = os.path.join(HOME, ".")
_RUN_MODULE = (
    "import sys; sys.path[:] = [sys.argv.pop(1), *filter(None, sys.path)]; import ray_precheck;"
    " del sys.path[0]; import runpy;"
    " runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(module: str) -> list[str]:
    """Return the command that runs a module by this Python, beside this very package; the arguments of the
    module are appended to it."""
    return [sys.executable, "-c", _RUN_MODULE, HOME, module]


def python_path(*first: str) -> str:
    """Return the PYTHONPATH of a process: `first`, then what the user's has."""
    return os.pathsep.join([*first, *filter(os.path.isabs, _entries())])


def leave_working_directory() -> None:
    """Take the working directory off the path of this process, and what is relative in PYTHONPATH."""
    here = _working_directory()
    # `python -m` puts it first.
    if sys.path and sys.path[0] in ("", here):
        del sys.path[0]
    asked = [entry for entry in _entries() if not os.path.isabs(entry)]
    if not sys.flags.ignore_environment:
        for entry in asked:
            folder = os.path.normpath(os.path.join(here, entry))  # as Python has made it
            if folder in sys.path:
                sys.path.remove(folder)


def job_path() -> list[str]:
    """Return where Ray's workers are to look first: for this package, where Python's own path does not lead
    to it, as in a checkout that `python -m` runs. Else each node has its own, which is held against this one.
    """
    asked = {os.path.abspath(entry) for entry in _entries() if os.path.isabs(entry)}
    here = _working_directory()
    script = os.path.dirname(os.path.realpath(os.path.join(here or os.sep, sys.argv[0])))
    own = {here, script} - asked
    path = [each for each in sys.path if each and os.path.normpath(each) not in own]
    for finder in sys.meta_path:
        spec = finder.find_spec("ray_precheck", path)
        if spec is not None and spec.origin is not None:
            found = os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))
            return [] if found == HOME else [MARKED_HOME]
    return [MARKED_HOME]


def leave_marked_home() -> None:
    """Take off what let a worker of Ray find this package."""
    if MARKED_HOME in sys.path:
        sys.path.remove(MARKED_HOME)


def _working_directory() -> str:
    """Return the working directory, "" where somebody has removed it."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _entries() -> list[str]:
    return os.environ["PYTHONPATH"].split(os.pathsep) if os.environ.get("PYTHONPATH") else []


def descendants(pid: int) -> list[int]:
    """Return the ids of the children of a process, of their children, and so on.

    A process that ends meanwhile may be missing (proc(5), /proc/pid/task/tid/children).
    """
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children: list[int] = []
        for path in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children.extend(map(int, path.read_text().split()))
        found += children
        waiting += children
    return found


def is_stopped(pid: int) -> bool:
    """Return whether a process, or one that descends from it, is stopped by a signal or a debugger (the state
    in /proc/pid/stat is T or t)."""
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(OSError, IndexError):
            if Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0] in "Tt":
                return True
    return False
