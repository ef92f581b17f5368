"""What a captured step costs over a plain one.

    python -m scripts.speed.bench capture [--pairs N] [--kinds L1 mix ...]

Comes in: a decoder of four layers (rotary positions, grouped heads, RMS norms, gated layers), hidden size
256, with its optimizer, on one thread of the CPU; and a stack of small layers of two widths under
DistributedDataParallel, two processes with gloo. Goes out: for each kind of capture the median of the ratios
of a captured step and a plain one, which run one right after the other, and both wall and processor time.

The captured step is measured from where it begins to where its dump is written: hooks, records, stacks,
gradients, the optimizer's update and the files are all in it.
"""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from ray_precheck.capture import Capture

VOCABULARY, HIDDEN, HEADS, SHARED_HEADS, WIDTH = 2048, 256, 8, 4, 32
KINDS: dict[str, dict[str, Any]] = {
    "L1": {"level": "L1"},
    "mix": {"level": "mix"},
    "L0": {"level": "L0"},
    "sketch": {"level": "L1", "sketch": True},
    "tensor": {"level": "L1", "task": "tensor"},
}
# Two processes, with layers of so many features.
WIDTHS = {"ddp 32": 32, "ddp 256": 256, "ddp 32 mix": 32, "ddp 256 mix": 256}
KINDS |= {name: {"level": "mix" if name.endswith("mix") else "L1"} for name in WIDTHS}
# What the ratio must not exceed.
LIMITS = {
    "L1": 1.4,
    "mix": 1.6,
    "L0": 1.1,
    "sketch": 1.8,
    "tensor": 3.0,
    "ddp 32": 4.5,
    "ddp 256": 2.2,
    "ddp 32 mix": 5.5,
    "ddp 256 mix": 2.7,
}
_RANKS = 2
# One rank's rows of a batch, and its layers.
_ROWS, _LAYERS = 8, 24


def report_costs(kinds: Sequence[str], pairs: int) -> bool:
    """Measure kinds of captures, print a table, and return whether each is within its limit."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, one thread, {pairs} pairs")
    print(f"{'kind':20} {'plain ms':>9} {'ratio':>6} {'processor':>9} {'limit':>6}")
    good = True
    # Nothing is removed in between: ext4 without a journal passes over each inode that was freed in the last
    # minutes before it gives one to a new file, which then takes up to a millisecond.
    with tempfile.TemporaryDirectory(prefix="capture_cost_") as folder:
        for kind in kinds:
            path = Path(folder) / kind.replace(" ", "_")
            if kind in WIDTHS:
                plain_s, ratio, processor = measure_ranks(kind, pairs, path)
            else:
                plain_s, ratio, processor = measure_cost(*training(), KINDS[kind], pairs, path)
            good = good and ratio <= LIMITS[kind]
            shown = f"{plain_s * 1e3:9.1f} {ratio:6.2f} {processor:9.2f} {LIMITS[kind]:6.2f}"
            print(f"{kind:20} {shown}", flush=True)
    return good


def measure_cost(
    model: nn.Module, step: Callable[[], object], kind: dict[str, Any], pairs: int, path: Path
) -> tuple[float, float, float]:
    """Return a plain step's median time in seconds, and the medians of the ratios of wall and processor
    times of captured steps, whose dumps go into `path`, and plain ones.

    One capture has every second step of a run, as one of a long run does.
    """
    plain, wall, processor = [], [], []
    steps = range(1, 2 * pairs + 2, 2)
    with Capture(path, steps=steps, step_by="manual", model=model, **kind) as capture:

        def captured() -> None:
            capture.step()
            step()
            capture.step()

        captured()
        for _ in range(pairs):
            base, seen = timed(step), timed(captured)
            plain.append(base[0])
            wall.append(seen[0] / base[0])
            processor.append(seen[1] / base[1])
    return tuple(statistics.median(each) for each in (plain, wall, processor))  # type: ignore[return-value]


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return the wall time and the processor time of an action in seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - processor


def measure_ranks(kind: str, pairs: int, path: Path) -> tuple[float, float, float]:
    """Return what `measure_cost` does, of two processes that train together, of each figure the larger."""
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    ranks = [
        context.Process(target=_measure_rank, args=(rank, kind, pairs, path, queue))
        for rank in range(_RANKS)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    if any(each.exitcode for each in ranks):
        raise SystemExit(f"a rank of {kind} ended with an error, which stands above")
    found = [queue.get() for _ in range(_RANKS)]
    return tuple(map(max, zip(*found, strict=True)))


def _measure_rank(rank: int, kind: str, pairs: int, path: Path, queue: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}.rendezvous", rank=rank, world_size=_RANKS
    )
    queue.put(measure_cost(*ranked_training(WIDTHS[kind], rank), KINDS[kind], pairs, path))
    torch.distributed.destroy_process_group()


def ranked_training(width: int, rank: int) -> tuple[nn.Module, Callable[[], object]]:
    """Return a model of small layers, and a step of its training with the other ranks."""
    torch.manual_seed(0)
    layers = [
        part
        for _ in range(_LAYERS)
        for part in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
    ]
    model = DistributedDataParallel(nn.Sequential(*layers))
    torch.manual_seed(rank)
    rows, labels = torch.randn(2, _ROWS, width)
    return model, _step(model, lambda: functional.mse_loss(model(rows), labels))


def training() -> tuple[nn.Module, Callable[[], object]]:
    """Return a model, and a step of its training: forward, backward, update."""
    model = Decoder(layers=4)
    tokens = torch.randint(0, VOCABULARY, (2, 128))
    labels = torch.randint(0, VOCABULARY, (2, 128))
    return model, _step(model, lambda: model(tokens, labels))


def _step(model: nn.Module, forward: Callable[[], torch.Tensor]) -> Callable[[], object]:
    """Return a step that was made three times: the loss, its gradients, the update."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step() -> object:
        loss = forward()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(3):
        step()
    return step


