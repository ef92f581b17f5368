"""Arrays in memory that processes of one machine share.

Comes in: arrays as bytes, or a descriptor that another process has handed on. Goes out: the arrays,
which are not copied. Called by `messages` and `worker`. The memory has no name: the kernel frees it when the
last descriptor and the last mapping are gone, however a process ends.

Also here: the folders that --shared-fs says that all machines see.

Arrays in memory that processes of one machine share. The memory has no name: the kernel frees it when the
last descriptor and the last mapping are gone, however a process ends.
"""

import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.errors import DeviceError
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.task import DeviceSlot

# Descriptors of other processes are opened through /proc (proc_pid_fd(5)).
CAN_LEND = sys.platform == "linux" and hasattr(os, "memfd_create")
# Arrays are written in pieces of this size, so that a signal interrupts a short system call.
_PIECE_BYTES = 1 << 26
# Where an array may begin. NumPy reads unaligned arrays in pieces and sums them in another order.
_ALIGNMENT = 64


class SharedArrays:
    """Arrays of these `lengths` in bytes, one after the other in the memory behind `handle`.

    Owns the descriptor: it is closed with this object. Pickled it becomes `LentArrays`.
    """

    def __init__(self, handle: int, lengths: Sequence[int]) -> None:
        self.handle = handle
        self.lengths = tuple(lengths)
        weakref.finalize(self, os.close, handle).atexit = False

    def open(self) -> list[Array]:
        """Return the arrays, `(N,)` uint8 each; they share the memory, also once it is closed."""
        return _mapped(self.handle, self.lengths)

    def __reduce__(self) -> tuple[Any, ...]:
        path = f"/proc/{os.getpid()}/fd/{self.handle}"
        return LentArrays, (path, _identity(self.handle), self.lengths)


@dataclass(frozen=True, slots=True)
class LentArrays:
    """Arrays in the memory of another process, which has it under the descriptor `path`.

    `identity` are the device and inode of that memory, because process ids and descriptors are used
    again and differ between containers.
    """

    path: str
    identity: tuple[int, int]
    lengths: tuple[int, ...]

    def open(self) -> list[Array]:
        """Return the arrays, which stay when the other process ends.

        Raises:
            OSError: the process is gone, runs in another container, or /proc refuses this user.
        """
        # Looked at first: a descriptor that stands for another file by now could block when it is
        # opened, or have effects.
        self._require_same(_identity(self.path))
        handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._require_same(_identity(handle))
            return _mapped(handle, self.lengths)
        finally:
            os.close(handle)

    def _require_same(self, found: tuple[int, int]) -> None:
        if found != self.identity:
            raise FileNotFoundError(f"{self.path} is other memory by now")


def share(views: Sequence[memoryview]) -> SharedArrays:
    """Copy arrays into memory that can be shared.

    Raises:
        OSError: there is no memory left to share, or no descriptor.
    """
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("ray_precheck", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    shared = SharedArrays(handle, [view.nbytes for view in views])
    starts, total = _layout(shared.lengths)
    os.ftruncate(handle, total)
    for start, view in zip(starts, views, strict=True):
        done = 0
        while done < view.nbytes:
            done += os.pwrite(handle, view[done : done + _PIECE_BYTES], start + done)
    return shared


def _mapped(handle: int, lengths: Sequence[int]) -> list[Array]:
    starts, total = _layout(lengths)
    if not total:
        return [np.empty(0, np.uint8) for _ in lengths]
    whole = np.frombuffer(mmap.mmap(handle, total, access=mmap.ACCESS_WRITE), np.uint8)
    return [whole[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def _layout(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Return where each array begins, and the size of all, in bytes."""
    starts, end = [], 0
    for length in lengths:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        starts.append(start)
        end = start + length
    return starts, end


def _identity(file: str | int) -> tuple[int, int]:
    status = os.stat(file)
    return status.st_dev, status.st_ino


def seen_folders(folders: Iterable[Path | None], *, is_home: bool) -> tuple[Path, ...]:
    """Return which of these folders another machine has to see: those that are here."""
    return () if is_home else tuple(folder for folder in folders if folder and folder.is_dir())


def require_folders(slot: DeviceSlot, folders: Iterable[Path], what: str) -> None:
    """Refuse a machine that lacks a folder; `what` would be sent to it without --shared-fs.

    Raises:
        DeviceError: one of them is not there.
    """
    for folder in folders:
        if not folder.is_dir():
            raise DeviceError(
                f"{slot.address} has no folder {str(folder)!r}, which --shared-fs says that all"
                f" machines share; without --shared-fs {what} are sent to it"
            )
