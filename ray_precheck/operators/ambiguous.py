"""Which outputs are right in more than one way: indices of ties, bases up to a factor.

Goes out: `AMBIGUOUS`. Called by `compare.ambiguous`, which chooses as the tested side did.
"""

from dataclasses import dataclass
from typing import TypeAlias

from ray_precheck.operators.table import FactTable


@dataclass(frozen=True, slots=True)
class IndexChoice:
    """How an operator's indices select from its first argument.

    `position` is that of the dimension among the arguments, `default` its value if the call gives
    none (None: the flattened input). `ordered` operators select each index once. `outputs`: how
    many there are where the last one holds indices; `max` of all elements has one, and that is a
    value.
    """

    position: int
    default: int | None
    ordered: bool = False
    outputs: int = 2


@dataclass(frozen=True, slots=True)
class Basis:
    """Which outputs of a decomposition hold vectors.

    `vectors` is the output whose columns may be turned, `rows` one whose rows turn back with them,
    `columns` one whose columns turn with them, `values` one whose order may differ, with that of the
    columns.
    """

    vectors: int
    rows: int | None = None
    columns: int | None = None
    values: int | None = None


Ambiguity: TypeAlias = IndexChoice | Basis
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
        # It has no dimension: the last one is meant, however many arguments there are.
        ("mindspore.Tensor mindspore.ops: top_k", IndexChoice(9, -1, ordered=True)),
        (f"{_ALL}: sort", IndexChoice(1, -1, ordered=True)),
        (f"{_ALL}: argsort", IndexChoice(1, -1, ordered=True, outputs=1)),
        # (u, s, v^H): the rows of the last turn back with the columns of the first.
        ("torch.linalg: svd", Basis(0, rows=2)),
        # (u, s, v): the columns of v turn with those of u.
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
    ],
)
