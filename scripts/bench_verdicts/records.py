"""The records on which `bench_verdicts` plants faults: products, attention, norms and losses.

Comes in: nothing. Goes out: a `Case` for each call with what the faults must know of it (`Known`), and inputs
that are made hard for a bench that looks at a sample. Called by `bench_verdicts.subject` and
`bench_verdicts.main`. Shapes are those of GPT-2, Llama-2-7B, Llama-3-8B, BERT, ViT-B, Whisper, ResNet-50
and a UNet, with fewer positions, or a part of the width, so that a product has 10^6 to 10^9 multiply-adds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ray_precheck.schema.dtypes import Array
from scripts.verdicts.cases import Case, DrawnArgument

Generator = np.random.Generator


@dataclass(frozen=True, slots=True)
class Known:
    """A call and what the faults must know of it.

    `macs` are the multiply-adds of its forward pass. `k` is the place of an argument and its axis over which
    the product adds up, None where there is none. `bias` is the place of the bias among the arguments, -1
    for none; `weight` that of an argument whose leading axis numbers experts, heads or samples, of which one
    may be taken for another, -1 for none. `padding` is the place of a convolution's padding, -1 for none.
    """

    case: Case
    macs: float
    k: tuple[int, int] | None = None
    bias: int = -1
    weight: int = -1
    padding: int = -1
    tags: frozenset[str] = field(default_factory=frozenset)

    @property
    def label(self) -> str:
        """The operator, and which call of it."""
        return f"{self.case.name.partition('.')[2]} {self.case.label}".strip()


def _t(*shape: int, size: float = 1.0) -> DrawnArgument:
    return DrawnArgument(shape, -size, size)


def _known(name: str, macs: float, *args: Any, **options: Any) -> Known:
    facts = {key: options.pop(key) for key in ("k", "bias", "weight", "padding") if key in options}
    label = options.pop("label", "")
    tags = frozenset(options.pop("tags", ()))
    return Known(Case(name, args, options, label), macs, tags=tags, **facts)


def _whole(*shape: int, high: int) -> DrawnArgument:
    return DrawnArgument(shape, 0, high, "int64", grad=False)


def _linear(label: str, tokens: int, inner: int, outer: int, biased: bool) -> Known:
    args = [_t(tokens, inner), _t(outer, inner, size=0.1), *([_t(outer)] if biased else [])]
    macs = tokens * inner * outer
    return _known(
        "Functional.linear", macs, *args, label=label, k=(0, -1), bias=2 if biased else -1
    )


def _conv(
    label: str, data: tuple[int, ...], weight: tuple[int, ...], *rest: Any, **more: Any
) -> Known:
    name = f"Functional.conv{'_transpose' if more.pop('back', False) else ''}{len(data) - 2}d"
    stride = rest[0] if rest and isinstance(rest[0], int) else 1
    macs = float(np.prod(weight)) * data[0] * float(np.prod(data[2:])) / stride ** (len(data) - 2)
    bias = _t(weight[0] if "transpose" not in name else weight[1])
    args = (_t(*data), _t(*weight, size=0.1), bias, *rest)
    return _known(
        name, macs, *args, label=label, k=(1, 1 if "transpose" not in name else 0), bias=2,
        padding=4 if len(args) > 4 else -1, weight=0, tags={"conv"},
    )  # fmt: skip


def _attention(label: str, query: tuple[int, ...], shared: int, **more: Any) -> Known:
    batch, heads, length, width = query
    key = _t(batch, shared, length, width, size=2.0)
    macs = 2.0 * batch * heads * length * length * width
    return _known(
        "Functional.scaled_dot_product_attention", macs, _t(*query, size=2.0), key, key, label=label,
        k=(0, -1), weight=2, tags={"attention"}, **more,
    )  # fmt: skip


PRODUCTS = (
    _linear("gpt2 c_attn", 64, 768, 2304, True),
    _linear("llama-7b gate, a third", 32, 4096, 1376, False),
    _linear("llama-3-8b k_proj", 48, 4096, 1024, False),
    _linear("vit-b mlp, odd", 197, 768, 385, True),
    _linear("bert pooler, few rows", 7, 768, 3072, True),
    _linear("llama-7b down, a quarter", 64, 11008, 1024, False),
    _known("Torch.matmul", 128 * 512 * 384, _t(128, 512), _t(512, 384), label="2-D", k=(0, -1)),
    _known("Torch.matmul", 8 * 96 * 64 * 256, _t(8, 96, 256), _t(8, 256, 64), label="batched",
           k=(0, -1), weight=1),
    _known("Torch.matmul", 8 * 96 * 128 * 256, _t(8, 96, 256), _t(256, 128), label="broadcast",
           k=(0, -1)),
    _known("Torch.mm", 200 * 640 * 264, _t(200, 640), _t(640, 264), k=(0, -1)),
    _known("Torch.bmm", 12 * 128 * 128 * 64, _t(12, 128, 64), _t(12, 64, 128), label="bert scores",
           k=(0, -1), weight=1),
    _known("Torch.addmm", 96 * 768 * 768, _t(768), _t(96, 768), _t(768, 768), label="gpt2",
           k=(1, -1), bias=0),
    _known("Torch.baddbmm", 8 * 96 * 96 * 128, _t(8, 96, 96), _t(8, 96, 128), _t(8, 128, 96),
           k=(1, -1), bias=0, weight=2),
    _known("Torch.einsum", 2 * 64 * 512 * 128, "bqd,dhk->bhqk",
           [_t(2, 64, 512), _t(512, 2, 64)], label="heads"),
    _known("Torch.einsum", 8 * 64 * 64 * 128, "bqhd,bkhd->bhqk",
           [_t(1, 64, 8, 128), _t(1, 64, 8, 128)], label="scores"),
)  # fmt: skip
CONVOLUTIONS = (
    _conv("resnet-50 3x3", (2, 64, 28, 28), (64, 64, 3, 3), 1, 1),
    _conv("resnet-50 1x1", (2, 256, 14, 14), (128, 256, 1, 1), 1, 0),
    _conv("resnet-50 3x3 stride", (2, 64, 28, 28), (64, 64, 3, 3), 2, 1),
    _conv("groups", (2, 64, 28, 28), (64, 8, 3, 3), 1, 1, 1, 8),
    _conv("dilated", (1, 64, 28, 28), (64, 64, 3, 3), 1, 2, 2),
    _conv("vit-b patches", (2, 3, 112, 112), (384, 3, 16, 16), 16, 0),
    _conv("whisper conv1", (1, 80, 400), (192, 80, 3), 1, 1),
    _conv("video", (1, 16, 6, 14, 14), (32, 16, 3, 3, 3), 1, 1),
    _conv("unet up", (2, 64, 16, 16), (64, 32, 2, 2), 2, back=True),
)
ATTENTION = (
    _attention("gpt2 causal", (1, 12, 128, 64), 12, is_causal=True),
    _attention("bert", (2, 12, 96, 64), 12),
    _attention("llama causal", (1, 4, 256, 128), 4, is_causal=True),
    _attention("llama-3 gqa", (1, 8, 128, 128), 2, is_causal=True, enable_gqa=True),
    _attention(
        "masked", (1, 8, 128, 64), 8, attn_mask=DrawnArgument((128, 128), -2.0, 2.0, grad=False)
    ),
)
_ROWS = (_t(256, 768), [768])
OTHERS = (
    _known("Functional.softmax", 2e5, _t(256, 768, size=4.0), dim=-1),
    _known("Functional.log_softmax", 2e5, _t(64, 4096, size=4.0), dim=-1),
    _known("Functional.layer_norm", 2e5, *_ROWS, _t(768), _t(768)),
    _known("Functional.rms_norm", 2e5, *_ROWS, _t(768)),
    _known("Functional.group_norm", 2e5, _t(2, 64, 32, 32), 8, _t(64), _t(64)),
    _known("Functional.batch_norm", 2e5, _t(8, 64, 20, 20), None, None, _t(64), _t(64), True),
    _known("Functional.gelu", 2e5, _t(256, 768, size=4.0)),
    _known("Functional.silu", 2e5, _t(256, 768, size=4.0)),
    _known("Torch.mul", 2e5, _t(256, 768), _t(256, 768)),
    _known("Torch.add", 2e5, _t(256, 768), _t(768)),
    _known("Torch.exp", 2e5, _t(256, 768)),
    _known("Torch.sum", 2e5, _t(512, 768), -1),
    _known("Functional.cross_entropy", 2e5, _t(128, 2048, size=4.0), _whole(128, high=2047)),
    _known("Functional.embedding", 2e5, _whole(4, 128, high=999), _t(1000, 256)),
)  # fmt: skip
LARGE = (
    _linear("llama-7b q_proj", 60, 4096, 4096, False),
    _linear("llama-3-8b up", 16, 4096, 14336, False),
    _conv("resnet-50 3x3, batch", (8, 128, 28, 28), (128, 128, 3, 3), 1, 1),
    _attention("llama long", (1, 8, 640, 128), 8, is_causal=True),
)
EVERY = (*PRODUCTS, *CONVOLUTIONS, *ATTENTION, *OTHERS, *LARGE)
# Of each room one, for two minutes.
QUICK = (PRODUCTS[0], PRODUCTS[7], CONVOLUTIONS[0], ATTENTION[0], OTHERS[0], OTHERS[2])

Harden = Callable[[Array, Generator], Array]


def _huge_row(data: Array, rng: Generator) -> Array:
    rows = _as_rows(data)
    rows[rng.integers(len(rows))] *= 1000.0
    return data


def _zero_rows(data: Array, rng: Generator) -> Array:
    rows = _as_rows(data)
    rows[rng.random(len(rows)) < 0.3] = 0.0
    return data


def _outlier_channel(data: Array, rng: Generator) -> Array:
    data[..., rng.integers(data.shape[-1])] *= 100.0
    return data


def _equal_columns(data: Array, rng: Generator) -> Array:
    data[..., : data.shape[-1] // 2] = data[..., :1]
    return data


def _row_scales(data: Array, rng: Generator) -> Array:
    rows = _as_rows(data)
    rows *= 10.0 ** rng.uniform(-3, 1, (len(rows), 1))
    return data


def _as_rows(data: Array) -> Array:
    """Return a view of an array as rows of its last axis, which is contiguous."""
    return data.reshape(-1, data.shape[-1])


# What the inputs of a call are made; the first as the record's statistics have them.
HARD: dict[str, Harden] = {
    "recorded": lambda data, rng: data,
    "normal": lambda data, rng: rng.normal(0.0, float(np.std(data)) or 1.0, data.shape),
    "heavy tails": lambda data, rng: 0.3 * data * rng.standard_t(3, data.shape),
    "one huge row": _huge_row,
    "zero rows": _zero_rows,
    "outlier channel": _outlier_channel,
    "equal columns": _equal_columns,
    "tiny": lambda data, rng: data * 1e-3,
    "scale by row": _row_scales,
    "mean beyond std": lambda data, rng: data * 0.05 + 1.0,
}
