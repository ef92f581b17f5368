"""Ties between a process and its family that the kernel keeps: prctl(2), Linux alone.

Called by every process that must not outlive its parent, and by those that wait for all descendants.
"""

import ctypes
import os
import signal
import sys

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


def adopt_orphans() -> bool:
    """Make this process the parent of descendants whose parent ends; return whether that was done."""
    return sys.platform == "linux" and _prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0


def _prctl(option: int, value: int) -> int:
    found: int = ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
    return found
