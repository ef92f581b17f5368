"""A cluster of bare machines, started and ended by the scripts of cluster/."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import DATA
from networks import Network, can_make_networks

pytestmark = pytest.mark.cluster
SCRIPTS = DATA.parent.parent / "cluster"
DUMP = DATA / "torch_cnn" / "dump.json"
# Room for what other tests run at the same time.
NODE = ["--cpus", "1", "--store-bytes", "100000000", "--", "--num-gpus=0"]


def plain_environment() -> dict[str, str]:
    """Return the environment of a user's shell: nothing of Ray's, the environment's ray first."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith("RAY_")}
    kept.pop("PYTHONPATH", None)
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def in_its_shell(state: Path, *arguments: object) -> list[str]:
    """Return the command that runs ray-precheck as the README says."""
    return [
        "bash", "-c", 'eval "$("$1" --state "$2")" && shift 2 && exec ray-precheck "$@"', "-",
        str(SCRIPTS / "env"), str(state), *map(str, arguments), "--address", "auto",
    ]  # fmt: skip


def is_alive(process: psutil.Process) -> bool:
    """Return whether the process runs; one that only waits for its parent does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def files_of(out: Path) -> tuple[bytes, bytes]:
    (result,) = out.glob("accuracy_checking_result_*.csv")
    (details,) = out.glob("accuracy_checking_details_*.csv")
    return result.read_bytes(), details.read_bytes()


class Machines(Network):
    """Namespaces whose Ray is started by the scripts; each has a state folder of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.environment = {**plain_environment(), "HOME": str(self.folder)}
        self.token = self.folder / ".ray" / "auth_token"

    def state(self, number: int) -> Path:
        return self.folder / f"s{number}"

    def run(self, number: int, *command: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["ip", "netns", "exec", self.namespace(number), *map(str, command)],
            capture_output=True, text=True, check=False, timeout=400, env=self.environment,
        )  # fmt: skip

    def start(self, number: int) -> None:
        self.connect(number)
        where = ["--host", self.host(number), "--state", self.state(number), *NODE]
        script = [SCRIPTS / "start-head"] if number == 1 else [SCRIPTS / "start-worker"]
        done = self.run(number, *script, *([self.host(1)] if number > 1 else []), *where)
        assert done.returncode == 0, done.stderr

    def pids(self, number: int) -> list[int]:
        listed = subprocess.run(
            ["ip", "netns", "pids", self.namespace(number)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return [int(pid) for pid in listed.stdout.split()]


@pytest.fixture
def machines() -> Iterator[Machines]:
    with Machines() as made:
        made.start(1)
        yield made


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Return both files of a run without a cluster."""
    from ray_precheck import precheck

    report = precheck(DUMP, out=tmp_path_factory.mktemp("alone"), devices=(0,))
    assert report.completed, report
    return report.files.result.read_bytes(), report.files.details.read_bytes()


needs_networks = pytest.mark.skipif(
    not can_make_networks(), reason="network namespaces need root and the command ip"
)


@needs_networks
def test_a_head_and_a_worker_do_the_run_together_and_stop_leaves_no_process(
    machines: Machines, alone: tuple[bytes, bytes], tmp_path: Path
) -> None:
    machines.start(2)
    options = ["run_ut", "-api_info", DUMP, "-o", tmp_path, "-d", 0, 1]
    run = machines.spawn(1, in_its_shell(machines.state(1), *options), subprocess.PIPE)
    worked: set[int] = set()
    until = time.monotonic() + 300
    while run.poll() is None and time.monotonic() < until:
        worked |= {n for n in (1, 2) if any("Worker" in title for title in machines.titles(n))}
        time.sleep(0.1)
    output = run.communicate(timeout=400)[0].decode()
    assert run.returncode == 1, output  # torch_cnn has three errors
    assert worked == {1, 2}
    assert files_of(tmp_path) == alone
    for number in (2, 1):
        assert machines.pids(number)
        done = machines.run(number, SCRIPTS / "stop", "--state", machines.state(number))
        assert (done.returncode, machines.pids(number)) == (0, []), done.stderr
        assert not machines.state(number).exists()


@needs_networks
def test_a_worker_with_another_token_does_not_join(machines: Machines) -> None:
    other = machines.folder / "other"
    other.touch(mode=0o600)
    other.write_text(secrets.token_hex(32))
    machines.connect(2)
    done = machines.run(
        2, SCRIPTS / "start-worker", machines.host(1), "--token", other, "--host", machines.host(2),
        "--state", machines.state(2), *NODE,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Ray did not start here" in done.stderr
    assert "token" in done.stderr.lower()
    assert machines.pids(2) == []


@needs_networks
def test_a_worker_says_that_no_head_answers(machines: Machines) -> None:
    machines.connect(2)
    done = machines.run(
        2, SCRIPTS / "start-worker", f"{machines.host(1)}:1", "--wait", "1",
        "--state", machines.state(2), *NODE,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"no head answers at {machines.host(1)}:1 within 1 s" in done.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: Ray's sockets allow 107 characters."""
    made = Path(tempfile.mkdtemp(prefix="rpb-"))
    yield made
    subprocess.run([SCRIPTS / "stop", "--state", made / "s"], check=False, capture_output=True)
    shutil.rmtree(made, ignore_errors=True)


def test_on_loopback_stop_ends_its_own_cluster_and_no_other(
    folder: Path, alone: tuple[bytes, bytes], cluster_address: str, tmp_path: Path
) -> None:
    environment = {**plain_environment(), "HOME": str(folder)}

    def call(*command: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            list(map(str, command)), capture_output=True, text=True, check=False, timeout=400,
            env=environment,
        )  # fmt: skip

    own_ports = ["--port", "26479", "--base-port", "26480", "--worker-ports", "26500-26900"]
    started = call(
        SCRIPTS / "start-head", "--host", "127.0.0.1", "--state", folder / "s", *own_ports, *NODE
    )
    assert started.returncode == 0, started.stderr
    ray_start = psutil.Process(int((folder / "s" / "pid").read_text().split()[0]))
    family = [ray_start, *ray_start.children(recursive=True)]
    # Nobody but this machine hears the cluster.
    heard = {c.laddr.ip for p in family for c in p.net_connections("tcp") if c.status == "LISTEN"}
    assert heard <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert heard
    options = ["run_ut", "-api_info", DUMP, "-o", tmp_path, "-d", 0]
    run = call(*in_its_shell(folder / "s", *options))
    assert run.returncode == 1, run.stderr
    assert files_of(tmp_path) == alone
    assert call(SCRIPTS / "stop", "--state", folder / "s").returncode == 0
    assert [process for process in family if is_alive(process)] == []
    # The cluster of the other tests still works.
    from ray_precheck import precheck

    out = tmp_path / "other"
    assert precheck(DUMP, out=out, devices=(0,), address=cluster_address).completed
