"""Statistics, health and sketch of a tensor are found in one pass, and only for that tensor."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ray_precheck.capture.pytorch.tensors import sketching
from ray_precheck.capture.pytorch.tensors.sketching import Sketching
from ray_precheck.capture.pytorch.tensors.values import DeviceValues
from ray_precheck.dump.tensors import SketchFile
from ray_precheck.numerics import one_pass

pytestmark = pytest.mark.frameworks


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the tensors that were passed over."""
    found: list[int] = []
    original = sketching.everything

    def noting(address: int, count: int, kind: int) -> Any:
        found.append(count)
        return original(address, count, kind)

    monkeypatch.setattr(sketching, "everything", noting)
    return found


@pytest.fixture
def sketches(tmp_path: Path) -> Iterator[Sketching]:
    file = SketchFile(tmp_path)
    made = Sketching(file, DeviceValues(lambda *_: None))
    yield made
    file.finish()


@pytest.mark.skipif(one_pass.COMPILED is None, reason="the extension was not built")
def test_a_tensor_is_passed_over_once(sketches: Sketching, passes: list[int]) -> None:
    tensor, other = torch.tensor([1.0, -2.0]), torch.tensor([3.0])
    sketches.summary(tensor)
    sketches.fields(tensor, tensor)
    assert passes == [2]
    sketches.summary(tensor)
    sketches.fields(other, other)
    assert passes == [2, 2, 1]


INF = float("inf")
ODD = [
    [1.0, -2.0, 0.0, -0.0, 1e-41],
    [float("nan"), INF, 3.0, -INF],
    [INF, 1.0],
    [3e38, -3e38, 1.0],
    [1e-41, 0.0],
    [0.0],
    [-0.0, -0.0],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("values", [*ODD, list(range(1, 2001)), [1.5] * 20_000])
def test_the_numpy_way_finds_the_same_sketch_and_health(
    values: list[float], dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.tensor(values).to(dtype)
    shapes = [tensor, tensor.reshape(-1, 1).expand(-1, 3), torch.stack([tensor, tensor]).t()]
    shapes += [torch._neg_view(tensor), tensor[::2], tensor[0]]
    said, rows = [], []
    for way in (one_pass.COMPILED, None):
        monkeypatch.setattr("ray_precheck.numerics.everything.COMPILED", way)
        monkeypatch.setattr("ray_precheck.numerics.sketch.COMPILED", way)
        file = SketchFile(tmp_path / str(way is None))
        made = Sketching(file, DeviceValues(lambda *_: None))
        said.append([made.fields(each, each) for each in shapes])
        file.finish()
        (path,) = (tmp_path / str(way is None)).iterdir()
        rows.append(path.read_bytes())
    assert said[0] == said[1]
    assert rows[0] == rows[1]
