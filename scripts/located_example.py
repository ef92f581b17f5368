"""Two captures of a small transformer's step, one of them with a planted fault: the example of the docs.

    python -m scripts.located_example FOLDER

Goes out: `FOLDER/target`, in whose second layer the softmax of the attention is 1 % too large, and
`FOLDER/golden`, which ran without oneDNN. Run by readers of
`ray_precheck/commands/locate/walk/README.md`, and by a test.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ray_precheck.capture import Capture

_WIDTH, _WORDS, _LENGTH = 32, 100, 12


class ExampleLayer(nn.Module):
    """Attention and two linear layers, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.projection = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 3 * _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states after this layer."""
        query, key, value = self.projection(self.norm(hidden)).chunk(3, -1)
        weights = torch.softmax(query @ key.transpose(-1, -2) / _WIDTH**0.5, -1)
        hidden = hidden + weights @ value
        return hidden + self.down(functional.gelu(self.up(hidden)))


class Transformer(nn.Module):
    """An embedding, two layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, _WORDS)
        self.layers = nn.ModuleList([ExampleLayer(), ExampleLayer()])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of each token."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


class WrongSoftmax(TorchFunctionMode):
    """A softmax whose second call is 1 % too large, as a wrong kernel would be: below the hooks."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator."""
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "softmax":
            self._calls += 1
            return out * 1.01 if self._calls == 2 else out
        return out


@contextmanager
def _other_kernels() -> Iterator[None]:
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = True


def capture_example(folder: Path, *, is_wrong: bool) -> None:
    """Capture one step of training with its tensors."""
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, _WORDS, (2, _LENGTH))
    run = WrongSoftmax() if is_wrong else nullcontext()
    kernels = nullcontext() if is_wrong else _other_kernels()
    with run, kernels, Capture(folder, framework="pytorch", task="tensor", level="mix"):
        logits = model(tokens)
        functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()


def main() -> None:
    """Write both captures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    capture_example(folder / "target", is_wrong=True)
    capture_example(folder / "golden", is_wrong=False)


if __name__ == "__main__":
    main()
