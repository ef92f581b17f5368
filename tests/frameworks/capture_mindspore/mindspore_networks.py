"""Networks of MindSpore, a captured step of one, and the operators that ran in it.

The operators are seen at the lowest level that Python reaches, by hooks of this module.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.ops.primitive import Primitive

from ray_precheck.capture import Capture
from ray_precheck.capture.mindspore.patches import Patches
from ray_precheck.capture.mindspore.recorder import MindSporeRecorder

# It asks for a type.
_NO_OPERATORS = frozenset({"typeof"})
Network = tuple[nn.Cell, tuple[Tensor, ...], Callable[..., Tensor]]


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def _classes(*shape: int, below: int, seed: int = 1) -> Tensor:
    return Tensor(np.random.default_rng(seed).integers(0, below, shape).astype(np.int32))


def _mean_square(out: Tensor) -> Tensor:
    return (out * out).mean()


def _mlp() -> Network:
    net = nn.SequentialCell(
        mint.nn.Linear(12, 16), nn.ReLU(), nn.Dense(16, 8, activation="tanh"), nn.Dense(8, 4)
    )
    return net, (_draw(6, 12),), _mean_square


def _cnn() -> Network:
    net = nn.SequentialCell(
        nn.Conv2d(3, 6, 3, pad_mode="same", has_bias=True),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Conv2d(6, 4, 3, stride=2, padding=1, pad_mode="pad"),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dense(36, 5),
    )
    return net, (_draw(4, 3, 16, 16),), _mean_square


class _Recurrent(nn.Cell):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.recurrent = kind(6, 5, batch_first=True)
        self.head = nn.Dense(5, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0])


def _lstm() -> Network:
    return _Recurrent(nn.LSTM), (_draw(3, 4, 6),), _mean_square


def _gru() -> Network:
    return _Recurrent(nn.GRU), (_draw(3, 4, 6),), _mean_square


class _Block(nn.Cell):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.first, self.second = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.up, self.down = nn.Dense(width, 2 * width), nn.Dense(2 * width, width)
        self.activation = nn.GELU()

    def construct(self, x: Tensor) -> Tensor:
        normal = self.first(x)
        x = x + self.attention(normal, normal, normal)[0]
        return x + self.down(self.activation(self.up(self.second(x))))


def _transformer() -> Network:
    return _Block(), (_draw(2, 5, 8),), _mean_square


class _Language(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.block = _Block()
        self.norm = nn.LayerNorm((8,))
        self.head = mint.nn.Linear(8, 20)

    def construct(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.block(self.embedding(tokens))))


def _language() -> Network:
    tokens = _classes(2, 6, below=20)

    def loss(out: Tensor) -> Tensor:
        return ops.cross_entropy(out.reshape(-1, 20), tokens.reshape(-1))

    return _Language(), (tokens,), loss


class _UNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.SequentialCell(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.pool = nn.MaxPool2d(2, 2)
        self.middle = nn.SequentialCell(nn.Conv2d(4, 8, 3), nn.ReLU())
        self.up = nn.Conv2dTranspose(8, 4, 2, stride=2)
        self.concat = ops.Concat(axis=1)
        self.head = nn.Conv2d(8, 1, 1)

    def construct(self, x: Tensor) -> Tensor:
        left = self.down(x)
        return ops.sigmoid(self.head(self.concat((left, self.up(self.middle(self.pool(left)))))))


def _u_net() -> Network:
    return _UNet(), (_draw(2, 2, 8, 8),), _mean_square


def _autoencoder() -> Network:
    net = nn.SequentialCell(
        nn.Conv1d(2, 4, 3, stride=2, pad_mode="pad", padding=1, has_bias=True),
        nn.BatchNorm1d(4),
        nn.ELU(),
        nn.Conv1dTranspose(4, 2, 3, stride=2, pad_mode="same", has_bias=True),
    )
    net[1] = nn.ReLU()  # nn.BatchNorm1d takes two dimensions
    return net, (_draw(3, 2, 12),), _mean_square


class _Gan(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.SequentialCell(
            nn.Dense(4, 8), nn.BatchNorm1d(8), nn.Dense(8, 6), nn.Tanh()
        )
        self.discriminator = nn.SequentialCell(nn.Dense(6, 8), nn.LeakyReLU(), nn.Dense(8, 1))
        self.loss = nn.BCEWithLogitsLoss()

    def construct(self, noise: Tensor, real: Tensor) -> Tensor:
        fake = self.generator(noise)
        right, wrong = self.discriminator(real), self.discriminator(fake)
        return self.loss(right, ops.ones_like(right)) + self.loss(wrong, ops.zeros_like(wrong))


def _gan() -> Network:
    return _Gan(), (_draw(5, 4), _draw(5, 6, seed=2)), lambda out: out


class _ViT(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4, pad_mode="valid", has_bias=True)
        self.place = Parameter(_draw(1, 5, 8, seed=3), name="place")
        self.token = Parameter(_draw(1, 1, 8, seed=4), name="token")
        self.block = _Block()
        self.head = nn.Dense(8, 3)

    def construct(self, x: Tensor) -> Tensor:
        x = self.patches(x).reshape(x.shape[0], 8, -1).swapaxes(1, 2)
        token = ops.tile(self.token, (x.shape[0], 1, 1))
        return self.head(self.block(ops.cat((token, x), axis=1) + self.place)[:, 0])


def _vit() -> Network:
    return _ViT(), (_draw(2, 3, 8, 8),), _mean_square


def _classifier() -> Network:
    net = nn.SequentialCell(nn.Dense(10, 256), nn.ReLU(), nn.Dropout(p=0.3), nn.Dense(256, 4))
    loss, labels = nn.CrossEntropyLoss(), _classes(40, below=4)
    return net, (_draw(40, 10),), lambda out: loss(out, labels)


class _Functional(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(_draw(6, 6, seed=5), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        x = ops.relu(ops.matmul(x, self.weight)) + ops.exp(-ops.abs(x))
        x = ops.softmax(x, axis=-1) * ops.sigmoid(x).sum(axis=-1, keepdims=True)
        return ops.concat((ops.cumsum(x, 1), mint.matmul(x, self.weight)), axis=0)


def _functional() -> Network:
    return _Functional(), (_draw(5, 6),), _mean_square


class _Primitives(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(_draw(7, 6, seed=6), name="weight")
        self.product, self.bias = ops.MatMul(transpose_b=True), ops.BiasAdd()
        self.softmax, self.sum = ops.Softmax(axis=1), ops.ReduceSum(keep_dims=True)
        self.norm, self.square = ops.L2Normalize(axis=1), ops.Square()
        self.gather, self.split = ops.Gather(), ops.Split(axis=1, output_num=2)

    def construct(self, x: Tensor, rows: Tensor) -> Tensor:
        x = self.bias(self.product(x, self.weight), self.weight[:, 0])
        x = self.gather(self.softmax(self.norm(x)) / self.sum(self.square(x), 1), rows, 0)
        left, right = self.split(x[:, :6])
        return ops.Tile()(left * right, (2, 1))


def _primitives() -> Network:
    return _Primitives(), (_draw(4, 6), _classes(5, below=4)), _mean_square


NETWORKS: dict[str, Callable[[], Network]] = {
    "MLP": _mlp,
    "CNN with BatchNorm": _cnn,
    "LSTM": _lstm,
    "GRU": _gru,
    "transformer block": _transformer,
    "language model": _language,
    "U-Net": _u_net,
    "autoencoder": _autoencoder,
    "GAN": _gan,
    "ViT": _vit,
    "classifier": _classifier,
    "functional": _functional,
    "own primitives": _primitives,
}


def gradients_of(net: nn.Cell, inputs: tuple[Tensor, ...], loss: Callable[..., Tensor]) -> Any:
    """Run a step forward and backward, and return the gradients of the parameters."""
    net.set_train(True)
    step = ms.value_and_grad(lambda *given: loss(net(*given)), None, net.trainable_params())
    return step(*inputs)[1]


class Seen:
    """The operators that ran, by name, and those of them that ran outside of any recorded call."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.outside: Counter[str] = Counter()
        self._recorded = 0

    def operator(self, name: str) -> None:
        """Take note of one that runs."""
        if name in _NO_OPERATORS:
            return
        self.ran[name] += 1
        if not self._recorded:
            self.outside[name] += 1

    def within(self, call: Callable[[], Any]) -> Any:
        """Make a recorded call."""
        self._recorded += 1
        try:
            return call()
        finally:
            self._recorded -= 1


