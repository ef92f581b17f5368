"""Drivers that a test has made: devices and processes that do not start, and requests to stop."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import DATA, MARKS
from dumps import additions, broken, slow, write_dump

from ray_precheck import RunConfig, StoppedError, run
from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.replay.job import PrecheckJob, done_of
from ray_precheck.replay.planner import Plan, plan_tasks
from ray_precheck.runtime.driver import DriveOptions, Driver
from ray_precheck.runtime.places.cluster import Roster, open_cluster
from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.places.placement import DeviceRequest
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.ray_actors import RayActors
from ray_precheck.schema.task import DeviceSlot
from ray_precheck.store.resume import new_run_files
from ray_precheck.store.tables import RunFiles

pytestmark = pytest.mark.cluster


def made(
    dump: Dump,
    settings: CheckSettings,
    slots: list[DeviceSlot],
    nodes: list[Node],
    files: RunFiles,
    stop: Callable[[], bool] = lambda: False,
) -> Driver:
    """Return a driver of these slots, without bench workers."""
    request, actors = DeviceRequest("cpu", ids=(0,)), RayActors(Roster(nodes, "", print))
    options = DriveOptions(bench_workers=0)
    job = PrecheckJob(dump, settings)
    return Driver(job, actors, request, slots, files, stop, options)


def drive(driver: Driver, plan: Plan, progress: Progress) -> bool:
    """Run a plan as the session does."""
    return driver.run(plan.tasks, map(done_of, plan.skipped), progress)


def test_with_no_device_that_starts_the_run_stops_and_says_why(
    tmp_path: Path, cluster_address: str
) -> None:
    path = write_dump(tmp_path / "dump.json", additions(3))
    files = new_run_files(tmp_path / "out", "20260101120000")
    settings = CheckSettings("pytorch", "statistics", tmp_path)
    with open_dump(path) as dump, open_cluster(cluster_address, debug=False) as nodes:
        plan = plan_tasks(dump, "pytorch", set())
        # A GPU that is not there: the worker raises when it opens it.
        slot = DeviceSlot("gpu", 0, nodes[0].node_id, nodes[0].address, "0")
        driver = made(dump, settings, [slot], nodes, files)
        driver.launch()
        with pytest.raises(StoppedError, match=r"no device is left: gpu:0: .*sees no GPU"):
            drive(driver, plan, Progress(3, 0, show=False))


def test_a_device_that_does_not_start_is_given_up_and_the_others_go_on(
    tmp_path: Path, cluster_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_dump(tmp_path / "dump.json", additions(30), slow())
    files = new_run_files(tmp_path / "out", "20260101120000")
    with open_dump(path) as dump, open_cluster(cluster_address, debug=False) as nodes:
        here = nodes[0]
        slots = [
            DeviceSlot("gpu", 0, here.node_id, here.address, "0"),
            DeviceSlot("cpu", 0, here.node_id, here.address, ""),
        ]
        settings = CheckSettings("pytorch", "statistics", tmp_path)
        driver = made(dump, settings, slots, nodes, files)
        driver.launch()
        assert drive(driver, plan_tasks(dump, "pytorch", set()), Progress(31, 0))
    assert files.result.read_bytes().count(b",pass,") == 30
    assert "device gpu:0 is given up: " in capsys.readouterr().err


@pytest.mark.exhaustive  # By a signal: test_cluster_signals.
def test_a_stop_request_leaves_a_run_that_can_go_on(tmp_path: Path, cluster_address: str) -> None:
    path = DATA / "torch_llm" / "dump.json"
    files = new_run_files(tmp_path / "out", "20260101120000")
    with open_dump(path) as dump, open_cluster(cluster_address, debug=False) as nodes:
        plan = plan_tasks(dump, "pytorch", set())
        settings = CheckSettings("pytorch", "statistics", tmp_path)
        slot = DeviceSlot("cpu", 0, nodes[0].node_id, nodes[0].address, "")
        driver = made(
            dump, settings, [slot], nodes, files, lambda: files.result.stat().st_size > 300
        )
        driver.launch()
        assert drive(driver, plan, Progress(265, 0, show=False)) is False
    rows = files.result.read_bytes().count(b"\n") - 1
    assert 0 < rows < 265
    # No session has written its settings.
    config = RunConfig(
        path, out=tmp_path / "out", address=cluster_address, resume_csv=files.result, force=True
    )
    assert run(config, show_progress=False).summary.total == 265


def test_what_a_batch_has_finished_is_written_when_the_run_is_stopped(
    tmp_path: Path, cluster_address: str
) -> None:
    parts = [additions(5), broken("i1e"), additions(60, 100)]
    path = write_dump(tmp_path / "dump.json", *parts)
    files = new_run_files(tmp_path / "out", "20260101120000")
    asleep = MARKS / "asleep"
    asleep.unlink(missing_ok=True)
    with open_dump(path) as dump, open_cluster(cluster_address, debug=False) as nodes:
        settings = CheckSettings("pytorch", "statistics", tmp_path)
        slot = DeviceSlot("cpu", 0, nodes[0].node_id, nodes[0].address, "")

        # The batch hangs in its sixth call, after the first five.
        driver = made(dump, settings, [slot], nodes, files, asleep.exists)
        driver.launch()
        assert drive(driver, plan_tasks(dump, "pytorch", set()), Progress(66, 0)) is False
    names = [line.split(b",")[0].decode() for line in files.result.read_bytes().splitlines()[1:]]
    assert names == [f"Tensor.add.{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param(
            "segfault",
            "its process died while it started (SIGSEGV)",
            marks=pytest.mark.exhaustive,
        ),
        (
            "import",
            "its process died while it started (exit code 1: SystemExit: libascend_hal.so: cannot open",
        ),
    ],
)
def test_a_process_that_dies_while_it_starts_stops_the_run_with_the_reason_and_leaves_no_file(
    tmp_path: Path, fault: str, reason: str
) -> None:
    dump = write_dump(tmp_path / "dump.json", additions(3))
    command = [sys.executable, "-m", "ray_precheck", "run_ut", "-api_info", str(dump)]
    environment = {name: v for name, v in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out")],
        env={**environment, "FAULTY_START": fault}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    # No row was written, so that there is nothing to go on with.
    assert list((tmp_path / "out").iterdir()) == []
