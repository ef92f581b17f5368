"""What a session does that watches: its rows, the steps that rules ask for, and the ranks of a run."""

import csv
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from capture_probes import CountingMeasures, CountingProbe

from ray_precheck.capture.account import closing_sentence
from ray_precheck.capture.session import Session
from ray_precheck.capture.settings import (
    capture_settings,
    settings_from_json,
    settings_to_json,
)
from ray_precheck.capture.watching.watch import TRIGGERS, Triggered
from ray_precheck.errors import UsageError

pytestmark = pytest.mark.unit
JUMP = "grad_norm > 10 * median(grad_norm, 2)"


class Watched:
    """A session that watches, with a framework that the test drives."""

    def __init__(
        self, path: Path, *, late: bool = False, rank: int | None = 0, **settings: Any
    ) -> None:
        self.probe = CountingProbe(rank)
        self.measures = self.probe.measures = CountingMeasures(late)
        self.told: list[str] = []
        self.path = path
        chosen = capture_settings(path=path, watch=True, **settings)
        self.session = Session(chosen, self.probe, tell=self.told.append)
        self.session.start(at_first_forward=True)

    def train(self, *norms: float, **more: Any) -> None:
        for norm in norms:
            self.measures.numbers = {"Loss": 1.0, "Grad Norm": norm, **more}
            self.probe.called()
            if self.session.open_step is not None:
                self.probe.now.call("Torch.relu.0.forward")
            self.probe.stepped()

    def end(self) -> str:
        self.session.stop()
        return closing_sentence(self.session.settings, [self.session.account])

    @property
    def rows(self) -> list[dict[str, str]]:
        with (self.path / "watch_0.csv").open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))

    @property
    def dumps(self) -> list[str]:
        return sorted(
            str(each.parent.relative_to(self.path)) for each in self.path.glob("*/*/dump.json")
        )


def test_a_rule_captures_the_next_step_and_no_other_one(tmp_path: Path) -> None:
    run = Watched(tmp_path, triggers=JUMP)
    run.train(1, 1, 50, 1, 1, 1)
    sentence = run.end()
    assert run.dumps == ["step3/rank0"]
    assert [row["Step"] for row in run.rows] == list("012345")
    assert [row["Trigger"] for row in run.rows] == ["", "", JUMP, "", "", ""]
    assert [row["Captured"] for row in run.rows] == list("000100")
    assert run.told == [f"step 3 is captured: {JUMP}"]
    assert sentence.startswith(
        f"6 steps of rank 0 watched in {tmp_path} (watch_*.csv), 1 capture by rules; step 3"
    )


def test_without_a_rule_and_steps_nothing_is_captured(tmp_path: Path) -> None:
    run = Watched(tmp_path)
    run.train(1, 1, float("nan"))
    assert run.end() == f"3 steps of rank 0 watched in {tmp_path} (watch_*.csv)"
    assert not run.dumps
    assert run.rows[2]["Grad Norm"] == "nan"