class Norm(nn.Module):
    """Root mean square normalisation (Zhang and Sennrich 2019)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` over its root mean square, times the weight."""
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6)).to(x.dtype)


class Layer(nn.Module):
    """Attention with grouped heads and rotary positions, and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, HEADS * WIDTH, bias=False)
        self.key = nn.Linear(HIDDEN, SHARED_HEADS * WIDTH, bias=False)
        self.value = nn.Linear(HIDDEN, SHARED_HEADS * WIDTH, bias=False)
        self.out = nn.Linear(HEADS * WIDTH, HIDDEN, bias=False)
        self.gate = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.down = nn.Linear(3 * HIDDEN, HIDDEN, bias=False)
        self.before_attention, self.before_gate = Norm(HIDDEN), Norm(HIDDEN)
        self.query_norm, self.key_norm = Norm(WIDTH), Norm(WIDTH)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the layer's output, of the shape of `x`, (batch, time, hidden)."""
        batch, length, _ = x.shape
        y = self.before_attention(x)
        q = self.query_norm(self.query(y).view(batch, length, -1, WIDTH)).transpose(1, 2)
        k = self.key_norm(self.key(y).view(batch, length, -1, WIDTH)).transpose(1, 2)
        v = self.value(y).view(batch, length, -1, WIDTH).transpose(1, 2)
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        k, v = repeated(k), repeated(v)
        weights = torch.matmul(q, k.transpose(2, 3)) * WIDTH**-0.5 + mask
        weights = functional.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
        weights = functional.dropout(weights, p=0.0, training=self.training)
        seen = torch.matmul(weights, v).transpose(1, 2).contiguous().reshape(batch, length, -1)
        x = x + self.out(seen)
        y = self.before_gate(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


def turned(x: torch.Tensor) -> torch.Tensor:
    """Return `x` with the halves of its last dimension exchanged and one negated."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def repeated(x: torch.Tensor) -> torch.Tensor:
    """Return shared heads once for each head that uses them."""
    batch, _, length, _ = x.shape
    several = x[:, :, None].expand(batch, SHARED_HEADS, HEADS // SHARED_HEADS, length, WIDTH)
    return several.reshape(batch, HEADS, length, WIDTH)


class Decoder(nn.Module):
    """A language model; calling it gives the loss."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = Norm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the cross entropy of labels, both `(batch, time)` int64."""
        x = self.embedding(tokens)
        length = tokens.shape[1]
        frequencies = 1 / 10000 ** (torch.arange(0, WIDTH, 2).float() / WIDTH)
        angles = torch.arange(length).float()[:, None] * frequencies
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos(), angles.sin()
        mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))
