"""What a standard of comparisons is, and the facts that every standard names alike.

Called by the standards and by `registry`.

Also here: how far two honest results of an operator may be apart: by rounding, and by what its inputs
bring.
"""

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from ray_precheck.accuracy.thresholds import Allowed, allowed
from ray_precheck.dump.scan import split_key
from ray_precheck.numerics.arrays import epsilon_of, unit_roundoff
from ray_precheck.numerics.statistics import FIELDS, STATISTICS
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.trace.difference.elements import ElementDifference
from ray_precheck.trace.difference.measuring import dtype_of
from ray_precheck.trace.difference.rows import (
    ENDS,
    OURS,
    THEIRS,
    ComparisonMode,
    TensorRow,
    are_same,
)

_NOT_FINITE = frozenset(("Nan", " inf", " -inf"))


# A rule for the rows of one pair of operators: it gives each row that both sides have its result and
# messages; all of them say pass before.
CaptureStandard = Callable[[Sequence[TensorRow], ComparisonMode], None]


def index_of(row: TensorRow, place: int) -> str:
    """Return a flat position as an index of the row's tensor, `[1, 2]`."""
    shape = row.item.shape or ()
    if place < 0 or not 0 <= place < math.prod(shape):
        return "[]"
    return str([int(each) for each in np.unravel_index(place, shape)])


def shortened(text: str) -> str:
    """Return a text of at most 80 characters."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def counted(found: ElementDifference) -> str:
    """Return what the counts of a difference are out of, `24 elements`."""
    return f"{found.numbers} " + ("elements" if found.parts == 1 else "real and imaginary parts")


def odd_sentence(row: TensorRow) -> str:
    """Return where NaN and infinities are not the same on both sides, "" where they are.

    From files it is known exactly; from statistics by Max and Min, which show that there are some, and by
    Mean and Norm, because the maximum of some devices leaves NaN out.
    """
    found = row.elements
    if found is not None:
        return _odd_elements(row, found) if found.odd else ""
    return _odd_statistics(row)


def _odd_elements(row: TensorRow, found: ElementDifference) -> str:
    kind = "NaN or infinite on one side only"
    if found.flipped == found.odd:
        kind = "infinities of opposite signs"
    elif found.flipped:
        kind += f" or infinities of opposite signs ({found.flipped})"
    return (
        f"{found.odd} of {counted(found)} are {kind}, the first at {index_of(row, found.first_odd)}"
    )


def _odd_statistics(row: TensorRow) -> str:
    texts = row.statistics
    if not texts or not row.tensors:
        return ""
    ours, theirs = texts[OURS][:ENDS], texts[THEIRS][:ENDS]
    if _NOT_FINITE.isdisjoint((*ours, *theirs)):
        return _odd_sums(texts)
    if ours == theirs:
        return ""
    own = [text if text in _NOT_FINITE else "" for text in ours]
    other = [text if text in _NOT_FINITE else "" for text in theirs]
    if own == other:
        return ""
    shown = [" and ".join(text.strip() for text in side) for side in (ours, theirs)]
    return f"Max and Min are {shown[0]}, in the golden capture {shown[1]}"


def _odd_sums(texts: Sequence[str]) -> str:
    """Return that Mean or Norm is NaN on one side alone, where Max and Min are finite on both."""
    if "Nan" not in texts:  # nearly all of them
        return ""
    named = zip(FIELDS, texts[OURS], texts[THEIRS], strict=True)
    for name, own, other in islice(named, ENDS, None):
        if own != other and "Nan" in (own, other):
            return f"{name} is {own.strip()}, in the golden capture {other.strip()}"
    return ""


def dtypes_differ(row: TensorRow) -> bool:
    """Return whether both sides are tensors of other dtypes, however their frameworks spell them."""
    from ray_precheck.trace.difference.measuring import dtype_of

    target, golden = row.target, row.golden
    if target is None or golden is None or target.dtype == golden.dtype:
        return False
    ours, theirs = dtype_of(target.dtype), dtype_of(golden.dtype)
    return ours is None or ours != theirs


# Operators whose results are sums of products, by the last part of their names.
PRODUCTS = frozenset(
    "linear matmul __matmul__ __rmatmul__ mm bmm mv dot inner vdot outer addmm addmm_ baddbmm addbmm addmv"
    " einsum tensordot chain_matmul bilinear dense batch_matmul".split()
)
CONVOLUTIONS = ("conv",)
# Operators whose results are as far off as what they add up.
_ADDITIVE = frozenset("add __add __radd __iadd sub __sub __rsub __isub subtract rsub lerp".split())
# Operators whose results are sums of the elements of their input.
_WITH_RUNNING_MEAN = frozenset(
    "batch_norm instance_norm native_batch_norm _native_batch_norm_legit sync_batch_norm".split()
)
_TOTALS = frozenset(("sum", "mean"))
# Both results are rounded, so that their distance is that of two independent errors.
_BOTH = math.sqrt(2.0)


class Apart(NamedTuple):
    """A relative L2 distance, and whether it is a lower bound by statistics alone."""

    value: float
    is_bound: bool


_EQUAL = Apart(0.0, True)


def roundoff_of(row: TensorRow) -> float | None:
    """Return the unit roundoff of the coarser side's dtype; None where either is no float."""
    if not row.tensors or row.target is None or row.golden is None:
        return None
    epsilons = epsilon_of(row.target.dtype), epsilon_of(row.golden.dtype)
    return max(epsilons) / 2 if all(epsilons) else None