def test_a_training_without_an_optimizer_is_told_how_its_steps_can_end(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for _ in range(3):
        watched.probe.called()
    assert watched.end() == (
        "nothing was captured: PyTorch was imported, a model was called 3 times, and no step was reached: no"
        " optimizer has stepped; --step-by forward lets the next call of the model end a step"
    )


def test_steps_are_captured_beside_those_of_rules(tmp_path: Path) -> None:
    run = Watched(tmp_path, triggers=JUMP, steps="0")
    run.train(1, 1, 50, 1)
    run.end()
    assert run.dumps == ["step0/rank0", "step3/rank0"]
    assert len(run.rows) == 4


def test_a_rule_that_stays_true_captures_once_and_rules_so_often_as_they_may(
    tmp_path: Path,
) -> None:
    run = Watched(tmp_path, triggers=("nan > 0", "inf > 0"), trigger_most=2)
    run.train(1, 1, 1, NaN=1, Inf=0)
    assert run.session.number == 3
    run.train(1, 1, NaN=0, Inf=0)
    run.train(1, 1, NaN=0, Inf=2)
    run.train(1, 1, NaN=0, Inf=0)
    run.train(1, 1, NaN=5, Inf=0)
    run.end()
    assert run.dumps == ["step1/rank0", "step6/rank0"]
    assert [row["Trigger"] for row in run.rows if row["Trigger"]] == [
        "nan > 0",
        "inf > 0",
        "nan > 0",
    ]


def test_a_rule_on_a_row_that_comes_late_captures_the_step_behind(tmp_path: Path) -> None:
    run = Watched(tmp_path, triggers=JUMP, late=True)
    run.train(1, 1, 50, 1, 1, 1)
    run.end()
    assert run.dumps == ["step4/rank0"]
    assert [row["Trigger"] for row in run.rows] == ["", "", JUMP, "", "", ""]
    assert [row["Captured"] for row in run.rows] == list("000010")


def test_rules_do_not_see_a_step_that_a_scaler_skips(tmp_path: Path) -> None:
    run = Watched(tmp_path, triggers=(JUMP, "inf > 0", "skipped > 0"))
    run.train(1, 1)
    run.train(float("inf"), Inf=3, Skipped=1)
    run.train(1)
    run.end()
    assert [row["Trigger"] for row in run.rows] == ["", "", "skipped > 0", ""]


def test_a_restarted_training_keeps_rows_and_captures_of_the_one_before(tmp_path: Path) -> None:
    first = Watched(tmp_path, triggers=JUMP)
    first.train(1, 1, 50, 1)
    first.end()
    second = Watched(tmp_path, triggers=JUMP)
    second.train(1, 1, 1, 1, 50, 1)
    second.end()
    assert second.dumps == ["step3/rank0", "step5/rank0"]
    assert [row["Step"] for row in second.rows] == list("0123012345")


def test_rows_go_on_where_dumps_have_reached_their_limit(tmp_path: Path) -> None:
    run = Watched(tmp_path, steps="0-5", max_bytes=1000)
    run.train(1)
    run.probe.fail("the step has reached its limit")
    run.train(1, 1, 1)
    run.end()
    assert len(run.rows) == 4


def test_what_cannot_be_measured_ends_the_watch_and_not_the_training(tmp_path: Path) -> None:
    run = Watched(tmp_path)
    run.train(1)
    run.measures.failure = "a step cannot be measured"
    run.train(1, 1)
    assert run.told == ["a step cannot be measured; the capture ends here, and the script goes on"]
    assert "capturing stopped: a step cannot be measured" in run.end()
    assert len(run.rows) == 2


def test_a_fault_of_the_watch_itself_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Watched(tmp_path)
    run.train(1)
    monkeypatch.setattr(run.measures, "end_step", lambda: 1 // 0)
    run.train(1, 1)
    assert "the watch has a fault, ZeroDivisionError" in run.told[0]
    assert len(run.told) == 1


def test_a_framework_that_measures_nothing_says_so(tmp_path: Path) -> None:
    run = Watched(tmp_path)
    run.session._measures = None
    run.train(1, 1)
    assert "--watch measures PyTorch only" in run.end()
    assert not (tmp_path / "watch_0.csv").exists()


def test_a_folder_with_another_watch_file_ends_the_watch(tmp_path: Path) -> None:
    (tmp_path / "watch_0.csv").write_text("mine\n")
    run = Watched(tmp_path)
    run.train(1, 1)
    assert "was not written by capture --watch" in run.end()
    assert (tmp_path / "watch_0.csv").read_text() == "mine\n"


def test_a_rule_that_names_no_module_of_the_model_is_said(tmp_path: Path) -> None:
    run = Watched(tmp_path, triggers='grad_norm["head"] > 1')
    run.train(1, 1, **{"Grad Norm body": 1.0})
    assert run.told == [
        "a rule names Grad Norm head, and there is no such column in step 0; the modules are body"
    ]


def test_rules_need_a_watch_and_come_from_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--trigger needs --watch"):
        capture_settings(path=tmp_path, triggers="nan > 0")
    rules = tmp_path / "rules.txt"
    rules.write_text("# jumps\n\nnan > 0\n  loss > 2 * max  \n")
    found = capture_settings(path=tmp_path, watch=True, triggers=(f"@{rules}", "inf > 0"))
    assert found.triggers == ("nan > 0", "loss > 2 * max", "inf > 0")
    assert settings_from_json(settings_to_json(found)) == found
    for content, said in (
        (b"nan >", "is no rule"),
        (b"\xff", "no text in UTF-8"),
        (None, "No such file"),
    ):
        rules.unlink()
        if content is not None:
            rules.write_bytes(content)
        else:
            rules = tmp_path / "gone.txt"
            rules.touch()
            rules.unlink()
        with pytest.raises(UsageError, match=said):
            capture_settings(path=tmp_path, watch=True, triggers=f"@{rules}")
        rules.touch()


class Ranks:
    """Ranks that wait for each other in each step; the order in which they end one is the test's."""

    def __init__(self, path: Path, count: int) -> None:
        self.all = [Triggered(path / TRIGGERS, rank, count) for rank in range(count)]
        self.begun = [0] * count

    def end(self, step: int, order: tuple[int, ...], fired: dict[int, str]) -> None:
        for rank in order:
            self.begun[rank] += self.all[rank].end_step(step, fired.get(rank, ""))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("fire", [(0,), (2,), (0, 1), (0, 1, 2)])
def test_all_ranks_capture_a_step_together(
    tmp_path: Path, order: tuple[int, ...], fire: tuple[int, ...]
) -> None:
    ranks = Ranks(tmp_path, 3)
    ranks.end(6, order, {})
    ranks.end(7, order, dict.fromkeys(fire, "x"))
    for step in range(8, 12):
        ranks.end(step, order, {})
    wanted = [each.wanted for each in ranks.all]
    assert set.intersection(*wanted)
    assert set.union(*wanted) <= {8, 9}
    if len(fire) == 3 or order[0] == fire[0]:
        assert wanted == [{8}] * 3
    assert ranks.begun == [1, 1, 1]


def test_lines_of_an_earlier_run_ask_for_nothing(tmp_path: Path) -> None:
    Triggered(tmp_path / TRIGGERS, 1, 2).end_step(4, "x")
    ranks = Ranks(tmp_path, 2)
    for step in range(8):
        ranks.end(step, (0, 1), {})
    assert not ranks.all[0].wanted
    with (tmp_path / TRIGGERS).open("ab") as file:
        file.write(b"no line\n\xff\xff 1 x\n9 1")  # torn
    ranks.end(8, (0, 1), {})
    assert not ranks.all[0].wanted
    with (tmp_path / TRIGGERS).open("ab") as file:
        file.write(b" rule\n")
    ranks.end(8, (0, 1), {})
    assert ranks.all[0].wanted == {9}


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    run = Watched(tmp_path)
    run.train(1)
    child = os.fork()
    if not child:
        run.train(1, 1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    run.train(1)
    run.end()
    assert [row["Step"] for row in run.rows] == ["0", "1"]
