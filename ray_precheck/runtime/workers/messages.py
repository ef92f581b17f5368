"""The messages in the pipe between a check process and the worker that started it.

`Sealed` tensors in an answer go on from the worker to a bench worker, on the same machine or on
another.

Messages with large arrays between two processes of one machine, with one copy of the arrays. Arrays go
through memory that both share: through the pipe itself 3 MB took 17 ms, as the two processes take turns.

The wakeup by which a check process wakes the worker that waits for its answers. The process sends one for
several short answers, so that the worker does not wake up for each. The worker has the `Wakeup`, the
process the `WakeupSender`. The answers wait in the pipe meanwhile, where they can be read even if the
process dies.
"""

import contextlib
import os
import pickle
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ray_precheck.runtime.job import Opener
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.runtime.workers.shared import LentArrays, SharedArrays, share
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.task import Cause, DeviceSlot, Done


@pickled_by_position
@dataclass(frozen=True, slots=True)
class Sealed:
    """An object that only check processes unpickle, because it may hold objects of a framework, which
    workers and the driver must not load.

    Its arrays are in `buffers`, each as `(N,)` uint8, or in `shared`, memory that processes of this
    machine can open.
    """

    data: bytes
    buffers: tuple[Any, ...] = ()
    shared: SharedArrays | LentArrays | None = None

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        in_memory = 0 if self.shared is None else sum(self.shared.lengths)
        return len(self.data) + in_memory + sum(int(buffer.nbytes) for buffer in self.buffers)

    def for_others(self) -> "Sealed":
        """Return the object with arrays that Ray can send to another machine; nothing is copied."""
        return self if self.shared is None else Sealed(self.data, tuple(self.shared.open()))

    def open(self) -> Any:
        """Return the object that was sealed; its arrays share memory with the buffers.

        Raises:
            OSError: the process that has the shared memory is gone, or out of reach.
        """
        return pickle.loads(self.data, buffers=self.for_others().buffers)


def seal(content: object) -> Sealed:
    """Seal an object for another check process; nothing is copied."""
    import numpy as np

    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
    return Sealed(data, tuple(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers))


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a check process: its device and the job's opener."""

    slot: DeviceSlot
    opener: Opener


@dataclass(frozen=True, slots=True)
class Started:
    """The reply to `Start`. With a `failure`, the reason in words, the process ends.

    `caveat` is a sentence about a limit of the device's precision, "" for none.
    """

    failure: str = ""
    caveat: str = ""


@pickled_by_position
@dataclass(frozen=True, slots=True)
class Work:
    """A record that the check process has to run, through the stage `stage` with `threads` threads.

    `half` holds what the device measured, for the stage BENCH. `files` are the captured files of the
    record, None where the runner reads them from their folder. `is_near`: the bench of a record
    whose stage is DEVICE will run on this machine.
    """

    index: int
    payload: Any
    stage: Stage = Stage.CHECK
    threads: int = 1
    half: Sealed | None = None
    files: Any = None
    is_near: bool = False


@pickled_by_position
@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to a `Work`: the result (`done`), or what the device measured (`half`), or neither of
    them where the record needs a device and this process has none.

    Where the record broke the process, `cause` and `reason` say how, and the process ends. `began_s`
    is in seconds since the epoch.
    """

    index: int
    done: Done | None = None
    half: Sealed | None = None
    cause: Cause | None = None
    reason: str = ""
    began_s: float = 0.0
    elapsed_s: float = 0.0


_COUNT = struct.Struct("<Q")


def send(pipe: Connection, message: object) -> None:
    """Send a message; contiguous arrays in it go through shared memory (PEP 574).

    Raises:
        OSError: the other end is closed, or there is no memory left to share.
    """
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(message, 5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    lengths = [view.nbytes for view in views]
    shared = share(views) if sum(lengths) else None
    # A message without arrays is one write: each write wakes the other end, maybe on the same core.
    pipe.send_bytes(struct.pack(f"<{1 + len(lengths)}Q", len(lengths), *lengths) + data)
    if shared is not None:
        with socket.socket(fileno=os.dup(pipe.fileno())) as wire:
            socket.send_fds(wire, [b"\0"], [shared.handle])


def receive(pipe: Connection) -> Any:
    """Wait for a message and return it; its arrays share memory that no other process writes to.

    Raises:
        EOFError: the other end was closed, maybe in the middle of a message.
    """
    return receive_shared(pipe)[0]


def receive_shared(pipe: Connection) -> tuple[Any, SharedArrays | None]:
    """Return a message as `receive` does, and its arrays; None where it has none."""
    message = memoryview(pipe.recv_bytes())
    (count,) = _COUNT.unpack_from(message)
    lengths = struct.unpack_from(f"<{count}Q", message, _COUNT.size)
    shared: SharedArrays | None = None
    buffers: list[Any] = [b""] * count
    if sum(lengths):
        shared = SharedArrays(_receive_handle(pipe), lengths)
        buffers = shared.open()
    return pickle.loads(message[_COUNT.size * (1 + count) :], buffers=buffers), shared


def _receive_handle(pipe: Connection) -> int:
    with socket.socket(fileno=os.dup(pipe.fileno())) as wire:
        _, handles, _, _ = socket.recv_fds(wire, 1, 1)
    if not handles:
        raise EOFError
    return handles[0]


# The number of short answers, some KB, that wait in the pipe before a wakeup; the pipe takes about 200 KB.
_MOST_UNREAD = 16


class Wakeup:
    """The worker's end; `close` frees its descriptor."""

    def __init__(self) -> None:
        self._fd, self._far_fd = os.pipe()

    @contextmanager
    def far_end(self) -> Iterator[int]:
        """Yield the descriptor that the check process inherits; it is closed here afterwards."""
        try:
            yield self._far_fd
        finally:
            os.close(self._far_fd)

    def wait(self, seconds: float) -> None:
        """Wait until a wakeup comes, the process is gone, or the seconds are over.

        Raises:
            OSError: it was closed here.
        """
        if self._fd < 0:
            raise OSError("the wakeup is closed")
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if poll.poll(seconds * 1e3):
            os.read(self._fd, 1 << 10)

    def close(self) -> None:
        """Close the descriptor; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class WakeupSender:
    """The check process's end: it sends a wakeup at the end of a batch, after an answer with tensors, and
    after every `_MOST_UNREAD` short answers."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unread = 0

    def sent(self, *, is_last: bool, is_large: bool) -> None:
        """Note an answer in the pipe, and send a wakeup if it is time; `is_last`: no answer follows it,
        `is_large`: it holds tensors."""
        self._unread += 1
        if is_last or is_large or self._unread >= _MOST_UNREAD:
            self._unread = 0
            with contextlib.suppress(OSError):  # The worker is gone.
                os.write(self._fd, b"\0")
