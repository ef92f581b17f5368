"""Experts that are spread over ranks, against one process that has all of them."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from ray_precheck.commands.locate.walk.nouns import Surroundings
from ray_precheck.numerics.statistics import FIELDS
from ray_precheck.trace.items import INPUT, OUTPUT, SAID_BEFORE, UNORDERED, Item
from ray_precheck.trace.layouts.axes import LayoutStage
from ray_precheck.trace.layouts.parts import of_array
from ray_precheck.trace.layouts.together import put_together
from ray_precheck.trace.layouts.updates import UpdatePlace, update_of
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
        **(of_array(array) if array.size else dict.fromkeys(FIELDS)),
        "requires_grad": True,
        **({"parameter": parameter} if parameter else {}),
    }


def run_of(
    folder: Path,
    tokens: Any,
    experts: Mapping[int, Any],
    *,
    group: Sequence[int] = (),
    scale: float = 1.0,
    first: int = 0,
    weights: Mapping[int, float] = MappingProxyType({}),
) -> Any:
    """Write the capture of a rank that has some experts, each with the tokens that it got, and open it. The
    names of its experts count from `first`; `group` has the ranks that exchange tokens."""
    records: dict[str, Any] = {}
    parents: dict[str, str] = {}

    def call(key: str, module: str, inputs: list[Any], output: Any, **more: Any) -> None:
        records[key] = {"input_args": inputs, "input_kwargs": {}, "output": [output], **more}
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
    if group:
        name = "Distributed.all_to_all_single.0.forward"
        held = {"type": "torch.ProcessGroup", "group_ranks": list(group)}
        call(name, MLP, [tensor(tokens), tensor(tokens)], tensor(tokens), group=held)
    for place, (number, got) in enumerate(experts.items(), 1):
        own = np.full((3, 3), weights.get(number, number + 1.0))
        linear(place, f"mlp.experts.{number - first}", own, got, np.asarray(got) @ own)
    call("Torch.cat.0.forward", MLP, [tensor(tokens)], tensor(tokens))
    places = tensor(np.arange(len(tokens))) | {"dtype": "torch.int64"}
    call("Tensor.argsort.0.forward", MLP, [places], places)
    folder.mkdir(parents=True)
    header = {"task": "statistics", "level": "mix", "framework": "pytorch"}
    (folder / "dump.json").write_text(json.dumps({**header, "data": records}), encoding="utf-8")
    (folder / "construct.json").write_text(json.dumps(parents), encoding="utf-8")
    return open_side(folder / "dump.json")


Records = dict[str, Any]
ONE = {0: TOKENS[:1], 1: TOKENS[:2], 2: TOKENS[1:2], 3: TOKENS[2:]}
HALVES = TOKENS[:2], TOKENS[2:]


def put_runs(folder: Path, ranks: Sequence[Any], one: Any, layout: str) -> tuple[Records, Records]:
    made = folder / "target", folder / "golden"
    with ExitStack() as stack:
        for side in (*ranks, one):
            stack.enter_context(side)
        put_together(ranks, [one], (layout, ""), made)
    found = [json.loads((each / "dump.json").read_text())["data"] for each in made]
    return found[0], found[1]


def put(
    folder: Path, experts: Mapping[int, Any] = MappingProxyType(ONE), **how: Any
) -> tuple[Records, Records]:
    """Return the whole records of two ranks with two experts each, and those of one process."""
    numbers = how.pop("numbers", ((0, 1), (2, 3)))
    firsts = how.pop("firsts", (0, 0))
    group = how.pop("group", (0, 1))
    ranks = [
        run_of(
            folder / f"rank{at}",
            HALVES[at],
            {number: experts[number] for number in numbers[at]},
            group=group,
            first=firsts[at],
            **how,
        )
        for at in range(2)
    ]
    return put_runs(folder, ranks, run_of(folder / "one", TOKENS, ONE), "ep=2")


def expert(records: Records, number: int, name: str = "") -> Any:
    """Return the record of the product of an expert."""
    weight = f"{name or f'mlp.experts.{number}'}.weight"
    return next(
        each for each in records.values() if each["input_args"][-1].get("parameter") == weight
    )


@pytest.mark.parametrize("firsts", [(0, 0), (0, 2)])
def test_experts_of_all_ranks_are_those_of_their_number(
    tmp_path: Path, firsts: tuple[int, int]
) -> None:
    target, golden = put(tmp_path, firsts=firsts)
    for number in range(4):
        ours, theirs = (expert(each, number) for each in (target, golden))
        assert ours["pair"] == theirs["pair"]
        for one, two in zip(
            (*ours["input_args"], *ours["output"]),
            (*theirs["input_args"], *theirs["output"]),
            strict=True,
        ):
            assert [one[each] for each in FIELDS] == pytest.approx([two[each] for each in FIELDS])
    assert [key for key, each in target.items() if "mlp.experts" in str(each)] == [
        key for key in target if key.startswith("Functional.linear") and ".0." not in key
    ]


def test_an_expert_with_another_weight_stays_one(tmp_path: Path) -> None:
    target, golden = put(tmp_path, weights={3: 7.0})
    ours, theirs = (expert(each, 3) for each in (target, golden))
    assert ours["input_args"][1]["Norm"] == pytest.approx(7 / 4 * theirs["input_args"][1]["Norm"])
    assert ours["output"][0]["Norm"] == pytest.approx(7 / 4 * theirs["output"][0]["Norm"])


def test_tokens_in_another_order_are_the_same(tmp_path: Path) -> None:
    target, golden = put(tmp_path, {**ONE, 3: TOKENS[:1:-1]})
    ours, theirs = (expert(each, 3)["output"][0] for each in (target, golden))
    assert ours["Norm"] == pytest.approx(theirs["Norm"])
    assert UNORDERED in ours["gathered"]


def test_an_expert_with_another_number_of_tokens_is_said_once(tmp_path: Path) -> None:
    target, _ = put(tmp_path, {**ONE, 3: TOKENS[1:]})
    record = expert(target, 3)
    assert record["input_args"][1]["Norm"] is not None
    said = [each.get("gathered", "") for each in (record["input_args"][0], *record["output"])]
    assert "another number of tokens" in said[0]
    assert said[1] == SAID_BEFORE
    assert all("Norm" not in each for each in (record["input_args"][0], *record["output"]))


@pytest.mark.parametrize(
    "how", [{"group": (0, 1, 2)}, {"numbers": ((2, 3), (0, 1)), "firsts": (2, 0)}]
)
def test_experts_of_which_nothing_tells_which_they_are_are_left_alone(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    target, golden = put(tmp_path, **{"firsts": (0, 2), **how})
    for records in (target, golden):
        its = [each for key, each in records.items() if "linear" in key and "linear.0." not in key]
        assert [each.get("layout") for each in its] == [True] * len(its)


def test_tokens_of_an_expert_that_several_ranks_have_are_joined(tmp_path: Path) -> None:
    quarters = np.split(TOKENS, 4)
    got = [{0: TOKENS[:1], 1: TOKENS[:1]}, {2: TOKENS[1:2], 3: TOKENS[:0]},
           {0: TOKENS[:0], 1: TOKENS[1:2]}, {2: TOKENS[:0], 3: TOKENS[2:]}]  # fmt: skip
    groups = (0, 1), (0, 1), (2, 3), (2, 3)
    ranks = [
        run_of(tmp_path / f"rank{at}", quarters[at], got[at], group=groups[at]) for at in range(4)
    ]
    target, golden = put_runs(tmp_path, ranks, run_of(tmp_path / "one", TOKENS, ONE), "dp=2,ep=2")
    for number in range(4):
        ours, theirs = (expert(each, number) for each in (target, golden))
        for one, two in zip(ours["input_args"], theirs["input_args"], strict=True):
            assert one["Norm"] == pytest.approx(two["Norm"])


def test_places_of_tokens_are_left_out(tmp_path: Path) -> None:
    for records in put(tmp_path):
        record = records["Tensor.argsort.0.forward"]
        said = [each["gathered"] for each in (*record["input_args"], *record["output"])]
        assert "experts are spread over ranks" in said[0]
        assert said[1] == SAID_BEFORE


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_router_that_all_ranks_have_is_compared(tmp_path: Path, scale: float) -> None:
    target, golden = (each["Functional.linear.0.forward"] for each in put(tmp_path, scale=scale))
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


def test_the_update_of_an_expert_is_that_of_all_ranks_that_have_it() -> None:
    def update(gradient: float, *names: str) -> dict[str, Any]:
        group = {
            "names": [{"type": "str", "value": name} for name in names],
            "grads": [tensor([gradient])] * len(names),
        }
        return {"input_args": [group], "output": []}

    stage = LayoutStage((4, 5, 6, 7), (("dp", 2), ("ep", 2)))
    records = [update(at, "all", f"experts.{at % 2}") for at in range(4)]
    found = update_of([records], [stage]).elements
    having, elements = found[UpdatePlace("input_args", "grads", "experts.1")]
    assert having == LayoutStage((5, 7), (("", 2),))
    assert [each["Norm"] for each in elements] == [1.0, 3.0]
    assert found[UpdatePlace("input_args", "grads", "all")][0] == stage
