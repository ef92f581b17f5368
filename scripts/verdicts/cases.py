"""The calls on which `verdicts.py` plants faults: records as msprobe writes them.

Comes in: a dtype. Goes out: a payload for each API that has it. The inputs are generated from the
records, as in a real run. Sizes are small but not tiny: every reduction has at least some hundred
terms somewhere, and each edge (overflow, subnormals, tiny gradients) has a record of its own.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ray_precheck.schema.task import TaskPayload

DTYPES = ("float32", "float16", "bfloat16")
ALL = frozenset(DTYPES)
FULL = frozenset({"float32"})
_MINT_PREFIXES = {"Torch": "Mint", "Functional": "MintFunctional", "Tensor": "Tensor"}
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DrawnArgument:
    """A tensor argument; without a `dtype` it has that of the record."""

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    dtype: str = ""
    grad: bool = True

    def element(self, dtype: str) -> Json:
        """Return it as the dump has it."""
        own = self.dtype or dtype
        return {
            "type": "torch.Tensor",
            "dtype": f"torch.{own}",
            "shape": list(self.shape),
            "Max": self.high,
            "Min": self.low,
            "Mean": (self.low + self.high) / 2,
            "Norm": None,
            "requires_grad": self.grad and not self.dtype,
        }


@dataclass(frozen=True, slots=True)
class Case:
    """One call. `mint` is "" where MindSpore's namesake means another thing; `cotangent` the largest
    gradient that comes in, 0 where the call has no backward record; `label` tells calls of one API
    apart.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    mint: str | None = None
    cotangent: float = 1.0
    dtypes: frozenset[str] = ALL

    @property
    def mint_name(self) -> str:
        """The call's name in MindSpore, "" for none."""
        prefix, _, api = self.name.partition(".")
        return f"{_MINT_PREFIXES[prefix]}.{api}" if self.mint is None else self.mint

    def payload(self, dtype: str) -> TaskPayload:
        """Return the call in one dtype."""
        forward = {
            "input_args": [_element(value, dtype) for value in self.args],
            "input_kwargs": {key: _element(value, dtype) for key, value in self.kwargs.items()},
            "output": [],
        }
        behind = None
        if self.cotangent:
            # Generated gradients take the shape of the output that they come in at.
            incoming = DrawnArgument((1,), -self.cotangent, self.cotangent).element(dtype)
            behind = json.dumps({"input": [incoming], "output": []}).encode()
        return TaskPayload(0, f"{self.name}.0", json.dumps(forward).encode(), behind)


def _element(value: Any, dtype: str) -> Any:
    if isinstance(value, DrawnArgument):
        return value.element(dtype)
    if isinstance(value, list | tuple):
        return [_element(item, dtype) for item in value]
    return None if value is None else {"type": type(value).__name__, "value": value}


def cases(dtype: str) -> Iterator[Case]:
    """Yield every call that has a dtype."""
    yield from (case for case in CASES if dtype in case.dtypes)


def _tensor(*shape: int, low: float = -1.0, high: float = 1.0) -> DrawnArgument:
    return DrawnArgument(shape, low, high)


def _whole(*shape: int, high: int) -> DrawnArgument:
    return DrawnArgument(shape, 0, high, "int64", grad=False)


def _case(name: str, *args: Any, **options: Any) -> Case:
    own = {
        key: options.pop(key) for key in ("label", "mint", "cotangent", "dtypes") if key in options
    }
    return Case(name, args, options, **own)


_M = _tensor(48, 96)
_POSITIVE = _tensor(48, 96, low=0.05, high=4.0)
_WIDE = _tensor(48, 96, low=-4.0, high=4.0)
_IMAGE = _tensor(4, 8, 12, 12)

