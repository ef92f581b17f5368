"""Checkpoints of torch are captures that are compared by name."""

from pathlib import Path

import pytest
import torch

from ray_precheck.commands.compare.run import compare_captures
from ray_precheck.formats.conversion import as_our_dump
from ray_precheck.trace.side import open_side

pytestmark = pytest.mark.frameworks


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def checkpoint(path: Path, scale: float = 1.0) -> Path:
    torch.manual_seed(0)
    weight = torch.randn(4, 3)
    state = {
        "model": {
            "weight": weight * scale,
            "half": weight.to(torch.bfloat16),
            "view": (weight * scale).t(),
        },
        "optimizer": [{"step": 3, "exp_avg": torch.zeros(2)}],
        "dense": torch.eye(2),
    }
    torch.save(state, path)
    return path


@pytest.mark.parametrize("name", ["a.pt", "a.pth", "a.bin"])
def test_all_tensors_of_a_checkpoint_have_records(tmp_path: Path, name: str) -> None:
    with open_side(as_our_dump(checkpoint(tmp_path / name)) / "dump.json") as side:
        assert [entry.key for entry in side.entries] == [
            "Tensor.model.weight.0.forward",
            "Tensor.model.half.0.forward",
            "Tensor.model.view.0.forward",
            "Tensor.optimizer.0.exp_avg.0.forward",
            "Tensor.dense.0.forward",
        ]
        assert [side.items(entry)[0].dtype for entry in side.entries][1] == "bfloat16"


def test_two_checkpoints_are_compared(tmp_path: Path) -> None:
    one, two = checkpoint(tmp_path / "a.pt"), checkpoint(tmp_path / "b.pt", 1.5)
    (report,) = compare_captures(two, one, out=tmp_path / "out").reports
    wrong = report.calls[report.calls["Result"] == "error"]
    assert list(wrong.iloc[:, 0]) == [
        "Tensor.model.weight.0.forward",
        "Tensor.model.view.0.forward",
    ]


def test_numbers_that_were_expanded_to_a_shape_are_a_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d").mkdir()
    torch.save({"x": torch.ones(1).expand(1 << 40)}, tmp_path / "d" / "huge.pt")
    torch.save(torch.ones(3), tmp_path / "d" / "x.pt")
    with open_side(as_our_dump(tmp_path / "d") / "dump.json") as side:
        assert [entry.key for entry in side.entries] == ["Tensor.x.0.forward"]
    assert "holds fewer numbers than its shape has elements" in capsys.readouterr().err
