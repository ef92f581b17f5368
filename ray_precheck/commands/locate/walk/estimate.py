"""The own error of a record that cannot be replayed: estimated by amplification.

Comes in: a record, how its values differ from the golden run's (by files, sketches or statistics), and, of
a backward record, the forward one. Goes out: an `OwnError`, whose unit is the difference that the inputs and
one rounding explain. Called by `walk`.

A record that rounds honestly gives a relative difference of about that of its inputs times its amplification.
For sums and differences that is the sum of the inputs' absolute differences over the output's norm (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., section 1.7: cancellation). For normalisations it is
the share of the norm that the mean takes away, and backward the gradient that would be there without
cancellation over the one that is. For exponentials it is the largest exponent. For all others it is about 1.
An optimizer that divides a gradient by its own size moves an element by its learning rate, whatever rounding
left of a gradient that is nearly 0 (`explained_update`).

How values differ by their sketches or statistics, where files of tensors are not there. A sketch estimates
the L2 distance (`numerics.sketch`). Statistics cannot: their largest relative difference stands for it,
each against the size that it has in a tensor of that norm.

Which difference between two honest runs rounding explains, where no call was replayed; and the size of a
value, as its statistics tell it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ray_precheck.commands.locate.walk.nouns import OwnError, ValueEvidence
from ray_precheck.numerics.arrays import epsilon_of, machine_epsilon
from ray_precheck.numerics.statistics import FIELDS, MAX, MIN, NORM, STATISTICS
from ray_precheck.trace.difference.measuring import Source as CaptureSource
from ray_precheck.trace.difference.measuring import sketched_distance
from ray_precheck.trace.flow import FlowRecord
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import BACKWARD

# Two honest kernels that got the same differ by so many units in the last place, as a share of the norm: wide
# ones sum in other orders; those of half types sum in float32, so that few elements are rounded otherwise.
_FLOOR_UNITS, _HALF_UNITS = 4.0, 0.25
# So many times what is explained stands for a suspect: honest pairs have up to 12.7 (a sum in place whose
# largest element is another one). In half types rounding is nearly all of a difference, and scatters less.
_SUSPICIOUS, _SUSPICIOUS_HALF = 14.0, 4.0
# The same for gradients that were added up outside of what is captured.
_ADDED_OUTSIDE = 10.0
# Kernels add the rows of a gradient of weights in accumulators of a half type, one for each thread.
_NARROW_UNITS = 1.0
_MOST_LOST = 0.25
# How many rows a gradient is taken for the sum of, of which only the shape is known.
_UNKNOWN_ROWS = 128.0
# How much of the gradient of a vector may cancel, where its parts are not known.
_CANCELLED = 16.0
# A value that no captured record gave is compared with those that the records around it gave, whose
# differences scatter: two times that of any of them is beyond it (see scripts.locate_faults).
STANDS_OUT = 3.0
# Weights, inputs and masks are the same bits in honest runs at the first step. Of the same bits, the sums
# that make statistics and sketches differ by so much with another number of threads.
SAME_SUMS = 1e-5
# A weight that differs by so much was moved by an optimizer that makes whole steps of rounding (`unsteady`).
STEPPED = 1e-4


@cache
def floor_of(dtype: str) -> float:
    """Return the relative difference that two honest kernels may have in one call, at least."""
    return (_HALF_UNITS if has_half_digits(dtype) else _FLOOR_UNITS) * epsilon_of(dtype)


@cache
def narrow_sum_of(dtype: str, rows: float = 1.0) -> float:
    """Return the relative difference of two honest sums of so many rows with accumulators of a dtype.

    A running sum of n terms of one sign errs by up to n roundings (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., section 4.2), and what is below half a unit of the sum is lost: kernels of
    one and of two threads differ by an eighth of that (scripts.locate_faults), up to the sum itself.
    """
    if not has_half_digits(dtype):
        return _FLOOR_UNITS * epsilon_of(dtype)
    return max(_NARROW_UNITS * epsilon_of(dtype), min(_MOST_LOST, rows * epsilon_of(dtype) / 16))


@cache
def suspicious(dtype: str) -> float:
    """Return how many times what is explained makes a difference a suspect."""
    return _SUSPICIOUS_HALF if has_half_digits(dtype) else _SUSPICIOUS


@cache
def has_half_digits(dtype: str) -> bool:
    """Return whether a floating dtype has at most the digits of float16."""
    return epsilon_of(dtype) >= machine_epsilon("float16")


def stands_out(
    difference: float, expected: float, dtype: str, *, is_gradient: bool, is_vector: bool = False
) -> bool:
    """Return whether a relative difference is beyond what is expected of it; NaN is not.

    Gradients are added up outside of what is captured, and cancel: they count as an estimate does. One that
    `is_vector`, of a bias, is the sum of rows, perhaps of several calls whose parts cancel: those of a
    discriminator, for pictures that are real and that are not.
    """
    if is_gradient:
        least = narrow_sum_of(dtype, _UNKNOWN_ROWS if is_vector else 1.0)
        if is_vector and not has_half_digits(dtype):
            least *= _CANCELLED
        return difference > _ADDED_OUTSIDE * max(expected, least)
    return difference > STANDS_OUT * max(expected, floor_of(dtype))


def is_other(difference: float, *, by_sums: bool) -> bool:
    """Return whether a value that both runs were given is another one in the target.

    `by_sums`: its statistics or sketches tell.
    """
    return difference > (SAME_SUMS if by_sums else 0.0)


_PLACEMENTS = "placements"
# So far apart are tensors whose elements have changed places, at least.
_MOVED, _REORDERED = 1e-3, "the same values in another order"
# Values beyond this stand for a mask of attention: their norm says nothing of the values beside them.
MASKED = 1e30


def is_masked(item: Item) -> bool:
    """Return whether the norm of a value is that of a mask of attention in it."""
    element = item.element or {}
    high, low = element.get(MAX), element.get(MIN)
    if type(high) is not float or type(low) is not float:  # nearly all are
        high, low = item.ends
    return (high is not None and abs(high) > MASKED) or (low is not None and abs(low) > MASKED)


def norm_of(item: Item) -> float:
    """Return the norm, 0 where it is not known or not finite."""
    found = item.norm
    return found if found is not None and math.isfinite(found) else 0.0


def count_of(item: Item) -> int:
    """Return how many elements a value has, at least 1."""
    return max(1, math.prod(item.shape or ()))


def rms_of(item: Item) -> float:
    """Return the root mean square of the elements."""
    return norm_of(item) / math.sqrt(count_of(item))


_SUMS = ("add", "sub", "sum", "mean", "cumsum", "addmm", "baddbmm")
_CENTRED = ("norm", "var", "std")
# Which change the means that they keep of their channels.
_MOVING, _RUNNING_MEANS = ("batch_norm", "instance_norm"), ("changed.1", "changed.running_mean")
_EXPONENTIALS = ("exp", "softmax", "logsumexp", "cross_entropy", "sigmoid")
# Whose gradients of weights are sums over rows or positions.
_ADDED_UP = ("norm", "embedding", "__getitem__", "conv")
_OPTIMIZER = "Optimizer."
# Which are many operators in one: each of them rounds to a half type.
_COMPOSED = ("lstm", "gru", "rnn", "multi_head_attention")
_KINKED = frozenset(
    """relu relu6 leaky_relu prelu rrelu selu threshold hardtanh hardswish hardsigmoid hardshrink
    softshrink clamp clip abs max min amax amin maximum minimum sort topk median""".split()
)
# Which give values that they get, and compute none.
_VIEWS = frozenset(
    """getitem chunk detach diagonal expand expand_as flatten movedim moveaxis narrow permute ravel reshape
    select split squeeze swapaxes swapdims t tensor_split transpose unbind unflatten unsqueeze view
    view_as""".split()
)
# Where fewer elements are expected to change their side of a kink, it counts as none. Statistics show the
# difference of single elements, of which the root mean square is up to ten times as large.
_FEWEST_FLIPS = 0.005


@dataclass(slots=True)
class Differences:
    """A record with the differences of its values, by their paths.

    `carried` has those of inputs whose norm is that of a mask: the largest difference on the way to them.
    `floor` is the relative rounding of half types on the way to the record.
    """

    record: FlowRecord
    values: Mapping[str, ValueEvidence]
    carried: Mapping[str, float] = field(default_factory=dict)
    floor: float = 0.0
    _inputs: list[tuple[Item, float]] | None = field(default=None, init=False)

    def of(self, item: Item) -> float:
        """Return the difference of a value, NaN where it is not known."""
        found = self.values.get(item.path)
        return math.nan if found is None else found.difference

    def slack(self, item: Item) -> float:
        """Return how much of a difference one element that was rounded otherwise explains."""
        found = self.values.get(item.path)
        return 0.0 if found is None else found.slack

    def inputs(self) -> Sequence[tuple[Item, float]]:
        """Return the inputs whose differences are known."""
        if self._inputs is None:
            self._inputs = []
            for item in self.record.inputs:
                found = self.values.get(item.path)
                if found is None or found.difference != found.difference:
                    continue
                carried = self.carried.get(item.path, 0.0) if self.carried else 0.0
                self._inputs.append((item, max(found.difference, carried)))
        return self._inputs


def estimated_error(own: Differences, forward: Differences | None = None) -> OwnError | None:
    """Return an estimate of a record's own error; None where no output of both is known to differ or not.

    `forward` is the forward record of a backward one, whose values it has kept.
    """
    record = own.record
    worst: tuple[float, float, Item] | None = None
    for item in record.outputs:
        difference = own.of(item)
        if math.isnan(difference) or not floor_of(item.dtype):
            continue
        least = _least(own, item) * _summed(own, item)
        explained = max(_explained(own, forward, item) * _summed(own, item), least)
        if difference == math.inf and item.is_finite is False and _got_finite(own, forward):
            explained = floor_of(item.dtype)  # It has no norm to estimate an amplification with.
        share = (difference - own.slack(item)) / explained
        if not math.isnan(share) and (worst is None or share > worst[0]):
            worst = (share, explained, item)
    if worst is None:
        return None
    share, explained, output = worst
    dtype = _computed_in(own, output)
    inherited = max((each for _, each in own.inputs()), default=0.0) / floor_of(dtype)
    is_guilty = share > suspicious(dtype)
    message = ""
    if is_guilty:
        message = f"{_in_words(own, output, explained)}: an estimate, as it was not replayed"
    return OwnError(
        "error" if is_guilty else "pass",
        share,
        inherited,
        output=output.path,
        message=message,
        is_estimate=True,
    )


def _in_words(own: Differences, output: Item, explained: float) -> str:
    """Return how a suspicious output differs."""
    difference = own.of(output)
    if math.isfinite(difference):
        return (
            f"{output.path} differs by {difference:.3g} of its norm, where its inputs and rounding"
            f" explain {explained:.3g}"
        )
    other = "NaN or infinities" if output.is_finite is False else "shape, or finite values,"
    return f"{output.path} has other {other} than the golden run's, which its inputs do not explain"


def _got_finite(own: Differences, forward: Differences | None) -> bool:
    """Return whether all values of a record were finite before its own, those that were kept for it, too."""
    got = list(own.record.inputs)
    if forward is not None:
        got += [*forward.record.inputs, *forward.record.outputs]
    return not any(item.is_finite is False for item in got)


def _computed_in(own: Differences, output: Item) -> str:
    """Return the dtype in which an output was computed: of a gradient the coarsest of those that came in.

    That of a weight of float32 is one of half types, widened, where autocast has cast the weight, or where
    a normalisation of a half type has such weights.
    """
    if own.record.entry.direction != BACKWARD:
        return output.dtype
    coming = (item.dtype for item in own.record.inputs if item.is_tensor)
    return max([output.dtype, *coming], key=epsilon_of)


def _least(own: Differences, output: Item) -> float:
    """Return the relative difference that rounding explains, whatever the inputs."""
    entry, dtype = own.record.entry, _computed_in(own, output)
    name = entry.call.lower()
    if entry.key.startswith(_OPTIMIZER) or _is_of(name, _COMPOSED):
        # Each element of a half type is rounded more than once.
        return max(own.floor, narrow_sum_of(dtype))
    if entry.direction == BACKWARD and _is_of(name, _ADDED_UP):
        return max(own.floor, narrow_sum_of(dtype, _rows(own, output)))
    return max(own.floor, floor_of(dtype))


def _rows(own: Differences, output: Item) -> float:
    """Return how many rows a gradient of a weight is the sum of, 1 for other outputs."""
    coming = next((item for item in own.record.inputs if item.is_tensor), None)
    if coming is None or len(output.shape or ()) != 1:
        return 1.0
    return max(1.0, count_of(coming) / count_of(output))


def _explained(own: Differences, forward: Differences | None, output: Item) -> float:
    """Return the relative difference of an output that the inputs' differences explain."""
    record = own.record
    name = record.entry.call.rpartition(".")[0].rpartition(".")[2].strip("_").lower()
    given = own.inputs()
    largest = max((each for _, each in given), default=0.0)
    amplification = _amplification(name, given)
    norm = output.norm
    if record.entry.key.startswith(_OPTIMIZER):
        return explained_update(record, given, output)
    if forward is not None and record.entry.direction == BACKWARD:
        kept = [each for _, each in forward.inputs()]
        kept += [each for item in forward.record.outputs if (each := forward.of(item)) == each]
        largest = max([largest, *kept])
        amplification = max(amplification, _cancelled(name, own, forward, output))
        amplification *= _amplification(name, forward.inputs())
        if _is_kinked(name):
            largest = max(largest, _flipped(forward) / suspicious(_computed_in(own, output)))
    elif norm and name in _VIEWS and given and math.isfinite(norm):
        # Of a part that differs as much as the whole does.
        return largest * max(1.0, norm_of(given[0][0]) / norm)
    elif norm and _is_of(name, _MOVING) and output.path in _RUNNING_MEANS and given:
        # The means of channels move by what the values move, and may be small beside these.
        values = given[0][0]
        return largest * max(1.0, rms_of(values) * math.sqrt(count_of(output)) / norm)
    elif norm and _is_of(name, _SUMS) and math.isfinite(norm):
        absolute = sum(difference * norm_of(item) for item, difference in given)
        return max(largest, absolute / norm)
    return largest * amplification


