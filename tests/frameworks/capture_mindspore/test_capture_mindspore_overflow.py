"""Births of NaN and infinity in captures of MindSpore."""

import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint

from ray_precheck.capture import Capture
from ray_precheck.errors import OverflowBornError
from ray_precheck.trace.overflow.births import follow
from ray_precheck.trace.side import open_side

X = Tensor(np.ones((2, 3), np.float32))


def births_of(folder: Path) -> list[tuple[str, str]]:
    (dump,) = folder.glob("step0/*/dump.json")
    with open_side(dump) as side:
        return [(each.birth.value, each.key) for each in follow(side).alarms]


def test_births_are_found_and_masks_are_meant(tmp_path: Path) -> None:
    with Capture(tmp_path, step_by="manual", framework="mindspore"):
        masked = mint.where(X > 2, X, Tensor(-np.inf, ms.float32))
        masked[0, 0] = 1.0
        masked[1, 0] = 1.0
        mint.nn.functional.softmax(masked, -1)
        mint.log(X - 1)
        (X * 1e6).to(ms.float16)
    found = births_of(tmp_path)
    assert found[0] == ("birth", "Mint.log.0.forward")
    assert ("cast", "Tensor.to.0.forward") in found
    assert len(found) == 2


def test_raise_stops_at_the_first_birth(tmp_path: Path) -> None:
    with (
        pytest.raises(OverflowBornError, match=r"Mint\.exp\.0\.forward"),
        Capture(tmp_path, step_by="manual", framework="mindspore", overflow="raise"),
    ):
        mint.exp(X * 1000)
    assert births_of(tmp_path) == [("birth", "Mint.exp.0.forward")]


def test_log_notes_it_and_goes_on(tmp_path: Path) -> None:
    with Capture(tmp_path, step_by="manual", framework="mindspore", overflow="log"):
        mint.exp(X * 1000)
        mint.add(X, X)
    (noted,) = tmp_path.glob("step0/*/overflow.jsonl")
    assert json.loads(noted.read_text())["api"] == "Mint.exp.0.forward"
    (dump,) = tmp_path.glob("step0/*/dump.json")
    assert "Mint.add.0.forward" in json.loads(dump.read_text())["data"]


def test_raise_comes_out_of_the_backward_pass(tmp_path: Path) -> None:
    def loss(x: Tensor) -> Tensor:
        return mint.sum(mint.sqrt(x))

    with (
        pytest.raises(OverflowBornError, match=r"Mint\.sqrt\.0\.backward"),
        Capture(tmp_path, step_by="manual", framework="mindspore", overflow="raise"),
    ):
        ms.grad(loss)(X * 0)
    assert births_of(tmp_path)[0] == ("birth", "Mint.sqrt.0.backward")
