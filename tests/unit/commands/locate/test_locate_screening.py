"""The screening of pairs of dumps finds what a visit of each record finds."""

import copy
import json
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.commands.locate.options import SearchOptions
from ray_precheck.commands.locate.plan import plan_location
from ray_precheck.commands.locate.search import located_in, screened
from ray_precheck.commands.locate.walk.columns import columns_of
from ray_precheck.commands.locate.walk.nouns import Located, Weights
from ray_precheck.commands.locate.walk.screening import screen_of
from ray_precheck.numerics.statistics import FIELDS, MAX, MIN, NORM
from ray_precheck.trace.forms import open_formed
from ray_precheck.trace.side import open_side
from scripts.measuring import CAPTURES
from scripts.speed.locate_scale import make_runs
from tests.unit.commands.locate.run_records import tensor, weight

pytestmark = pytest.mark.unit
OPTIONS = SearchOptions()
GROUP = {"group": {"type": "torch.ProcessGroup", "group_ranks": [0, 1]}}
# The largest value of memory that nothing has written.
UNSET = 99.0
Dump = dict[str, Any]


def forward(inputs: list[Any], *outputs: Any, **more: Any) -> Dump:
    return {"input_args": inputs, "input_kwargs": {}, "output": [*outputs], **more}


def odd_run() -> Dump:
    """Return a run of what the columns cannot tell all of: memory that nothing has written, an update, a
    mask, a sum over ranks, values without statistics, lists, and gradients that vanish."""
    bare = dict.fromkeys(FIELDS)
    masked = {**tensor(7.0), MIN: -3.4e38}
    moment, state, update = tensor(0.25), tensor(0.5), tensor(13.0)
    data = {
        "Torch.empty.0.forward": forward([{"type": "int", "value": 4}], tensor(UNSET)),
        "Functional.linear.0.forward": forward([tensor(1.0), weight(2.0), None], tensor(3.0)),
        "Tensor.copy_.0.forward": forward([tensor(UNSET), tensor(3.0)], tensor(3.0)),
        "Torch.cat.0.forward": forward([[tensor(3.0), tensor(1.0)]], tensor(4.0, shape=(8, 4))),
        "Functional.linear.1.forward": forward([tensor(3.0), weight(5.0)], tensor(6.0)),
        "Tensor.add_.0.forward": forward([tensor(6.0), tensor(3.0)], tensor(6.5)),
        "Tensor.masked_fill.0.forward": forward([tensor(6.5), {**tensor(0.0), **bare}], masked),
        "Functional.softmax.0.forward": forward([masked], tensor(0.9)),
        "Distributed.all_reduce.0.forward": forward([tensor(0.9)], tensor(1.8), **GROUP),
        "Functional.dropout.0.forward": forward([tensor(1.8)], tensor(2.2)),
        "Functional.layer_norm.0.forward": forward([tensor(2.2), weight(1.5)], tensor(2.4)),
        "Functional.layer_norm.0.backward": {
            "input": [tensor(8.0)], "output": [tensor(8.5), tensor(0.0, shape=(4,))],
        },
        "Functional.linear.1.backward": {"input": [tensor(8.5)], "output": [tensor(9.0), update]},
        "Optimizer.AdamW.0.forward": forward(
            [{"names": [{"type": "str", "value": "weight"}], "params": [state], "grads": [update],
              "state": [moment]}],
            {"params": [tensor(0.5001)], "state": [tensor(0.26)]},
        ),
        "Functional.linear.2.forward": forward([tensor(2.4), state], tensor(3.5)),
        "Torch.mul.0.forward": forward([tensor(UNSET), tensor(3.5)], tensor(4.5)),
        "Torch.mul.0.backward": {"input": [tensor(8.0)], "output": [tensor(8.9)]},
        "Functional.relu.0.forward": forward([tensor(3.5)], tensor(UNSET)),
        "Tensor.div_.0.forward": forward([tensor(UNSET), tensor(3.5)], tensor(5.5)),
        "Functional.linear.2.backward": {"input": [tensor(8.0)], "output": [tensor(0.0, shape=(4,))]},
    }  # fmt: skip
    return {"task": "statistics", "level": "L1", "framework": "pytorch", "data": data}


def tensors_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and "dtype" in value and "shape" in value:
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(each)


def scale(element: dict[str, Any], factor: float) -> None:
    for name in FIELDS:
        if type(element.get(name)) is float:
            element[name] *= factor


def spoil(dump: Dump, element: dict[str, Any], how: int, draw: random.Random) -> None:
    """Change a value, or the weights of a run, in one of the ways that a walk tells from each other."""
    if how < 4:
        scale(element, 1.0 + 10.0 ** -(2 * how))
    elif how == 4:
        element[MAX] = element[NORM] = float("nan")
    elif how == 5:
        element[MIN] = float("-inf")
    elif how == 6:
        element[MAX] = 3.4e38
    elif how == 7:
        element["requires_grad"] = not element.get("requires_grad")
    elif how == 8:
        element["shape"] = [*element["shape"], 1]
    elif how == 9:
        element.update(dict.fromkeys(FIELDS))
    else:
        for each in tensors_in(dump["data"]):
            if draw.random() < 0.3 and str(each["type"]).endswith("Parameter"):
                scale(each, 1.01)


