"""What the samples of products and of attention have in common: a part of a result, judged.

Comes in: a result, its rows that are in the sample, the bench's and the tested part, and the differences of
all elements. Goes out: the detail row of a result that is clearly right. Called by `sampled.products` and
`sampled.attention`.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ray_precheck.accuracy.outputs import check_with_limits
from ray_precheck.accuracy.standards.base import BENCH_HEADING
from ray_precheck.accuracy.standards.honest import Distance
from ray_precheck.accuracy.thresholds import COMPUTED_IN
from ray_precheck.bench.checkable import seed_of
from ray_precheck.check.attempt import OutOfMemory, attempt
from ray_precheck.check.bench import Implementations
from ray_precheck.check.judge import Compared
from ray_precheck.check.settings import Terms
from ray_precheck.check.tested import UnderTest
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import CallPlan, Execution, Leaf
from ray_precheck.frameworks.pytorch.run import TorchExecution, TorchPlace
from ray_precheck.numerics.arrays import machine_epsilon
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.result import OutputCheck, Verdict
from ray_precheck.schema.values import HostCall, HostTensor

# The dtype in which all elements of a result are looked at. Rounding a half type once is 2^-9 of a number, or
# 2^-12, which a float32 sum of 10^4 terms knows to 2^-20; float32 results need float64.
DTYPES_SEEN = {"bfloat16": "float32", "float16": "float32", "float32": "float64"}
# Elements of a sum. That of g roundings of a half type must stay below what one wrong element makes.
BLOCKS = {"bfloat16": 8, "float16": 8, "float32": 16}
# Of each result one row in so many is computed, or fewer, if these have so many elements.
_SHARE, _MOST_ELEMENTS = 16, 1 << 17
# So many sums may be too large for their rows to be looked at one by one.
_MOST_SUSPECTS = 8
# A sum of errors like those of the sample is farther off than so many standard deviations by a chance of
# 6e-7, were it normal. What is beyond it is only looked at more closely.
_DEVIATIONS = 5.0
# The whole may have so many times the RMSE of the sample, which has it by chance where rows differ in size.
_ALIKE = 1.5


@dataclass(frozen=True, slots=True)
class LargeCall:
    """A call of one output; `function` is the bench's, and `call` what it gets. `is_final`: the whole bench
    is not computed where there is doubt."""

    tested: UnderTest
    terms: Terms
    function: Callable[..., Any]
    call: HostCall
    output: HostTensor
    is_final: bool = False

    def generator(self, name: str) -> np.random.Generator:
        """Return the numbers by chance for one result: the same in each run of a seed."""
        key = seed_of(self.terms.seed, f"{name}\0sample")
        return np.random.Generator(np.random.Philox(key=key))


class SampledCall(Protocol):
    """A way to sample a call. Its methods return None for a result that is in doubt."""

    def output(self, name: str, tested: HostTensor) -> Compared | None:
        """Return the row of the output."""

    def gradient(self, name: str, position: int, tested: HostTensor) -> Compared | None:
        """Return the row of the gradient of the tensor at a position."""


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The numbers of the rows of a sample along an axis: the first `largest` are those of the largest
    numbers."""

    axis: int
    numbers: Array
    largest: int

    def of(self, tensor: HostTensor, axis: int | None = None) -> HostTensor:
        """Return the part of a tensor in these rows."""
        along = self.axis if axis is None else axis
        return replace(tensor, data=np.take(tensor.data, self.numbers, along), layout=None)

    def with_blocks(self, blocks: Array, count: int, tested: HostTensor) -> "SampleRows":
        """Return these rows and those of some of `count` blocks."""
        length = tested.shape[self.axis]
        added = (blocks[:, None] + np.arange(0, length, count)).reshape(-1)
        numbers = np.concatenate([self.numbers, added[added < length]])
        return replace(self, numbers=np.array(list(dict.fromkeys(numbers.tolist()))))

    def placed(self, message: str) -> str:
        """Return a message about the part with the places of the whole."""

        def index(found: re.Match[str]) -> str:
            place = [int(each) for each in found[1].split(", ")]
            place[self.axis] = int(self.numbers[place[self.axis]])
            return f"at index {place}"

        return re.sub(r"at index \[([\d, ]+)\]", index, message)

    def drawn(self, part: Array) -> Array:
        """Return of a part the rows that are there by chance."""
        rows = [slice(None)] * part.ndim
        rows[self.axis] = slice(self.largest, None)
        return part[tuple(rows)]


