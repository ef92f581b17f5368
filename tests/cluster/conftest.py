"""One Ray cluster for the whole test session, on loopback, ended by its process id."""

import atexit
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parent.parent / "data"
FAULTY = DATA.parent.parent / "scripts" / "faulty"

# Ray reads these when it is imported, so they are set when this file is: before any test runs.
_FOLDER = Path(tempfile.mkdtemp(prefix="rpt-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
# Where a broken operator says that it sleeps.
MARKS = _FOLDER / "marks"
MARKS.mkdir()
_TOKEN = _FOLDER / "token"
_TOKEN.touch(mode=0o600)
_TOKEN.write_text(secrets.token_hex(32))
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": str(_TOKEN),
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed|The node with node id|Raylet is terminated",
    # How often Ray writes what it knows of its object store.
    "RAY_debug_dump_period_milliseconds": "300",
    "FAULTY_MARKS": str(MARKS),
    # A torch with broken operators, of which the captures use none.
    "PYTHONPATH": os.pathsep.join(
        [str(FAULTY), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    ),
}
os.environ.update(_ENVIRONMENT)


def store_state() -> dict[str, int]:
    """Return Ray's own numbers of the object store of the cluster, by their names in its report."""
    (report,) = _FOLDER.glob("session_2*/logs/debug_state.txt")
    for _ in range(50):
        found = re.findall(r"^- ([a-z /]+): (\d+)$", report.read_text(), re.MULTILINE)
        numbers = {name: int(number) for name, number in found}
        if "cumulative spill requests" in numbers:
            return numbers
        time.sleep(0.1)  # Ray is writing it.
    raise AssertionError(f"{report} says nothing of spilling")


@pytest.fixture(scope="session")
def cluster_address() -> Iterator[str]:
    """Return the address of a running cluster of one node."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (_FOLDER / "head.log").open("wb")
    ray_command = Path(sys.executable).with_name("ray")
    head = subprocess.Popen(
        [
            str(ray_command), "start", "--head", "--block", "--include-dashboard=false",
            "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=2", "--num-gpus=0",
            f"--temp-dir={_FOLDER}", "--object-store-memory=134217728",
        ],
        stdout=log,
        stderr=log,
        start_new_session=True,
    )  # fmt: skip
    try:
        _wait_for(port, head)
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        try:
            head.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()
        log.close()


def _wait_for(port: int, head: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert head.poll() is None, (_FOLDER / "head.log").read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                # The port answers before the node has joined.
                time.sleep(3)
                return
        time.sleep(0.2)
    raise AssertionError((_FOLDER / "head.log").read_text())
