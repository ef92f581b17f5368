"""How a tensor lies in its memory, and which arguments share it, as a capture writes it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ray_precheck.capture import Capture

pytestmark = pytest.mark.frameworks

_FIELDS = ("stride", "offset", "shares")


def layout(element: dict[str, Any]) -> dict[str, Any]:
    return {key: element[key] for key in _FIELDS if key in element}


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_what_is_not_contiguous_has_stride_and_offset(captured: Any, task: str) -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    odd = torch.arange(9.0)

    def step() -> None:
        torch.sin(base)
        torch.sin(base.transpose(0, 2))
        torch.sin(base[1])
        torch.sin(base[:, 1:])
        torch.sin(base[:1].expand(5, 3, 4))
        torch.sin(odd.unfold(0, 3, 1))
        torch.sin(base[:1, :1, :1].expand(1, 1, 1))
        torch.cos(torch.ones(1, 4, 2, 2).to(memory_format=torch.channels_last))

    records = captured(step, task=task)
    given = [records[f"Torch.sin.{i}.forward"]["input_args"][0] for i in range(7)]
    assert list(map(layout, given)) == [
        {},
        {"stride": [1, 4, 12]},
        {"offset": 12},
        {"stride": [12, 4, 1], "offset": 4},
        {"stride": [0, 4, 1]},
        {"stride": [1, 1]},
        {},
    ]
    (channels,) = records["Torch.cos.0.forward"]["input_args"]
    assert layout(channels) == {"stride": [16, 1, 8, 4]}
    assert layout(records["Torch.cos.0.forward"]["output"][0]) == {"stride": [16, 1, 8, 4]}


def test_arguments_in_the_same_memory_name_the_first_one(captured: Any) -> None:
    x, y = torch.ones(4, 4), torch.ones(4, 4)

    def step() -> None:
        torch.mul(x, x)
        torch.addmm(y, x, x.t(), out=y)
        torch.cat([y, x[1:], x[:1]])
        torch.where(x > 0, input=y, other=x)
        torch.mul(x, y)
        torch.mul(torch.ones(0), torch.ones(0))

    records = captured(step)

    def shares(call: str) -> list[Any]:
        record = records[f"Torch.{call}.forward"]
        given = [*record["input_args"], *record["input_kwargs"].values()]
        flat = [each for one in given for each in (one if isinstance(one, list) else [one])]
        return [each.get("shares") for each in flat if isinstance(each, dict)]

    assert shares("mul.0") == [None, "input_args.0"]
    assert shares("addmm.0") == [None, None, "input_args.1", "input_args.0"]
    assert shares("cat.0") == [None, None, "input_args.0.1"]
    assert shares("where.0") == [None, None, None]
    assert shares("mul.1") == shares("mul.2") == [None, None]
    assert "shares" not in json.dumps([record["output"] for record in records.values()])


def test_a_tensor_that_is_transposed_in_place_is_written_anew(captured: Any) -> None:
    square = torch.ones(3, 3)

    def step() -> None:
        torch.sin(square)
        square.data = square.data.t()
        torch.sin(square)

    records = captured(step)
    given = [records[f"Torch.sin.{i}.forward"]["input_args"][0] for i in range(2)]
    assert list(map(layout, given)) == [{}, {"stride": [1, 3]}]


def test_gradients_have_their_layouts(captured: Any) -> None:
    x = torch.ones(3, 4, requires_grad=True)
    records = captured(lambda: torch.sin(x).t().sum().backward())
    (arrived,) = records["Torch.sin.0.backward"]["input"]
    assert layout(arrived) in ({"stride": [0, 0]}, {"stride": [1, 3]})


def test_the_header_says_that_layouts_are_recorded(tmp_path: Path) -> None:
    with Capture(tmp_path, step_by="manual", framework="pytorch"):
        torch.sin(torch.ones(2))
    (dump,) = tmp_path.glob("step0/*/dump.json")
    assert json.loads(dump.read_text())["layouts"] is True