def _flipped(forward: Differences) -> float:
    """Return how far a gradient differs where the sides of a kink, or the places of maxima, may be others.

    Of elements that differ by a share d of their size about the share d lies so near to the kink that
    their gradient may come and go. Where that is no element in so many tensors, none does.
    """
    worst = 0.0
    for item, difference in forward.inputs():
        count = count_of(item)
        if item.is_tensor and difference * count >= _FEWEST_FLIPS:
            worst = max(worst, math.sqrt(2.0 * max(min(difference, 1.0), 1.0 / count)))
    return worst


@cache
def is_view(call: str) -> bool:
    """Return whether a call, `Tensor.view.3`, only hands on values that it gets."""
    return call.rpartition(".")[0].rpartition(".")[2].strip("_").lower() in _VIEWS


@cache
def _is_kinked(name: str) -> bool:
    """Return whether the gradient of an operator jumps where its input moves."""
    return name in _KINKED or name.removeprefix("adaptive_").startswith("max_pool")


def _amplification(name: str, given: Sequence[tuple[Item, float]]) -> float:
    """Return how much larger than those of the inputs the relative difference of an output may be."""
    if _is_of(name, _EXPONENTIALS):
        numbers = [each for item, _ in given for each in item.ends]
        sizes = [abs(each) for each in numbers if each is not None and abs(each) < MASKED]
        return max([1.0, *sizes])
    if _is_of(name, _CENTRED) and given:
        # The first input is what is normalised; of a weight of equal elements nothing would be left.
        return _centred(given[0][0]) * _smallest_group(name, given[0][0])
    return 1.0


