"""The extension writes the elements of calls as Python does, byte by byte, and holds no tensor."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from ray_precheck.capture import Capture
from ray_precheck.capture.pytorch.recorder import TorchRecorder
from ray_precheck.capture.pytorch.tensors import many
from ray_precheck.numerics.one_pass import COMPILED

pytestmark = pytest.mark.frameworks
NAN = float("nan")


class Model(torch.nn.Module):
    """Calls with names, shared memory, changes in place, marks, halves, NaN and values of other kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.first.bias.tensor_model_parallel = True  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor, scale: float, *, mask: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.first(x))
        y = torch.cat([y, y * y, y[:, :4]], 1)
        y[:, 0] = 0
        y.mul_(scale).add_(1)
        z = functional.gelu(y.bfloat16()).float() + torch.tensor(NAN).nan_to_num()
        return torch.where(mask, z, y.new_zeros(())).view(-1, 2).sum(dim=(0, 1), keepdim=False)


def dumps(folder: Path, **options: Any) -> list[bytes]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    x, mask = torch.randn(40, 6), torch.rand(40, 20) > 0.3
    with Capture(folder, steps=range(2), step_by="manual", model=model, **options) as capture:
        for _ in range(2):
            model(x, 1.5, mask=mask).backward()
            optimizer.step()
            optimizer.zero_grad()
            capture.step()
    names = ("dump.json", "sketches.npy")
    return [each.read_bytes() for name in names for each in sorted(folder.glob(f"*/*/{name}"))]


@pytest.mark.skipif(COMPILED is None, reason="the extension was not built")
@pytest.mark.parametrize("options", [{}, {"level": "mix"}, {"level": "mix", "sketch": True}])
def test_captures_have_the_same_bytes_where_python_writes_the_elements(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dumps(tmp_path / "compiled", **options)
    assert found
    monkeypatch.setattr(TorchRecorder, "look_anew", lambda self: None)
    assert dumps(tmp_path / "python", **options) == found
    monkeypatch.setattr("ray_precheck.capture.pytorch.recorder.quick_texts", lambda *_: None)
    assert dumps(tmp_path / "slowly", **options) == found


@pytest.mark.parametrize("has_extension", [True, False])
def test_autograd_need_not_copy_the_gradients_that_a_capture_looks_at(
    has_extension: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_extension:
        monkeypatch.setattr(many, "COMPILED", None)
    images = torch.randn(4, 3, 8, 8)
    layer = torch.nn.Conv2d(3, 8, 3)
    with Capture(tmp_path / "dump", step_by="manual", framework="pytorch"):
        layer(images).sum().backward()
    # A copy of a gradient that somebody holds has been written to once.
    gradients = [each.grad for each in layer.parameters()]
    assert [each._version for each in gradients if each is not None] == [0, 0]