def other_run(dump: Dump, seed: int) -> Dump:
    """Return a run with honest rounding from some record on, in which some values are spoilt."""
    draw, found = random.Random(seed), copy.deepcopy(dump)
    size, records = draw.choice((0.0, 1e-7, 1e-6, 1e-3, 3e-2)), [*found["data"].values()]
    moved: dict[Any, float] = {}
    garbage = draw.choice((1.0, 3.0))
    for element in tensors_in(found["data"]):
        if element.get(MAX) == UNSET:
            scale(element, garbage)
    for element in tensors_in(records[draw.randrange(len(records)) :]):
        if type(element.get(MAX)) is float and not str(element["type"]).endswith("Parameter"):
            scale(element, moved.setdefault((element[MAX], element[MIN]), draw.gauss(1.0, size)))
    for _ in range(draw.choice((0, 1, 1, 2))):
        found_tensors = [*tensors_in(draw.choice(records))]
        if found_tensors:
            spoil(found, draw.choice(found_tensors), draw.randrange(12), draw)
    return found


def both_ways(
    folder: Path, target: Dump, golden: Dump, most: int, *, is_first_step: bool
) -> tuple[Located, Located]:
    """Return what a visit of all records finds, and what the screening finds."""
    paths = folder / "target.json", folder / "golden.json"
    for path, dump in zip(paths, (target, golden), strict=True):
        path.write_text(json.dumps(dump), encoding="utf-8")
    with open_side(paths[0]) as ours, open_side(paths[1]) as theirs:
        plan = plan_location(ours, theirs, OPTIONS)
        whole = located_in(ours, theirs, plan, None, is_first_step=is_first_step)
    mine, other = (open_formed(path) for path in paths)
    assert mine is not None
    assert other is not None
    with mine, other:
        found = screened(mine, other, OPTIONS, most, is_first_step=is_first_step)
    assert found is not None
    return whole, found


@pytest.mark.parametrize(
    "name", ["", "torch_llm", "torch_llm_bf16", "torch_cnn", "mindspore_llm_fp16"]
)
def test_the_screening_finds_what_a_visit_of_each_record_finds(tmp_path: Path, name: str) -> None:
    golden = odd_run() if not name else json.loads((CAPTURES / name / "dump.json").read_bytes())
    roots = 0
    for seed in range(12 if name else 150):
        target, most = other_run(golden, seed), (0, 3, 10**6)[seed % 3]
        whole, found = both_ways(tmp_path, target, golden, most, is_first_step=seed % 2 == 0)
        # Rows that are left out are counted, the first ones are there.
        left = [each for each in whole.passed[most:] if each not in found.passed]
        whole.passed = [each for each in whole.passed if each not in left]
        whole.left_out = len(left)
        assert repr(found) == repr(whole), seed
        roots += len(whole.roots)
    assert roots > 5


def test_what_a_forward_pass_got_of_unset_memory_explains_no_gradient(tmp_path: Path) -> None:
    golden = odd_run()
    target = copy.deepcopy(golden)
    for element in tensors_in(target["data"]):
        if element.get(MAX) == UNSET:
            scale(element, 3.0)
    (gradient,) = tensors_in(target["data"]["Torch.mul.0.backward"]["output"])
    scale(gradient, 1.01)
    whole, found = both_ways(tmp_path, target, golden, 10**6, is_first_step=True)
    assert repr(found) == repr(whole)
    assert "Torch.mul.0.backward" in [root.key for root in found.roots]


def test_another_argument_is_found_where_all_tensors_got_are_the_same(tmp_path: Path) -> None:
    golden, target = odd_run(), odd_run()
    for dump, rate in ((golden, 0.5), (target, 0.25)):
        record = dump["data"]["Functional.dropout.0.forward"]
        record["input_kwargs"] = {"p": {"type": "float", "value": rate}}
    whole, found = both_ways(tmp_path, target, golden, 10**6, is_first_step=True)
    assert repr(found) == repr(whole)
    assert [root.key for root in found.roots] == ["Functional.dropout.0.forward"]


def test_few_records_are_visited(tmp_path: Path) -> None:
    calls = 1010
    make_runs(tmp_path, 2, calls, 1)
    at = Path("step0") / "rank0" / "dump.json"
    ours, theirs = (open_formed(tmp_path / side / at) for side in ("target", "golden"))
    assert ours is not None
    assert theirs is not None
    with ours, theirs:
        columns = columns_of(ours, theirs)
        assert columns is not None
        screen = screen_of(columns, ours, Weights(), {}, is_first_step=True)
    assert sum(screen.is_cleared) == calls - calls // 101  # All but the sums over ranks.


