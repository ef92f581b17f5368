"""Messages with large arrays between two processes of one machine, with one copy of the arrays.

Called by both ends of the pipe between a check process and the worker that started it. Arrays go
through memory that both share: through the pipe itself 3 MB took 17 ms, as the two processes take
turns. Arrays that are in such memory already (`SharedArrays`) are handed on by their descriptor,
without a copy.
"""

import io
import os
import pickle
import socket
import struct
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from ray_precheck.runtime.tensors.shared_arrays import SharedArrays, share

_HEAD = struct.Struct("<2Q")
# The kernel takes no more than 253 in a message (SCM_MAX_FD, unix(7)).
_MOST_HANDLES = 253


def send(pipe: Connection, message: object, *, is_plain: bool = False) -> None:
    """Send a message; contiguous arrays in it go through shared memory (PEP 574). `is_plain`: the
    message has no `SharedArrays`, so it is not searched for them.

    Raises:
        OSError: the other end is closed, or there is no memory left to share.
    """
    buffers: list[pickle.PickleBuffer] = []
    shared: list[SharedArrays] = []
    if is_plain:
        data = pickle.dumps(message, 5, buffer_callback=buffers.append)
    else:
        data = _dumps(message, buffers, shared)
    views = [buffer.raw() for buffer in buffers]
    lengths = [view.nbytes for view in views]
    if sum(lengths):
        shared.insert(0, share(views))
    # A message without arrays is one write: each write wakes the other end, maybe on the same core.
    head = struct.pack(f"<{2 + len(lengths)}Q", len(lengths), len(shared), *lengths)
    pipe.send_bytes(head + data)
    if shared:
        with socket.socket(fileno=os.dup(pipe.fileno())) as wire:
            for first in range(0, len(shared), _MOST_HANDLES):
                handles = [each.handle for each in shared[first : first + _MOST_HANDLES]]
                socket.send_fds(wire, [b"\0"], handles)


def receive(pipe: Connection) -> Any:
    """Wait for a message and return it; its arrays share memory that no other process writes to.

    Raises:
        EOFError: the other end was closed, maybe in the middle of a message.
    """
    message = memoryview(pipe.recv_bytes())
    count, handle_count = _HEAD.unpack_from(message)
    lengths = struct.unpack_from(f"<{count}Q", message, _HEAD.size)
    handles = _receive_handles(pipe, handle_count)
    buffers: Sequence[Any] = [b""] * count
    if sum(lengths):
        buffers = SharedArrays(handles.pop(0), lengths).open()
    data = message[_HEAD.size + 8 * count :]
    return _Unpickler(io.BytesIO(data), buffers, handles).load()


def _receive_handles(pipe: Connection, count: int) -> list[int]:
    handles: list[int] = []
    if not count:
        return handles
    with socket.socket(fileno=os.dup(pipe.fileno())) as wire:
        while len(handles) < count:
            left = min(count - len(handles), _MOST_HANDLES)
            data, arrived, _, _ = socket.recv_fds(wire, 1, left)
            handles.extend(arrived)
            if not data or len(arrived) < left:
                for handle in handles:
                    os.close(handle)
                raise EOFError
    return handles


def _dumps(
    message: object, buffers: list[pickle.PickleBuffer], shared: list[SharedArrays]
) -> bytes:
    """Return a message without its arrays, and two lists of them: those to be shared, and those
    that are shared already."""
    file = io.BytesIO()
    pickler = _Pickler(file, buffers.append)
    pickler.dump(message)
    shared.extend(pickler.shared)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Leaves out shared arrays and lists them; in the message a shared array is its position and
    its lengths."""

    def __init__(self, file: io.BytesIO, take: Callable[[pickle.PickleBuffer], None]) -> None:
        super().__init__(file, protocol=5, buffer_callback=take)
        self.shared: list[SharedArrays] = []

    def persistent_id(self, obj: object) -> tuple[int, tuple[int, ...]] | None:
        if not isinstance(obj, SharedArrays):
            return None
        self.shared.append(obj)
        return len(self.shared) - 1, obj.lengths


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffers: Sequence[Any], handles: Sequence[int]) -> None:
        super().__init__(file, buffers=buffers)
        self._handles = handles

    def persistent_load(self, pid: tuple[int, tuple[int, ...]]) -> SharedArrays:
        position, lengths = pid
        return SharedArrays(self._handles[position], lengths)
