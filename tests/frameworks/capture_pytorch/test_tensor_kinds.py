"""Captures of tensors whose memory does not hold values of their own dtype and shape, or is not theirs."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functionalize

from ray_precheck.capture import Capture

pytestmark = pytest.mark.frameworks

_OPTIONS = [{}, {"task": "tensor"}, {"sketch": True}, {"summary_mode": "md5"}]


def _quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.tensor([1.0, -2.0]), 0.5, 0, torch.qint8)


def _nested(layout: torch.layout) -> torch.Tensor:
    items = [torch.ones(2, 3), torch.full((1, 3), 4.0)]
    return torch.nested.nested_tensor(items, layout=layout)


@pytest.mark.parametrize("options", _OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["quantized", "strided", "jagged"])
def test_the_capture_goes_on_after_them(captured: Any, options: dict[str, Any], kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = _quantized() if kind == "quantized" else _nested(getattr(torch, kind))

        def step() -> None:
            torch.clone(tensor)
            torch.sin(torch.ones(2))

        records = captured(step, **options)

    assert {"Torch.clone.0.forward", "Torch.sin.0.forward"} <= set(records)


def test_a_quantized_tensor_has_the_statistics_of_what_it_stands_for(captured: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = _quantized()
        records = captured(lambda: torch.clone(tensor), task="tensor")

    (given,) = records["Torch.clone.0.forward"]["input_args"]
    assert (given["dtype"], given["Max"], given["Min"]) == ("torch.qint8", 1.0, -2.0)
    assert (given["scale"], given["zero_point"]) == (0.5, 0)


def _complex() -> list[torch.Tensor]:
    base = torch.tensor([1 + 2j, -3 - 5j, 0.5j])
    conjugate = base.conj()
    return [base, conjugate, conjugate.imag, base.imag, conjugate.real, torch.view_as_real(base)]


def _zeros() -> list[torch.Tensor]:
    return [torch._efficientzerotensor((3,))]


def _inference() -> list[torch.Tensor]:
    with torch.inference_mode():
        return [torch.tensor([1.0, -2.0]).add_(1)]


@pytest.mark.parametrize("options", [{}, {"summary_mode": "md5"}, {"sketch": True}], ids=str)
@pytest.mark.parametrize("make", [_complex, _zeros, _inference])
def test_what_torch_would_print_is_recorded(
    tmp_path: Path, make: Callable[[], list[torch.Tensor]], options: dict[str, Any]
) -> None:
    tensors = make()
    with Capture(tmp_path, step_by="manual", framework="pytorch", task="tensor", **options):
        for tensor in [*tensors, *reversed(tensors)]:
            torch.clone(tensor)
        torch.sin(torch.ones(2))
    (path,) = tmp_path.glob("step0/*/dump.json")
    records = json.loads(path.read_text())["data"]
    assert "Torch.sin.0.forward" in records
    for number, tensor in enumerate([*tensors, *reversed(tensors)]):
        (given,) = records[f"Torch.clone.{number}.forward"]["input_args"]
        saved = torch.load(path.parent / "dump_tensor_data" / given["data_name"])
        assert torch.equal(saved, tensor.clone())
        if not tensor.is_complex():
            expected = tensor.clone().contiguous()
            assert given["Mean"] == pytest.approx(expected.mean().item())
            assert given["Min"] == expected.min().item()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_inference_tensors_are_changed_in_place_as_others(captured: Any, level: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True))

    def serve() -> None:
        with torch.inference_mode():
            y = model(torch.ones(2, 4)).add_(1)
            y += 1
            y[0] = 7
            torch.add(y, 1, out=y)
        torch.sin(y)

    records = captured(serve, level=level, task="tensor", sketch=True, model=model)
    wanted = "Tensor.add_.0 Tensor.__iadd__.0 Tensor.__setitem__.0 Torch.add.0 Torch.sin.0".split()
    assert {f"{key}.forward" for key in wanted} <= set(records)
    assert records["Torch.sin.0.forward"]["input_args"][0]["Max"] == 8.0


def test_changes_that_wait_in_a_functional_tensor_are_recorded(captured: Any) -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[1] = 3
        return y.sin()

    records = captured(lambda: functionalize(change)(torch.tensor([1.0, 2.0, 4.0])))
    (output,) = records["Tensor.__setitem__.0.forward"]["output"]
    assert (output["Max"], output["Min"]) == (8.0, 2.0)
    assert output["Mean"] == pytest.approx(13 / 3)
