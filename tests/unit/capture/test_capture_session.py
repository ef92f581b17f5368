"""Which steps a session captures, where they go, and what it says at the end."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from capture_probes import CountingProbe

from ray_precheck.capture.account import closing_sentence
from ray_precheck.capture.session import Session
from ray_precheck.capture.settings import FULL, capture_settings

pytestmark = pytest.mark.unit


class Run:
    """A session with a framework that the test drives."""

    def __init__(self, path: Path, rank: int | None = 0, **settings: Any) -> None:
        self.probe = CountingProbe(rank)
        self.told: list[str] = []
        self.session = Session(
            capture_settings(path=path, **settings), self.probe, tell=self.told.append
        )

    def train(self, steps: int, calls: int = 1) -> None:
        for _ in range(steps):
            for _ in range(calls):
                self.probe.called()
            if self.probe.steps:
                self.probe.now.call("Torch.relu.0.forward")
            self.probe.stepped()

    @property
    def sentence(self) -> str:
        return closing_sentence(self.session.settings, [self.session.account])


def dumps_in(path: Path) -> list[str]:
    return sorted(str(file.parent.relative_to(path)) for file in path.glob("*/*/dump.json"))


def test_steps_end_with_the_optimizer_and_what_follows_the_last_is_dropped(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.session.start(at_first_forward=True)
    assert not run.probe.steps
    run.train(3, calls=2)
    run.session.stop()
    assert dumps_in(tmp_path) == ["step0/rank0", "step1/rank0", "step2/rank0"]
    assert not (tmp_path / "step3").exists()
    assert (
        run.sentence
        == f"step 0-2 of rank 0 captured in {tmp_path} (3 dumps, 3 records); it is complete"
    )


def test_a_last_step_in_which_a_model_was_called_is_kept(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.session.start(at_first_forward=True)
    run.train(1)
    run.probe.called()
    run.session.stop()
    assert dumps_in(tmp_path) == ["step0/rank0", "step1/rank0"]


@pytest.mark.parametrize("calls_behind", [0, 1])
def test_what_follows_the_last_step_that_the_script_ended_is_kept_where_it_has_a_call(
    tmp_path: Path, calls_behind: int
) -> None:
    run = Run(tmp_path, step_by="manual")
    run.session.start()
    for _ in range(2):
        run.probe.now.call("Torch.relu.0.forward")
        run.session.step()
    for _ in range(calls_behind):
        run.probe.now.call("Torch.relu.0.forward")
    run.session.stop()
    assert dumps_in(tmp_path) == [f"step{number}/rank0" for number in range(2 + calls_behind)]
    assert (tmp_path / "step2").exists() == bool(calls_behind)


def test_only_the_steps_that_are_asked_for_are_captured_and_then_nothing_is_watched(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, steps="1,3")
    run.session.start(at_first_forward=True)
    run.train(3)
    assert run.probe.is_watched
    run.train(1)
    assert not run.probe.is_watched
    run.session.stop()
    assert dumps_in(tmp_path) == ["step1/rank0", "step3/rank0"]


def test_a_step_may_end_with_the_next_call_of_the_model(tmp_path: Path) -> None:
    run = Run(tmp_path, step_by="forward")
    run.session.start(at_first_forward=True)
    for _ in range(3):
        run.probe.called()
        run.probe.stepped()
    run.session.stop()
    assert dumps_in(tmp_path) == ["step0/rank0", "step1/rank0", "step2/rank0"]


def test_steps_that_never_come_are_named_with_those_that_came(tmp_path: Path) -> None:
    run = Run(tmp_path, steps="5-7")
    run.session.start(at_first_forward=True)
    run.train(3)
    run.session.stop()
    assert run.sentence == (
        "nothing was captured: steps 5-7 were asked for, and 3 steps of the optimizer were made"
    )
    some = Run(tmp_path, steps="2-4")
    some.session.start(at_first_forward=True)
    some.train(3)
    some.session.stop()
    assert "step 3-4 never came: 3 steps of the optimizer were made" in some.sentence


def test_a_script_that_calls_no_model_is_told_so(tmp_path: Path) -> None:
    run = Run(tmp_path / "dump")
    run.session.start(at_first_forward=True)
    run.session.stop()
    assert "no torch.nn.Module with parameters was called" in run.sentence
    assert "(no step of the optimizer was made)" in run.sentence
    assert not (tmp_path / "dump").exists()


def test_ranks_that_are_not_asked_for_write_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path / "dump", rank=1, ranks="0,4-5")
    run.session.start(at_first_forward=True)
    run.train(2)
    run.session.stop()
    assert not (tmp_path / "dump").exists()
    assert "ranks 0,4-5 were asked for, and there was rank 1" in run.sentence


def test_a_worker_of_a_data_loader_captures_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path / "dump")
    run.probe.loads = True
    run.session.start(at_first_forward=True)
    run.train(2)
    assert not run.probe.steps


def test_a_process_without_a_rank_has_a_folder_of_its_own_until_it_gets_one(tmp_path: Path) -> None:
    run = Run(tmp_path, rank=None)
    run.session.start(at_first_forward=True)
    run.train(1)
    assert dumps_in(tmp_path) == [f"step0/proc{os.getpid()}"]
    run.probe.rank_now = 3
    run.train(1)
    run.session.stop()
    assert dumps_in(tmp_path) == [f"step0/proc{os.getpid()}", "step1/rank3"]


def test_a_process_that_was_forked_in_a_step_leaves_its_files_alone(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.session.start(at_first_forward=True)
    run.probe.called()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run.probe.stepped()
            run.session.stop()
            os.write(write, json.dumps(run.probe.now.words).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert json.loads(os.read(read, 100)) == ["abandon"]
    assert run.probe.now.words == []
    run.session.stop()
    assert run.probe.now.words == ["finish"]


def test_a_pause_goes_on_with_the_same_dump(tmp_path: Path) -> None:
    run = Run(tmp_path, step_by="manual")
    run.session.resume()
    run.session.pause()
    run.session.resume()
    assert len(run.probe.steps) == 1
    assert run.probe.now.words == ["pause", "resume"]
    run.session.end_step()
    assert run.probe.now.words[-1] == "finish"
    run.session.resume()
    assert len(run.probe.steps) == 2


def test_only_the_last_steps_are_kept(tmp_path: Path) -> None:
    run = Run(tmp_path, keep_steps=2)
    run.session.start(at_first_forward=True)
    run.train(5)
    run.session.stop()
    assert dumps_in(tmp_path) == ["step3/rank0", "step4/rank0"]
    assert not (tmp_path / "step0").exists()
    assert "3 earlier dumps removed by --keep-steps" in run.sentence


def test_a_limit_of_bytes_is_that_of_all_steps(tmp_path: Path) -> None:
    run = Run(tmp_path, max_bytes=10)
    run.session.start(at_first_forward=True)
    run.probe.called()
    assert run.probe.now.settings.max_bytes == 10
    run.probe.now.call("Torch.relu.0.forward", size=8)
    run.probe.stepped()
    assert run.probe.now.settings.max_bytes == 2
    run.probe.called()
    run.probe.fail(FULL)
    run.train(2)
    assert run.told == [
        "the dumps of this process have reached 1e-08 GB (--max-gb); the capture ends here, and the"
        " script goes on"
    ]
    assert not run.probe.is_watched
    assert dumps_in(tmp_path)[:1] == ["step0/rank0"]
    assert "capturing stopped: the dumps of this process" in run.sentence


def test_a_scope_that_met_nothing_is_named_with_the_nearest_names(tmp_path: Path) -> None:
    run = Run(tmp_path, chosen=["Torch.rellu", "relu"])
    run.session.start(at_first_forward=True)
    run.train(1)
    run.session.stop()
    assert "'Torch.rellu' of the scope or list met no call" in run.sentence
    assert "the nearest names are Torch.relu.forward" in run.sentence
    assert "'relu' of" not in run.sentence


def test_what_an_earlier_run_left_of_a_rank_is_replaced_with_steps_that_are_not_reached(
    tmp_path: Path,
) -> None:
    for rank in (0, 1):
        first = Run(tmp_path, rank=rank)
        first.session.start(at_first_forward=True)
        first.train(3)
        first.session.stop()
    second = Run(tmp_path, rank=0)
    second.session.start(at_first_forward=True)
    second.train(1)
    second.session.stop()
    assert dumps_in(tmp_path) == ["step0/rank0", "step0/rank1", "step1/rank1", "step2/rank1"]
    assert "in the place of an earlier run's" in second.sentence


def test_a_folder_with_other_settings_ends_the_capture_and_not_the_training(tmp_path: Path) -> None:
    first = Run(tmp_path)
    first.session.start()
    first.session.stop()
    second = Run(tmp_path, level="L0")
    second.session.start(at_first_forward=True)
    second.train(2)
    second.session.stop()
    (told,) = second.told
    assert "level L1 there, L0 here" in told
    assert told.endswith("the script goes on")
