"""Experts that are spread over ranks, against one process that has all of them."""

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.commands.locate.walk.nouns import Surroundings
from ray_precheck.trace.items import INPUT, OUTPUT, Item
from ray_precheck.trace.layouts.together import put_together
from ray_precheck.trace.side import open_side

pytestmark = pytest.mark.unit
TOKENS = np.random.default_rng(0).normal(size=(4, 3))
MLP = "Module.mlp.Experts.forward.0"


def tensor(values: Any, parameter: str = "") -> dict[str, Any]:
    array = np.asarray(values)
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(array.shape),
        "Max": float(array.max()),
        "Min": float(array.min()),
        "Mean": float(array.mean()),
        "Norm": float(np.linalg.norm(array)),
        "requires_grad": True,
        **({"parameter": parameter} if parameter else {}),
    }


def run_of(
    folder: Path, tokens: Any, experts: Mapping[int, Any], *, is_spread: bool, scale: float = 1.0
) -> Any:
    """Write the capture of a rank that has some experts, each with the tokens that it got, and open it."""
    records: dict[str, Any] = {}
    parents: dict[str, str] = {}

    def call(key: str, module: str, inputs: list[Any], output: Any) -> None:
        records[key] = {"input_args": inputs, "input_kwargs": {}, "output": [output]}
        parents[key] = module

    def linear(number: int, path: str, weight: Any, x: Any, y: Any) -> None:
        inputs = [tensor(x), tensor(weight, f"{path}.weight")]
        call(
            f"Functional.linear.{number}.forward",
            f"Module.{path}.Linear.forward.0",
            inputs,
            tensor(y),
        )

    weight = np.arange(12.0).reshape(4, 3) + 1
    linear(0, "mlp.router", weight, tokens, scale * tokens @ weight.T)
    if is_spread:
        name = "Distributed.all_to_all_single.0.forward"
        call(name, MLP, [tensor(tokens), tensor(tokens)], tensor(tokens))
    for place, (number, got) in enumerate(experts.items(), 1):
        own = np.full((3, 3), number + 1.0)
        linear(place, f"mlp.experts.{number}", own, got, np.asarray(got) @ own)
    call("Torch.cat.0.forward", MLP, [tensor(tokens)], tensor(tokens))
    call("Tensor.softmax.0.forward", MLP, [tensor(tokens)], tensor(tokens))
    folder.mkdir(parents=True)
    header = {"task": "statistics", "level": "mix", "framework": "pytorch"}
    (folder / "dump.json").write_text(json.dumps({**header, "data": records}), encoding="utf-8")
    (folder / "construct.json").write_text(json.dumps(parents), encoding="utf-8")
    return open_side(folder / "dump.json")


def put(folder: Path, scale: float = 1.0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the whole records of two ranks with two experts each, and those of one process."""
    half = TOKENS[:2], TOKENS[2:]
    first = {0: TOKENS[:1], 1: TOKENS[:2]}
    second = {2: TOKENS[1:2], 3: TOKENS[2:]}
    ranks = [
        run_of(folder / f"rank{at}", half[at], each, is_spread=True, scale=scale)
        for at, each in enumerate((first, second))
    ]
    one = [run_of(folder / "one", TOKENS, first | second, is_spread=False)]
    made = folder / "target", folder / "golden"
    with ExitStack() as stack:
        for side in (*ranks, *one):
            stack.enter_context(side)
        put_together(ranks, one, ("ep=2", ""), made)
    found = [json.loads((each / "dump.json").read_text())["data"] for each in made]
    return found[0], found[1]


def test_the_experts_of_a_rank_are_those_of_their_number_without_values(tmp_path: Path) -> None:
    target, golden = put(tmp_path)
    for key in (
        "Functional.linear.1.forward",
        "Functional.linear.2.forward",
        "Tensor.softmax.0.forward",
    ):
        assert target[key]["pair"] == golden[key]["pair"]
        for record in (target[key], golden[key]):
            for element in (*record["input_args"], *record["output"]):
                assert "Norm" not in element
                assert "experts are spread over ranks" in element["gathered"]
    for key in ("Functional.linear.3.forward", "Functional.linear.4.forward"):
        assert (
            golden[key]["layout"] is True
        )  # Those of rank 1, which the records of rank 0 do not have.


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_router_that_all_ranks_have_is_compared(tmp_path: Path, scale: float) -> None:
    target, golden = (each["Functional.linear.0.forward"] for each in put(tmp_path, scale))
    assert target["pair"] == golden["pair"]
    ours, theirs = (each["output"][0] for each in (target, golden))
    assert ours["shape"] == theirs["shape"] == [4, 4]
    assert ours["Norm"] == pytest.approx(scale * theirs["Norm"])


def test_values_that_were_left_out_bound_no_gap() -> None:
    around = Surroundings()
    around.note("before", Item("output.0", OUTPUT, tensor(TOKENS)), 1e-7, is_dangling=False)
    left = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4, 3], "gathered": "not"}
    around.note("left", Item("output.0", OUTPUT, left), math.nan, is_dangling=False)
    assert around.before(Item("input.0", INPUT, tensor(TOKENS))) == "before"
