"""The sketch of a tensor uses what the statistics have found, and only for that tensor."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ray_precheck.capture.pytorch.tensors import sketching
from ray_precheck.capture.pytorch.tensors.sketching import Sketching
from ray_precheck.capture.pytorch.tensors.values import DeviceValues
from ray_precheck.dump.tensors import SketchFile
from ray_precheck.numerics.statistics import TensorSummary

pytestmark = pytest.mark.frameworks


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """What the health of each tensor was told of its ends."""
    found: list[tuple[float, float]] = []
    original = sketching.health_of

    def noting(values: Any, dtype: str, high: float, low: float) -> Any:
        found.append((high, low))
        return original(values, dtype, high, low)

    monkeypatch.setattr(sketching, "health_of", noting)
    return found


@pytest.fixture
def sketches(tmp_path: Path) -> Iterator[Sketching]:
    file = SketchFile(tmp_path)
    made = Sketching(file, DeviceValues(lambda *_: None))
    yield made
    file.finish()


def test_the_ends_that_the_statistics_have_found_are_not_looked_for(
    sketches: Sketching, ends: list[tuple[float, float]]
) -> None:
    tensor = torch.tensor([1.0, -2.0])
    sketches.note(tensor, TensorSummary(5.0, -7.0, 0.0, 0.0))
    sketches.fields(tensor, tensor)
    assert ends == [(5.0, -7.0)]


def test_the_ends_of_another_tensor_are_not_taken(
    sketches: Sketching, ends: list[tuple[float, float]]
) -> None:
    tensor, other = torch.tensor([1.0, -2.0]), torch.tensor([3.0])
    sketches.note(other, TensorSummary(5.0, -7.0, 0.0, 0.0))
    sketches.fields(tensor, tensor)
    sketches.fields(other, other)
    assert ends == [(1.0, -2.0), (3.0, 3.0)]


def test_a_capture_notes_the_ends_of_each_tensor(
    captured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[TensorSummary | None] = []
    monkeypatch.setattr(Sketching, "note", lambda self, tensor, summary: noted.append(summary))
    captured(lambda: torch.neg(torch.tensor([1.0, -2.0])), sketch=True)
    assert [each.max for each in noted if each is not None] == [1.0, 2.0]
