"""The rows of calls under default and plain kernels, and of calls that were not run."""

import json
import math
from pathlib import Path

import pytest

from ray_precheck.check.settings import CheckSettings
from ray_precheck.commands.naive.contrast import Contrast, OutputContrast
from ray_precheck.commands.naive.job import NAIVE_TABLES, NaiveJob, NaiveOpener, contrast_row
from ray_precheck.dump.parse import open_dump
from ray_precheck.schema.result import Outcome, Verdict, skipped
from ray_precheck.schema.task import Task, TaskPayload
from ray_precheck.store.tables import decode_row

pytestmark = pytest.mark.unit
TASK = Task(0, "Torch.mul.0", 0.0)


@pytest.fixture
def job(tmp_path: Path) -> NaiveJob:
    path = tmp_path / "dump.json"
    record = {"input_args": [], "input_kwargs": {}, "output": []}
    data = {"Torch.mul.0.forward": record, "Torch.mul.0.backward": {"input": [], "output": []}}
    header = {"task": "statistics", "framework": "pytorch", "dump_data_dir": None}
    path.write_text(json.dumps({**header, "data": data}))
    with open_dump(path) as dump:
        return NaiveJob(dump, CheckSettings("pytorch", "statistics", tmp_path), 5)


def test_both_files_have_their_names() -> None:
    assert NAIVE_TABLES.file("result", "2026") == "naive_2026.csv"
    assert NAIVE_TABLES.file("details", "2026") == "naive_outputs_2026.csv"


def test_workers_judge_by_auto_and_run_as_often_as_asked(job: NaiveJob) -> None:
    opener = job.opener(is_home=True)
    assert isinstance(opener, NaiveOpener)
    assert (opener.settings.standard.name, opener.runs) == ("auto", 5)
    assert not job.has_bench


def test_a_call_that_was_not_run_has_a_row_with_the_reason(job: NaiveJob) -> None:
    empty = [""] * 8
    failed = job.failed(TASK, Outcome.CRASHED, "killed its worker (SIGSEGV)")
    assert decode_row(failed.row)[:-1] == ["Torch.mul.0", "error", *empty]
    assert decode_row(failed.row)[-1].strip() == "killed its worker (SIGSEGV)"
    unchecked = job.unchecked(TASK, "no worker")
    assert (unchecked.verdict, unchecked.details) == (Verdict.SKIP, b"")
    settled = job.settled(skipped(0, "Torch.load.0", "it is refused", has_backward=False))
    assert [cell.strip() for cell in decode_row(settled.row)] == [
        "Torch.load.0", "SKIP", *empty, "it is refused",
    ]  # fmt: skip


def test_a_row_has_the_largest_errors_and_the_place_of_the_worst_output() -> None:
    name = "Torch.mul.0.{}.output.0"
    outputs = (
        OutputContrast(name.format("forward"), "f32", "(2,)", 9.0, 0.51, 8.5, Verdict.PASS),
        OutputContrast(
            name.format("backward"), "f32", "(2,)", 2.0, 1.0, math.inf, Verdict.ERROR, (1, 2), "off"
        ),
    )
    found = Contrast(
        Verdict.ERROR,
        outputs,
        wrong="default",
        switches=("onednn", "nnpack"),
        unlike="forward.output.0 [1]",
        said=("=one", "two"),
    )
    done = contrast_row(TaskPayload(0, "Torch.mul.0", b"{}", None), found)
    assert [cell.strip() for cell in decode_row(done.row)] == [
        "Torch.mul.0", "error", "9", "1", "inf", "default", "onednn, nnpack", "no",
        "backward.output.0", "[1, 2]", "'=one; two",
    ]  # fmt: skip
    details = [decode_row(line + b"\n") for line in done.details.splitlines()]
    assert [row[0] for row in details] == [each.name for each in outputs]
    assert [row[3:7] for row in details] == [
        ["9", "0.51", "8.5", "pass"],
        ["2", "1", "inf", "error"],
    ]
