"""Captures of tensors whose memory does not hold values of their own dtype and shape."""

import warnings
from typing import Any

import pytest
import torch

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
    assert "data_name" not in given
