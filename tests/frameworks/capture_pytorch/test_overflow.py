"""Births of NaN and infinity in real captures: found after the step, and noted or raised while it runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import overflow_births
import pytest
import torch
from overflow_births import control_trials, planted_trials
from overflow_faults import FAULTS, TAKEN_AWAY

from ray_precheck.capture import Capture
from ray_precheck.errors import OverflowBornError, UsageError
from ray_precheck.trace.overflow.births import follow
from ray_precheck.trace.side import open_side

pytestmark = pytest.mark.frameworks
X = torch.ones(4, 4)


def test_each_planted_birth_is_found_at_its_line() -> None:
    trials = list(planted_trials())
    assert len(trials) == len(FAULTS) >= 50
    assert [trial for trial in trials if trial.problem] == []


def test_what_masks_take_away_is_no_alarm() -> None:
    trials = list(planted_trials(TAKEN_AWAY))
    assert len(trials) == len(TAKEN_AWAY) >= 10
    assert [trial for trial in trials if trial.problem] == []


def test_no_control_gives_an_alarm() -> None:
    trials = list(control_trials())
    assert len(trials) >= 12
    assert [trial for trial in trials if trial.problem] == []


def test_a_birth_at_another_line_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow_births, "marked_line", lambda step: 1)
    assert "of another line" in next(planted_trials()).problem


def bad_step() -> None:
    """Bear an infinity in a product, which a sum passes on."""
    (torch.exp(X * 1000) + 1).sum()


def only_dump(folder: Path) -> Path:
    (dump,) = folder.glob("step0/*/dump.json")
    return dump


def keys(dump: Path) -> list[str]:
    return list(json.loads(dump.read_text())["data"])


def test_raise_stops_at_the_first_birth_and_the_dump_is_readable(tmp_path: Path) -> None:
    with (
        pytest.raises(OverflowBornError, match=r"inf in Torch\.exp\.0\.forward\.output\.0") as told,
        Capture(tmp_path, step_by="manual", framework="pytorch", overflow="raise"),
    ):
        bad_step()
    assert "test_overflow.py" in str(told.value)  # the source
    dump = only_dump(tmp_path)
    assert keys(dump)[-1] == "Torch.exp.0.forward"
    with open_side(dump) as side:
        assert [each.key for each in follow(side).alarms] == ["Torch.exp.0.forward"]


def test_raise_names_the_module(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(x * 0)

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Net())
    with (
        pytest.raises(OverflowBornError, match=r"in Module\.1\.Net\.forward\.0"),
        Capture(tmp_path, level="mix", step_by="manual", framework="pytorch", overflow="raise"),
    ):
        model(X)


def test_raise_comes_out_of_the_backward_pass(tmp_path: Path) -> None:
    x = torch.zeros(4, requires_grad=True)
    with (
        pytest.raises(OverflowBornError, match=r"Torch\.sqrt\.0\.backward"),
        Capture(tmp_path, step_by="manual", framework="pytorch", overflow="raise"),
    ):
        torch.sqrt(x).sum().backward()


def test_log_notes_the_first_birth_of_each_step(tmp_path: Path, capsys: Any) -> None:
    with Capture(tmp_path, step_by="manual", framework="pytorch", overflow="log") as capture:
        for _ in range(2):
            bad_step()
            torch.log(X * 0)
            capture.step()
        (X + 1).sum()
    lines = [line for line in capsys.readouterr().err.splitlines() if "Torch.exp" in line]
    assert [line.split("step")[1][0] for line in lines] == ["0", "1"]
    for step in (0, 1):
        (noted,) = tmp_path.glob(f"step{step}/*/overflow.jsonl")
        (note,) = map(json.loads, noted.read_text().splitlines())
        assert (note["api"], note["birth"], note["kind"]) == ("Torch.exp.0.forward", "birth", "inf")
    assert list(tmp_path.glob("step2/*/overflow.jsonl")) == []


def test_masks_and_values_from_outside_are_not_told(tmp_path: Path) -> None:
    with Capture(tmp_path, step_by="manual", framework="pytorch", overflow="raise"):
        X.masked_fill(torch.eye(4, dtype=torch.bool), -torch.inf).softmax(-1)
        torch.tensor([1.0, torch.nan]) + 1
    assert list(tmp_path.glob("step0/*/overflow.jsonl")) == []


def test_modules_do_not_bear_what_came_into_them(tmp_path: Path) -> None:
    class Inner(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([1.0, torch.nan])

    class Middle(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.inner(x)
            with torch._C.DisableTorchFunction():
                return found.repeat(3)

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.middle = torch.nn.Linear(4, 4), Middle()

        def forward(self, x: torch.Tensor) -> Any:
            self.linear(x)
            found = self.middle(x)
            with torch._C.DisableTorchFunction():
                return found[1:]

    with Capture(tmp_path, level="mix", step_by="manual", framework="pytorch", overflow="raise"):
        Outer()(X)
    assert list(tmp_path.glob("step0/*/overflow.jsonl")) == []


def test_without_the_option_nothing_is_looked_for(tmp_path: Path) -> None:
    with Capture(tmp_path, step_by="manual", framework="pytorch"):
        bad_step()
    assert list(tmp_path.glob("step0/*/overflow.jsonl")) == []


@pytest.mark.parametrize(
    "options",
    [
        {"task": "structure", "level": "mix"},
        {"summary_mode": "xor"},
        {"data_mode": ["output"]},
    ],
)
def test_a_capture_without_values_cannot_look(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--overflow"):
        Capture(tmp_path, overflow="log", framework="pytorch", **options)


def test_a_script_ends_where_the_overflow_was_born(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nx = torch.nn.Linear(3, 3)(torch.ones(3))\ny = x / (x * 0)\nprint('went on')\n"
    )
    words = ["capture", "--overflow", "raise", "-o", str(tmp_path / "dump"), "--"]
    command = [sys.executable, "-m", "ray_precheck", *words, sys.executable, str(script)]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert ended.returncode == 1
    assert "went on" not in ended.stdout
    raised = [line for line in ended.stderr.splitlines() if "OverflowBornError: " in line]
    assert "in Tensor.__truediv__.0.forward.output.0" in raised[0]
    assert keys(only_dump(tmp_path / "dump"))[-1] == "Tensor.__truediv__.0.forward"
