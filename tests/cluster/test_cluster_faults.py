"""Faults while a run goes on: hangs, killed workers, a lost disk, devices that do not start."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from conftest import DATA, released
from dumps import additions, broken, slow, write_dump
from processes import killing, own_processes

from ray_precheck import PrecheckReport, StoppedError, precheck
from ray_precheck.runtime.actors import ActorLost
from ray_precheck.runtime.places.cluster import Roster, open_cluster
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.ray_actors import RayActors
from ray_precheck.runtime.recorder import Recorder
from ray_precheck.store.resume import new_run_files
from ray_precheck.store.tables import API_TABLES

pytestmark = pytest.mark.cluster
# The server and the check processes that it has forked, the server first.
SERVER = "ray_precheck.runtime.workers.fork_server"
TORCH_DUMP = DATA / "torch_cnn" / "dump.json"
REASONS = {
    "entr": "killed its worker (SIGSEGV)",
    "erfcx": "killed its worker (SIGABRT: what(): vector::_M_default_append)",
    "i0e": "killed its worker (SIGFPE)",
    "i1": "killed its worker (exit code 3)",
    "bessel_y0": "killed its worker (SIGKILL)",
    "i1e": "no answer in 2 s (--timeout)",
    "log_ndtr": "no answer in 2 s (--timeout)",
    "ndtri": "no answer in 2 s (--timeout)",
    "bessel_j0": "the device raised where the bench is fine: RuntimeError: the kernel returned error 507015",
    "bessel_j1": "ran out of memory: MemoryError (a worker may take 2 GiB, --max-memory)",
}


@pytest.fixture(scope="module", params=["cluster", ""], ids=["on Ray", "in this process"])
def faulty(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cluster_address: str
) -> PrecheckReport:
    """Return the report of a run with every fault, and harmless calls around each."""
    folder = tmp_path_factory.mktemp("faulty")
    parts = [additions(20), additions(20, 100)]
    for number, fault in enumerate(REASONS):
        parts[1:1] = [broken(fault), additions(3, 1000 + 10 * number)]
    return precheck(
        write_dump(folder / "dump.json", *parts),
        out=folder / "out",
        address=request.param and cluster_address,
        devices=(0, 1),
        timeout_s=2.0,
        max_memory_gib=2.0,
    )


def test_no_process_is_left_after_a_run_with_faults(faulty: PrecheckReport) -> None:
    assert faulty.completed
    until = time.monotonic() + 60
    # The server that the tests of this process share stays.
    while left := [
        each
        for each in own_processes("ray_precheck.runtime.workers.")
        if each.ppid() != os.getpid() or SERVER not in each.cmdline()
    ]:
        assert time.monotonic() < until, left
        time.sleep(0.1)


def test_every_fault_is_an_error_with_its_reason_and_its_neighbours_are_checked(
    faulty: PrecheckReport,
) -> None:
    rows = faulty.results.set_index("API Name")
    for fault, reason in REASONS.items():
        row = rows.loc[f"Torch.special.{fault}.0"]
        assert (row["Forward Test Success"], row["Message"]) == ("error", reason)
    others = rows.drop([f"Torch.special.{fault}.0" for fault in REASONS])
    assert len(others) == 40 + 3 * len(REASONS)
    assert set(others["Forward Test Success"]) == {"pass"}
    assert len(faulty.details) == len(others)


def test_an_error_that_poisons_the_device_is_not_held_against_later_records(
    tmp_path: Path, cluster_address: str
) -> None:
    dump = write_dump(tmp_path / "dump.json", broken("spherical_bessel_j0"), additions(30))
    report = precheck(dump, out=tmp_path / "out", address=cluster_address)
    rows = report.results.set_index("API Name")
    poison = rows.loc["Torch.special.spherical_bessel_j0.0"]
    assert poison["Forward Test Success"] == "error"
    assert "an illegal memory access was encountered" in poison["Message"]
    assert "the device was unusable afterwards" in poison["Message"]
    rest = rows.drop("Torch.special.spherical_bessel_j0.0")
    assert set(rest["Forward Test Success"]) == {"pass"}


@pytest.fixture(scope="module")
def lingering(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dump of a real step, with calls of all sizes between its own that wait for `GO`."""
    calls = dict(list(json.loads(TORCH_DUMP.read_text())["data"].items())[:80])
    long = [broken("modified_bessel_i1", number, 4 * number + 4) for number in range(100)]
    return write_dump(tmp_path_factory.mktemp("lingering") / "dump.json", calls, *long)


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, cluster_address: str, lingering: Path
) -> PrecheckReport:
    """Return the report of a run of this dump of which no process is killed."""
    out = tmp_path_factory.mktemp("undisturbed")
    with released():
        return precheck(lingering, out=out, address=cluster_address, devices=(0, 1))


