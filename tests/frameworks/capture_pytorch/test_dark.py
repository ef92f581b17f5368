"""What a capture could not see is named at its end; what it saw whole is called complete."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ray_precheck.capture import Capture

HERE = Path(__file__).name


class Doubled(nn.Module):
    """A module of which a part is dark."""

    def __init__(self, dark: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.dark = dark

    def forward(self, x: torch.Tensor) -> Any:
        return self.dark(self.inner(x)) + 1


class Net(nn.Module):
    """A model with such a module."""

    def __init__(self, dark: Callable[..., Any]) -> None:
        super().__init__()
        self.block = Doubled(dark)

    def forward(self, x: torch.Tensor) -> Any:
        return self.block(x).sum()


@pytest.fixture
def ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Capture an action; return what is said at the end, and the header's field."""

    def run(action: Callable[[], object], **options: Any) -> tuple[str, dict[str, Any]]:
        capfd.readouterr()
        with Capture(tmp_path, step_by="manual", framework="pytorch", **options):
            action()
        (dump,) = tmp_path.glob("step0/*/dump.json")
        return capfd.readouterr().err, json.loads(dump.read_text()).get("dark")

    return run


def step_of(dark: Callable[..., Any]) -> Callable[[], object]:
    model, batch = Net(dark), torch.randn(2, 4)
    return lambda: model(batch).backward()


def compiled() -> Callable[..., Any]:
    return torch.compile(lambda x: x * 2, backend="eager")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "what"), [(compiled, "the compiled function")])
def test_a_dark_place_is_named_with_module_and_line(
    ended: Callable[..., Any], make: Callable[[], Callable[..., Any]], what: str
) -> None:
    said, dark = ended(step_of(make()))
    (place,) = dark["places"]
    assert (dark["count"], place["module"], place["times"]) == (1, "block.Doubled", 1)
    assert what in place["what"]
    assert HERE in place["place"]
    assert "1 place is dark" in said
    assert f"{place['what']} (block.Doubled, {place['place']})" in said


def test_a_step_that_was_seen_whole_is_complete(ended: Callable[..., Any]) -> None:
    said, dark = ended(step_of(torch.relu))
    assert dark == {"count": 0, "places": []}
    assert "; it is complete" in said


@pytest.mark.parametrize("options", [{"level": "L0"}, {"chosen": ["relu"]}])
def test_a_part_of_a_step_is_not_called_complete(ended: Callable[..., Any], options: Any) -> None:
    said, dark = ended(step_of(torch.relu), **options)
    assert dark is None
    assert "complete" not in said