def test_what_is_known_of_two_forms_goes_with_them(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(odd_run()), encoding="utf-8")
    side = open_formed(path)
    assert side is not None
    with side:
        columns = columns_of(side, side)
    assert columns is not None
    known = weakref.ref(columns.form)
    del columns, side
    for number in range(20):  # Other forms take the place of this one.
        path.write_text(json.dumps({"data": {f"Torch.add.{number}.forward": {}}}), encoding="utf-8")
        other = open_formed(path)
        assert other is not None
        other.file.close()
    assert known() is None


def test_captures_with_other_records_are_not_screened(tmp_path: Path) -> None:
    golden = odd_run()
    others = [copy.deepcopy(golden) for _ in range(3)]
    del others[0]["data"]["Torch.cat.0.forward"]
    others[1]["framework"] = "mindspore"
    others[2]["data"]["Functional.linear.0.forward"]["output"][0]["variable"] = "12"
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(golden), encoding="utf-8")
    for dump in others:
        other = tmp_path / "target.json"
        other.write_text(json.dumps(dump), encoding="utf-8")
        ours, theirs = open_formed(other), open_formed(path)
        assert ours is not None
        assert theirs is not None
        with ours, theirs:
            assert screened(ours, theirs, OPTIONS, 10, is_first_step=True) is None


def named(name: str) -> Dump:
    return {"type": "str", "value": name}


def update(names: list[str], values: list[float]) -> Dump:
    groups = [{"names": [*map(named, names)], "params": [*map(tensor, values)]}]
    return forward(groups, {"params": [*map(tensor, values)]})


def run_of(**records: Dump) -> Dump:
    data = {key.replace("__", "."): record for key, record in records.items()}
    return {"task": "statistics", "level": "L1", "framework": "pytorch", "data": data}


@pytest.mark.parametrize("is_first_step", [True, False])
def test_another_parameter_is_looked_at_however_little_it_differs(
    tmp_path: Path, *, is_first_step: bool
) -> None:
    def run(used: float) -> Dump:
        return run_of(
            Functional__linear__0__forward=forward([tensor(1.0), tensor(used)], tensor(3.0)),
            Optimizer__SGD__0__forward=update(["a", "b"], [2.0, 2.000001]),
        )

    pair = run(2.0), run(2.000001)
    whole, found = both_ways(tmp_path, *pair, 10**6, is_first_step=is_first_step)
    assert repr(found) == repr(whole)
    assert [root.cause for root in found.roots] == ["another parameter"]


def test_weights_of_a_later_step_that_differ_are_told_of(tmp_path: Path) -> None:
    def run(factor: float) -> Dump:
        given = [1.0 * factor, 2.0 * factor, 3.0 * factor, 4.0 * factor, 5.0 * factor]
        return run_of(
            **{
                f"Functional__linear__{place}__forward": forward(
                    [tensor(10.0 + place), weight(value)], tensor(20.0 + place)
                )
                for place, value in enumerate(given)
            }
        )

    whole, found = both_ways(tmp_path, run(1.05), run(1.0), 10**6, is_first_step=False)
    assert repr(found) == repr(whole)
    assert len(found.silent) == 3


def test_views_of_what_a_later_record_only_writes_into_are_nobodys_error(tmp_path: Path) -> None:
    def run(left: float) -> Dump:
        out = {"out": tensor(left, shape=(2, 4))}
        return run_of(
            Functional__linear__0__forward=forward([tensor(1.0), weight(2.0)], tensor(3.0)),
            Tensor__view__0__forward=forward(
                [tensor(left + 1.0, shape=(8,))], tensor(left, shape=(2, 4))
            ),
            Torch__mul__0__forward=forward([tensor(left, shape=(2, 4))], tensor(left * 0.3)),
            Torch__cat__0__forward={
                **forward([[tensor(3.0)]], tensor(4.0, shape=(2, 4))), "input_kwargs": out,
            },
        )  # fmt: skip

    whole, found = both_ways(tmp_path, run(70.0), run(50.0), 10**6, is_first_step=True)
    assert repr(found) == repr(whole)


def test_values_of_a_bucket_are_expected_as_those_of_their_parameters(tmp_path: Path) -> None:
    value = {"a": 1.0, "b": 1.5}

    def run(*names: str) -> Dump:
        got = [[tensor(value[each]) for each in names]]
        gave = [tensor(2.0 * value[each]) for each in names]
        used = 2.0 * value[names[0]]
        return run_of(
            Distributed__ddp_all_reduce__0__forward={
                **forward(got, gave, **GROUP), "parameters": [*names], "by": "DDP",
            },
            Torch__mul__0__forward=forward([tensor(used)], tensor(used * 0.7)),
        )  # fmt: skip

    whole, found = both_ways(tmp_path, run("a", "b"), run("b", "a"), 10**6, is_first_step=True)
    assert repr(found) == repr(whole)
    assert [root.key for root in found.roots] == ["Torch.mul.0.forward"]
