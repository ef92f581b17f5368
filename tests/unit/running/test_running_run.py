"""A job that stops before its first row leaves no file; one that has rows says why it stopped."""

import json
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.errors import DumpError, StoppedError
from ray_precheck.replay.config import RunConfig
from ray_precheck.running import run
from ray_precheck.running.run import RunEnd, drive_to_end
from ray_precheck.runtime.driving import RunSetting, TaskPlan
from ray_precheck.runtime.places.choice import Cluster
from ray_precheck.runtime.progress import Progress
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Done
from ray_precheck.store.resume import start_run
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import API_TABLES
from ray_precheck.store.timeline import Span, Timeline

pytestmark = pytest.mark.unit


class Job:
    """What a writer needs of a job."""

    names = ("Torch.add.0", "Torch.mul.0")
    tables = API_TABLES


JOB: Any = Job()


def row(index: int) -> Done:
    name = JOB.names[index]
    return Done(index, name, Verdict.PASS, f"{name},pass,,\n".encode(), b"")


def broken_after(rows: int, error: Exception) -> Iterator[Done]:
    yield from map(row, range(rows))
    raise error


def end_of(folder: Path, settled: Any, *, is_new: bool = True) -> RunEnd:
    """Drive a job whose rows all come without a worker; nobody asks it to stop."""
    files = start_run(folder, "20260101120000", RunSettings({}))
    progress = Progress(2, 0, show=False)
    cluster: Cluster = None  # type: ignore[assignment]
    setting = RunSetting(RunConfig(dump=folder), cluster, None, files, progress, lambda: False)
    planning: Future[TaskPlan] = Future()
    planning.set_result(TaskPlan((), settled))
    return drive_to_end(JOB, planning, setting, is_new=is_new)


def test_a_job_that_came_to_its_end_has_no_reason(tmp_path: Path) -> None:
    end = end_of(tmp_path, map(row, range(2)))
    assert end == RunEnd(completed=True, stop_reason="", is_new=True)


def test_the_timeline_of_a_run_that_was_killed_behind_its_last_row_is_closed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "accuracy_checking_20260101120000.timeline.json"

    def rows() -> Iterator[Done]:
        Timeline.open(path).add([Span("here", "cpu:0", "Torch.add.0", "check", 1.0, 1.0)])
        yield from map(row, range(2))

    assert end_of(tmp_path, rows()).completed
    assert json.loads(path.read_text())


def test_a_new_run_that_had_to_stop_before_a_row_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoppedError, match="the disk is full"):
        end_of(tmp_path, broken_after(0, StoppedError("the disk is full")))
    assert list(tmp_path.iterdir()) == []


def test_files_of_a_run_that_is_gone_on_with_stay(tmp_path: Path) -> None:
    end = end_of(tmp_path, broken_after(0, StoppedError("the disk is full")), is_new=False)
    assert end == RunEnd(completed=False, stop_reason="the disk is full", is_new=False)
    assert list(tmp_path.iterdir())


def test_a_plan_that_is_wrong_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="no dump"):
        end_of(tmp_path, broken_after(0, DumpError("no dump")))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_stopped_on_request_before_a_row_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "drive", lambda *_: False)
    with pytest.raises(StoppedError, match="stopped on request before a row was written"):
        end_of(tmp_path, ())