def operator_of(row: TensorRow) -> str:
    """Return the operator of a row, `Functional.linear`."""
    path, name = row.item.path, row.name
    key = name[: -len(path) - 1] if path else name
    split = split_key(key)
    return split[0].rpartition(".")[0] if split else key


def sum_length(row: TensorRow, rows: Sequence[TensorRow]) -> float:
    """Return how many terms the sums of an output have, by the shapes of the operator's tensors.

    Of a product C = A B it is the inner dimension, sqrt(|A| |B| / |C|), where |A| is the number of elements;
    that holds for its gradients too, which are products. Of a convolution it is the number of elements of
    one filter. Of all else it is the number of elements of the largest input for one of the output.
    """
    size = max(1, math.prod(row.item.shape or ()))
    inputs = sorted(
        (
            math.prod(each.item.shape or ())
            for each in rows
            if not each.is_output and each.item.is_tensor
        ),
        reverse=True,
    )
    if not inputs:
        return 1.0
    last = operator_of(row).rpartition(".")[2]
    if last.startswith(CONVOLUTIONS) and len(rows) > 1:
        filters = [
            each.item.shape or () for each in rows if not each.is_output and each.item.is_tensor
        ]
        weights = [shape for shape in filters if len(shape) >= 3]
        return float(max(1, math.prod(weights[-1][1:]))) if weights else 1.0
    if last in PRODUCTS and len(inputs) > 1:
        return max(1.0, math.sqrt(inputs[0] * inputs[1] / size))
    return max(1.0, inputs[0] / size)


class SumTerms(NamedTuple):
    """How many terms each sum of an output has, and their norm by that of the sums, at least 1."""

    length: float
    cancellation: float


def rounding(
    row: TensorRow, rows: Sequence[TensorRow], terms: SumTerms | None = None
) -> float | None:
    """Return the relative L2 distance that rounding explains; None for what is no float.

    That is sqrt(2) (u + u' sqrt(n)): each result is rounded once to its dtype, whose unit roundoff is u,
    and sums of n terms of random signs lose u' sqrt(n) (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., section 4.2), where u' is that of the dtype in which kernels compute: float32 for
    half types. SumTerms that cancel each other lose digits (`cancellation`). Inputs were rounded once, by
    whatever made them. `terms` are those of an output, where more than its record is known.
    """
    unit = roundoff_of(row)
    if unit is None:
        return None
    if not row.is_output:
        return _BOTH * unit
    computed = min(unit, unit_roundoff("float32"))
    length, cancelled = terms or (sum_length(row, rows), cancellation(row, rows))
    return _BOTH * (unit + computed * math.sqrt(length) * cancelled)


def cancellation(row: TensorRow, rows: Sequence[TensorRow]) -> float:
    """Return by how much the terms of an output's sums cancel each other on the golden side: the norm of what
    is added by the norm of the sums, at least 1.

    It is known where the terms are a tensor of the record: for sums and means, and for gradients of biases
    and of the weights of norms, which add up the gradient that comes in. The gradient of a bias before
    batch norm is 0 but for rounding.
    """
    size = math.prod(row.item.shape or ())
    is_total = operator_of(row).rpartition(".")[2] in _TOTALS
    is_bias = ".backward" in row.name and len(row.item.shape or ()) == 1
    if not row.is_output or not (is_total or is_bias):
        return 1.0
    added = [
        (norm, math.prod(each.golden.shape or ()))
        for each in rows
        if not each.is_output and each.golden is not None and each.golden.is_tensor
        if (norm := each.golden.norm) is not None and math.isfinite(norm)
    ]
    norm, terms = max(added, default=(0.0, 0))
    total = row.golden.norm if row.golden is not None else None
    if not total or not math.isfinite(total) or terms <= size:
        return 1.0
    if operator_of(row).endswith("mean"):
        norm *= size / terms
    return max(1.0, norm / abs(total))


