"""One Ray cluster for each process of the tests, on loopback, ended by its process id.

Several processes may run tests side by side: each has a folder, a token and ports of its own.
"""

import atexit
import itertools
import json
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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dumps import additions, forward, tensor, write_dump

if TYPE_CHECKING:
    from ray_precheck.store.tables import RunFiles

DATA = Path(__file__).resolve().parent.parent / "data"
FAULTY = DATA.parent.parent / "scripts" / "faulty"

# How many slots a run has, and whether its workers see the folders: none of it is in the bytes.
SLOTS_AND_FILE_SYSTEMS = pytest.mark.parametrize(
    ("devices", "shared_fs"),
    [
        ((0, 1), False),
        pytest.param((0,), True, marks=pytest.mark.exhaustive),
        pytest.param((0, 1, 2, 3), False, marks=pytest.mark.exhaustive),
    ],
)

# Ray reads these when it is imported, so they are set when this file is: before any test runs.
_FOLDER = Path(tempfile.mkdtemp(prefix="rpt-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
# Where a broken operator says that it sleeps.
MARKS = _FOLDER / "marks"
MARKS.mkdir()
# Some broken calls take long until this file is there (`released`).
GO = MARKS / "go"
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
# Two Rays that choose from the same ports at the same moment may both find one free.
_PORTS_OF_HEAD, _HEADS_OF_PROCESS = 400, 5
_heads = itertools.count(
    _HEADS_OF_PROCESS * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
)


def pytest_configure(config: pytest.Config) -> None:
    """Let Ray warn of files that it leaves open."""
    # Ray 2.10 leaves the logs of the processes that it starts to the collector.
    unclosed = r"ignore:unclosed file <_io\.\w+ name='.+/session_.+/logs/:ResourceWarning"
    config.addinivalue_line("filterwarnings", unclosed)


def store_state() -> dict[str, int]:
    """Return Ray's own numbers of the object store of the cluster, by their names in its report."""
    for _ in range(600):
        found = re.findall(r"^- ([a-z /]+): (\d+)$", _report().read_text(), re.MULTILINE)
        numbers = {name: int(number) for name, number in found}
        if "cumulative spill requests" in numbers:
            return numbers
        time.sleep(0.1)  # Ray is writing it.
    raise AssertionError(f"{_report()} says nothing of spilling")


def fresh_store_state() -> dict[str, int]:
    """Return these numbers as they are now: those of a report that Ray has begun after this call."""
    for _ in range(2):  # The first that comes may have been begun before.
        seen = _report().stat().st_mtime_ns
        until = time.monotonic() + 300
        while _report().stat().st_mtime_ns == seen:
            assert time.monotonic() < until, "Ray reports nothing any more"
            time.sleep(0.02)
    return store_state()


def _report() -> Path:
    (report,) = _FOLDER.glob("session_2*/logs/debug_state.txt")
    return report


def label_option(name: str, value: str) -> str:
    """Return the option of `ray start` that gives a node a label, as the Ray of this process takes it.

    New ones take `name=value`, old ones (2.10 does) JSON.
    """
    from ray.scripts import scripts

    new = hasattr(scripts, "parse_node_labels_string")
    return f"--labels={name}={value}" if new else f"--labels={json.dumps({name: value})}"


@contextmanager
def started_head(folder: Path, *options: str) -> Iterator[str]:
    """Start a Ray of one node on loopback, with its files in a folder; yields its address.

    The folder's name is short: Ray's sockets lie below it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    first = 10_002 + _PORTS_OF_HEAD * next(_heads)
    log = folder / "head.log"
    with log.open("wb") as output:
        head = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("ray")), "start", "--head", "--block",
                "--include-dashboard=false", "--node-ip-address=127.0.0.1", f"--port={port}",
                f"--min-worker-port={first}", f"--max-worker-port={first + _PORTS_OF_HEAD - 1}",
                "--num-gpus=0", f"--temp-dir={folder}", *options,
            ],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        until = time.monotonic() + 300  # On a busy machine Ray 2.10 has needed more than 60.
        while "Ray runtime started" not in log.read_text():
            assert head.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGTERM)
        try:
            head.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()


@contextmanager
def released() -> Iterator[None]:
    """Let the broken calls that wait for `GO` run as fast as others."""
    GO.touch()
    try:
        yield
    finally:
        GO.unlink()


@pytest.fixture(scope="session")
def cluster_address() -> Iterator[str]:
    """Return the address of a running cluster of one node."""
    with started_head(_FOLDER, "--num-cpus=2", "--object-store-memory=134217728") as address:
        yield address


@pytest.fixture(scope="session")
def whole_run(
    tmp_path_factory: pytest.TempPathFactory, cluster_address: str
) -> tuple[Path, "RunFiles"]:
    """Return a dump of 30 sums and a random call, and the files of its run, for tests that go on with it."""
    from ray_precheck import precheck

    folder = tmp_path_factory.mktemp("whole")
    random = {"Torch.dropout.0.forward": forward(tensor("float32", [2], 0.0, 1.0))}
    dump = write_dump(folder / "dump.json", additions(30), random)
    return dump, precheck(dump, out=folder / "out", address=cluster_address).files


@pytest.fixture
def finished(whole_run: tuple[Path, "RunFiles"], tmp_path: Path) -> tuple[Path, "RunFiles"]:
    """Return this dump, and the files of a copy of its run that is the test's own."""
    from ray_precheck.store.tables import run_files

    dump, files = whole_run
    out = shutil.copytree(files.result.parent, tmp_path / "finished")
    return dump, run_files(out / files.result.name)
