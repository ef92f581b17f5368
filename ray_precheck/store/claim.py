"""One run at a time: the claim of a run on its files, from the first look to the last rename.

Comes in: the path of a lock file beside the CSV files. Goes out: the token of the run that holds
it, or a `ClaimedError` that names the run that does. The session's process holds the claim; the
writer, a process of its own, asks before each batch whether the claim is still that of its run
(`require_claim`), so that the writer of a run that was killed appends nothing to the next one's rows.

The claim is a lock of the kernel (flock), so it ends with its process, also after `kill -9`; a file
that is left behind is no claim. The file names the holder: host, process, token. Where the file
system has no locks, or another machine's are not seen (NFS with local locks), the file alone must
do: a process of this machine is looked for, and a process of another machine has to be seen to
renew its claim, which changes the file's time every few seconds.

The lock on the result CSV, held by the process that writes it. A run as a whole holds a claim (`claim`);
this lock is for the writer of a run that was killed, which may live a little longer than its driver. The
lock ends with its process. On file systems without locks there is no such lock.
"""

import errno
import fcntl
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ray_precheck.errors import StoppedError
from ray_precheck.foreign import from_json, open_file, regular_file

# A process that was killed a moment ago may hold its lock until the kernel has cleared its memory.
_PATIENCE_S = 2.0
_INTERVAL_S = 0.05
_RENEWAL_S = 3.0
# A run on another machine that has not renewed its claim for so long is over.
_RENEWED_WITHIN_S = 12.0
_MOST_BYTES = 4096


class ClaimedError(OSError):
    """Another run has the files; `holder` says which, for people."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"claimed by {holder}")
        self.holder = holder


@dataclass(frozen=True, slots=True)
class _Holder:
    """The run that has the files. `started` is the kernel's time of the process's start, "" if
    unknown."""

    host: str
    pid: int
    started: str
    since: str
    token: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since})"

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.host == socket.gethostname()


@contextmanager
def claimed(path: Path) -> Iterator[str]:
    """Hold the claim on the files of a run; yields the token that `require_claim` asks for.

    The lock file is made, and removed at the end.

    Raises:
        ClaimedError: another run has them.
        OSError: the lock file cannot be made or written.
    """
    handle = _take(path)
    try:
        holder = _Holder(
            socket.gethostname(),
            os.getpid(),
            _started(os.getpid()),
            time.strftime("%Y-%m-%d %H:%M:%S"),
            secrets.token_hex(8),
        )
        _write(handle, holder)
        with _renewed(handle):
            yield holder.token
    finally:
        # Removed while it is locked: a process that waits for it sees that it is another file then.
        with suppress(OSError):
            if _is_still(path, handle):
                path.unlink()
        os.close(handle)


def require_claim(path: Path, token: str) -> None:
    """Require that the run of this token still has the files.

    Raises:
        StoppedError: another run has them now.
    """
    holder = _holder(path)
    if holder is not None and holder.token != token:
        raise StoppedError(
            f"another run has taken over the files beside {path.name}: {holder}; this one writes"
            " nothing more to them"
        )


def running(path: Path) -> str:
    """Return which run has the files now, for people; "" for none. The claim is not touched.

    A run on another machine is seen by its renewals, for which the clocks must agree to some seconds.
    """
    holder = _holder(path)
    if holder is None:
        return ""
    if holder.is_here:
        lives = bool(holder.started) and _started(holder.pid) == holder.started
    else:
        lives = abs(time.time() - _changed(path) / 1e9) < _RENEWED_WITHIN_S
    return str(holder) if lives else ""


def _take(path: Path) -> int:
    """Return the descriptor of the lock file, which this process has alone."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        handle = regular_file(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        holder = None
        try:
            sees_locks = _lock(handle)
            if _is_still(path, handle):
                holder = _holder(path)
                if holder is None or not _lives(holder, path, sees_locks=sees_locks):
                    return handle
        except BlockingIOError:
            holder = _holder(path)
        except OSError:
            os.close(handle)
            raise
        os.close(handle)
        if time.monotonic() > until:
            raise ClaimedError("another process" if holder is None else str(holder))
        time.sleep(_INTERVAL_S)


def _lock(handle: int) -> bool:
    """Lock a file; returns False where the file system has no locks.

    Raises:
        BlockingIOError: another process has it.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _is_still(path: Path, handle: int) -> bool:
    """Return whether a name still stands for the file that was opened by it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _lives(holder: _Holder, path: Path, *, sees_locks: bool) -> bool:
    """Return whether the run that an unlocked file names may still write."""
    if holder.is_here:
        # Locks of this machine are always seen, where there are any: it has none, so it is over.
        return not sees_locks and bool(holder.started) and _started(holder.pid) == holder.started
    before, until = _changed(path), time.monotonic() + _RENEWED_WITHIN_S
    while time.monotonic() < until:
        time.sleep(_INTERVAL_S)
        if _changed(path) != before:
            return True
    return False


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _started(pid: int) -> str:
    """Return when a process was started, by the kernel's clock; "" where there is none.

    The ticks as the kernel counts them stand in the lock files, and no change of the machine's time
    moves them; psutil makes seconds since the epoch of them, which such a change does move.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The name of the command is in parentheses and may hold anything (proc(5)).
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _write(handle: int, holder: _Holder) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(asdict(holder)).encode() + b"\n", 0)
    os.fsync(handle)


def _holder(path: Path) -> _Holder | None:
    """Return the holder that a lock file names; None if it names none."""
    try:
        with open_file(path) as file:
            found = from_json(file.read(_MOST_BYTES))
        host, started, since, token = (
            str(found[name]) for name in ("host", "started", "since", "token")
        )
        return _Holder(host, int(found["pid"]), started, since, token)
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def _renewed(handle: int) -> Iterator[None]:
    """Change the file's time every few seconds, for runs on other machines."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(_RENEWAL_S):
            with suppress(OSError):
                os.utime(handle)

    thread = threading.Thread(target=renew, name="claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # Of a claim that is left to the end of the process the thread runs no more: Python 3.13 would
        # wait for it forever.
        if not sys.is_finalizing():
            thread.join()


# The writer of a run that was killed may live a little longer than its driver.
_LOCK_PATIENCE_S = 10.0


def lock_file(handle: int) -> None:
    """Lock an open file until it is closed.

    Raises:
        BlockingIOError: another process holds the lock for longer than 10 s.
    """
    until = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            _lock(handle)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise BlockingIOError(errno.EWOULDBLOCK, "another run is writing them") from None
            time.sleep(_INTERVAL_S)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, where there is one.

    A writer that completes a run puts another file in its place: then that one is locked.

    Raises:
        BlockingIOError: another process holds it.
    """
    handle = _open_locked(path)
    try:
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def _open_locked(path: Path) -> int:
    """Return the descriptor of the locked file, -1 where there is none that can be read."""
    while True:
        try:
            handle = regular_file(path, os.O_RDONLY)
        except OSError:
            return -1  # The functions that read the file report that it cannot be read.
        try:
            lock_file(handle)
        except BlockingIOError:
            os.close(handle)
            raise
        if _is_still(path, handle):
            return handle
        os.close(handle)