def carried(row: TensorRow, rows: Sequence[TensorRow]) -> float:
    """Return how much larger, for the size of an output, a distance of the inputs may be in it.

    That is `cancellation`, and for the sum of two nearly opposite terms their norm by that of the result.
    """
    largest = cancellation(row, rows)
    total = row.golden.norm if row.golden is not None else None
    if (
        operator_of(row).rpartition(".")[2].rstrip("_") not in _ADDITIVE
        or not row.is_output
        or not total
    ):
        return largest
    size = math.prod(row.item.shape or ())
    for each in rows:
        norm = each.golden.norm if each.golden is not None else None
        if each.is_output or norm is None or not math.isfinite(norm) or not each.item.is_tensor:
            continue
        repeated = math.sqrt(size / max(1, math.prod(each.item.shape or ())))
        largest = max(largest, norm * max(1.0, repeated) / abs(total))
    return largest


def beside_deviation(row: TensorRow, rows: Sequence[TensorRow]) -> float:
    """Return for the running means of a norm how large they are beside the standard deviations, at most 1; 0
    for all else. A mean is the sum of terms of that size, which may cancel, and is subtracted from them."""
    if operator_of(row).rpartition(".")[2] not in _WITH_RUNNING_MEAN or ".forward." not in row.name:
        return 0.0
    part, _, place = row.item.path.partition(".")
    if place not in ("1", "running_mean"):
        return 0.0
    variance = "2" if place == "1" else "running_var"
    other = next((each.golden for each in rows if each.item.path == f"{part}.{variance}"), None)
    norm = row.golden.norm if row.golden is not None else None
    mean = other.mean if other is not None else None
    if not norm or mean is None or not mean > 0.0 or row.golden is None:
        return 0.0
    return min(1.0, norm / math.sqrt(mean * math.prod(row.golden.shape or ())))


def limits_of(row: TensorRow, framework: str = "") -> Allowed | None:
    """Return the factors of `accuracy.standards.auto` for a row, by its operator and the coarser dtype."""
    dtypes = [dtype_of(side.dtype) for side in (row.target, row.golden) if side is not None]
    known = [dtype for dtype in dtypes if dtype is not None and DTYPES[dtype].mantissa_bits]
    if not known:
        return None
    coarsest = min(known, key=lambda dtype: DTYPES[dtype].mantissa_bits)
    return allowed(operator_of(row), coarsest, framework)


def distance_apart(row: TensorRow) -> Apart | None:
    """Return how far both sides are apart: measured, estimated, or at least, by the statistics.

    Max, Min, Mean and Norm cannot change by more than the tensor does: for |t - g| in the L2 norm,
    |d Norm| and |d Max| are at most that, and |d Mean| at most that by sqrt(N). A golden norm that is not
    known, or overflowed, is at most max(|Max|, |Min|) sqrt(N). Where a mask hides the distance, it is that of
    the elements below the mask.
    """
    if row.relative_l2 is not None:
        beside = row.beside.relative_l2 if row.beside is not None else 0.0
        return Apart(max(row.relative_l2, beside), False)
    target, golden = row.target, row.golden
    if target is None or golden is None or not row.tensors or row.reshaped or not row.statistics:
        return None
    if are_same(row.statistics):
        return _EQUAL
    size = max(1, math.prod(golden.shape or ()))
    largest = 0.0
    for statistic in STATISTICS:
        ours, theirs = target.number(statistic.field), golden.number(statistic.field)
        if ours is None or theirs is None or not math.isfinite(ours) or not math.isfinite(theirs):
            continue
        # By halves: the difference of two finite numbers may be infinite.
        largest = max(largest, abs(ours / 2 - theirs / 2) * statistic.distance(size))
    norm = golden.norm
    if norm is None or not math.isfinite(norm):
        ends = [abs(end) for end in golden.ends if end is not None]
        if not ends or not math.isfinite(max(ends)):
            return None
        return Apart(_share(largest, max(ends) / 2, math.sqrt(size)), True)
    return Apart(_share(largest, norm / 2), True)


def _share(part: float, whole: float, times: float = 1.0) -> float:
    """Return part / (whole times), infinite where only the whole is 0."""
    if not whole:
        return math.inf if part else 0.0
    return part / whole / times
