"""`auto`: an error where two runs are further apart than rounding, or the noise of honest runs, explains.

Comes in: the rows of a pair of operators. Goes out: their results. Called by `registry`.

The distance is relative L2, ||t - g|| / ||g||: measured from files, estimated from sketches, or else a lower
bound by the statistics. What explains it is the larger of the rounding of this operator (`base`) and the
noise floor, which is the same distance of two golden runs. A row is beyond it where the distance is more than
a small multiple of that; the multiple is the one of `accuracy.standards.auto` for the operator and the dtype,
and at least 4, because a norm of two runs scatters less than the error of one element.

Where the noise was measured, what is beyond it is an error. Where it was not, nobody knows how far honest
runs of this model are apart at this depth: what is beyond is an error if the inputs do not explain it (8
times their largest distance), or if half of the digits are lost; else it is a warning. Of inputs the maker is
not known, so that they are an error by the digits alone. What comes from upstream may have been rounded to a
coarser dtype there, so that the digits are those of bfloat16 unless the caller says otherwise (`unit`).

Masks are nearly all of a norm: where the magnitudes have a gap below them (`elements`), the elements below
the gap are judged by themselves.

Always an error: NaN and infinities that are not the same on both sides, other shapes, another kind of dtype,
other arguments. Integers and truth values have to be equal. They are a warning where a comparison of floats
may have turned over: an operator whose float inputs differ, or an input whose maker is not known, unless
the noise of that row was measured and is 0.

How large the terms are that a backward pass adds up, by what its forward pass has saved. The record of a
backward call has the gradients that come in and those that go out; the tensors that the first are
multiplied with are in the record of the forward call.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ray_precheck.numerics.arrays import unit_roundoff
from ray_precheck.operators.exact import exactness
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.trace.difference.elements import BesideMask
from ray_precheck.trace.difference.measuring import dtype_of
from ray_precheck.trace.difference.rows import (
    ERROR,
    WARNING,
    ComparisonMode,
    TensorRow,
    are_same,
    digest_cell,
    statistics_of,
)
from ray_precheck.trace.difference.standards.base import (
    CONVOLUTIONS,
    PRODUCTS,
    Apart,
    SumTerms,
    beside_deviation,
    carried,
    distance_apart,
    index_of,
    limits_of,
    odd_sentence,
    operator_of,
    rounding,
    roundoff_of,
    shortened,
    sum_length,
)
from ray_precheck.trace.difference.unsteady import share_of_rounding
from ray_precheck.trace.items import GRADIENTS, Item

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


# Honest runs of ten thousand pairs of captured rows differ by up to 3 times the other's distance where
# they have many elements; the factors of the precheck count on from there.
LEAST_FACTOR = 4.0
# An operator may make a relative error so much larger without a fault: by cancellation, exp, division.
AMPLIFIED = 8.0
# Of an element of an input: four times the unit roundoff of float32.
_TINY = 4.0 * unit_roundoff("float32")
# Operators of floats whose results jump: the angle of a negative number, by the sign of its imaginary part.
JUMPING = frozenset(
    "angle arctan2 atan2 ceil floor floor_divide fmod frac heaviside remainder round sgn sign trunc".split()
)
# Operators whose gradients jump where an input crosses a border, or another element becomes the largest.
BENT = frozenset(
    "abs amax amin clamp clamp_max clamp_min clip cummax cummin hardshrink hardsigmoid hardswish hardtanh"
    " kthvalue l1_loss leaky_relu max maximum median min minimum prelu relu relu6 rrelu softshrink sort"
    " threshold topk".split()
) | {f"{kind}_pool{number}d" for kind in ("max", "adaptive_max") for number in (1, 2, 3)}


def judge_by_auto(
    rows: Sequence[TensorRow], mode: ComparisonMode, unit: float = unit_roundoff("bfloat16")
) -> None:
    """Judge each row, by what the inputs of the operator bring.

    `unit` is the unit roundoff of the coarsest dtype upstream: bfloat16's, where the caller knows no better.
    """
    distances = {id(row): distance_apart(row) for row in rows}
    lost = _lost_in_lists(rows, distances)
    inputs = [row for row in rows if not row.is_output and roundoff_of(row) is not None]
    unsteady = [row for row in inputs if _is_unsteady(row, distances[id(row)])]
    left_out = lost | {id(row) for row in unsteady}
    brought = _furthest(distances[id(row)] for row in inputs if id(row) not in left_out)
    for row in rows:
        if not row.tensors:
            _judge_value(row)
        elif row.reshaped:
            row.note(ERROR, "the shapes differ")
        elif mode is ComparisonMode.DIGESTS:
            _judge_digests(row)
        elif odd := odd_sentence(row):
            row.note(ERROR, odd)
        elif roundoff_of(row) is None:
            _judge_exact(row, brought)
        elif id(row) not in lost and not _is_passed_on(row, rows, distances):
            added = (_added(row, each, distances[id(each)]) for each in unsteady)
            both = max(brought, *added) if unsteady and row.is_output else brought
            _judge_floats(row, rows, distances[id(row)], max(both, row.inside), unit)


def _furthest(distances: Iterable[Apart | None]) -> float:
    """Return the largest distance that is known."""
    return max(
        (each.value for each in distances if each is not None and not math.isnan(each.value)),
        default=0.0,
    )


def _lost_in_lists(rows: Sequence[TensorRow], distances: Mapping[int, Apart | None]) -> set[int]:
    """Return the rows of tensors in lists, as gradients in `_foreach_norm` or an optimizer, that are no
    further off than the whole list is rounded: gradients of nothing but rounding, as before batch norm."""
    lists: dict[str, list[TensorRow]] = {}
    for row in rows:
        parent = row.item.path.rpartition(".")[0]
        is_listed = "." in parent or "_foreach_" in row.name or row.item.part == GRADIENTS
        if is_listed and not row.reshaped and roundoff_of(row) is not None:
            lists.setdefault(parent, []).append(row)
    found = set()
    for each in lists.values():
        whole = math.hypot(*(norm for row in each if (norm := _golden_norm(row)) is not None))
        for row in each if len(each) > 1 and math.isfinite(whole) else ():
            length = _length(row, distances[id(row)])
            share = share_of_rounding(roundoff_of(row) or 0.0)
            if length is not None and length <= share * whole:
                found.add(id(row))
    return found


def _is_unsteady(row: TensorRow, found: Apart | None) -> bool:
    """Return whether it is a parameter that honest updates, of nothing but rounding, have apart so far."""
    length = _length(row, found) if row.slack else None
    return length is not None and 0.0 < length <= row.slack


def _added(row: TensorRow, unsteady: TensorRow, found: Apart | None) -> float:
    """Return the distance that an unsteady parameter brings to an output: it differs wholly, but is as good
    as nothing beside what a bias is added to."""
    length, total = _length(unsteady, found) or 0.0, _golden_norm(row)
    sizes = [max(1, math.prod(each.item.shape or ())) for each in (row, unsteady)]
    added = length * math.sqrt(max(1.0, sizes[0] / sizes[1])) / total if total else math.inf
    return min(added, found.value) if found is not None else 0.0


def _is_passed_on(
    row: TensorRow, rows: Sequence[TensorRow], distances: Mapping[int, Apart | None]
) -> bool:
    """Return whether the operator moves or chooses the given numbers, and its output is no further off than
    its inputs are: it has no error of its own, however small what it chose is beside the rest."""
    known = exactness(operator_of(row))
    if not row.is_output or known is None or not known.floats or ".backward" in row.name:
        return False
    if _is_one_of(row, JUMPING):
        return False
    inputs = [each for each in rows if not each.is_output and roundoff_of(each) is not None]
    size = max((math.prod(each.item.shape or ()) for each in inputs), default=1)
    repeated = math.sqrt(max(1.0, math.prod(row.item.shape or ()) / max(size, 1)))
    known_lengths = (_length(each, distances[id(each)]) for each in inputs)
    brought = max((each for each in known_lengths if each is not None), default=0.0)
    own = _length(row, distances[id(row)])
    return own is not None and own <= AMPLIFIED * repeated * brought


def _length(row: TensorRow, found: Apart | None) -> float | None:
    """Return how long the difference of both sides is, None where that is not known."""
    norm = _golden_norm(row)
    if norm == 0 and found is not None and row.target is not None:
        return row.target.norm
    if found is None or norm is None or not math.isfinite(norm) or not math.isfinite(found.value):
        return None
    return found.value * norm


def _golden_norm(row: TensorRow) -> float | None:
    return row.golden.norm if row.golden is not None else None


@dataclass(frozen=True, slots=True)
class _Excess:
    """A difference that is more than rounding explains.

    `floor` is what rounding explains of it, or the noise of golden runs where that `is_noise`. `brought` is
    how far the inputs differ, `cancelled` how often larger the terms are than their sum, `bent` how far a
    gradient may be off because inputs crossed a border. `is_known`: what a backward pass saved of the
    forward one agrees. `spread` is how large a running mean is beside the deviations, 0 of all else.
    """

    found: Apart
    floor: float
    is_noise: bool
    noise: float | None
    beside: BesideMask | None
    brought: float
    cancelled: float
    bent: float
    is_known: bool
    spread: float

    @property
    def explained(self) -> float:
        """What the inputs explain. Terms that cancel in a sum cancel less of their errors."""
        return AMPLIFIED * self.brought * self.cancelled


def _judge_floats(
    row: TensorRow, rows: Sequence[TensorRow], found: Apart | None, brought: float, coarsest: float
) -> None:
    excess = _excess(row, rows, found, brought)
    if excess is None:
        return
    found, words = excess.found, _measured_words(row, excess)
    inherited = row.is_output and found.value <= excess.explained
    has_others = row.inside > _factor(row) * excess.floor
    if has_others and row.inside >= excess.brought:
        words += f"; it got other weights: parameters inside of it differ by {row.inside:.4g}"
    elif inherited:
        words += f"; the inputs differ by {excess.brought:.4g}"
    unit = roundoff_of(row) or 0.0
    upstream = (
        inherited or has_others or not row.is_output or _came_from_elsewhere(row, rows, excess)
    )
    lost = math.sqrt(max(unit, coarsest) if upstream else unit)
    # A value jumps where an input crosses a border; a sum may be nothing but what its terms are off.
    is_open = inherited and excess.explained > AMPLIFIED * excess.brought
    if found.value <= AMPLIFIED * excess.bent:
        is_open = True
        words += "; it jumps where a forward input crosses a border"
    if row.is_output and excess.brought and _is_one_of(row, JUMPING):
        is_open = True
        words += "; it jumps where its input crosses a border"
    # Nobody knows how large what an input came from was: less than the rounding of a 1 may be nothing of it.
    length, size = _length(row, found), math.prod(row.item.shape or ())
    is_tiny = not row.is_output and length is not None and length <= _TINY * math.sqrt(size)
    if is_unsteady := _is_unsteady(row, found):
        words += "; its gradient is rounding alone, of which the optimizer makes whole steps"
    # A module adds up more than its shapes say; its operators have records of their own.
    is_module = row.name.startswith(("Module.", "Cell."))
    mild = excess.noise is None and (is_open or is_tiny or is_unsteady or found.value <= lost)
    is_masked = excess.beside is not None
    unknown = upstream or is_open or is_unsteady or found.is_bound or is_masked or is_module
    row.note(WARNING if mild and unknown else ERROR, words)


def _excess(
    row: TensorRow, rows: Sequence[TensorRow], found: Apart | None, brought: float
) -> _Excess | None:
    """Return the difference of a row; None where nothing differs, or rounding explains it."""
    if found is None or not found.value:
        return None
    if spread := beside_deviation(row, rows):
        found = found._replace(value=found.value * spread)
    rounded = rounding(row, rows)
    if rounded is None or (row.elements is not None and row.elements.max_abs < _flushed(row)):
        return None
    beside = row.beside if row.beside and found.value == row.beside.relative_l2 else None
    # The noise of golden runs was measured with the mask.
    noise = row.noise if beside is None else None
    floor = max(rounded, noise or 0.0)
    if found.value <= _factor(row) * floor:
        return None
    cancelled = carried(row, rows)
    saved = row.saved() if row.is_output else ()
    bent = 0.0
    if is_known := saved_agree(saved):
        terms = terms_of_gradient(row, rows, saved)
        cancelled = max(cancelled, terms.cancellation)
        terms = SumTerms(max(terms.length, sum_length(row, rows)), cancelled)
        floor = max(floor, rounding(row, rows, terms) or 0.0, _coarsest([*rows, *saved]))
        apart = (distance_apart(each) for each in saved if roundoff_of(each) is not None)
        brought = max(brought, far := _furthest(apart))
        if found.value <= _factor(row) * floor:
            return None
        if _is_one_of(row, BENT):
            bent = _crossing(row, found, far, brought)
    is_noise = (noise or 0.0) > rounded
    return _Excess(
        found, floor, is_noise, noise, beside, brought, cancelled, bent, is_known, spread
    )


def _measured_words(row: TensorRow, excess: _Excess) -> str:
    found, beside = excess.found, excess.beside
    least = "at least " if found.is_bound else "about " if row.estimated else ""
    basis = "noise of golden runs" if excess.is_noise else "rounding"
    where = f" beside {beside.masked} masked elements" if beside is not None else ""
    words = (
        f"relative L2{where} is {least}{found.value:.4g}, {found.value / excess.floor:.3g} times what"
        f" {basis} explains ({excess.floor:.4g})"
    )
    if row.elements is not None and row.elements.worst >= 0:
        place = index_of(row, row.elements.worst)
        words += f"; the largest difference, {row.elements.max_abs:.4g}, is at {place}"
    return words


def _came_from_elsewhere(row: TensorRow, rows: Sequence[TensorRow], excess: _Excess) -> bool:
    """Return whether what made an output differ may be what its inputs do not show.

    What a backward pass saved of the forward one may not be known. Adam and its like divide by the root of
    the second moment, which makes a whole step of the rounding of a gradient that is nearly zero. And the
    statistics of an input do not show how far sums over its rows have moved: the means of its channels, the
    gradient of a bias; or how far a bias that is not steady has moved it. So it is with inputs of which there
    are statistics alone, beside an output that is measured: ranks had parts of them.
    """
    is_partly = not excess.found.is_bound and any(
        each.relative_l2 is None
        for each in rows
        if not each.is_output and roundoff_of(each) is not None
    )
    if row.is_late and is_partly:
        return True
    is_backward = ".backward" in row.target_name
    is_sum = is_backward and len(row.item.shape or ()) == 1
    if excess.found.is_bound and (excess.spread > 0.0 or row.is_late or is_sum):
        return True
    return (is_backward or row.target_name.startswith("Optimizer.")) and not excess.is_known


def _is_one_of(row: TensorRow, operators: frozenset[str]) -> bool:
    return operator_of(row).rpartition(".")[2].rstrip("_") in operators


def _crossing(row: TensorRow, found: Apart, far: float, brought: float) -> float:
    """Return how far a gradient may be off, relative to its norm, because forward inputs that are `far` apart
    cross borders; 0 where more elements differ than can have crossed one.

    Of n elements about n d lie within a relative distance d of a border: in the norm, that is the root of d.
    A difference of the length l whose largest element is m has at least (l / m)^2 elements; and where the
    inputs differ by d, about n 1000 d elements are so small that they are off by a thousandth.
    """
    length, elements = _length(row, found), row.elements
    if elements is not None and elements.max_abs and length is not None:
        crossed = AMPLIFIED * (1.0 + far * elements.size)
        off = elements.numbers - elements.thousandth
        if (length / elements.max_abs) ** 2 > crossed:
            return 0.0
        if off > crossed + AMPLIFIED * 1000.0 * brought * elements.size:
            return 0.0
    return math.sqrt(far)


def _coarsest(rows: Sequence[TensorRow]) -> float:
    """Return the rounding of the coarsest half type: the sums of a gradient in float32 may be made in it."""
    units = [unit for row in rows if (unit := roundoff_of(row)) is not None]
    return math.sqrt(2.0) * max(
        (unit for unit in units if unit > unit_roundoff("float32")), default=0.0
    )


def _factor(row: TensorRow) -> float:
    rule = limits_of(row)
    size = max(1, math.prod(row.item.shape or ()))
    if rule is None:
        return LEAST_FACTOR
    return max(LEAST_FACTOR, rule.rmse) * (1.0 + rule.scatter / math.sqrt(size))


def _flushed(row: TensorRow) -> float:
    """Return the magnitude below which honest kernels may have 0 instead."""
    rule = limits_of(row)
    return rule.flushed if rule is not None else 0.0


def _judge_exact(row: TensorRow, brought: float) -> None:
    """Judge integers and truth values, and those against floats."""
    kinds = [
        DTYPES[dtype].kind if (dtype := dtype_of(side.dtype)) else ""
        for side in (row.target, row.golden)
        if side is not None
    ]
    if ("float" in kinds or "complex" in kinds) and len(set(kinds)) > 1:
        row.note(ERROR, "floats on one side, and integers or truth values on the other")
        return
    if row.elements is not None:
        if not row.elements.unequal:
            return
        words = (
            f"{row.elements.unequal} of {row.elements.size} elements differ, the furthest apart at"
            f" {index_of(row, row.elements.worst)}"
        )
    elif are_same(row.statistics):
        return
    else:
        words = "the statistics differ"
    turned = brought > 0 if row.is_output else row.noise is None or row.noise > 0
    if turned:
        words += "; a comparison of floats that differ may have turned over"
    row.note(WARNING if turned else ERROR, words)


def _judge_digests(row: TensorRow) -> None:
    """Judge digests: they do not tell how far floats are apart."""
    if digest_cell(row.target) == digest_cell(row.golden):
        return
    if roundoff_of(row) is None:
        row.note(ERROR, "the digests differ")
    else:
        row.note(WARNING, "the digests differ, which does not show how far the values are apart")


# What belongs to the machine and not to the numbers.
_PLACES = ("device", "ProcessGroup", "dtype")
_DEVICES = ("cpu", "npu", "cuda", "gpu", "ascend")


def _judge_value(row: TensorRow) -> None:
    target, golden = row.both
    ours, theirs = statistics_of(target)[0], statistics_of(golden)[0]
    if target.is_tensor != golden.is_tensor:
        row.note(ERROR, "a tensor on one side only")
        return
    texts = str(ours), str(theirs)
    if texts[0] == texts[1]:
        return
    devices = all(text.lower().startswith(_DEVICES) for text in texts)
    if devices or target.type_name.rpartition(".")[2] in _PLACES:
        return
    # A number that was computed from tensors, such as a loss.
    computed = row.is_output and isinstance(ours, float) and isinstance(theirs, float)
    near = computed and math.isclose(ours, theirs, rel_tol=math.sqrt(unit_roundoff("float32")))
    shown = f"the value is {shortened(texts[0])}, in the golden capture {shortened(texts[1])}"
    row.note(WARNING if near else ERROR, shown)
