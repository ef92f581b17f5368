"""The precheck as a job: what it has to do, its rows of calls without an answer, and its openers."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ray_precheck.accuracy.standards.base import added_headings
from ray_precheck.accuracy.standards.user_file import load_standard
from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.errors import DeviceError
from ray_precheck.replay.job import PrecheckJob, PrecheckOpener, PrecheckRunner, done_of
from ray_precheck.runtime.job import Job, Opener
from ray_precheck.schema.result import Metrics, Outcome, OutputCheck, TaskResult, Verdict
from ray_precheck.schema.task import Cause, DeviceSlot, Task
from ray_precheck.store.tables import API_TABLES, decode_row, detail_rows, result_row

pytestmark = pytest.mark.unit

TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1, "Min": 0}
FORWARD = {"input_args": [TENSOR], "input_kwargs": {}, "output": [TENSOR]}
BACKWARD = {"input": [TENSOR], "output": [TENSOR]}
DATA = {
    "Torch.abs.0.forward": FORWARD,
    "Torch.neg.0.forward": FORWARD,
    "Torch.neg.0.backward": BACKWARD,
}
ALONE, WITH_BACKWARD = Task(0, "Torch.abs.0", 1.0), Task(1, "Torch.neg.0", 1.0)
ELSEWHERE = DeviceSlot("npu", 3, "n1", "10.0.0.7", "3")


@pytest.fixture
def dump(tmp_path: Path) -> Iterator[Dump]:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"task": "statistics", "framework": "pytorch", "data": DATA}))
    with open_dump(path) as opened:
        yield opened


def settings(folder: Path, task: str = "statistics", **more: Any) -> CheckSettings:
    return CheckSettings("pytorch", task, folder, **more)


def cells(row: bytes) -> list[str]:
    assert row.endswith(b"\r\n")
    return decode_row(row.removesuffix(b"\r\n"))


class TestWhatThereIsToDo:
    def test_the_names_are_those_of_the_dump_in_its_order(self, dump: Dump, tmp_path: Path) -> None:
        job: Job = PrecheckJob(dump, settings(tmp_path, memory_limit_bytes=7))
        assert job.names == ["Torch.abs.0", "Torch.neg.0"]
        assert (job.tables, job.has_bench, job.memory_limit_bytes) == (API_TABLES, True, 7)

    def test_a_payload_has_the_records_of_its_call(self, dump: Dump, tmp_path: Path) -> None:
        payload = PrecheckJob(dump, settings(tmp_path)).payload(WITH_BACKWARD)
        assert (payload.index, payload.name) == (1, "Torch.neg.0")
        assert json.loads(payload.forward or b"") == FORWARD
        assert json.loads(payload.backward or b"") == BACKWARD

    @pytest.mark.parametrize("tests_dump", [True, False])
    def test_only_captured_results_need_no_device(
        self, dump: Dump, tmp_path: Path, tests_dump: bool
    ) -> None:
        job = PrecheckJob(dump, settings(tmp_path, "tensor", tests_dump=tests_dump))
        assert job.bench_suffices is tests_dump

    @pytest.mark.parametrize(
        ("task", "shared_fs", "has_input_files"),
        [("tensor", False, True), ("tensor", True, False), ("statistics", False, False)],
    )
    def test_files_are_sent_where_there_are_any_and_not_every_machine_sees_them(
        self, dump: Dump, tmp_path: Path, task: str, shared_fs: bool, has_input_files: bool
    ) -> None:
        job = PrecheckJob(dump, settings(tmp_path, task), shared_fs=shared_fs)
        assert (job.input_files is not None) is has_input_files


class TestCallsWithoutAnAnswer:
    @pytest.mark.parametrize(("task", "backward"), [(ALONE, ""), (WITH_BACKWARD, "SKIP")])
    @pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.TIMED_OUT])
    def test_one_that_broke_its_worker_is_an_error_whose_backward_was_not_checked(
        self, dump: Dump, tmp_path: Path, task: Task, backward: str, outcome: Outcome
    ) -> None:
        done = PrecheckJob(dump, settings(tmp_path)).failed(task, outcome, 'broke, "hard"')
        assert (done.index, done.name, done.verdict) == (task.index, task.name, Verdict.ERROR)
        assert cells(done.row) == [task.name, "error", backward, 'broke, "hard"']
        assert done.details == b""

    @pytest.mark.parametrize(("task", "backward"), [(ALONE, ""), (WITH_BACKWARD, "SKIP")])
    def test_one_that_could_not_be_checked_is_a_skip(
        self, dump: Dump, tmp_path: Path, task: Task, backward: str
    ) -> None:
        done = PrecheckJob(dump, settings(tmp_path)).unchecked(task, "its bench took long")
        assert (done.index, done.name, done.verdict) == (task.index, task.name, Verdict.SKIP)
        assert cells(done.row) == [task.name, "SKIP", backward, "its bench took long"]
        assert done.details == b""


class TestOpeners:
    @pytest.mark.parametrize("is_home", [True, False])
    def test_only_elsewhere_failing_tensors_are_sent_with_the_result(
        self, dump: Dump, tmp_path: Path, is_home: bool
    ) -> None:
        job = PrecheckJob(dump, settings(tmp_path, error_folder=tmp_path, memory_limit_bytes=5))
        opener: Opener = job.opener(is_home=is_home)
        assert isinstance(opener, PrecheckOpener)
        assert opener.settings.sends_evidence is not is_home
        assert opener.memory_limit_bytes == 5

    @pytest.mark.parametrize(
        ("task", "shared_fs", "is_home", "has_folder", "must_see"),
        [
            ("tensor", True, False, True, True),
            ("tensor", True, True, True, False),
            ("tensor", True, False, False, False),
            ("tensor", False, False, True, False),
            ("statistics", True, False, True, False),
        ],
    )
    def test_the_folder_must_be_there_where_every_machine_is_said_to_share_it(
        self,
        dump: Dump,
        tmp_path: Path,
        task: str,
        shared_fs: bool,
        is_home: bool,
        has_folder: bool,
        must_see: bool,
    ) -> None:
        folder = tmp_path if has_folder else tmp_path / "gone"
        job = PrecheckJob(dump, settings(folder, task), shared_fs=shared_fs)
        assert job.opener(is_home=is_home).must_see_data is must_see

    def test_a_machine_without_it_is_refused_by_name(self, tmp_path: Path) -> None:
        folder = tmp_path / "gone"
        opener = PrecheckOpener(settings(folder, "tensor"), must_see_data=True)
        with pytest.raises(DeviceError) as refused:
            opener.open(ELSEWHERE, lambda phase: None)
        assert str(refused.value) == (
            f"10.0.0.7 has no folder {str(folder)!r}, which --shared-fs says that all machines"
            " share; without --shared-fs the captured tensors are sent to it"
        )


class TestDamage:
    """Without a call; what a call has said of it is tested with a framework."""

    def runner(self, cause: Cause | None) -> PrecheckRunner:
        checker = SimpleNamespace(damage=lambda: cause, caveat="HF32 stays on")
        return PrecheckRunner(cast("Any", checker), ())

    def test_a_process_that_is_as_good_as_before_has_none(self) -> None:
        assert self.runner(None).damage() is None

    def test_its_reason_is_the_causes_own_where_no_call_says_more(self) -> None:
        assert self.runner(Cause.POISONED).damage() == (Cause.POISONED, Cause.POISONED.value)

    def test_the_caveat_is_the_checkers(self) -> None:
        assert self.runner(None).caveat == "HF32 stays on"


CHECK = OutputCheck(
    "Torch.neg.0.forward.output.0",
    "Float64",
    "Float32",
    "(2,)",
    Metrics(1.0, 0.0, 0.0),
    Verdict.PASS,
    columns=(("Standard", "L0"),),
)
RESULT = TaskResult(
    1,
    "Torch.neg.0",
    Outcome.COMPLETED,
    Verdict.PASS,
    Verdict.SKIP,
    "backward: no kernel",
    (CHECK,),
    began_s=100.0,
    inputs_s=1.0,
    device_s=2.0,
    bench_s=4.0,
    evidence=(("a.npy", b"bytes"),),
)


def test_a_result_is_encoded_with_all_that_the_driver_needs_of_it() -> None:
    done = done_of(RESULT)
    assert (done.index, done.name, done.verdict) == (1, "Torch.neg.0", Verdict.SKIP)
    assert (done.row, done.details) == (result_row(RESULT), detail_rows(RESULT))
    assert (done.began_s, done.inputs_s, done.device_s, done.bench_s) == (100.0, 1.0, 2.0, 4.0)
    assert (done.elapsed_s, done.evidence) == (7.0, (("a.npy", b"bytes"),))


def test_its_details_have_the_columns_of_the_standard() -> None:
    added = added_headings(load_standard("benchmark"))
    assert "Standard" in added
    done = done_of(RESULT, added)
    assert done.details == detail_rows(RESULT, *added) != detail_rows(RESULT)
    assert len(cells(done.details)) == len(API_TABLES.details) + len(added)
