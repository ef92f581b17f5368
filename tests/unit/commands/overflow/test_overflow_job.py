"""The dumps of a folder as a job: tasks, rows of what cannot be done, and dumps that travel."""

import csv
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from ray_precheck.commands.overflow.job import OverflowPayload, look, overflow_job
from ray_precheck.dump.folders import find_dumps
from ray_precheck.running.dumps_job import DumpsJob, DumpsRunner
from ray_precheck.running.run import made_here
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import DeviceSlot, Done

sys.path.append(str(Path(__file__).parents[2] / "trace"))
from tests.unit.trace.overflow_records import INF, forward, tensor, write_dump

pytestmark = pytest.mark.unit
BORN = {"Torch.exp.0.forward": forward([tensor()], [tensor(INF, 0.0)])}


def job_of(folder: Path) -> DumpsJob[OverflowPayload]:
    module = "Module.a.B.forward.0"
    construct = {"Torch.exp.0.forward": module, module: None}
    write_dump(folder / "step0" / "rank0", BORN, construct)
    write_dump(folder / "step0" / "rank1", {**BORN, "Torch.neg.0.forward": forward([], [])})
    return overflow_job(find_dumps(folder).dumps)


def runner_of(job: DumpsJob[OverflowPayload]) -> DumpsRunner[OverflowPayload]:
    slot = DeviceSlot("cpu", 0, "a node", "10.0.0.1", "")
    return pickle.loads(pickle.dumps(job.opener(is_home=False))).open(slot, lambda phase: None)


def cells(done: Done) -> list[str]:
    return next(csv.reader([done.row.decode()]))


def test_the_largest_dump_is_begun_first_and_those_that_are_done_are_left_out(
    tmp_path: Path,
) -> None:
    job = job_of(tmp_path)
    assert job.names == ["step0/rank0", "step0/rank1"]
    assert [task.name for task in job.tasks(set())] == ["step0/rank1", "step0/rank0"]
    assert [task.index for task in job.tasks({"step0/rank1"})] == [0]


def test_a_dump_that_broke_its_worker_or_was_not_done_has_a_row(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    (task, _) = job.tasks(set())
    failed = job.failed(task, Outcome.CRASHED, "killed its worker (SIGSEGV)")
    assert (failed.verdict, failed.details) == (Verdict.ERROR, b"")
    assert cells(failed) == ["step0/rank1", "error", "", "", "", "killed its worker (SIGSEGV)"]
    assert cells(job.unchecked(task, "no"))[1] == "SKIP"


def test_a_dump_that_travels_gives_the_rows_that_it_gives_at_home(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    input_files = job.input_files
    assert input_files is not None
    for task in job.tasks(set()):
        limits = input_files.limits(task, 1 << 20)
        files = input_files.packed(
            {name: input_files.ship(name, most) for name, most in limits.items()}
        )
        payload = job.payload(task)
        (here,) = made_here(job, [task])
        there = runner_of(job).run(payload, Stage.CHECK, files=files)
        assert (there.row, there.details) == (here.row, here.details)
    assert b"Module.a.B.forward.0" in here.details
    assert b"/home/me/train.py:7" in here.details


def test_a_step_whose_update_the_loss_scaler_skipped_says_so(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    path = tmp_path / "step0" / "rank0" / "dump.json"
    dump = json.loads(path.read_text())
    path.write_text(json.dumps({"update_skipped": True, "loss_scale": 65536.0, **dump}))
    payloads = [job.payload(task) for task in job.tasks(set())]
    other, skipped = (cells(look(each, each.paths)) for each in payloads)
    assert skipped[:2] == ["step0/rank0", "error"]
    assert "the loss scaler skipped the update of this step (loss scale 65536)" in skipped[5]
    assert other[5] == ""


def test_a_dump_that_cannot_travel_is_not_judged(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    task = job.tasks(set())[0]
    assert job.input_files is not None
    name = next(iter(job.input_files.limits(task, 10)))
    refused = job.input_files.packed({name: job.input_files.ship(name, 10)})
    for files in (refused, {}):
        done = runner_of(job).run(job.payload(task), Stage.CHECK, files=files)
        assert done.verdict is Verdict.SKIP
        assert "--shared-fs" in cells(done)[5]


def test_an_unreadable_dump_that_travelled_is_named_as_it_is_at_home(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    task = job.tasks(set())[0]
    files = {(0, "dump.json"): np.frombuffer(b"{", np.uint8)}
    done = runner_of(job).run(job.payload(task), Stage.CHECK, files=files)
    assert str(tmp_path / "step0" / "rank1" / "dump.json") in cells(done)[5]