def _smallest_group(name: str, item: Item) -> float:
    """Return how much smaller than the others the spread of one group of a normalisation may be by chance.

    The spread of m normal values is below a small share e of the usual with a probability of about
    e^(m - 1): of so many groups one is. Groups of two values, as in the last stages of networks of images,
    are amplified by as much as there are groups.
    """
    shape = item.shape or ()
    if len(shape) < 2 or not all(shape):
        return 1.0
    groups = 1
    if "batch_norm" in name:
        groups = shape[1]
    elif "instance_norm" in name:
        groups = shape[0] * shape[1]
    each = count_of(item) // groups
    return float(groups ** (1.0 / max(1, each - 1)))


def _centred(item: Item) -> float:
    """Return the norm of a tensor over its norm without the mean."""
    mean, norm = item.mean, item.norm
    if mean is None or norm is None or not (math.isfinite(mean) and math.isfinite(norm)):
        return 1.0
    rest = norm * norm - count_of(item) * mean * mean
    return norm / math.sqrt(rest) if rest > 0 else 1.0


@cache
def _is_of(name: str, words: tuple[str, ...]) -> bool:
    """Return whether the name of an operator has one of some words."""
    return any(word in name for word in words)


def _cancelled(name: str, own: Differences, forward: Differences, output: Item) -> float:
    """Return how much of a gradient of a normalisation cancels: what it would be without, over what it is.

    Without, the gradient is that which comes in, times the weight, over the standard deviation.
    """
    if "norm" not in name:
        return 1.0
    floats = [item for item in forward.record.inputs if item.is_tensor and floor_of(item.dtype)]
    coming = [item for item in own.record.inputs if item.is_tensor]
    if not floats or not coming:
        return 1.0
    values = floats[0]
    mean = values.mean or 0.0
    spread = math.sqrt(max(0.0, rms_of(values) ** 2 - mean * mean))
    gone = rms_of(output)
    if not spread or not gone or output.shape != values.shape:
        return rms_of(coming[0]) * math.sqrt(count_of(coming[0])) / gone if gone else 1.0
    return max(1.0, rms_of(coming[0]) / spread / gone)


