"""The training's side of the process that writes tensors: it copies them into memory that both share.

Comes in: the files, links and lines of a captured step. Goes out: entries for `writer_process`, and what went
wrong there, as an error. Made once for a capture, by the probe; used by the log of a step and by what makes
the files of tensors.

The training waits where the ring is full, and at the end of a step for what is left. If the process ends, the
training does what it has left, since the memory is still there, and writes by itself from then on.
"""

import errno
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.capture.writing import writer_process
from ray_precheck.capture.writing.writer_process import (
    BEGIN,
    COUNT,
    DONE,
    END,
    ENTRY,
    FAILED,
    FILE,
    FIRST,
    HALF,
    LINE,
    LINK,
    PAGE,
    PROCESS,
    PROCESS_ID,
    STOP,
    Writing,
    aligned_size,
    checksum_in,
    entry_at,
    failure_in,
)
from ray_precheck.numerics.one_pass import COMPILED
from ray_precheck.schema.dtypes import Array

_RING_BYTES = 1 << 26
_PART_OF_MEMORY = 1 / 64
# The process is told of so many bytes at once: to wake it takes up to 30 us (measured in a virtual machine).
_TOLD_AT_ONCE = 1 << 20
_STARTS_WITHIN_S, _ENDS_WITHIN_S = 20.0, 5.0
_IS_POSSIBLE = hasattr(os, "memfd_create") and hasattr(os, "eventfd")


class TensorNotWritten(OSError):
    """The file of a tensor could not be written; `tensor` is its name, without what tells its format."""

    def __init__(self, error: OSError, tensor: str) -> None:
        super().__init__(error.errno, error.strerror, *filter(None, [error.filename]))
        self.tensor = tensor


