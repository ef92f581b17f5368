"""Outputs whose length depends on the values: unique, nonzero, masked_select, where."""

import json
from pathlib import Path

import pytest
from records import altered, call, leaf, mask, replace_kernel, rows, tensor, whole

from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import BENCH, TaskPayload

pytestmark = pytest.mark.frameworks

PASS, NONE, SKIP, ERROR = Verdict.PASS, Verdict.NONE, Verdict.SKIP, Verdict.ERROR


# Their lengths follow from the generated values, not from the record.
ANY_LENGTH: dict[str, tuple[TaskPayload, int]] = {
    "unique": (call("Torch.unique", whole(20), output=tensor(3, dtype="int64")), 1),
    "unique with places": (
        call("Torch.unique", whole(20), return_inverse=True, return_counts=True),
        3,
    ),
    "unique rows": (call("Torch.unique", whole(20, 2), dim=0), 1),
    "unique_consecutive": (call("Torch.unique_consecutive", whole(20)), 1),
    "nonzero": (call("Torch.nonzero", mask(4, 5)), 1),
    "nonzero as tuple": (call("Torch.nonzero", mask(4, 5), as_tuple=True), 2),
    "where": (call("Torch.where", mask(4, 5)), 2),
    "masked_select": (
        call("Torch.masked_select", leaf(4, 5), mask(4, 5), grads=[tensor(9)], output=tensor(9)),
        1,
    ),
    "a mask as index": (
        call("Tensor.__getitem__", leaf(4, 5), mask(4, 5), grads=[tensor(3)], output=tensor(3)),
        1,
    ),
    "repeat_interleave": (
        call("Torch.repeat_interleave", leaf(3), whole(3), grads=[tensor(5)], output=tensor(5)),
        1,
    ),
}


@pytest.mark.parametrize("case", ANY_LENGTH)
def test_outputs_of_any_length_are_compared_where_the_lengths_agree(
    torch_checker: Checker, case: str
) -> None:
    payload, count = ANY_LENGTH[case]
    result = torch_checker.check(payload)
    expected = PASS if payload.backward else NONE
    assert (result.forward, result.backward, result.message) == (PASS, expected, "")
    assert len(rows(result, "forward")) == count


@pytest.mark.parametrize("case", ["unique", "nonzero", "masked_select"])
def test_where_the_lengths_differ_the_message_says_why(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    replace_kernel(monkeypatch, torch_checker.device(), altered(lambda out: out[1:]))
    result = torch_checker.check(ANY_LENGTH[case][0])
    assert result.forward is ERROR
    assert "where the bench has" in result.message
    assert "the shape of its output depends on the values" in result.message


def test_a_fault_is_found_in_what_a_mask_selects(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_kernel(monkeypatch, torch_checker.device(), altered(lambda out: out * 1.01))
    result = torch_checker.check(ANY_LENGTH["masked_select"][0])
    assert (result.forward, result.backward) == (ERROR, ERROR)


def test_a_captured_list_of_another_length_is_explained(tmp_path: Path) -> None:
    import torch

    parts = {"x": torch.rand(6), "a": torch.rand(3), "b": torch.rand(3)}
    for name, value in parts.items():
        torch.save(value, tmp_path / f"{name}.pt")
    named = {n: tensor(len(v)) | {"data_name": f"{n}.pt"} for n, v in parts.items()}
    forward = {
        "input_args": [named["x"], {"type": "int", "value": 2}],
        "input_kwargs": {},
        "output": [named["a"], named["b"]],
    }
    payload = TaskPayload(0, "Torch.split.0", json.dumps(forward).encode(), None)
    settings = CheckSettings("pytorch", "tensor", tmp_path, tests_dump=True)
    result = Checker(settings, BENCH).check(payload)
    assert result.forward is SKIP
    assert "the dump holds 2 outputs where the bench has 3" in result.message
