"""The process that imports the frameworks once, and forks a check process whenever a worker asks for one.

Comes in: what to import, then requests with the descriptors of a new check process. Goes out: check processes
that are ready in tens of milliseconds, where an import takes seconds; their pages are shared. The driver
starts it while it plans, and the workers of this machine connect to it (`ForkServer.address`).

It opens no device and computes nothing, so that no thread is lost by a fork. Where an import has started a
thread or opened a device all the same (`_unsafe`), it refuses, and check processes start on their own, as
they do on systems without abstract sockets (unix(7), Linux alone). Each connection lives as long as its
check process: the server ends a process whose worker has closed it, and tells how the process ended. If the
server dies, the kernel ends its check processes, and workers start others on their own.
"""

import contextlib
import errno
import gc
import hashlib
import os
import pickle
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ray_precheck.foreign import caught, first_line
from ray_precheck.private_parts import DEBUG
from ray_precheck.processes import HOME, end_with_parent, launch, module_command, python_path

Load = Callable[[], None]
"""Imports what the check processes of a job need; pickled for the server."""

_IS_KNOWN = sys.platform == "linux"
# The first answer to a request: a process id, or 0 and a reason. The second: an exit code (waitpid(2)).
_NUMBER = struct.Struct("<i")
_MOST_BYTES = 1 << 16
_UNUSED_S = 10.0
# What one command needs: a server for its own framework, and one for that of another dump or of the golden
# run.
_MOST_SERVERS = 2
# Variables that change nothing that is imported: Ray's, which tell one worker from another, pytest's, a
# shell's.
_TELLING = ("RAY_", "PYTEST_CURRENT_TEST", "PWD", "OLDPWD", "SHLVL", "LINES", "COLUMNS")
# Devices of the system that every process may have open; any other under /dev belongs to a driver.
_HARMLESS = ("null", "zero", "full", "random", "urandom", "tty", "pts/", "shm/", "ptmx", "console")


# After each record glibc returns to the system what is free at the top of its heap above 64 MiB, and
# the kernel clears these pages anew for the next record: measured, 3 to 5 % of the loop. Here 128 MiB
# are kept; blocks over 32 MiB are returned at once, as by default (mallopt(3)).
_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}


def process_environment(debug: bool) -> dict[str, str]:
    """Return the environment of a check process: it has `_HEAP`, unless the user has set these variables;
    `debug` goes on to it."""
    told = {DEBUG: "1"} if debug else {}
    return {**_HEAP, **os.environ, **told, "PYTHONPATH": python_path()}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The name of a server's abstract socket, and its process id."""

    name: str
    pid: int


class ForkServer:
    """A server and its check processes; `close` ends all of them."""

    def __init__(self, load: Load, environment: Mapping[str, str]) -> None:
        """Start a server, which imports while this process goes on."""
        name = f"ray_precheck-{os.getpid()}-{secrets.token_hex(8)}"
        with _listening(name) as listener:
            self._popen = _spawned(listener, load, environment, os.getpid())
        self.address = ServerAddress(name, self._popen.pid)

    @property
    def is_alive(self) -> bool:
        """Whether the server has not ended."""
        return self._popen.poll() is None

    def close(self) -> None:
        """End the server, and with it every check process that it has forked."""
        self._popen.kill()
        self._popen.wait()


