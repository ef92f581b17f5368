"""What stops a training as an overflow, and what it leaves."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from ray_precheck.errors import PrecheckError
from ray_precheck.hooks import (
    OverflowFoundError,
    register_hook,
    schedule,
    step_schedule,
    wrap_checkoverflow_hook,
)

pytestmark = pytest.mark.frameworks


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).exp()


def start(model: nn.Module | None = None, **more: Any) -> None:
    register_hook(nn.Identity() if model is None else model, wrap_checkoverflow_hook, **more)


def written() -> list[Any]:
    (path,) = Path().glob("Overflow_info_*.pkl")
    assert re.fullmatch(r"Overflow_info_\d{8}_\d{6}\.pkl", path.name)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_error_names_call_and_layer_and_the_file_has_everything() -> None:
    model = Net()
    with torch.no_grad():
        model.body[2].weight.fill_(3e38)
        model.body[0].bias.fill_(10.0)
    start(model)
    with pytest.raises(OverflowFoundError) as caught:
        model(torch.ones(1, 2))
    (path,) = Path().glob("Overflow_info_*.pkl")
    assert str(caught.value) == (
        "overflow: Functional_linear_forward in layer body.2 (Linear) gave an output with inf; what it got"
        f" and gave stands in {path.resolve()}"
    )
    lines = written()
    stacks = [line for line in lines if "stack_info" in line[0]]
    assert stacks[0][0] == "Functional_linear_forward_stack_info.0"
    assert any("test_hooks_overflow.py" in text for _, text in stacks)
    tensors = {line[0]: line[1:] for line in lines[len(stacks) :]}
    assert list(tensors) == [
        "Functional_linear_forward_input.0",
        "Functional_linear_forward_input.1",
        "Functional_linear_forward_input.2",
        "Functional_linear_forward_output",
    ]
    assert tensors["Functional_linear_forward_output"] == [[math.inf], "torch.float32", [1, 1]]
    assert len(tensors["Functional_linear_forward_input.1"][0]) == 3


def test_it_is_an_error_of_both_tools() -> None:
    start()
    for kind in (ValueError, PrecheckError):
        with pytest.raises(kind):
            torch.log(torch.zeros(2))


def test_a_call_of_the_model_itself_names_the_model() -> None:
    model = Net()
    with torch.no_grad():
        model.body[2].bias.fill_(100.0)
    start(model)
    with pytest.raises(
        OverflowFoundError, match=r"^overflow: Tensor_exp_forward in layer Net gave"
    ):
        model(torch.zeros(1, 2))


def test_after_an_overflow_the_next_layers_have_their_own_names() -> None:
    model = Net()
    start(model)
    with pytest.raises(OverflowFoundError, match=r"in layer body\.0 \(Linear\)"):
        model(torch.full((1, 2), math.inf))
    with pytest.raises(OverflowFoundError, match=r"^overflow: Torch_log_forward gave"):
        torch.log(torch.zeros(2))
    criterion = nn.NLLLoss()
    with pytest.raises(OverflowFoundError, match="in layer NLLLoss gave"):
        criterion(torch.full((1, 2), math.nan), torch.zeros(1).long())


def test_an_overflow_of_a_gradient_names_call_and_layer() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU())
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    start(model)
    loss = model(torch.full((1, 1), 1e30)).sum()
    message = r"Functional_linear_backward in layer 0 \(Linear\) gave gradients with inf"
    with pytest.raises(OverflowFoundError, match=message):
        loss.backward(torch.tensor(1e30))
    assert {line[0] for line in written() if "stack" not in line[0]} == {
        "Functional_linear_backward_input.0",
        "Functional_linear_backward_output.0",
    }


def test_nan_is_an_overflow_too() -> None:
    start()
    with pytest.raises(OverflowFoundError, match="Torch_sqrt_forward gave an output with nan"):
        torch.sqrt(torch.tensor([-1.0, 1.0]))


def test_half_precision_overflows_when_it_is_converted() -> None:
    start()
    with pytest.raises(OverflowFoundError, match="Tensor_half_forward gave an output with inf"):
        torch.full((2,), 1e5).half()


def test_a_number_without_dimension_overflows_too() -> None:
    start()
    with pytest.raises(OverflowFoundError, match="Torch_exp_forward"):
        torch.exp(torch.tensor(1000.0))


def test_masks_of_minus_infinity_are_none() -> None:
    start()
    scores = torch.randn(3, 3)
    mask = torch.triu(torch.full((3, 3), -math.inf), diagonal=1)
    scores = scores + mask
    scores *= 0.5  # In place: it had minus infinity before.
    functional.softmax(scores, -1)
    torch.randn(3, 3).masked_fill(mask < 0, value=-math.inf)
    torch.where(mask < 0, -math.inf, 0.0)
    torch.zeros(3, 3)[0] = -math.inf
    query = torch.randn(1, 1, 3, 4)
    functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    layer = nn.TransformerEncoderLayer(4, 2, batch_first=True)
    layer(query[0], src_mask=nn.Transformer.generate_square_subsequent_mask(3)).sum().backward()
    assert list(Path().iterdir()) == []


def test_an_infinity_out_of_a_mask_is_an_overflow() -> None:
    start()
    mask = torch.full((2,), -math.inf)
    with pytest.raises(OverflowFoundError, match="with nan"):
        functional.softmax(mask, 0)
    with pytest.raises(OverflowFoundError, match="with inf"):
        torch.abs(mask)


def test_in_place_an_overflow_is_no_mask() -> None:
    start()
    x = torch.full((2,), -1e30)
    with pytest.raises(OverflowFoundError, match="Tensor_mul__forward gave an output with -inf"):
        x.mul_(1e30)


def test_memory_that_nothing_was_written_to_is_none() -> None:
    start()
    sick = torch.full((1000,), math.nan)
    del sick
    torch.empty_like(torch.ones(1000))
    torch.ones(2).new_empty(1000)
    assert list(Path().iterdir()) == []


def test_steps_that_are_left_out_are_not_looked_at() -> None:
    start(schedule=schedule(1))
    torch.log(torch.zeros(2))
    step_schedule.step()
    with pytest.raises(OverflowFoundError):
        torch.log(torch.zeros(2))


def test_several_overflows_have_a_file_each() -> None:
    start()
    for _ in range(3):
        with pytest.raises(OverflowFoundError):
            torch.log(torch.zeros(2))
    assert len(list(Path().glob("Overflow_info_*.pkl"))) == 3


def test_a_folder_that_cannot_be_written_does_not_hide_the_overflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray_precheck.capture.pytorch.classic import kinds

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(kinds, "HookLines", refused)
    start()
    with pytest.raises(
        OverflowFoundError, match=r"its values cannot be written to .*: Permission denied$"
    ):
        torch.log(torch.zeros(2))


def test_what_is_no_tensor_stands_in_the_file_as_json_or_as_its_text() -> None:
    start()
    with pytest.raises(OverflowFoundError):
        torch.div(torch.ones(2), 0.0, rounding_mode=None)
    with pytest.raises(OverflowFoundError):
        torch.zeros(2).log().to(torch.float64, memory_format=torch.contiguous_format)
    texts = [path.read_text() for path in Path().glob("Overflow_info_*.pkl")]
    assert any('["Torch_div_forward_input.1", 0.0]' in text for text in texts)
