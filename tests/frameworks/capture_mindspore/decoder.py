"""The program of the captures in tests/data/mindspore_llm*: one step of a small decoder on random weights."""

import math
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn

VOCABULARY, HEADS = 512, 8


def _weight(*shape: int) -> Parameter:
    return Parameter(Tensor((np.random.randn(*shape) * 0.02).astype(np.float32)))


class Block(nn.Cell):
    """Attention with rotated positions, and a gated layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.depth = hidden // HEADS
        for name in ("wq", "wk", "wv", "wo"):
            setattr(self, name, _weight(hidden, hidden))
        self.w1, self.w3 = _weight(4 * hidden, hidden), _weight(4 * hidden, hidden)
        self.w2 = _weight(hidden, 4 * hidden)
        self.g1, self.g2 = (Parameter(mint.ones((hidden,), dtype=ms.float32)) for _ in range(2))

    def _norm(self, x: Tensor, gain: Parameter) -> Tensor:
        mean = mint.mean(mint.square(x.astype(ms.float32)), dim=-1, keepdim=True)
        return mint.mul((x * mint.rsqrt(mean + 1e-6).astype(x.dtype)), gain)

    def _rotated(self, x: Tensor) -> Tensor:
        first, second = mint.split(x, self.depth // 2, dim=-1)
        return mint.cat((mint.neg(second), first), dim=-1)

    def _heads(self, x: Tensor, weight: Parameter) -> Tensor:
        batch, length, _ = x.shape
        linear = mint.nn.functional.linear(x, weight)
        return linear.reshape(batch, length, HEADS, self.depth).swapaxes(1, 2)

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        linear, functional = mint.nn.functional.linear, mint.nn.functional
        batch, length, hidden = x.shape
        y = self._norm(x, self.g1)
        q, k, v = (self._heads(y, weight) for weight in (self.wq, self.wk, self.wv))
        q = mint.add(mint.mul(q, cos), mint.mul(self._rotated(q), sin))
        k = mint.add(mint.mul(k, cos), mint.mul(self._rotated(k), sin))
        scores = mint.div(mint.matmul(q, mint.transpose(k, -1, -2)), math.sqrt(self.depth))
        shares = functional.softmax(mint.where(mask, scores, -1e4), dim=-1)
        mixed = mint.matmul(shares, v).swapaxes(1, 2).reshape(batch, length, hidden)
        x = mint.add(x, linear(mixed, self.wo))
        y = self._norm(x, self.g2)
        gated = mint.mul(functional.silu(linear(y, self.w1)), linear(y, self.w3))
        return mint.add(x, linear(gated, self.w2))


class Decoder(nn.Cell):
    """Blocks between an embedding and the loss."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.embedding = _weight(VOCABULARY, hidden)
        self.blocks = nn.CellList([Block(hidden) for _ in range(layers)])
        self.depth = hidden // HEADS

    def construct(self, chosen: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = chosen.shape
        x = mint.matmul(chosen, self.embedding)
        position = Tensor(np.arange(length, dtype=np.float32).reshape(length, 1))
        speed = 1 / 10000 ** (np.arange(0, self.depth, 2) / self.depth)
        angle = mint.mul(position, Tensor(speed.astype(np.float32)))
        angle = mint.cat((angle, angle), dim=-1)
        cos = mint.cos(angle).astype(ms.float32)
        sin = mint.sin(angle).astype(ms.float32)
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        logits = mint.matmul(x, mint.transpose(self.embedding, 0, 1)).astype(ms.float32)
        shares = mint.nn.functional.softmax(logits.reshape(batch * length, -1), dim=-1)
        likely = mint.mul(mint.log(mint.add(shares, 1e-9)), labels)
        return mint.neg(mint.mean(mint.sum(likely, dim=-1)))


def decoder_step(layers: int, hidden: int, length: int) -> tuple[Decoder, Callable[[], Any]]:
    """Return the model and a step of it, from the forward pass to the gradients."""
    np.random.seed(1234)
    net = Decoder(layers, hidden)
    tokens = [np.random.randint(0, VOCABULARY, (2, length)) for _ in range(2)]
    step = ms.value_and_grad(net, None, net.trainable_params())

    def run() -> Any:
        rows = np.eye(VOCABULARY, dtype=np.float32)
        chosen = Tensor(rows[tokens[0]]).astype(ms.float32)
        labels = Tensor(rows[tokens[1].reshape(-1)])
        return step(chosen, labels, Tensor(np.tril(np.ones((length, length))) > 0))

    return net, run