@contextmanager
def watched() -> Iterator[Seen]:
    """See each operator below the capture, where MindSpore's Python hands it to its C++."""
    seen, patches = Seen(), Patches()
    wrappers: dict[int, Any] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "mindspore":
            continue
        for attribute, value in list(vars(module).items()):
            if attribute.startswith("pyboost_") and callable(value):
                wrapped = wrappers.setdefault(id(value), _told(seen, attribute[8:], value))
                patches.put(module, attribute, wrapped)
    executor = sys.modules["mindspore.ops.primitive"]
    patches.put(executor, "_run_op", _told_of_primitive(seen, vars(executor)["_run_op"]))
    record = MindSporeRecorder.call
    patches.put(
        MindSporeRecorder,
        "call",
        lambda self, *given, **named: seen.within(lambda: record(self, *given, **named)),
    )
    try:
        yield seen
    finally:
        patches.take_away()


def _told(seen: Seen, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def told(*args: Any, **kwargs: Any) -> Any:
        seen.operator(name)
        return function(*args, **kwargs)

    return told


def _told_of_primitive(seen: Seen, run: Callable[..., Any]) -> Callable[..., Any]:
    def told(primitive: Primitive, name: str, args: Any) -> Any:
        seen.operator(name)
        return run(primitive, name, args)

    return told


def captured_step(
    net: nn.Cell, step: Callable[[], Any], folder: Path, task: str = "statistics", level: str = "L1"
) -> tuple[dict[str, Any], Seen]:
    """Capture a step, and return its records and the operators that ran in it."""
    ms.set_seed(1)
    options: dict[str, Any] = {"task": task, "level": level, "model": net}
    with watched() as seen, Capture(folder, step_by="manual", framework="mindspore", **options):
        step()
    (dump,) = folder.glob("step0/*/dump.json")
    return dict(json.loads(dump.read_text())["data"]), seen