def _listening(name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0{name}")
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def _spawned(
    listener: socket.socket, load: Load, environment: Mapping[str, str], parent: int
) -> "subprocess.Popen[bytes]":
    """Start a server that ends with the process `parent`; with 0 it ends when nobody needs it any more."""
    command = module_command("ray_precheck.runtime.workers.fork_server")
    popen = launch(
        lambda: subprocess.Popen(
            [*command, str(listener.fileno()), str(parent)],
            env=dict(environment),
            pass_fds=(listener.fileno(),),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    )
    assert popen.stdin is not None
    with contextlib.suppress(BrokenPipeError), popen.stdin as stdin:
        stdin.write(pickle.dumps(load))
    return popen


@dataclass(frozen=True, slots=True)
class NodeServer:
    """The server of a node of a cluster, where workers are processes of their own.

    The first worker that asks starts it. It outlives that worker, so that a lost worker costs the others
    nothing, and serves a run that begins before it has been unused for `_UNUSED_S`.
    """

    node_id: str
    load: Load

    def opened(self, *, debug: bool) -> ServerAddress | None:
        """Return its address, and start it where no other worker has; None where the system has no such
        sockets."""
        if not _IS_KNOWN:
            return None
        environment = process_environment(debug)
        name = self._name(environment)
        try:
            listener = _listening(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return None
        else:
            with listener:
                _spawned(listener, self.load, environment, 0).wait()
        # Whose process it is only the worker that has started it could tell.
        return ServerAddress(name, 0)

    def _name(self, environment: Mapping[str, str]) -> str:
        """Return a name that another server has only if it imports the same in the same environment."""
        same = (self.node_id, os.getuid(), HOME, sys.executable, _key(self.load, environment))
        return f"ray_precheck-{hashlib.sha256(repr(same).encode()).hexdigest()[:32]}"


def _key(load: Load, environment: Mapping[str, str]) -> tuple[Any, ...]:
    """Return what two servers must have in common to be the same."""
    own = [(name, value) for name, value in environment.items() if not name.startswith(_TELLING)]
    return pickle.dumps(load), tuple(sorted(own))


class ForkServers:
    """The servers of a command, one for each thing to import and environment; closing ends them.

    `users` is how many runs have them now.
    """

    def __init__(self) -> None:
        self.users = 0
        self._servers: dict[tuple[Any, ...], ForkServer] = {}

    def open(self, load: Load, *, debug: bool) -> ServerAddress | None:
        """Return a server, started where there is none yet; None where none can be started."""
        if not _IS_KNOWN:
            return None
        environment = process_environment(debug)
        key = _key(load, environment)
        server = self._servers.get(key)
        if server is None or not server.is_alive:
            try:
                server = ForkServer(load, environment)
            except OSError:  # Check processes start on their own, or say why they cannot.
                return None
        # The last one is used last.
        self._servers.pop(key, None)
        self._servers[key] = server
        while len(self._servers) > _MOST_SERVERS:
            self._servers.pop(next(iter(self._servers))).close()
        return server.address

    def close(self) -> None:
        """End all of them."""
        for server in self._servers.values():
            server.close()


_KEPT: list[ForkServers] = []
_KEEPING = threading.Lock()


@contextmanager
def kept_servers() -> Iterator[ForkServers]:
    """Return the servers of this process, which end with the last of these blocks, of whichever thread."""
    with _KEEPING:
        if not _KEPT:
            _KEPT.append(ForkServers())
        servers = _KEPT[0]
        servers.users += 1
    try:
        yield servers
    finally:
        with _KEEPING:
            servers.users -= 1
            if not servers.users:
                _KEPT.clear()
                servers.close()


class NotForked(OSError):
    """There is no such server any more, or it does not fork; the text says why."""


def _require_own(line: socket.socket) -> None:
    """Require that this user is at the other end: an abstract socket has no permissions, so that everybody
    can connect to it, and bind a name that is free.

    Raises:
        PermissionError: it is somebody else.
    """
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 3 * _NUMBER.size)
    if struct.unpack("<3i", credentials)[1] != os.getuid():
        raise PermissionError("another user is at the other end")


class ForkedProcess:
    """A check process that a server has forked, with the methods of `subprocess.Popen` that its worker
    uses."""

    def __init__(
        self, address: ServerAddress, handles: tuple[int, ...], variables: Mapping[str, str]
    ) -> None:
        """Ask for a process, which gets these descriptors and environment variables."""
        self._server = address.pid
        self._pid = 0
        self._code: int | None = None
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._line.connect(f"\0{address.name}")
            _require_own(self._line)
            socket.send_fds(self._line, [pickle.dumps(dict(variables))], handles)
        except OSError:  # Nobody listens, or somebody else does.
            self._line.close()

    @property
    def pid(self) -> int:
        """The process id; that of the server until the process is there."""
        return self._pid or self._server

    def await_fork(self, seconds: float) -> bool:
        """Wait until the process is there; return whether it is.

        Raises:
            NotForked: the server does not fork, or has died.
        """
        if self._pid:
            return True
        try:
            self._line.settimeout(seconds)
            answer = self._line.recv(_MOST_BYTES)
        except TimeoutError:
            return False
        except OSError:  # The request was not even read.
            answer = b""
        if not answer:
            raise NotForked("its fork server died")
        self._pid = _NUMBER.unpack_from(answer)[0]
        if not self._pid:
            raise NotForked(answer[_NUMBER.size :].decode())
        return True

    def wait(self, timeout: float) -> int:
        """Return the exit code of the process, negative for a signal; as one that was killed where its server
        died, which has taken it along.

        Raises:
            subprocess.TimeoutExpired: it has not ended in so many seconds.
        """
        if self._code is None:
            try:
                self._line.settimeout(timeout)
                answer = self._line.recv(_MOST_BYTES)
            except TimeoutError:
                raise subprocess.TimeoutExpired("check process", timeout) from None
            except OSError:
                answer = b""
            self._code = _NUMBER.unpack(answer)[0] if answer else -signal.SIGKILL
            self._line.close()
        return self._code

    def kill(self) -> None:
        """Kill the process, if it has not ended."""
        if self._code is not None:
            return
        # A server that is stopped does not hear of the end of the line.
        if self._pid and not self._has_ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._pid:
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_WR)
        else:
            self._code = -signal.SIGKILL
            self._line.close()

    def _has_ended(self) -> bool:
        """Return whether the server has told the exit code, after which the process id may be another's."""
        try:
            return bool(self._line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False


@dataclass(slots=True)
class _Server:
    """The server's side; `lines` are the connections, each with the process that was forked for it, 0 before.

    `refusal` says why it does not fork, "" where it does; `ends_unused`: it ends when it has no connection
    for `_UNUSED_S`.
    """

    listener: socket.socket
    cores: set[int]
    refusal: str
    ends_unused: bool
    lines: dict[socket.socket, int] = field(default_factory=dict)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def serve(self) -> NoReturn:
        """Answer requests until this process is killed."""
        bell, ringer = socket.socketpair()
        ringer.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(ringer.fileno())
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(bell, selectors.EVENT_READ)
        while True:
            limit_s = _UNUSED_S if self.ends_unused and not self.lines else None
            found = self.selector.select(limit_s)
            if not found:
                os._exit(0)
            for key, _ in found:
                if key.fileobj is self.listener:
                    self._accept()
                elif key.fileobj is bell:
                    bell.recv(_MOST_BYTES)
                    self._reap()
                elif key.fileobj in self.lines:
                    self._hear(key.fileobj)

    def _accept(self) -> None:
        line, _ = self.listener.accept()
        try:
            _require_own(line)
        except PermissionError:
            line.close()
            return
        self.lines[line] = 0
        self.selector.register(line, selectors.EVENT_READ)

    def _hear(self, line: socket.socket) -> None:
        """Take a request, or the end of a connection, after which its process has no worker any more."""
        try:
            message, handles, _, _ = socket.recv_fds(line, _MOST_BYTES, 8)
        except OSError:
            message, handles = b"", []
        pid = self.lines[line]
        if not message:
            self.selector.unregister(line)
            if pid:
                os.kill(pid, signal.SIGKILL)  # It is a zombie at least, so the number is its own.
            else:
                self._hang_up(line)
        elif self.refusal:
            self._tell(line, _NUMBER.pack(0) + self.refusal.encode()[:1024])
        else:
            own = os.getpid()
            try:
                child = os.fork()
            except OSError as error:  # A limit of processes or of memory.
                self._tell(line, _NUMBER.pack(0) + f"it cannot fork: {error.strerror}".encode())
            else:
                if child == 0:
                    self._become(own, pickle.loads(message), handles)
                self.lines[line] = child
                self._tell(line, _NUMBER.pack(child))
        for handle in handles:
            os.close(handle)

    def _tell(self, line: socket.socket, answer: bytes) -> None:
        with contextlib.suppress(OSError):  # The worker is gone; the end of the line is read next.
            line.send(answer)

    def _hang_up(self, line: socket.socket) -> None:
        del self.lines[line]
        with contextlib.suppress(KeyError):
            self.selector.unregister(line)
        line.close()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                for line in [line for line, each in self.lines.items() if each == pid]:
                    self._tell(line, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
                    self._hang_up(line)

    def _become(self, server: int, variables: Mapping[str, str], handles: list[int]) -> NoReturn:
        """Run a check process in this one, which the process `server` has just forked, until its end."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pipe, wakeup, board, output = handles
            kept = {*handles, 0, 1, 2}
            for name in os.listdir("/proc/self/fd"):
                # Connections of other processes must end with these, and the epoll and the bell are the
                # server's.
                with contextlib.suppress(OSError):
                    if int(name) not in kept and _is_of_server(int(name)):
                        os.close(int(name))
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            os.environ.update(variables)
            os.sched_setaffinity(0, self.cores)
            from ray_precheck.runtime.workers.check_process import serve

            serve(pipe, server, wakeup, board)
            code = 0
        finally:
            if code:  # What Python itself would write, of any exception.
                sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(code)


def _is_of_server(handle: int) -> bool:
    """Return whether a descriptor is a socket or an epoll: all of these are the server's own."""
    target = os.readlink(f"/proc/self/fd/{handle}")
    return target.startswith("socket:") or target == "anon_inode:[eventpoll]"


def _unsafe() -> str:
    """Return why this process must not be forked, "" where it may."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"the import has started {threads - 1} threads"
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(entry.path).removeprefix("/dev/")
            if target[:1] != "/" and ":" not in target and not target.startswith(_HARMLESS):
                return f"the import has opened the device {target}"
    return ""


def main() -> None:
    """Import what the standard input asks for, then serve.

    The arguments of the command line: the descriptor of the listening socket, the parent's process id or 0.
    """
    parent = int(sys.argv[2])
    if parent:
        end_with_parent(parent)
    elif os.fork():
        os._exit(0)  # The server is nobody's child, so that it does not end with a worker.
    # A command tells its own server when to end; that of a node ends with the session of the node
    # (`cluster/stop`).
    for number in (signal.SIGINT, signal.SIGHUP, *([signal.SIGTERM] if parent else [])):
        signal.signal(number, signal.SIG_IGN)
    listener = socket.socket(fileno=int(sys.argv[1]))
    listener.set_inheritable(False)
    cores = os.sched_getaffinity(0)
    # Libraries that count the cores when they are loaded start threads for all that they see.
    os.sched_setaffinity(0, {min(cores)})
    gc.disable()
    # What is unpickled imports, too.
    _, error = caught(lambda: pickle.load(sys.stdin.buffer)())
    # What was imported stays for ever; a collection would touch, and so copy, every page that children share.
    gc.freeze()
    gc.enable()
    # The check process that is started on its own says what is wrong with the framework.
    refusal = _unsafe() if error is None else f"the import failed: {first_line(error)}"
    _Server(listener, cores, refusal, ends_unused=not parent).serve()


if __name__ == "__main__":
    main()
