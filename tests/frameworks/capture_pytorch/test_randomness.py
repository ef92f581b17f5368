"""The random state that a call begins with, and what Megatron notes at parameters."""

import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.frameworks
F = nn.functional


def _digest(state: torch.Tensor) -> str:
    return f"{zlib.crc32(state.numpy().tobytes()):08x}"


def test_calls_that_draw_have_the_digest_of_the_state_that_they_begin_with(
    captured: Callable[..., Any],
) -> None:
    x = torch.ones(4, 4)
    states: list[str] = []

    def draw() -> None:
        for act in (
            lambda: F.dropout(x),
            lambda: nn.Dropout(0.1)(x),
            lambda: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
            lambda: torch.gru(x[None], x[None, :1], weights, True, 1, 0.5, True, False, True),
            lambda: torch.randn(3),
        ):
            states.append(_digest(torch.get_rng_state()))
            act()
        # These draw nothing.
        F.dropout(x, 0.0)
        F.dropout(x, training=False)
        nn.Dropout(0.1).eval()(x)
        F.scaled_dot_product_attention(x, x, x)
        states.append(_digest(torch.get_rng_state()))
        torch.rand(2, generator=torch.Generator().manual_seed(1))

    weights = [torch.ones(12, 4), torch.ones(12, 4), torch.ones(12), torch.ones(12)]
    torch.manual_seed(0)
    found = captured(draw)
    given = {key: each["generator"] for key, each in found.items() if "generator" in each}
    own = given.pop("Torch.rand.0.forward")
    assert given == {
        "Functional.dropout.0.forward": states[0],
        "Functional.dropout.1.forward": states[1],
        "Functional.scaled_dot_product_attention.0.forward": states[2],
        "Torch.randn.0.forward": states[4],
    }
    state = torch.Generator().manual_seed(1).get_state()
    assert own == _digest(state) != states[5]


def test_a_capture_draws_nothing_itself(captured: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    plain = F.dropout(torch.ones(100))
    torch.manual_seed(0)
    seen = []
    captured(lambda: seen.append(F.dropout(torch.ones(100))))
    assert torch.equal(plain, seen[0])


def test_marks_of_megatron_stand_at_its_parameters(captured: Callable[..., Any]) -> None:
    layer: Any = nn.Linear(4, 4)
    layer.weight.tensor_model_parallel, layer.weight.partition_dim = True, 0
    layer.weight.partition_stride = 1
    layer.bias.sequence_parallel, layer.bias.allreduce = True, False
    found = captured(lambda: layer(torch.ones(2, 4)))["Functional.linear.0.forward"]
    assert [each.get("parallel") for each in found["input_args"]] == [
        None,
        {"tensor_model_parallel": True, "partition_dim": 0},
        {"sequence_parallel": True, "allreduce": False},
    ]


def test_marks_stand_in_the_long_lists_of_an_update(captured: Callable[..., Any]) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))
    marked: Any = model[3].weight
    marked.sequence_parallel = True
    model(torch.ones(2, 4)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = captured(optimizer.step)["Optimizer.SGD.0.forward"]
    (group,) = found["input_args"]
    assert [each.get("parallel") for each in group["params"]] == [
        {"sequence_parallel": True} if index == 6 else None for index in range(16)
    ]
