"""Messages with large arrays over a pipe, without a second copy of the arrays in the pickle.

Called by both ends of the pipe between a check process and the one who started it.
"""

import os
import pickle
import struct
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

# A pipe takes less at a time; this bounds what a signal can interrupt.
_PIECE_BYTES = 1 << 20


def send(pipe: Connection, message: object) -> None:
    """Send a message; contiguous arrays in it follow as raw bytes (PEP 574).

    Raises:
        OSError: the other end is closed.
    """
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    pipe.send_bytes(struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views)))
    pipe.send_bytes(data)
    for view in views:
        start = 0
        while start < view.nbytes:
            start += os.write(pipe.fileno(), view[start : start + _PIECE_BYTES])


def receive(pipe: Connection) -> Any:
    """Wait for a message and return it.

    Raises:
        EOFError: the other end was closed, maybe in the middle of a message.
    """
    header = pipe.recv_bytes()
    lengths = struct.unpack(f"<{len(header) // 8}Q", header)
    data = pipe.recv_bytes()
    return pickle.loads(data, buffers=[_read(pipe.fileno(), length) for length in lengths])


def _read(handle: int, length: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found = np.empty(length, np.uint8)
    view = memoryview(found.data)
    start = 0
    while start < length:
        count = os.readv(handle, [view[start:]])
        if count == 0:
            raise EOFError
        start += count
    return found