_ELEMENTWISE = (
    *(
        _case(f"Torch.{name}", _WIDE)
        for name in "exp sin cos tanh sigmoid erf expm1 square abs neg atan sinh".split()
    ),
    *(_case(f"Torch.{name}", _POSITIVE) for name in "log sqrt rsqrt reciprocal log1p log2".split()),
    *(
        _case(f"Functional.{name}", _WIDE)
        for name in "relu silu softplus mish elu leaky_relu hardswish logsigmoid gelu".split()
    ),
    _case("Functional.gelu", _WIDE, approximate="tanh", label="tanh"),
    *(_case(f"Torch.{name}", _M, _M) for name in "add sub mul maximum minimum atan2".split()),
    _case("Torch.add", _M, _tensor(96), label="broadcast"),
    _case("Torch.div", _M, _POSITIVE),
    _case("Torch.pow", _POSITIVE, 3),
    _case("Torch.pow", _POSITIVE, _M, label="tensor"),
    _case("Torch.lerp", _M, _M, 0.3),
    _case("Torch.addcmul", _M, _M, _M, value=0.5),
    _case("Torch.addcdiv", _M, _M, _POSITIVE, value=0.5),
    _case("Torch.clamp", _M, -0.5, 0.5),
    _case("Torch.where", DrawnArgument((48, 96), 0, 1, "bool", grad=False), _M, _M),
    _case("Torch.remainder", _WIDE, 0.75, cotangent=0),
    _case("Torch.floor", _WIDE, cotangent=0),
)
_REDUCTIONS = (
    _case("Torch.sum", _tensor(64, 512), -1),
    _case("Torch.sum", _tensor(4096, low=0.0), label="all"),
    _case("Torch.sum", _tensor(512, 64), 0, label="columns"),
    _case("Torch.mean", _tensor(64, 512), -1),
    _case("Torch.mean", _tensor(64, 512, low=0.0), label="all"),
    _case("Torch.var", _tensor(64, 256, low=0.0), 1),
    _case("Torch.std", _tensor(64, 256, low=0.0), 1),
    _case("Torch.prod", _tensor(64, 16, low=0.5, high=1.5), -1),
    _case("Torch.amax", _M, -1),
    _case("Torch.max", _M, -1, label="dim"),
    _case("Torch.logsumexp", _tensor(64, 256, low=-4.0, high=4.0), -1),
    _case("Torch.norm", _tensor(64, 256), 2, -1),
    _case("Torch.cumsum", _tensor(32, 256), -1),
    _case("Torch.cumprod", _tensor(32, 16, low=0.5, high=1.5), -1),
)
_CONTRACTIONS = (
    _case("Torch.matmul", _tensor(48, 512), _tensor(512, 40)),
    _case("Torch.matmul", _tensor(48, 96), _tensor(96, 40), cotangent=1e-6, label="tiny gradient"),
    _case("Torch.mm", _tensor(64, 256), _tensor(256, 32)),
    _case("Torch.bmm", _tensor(4, 32, 256), _tensor(4, 256, 24)),
    _case("Torch.mv", _tensor(64, 512), _tensor(512)),
    _case("Torch.dot", _tensor(1024), _tensor(1024)),
    _case("Torch.outer", _tensor(48), _tensor(64)),
    _case("Torch.addmm", _tensor(32), _tensor(64, 256), _tensor(256, 32)),
    _case("Torch.baddbmm", _tensor(4, 32, 24), _tensor(4, 32, 128), _tensor(4, 128, 24)),
    _case("Functional.linear", _tensor(4, 16, 256), _tensor(64, 256), _tensor(64)),
    _case("Torch.einsum", "bij,bjk->bik", [_tensor(4, 24, 128), _tensor(4, 128, 16)]),
    _case("Functional.conv1d", _tensor(4, 8, 64), _tensor(16, 8, 5), _tensor(16)),
    _case("Functional.conv2d", _IMAGE, _tensor(16, 8, 3, 3), _tensor(16), 1, 1),
    _case("Functional.conv_transpose2d", _IMAGE, _tensor(8, 6, 3, 3), _tensor(6)),
)
_NORMS = (
    _case("Functional.softmax", _tensor(64, 256, low=-4.0, high=4.0), dim=-1),
    _case("Functional.log_softmax", _tensor(64, 256, low=-4.0, high=4.0), dim=-1),
    _case("Functional.layer_norm", _tensor(64, 256), [256], _tensor(256), _tensor(256)),
    _case(
        "Functional.layer_norm",
        _tensor(64, 256, low=0.0, high=3.0),
        [256],
        _tensor(256),
        _tensor(256),
        label="off centre",
    ),
    _case("Functional.rms_norm", _tensor(64, 256), [256], _tensor(256), mint=""),
    _case("Functional.group_norm", _IMAGE, 2, _tensor(8), _tensor(8)),
    _case("Functional.batch_norm", _IMAGE, None, None, _tensor(8), _tensor(8), True, mint=""),
    _case("Functional.normalize", _tensor(64, 256)),
    _case(
        "Functional.scaled_dot_product_attention",
        *(_tensor(2, 4, 48, 32, low=-2.0, high=2.0) for _ in range(3)),
        mint="",
    ),
)
_LOSSES = (
    _case("Functional.cross_entropy", _tensor(64, 100, low=-4.0, high=4.0), _whole(64, high=99)),
    _case("Functional.nll_loss", _tensor(64, 100, low=-4.0, high=0.0), _whole(64, high=99)),
    _case("Functional.mse_loss", _M, _M),
    _case("Functional.l1_loss", _M, _M),
    _case("Functional.smooth_l1_loss", _M, _WIDE),
    _case("Functional.huber_loss", _M, _WIDE),
    _case("Functional.kl_div", _tensor(48, 96, low=-5.0, high=0.0), _tensor(48, 96, low=0.01)),
    _case("Functional.binary_cross_entropy_with_logits", _WIDE, _tensor(48, 96, low=0.0)),
)
_POOLS = (
    _case("Functional.max_pool2d", _IMAGE, 2),
    _case("Functional.avg_pool2d", _IMAGE, 3, 2),
    _case("Functional.adaptive_avg_pool2d", _IMAGE, [5, 5]),
    _case("Functional.interpolate", _IMAGE, scale_factor=2.0, mode="bilinear", align_corners=False),
)
_MOVEMENT = (
    _case("Torch.cat", [_M, _M], 1),
    _case("Torch.stack", [_M, _M]),
    _case("Torch.transpose", _M, 0, 1),
    _case("Torch.permute", _IMAGE, [0, 2, 3, 1]),
    _case("Torch.reshape", _M, [96, 48]),
    _case("Torch.split", _M, 16),
    _case("Torch.flip", _M, [0]),
    _case("Torch.roll", _M, 5),
    _case("Torch.tril", _M),
    _case("Torch.gather", _M, 1, _whole(48, 96, high=95)),
    _case("Torch.index_select", _M, 0, _whole(30, high=47)),
    _case("Torch.masked_fill", _M, DrawnArgument((48, 96), 0, 1, "bool", grad=False), -1.0),
    _case("Torch.scatter_add", _M, 0, _whole(48, 96, high=7), _M),
    _case("Torch.index_add", _M, 0, _whole(200, high=7), _tensor(200, 96)),
    _case("Functional.embedding", _whole(8, 40, high=31), _tensor(32, 64)),
    _case("Functional.pad", _M, [1, 2, 3, 4]),
    _case("Tensor.expand", _tensor(48, 1), 48, 96),
    _case("Tensor.repeat", _M, 3, 2),
)
_DECISIONS = (
    _case("Torch.argmax", _M, -1, cotangent=0),
    _case("Torch.sort", _tensor(16, 64), -1),
    _case("Torch.topk", _tensor(16, 64), 8),
    _case("Torch.gt", _M, 0.0, cotangent=0),
    _case("Torch.eq", _whole(48, 96, high=3), _whole(48, 96, high=3), cotangent=0, dtypes=FULL),
    _case(
        "Torch.bitwise_and",
        _whole(48, 96, high=99),
        _whole(48, 96, high=99),
        cotangent=0,
        dtypes=FULL,
    ),
)
_EDGES = (
    _case("Torch.exp", _tensor(48, 96, low=-100.0, high=100.0), label="overflow", cotangent=0),
    _case(
        "Torch.mul",
        *[_tensor(48, 96, low=-2e38, high=2e38)] * 2,
        label="overflow",
        cotangent=0,
        dtypes=ALL - {"float16"},
    ),
    _case(
        "Torch.matmul",
        *[_tensor(64, 64, low=-6e4, high=6e4)] * 2,
        label="overflow",
        cotangent=0,
        dtypes=frozenset({"float16"}),
    ),
    _case(
        "Torch.mul",
        *[_tensor(48, 96, low=-2e-20, high=2e-20)] * 2,
        label="subnormal",
        cotangent=0,
        dtypes=ALL - {"float16"},
    ),
    _case(
        "Torch.mul", *[_tensor(48, 96, low=-4e-3, high=4e-3)] * 2, label="subnormal", cotangent=1e-2
    ),
    _case("Functional.softmax", _tensor(64, 256, low=-40.0, high=40.0), dim=-1, label="peaked"),
    _case("Torch.mul", _tensor(48, 96, low=-1e-5, high=1e-5), _M, label="tiny", cotangent=1e-6),
    _case("Torch.sum", _tensor(64, 512, low=-1e-6, high=1e-6), -1, label="tiny"),
    _case("Torch.div", _M, _tensor(48, 96, low=0.0, high=0.0), label="by zero", cotangent=0),
)
CASES: tuple[Case, ...] = (
    *_ELEMENTWISE,
    *_REDUCTIONS,
    *_CONTRACTIONS,
    *_NORMS,
    *_LOSSES,
    *_POOLS,
    *_MOVEMENT,
    *_DECISIONS,
    *_EDGES,
)
