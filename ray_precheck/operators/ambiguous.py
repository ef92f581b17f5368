"""Operators with several right outputs: indices of equal values, vectors up to a factor, the signs of sums
that are nearly 0, and integers of floats that they do not hold.

Goes out: `AMBIGUOUS`. Called by `accuracy.ambiguous`, which takes the tested side's choice for the bench.
"""

from dataclasses import dataclass
from typing import TypeAlias

from ray_precheck.operators.table import FactTable


@dataclass(frozen=True, slots=True)
class IndexChoice:
    """How an operator's indices select from its first argument.

    `position` is the position of the dimension among the arguments, `default` the dimension if the
    call gives none (None: the flattened input). An `ordered` operator selects each index once.
    `outputs` is the number of outputs of a call whose last output holds indices: `max` of all
    elements has one output, which is a value.
    """

    position: int
    default: int | None
    ordered: bool = False
    outputs: int = 2


@dataclass(frozen=True, slots=True)
class Basis:
    """The outputs of a decomposition that hold vectors, by their positions.

    The columns of the output `vectors` may have another factor of magnitude 1 (a sign) on each side.
    The rows of the output `rows` then have the inverse factor, the columns of the output `columns`
    the same factor. The elements of the output `values` may be in another order, with the columns.
    """

    vectors: int
    rows: int | None = None
    columns: int | None = None
    values: int | None = None


@dataclass(frozen=True, slots=True)
class SignOfSum:
    """An optimizer's step whose direction is the sign of a sum, which rounding decides near 0."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """Numbers that are rounded to steps of the second argument: half way between two, either is right.

    `axis` is the position of the dimension that has a step for each place, None where there is one step.
    One that `observes` chooses the steps itself.
    """

    axis: int | None = None
    observes: bool = False


@dataclass(frozen=True, slots=True)
class ToWhole:
    """A cast, perhaps of floats to integers: of NaN, and of what the integers do not hold, it may give any.

    C++ says so (ISO C++17, 7.10 [conv.fpint]), and torch's kernels give what the machine does. `source` is
    the position of the argument that is cast.
    """

    source: int = 0


Ambiguity: TypeAlias = IndexChoice | Basis | SignOfSum | Stepped | ToWhole
_ALL = "torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops"

AMBIGUOUS: FactTable[Ambiguity] = FactTable(
    "ambiguous outputs",
    [
        (f"{_ALL}: argmax argmin", IndexChoice(1, None, outputs=1)),
        (f"{_ALL}: max min cummax cummin", IndexChoice(1, None)),
        ("mindspore.Tensor: argmax_with_value argmin_with_value", IndexChoice(1, 0)),
        (f"{_ALL}: median", IndexChoice(1, -1)),
        ("torch torch.Tensor mindspore.Tensor mindspore.ops: nanmedian", IndexChoice(1, -1)),
        ("torch torch.Tensor: mode", IndexChoice(1, -1)),
        (f"{_ALL}: kthvalue", IndexChoice(2, -1)),
        (f"{_ALL}: topk", IndexChoice(2, -1, ordered=True)),
        # It has no argument for the dimension (9 is beyond all arguments): it uses the last one.
        ("mindspore.Tensor mindspore.ops: top_k", IndexChoice(9, -1, ordered=True)),
        (f"{_ALL}: sort", IndexChoice(1, -1, ordered=True)),
        (f"{_ALL}: argsort", IndexChoice(1, -1, ordered=True, outputs=1)),
        # (u, s, v^H): the rows of v^H have the inverse factors of the columns of u.
        ("torch.linalg: svd", Basis(0, rows=2)),
        # (u, s, v): the columns of v have the factors of the columns of u.
        ("torch torch.Tensor: svd", Basis(0, columns=2)),
        # (s, u, v).
        ("mindspore.Tensor mindspore.ops: svd", Basis(1, columns=2)),
        (
            "torch torch.Tensor torch.linalg mindspore.mint.linalg mindspore.Tensor mindspore.ops: qr",
            Basis(0, rows=1),
        ),
        ("torch.linalg: eigh", Basis(1)),
        ("torch torch.Tensor torch.linalg mindspore.ops: eig", Basis(1, values=0)),
        ("torch.linalg mindspore.Tensor mindspore.ops: eigvals", Basis(-1, values=0)),
        ("torch.optim: Lion", SignOfSum()),
        (
            """
            torch.Tensor mindspore.Tensor: byte int long short to type type_as
            torch.Tensor: char
            torch: as_tensor tensor
            mindspore.Tensor: astype
            mindspore.ops: cast type_as
            """,
            ToWhole(),
        ),
        ("torch.Tensor mindspore.Tensor: copy_", ToWhole(1)),
        (
            "torch: fake_quantize_per_tensor_affine _fake_quantize_learnable_per_tensor_affine",
            Stepped(),
        ),
        (
            "torch: fake_quantize_per_channel_affine _fake_quantize_learnable_per_channel_affine",
            Stepped(3),
        ),
        ("torch: fused_moving_avg_obs_fake_quant", Stepped(10, observes=True)),
    ],
)
