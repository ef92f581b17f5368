"""Runs one command and ends everything that it has started, however this process is told to end.

    python -I -S keep.py PARENT STATUS WORD ...

Comes in: the process id of the parent, the descriptor of a pipe, the words of a command, and on stdin its
environment: `NAME=VALUE`, each ended by a zero byte, so that a switch like LD_PRELOAD is in the command's
alone. Goes out: a line on the pipe: the command's exit code, negative for a signal; or `errno N` where it
cannot be started. Started by `commands.bisect.trial_command` for each command.

Processes that the command leaves behind become children of this process (prctl(2), PR_SET_CHILD_SUBREAPER),
whatever sessions and groups they have made for themselves, and are killed when the command ends, at SIGTERM,
and when the parent ends. If this process is killed itself, the command ends with it, and the parent has the
others. Only the standard library is used, since a command takes 13 ms to be started so.
"""

import ctypes
import glob
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_AWAITED = (signal.SIGCHLD, signal.SIGTERM)


def main() -> None:
    """Run the command to its end, or to the end of the parent."""
    parent, status_fd, words = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    with open(0, "rb") as stdin:
        pairs = [each.partition(b"=") for each in stdin.read().split(b"\0") if each]
    env = {name: value for name, _, value in pairs}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    # Ctrl-C of a terminal is for the driver.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
    command = os.fork()
    if command == 0:
        _become(words, env, mask, status_fd)
    code = _code_of(command)
    _end_descendants()
    if code is not None:
        os.write(status_fd, f"{code}\n".encode())


def _become(
    words: "list[str]", env: "dict[bytes, bytes]", mask: "set[int | signal.Signals]", status_fd: int
) -> None:
    keeper = os.getppid()
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    os.set_inheritable(status_fd, False)
    # What Python ignores stays ignored in a command that it starts; the command expects neither.
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvpe(words[0], words, env)
    except OSError as error:
        os.write(status_fd, f"errno {error.errno}\n".encode())
        os._exit(127)


def _code_of(command: int) -> "int | None":
    """Return how the command ended; None where this process was told to end before."""
    while True:
        if signal.sigwait(_AWAITED) == signal.SIGTERM:
            return None
        pid = -1
        while pid:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == command:
                return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _end_descendants() -> None:
    """Kill the children of this process until there is none; those of a killed one become its own."""
    while True:
        for path in glob.glob("/proc/self/task/*/children"):
            with open(path) as children:
                pids = children.read().split()
            for pid in pids:
                with suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
