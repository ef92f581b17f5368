"""The comparing part of the script that holds captures beside msprobe's: it sees what is planted."""

import copy
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
