"""The language model that every layout trains, its weights and its batches.

Comes in: a `TrainingCase`, and the `Parts` from which a layout builds its layers. Goes out: a
`LanguageModel`, whole weights that each rank cuts its own from, batches. Called by the programs of
`layouts.py` and `stages.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# No two sizes are equal, halved or whole, so that a shape says which dimension it is.
VOCABULARY, WIDTH, HEADS, HIDDEN, LENGTH, BATCH, BLOCKS, EXPERTS = 64, 24, 4, 56, 10, 8, 2, 4
STEPS = 2


@dataclass(frozen=True)
class TrainingCase:
    """One training: its layout, what is wrong in it, and the rank of this process.

    `fault` is a name of `faults.py`, "" where nothing is wrong. `variant` is plain, clip (gradients are
    clipped), dropout, scaled (a loss scale by hand) or accumulate; `start` is random or default (torch's
    own first weights: norms of ones, biases of zeros).
    """

    layout: str
    fault: str = ""
    variant: str = "plain"
    start: str = "random"
    rank: int = 0
    world: int = 1

    def wrong(self, fault: str, rank: int | None = None) -> bool:
        """Return whether this training has a fault, and has it on this rank where one is named."""
        return self.fault == fault and rank in (None, self.rank)

    @property
    def drop(self) -> float:
        """The share that dropouts drop."""
        return 0.2 if self.variant == "dropout" else 0.0


class RandomStates:
    """A second stream of random numbers, for what is divided over ranks, as Megatron-LM keeps one."""

    def __init__(self, seed: int) -> None:
        outside = torch.get_rng_state()
        torch.manual_seed(seed)
        self._state = torch.get_rng_state()
        torch.set_rng_state(outside)

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Draw from this stream."""
        outside = torch.get_rng_state()
        torch.set_rng_state(self._state)
        yield
        self._state = torch.get_rng_state()
        torch.set_rng_state(outside)


class Parts:
    """The layers of a model that is whole in one process."""

    def __init__(self, case: TrainingCase) -> None:
        self.case = case

    def embedding(self) -> nn.Module:
        """Tokens to vectors."""
        return nn.Embedding(VOCABULARY, WIDTH)

    def positions(self) -> "Positions":
        """A vector for each position."""
        return Positions()

    def norm(self, width: int = WIDTH) -> nn.Module:
        """Layer norm."""
        return nn.LayerNorm(width)

    def head_norm(self, width: int) -> nn.Module:
        """The norm of each head's queries."""
        return nn.RMSNorm(width)

    def column(self, inputs: int, outputs: int) -> nn.Module:
        """A layer whose outputs tensor parallelism divides."""
        return nn.Linear(inputs, outputs)

    def row(self, inputs: int, outputs: int) -> nn.Module:
        """A layer whose inputs tensor parallelism divides."""
        return nn.Linear(inputs, outputs)

    def mlp(self) -> nn.Module:
        """What follows the second norm of a block."""
        return Mlp(self)

    def head(self) -> nn.Module:
        """Vectors to logits."""
        return nn.Linear(WIDTH, VOCABULARY, bias=False)

    def dropout(self) -> nn.Module:
        """Dropout of what tensor parallelism leaves whole on each rank."""
        return nn.Dropout(self.case.drop) if self.case.drop else nn.Identity()

    def head_dropout(self) -> nn.Module:
        """Dropout of what tensor parallelism divides."""
        return self.dropout()

    def first_position(self, length: int) -> int:
        """Return where the part of a sequence begins that this rank has, `length` tokens."""
        return 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of `(batch, heads, length, width)`."""
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean cross entropy of the tokens."""
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Attention(nn.Module):
    """Heads of attention, with normed queries."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.parts = [parts]  # in a list, so that it is no state of the module
        self.qkv = parts.column(WIDTH, 3 * WIDTH)
        self.q_norm = parts.head_norm(WIDTH // HEADS)
        self.drop = parts.head_dropout()
        self.o_proj = parts.row(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, length, width)` to the same."""
        heads = self.qkv(x).unflatten(-1, (-1, 3 * WIDTH // HEADS))
        q, k, v = (each.transpose(1, 2) for each in heads.chunk(3, dim=-1))
        q = self.q_norm(q)
        out = self.parts[0].attend(q, k, v)
        return self.o_proj(self.drop(out.transpose(1, 2).flatten(2)))


class Mlp(nn.Module):
    """Up, GELU, down."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.up = parts.column(WIDTH, HIDDEN)
        self.down = parts.row(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, length, width)` to the same."""
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    """A block of the transformer."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.n1 = parts.norm()
        self.attention = Attention(parts)
        self.n2 = parts.norm()
        self.mlp = parts.mlp()
        self.drop = parts.dropout()

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, length, width)` to the same."""
        x = x + self.drop(self.attention(self.n1(x)))
        return x + self.drop(self.mlp(self.n2(x)))


class Positions(nn.Module):
    """A learned vector for each position."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        nn.init.normal_(self.weight)

    def forward(self, first: int, length: int) -> Tensor:
        """Return the vectors of `length` positions from `first` on."""
        return functional.embedding(torch.arange(first, first + length), self.weight)


class LanguageModel(nn.Module):
    """Embedding, blocks, norm, head."""

    def __init__(self, parts: Parts, blocks: range = range(BLOCKS), tied: bool = False) -> None:
        super().__init__()
        self.parts = [parts]
        first, last = blocks.start == 0, blocks.stop == BLOCKS
        self.embedding = parts.embedding() if first else None
        self.positions = parts.positions() if first else None
        self.blocks = nn.ModuleDict({str(number): Block(parts) for number in blocks})
        self.norm = parts.norm() if last else None
        self.head = parts.head() if last else None
        if tied and first and last:
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """Tokens `(batch, length)` to logits, or the part of it that these blocks make."""
        if self.embedding is not None and self.positions is not None:
            x = self.embedding(x)
            length = x.shape[1]
            x = x + self.positions(self.parts[0].first_position(length), length)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def whole_weights(case: TrainingCase, model: nn.Module) -> dict[str, Tensor]:
    """Return first weights of a whole model, the same on every rank.

    Where `case.start` is random, no norm is all ones and no bias all zeros.
    """
    numbers = torch.Generator().manual_seed(7)
    weights: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if not value.is_floating_point():
            weights[name] = value.clone()
            continue
        drawn = torch.randn(value.shape, generator=numbers)
        norm = value.ndim == 1 and name.endswith("weight")
        if norm or name.endswith("bias") or "running" in name:
            made = drawn * 0.1 * (case.start == "random") + (norm or "var" in name)
        else:
            made = drawn * (0.5 if "embedding" in name or "positions" in name else 0.25)
        weights[name] = made
    if "head.weight" in weights and weights["head.weight"] is not None and _tied(model):
        weights["head.weight"] = weights["embedding.weight"]
    return weights


def _tied(model: Any) -> bool:
    return model.head.weight is model.embedding.weight


def batch_of(step: int, stream: int = 0) -> tuple[Tensor, Tensor]:
    """Return tokens and targets `(BATCH, LENGTH)` of a step, drawn from one of several streams of samples."""
    numbers = torch.Generator().manual_seed(1000 * stream + step)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=numbers)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
