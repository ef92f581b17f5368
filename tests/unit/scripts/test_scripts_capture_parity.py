"""The comparing part of the script that holds captures beside msprobe's: it sees what is planted."""

import copy
import random
from typing import Any

import pytest

from ray_precheck.schema.result import Verdict
from scripts.capture_parity.main import compare_dumps, explain_rows
from scripts.capture_parity.reasons import Dumps
from scripts.capture_parity.records import differences_of_dumps
from scripts.capture_parity.verdicts import other_verdicts, read_comparison

Json = Any


def tensor(*shape: int, **said: Json) -> Json:
    statistics = {"Max": 2.0, "Min": -1.0, "Mean": 0.1, "Norm": 4.0}
    header = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(shape)}
    return {**header, **statistics, "requires_grad": False, **said}


def records() -> dict[str, Json]:
    return {
        "Torch.add.0.forward": {
            "input_args": [tensor(4, 3), {"type": "int", "value": 3}],
            "input_kwargs": {},
            "output": [tensor(4, 3, Max=5.0)],
        },
        "Torch.add.0.backward": {"input": [tensor(4, 3)], "output": [tensor(4, 3), None]},
    }


def planted(*path: Any, value: Json) -> dict[str, Json]:
    found = copy.deepcopy(records())
    place: Any = found
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return found


def compared(ours: dict[str, Json], level: str = "mix") -> Any:
    return compare_dumps("", Dumps(records(), ours, level, "node"))


def test_a_dump_is_like_itself() -> None:
    found = compared(records())
    assert (found.keys, found.same, found.without_reason) == (1.0, 2, [])
    assert found.is_reached


OUTPUT = ("Torch.add.0.forward", "output", 0)


@pytest.mark.parametrize(
    ("ours", "kind"),
    [
        (planted(*OUTPUT, "shape", value=[3, 4]), "shape"),
        (planted(*OUTPUT, "dtype", value="torch.float16"), "value"),
        (planted(*OUTPUT, "Max", value=5.05), "Max"),
        (planted(*OUTPUT, "Norm", value=4.04), "Norm"),
        (planted(*OUTPUT, "Mean", value=0.112), "Mean"),
        (planted(*OUTPUT, "requires_grad", value=True), "value"),
        (planted("Torch.add.0.forward", "input_args", 1, "value", value=4), "value"),
        (planted("Torch.add.0.forward", "output", value=[]), "length"),
        (planted("Torch.add.0.backward", "output", 1, value=tensor(1)), "value"),
        (planted("Torch.add.0.backward", "input", 0, "Max", value=2.02), "Max"),
    ],
)
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_what_is_planted_has_no_reason(ours: dict[str, Json], kind: str, level: str) -> None:
    found = compared(ours, level)
    assert [each.kind for each in found.without_reason] == [kind]
    assert not found.is_reached
    assert found.same == 1


def test_a_missing_key_is_no_parity() -> None:
    ours = records()
    del ours["Torch.add.0.backward"]
    found = compared(ours)
    assert found.keys == 0.5
    assert [each.kind for each in found.without_reason] == ["missing"]
    assert not found.is_reached


def test_a_further_record_needs_a_reason() -> None:
    known = records() | {"Tensor.view.0.forward": {}}
    assert compared(known).reasons == {"msprobe does not record the function": 1}
    twice = records() | {"Torch.add.1.forward": {}}
    assert [each.kind for each in compared(twice).without_reason] == ["extra"]


def test_rounding_to_float32_is_no_difference() -> None:
    ours = planted(*OUTPUT, "Norm", value=4.0 * (1 + 1e-6))
    assert list(differences_of_dumps(records(), ours)) == []


@pytest.mark.parametrize("element", ["Norm", "Mean"])
def test_sums_that_overflow_in_float32_have_a_reason(element: str) -> None:
    theirs = planted(*OUTPUT, element, value=float("inf"))
    ours = planted(*OUTPUT, element, value=3e39)
    found = compare_dumps("", Dumps(theirs, ours, "L1", "node"))
    assert found.is_reached
    assert not compare_dumps("", Dumps(theirs, records(), "L1", "node")).is_reached


def test_another_verdict_is_named() -> None:
    theirs = {"Torch.add.0": (Verdict.PASS, Verdict.NONE), "Tensor.to.0": (Verdict.SKIP,) * 2}
    ours = {"Torch.add.0": (Verdict.ERROR, Verdict.PASS), "Tensor.to.0": (Verdict.PASS,) * 2}
    lines, explained = other_verdicts(theirs, ours, {"Tensor.to.0"})
    assert (lines, explained) == (["Torch.add.0.forward: PASS, ours ERROR"], 2)
    assert len(other_verdicts(theirs, ours)[0]) == 3


def row(name: str, result: str, message: str = "[]", norm: str = "0") -> dict[str, str]:
    return {"NPU Name": name, "Result": result, "Err_message": message, "NormRelativeErr": norm}