def _summed(own: Differences, output: Item) -> float:
    """Return how much of a gradient that is a sum over rows cancels: that of a bias may vanish.

    Without cancellation the terms add up as a random walk does: with the root of their number.
    """
    coming = [item for item in own.record.inputs if item.is_tensor]
    if own.record.entry.direction != BACKWARD or not coming or len(output.shape or ()) != 1:
        return 1.0
    rows, size = count_of(coming[0]) / count_of(output), rms_of(output)
    if not size:
        return math.inf
    return max(1.0, rms_of(coming[0]) * math.sqrt(rows) / size)


# Whose step is the learning rate times the gradient; the others divide it by its own size, or take its sign.
_PROPORTIONAL = ("Optimizer.SGD.", "Optimizer.ASGD.")


def explained_update(
    record: FlowRecord, inputs: Sequence[tuple[Item, float]], output: Item
) -> float:
    """Return the relative difference of a parameter or state after an update that its gradient explains.

    A step is the learning rate times the gradient, or times its sign where the optimizer divides it by its
    size: then elements whose gradient is within its difference of 0 may go either way. In a vector these may
    be any: in a bias of attention those of the keys, to which softmax is invariant, have rounding alone.
    """
    group, _, number = output.path.removeprefix("output.").partition(".")
    number = number.rpartition(".")[2]
    given = [
        (item, difference)
        for item, difference in inputs
        if item.path.startswith(f"input.{group}.") and item.path.rpartition(".")[2] == number
    ]
    if ".params." not in output.path:
        return 2.0 * max((difference for _, difference in given), default=0.0)
    size, rate = rms_of(output), _number(record, group, "lr")
    if not size:
        return math.inf
    explained = 0.0
    is_sign = not record.entry.key.startswith(_PROPORTIONAL)
    is_vector = len(output.shape or ()) < 2
    for item, difference in given:
        if ".params." in item.path:
            explained += difference
        elif is_sign and ".grads." in item.path:
            share = 1.0 if is_vector and difference else min(1.0, difference)
            explained += 2.0 * rate * _steps(record, group) / size * math.sqrt(share)
        else:
            explained += rate * rms_of(item) / size * difference
    return explained


