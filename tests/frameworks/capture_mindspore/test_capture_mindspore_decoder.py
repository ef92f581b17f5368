"""A step of a small decoder: what msprobe captured of it, and what we do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder import decoder_step

Captured = Callable[..., dict[str, Any]]
# What msprobe does not record.
OURS = {"stack", "parent", "stride", "offset", "shares", "argument", "parameter"}
STORED = Path(__file__).parents[2] / "data" / "mindspore_llm" / "dump.json"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    """What msprobe 26.2 recorded of this step, its statistics by numpy."""
    return dict(json.loads(STORED.read_text())["data"])


def differences(theirs: Any, ours: Any, place: str = "") -> list[str]:
    """Return the places at which two records differ; numbers may differ by their rounding."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = (theirs.keys() | ours.keys()) - OURS
        pairs = [(key, theirs.get(key), ours.get(key)) for key in sorted(keys)]
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = [(str(i), *pair) for i, pair in enumerate(zip(theirs, ours, strict=True))]
    elif isinstance(theirs, float) and isinstance(ours, float):
        return [] if ours == pytest.approx(theirs, rel=1e-5, abs=1e-12) else [place]
    else:
        return [] if theirs == ours else [place]
    return [each for key, one, other in pairs for each in differences(one, other, f"{place}.{key}")]


def _is_zero_dimensional(record: dict[str, Any]) -> bool:
    elements = [each for side in ("input_args", "input", "output") for each in record.get(side, [])]
    return any(isinstance(each, dict) and each.get("shape") == [] for each in elements)


def test_a_step_has_the_records_of_msprobe(captured: Captured, stored: dict[str, Any]) -> None:
    """What differs, and why: msprobe lets constants require a gradient, too (matmul.0, mul.15); it has none
    for tensors in a list (cat); a tensor that `to` hands on as it is has the gradient from all its users; and
    the stored norm of a tensor without dimensions is numpy's, where msprobe itself repeats the value."""
    net, step = decoder_step(2, 64, 16)
    records = captured(step, model=net)
    assert records.keys() == stored.keys()
    differing = {key for key in stored if differences(stored[key], records[key])}
    explained = {"Mint.matmul.0.backward", "Mint.mul.15.backward"}
    explained |= {key for key in stored if key.endswith("backward") and ".cat." in key}
    explained |= {
        key for key in stored if key.startswith("Tensor.to.") and key.endswith("backward")
    }
    explained |= {key for key in stored if _is_zero_dimensional(stored[key])}
    assert differing <= explained


def test_at_mix_cells_enclose_their_calls(captured: Captured, tmp_path: Path) -> None:
    net, step = decoder_step(2, 16, 4)
    plain = step()
    seen: list[Any] = []
    records = captured(lambda: seen.append(step()), model=net, level="mix")
    cells = {key for key in records if key.startswith("Cell.")}
    assert cells == {
        f"Cell.blocks.{index}.Block.{kind}.0"
        for index in (0, 1)
        for kind in ("forward", "backward", "parameters_grad")
    }
    (path,) = tmp_path.glob("dump/step0/*/construct.json")
    parents = json.loads(path.read_text())
    assert parents["Mint.square.0.forward"] == "Cell.blocks.0.Block.forward.0"
    assert parents["Mint.square.3.backward"] == "Cell.blocks.1.Block.backward.0"
    assert parents["Mint.log.0.forward"] is None
    forward = records["Cell.blocks.1.Block.forward.0"]
    assert [each["shape"] for each in forward["input_args"]] == [[2, 4, 16], [4, 2], [4, 2], [4, 4]]
    assert list(forward["parameters"]) == ["wq", "wk", "wv", "wo", "w1", "w3", "w2", "g1", "g2"]
    names = [parameter.name for parameter in net.trainable_params()]
    gradients = dict(zip(names, plain[1], strict=True))
    recorded = records["Cell.blocks.1.Block.parameters_grad.0"]
    for name, (element,) in recorded.items():
        expected = gradients[f"blocks.1.{name}"].asnumpy()
        assert element["Norm"] == pytest.approx(float(np.linalg.norm(expected)), rel=1e-6)
    assert len(recorded) == 9
    passed_on = records["Cell.blocks.1.Block.backward.0"]["output"]
    assert [each is None for each in passed_on] == [False, True, True, True]
    for one, other in zip(plain[1], seen[0][1], strict=True):
        assert np.array_equal(one.asnumpy(), other.asnumpy())


def test_at_level_l0_there_are_cells_alone(captured: Captured) -> None:
    net, step = decoder_step(1, 16, 4)
    records = captured(step, model=net, level="L0")
    assert {key.split(".")[0] for key in records} == {"Cell"}
    assert len(records) == 3
