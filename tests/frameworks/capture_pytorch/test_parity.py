"""What a comparison with msprobe's captures of six models found (`scripts/README.md`)."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.frameworks


def own_fields(value: Any) -> Iterator[Any]:
    """What msprobe's `compare` looks for a word in: each field, and each element of a list."""
    yield value
    if isinstance(value, list):
        yield from value


def test_no_field_of_a_record_is_a_number(captured: Any) -> None:
    layer = torch.nn.Linear(4, 3)
    model = torch.nn.Sequential(layer, torch.nn.ReLU())
    x = torch.randn(2, 5, 4)
    records = captured(lambda: model(x).sum().backward(), level="mix", model=model)
    fields = [
        each
        for record in records.values()
        for value in record.values()
        for each in own_fields(value)
    ]
    assert {"stack", "gradient_of"} <= {name for record in records.values() for name in record}
    assert {type(each) for each in fields} <= {str, dict, list, bool, type(None)}


def test_each_module_of_a_shared_parameter_has_its_gradient(captured: Any) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 4)
            self.head = torch.nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(self.embedding(x))

    model = Tied()
    records = captured(
        lambda: model(torch.tensor([1, 2])).sum().backward(), level="mix", model=model
    )
    assert {key for key in records if "parameters_grad" in key} == {
        "Module.embedding.Embedding.parameters_grad.0",
        "Module.head.Linear.parameters_grad.0",
    }


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_a_module_has_one_gradient_for_each_input(captured: Any, p: float) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(p), torch.nn.Linear(4, 4))
    x = torch.randn(2, 4)
    records = captured(lambda: model(x).sum().backward(), level="mix", model=model)
    record = records["Module.1.Dropout.backward.0"]
    assert len(record["output"]) == 1
    if not p:
        assert record["input"] == record["output"]
    assert record["output"][0]["Norm"] == records["Module.0.Linear.backward.0"]["input"][0]["Norm"]


def test_a_pooling_is_recorded_as_it_was_written(captured: Any) -> None:
    x = torch.randn(1, 2, 4, 4)
    record = captured(lambda: torch.nn.MaxPool2d(2, 1)(x))["Functional.max_pool2d.0.forward"]
    assert [each.get("value") for each in record["input_args"][1:]] == [2, 1, 0, 1]
    assert list(record["input_kwargs"]) == ["ceil_mode", "return_indices"]


@dataclass
class Output(OrderedDict):  # type: ignore[type-arg]
    """As the outputs of transformers' models: a dict without what is None."""

    state: torch.Tensor
    cache: Any = None

    def __post_init__(self) -> None:
        self["state"] = self.state


def test_a_dataclass_that_is_a_dict_has_all_its_fields(captured: Any) -> None:
    class Inner(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Output:
            return Output(x + 1)

    model = torch.nn.Sequential(Inner())
    records = captured(lambda: model(torch.ones(2)), level="mix", model=model)
    (output,) = records["Module.0.Inner.forward.0"]["output"]
    assert list(output) == ["state", "cache"]
