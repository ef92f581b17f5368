"""Ctrl-C, SIGTERM and SIGHUP as a request to stop.

Comes in: signals. Goes out: an event that a run looks at between two steps, or `KeyboardInterrupt` where
no run looks. Called by the command line, by the session, and around all ranks of a folder.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Who signals a whole process group is heard twice: by the command, and through its guardian.
_SAME_REQUEST_S = 0.5
# The longest time between two looks at a request in all steps of a run but those of its plan.
_PATIENCE_S = 8
# The signals by which service managers, schedulers and terminals end a command.
_ENDING = (signal.SIGTERM, signal.SIGHUP)
# The signal by which `_listen` wakes the main thread: it does nothing where nobody handles it.
_PASSED_ON = signal.SIGURG
_SIGNALS = (signal.SIGINT, *_ENDING, _PASSED_ON)
# When this process was last asked to stop; a list, so that handlers need not bind the module's name.
_ASKED_AT = [-math.inf]


class _Request(threading.Event):
    """A request to stop, which knows whether a run has looked at it since it was made."""

    was_made = was_seen = False

    def make(self) -> None:
        self.was_made = True
        self.set()

    def is_set(self) -> bool:
        self.was_seen |= self.was_made
        return super().is_set()


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Turn the signals into a request to stop; a second Ctrl-C interrupts at once, and so does a request that
    nobody has looked at for `_PATIENCE_S`."""
    stop = _Request()

    def ask(number: int) -> None:
        if stop.was_made:
            _interrupt_again(number)
            return
        _note()
        stop.make()
        signal.signal(signal.SIGALRM, remind)
        signal.alarm(_PATIENCE_S)

    def remind(number: int, frame: FrameType | None) -> None:
        if not stop.was_seen:
            raise KeyboardInterrupt

    alarm = signal.getsignal(signal.SIGALRM)
    with _handled_by(ask):
        try:
            yield stop
        finally:
            if stop.was_made:
                signal.alarm(0)
                _restore({signal.SIGALRM: alarm})


@contextmanager
def interrupted_by_signals(*, is_own: bool) -> Iterator[None]:
    """Let the signals interrupt a command, as Ctrl-C does, wherever `stop_on_signal` does not hear them.

    A command is asked to stop once: service managers repeat SIGTERM, which must interrupt neither the end
    of a run nor the removal of what a command had opened. `is_own`: the process is the command's own, and
    has no other threads yet.
    """
    began = time.monotonic()

    def interrupt(number: int) -> None:
        if _ASKED_AT[0] > began:
            _interrupt_again(number)
        else:
            _note()
            raise KeyboardInterrupt

    with _handled_by(interrupt):
        if is_own:
            _listen()
        yield


def _listen() -> None:
    """Keep SIGTERM and SIGHUP from this process and from all that it starts, but for one thread, which passes
    them on to the main thread.

    Ray sets handlers of its own while it starts, one of which ends the process with a page of addresses.
    And who signals a process group or a control group (`timeout`, systemd, Slurm) means the command, which
    needs Ray and its workers to end in good order.
    """
    heard = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    main = threading.main_thread().ident or 0

    def listen() -> None:
        while True:
            signal.sigwait(heard)
            signal.pthread_kill(main, _PASSED_ON)

    threading.Thread(target=listen, name="signals", daemon=True).start()


def _note() -> None:
    _ASKED_AT[0] = time.monotonic()


def _interrupt_again(number: int) -> None:
    """Interrupt what stops already, if a second Ctrl-C asks for it."""
    if number == signal.SIGINT and time.monotonic() - _ASKED_AT[0] > _SAME_REQUEST_S:
        raise KeyboardInterrupt


@contextmanager
def _handled_by(hear: Callable[[int], None]) -> Iterator[None]:
    """Call `hear` with the number of each signal. Only the main thread of a process can do so."""

    def handle(number: int, frame: FrameType | None) -> None:
        hear(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]  # `nohup`: the run is to outlive its terminal.
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        _restore(before)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:  # None: a handler that was not set from Python.
            signal.signal(number, handler)


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold these signals back while Ray starts or is joined, but for Ctrl-C, which ends a start that hangs;
    and keep their handlers.

    The processes that are started meanwhile inherit the block, which shields them where `_listen` does
    not: where the process is another program's.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_ENDING, _PASSED_ON))
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            _restore(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
