"""How large the terms are that a backward pass adds up, by what its forward pass has saved.

Comes in: the rows of a backward call, and those of its forward record. Goes out: how many terms a sum has,
and by how much they cancel. Called by `auto`. The record of a backward call has the gradients that come in
and those that go out; the tensors that the first are multiplied with are in the record of the forward call.
"""

import math
from collections.abc import Sequence

from ray_precheck.trace.difference.row import TensorRow
from ray_precheck.trace.difference.standards.rounding import (
    CONVOLUTIONS,
    PRODUCTS,
    SumTerms,
    distance_apart,
    operator_of,
    roundoff_of,
)
from ray_precheck.trace.items import Item

# Less their mean and their part along the values, after a division by how these scatter.
_NORMS = frozenset(
    "batch_norm cosine_similarity group_norm instance_norm layer_norm native_batch_norm native_group_norm"
    " native_layer_norm normalize rms_norm".split()
)
# Less their mean, weighted by the result.
_SOFTMAX = frozenset("softmax _softmax softmin".split())
# Terms as large as what comes in: 1 - tanh^2, 1 - sigmoid, a one-hot target less the result.
_AS_LARGE = frozenset(
    "_log_softmax celu elu erf gelu hardswish log_softmax logsigmoid mish selu sigmoid silu softplus"
    " tanh".split()
)
# Means over elements, or over samples, of a difference that may be small.
_LOSSES = frozenset(
    "cross_entropy binary_cross_entropy binary_cross_entropy_with_logits mse_loss l1_loss smooth_l1_loss"
    " huber_loss".split()
)
# Their gradients are worse than rounding by what no tensor of a record shows: gaps between eigenvalues,
# borders, exponentials of large logarithms, poles.
_UNKNOWN = frozenset(
    "atanh corrcoef cov ctc_loss digamma eig eigh eigvals eigvalsh grid_sample grid_sampler_2d"
    " grid_sampler_3d householder_product i1e lgamma log_ndtr logcumsumexp polygamma sinc svd svdvals".split()
)
_ATTENTION = frozenset(("scaled_dot_product_attention", "multi_head_attention_forward"))
_WITH_BIAS = frozenset("linear dense bilinear conv1d conv2d conv3d".split()) | frozenset(
    f"conv_transpose{dimensions}d" for dimensions in (1, 2, 3)
)
_FACTORS = frozenset(
    "mul multiply __mul__ __rmul__ __imul__ mul_ prod div true_divide __truediv__".split()
)


def saved_agree(saved: Sequence[TensorRow]) -> bool:
    """Return whether it is known how far the tensors of a forward record are apart, those of other dtypes
    than floats are equal, and the terms of its gradients are known."""
    for row in saved:
        if operator_of(row).rpartition(".")[2] in _UNKNOWN:
            return False
        if not row.tensors:
            continue
        if row.reshaped or distance_apart(row) is None:
            return False
        if roundoff_of(row) is None and row.elements is not None and row.elements.unequal:
            return False
    return any(row.tensors for row in saved)


def terms_of_gradient(
    row: TensorRow, rows: Sequence[TensorRow], saved: Sequence[TensorRow]
) -> SumTerms:
    """Return the terms of which an output of a backward call is the sum, on the golden side."""
    coming = max(_golden(rows, outputs=False), key=_norm, default=None)
    result = row.both[1]
    total, shape = _norm(result), result.shape or ()
    if coming is None:
        return SumTerms(1.0, 1.0)
    given, gave = _golden(saved, outputs=False), _golden(saved, outputs=True)
    operator = operator_of(row).rpartition(".")[2]
    size, brought = _size(result), _size(coming)
    length, scale = max(1.0, brought / size), 1.0
    others = [each for each in given if each.shape != result.shape] or given
    other = max(others, key=_size, default=None)
    is_product = operator in PRODUCTS or operator.startswith(CONVOLUTIONS)
    if is_product and other is not None and not (len(shape) == 1 and operator in _WITH_BIAS):
        length = _inner(operator, result, coming, other)
        scale = _norm(other) * math.sqrt(length * size / (brought * _size(other)))
    elif operator in _NORMS and given and size == _size(given[0]):
        widest = _norm(max(gave, key=_size, default=coming))
        widest = math.sqrt(brought) if operator == "cosine_similarity" else widest
        scatter = _scatter(given[0])
        # Of equal values, or a single one, all that is left is 0 but for rounding.
        scale = widest / scatter if scatter else math.inf
    elif operator in _SOFTMAX:
        scale = max(map(_largest, gave), default=1.0)
    elif operator in _LOSSES and given and brought < size:
        terms = size / shape[1 if len(shape) > 1 else 0] if operator == "cross_entropy" else size
        scale = 1 / math.sqrt(terms) if operator == "cross_entropy" else _norm(given[0]) / terms
    elif operator in _ATTENTION and other is not None:
        scale = max(1.0, _largest(other) ** 2 * math.sqrt(shape[-1] if shape else 1))
    elif operator in _FACTORS and other is not None and size < brought:
        scale = _largest(other)
    elif operator not in _AS_LARGE and size >= brought:
        return SumTerms(length, 1.0)
    whole = _norm(coming) * scale
    if not total:
        left = _norm(row.both[0]) / math.sqrt(length) / (roundoff_of(row) or 1.0)
        return SumTerms(length, math.inf if left <= whole else 1.0)
    return SumTerms(length, max(1.0, whole / total))


def _inner(operator: str, result: Item, coming: Item, other: Item) -> float:
    """Return how many products each element of a gradient is the sum of."""
    if operator.startswith(CONVOLUTIONS):
        # The gradient of a filter sums over places, that of a picture over the elements of filters.
        is_filter = _size(other) > _size(result)
        shape = (coming if is_filter else other).shape or ()
        return max(1.0, _size(coming if is_filter else other) / (shape[1] if len(shape) > 1 else 1))
    return max(1.0, math.sqrt(_size(coming) * _size(other) / _size(result)))


def _golden(rows: Sequence[TensorRow], *, outputs: bool) -> list[Item]:
    """Return the golden tensors of floats among the inputs or the outputs."""
    return [
        row.golden
        for row in rows
        if row.golden is not None and row.is_output is outputs and roundoff_of(row) is not None
    ]


def _size(item: Item) -> int:
    return max(1, math.prod(item.shape or ()))


def _norm(item: Item) -> float:
    norm = item.norm
    return norm if norm is not None and math.isfinite(norm) else 0.0


def _largest(item: Item) -> float:
    ends = [end for end in item.ends if end is not None]
    return max((abs(end) for end in ends if math.isfinite(end)), default=1.0)


def _scatter(item: Item) -> float:
    """Return the norm of a tensor less its mean."""
    mean = item.mean or 0.0
    return math.sqrt(max(0.0, _norm(item) ** 2 - _size(item) * mean**2))
