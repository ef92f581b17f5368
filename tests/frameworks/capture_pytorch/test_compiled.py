"""What the extension finds of gradients' ways and of stacks, Python finds, too."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from ray_precheck.capture import Capture
from ray_precheck.capture.pytorch import gradients
from ray_precheck.capture.recording import stacks
from ray_precheck.numerics.one_pass import COMPILED

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(COMPILED is None, reason="the extension was not built"),
]


class Net(nn.Module):
    """Nodes of one and of several edges, a tensor that is given twice, leaves, and one without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.embedding, self.scale = nn.Embedding(5, 6), nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        y = self.linear(x) + self.embedding(rows)
        y = self.norm(y * self.scale) * y * y
        y = torch.cat([y, x, y.clone()[:, :3]], -1).relu_()
        first, second = y.chunk(2, 1)
        z = torch.addmm(first[:6, :6], first[:, :6].t(), second[:, :6]) / self.scale
        kept = functional.dropout(z, 0.0)
        return (
            functional.mse_loss(kept, x[:6])
            + torch.where(z > 0, z, z * 2).sum()
            + kept.max(0)[0].prod()
        )


def captured(folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    model, x, rows = Net(), torch.randn(6, 6), torch.arange(6) % 5
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Capture(folder, steps="0", level="mix", model=model):
        model(x, rows).backward()
        optimizer.step()
    (dump,) = folder.rglob("dump.json")
    found: dict[str, Any] = json.loads(dump.read_text())["data"]
    stack_file: dict[str, Any] = json.loads(dump.with_name("stack.json").read_text())
    return {"data": found, "stacks": list(stack_file.values())}


def test_python_finds_the_same_ways_and_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [captured(tmp_path / "compiled")]
    monkeypatch.setattr(gradients, "COMPILED", None)
    monkeypatch.setattr(stacks, "COMPILED", None)
    found.append(captured(tmp_path / "python"))
    assert any("gradient_of" in record for record in found[0]["data"].values())
    assert found[0]["data"] == found[1]["data"]
    names = [[keys for keys, _ in each["stacks"]] for each in found]
    assert names[0] == names[1]