@pytest.mark.parametrize(
    ("title", "times", "number"),
    [
        ("ray::Worker.run", 1, signal.SIGKILL),
        # The server of the node, and one of the processes that workers then start.
        ("ray_precheck.runtime.workers.", 2, signal.SIGKILL),
        (SERVER, 1, signal.SIGKILL),
        ("ray::Writer", 2, signal.SIGKILL),
        ("ray::Worker.run", 1, signal.SIGSTOP),
        pytest.param("ray::Writer", 1, signal.SIGSTOP, marks=pytest.mark.exhaustive),
    ],
)
def test_processes_killed_or_stopped_from_outside_cost_nothing(
    tmp_path: Path,
    cluster_address: str,
    lingering: Path,
    undisturbed: PrecheckReport,
    monkeypatch: pytest.MonkeyPatch,
    title: str,
    times: int,
    number: signal.Signals,
) -> None:
    if number is signal.SIGSTOP:  # Instead of a minute.
        monkeypatch.setattr("ray_precheck.runtime.actors.SILENT_S", 6.0)
        monkeypatch.setattr("ray_precheck.runtime.actors._PULSE_S", 2.0)
    # Without Ray there is a server of the driver's.
    address = "" if title == SERVER else cluster_address
    # The run is not over before all are killed.
    with killing(title, times, number) as killed:
        report = precheck(lingering, out=tmp_path, address=address, devices=(0, 1))
    assert len(killed) == times
    assert report.completed
    assert report.files.result.read_bytes() == undisturbed.files.result.read_bytes()
    assert report.files.details.read_bytes() == undisturbed.files.details.read_bytes()


class DyingWriter:
    """A writer that never lives to acknowledge anything."""

    THREADS: ClassVar[dict[str, Any]] = {}

    def __init__(self, *files: object, reopen: bool) -> None:
        pass

    def append(self, finished: object, tracks: object) -> None:
        os._exit(1)

    def close(self) -> None:
        os._exit(1)


def test_a_writer_that_dies_every_time_stops_the_run(
    tmp_path: Path, cluster_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray_precheck.runtime.recorder.Writer", DyingWriter)
    dump = write_dump(tmp_path / "dump.json", additions(50))
    with pytest.raises(StoppedError, match=r"^the process that writes the results died 3 times"):
        precheck(dump, out=tmp_path / "out", address=cluster_address)
    assert list((tmp_path / "out").iterdir()) == []  # No row was acknowledged.


def test_the_error_of_a_dismissed_worker_does_not_pass_for_the_end_of_the_writer(
    tmp_path: Path, cluster_address: str
) -> None:
    class Gone:
        THREADS: ClassVar[dict[str, Any]] = {}

        def work(self) -> None:
            os._exit(1)

    with open_cluster(cluster_address, debug=False) as nodes:
        actors = RayActors(Roster(nodes, "", print))
        files = new_run_files(tmp_path, "20260101120000")
        recorder = Recorder(actors, files, API_TABLES, Progress(0, 0, show=False))
        writer = recorder._writer
        answer = actors.call(actors.start(Gone, ""), "work")
        assert actors.wait([answer], 60.0) == [answer]
        with pytest.raises(ActorLost):
            actors.result(answer)
        recorder.acknowledge(answer)
        assert recorder._writer is writer
        assert recorder._deaths == 0


def test_a_removed_out_folder_stops_the_run_with_one_sentence(
    tmp_path: Path, cluster_address: str
) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(400), slow(size=900))
    out = tmp_path / "out"

    def remove() -> None:
        while not list(out.glob("*details*")):
            time.sleep(0.01)
        while out.exists():  # The writer may put a file into it meanwhile.
            shutil.rmtree(out, ignore_errors=True)

    thread = threading.Thread(target=remove)
    thread.start()
    with pytest.raises(StoppedError, match="cannot write the ") as stopped:
        precheck(dump, out=out, address=cluster_address)
    thread.join()
    assert "\n" not in str(stopped.value)


@pytest.mark.alone  # Ray stops it for what the whole machine has in memory.
def test_a_record_that_ray_stops_for_its_memory_is_an_error_alone(tmp_path: Path) -> None:
    memory = psutil.virtual_memory()
    if memory.available < 8 << 30:
        pytest.skip("less than 8 GiB of memory are free")
    dump = write_dump(tmp_path / "dump.json", additions(20), broken("bessel_y1"))
    command = [sys.executable, "-m", "ray_precheck", "run_ut", "-api_info", str(dump)]
    # Ray's memory monitor strikes 3 GiB from here; our own limit does not.
    threshold = 1 - (memory.available - (3 << 30)) / memory.total
    environment = {name: v for name, v in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [
            *command, "-o", str(tmp_path / "out"), "--max-memory", "1000", "--timeout", "60",
            "--address", "local",
        ],
        env={
            **environment,
            "RAY_memory_usage_threshold": f"{threshold:.4f}",
            "RAY_memory_monitor_refresh_ms": "50",
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (result,) = (tmp_path / "out").glob("*result*.csv")
    rows = {line.split(",")[0]: line for line in result.read_text().splitlines()[1:]}
    reason = "ran out of memory: Ray stopped its worker to keep the machine alive"
    assert rows.pop("Torch.special.bessel_y1.0") == f"Torch.special.bessel_y1.0,error,,{reason}"
    assert all(",pass," in row for row in rows.values())