def test_rows_that_fail_need_a_reason() -> None:
    grown = '["warning: The norm relative error of output is 10 times that of input."]'
    found = read_comparison(
        [
            row("Torch.add.0.forward.input.0", "pass"),
            row("Torch.add.0.forward.output.0", "warning", grown, "0.0001%"),
            row("Torch.add.0.backward.output.0", "warning", grown, "1.5%"),
        ]
    )
    assert (found.rows, found.by_rounding, len(found.failing)) == (3, 1, 1)
    dumps = Dumps(records(), records(), "mix", "node")
    assert explain_rows(found, dumps) == {"": 1}


def numbers(draw: random.Random, *shape: int) -> Json:
    largest, norm = draw.uniform(1.0, 2.0), draw.uniform(3.0, 9.0)
    return tensor(*shape, Max=largest, Min=-draw.uniform(1.0, 2.0), Mean=0.01, Norm=norm)


def call(name: str, inputs: list[Json], output: Json, arrived: Json, passed: list[Json]) -> Json:
    forward = {"input_args": inputs, "input_kwargs": {}, "output": [output]}
    places = [str(index) for index in range(len(passed))]
    backward = {"input": [arrived], "output": passed, "gradient_of": places}
    return {f"{name}.forward": forward, f"{name}.backward": backward}


def dumps_with_reasons(level: str, gradients: str) -> Dumps:
    """Thirty calls of one node, and two of each kind that a reason names."""
    draw, ours = random.Random(3), {}
    for index in range(30):
        ours |= call(f"Torch.mul.{index}", *several(draw, 2))
    for index in range(2):
        x = numbers(draw, 4, 4)
        ours |= call(f"Tensor.to.{index}", [x], x, *several(draw, 1)[2:])
        ours |= call(f"Torch.transpose.{index}", [x], x, *several(draw, 1)[2:])  # x is symmetric
        ours |= call(f"Functional.linear.{index}", *several(draw, 3))
        outputs, gradients_of = [[numbers(draw, 4, 4) for _ in range(2)] for _ in range(2)]
        name = f"Module.layer{index}.Attention"
        forward = {"input_args": [x], "input_kwargs": {}, "output": outputs}
        ours[f"{name}.forward.0"] = forward
        ours[f"{name}.backward.0"] = {"input": gradients_of, "output": [x]}
    theirs = copy.deepcopy(ours)
    for index in range(2):
        if gradients == "border":
            theirs[f"Functional.linear.{index}.backward"]["output"] = [numbers(draw, 16)]
        elif level == "mix":
            theirs[f"Tensor.to.{index}.backward"]["input"] = [numbers(draw, 4, 4)]
        theirs[f"Module.layer{index}.Attention.backward.0"]["input"][1] = numbers(draw, 4, 4)
    for record in theirs.values():
        record.pop("gradient_of", None)
    return Dumps(theirs, ours, level, gradients)


def several(draw: random.Random, count: int) -> tuple[list[Json], Json, Json, list[Json]]:
    """Return inputs, output, and the gradients that arrive and are passed on."""
    inputs, passed = [[numbers(draw, 4, 4) for _ in range(count)] for _ in range(2)]
    return inputs, numbers(draw, 4, 4), numbers(draw, 4, 4), passed


@pytest.mark.parametrize(
    ("gradients", "place", "value"),
    [
        # A transposition that looks like its input has a node of its own.
        ("node", ("Torch.transpose.0.backward", "output", 0, "Max"), 9.0),
        # An element of which one statistic alone differs is no gradient of further users.
        ("node", ("Module.layer0.Attention.backward.0", "input", 0, "Norm"), 1.0),
        ("border", ("Torch.mul.0.backward", "output", 0, "Max"), 9.0),
        ("border", ("Functional.linear.0.backward", "output", 0, "dtype"), "torch.float16"),
        ("border", ("Functional.linear.0.backward", "output", 1, "shape"), [16]),
        ("border", ("Functional.linear.0.backward", "gradient_of"), ["0", "1"]),
    ],
)
def test_a_reason_covers_its_own_rows_alone(
    gradients: str, place: tuple[Any, ...], value: Json
) -> None:
    dumps = dumps_with_reasons("mix", gradients)
    element: Any = dumps.ours
    for name in place[:-1]:
        element = element[name]
    element[place[-1]] = value
    unexplained = compare_dumps("", dumps).without_reason
    assert {each.key for each in unexplained} == {place[0]}


def test_calls_without_a_border_are_missing_at_borders_alone() -> None:
    for gradients, count in (("border", 0), ("node", 1)):
        dumps = dumps_with_reasons("L1", gradients)
        del dumps.ours["Tensor.to.0.backward"]  # type: ignore[attr-defined]
        found = compare_dumps("", dumps)
        assert len(found.without_reason) == count
        assert found.is_reached is (gradients == "border")
