"""Arrays in memory that processes of one machine share by its file descriptor.

Comes in: arrays as bytes, or a descriptor that another process has handed on. Goes out: the arrays,
which are not copied. Called by `pipes`, `shared_pool` and `loans`. The memory has no name: the kernel
frees it when the last descriptor and the last mapping are gone, however a process ends.
"""

import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from ray_precheck.schema.dtypes import Array

# Arrays are written in pieces of this size, so that a signal interrupts a short system call.
_PIECE_BYTES = 1 << 26
# Where an array may begin. NumPy reads unaligned arrays in pieces and sums them in another order.
_ALIGNMENT = 64
# Before the arrays; its first byte says whether they may be overwritten.
_HEAD_BYTES = _ALIGNMENT
_IN_USE, _GIVEN_BACK = b"\0", b"\1"


class SharedArrays:
    """Arrays of these `lengths` in bytes, one after the other in the memory behind `handle`.

    Owns the descriptor: it is closed with this object. Only `pipes.send` hands it on.
    """

    def __init__(self, handle: int, lengths: Sequence[int]) -> None:
        self.handle = handle
        self.lengths = tuple(lengths)
        weakref.finalize(self, os.close, handle).atexit = False

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return sum(self.lengths)

    def open(self) -> list[Array]:
        """Return the arrays, `(N,)` uint8 each; they share the memory, also once it is closed."""
        if not self.nbytes:
            return [np.empty(0, np.uint8) for _ in self.lengths]
        total = layout(self.lengths)[1]
        whole = np.frombuffer(mmap.mmap(self.handle, total, access=mmap.ACCESS_WRITE), np.uint8)
        return self.cut(whole)

    def cut(self, whole: Array) -> list[Array]:
        """Return the arrays as parts of the `whole` memory, `(N,)` uint8."""
        starts = layout(self.lengths)[0]
        return [
            whole[start : start + length]
            for start, length in zip(starts, self.lengths, strict=True)
        ]

    def again(self, lengths: Sequence[int]) -> "SharedArrays":
        """Return the same memory for other arrays, under a descriptor of its own."""
        return SharedArrays(os.dup(self.handle), lengths)

    def give_back(self) -> None:
        """Say that this process reads the arrays no more, so that their maker may overwrite
        them."""
        os.pwrite(self.handle, _GIVEN_BACK, 0)

    def take_again(self) -> bool:
        """Return whether the memory was given back; then it is in use again."""
        if os.pread(self.handle, 1, 0) != _GIVEN_BACK:
            return False
        os.pwrite(self.handle, _IN_USE, 0)
        return True

    def __reduce__(self) -> NoReturn:
        raise TypeError("a file descriptor is handed on by pipes.send alone")


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
    starts, total = layout(shared.lengths)
    os.ftruncate(handle, total)
    for start, view in zip(starts, views, strict=True):
        done = 0
        while done < view.nbytes:
            done += os.pwrite(handle, view[done : done + _PIECE_BYTES], start + done)
    return shared


def layout(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Return where each array begins, and the size of all, in bytes."""
    starts, end = [], _HEAD_BYTES
    for length in lengths:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        starts.append(start)
        end = start + length
    return starts, end