class SharedWriter:
    """A process that writes, and the memory that it shares with this one.

    Raises:
        OSError: there is no memory for it, or it cannot be started.
    """

    def __init__(self, ring_bytes: int) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._is_busy = False
        with ExitStack() as failing:
            memory_file = os.memfd_create("ray_precheck_tensors")
            failing.callback(os.close, memory_file)
            os.ftruncate(memory_file, PAGE + ring_bytes)
            self._memory = mmap.mmap(memory_file, 0)
            self._wake = os.eventfd(0)
            failing.callback(os.close, self._wake)
            self._done = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            failing.callback(os.close, self._done)
            self._channel, theirs = socket.socketpair()
            passed = memory_file, self._wake, self._done, theirs.fileno()
            extension = "" if COMPILED is None else str(COMPILED.__file__)
            words = map(str, [os.getpid(), *passed, extension])
            with theirs:
                _start([sys.executable, "-I", "-S", writer_process.__file__, *words], passed)
            failing.pop_all()
        os.close(memory_file)
        self._view = memoryview(self._memory)
        self._bytes: Array = np.frombuffer(self._memory, np.uint8)
        self._is_there = True
        self._end = PAGE + ring_bytes
        self._most = ring_bytes // 2
        self._at = PAGE
        # Where the process looks for the entries that are not done yet.
        self._left: deque[int] = deque()
        self._words = self._view.cast("Q")
        self._words[DONE] = PAGE
        # How many entries the process was not told of, and their bytes.
        self._untold = self._untold_bytes = 0
        self._log = self._folder = -1
        self._path = Path()
        self._poller = select.poll()
        self._poller.register(self._done, select.POLLIN)
        # The end of the process, which alone has the other end.
        self._poller.register(self._channel, select.POLLIN)

    @property
    def process_id(self) -> int:
        """The number of the process, 0 where there is none any more."""
        found: int = PROCESS_ID.unpack_from(self._view, PROCESS)[0] if self._is_there else 0
        return found

    def begin(self, log: int, folder: Path) -> bool:
        """Begin with a step, whose log has this descriptor; return whether the process is there for it.

        Raises:
            OSError: there is no such folder.
        """
        if not self._is_there:
            return False
        self._wait_for(0)
        self._view[FAILED] = 0
        self._path = folder
        self._log = log
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            rights = socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [log, self._folder])
            self._channel.sendmsg([b"."], [rights], socket.MSG_NOSIGNAL)
        except OSError:
            self._take_over()
        return self._put(BEGIN)

    def file(
        self, name: str, pieces: tuple[bytes, Any, bytes], places: tuple[int, int] = (0, 0)
    ) -> bool:
        """Write bytes, the values of a tensor and bytes to a file; return False if the caller is to do it.

        The CRC-32 of the values is to stand at two places of the file, where they are given.

        Raises:
            OSError: an earlier entry of this step could not be written.
        """
        values = len(pieces[0]), len(pieces[1]), *places
        return self._put(FILE, os.fsencode(name), pieces, values=values)

    def link(self, first: str, name: str) -> bool:
        """Give a file another name; raises as `file`."""
        return self._put(LINK, os.fsencode(f"{first}\0{name}"))

    def line(self, raw: bytes, size_before: int) -> bool:
        """Add a line to the log, which has a size by then; raises as `file`."""
        return self._put(LINE, b"", (raw,), size_before)

    def end(self) -> None:
        """Wait until all of the step is written.

        Raises:
            OSError: it could not be written.
        """
        if os.getpid() != self._pid or self._folder < 0:
            return
        with self._lock:
            try:
                self._put(END, is_last=True)
                self._wait_for(0)
                self._raise_failure()
            finally:
                os.close(self._folder)
                self._log = self._folder = -1

    def close(self) -> None:
        """End the process, which has nothing left to do, and give the memory back."""
        if os.getpid() != self._pid or self._end == 0:
            return
        with suppress(OSError):
            self.end()
        if self._put(STOP, is_last=True) and not self._wait_for_end():
            os.kill(self.process_id, signal.SIGKILL)
        self._is_there = False
        self._end = 0
        self._bytes = np.empty(0, np.uint8)
        self._words.release()
        self._view.release()
        with suppress(BufferError):  # it is freed with what still looks at it
            self._memory.close()
        self._channel.close()
        os.close(self._wake)
        os.close(self._done)

    def _put(
        self,
        kind: int,
        name: bytes = b"",
        pieces: Sequence[Any] = (),
        size_before: int = 0,
        values: tuple[int, ...] = (0, 0, 0, 0),
        *,
        is_last: bool = False,
    ) -> bool:
        """Put an entry into the ring; return False where that cannot be."""
        with self._lock:
            # A handler of a signal may record a call in the midst of this.
            is_open = self._folder >= 0 or kind == STOP
            if not self._is_there or not is_open or self._is_busy:
                return False
            self._is_busy = True
            try:
                if not is_last:
                    self._raise_failure()
                begin = aligned_size(ENTRY.size + len(name))
                size = sum(map(len, pieces))
                if begin + size > self._most:
                    if kind == LINE:  # of files the order does not count
                        self._wait_for(0)
                        self._raise_failure()
                    return False
                place = self._room_for(aligned_size(begin + size))
                if place < 0:
                    return False
                ENTRY.pack_into(
                    self._view, place, size_before, kind, len(name), begin, size, *values
                )
                at = place + ENTRY.size
                self._view[at : at + len(name)] = name
                at = place + begin
                for piece in pieces:
                    if isinstance(piece, bytes):
                        self._view[at : at + len(piece)] = piece
                    else:
                        self._bytes[at : at + len(piece)] = piece
                    at += len(piece)
                self._add(place + aligned_size(begin + size), begin + size)
                if is_last or self._untold_bytes >= _TOLD_AT_ONCE:
                    self._tell()
                return True
            finally:
                self._is_busy = False

    def _add(self, end: int, size: int) -> None:
        """Add an entry that is whole to those that are there, and that ends at a place."""
        is_whole = False
        try:
            self._left.append(self._at)
            self._at = end
            self._untold += 1
            self._untold_bytes += size
            self._words[COUNT] += 1
            is_whole = True
        finally:
            # A handler of a signal has raised in the midst of it: only the words are right.
            if not is_whole:
                os.kill(self.process_id, signal.SIGKILL)
                self._wait_for_end()
                self._take_over()

    def _wait_for_end(self) -> bool:
        """Wait until the process has ended; return whether it has, soon."""
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        return bool(poller.poll(_ENDS_WITHIN_S * 1000))

    def _tell(self) -> None:
        """Tell the process of the entries that are new."""
        if self._untold:
            os.eventfd_write(self._wake, self._untold)
            self._untold = self._untold_bytes = 0

    def _room_for(self, size: int) -> int:
        """Return where an entry has room, when there is some; -1 where this process is to write by itself.

        Behind an entry there is always room for the one that leads back to the begin of the ring.
        """
        end = self._end - aligned_size(ENTRY.size)
        while True:
            first = self._left[0] if self._left else self._at
            if self._left and self._at < first:
                if self._at + size < first:
                    return self._at
            elif self._at + size <= end:
                return self._at
            elif PAGE + size < first:
                ENTRY.pack_into(self._view, self._at, 0, FIRST, *[0] * 7)
                return PAGE
            if not self._wait():
                return -1

    def _wait_for(self, count: int) -> None:
        """Wait until no more entries than these are left."""
        while len(self._left) > count and self._wait():
            pass

    def _wait(self) -> bool:
        """Wait until an entry is done, and return True; False where the process has ended."""
        self._tell()
        if self._is_there and self._done not in (file for file, _ in self._poller.poll()):
            self._take_over()
        self._note_done()
        return self._is_there

    def _note_done(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._done)
        left = self._words[COUNT] - (self._words[DONE] >> HALF)
        while len(self._left) > left:
            self._left.popleft()

    def _take_over(self) -> None:
        """Do what the process has left, which has ended."""
        self._is_there = False
        checksum, words = checksum_in(self._memory, self._view, ""), self._words
        writing = Writing(self._view, checksum, self._log, self._folder)
        while words[DONE] >> HALF < words[COUNT]:
            done, place = divmod(words[DONE], 1 << HALF)
            place, kind, size = entry_at(self._view, place)
            if kind in (FILE, LINK, LINE) and self._folder >= 0:
                writing.perform(place, is_again=True)
            words[DONE] = (done + 1) << HALF | place + size
        self._left.clear()
        self._untold = self._untold_bytes = 0
        print(
            "ray-precheck capture: the process that writes tensors was ended; nothing is lost, and the"
            " training writes them itself from here on, which takes longer",
            file=sys.stderr,
            flush=True,
        )

    def _raise_failure(self) -> None:
        if not self._view[FAILED]:
            return
        self._wait_for(0)
        number, is_named, name = failure_in(self._view)
        where = [f"{self._path / name}"] if is_named and name else []
        error = OSError(number, os.strerror(number), *where)
        raise TensorNotWritten(error, name.rpartition(".")[0]) if name else error


def _start(words: list[str], passed: tuple[int, ...]) -> None:
    """Start a process that starts another one and ends.

    Raises:
        OSError: it does not.
    """
    started = subprocess.Popen(
        words,
        pass_fds=passed,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # Ctrl-C is for the training
    )
    try:
        failed = started.wait(_STARTS_WITHIN_S) != 0
    except subprocess.TimeoutExpired:  # what was started is no Python, say
        started.kill()
        started.wait()
        failed = True
    if failed:
        raise OSError(errno.ECHILD, f"{words[0]} starts no process")


def start_writer() -> SharedWriter | None:
    """Start a process that writes; None where it would not help, or cannot be.

    It needs a core of its own, and memory that processes share without a file (Linux).
    """
    if not _IS_POSSIBLE or not sys.executable or len(os.sched_getaffinity(0)) < 2:
        return None
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = min(_RING_BYTES, int(memory * _PART_OF_MEMORY) // PAGE * PAGE)
    try:
        return SharedWriter(size)
    except OSError:
        return None
