"""The process that a user starts: it runs the command in a child and outlives it.

Comes in: a command. Goes out: its exit code. Called by the command line. Ray ends a driver without
a word when its raylet dies, and the kernel may end it for its memory: then this process still says
how to go on, and sees to it that none of the child's processes stays behind.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from ray_precheck.processes import adopt_orphans, descendants, end_with_parent

# Waited for, and not handled: a handler that runs just before a call that blocks is not heard.
_AWAITED = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGINT)
# Processes that the child has started end when the child ends, or are killed after this time.
_END_TIMEOUT_S = 8.0

Announce = Callable[[str], None]


def guard(command: Callable[[Announce], int], epitaph: Callable[[str, str], None]) -> int:
    """Run `command` in a child process and return its exit code.

    The command gets a function by which it tells the guardian the result CSV that a next run needs. If
    the child ends without an exit code of its own, `epitaph` is called with the last text that the
    command told ("" for none) and with how the child ended; the exit code is 3.
    """
    if sys.platform != "linux":
        return command(lambda text: None)
    sys.stdout.flush()
    sys.stderr.flush()
    readable, writable = os.pipe()
    guardian = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    # Before the child is there, which may end, and leave orphans, before this process runs again.
    adopt_orphans()
    child = os.fork()
    if child == 0:
        os.close(readable)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        end_with_parent(guardian)
        _leave(command, writable)
    os.close(writable)
    status = _watch_over(child)
    said, code = _read(readable)
    _end_descendants()
    # What a command said last counts, even if a library crashes while Python ends, as Ray does where a
    # start of it was interrupted.
    if code is not None:
        return code
    epitaph(said, _how(status))
    return 3


def _leave(command: Callable[[Announce], int], writable: int) -> None:
    """Run the command and end this process, with a mark that it ended by itself, and its exit code."""

    def announce(text: str) -> None:
        os.write(writable, text.encode(errors="surrogateescape") + b"\n")

    code: int | None = 1
    try:
        code = command(announce)
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except KeyboardInterrupt:  # While it ended already.
        code = None
        raise
    finally:
        if code is not None:
            os.write(writable, bytes([0, code & 0xFF]))
        os.close(writable)
        sys.stdout.flush()
        sys.stderr.flush()
    sys.exit(code)


def _watch_over(child: int) -> int:
    """Pass signals on until the child ends; return how it ends."""
    while True:
        told = signal.sigwaitinfo(_AWAITED)
        # Ctrl-C on a terminal is sent to both, by the kernel: a code above 0 (sigaction(2)).
        has_it = told.si_signo == signal.SIGINT and told.si_code > 0
        if told.si_signo != signal.SIGCHLD and not has_it:
            os.kill(child, told.si_signo)
        pid = -1
        while pid:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                return os.waitstatus_to_exitcode(status)


def _read(readable: int) -> tuple[str, int | None]:
    """Return the last line that the child said, and its exit code, None where it did not come to its end."""
    with os.fdopen(readable, "rb") as pipe:
        said, mark, code = pipe.read().partition(b"\0")
    lines = said.decode(errors="surrogateescape").splitlines()
    return (lines[-1] if lines else ""), code[0] if mark else None


def _end_descendants() -> None:
    """Wait until all processes that the child started have ended; kill those that do not end."""
    until = time.monotonic() + _END_TIMEOUT_S
    with suppress(ChildProcessError):  # None is left.
        while True:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            if time.monotonic() > until:
                for pid in descendants(os.getpid()):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def _how(status: int) -> str:
    if status >= 0:
        return f"exit code {status}, no message: Ray ends a process so when its raylet dies"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