def _steps(record: FlowRecord, group: str) -> float:
    """Return the largest step of an element in learning rates.

    RMSprop divides a gradient by the root of a running mean of its squares, of which the newest has the
    weight 1 - alpha, and adds up what is left of earlier steps with its momentum.
    """
    alpha, momentum = (_number(record, group, name) for name in ("alpha", "momentum"))
    if not (0.0 <= alpha < 1.0 and 0.0 <= momentum < 1.0):
        return 1.0
    return 1.0 / math.sqrt(1.0 - alpha) / (1.0 - momentum)


def _number(record: FlowRecord, group: str, name: str) -> float:
    """Return a hyperparameter of a group of parameters, a number or a tensor of one; 0 where the record has
    none."""
    for item in record.items:
        if item.path == f"input.{group}.{name}":
            found = item.number(MAX) if item.is_tensor else (item.element or {}).get("value")
            return float(found) if isinstance(found, float | int) else 0.0
    return 0.0


_NORM = FIELDS.index(NORM)
UNKNOWN, SAME, OTHER = ValueEvidence(), ValueEvidence(0.0), ValueEvidence(math.inf)


@dataclass(frozen=True, slots=True)
class EstimatedEvidence:
    """Differences of values by sketches, where both sides have them, else by statistics, else by digests."""

    target: CaptureSource = field(default_factory=CaptureSource)
    golden: CaptureSource = field(default_factory=CaptureSource)
    estimates: bool = True

    @property
    def sees_elements(self) -> bool:
        """Whether both sides have sketches."""
        sides = self.target.sketches, self.golden.sketches
        return all(each is not None and len(each) > 0 for each in sides)

    def value(self, key: str, target: Item, golden: Item) -> ValueEvidence:
        """Return how a value of a record differs from its partner."""
        mine, other = target.element or {}, golden.element or {}
        if mine.get("shape") != other.get("shape") and target.shape != golden.shape:
            return OTHER
        by_statistics = statistics_difference(target, golden)
        if by_statistics.difference == math.inf:
            return by_statistics
        distance = sketched_distance((self.target, self.golden), target, golden)
        # The sketch of a shard has the places in the whole tensor; that of a plain tensor its own.
        if distance is None or (_PLACEMENTS in mine) != (_PLACEMENTS in other):
            return by_statistics
        # Sketches tell places, statistics do not: all four agree where nothing but the places differ.
        is_moved = distance > _MOVED and golden.norm and by_statistics.difference <= SAME_SUMS
        return ValueEvidence(distance, order=_REORDERED if is_moved else "")

    def own(self, key: str) -> OwnError | None:
        """Return None: nothing was replayed."""
        return None


