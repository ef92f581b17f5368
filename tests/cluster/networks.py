"""A Ray cluster of several machines on one: each node in a network namespace of its own.

Needs root and the command `ip`; `can_make_networks` says whether they are there.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
from conftest import FAULTY

PORT = 6479
# So that a node whose link is down is found dead within seconds and not after a minute.
_HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}


def can_make_networks() -> bool:
    """Return whether this user may make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"rpcprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return made.returncode == 0


class Network:
    """A bridge with namespaces on it: number 1 is the head, where the driver runs as well."""

    def __init__(self) -> None:
        # Short: Ray puts Unix sockets below it.
        self.folder = Path(tempfile.mkdtemp(prefix="rpn-"))
        # Where the broken operators of this network's machines leave and find their marks.
        self.marks = self.folder / "marks"
        self.marks.mkdir()
        self._tag = f"rp{secrets.token_hex(4)}"
        self.numbers: list[int] = []
        self._last = 0
        self._starts: Counter[int] = Counter()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        token = self.folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        inherited = {name: v for name, v in os.environ.items() if not name.startswith("RAY_")}
        self.environment = {
            **inherited,
            **_HEALTH_CHECKS,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "FAULTY_MARKS": str(self.marks),
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(FAULTY), os.environ.get("PYTHONPATH")])
            ),
        }

    def __enter__(self) -> "Network":
        _ip("link", "add", self._tag, "type", "bridge")
        _ip("link", "set", self._tag, "up")
        return self

    def __exit__(self, *error: object) -> None:
        for number in list(self.numbers):
            self._remove(number)
        _ip("link", "delete", self._tag)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def address(self) -> str:
        """The address of the cluster."""
        return f"{self.host(1)}:{PORT}"

    def host(self, number: int) -> str:
        """Return the IP address of a node."""
        return f"10.77.31.{number}"

    def namespace(self, number: int) -> str:
        """Return the name of a node's network namespace."""
        return f"{self._tag}n{number}"

    def start(self, number: int, hidden: Path | None = None) -> None:
        """Make a node and start Ray on it; number 1 comes first.

        What is in the folder `hidden` is not to be seen on this node.
        """
        if number not in self.numbers:
            self.connect(number)
        where = (
            ["--head", f"--port={PORT}", "--include-dashboard=false"]
            if number == 1
            else [f"--address={self.address}"]
        )
        command = [
            str(Path(sys.executable).with_name("ray")), "start", "--block", *where,
            f"--node-ip-address={self.host(number)}", "--num-cpus=1", "--num-gpus=0",
            "--object-store-memory=100000000",
        ]  # fmt: skip
        files = self.folder / "head"
        if number == 1:
            command.append(f"--temp-dir={files}")
        # Every node has files of its own: Ray 2.10 keeps there which address its node has.
        for folder in filter(None, [hidden, files if number > 1 else None]):
            # `ip netns exec` gives the command mounts of its own.
            script = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["sh", "-c", script, str(folder), *command]
        self._starts[number] += 1
        log = (self.folder / f"node{number}.log").open("wb")
        with log:
            self._processes[number] = self.spawn(number, command, log)
        self._wait_for(number)

    def start_another(self) -> int:
        """Start Ray on one node more; returns its number, which no node has had before."""
        self._last += 1
        self.start(self._last)
        return self._last

    def leave_alone(self, *kept: int) -> None:
        """Remove all nodes but these, of which 1 is one, and wait until Ray has noticed."""
        gone = [number for number in self.numbers if number not in kept]
        for number in gone:
            self._remove(number)
        log = self.folder / "head" / "session_latest" / "logs" / "gcs_server.out"
        until = time.monotonic() + 300
        for number in gone:
            death = re.compile(rf"address: {re.escape(self.host(number))} .* marked dead")
            while len(death.findall(log.read_text())) < self._starts[number]:
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.1)

    def _remove(self, number: int) -> None:
        self.kill(number)
        _ip("netns", "delete", self.namespace(number))
        self.numbers.remove(number)

    def connect(self, number: int) -> None:
        self.numbers.append(number)
        self._last = max(self._last, number)
        name, outside = self.namespace(number), f"{self._tag}v{number}"
        _ip("netns", "add", name)
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", outside, "master", self._tag, "up")
        _ip("-n", name, "addr", "add", f"{self.host(number)}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")

    def spawn(self, number: int, command: list[str], output: object) -> "subprocess.Popen[bytes]":
        """Start a command on a node."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace(number), *command],
            stdout=output,  # type: ignore[call-overload]
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
        )

    def unplug(self, number: int) -> None:
        """Take the link of a node down: its processes live on and hear nothing."""
        _ip("-n", self.namespace(number), "link", "set", "eth0", "down")

    def kill(self, number: int) -> None:
        """Kill everything that runs on a node."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.namespace(number)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        for pid in map(int, listed.stdout.split()):
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
        process = self._processes.pop(number, None)
        if process is not None:
            process.wait()

    def titles(self, number: int) -> list[str]:
        """Return the command lines of the actors and check processes of a node."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.namespace(number)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        titles = []
        for pid in map(int, listed.stdout.split()):
            try:
                title = " ".join(psutil.Process(pid).cmdline())
            except psutil.NoSuchProcess:
                continue
            if title.startswith("ray::") or "ray_precheck.runtime" in title:
                titles.append(title)
        return titles

    def kill_raylet(self, number: int) -> None:
        """Kill the raylet of a node; what it has started finds out by itself."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.namespace(number)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        for pid in map(int, listed.stdout.split()):
            if psutil.Process(pid).name() == "raylet":
                os.kill(pid, signal.SIGKILL)

    def _wait_for(self, number: int) -> None:
        log = self.folder / f"node{number}.log"
        until = time.monotonic() + 300
        while "Ray runtime started" not in log.read_text():
            assert self._processes[number].poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
