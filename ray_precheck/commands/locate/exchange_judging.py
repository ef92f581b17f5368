"""Whether what a rank got of a collective is what all ranks brought.

Comes in: a `Made`, and the tensors of all ranks. Goes out: a `Recomputed`. Called by the job that recomputes
collectives. Tensors are read in pieces.

A sum of N numbers in floating point, in any order, is within (N - 1) u of the exact one times the sum of
the absolute values, where u is half the distance of 1 to the next number (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., section 4.2); two more roundings are allowed, for the division of a mean and
for a result that was rounded once more. What is only copied, the largest and the smallest must agree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ray_precheck.commands.locate.walk.collectives import Recomputed
from ray_precheck.commands.locate.walk.roots import INFINITE
from ray_precheck.dump.mapped import MappedTensor, MappedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.numerics.arrays import pieces, same_values, smallest_subnormal, unit_roundoff
from ray_precheck.schema.dtypes import DTYPES, Array, is_differentiable
from ray_precheck.trace.difference.measuring import open_item
from ray_precheck.trace.flow.exchange import LARGEST, MEAN, PRODUCT, SMALLEST, Made
from ray_precheck.trace.items import Item

_MORE_ROUNDINGS = 2


class OpenedTensors:
    """The tensors of all ranks, each mapped once."""

    def __init__(self, files: dict[int, MappedTensors]) -> None:
        self._files = files
        self._known: dict[tuple[int, str], MappedTensor] = {}

    def of(self, rank: int, item: Item) -> MappedTensor:
        """Return a tensor of a rank.

        Raises:
            NotCheckable: it cannot be read.
        """
        key = rank, item.file
        if key not in self._known:
            self._known[key] = open_item(item, self._files[rank])
        return self._known[key]


@dataclass(slots=True)
class _Worst:
    """The largest error so far, in units of what rounding explains."""

    own: float = 0.0
    at: int = -1
    got: float = 0.0
    expected: float = 0.0
    wrong: int = 0


def judged_output(made: Made, files: OpenedTensors, key: str, place: int) -> Recomputed:
    """Compare what a rank got with what all ranks brought, in pieces.

    Raises:
        NotCheckable: a tensor cannot be read, or the sizes do not fit.
    """
    given = files.of(made.rank, made.item)
    worst = _Worst()
    offset = 0
    for parts in made.pieces:
        count = parts[0].length
        tensors = [files.of(part.rank, part.item) for part in parts]
        for tensor, part in zip(tensors, parts, strict=True):
            if part.length != count or part.start + count > len(tensor.raw):
                raise NotCheckable("the ranks brought tensors of other sizes")
        if offset + count > len(given.raw):
            raise NotCheckable("it gave less than the ranks brought")
        for piece in pieces(count):
            low, high = piece.start, piece.stop
            got = _wide(given, offset + low, offset + high)
            brought = [
                _wide(tensor, part.start + low, part.start + high)
                for tensor, part in zip(tensors, parts, strict=True)
            ]
            _take(worst, got, brought, made.operation, given.dtype, offset + low)
        offset += count
    said = ""
    is_wrong = worst.own > 1.0
    if is_wrong:
        said = _sentence(made, worst, len(given.raw))
    index = ""
    if worst.at >= 0:
        at = np.unravel_index(worst.at, made.item.shape or (1,))
        index = f"[{', '.join(str(int(each)) for each in at)}]" if made.item.shape else ""
    return Recomputed(key, place, worst.own, is_wrong, made.item.path, index, said)


def _wide(tensor: MappedTensor, low: int, high: int) -> Array:
    """Return elements as float64, complex128 or int64."""
    some = tensor.carrier(tensor.raw[low:high])
    kind = DTYPES[tensor.dtype].kind
    wide = {"float": np.float64, "complex": np.complex128}.get(kind, np.int64)
    return some.astype(wide)


def _take(
    worst: _Worst, got: Array, brought: Sequence[Array], operation: str, dtype: str, start: int
) -> None:
    """Take a piece into account; where a sum of half precision may have overflowed on its way, nothing is
    said."""
    with np.errstate(all="ignore"):
        expected, allowed = _expected(brought, operation, dtype)
        error = np.abs(got - expected)
        same = same_values(got, expected)
        share = np.where(same, 0.0, error / np.where(allowed > 0, allowed, 1.0))
        share = np.where(~same & ((allowed == 0) | np.isnan(share)), INFINITE, share)
        largest = DTYPES[dtype].largest or math.inf
        if len(brought) > 1 and DTYPES[dtype].kind in ("float", "complex"):
            total = np.sum(np.abs(np.stack(brought)), axis=0)
            share = np.where(total > largest, 0.0, share)
    worst.wrong += int(np.count_nonzero(share > 1.0))
    if len(share) and (top := float(np.max(share))) > worst.own:
        at = int(np.argmax(share))
        worst.own, worst.at = top, start + at
        worst.got, worst.expected = float(np.real(got[at])), float(np.real(expected[at]))


def _expected(brought: Sequence[Array], operation: str, dtype: str) -> tuple[Array, Array]:
    """Return what an operation makes of its parts, and how far rounding may take it."""
    stacked = np.stack(brought)
    number = len(brought)
    exact = np.zeros(stacked.shape[1:])
    if number == 1:
        return stacked[0], exact
    if operation == LARGEST:
        return np.max(stacked, axis=0), exact
    if operation == SMALLEST:
        return np.min(stacked, axis=0), exact
    if not is_differentiable(dtype):
        return (np.prod if operation == PRODUCT else np.sum)(stacked, axis=0), exact
    unit = (number - 1 + _MORE_ROUNDINGS) * unit_roundoff(dtype)
    tiny = number * smallest_subnormal(dtype)
    if operation == PRODUCT:
        product = np.prod(stacked, axis=0)
        return product, unit * np.abs(product) + tiny
    share = 1.0 / number if operation == MEAN else 1.0
    total = np.sum(np.abs(stacked), axis=0) * share
    return np.sum(stacked, axis=0) * share, unit * total + tiny


def _sentence(made: Made, worst: _Worst, size: int) -> str:
    ranks = len(made.pieces[0])
    of = f"the {made.operation} of {ranks} ranks" if ranks > 1 else "the copy"
    return (
        f"{worst.wrong} of {size} elements are not {of} of what the ranks brought: {worst.got:.6g} where"
        f" {worst.expected:.6g} is right; the collective itself is wrong"
    )