def statistics_difference(target: Item, golden: Item) -> ValueEvidence:
    """Return the largest relative difference of Max, Min, Mean and Norm, or whether digests agree.

    Norm counts against itself, the others at least against the root mean square of the elements: single
    values near 0, and means of values that cancel, differ by as much in honest runs as large values do.
    """
    mine, other = target.element or {}, golden.element or {}
    if None in (mine.get(MAX), other.get(MAX)):
        if target.digest and golden.digest:
            return SAME if target.digest == golden.digest else UNKNOWN
        return UNKNOWN
    ours: tuple[Any, ...] = tuple(map(mine.get, FIELDS))
    theirs: tuple[Any, ...] = tuple(map(other.get, FIELDS))
    if ours == theirs:  # Weights, and all that is before the first difference.
        return SAME
    if _are_finite(ours) and _are_finite(theirs):
        return _of_finite(ours, theirs, golden)
    differing = [name for name in FIELDS if mine.get(name) != other.get(name)]
    worst = 0.0
    norm, norm2 = target.norm, golden.norm
    root = math.sqrt(max(1, math.prod(golden.shape or ())))
    for name in differing:
        one, two = target.number(name), golden.number(name)
        if one is None or two is None:
            continue
        if one == two or (one != one and two != two):
            continue
        if not (math.isfinite(one) and math.isfinite(two)):
            return OTHER
        size = max(abs(one), abs(two))
        if norm and norm2 and math.isfinite(norm) and math.isfinite(norm2):
            size = max(size, norm / root, norm2 / root)
        share = abs(one - two) / size
        if share > worst:
            worst = share
    return ValueEvidence(worst)


def _are_finite(numbers: tuple[Any, ...]) -> bool:
    """Return whether all are finite floats, as nearly all are."""
    for each in numbers:  # noqa: SIM110, a loop is twice as fast as `all`
        if type(each) is not float or not -math.inf < each < math.inf:
            return False
    return True


def _of_finite(ours: tuple[float, ...], theirs: tuple[float, ...], golden: Item) -> ValueEvidence:
    """Return what the loop over all kinds of numbers returns, for finite ones, and its slack."""
    least = 0.0
    if ours[_NORM] and theirs[_NORM]:
        least = max(ours[_NORM], theirs[_NORM]) / math.sqrt(max(1, math.prod(golden.shape or ())))
    worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        if one != other:
            share = abs(one - other) / max(abs(one), abs(other), least)
            if share > worst:
                worst = share
    if not has_half_digits(golden.dtype):
        return ValueEvidence(worst)
    certain = 0.0
    for statistic, one, other in zip(STATISTICS, ours, theirs, strict=True):
        if one != other:
            rounded = epsilon_of(golden.dtype) if statistic.is_end else 0.0
            share = abs(one - other) / max(abs(one), abs(other), least)
            certain = max(certain, share - rounded)
    return ValueEvidence(worst, slack=worst - certain)
