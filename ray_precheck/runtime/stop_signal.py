"""Ctrl-C and SIGTERM as a request to stop, which a run looks at between two steps.

Comes in: signals. Goes out: an event. Called by the session, and around all ranks of a folder.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Who signals a whole process group is heard twice: by the command, and through its guardian.
_SAME_REQUEST_S = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Turn Ctrl-C and SIGTERM into a request to stop; a second Ctrl-C interrupts at once."""
    stop = threading.Event()
    asked_at = 0.0

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal asked_at
        now = time.monotonic()
        if stop.is_set() and now - asked_at > _SAME_REQUEST_S:
            raise KeyboardInterrupt
        asked_at = asked_at if stop.is_set() else now
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, request) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Leave the handlers of these signals as they are: ray.init sets one of its own for SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: a handler that was not set from Python.
                signal.signal(number, handler)
