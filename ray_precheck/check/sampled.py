"""The station that judges large products by a sample, beside the whole bench.

Comes in: `UnderTest`, and a function that lets the device compute the gradients. Goes out: the checks of both
directions if all is clear, None where there is doubt; then the stations behind it compute the whole bench, so
that nobody is blamed for what a sample says. Called by the checker.

A result is looked at in two ways. Some of its rows, those with the largest numbers and others by chance, are
computed in float64 from the operands that belong to them, and judged as a whole result is, by the error of
honest implementations, and by the shape of errors. All rows together are looked at in a projection: they are
added up in blocks of g, each with a sign by chance, and compared with the product of operands whose rows are
added up so (Freivalds, Probabilistic machines can use less running time, 1977, with blocks). The signs are
independent, so that the mean square of the differences is g times that of the errors, whatever these are, and an
error of one element is in one difference as large as it is. For half types, whose rounding is far coarser,
the projection is computed in float32. The signs depend on the seed and the call's name alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from ray_precheck.accuracy.outputs import check_with_limits
from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.accuracy.standards.base import BENCH_HEADING
from ray_precheck.accuracy.standards.honest import Distance
from ray_precheck.bench.checkable import seed_of
from ray_precheck.bench.products import INCOMING, Product, ProductLeaf, combined, product_of
from ray_precheck.bench.run import Bench
from ray_precheck.check.attempt import OutOfMemory, attempt
from ray_precheck.check.bench import Implementations
from ray_precheck.check.inputs import cotangents_of
from ray_precheck.check.judge import Compared, DirectionCheck
from ray_precheck.check.settings import Terms
from ray_precheck.check.tested import UnderTest, has_captured_gradients
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import CallPlan, Execution, Leaf, mapped_call, tensors_of
from ray_precheck.frameworks.pytorch.run import TorchExecution, TorchPlace
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import OutputCheck, Verdict
from ray_precheck.schema.values import HostCall, HostTensor

# Gives another tensor for that at a place, which has an axis of this number.
_Change = Callable[[int, HostTensor, int], HostTensor]

# Products of fewer multiply-adds cost less than what is said about them.
LEAST_MACS = 1e7
# Rows of a block, and the dtype in which it is added up: rounding a half type once is 2^-9 of a number, or
# 2^-12, which a float32 sum of 10^4 terms knows to 2^-20; float32 results need float64.
_BLOCKS = {"bfloat16": (8, "float32"), "float16": (8, "float32"), "float32": (16, "float64")}
# Of each result so many rows are computed, or fewer, if these have so many elements, but some at least.
_SHARE, _MOST_ELEMENTS, _FEWEST_ROWS = 16, 1 << 17, 16
# So many of them are those with the largest numbers, which set the limit of single errors.
_LARGEST_ROWS = 4
# The whole may have so many times the RMSE of the sample, which has it by chance where rows differ in size.
_ALIKE = 1.5


def judge_sampled(
    bench: Bench, tested: UnderTest, terms: Terms, run_gradients: Callable[[UnderTest], UnderTest]
) -> tuple[DirectionCheck, DirectionCheck] | None:
    """Return the checks of both directions where a sample shows that all results are right; None where it
    does not, and for calls that are no large product.

    `run_gradients` returns the call with the gradients of the device.

    Raises:
        NotCheckable: there is no bench, or the gradients cannot be tested.
    """
    sampled = _sampled(bench, tested, terms)
    if sampled is None:
        return None
    forward = sampled.forward()
    if forward is None or not tested.inputs.record.has_backward:
        return None if forward is None else (forward, DirectionCheck(ruled=Verdict.NONE))
    backward = replace(sampled, tested=run_gradients(tested)).backward()
    return None if backward is None else (forward, backward)


def _sampled(bench: Bench, tested: UnderTest, terms: Terms) -> "_Sampled | None":
    """Return a call that can be sampled."""
    inputs, measured = tested.inputs, tested.measured
    record = inputs.record
    is_plain = not (
        inputs.plan.in_place or inputs.plan.changed or inputs.narrow_steps(terms.device)
    )
    if not isinstance(terms.standard, Auto) or not is_plain or bench.origin(record.name):
        return None
    if tested.outputs is None or len(tested.outputs) != 1:
        return None
    # The results of transposed inputs are there if they differ, and are judged by the whole bench.
    if measured is not None and (measured.transposed is not None or measured.error is not None):
        return None
    output, call = tested.outputs[0], inputs.bench_call
    given = tensors_of(call)
    if not isinstance(output, HostTensor) or any(each.storage for each in (*given, output)):
        return None
    dtypes = {each.dtype for each in (*given, output)}
    if len(dtypes) != 1 or not dtypes <= _BLOCKS.keys():
        return None
    product = product_of(record.name.type_name, record.framework, call, output.shape)
    if product is None or product.macs < LEAST_MACS:
        return None
    return _Sampled(tested, terms, product, bench.resolve(record.name), call)


@dataclass(frozen=True, slots=True)
class _Sampled:
    """One call of a large product; `call` is as the bench gets it."""

    tested: UnderTest
    terms: Terms
    product: Product
    function: Callable[..., Any]
    call: HostCall

    def forward(self) -> DirectionCheck | None:
        """Return the check of the output, None where it is in doubt."""
        assert self.tested.outputs is not None
        name = self.tested.inputs.output_name("forward", 0)
        result = _Result(self, self.product.output(), "forward", name, self.tested.outputs[0], None)
        row = result.judged()
        notes = tuple(filter(None, [self.tested.note]))
        return None if row is None else DirectionCheck((row,), notes)

    def backward(self) -> DirectionCheck | None:
        """Return the check of the gradients, None where one is in doubt, or is that of the dump."""
        tested, measured = self.tested, self.tested.measured
        inputs = tested.inputs
        is_captured = self.terms.tests_dump and has_captured_gradients(inputs.record)
        if is_captured or measured is None or not measured.outputs or measured.gradients is None:
            return None
        incoming = tested.cotangents or cotangents_of(inputs, measured.outputs)
        if len(incoming) != 1 or incoming[0] is None:
            return None
        rows: list[Compared] = []
        asked = zip(inputs.plan.differentiable, measured.gradients, strict=True)
        for number, (position, gradient) in enumerate(asked):
            leaf = self.product.gradient(position)
            mine = inputs.gradient_as_computed(gradient)
            name = inputs.output_name("backward", number)
            row = _Result(self, leaf, "backward", name, mine, incoming[0]).judged()
            if row is None:
                return None
            rows.append(row)
        notes = tuple(filter(None, [tested.note]))
        return DirectionCheck(tuple(rows), notes, cotangents=tuple(incoming))


@dataclass(frozen=True, slots=True)
class _Result:
    """A tested output or gradient, the leaf that it is of the product, and the incoming gradient of a
    gradient."""

    of: _Sampled
    leaf: ProductLeaf | None
    direction: str
    name: str
    tested: Leaf
    incoming: HostTensor | None

    def judged(self) -> Compared | None:
        """Return the row of a result that is right, None for one that is in doubt."""
        leaf, tested = self.leaf, self.tested
        if leaf is None or not isinstance(tested, HostTensor) or tested.dtype not in _BLOCKS:
            return None
        if leaf.is_sum:
            return self._judged_sum(leaf, tested)
        at = leaf.letters.index(leaf.axis)
        generator = self._generator()
        rows = _rows(tested.data, at, generator)
        if rows is None:
            return None

        def part(place: int, tensor: HostTensor, axis: int) -> HostTensor:
            return replace(tensor, data=np.take(tensor.data, rows, axis), layout=None)

        found = self._compared(leaf.axis, part, part(INCOMING, tested, at))
        if found is None:
            return None
        few, check, limits = found
        by_chance = np.arange(_LARGEST_ROWS, len(rows))
        own = np.take(few.tested.data, by_chance, at) - np.take(few.bench.data, by_chance, at)
        rmse = min(limits.rmse, _ALIKE * _root_mean_square(own))
        difference = self._projected(leaf, tested, at, generator)
        if difference is None:
            return None
        whole = math.sqrt(float(np.sum(np.square(difference))) / tested.data.size)
        largest = float(np.max(np.abs(difference)))
        # NaN compares with nothing.
        if not (whole <= rmse and largest <= limits.largest):
            return None
        share = round(tested.shape[at] / len(rows))
        columns = {**dict(check.columns), BENCH_HEADING: f"sampled 1/{share}", "RMSE": whole}
        check = replace(check, shape=str(tested.shape), columns=tuple(columns.items()))
        return Compared(check, tested)

    def _judged_sum(self, leaf: ProductLeaf, tested: HostTensor) -> Compared | None:
        """Return the row of the gradient of what is added: the incoming gradients are added up for it, and of
        the product only one term is computed."""

        def first(place: int, tensor: HostTensor, axis: int) -> HostTensor:
            return replace(tensor, data=np.take(tensor.data, [0], axis), layout=None)

        found = self._compared(self.of.product.inner, first, tested)
        return None if found is None else replace(found[0], check=found[1])

    def _compared(
        self, letter: str, change: _Change, tested: HostTensor
    ) -> tuple[Compared, OutputCheck, Distance] | None:
        """Return the row of a part of the result, if it passes, and the limits of its errors."""
        call, incoming = self._changed(letter, change)
        bench = self._computed(call, incoming, TorchPlace(widen=True))
        if bench is None or bench.shape != tested.shape:
            return None
        of, measured = self.of, self.of.tested.measured
        is_captured = self.direction == "forward" and of.tested.is_captured
        type_name = of.tested.inputs.record.name.type_name
        float32 = of.terms.float32 if is_captured or measured is None else measured.float32
        implementations = Implementations(
            of.function,
            call,
            self._plan,
            _picked,
            () if incoming is None else (incoming,),
            kernel_is_tested=of.terms.tests_own_kernel,
            float32=float32.of_call(type_name),
        )
        judge = of.terms.judge(of.tested.inputs.record.name, self.direction)
        check, limits = check_with_limits(
            self.name, tested, bench, judge, lambda: implementations.of(0, tested)
        )
        if check.verdict is not Verdict.PASS or limits is None:
            return None
        return Compared(check, tested, bench), check, limits

    def _projected(
        self, leaf: ProductLeaf, tested: HostTensor, axis: int, generator: np.random.Generator
    ) -> Array | None:
        """Return the differences of the sums of blocks of rows from those of the product, None where it
        cannot be computed."""
        count, dtype = _BLOCKS[tested.dtype]
        blocks = -(-tested.shape[axis] // count)
        signs = generator.choice([-1.0, 1.0], (count, blocks)).astype(dtype)
        places = {place for term in leaf.terms for place in term}

        def change(place: int, tensor: HostTensor, axis: int) -> HostTensor:
            if place in places:
                data = combined(tensor.data, axis, signs)
            else:  # Only its shape counts.
                data = np.take(tensor.data, range(blocks), axis)
            return HostTensor(dtype, data)

        call, incoming = self._changed(leaf.axis, change, dtype)
        bench = self._computed(call, incoming, TorchPlace())
        if bench is None:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            found = combined(tested.data, axis, signs) - bench.data
        return np.asarray(found, np.float64)

    def _changed(
        self, letter: str, change: _Change, dtype: str = ""
    ) -> tuple[HostCall, HostTensor | None]:
        """Return the call and its incoming gradient with other tensors where they have an axis, and all of
        them in a dtype ("": in their own)."""
        product, position = self.of.product, count()

        def changed(place: int, tensor: HostTensor) -> HostTensor:
            letters = product.letters(place)
            if letter in letters:
                return change(place, tensor, letters.index(letter))
            return HostTensor(dtype, tensor.data.astype(dtype, copy=False)) if dtype else tensor

        def leaf(value: Any) -> Any:
            return changed(next(position), value) if isinstance(value, HostTensor) else value

        call = mapped_call(self.of.call, leaf)
        return call, None if self.incoming is None else changed(INCOMING, self.incoming)

    def _computed(
        self, call: HostCall, incoming: HostTensor | None, place: TorchPlace
    ) -> HostTensor | None:
        """Return the leaf of another call; None where it cannot be computed, as the whole bench may say
        why."""
        try:
            execution, _ = attempt(
                lambda: TorchExecution(self.of.function, call, self._plan, place)
            )
            leaves = None
            if execution is not None:
                leaves, _ = attempt(lambda: _picked(execution, [incoming]))
        except (OutOfMemory, NotCheckable):
            return None
        found = leaves[0] if leaves and len(leaves) == 1 else None
        return found if isinstance(found, HostTensor) else None

    @property
    def _plan(self) -> CallPlan:
        position = None if self.leaf is None else self.leaf.position
        return CallPlan(differentiable=() if position is None else (position,))

    def _generator(self) -> np.random.Generator:
        key = seed_of(self.of.terms.seed, f"{self.name}\0sample")
        return np.random.Generator(np.random.Philox(key=key))


def _picked(run: Execution, incoming: list[HostTensor | None]) -> Sequence[Leaf]:
    """Return the gradients where there are incoming ones, else the outputs."""
    return run.gradients(incoming) if incoming and incoming[0] is not None else run.outputs


def _rows(data: Array, axis: int, generator: np.random.Generator) -> Array | None:
    """Return the numbers of the rows of a sample: first those with the largest elements; None where an
    element is not finite."""
    others = tuple(each for each in range(data.ndim) if each != axis)
    largest: Array = np.maximum(data.max(axis=others), -data.min(axis=others))
    if not np.isfinite(largest).all():
        return None
    length = data.shape[axis]
    few = min(-(-length // _SHARE), _MOST_ELEMENTS * length // data.size)
    order = np.argsort(largest, kind="stable")[::-1]
    rest = generator.permutation(order[_LARGEST_ROWS:])
    return np.asarray(np.concatenate([order[:_LARGEST_ROWS], rest])[: max(few, _FEWEST_ROWS)])


def _root_mean_square(error: Array) -> float:
    return math.sqrt(float(np.mean(np.square(error, dtype=np.float64))))