def sample_of(
    data: Array, axis: int, generator: np.random.Generator, largest: int, fewest: int
) -> SampleRows | None:
    """Return the rows of a sample; None where an element is not finite, or the rows are too few to draw."""
    others = tuple(each for each in range(data.ndim) if each != axis)
    highest: Array = np.maximum(data.max(axis=others), -data.min(axis=others))
    length = data.shape[axis]
    if not np.isfinite(highest).all() or length < 2 * fewest:
        return None
    few = min(-(-length // _SHARE), _MOST_ELEMENTS * length // data.size)
    order = np.argsort(highest, kind="stable")[::-1]
    drawn = generator.permutation(order[largest:])
    chosen = np.concatenate([order[:largest], drawn])[: max(few, fewest)]
    return SampleRows(axis, chosen, largest)


def computed(
    function: Callable[..., Any],
    call: HostCall,
    plan: CallPlan,
    incoming: HostTensor | None,
    place: TorchPlace,
) -> tuple[HostTensor, Sequence[Leaf]] | None:
    """Return the output of a call and its gradients (() without an incoming one); None where it cannot be
    computed, as the whole bench may say why."""

    def run() -> tuple[Leaf, Sequence[Leaf]]:
        execution = TorchExecution(function, call, plan, place)
        gradients = execution.gradients([incoming]) if plan.differentiable else ()
        return execution.outputs[0], gradients

    try:
        found, _ = attempt(run)
    except (OutOfMemory, NotCheckable):
        return None
    if found is None or not isinstance(found[0], HostTensor):
        return None
    return found[0], found[1]


@dataclass(frozen=True, slots=True)
class Look:
    """A part of a result, as tested and in the bench, with its detail row; `limits` are those of its errors,
    each wider than the one before, None unless it passes."""

    tested: HostTensor
    bench: HostTensor
    check: OutputCheck
    limits: Iterator[Distance] | None


def look_at(
    of: LargeCall,
    name: str,
    direction: str,
    tested: HostTensor,
    bench: Leaf | None,
    implementations: Callable[[], Sequence[Array]],
) -> Look | None:
    """Compare a part of a result; None where the bench has another shape."""
    if not isinstance(bench, HostTensor) or bench.shape != tested.shape:
        return None
    judge = of.terms.judge(of.tested.inputs.record.name, direction)
    check, limits = check_with_limits(name, tested, bench, judge, implementations)
    return Look(tested, bench, check, limits)


def implementations_of(
    of: LargeCall, direction: str, call: HostCall, plan: CallPlan, incoming: HostTensor | None
) -> Implementations:
    """Return the honest implementations of a part of a call."""
    measured, terms = of.tested.measured, of.terms
    # Gradients are the device's where it has run; else the dump's.
    is_captured = measured is None or (direction == "forward" and of.tested.is_captured)
    float32 = terms.float32 if is_captured or measured is None else measured.float32
    return Implementations(
        of.function,
        call,
        plan,
        _picked,
        () if incoming is None else (incoming,),
        kernel_is_tested=terms.tests_own_kernel,
        float32=float32.of_call(of.tested.inputs.record.name.type_name),
    )


def _picked(run: Execution, incoming: list[HostTensor | None]) -> Sequence[Leaf]:
    """Return the gradients where there are incoming ones, else the outputs."""
    return run.gradients(incoming) if incoming else run.outputs


def judged_row(
    of: LargeCall,
    tested: HostTensor,
    rows: SampleRows,
    look: Callable[[SampleRows], Look | None],
    differences: Callable[[], Array | None],
) -> Compared | None:
    """Return the row of a result all of whose elements keep to the limits of its sample, None for another.

    `look` compares the part in some rows. `differences` are the errors of all elements, or sums of errors
    whose squares add up to the same; along the axis of the rows they have one for each row, or one for each
    of the rows that are so many apart. Where few differences are too large, their rows are looked
    at, too. Where nothing more is to be computed (`of.is_final`), a result that is in doubt is judged by the
    rows with the largest differences, and skipped where these are right.
    """
    found = look(rows)
    if found is None or (found.limits is None and not of.is_final):
        return None
    difference = differences()
    if difference is None:
        return None
    sums = _Sums.of(difference, rows, tested)
    suspects = sums.suspects(found)
    if suspects is not None:
        if not len(suspects):
            return _row(tested, rows, found.check, sums.whole)
        rows = rows.with_blocks(suspects, len(sums.largest), tested)
        again = look(rows)
        if again is not None and again.limits is not None:
            return _row(tested, rows, again.check, sums.whole)
    if not of.is_final:
        return None
    rows = rows.with_blocks(sums.worst, len(sums.largest), tested)
    found = look(rows)
    if found is None:
        return None
    if found.check.verdict is Verdict.ERROR:
        return _row(tested, rows, replace(found.check, message=rows.placed(found.check.message)))
    doubt = (
        f"in doubt: sums of all its rows have an RMSE of {sums.whole:.3g} and a largest error of"
        f" {max(sums.largest):.3g}, beyond what {len(rows.numbers)} rows have, which are right;"
        " `--bench auto` computes it whole"
    )
    return _row(tested, rows, replace(found.check, verdict=Verdict.SKIP, message=doubt), sums.whole)


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums of errors of all elements.

    `whole` is the RMSE of all elements, and `rest` that of all but the sums with a row of the largest
    numbers. `largest`, `(B,)`, are the largest sums by block, NaN as infinity. `count` elements are in a sum.
    """

    difference: Array
    tested: HostTensor

    whole: float
    rest: float
    largest: Array
    count: int
    rows: SampleRows

    @classmethod
    def of(
        cls,
        difference: Array,
        rows: SampleRows,
        tested: HostTensor,
    ) -> "_Sums":
        """Sum up the differences."""
        others = tuple(each for each in range(difference.ndim) if each != rows.axis)
        blocks, length = difference.shape[rows.axis], tested.shape[rows.axis]
        squares = np.sum(np.square(difference, dtype=np.float64), axis=others)
        sizes = np.bincount(np.arange(length) % blocks) * (tested.data.size // length)
        rest = np.ones(blocks, bool)
        rest[rows.numbers[: rows.largest] % blocks] = False
        if not rest.any():  # Few blocks, each with such a row.
            rest[:] = True
        largest = np.maximum(difference.max(axis=others), -difference.min(axis=others))
        return cls(
            difference,
            tested,
            math.sqrt(float(squares.sum()) / tested.data.size),
            math.sqrt(float(squares[rest].sum()) / int(sizes[rest].sum())),
            np.nan_to_num(largest.astype(np.float64), nan=np.inf),
            -(-tested.data.size // difference.size),
            rows,
        )

    @property
    def worst(self) -> Array:
        """The numbers of the blocks with the largest sums."""
        return np.asarray(np.argsort(self.largest, kind="stable")[::-1][:_MOST_SUSPECTS])

    def suspects(self, found: Look) -> Array | None:
        """Return the numbers of the blocks whose rows must be looked at; None where there are too many, or
        all errors are larger than those of the sample."""
        if found.limits is None:
            return None
        errors = self.rows.drawn(found.tested.data) - self.rows.drawn(found.bench.data)
        own = math.sqrt(float(np.mean(np.square(errors, dtype=np.float64))))
        # NaN is within no limit.
        if not self.rest <= _ALIKE * own:
            return None
        by_chance = _DEVIATIONS * math.sqrt(self.count) * own
        for limits in found.limits:
            if max(self.whole, self.rest) <= limits.rmse:
                suspects = self._beyond(limits.largest, by_chance)
                if len(suspects) <= _MOST_SUSPECTS:
                    return suspects
        return None

    def _beyond(self, limit: float, by_chance: float) -> Array:
        """Return the numbers of the blocks with a sum that is larger than others are by chance, and than the
        limit of single errors.

        A wrong element of a half type may be little beyond that limit, and the others of its sum off to the
        other side: there the chance of rounding each element once counts.
        """
        if self.tested.dtype in COMPUTED_IN:
            return np.flatnonzero(~(self.largest <= max(limit, by_chance)))
        limit, axis = min(limit, by_chance), self.rows.axis
        blocks = np.flatnonzero(~(self.largest <= limit))
        sizes = np.abs(np.take(self.difference, blocks, axis))
        places = list(np.nonzero(~(sizes <= limit)))
        sizes = sizes[tuple(places)]
        places[axis] = blocks[places[axis]]
        # The error of rounding once is spread evenly over one unit in the last place.
        deviations = self._units(places) / math.sqrt(12.0)
        beyond = ~(sizes <= np.maximum(limit, _DEVIATIONS * deviations))
        return np.asarray(np.unique(places[axis][beyond]))

    def _units(self, places: Sequence[Array]) -> Array:
        """Return the roots of the sums of the squares of the units in the last place of the elements of the
        sums at some places, `(N,)`, of a half type."""
        shape, summed = self.tested.shape, self.difference.shape
        axis = next((each for each, length in enumerate(summed) if length != shape[each]), 0)
        total = np.zeros(len(places[axis]), np.float32)
        for first in range(0, shape[axis], summed[axis]):
            here = places[axis] + first < shape[axis]
            index = [each[here] for each in places]
            index[axis] += first
            values = self.tested.data[tuple(index)]
            total[here] += np.square(units_in_last_place(values, self.tested.dtype))
        return np.asarray(np.sqrt(total))


def units_in_last_place(values: Array, dtype: str) -> Array:
    """Return the units in the last place of numbers of a half type, float32."""
    wide = np.ascontiguousarray(values, np.float32)
    # The power of two of a float32 number is what its bits of the exponent say (IEEE 754-2019, 3.4).
    powers = (wide.view(np.uint32) & np.uint32(0x7F800000)).view(np.float32)
    least = np.float32(2.0 ** DTYPES[dtype].min_exponent)
    return np.asarray(np.maximum(powers, least) * np.float32(machine_epsilon(dtype)))


def _row(
    tested: HostTensor, rows: SampleRows, check: OutputCheck, rmse: float | None = None
) -> Compared:
    """Return the row of a result by that of its sample; `rmse` is that of all elements."""
    share = round(tested.shape[rows.axis] / len(rows.numbers))
    columns = {**dict(check.columns), BENCH_HEADING: f"sampled 1/{share}"}
    if rmse is not None:
        columns["RMSE"] = rmse
    check = replace(check, shape=str(tested.shape), columns=tuple(columns.items()))
    return Compared(check, tested)
