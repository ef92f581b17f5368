"""Private folders of a run: that of our own Ray cluster with its token, sockets and logs, and others.

Called by `runtime.places.cluster` and by commands whose workers write files. Only this user can read them,
and they go with the run: removed at its end, of a cluster by a watcher if the process was killed, and by the
next run if there is no watcher, or it was killed too.
"""

import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "rpc-"
_OWNER = "owner"
# Waits for the end of its standard input, which is the end of the process that holds the other end;
# then for Ray's processes to follow it. It reads /proc itself: it is started without installed packages
# (-S), so that it does not depend on what becomes of them, and starts at once.
_WATCHER = """
import os, shutil, signal, sys, time

def users(folder):
    # Ray's processes that outlive the driver by up to a minute: they have its log files open.
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            exe = os.readlink(f"/proc/{pid}/exe")
            if exe != os.path.realpath(sys.executable) and "/ray/" not in exe:
                continue
            links = (os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd"))
            if int(pid) != os.getpid() and any(link.startswith(folder) for link in links):
                yield int(pid)
        except OSError:
            pass

# What all processes of a terminal are told is for the driver.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
sys.stdin.buffer.read()
time.sleep(3)
for pid in users(sys.argv[1] + "/"):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder for one run, with mode 700, and remove it at the end; removes those that killed runs have
    left behind."""
    folder, owner = _made()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(owner)


def _made() -> tuple[Path, int]:
    """Make a folder; return it with the descriptor that shows other runs that it is in use."""
    sweep()
    # Short: Ray puts Unix sockets below it, whose paths may have 107 characters.
    hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
    owner = _lock(hidden / _OWNER)
    folder = hidden.with_name(f"{PREFIX}{secrets.token_hex(4)}")
    hidden.rename(folder)  # Seen by other runs only now, when it is locked.
    return folder, owner


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make the folder of a cluster: a private one that a watcher removes where this process is killed."""
    folder, owner = _made()
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCHER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        # A process of Ray's that was told to end in this moment may still write there. Then the watcher
        # removes the folder once more, 3 s after the end of its input, which closes here or with us.
        if folder.exists() and watcher.stdin is not None:
            watcher.stdin.close()
            watcher.returncode = 0  # Nobody waits for it.
        else:
            watcher.kill()
            watcher.communicate()
        os.close(owner)


def _lock(path: Path) -> int:
    """Lock a file for as long as this process lives.

    Raises:
        OSError: another process holds it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def sweep() -> None:
    """Remove the folders of this user whose process has gone without doing so."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if not (folder / _OWNER).is_file() or folder.stat().st_uid != os.getuid():
                continue
            handle = _lock(folder / _OWNER)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)
