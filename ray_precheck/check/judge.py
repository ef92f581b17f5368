"""The station that judges: it compares the tested outputs and gradients with the bench's.

Comes in: `Benched`. Goes out: a `DirectionCheck`: rows, notes and a verdict. Called by the checker, and by
`check.random.judge`. The tested results are the captured ones (real mode) or the device's; the bench is the
same for both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ray_precheck.accuracy.ambiguous import chosen_like, is_exact, quantized_like
from ray_precheck.accuracy.outputs import Judge, check_output
from ray_precheck.accuracy.standards.base import no_implementations
from ray_precheck.check.attempt import Failure, attempt, attempt_gradients, describe
from ray_precheck.check.bench import (
    Benched,
    Implementations,
    Pick,
    changed_pairs,
    gradients_as_dumped,
)
from ray_precheck.check.inputs import Inputs, cotangents_of
from ray_precheck.check.settings import Terms
from ray_precheck.check.tested import captured_gradients, has_captured_gradients
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Execution, Leaf, changed_by
from ray_precheck.numerics.arrays import machine_epsilon, saturated_like
from ray_precheck.operators.effects import SIZED_BY_VALUES
from ray_precheck.operators.exact import AMBIGUOUS, Stepped, exactness
from ray_precheck.schema.dtypes import DTYPES, Array, is_differentiable
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.result import Outcome, OutputCheck, Uncompared, Verdict
from ray_precheck.schema.values import HostCall, HostTensor
from ray_precheck.store.error_data import input_tensors

# Gives the bench's leaves, in the order of the rows, for other inputs and cotangents.
Recompute = Callable[[HostCall, list[HostTensor | None]], Sequence[Leaf]]
_UNDERIVABLE = Uncompared(
    "torch has no derivative by this argument, although the dump asks for one"
)
# How many times the error with contiguous inputs, or the distance of two numbers, is none of the layout.
_NEAR = 8.0
ImplementationsByPlace = Callable[[int, Leaf], Callable[[], Sequence[Array]]]


@dataclass(frozen=True, slots=True)
class Compared:
    """A detail row, and the two leaves that it compares; `bench` is None for random outputs."""

    check: OutputCheck
    tested: Any
    bench: Any = None


def compared(
    name: str,
    tested: Any,
    bench: Any,
    judge: Judge,
    implementations: Callable[[], Sequence[Array]] = no_implementations,
) -> Compared:
    """Compare one leaf with the bench's."""
    return Compared(check_output(name, tested, bench, judge, implementations), tested, bench)


@dataclass(frozen=True, slots=True)
class DirectionCheck:
    """The outcome of checking one direction of a call.

    `ruled` is a verdict that does not depend on the rows: the device raised, or the direction was
    not checked at all. `cotangents` are the incoming gradients. `recompute` runs the bench again to
    explain an error, None where there is no bench. `caveat` is a sentence about a limit of the
    device's precision that may explain errors of float32, "" for none. `is_transposed`: it is that of
    the run with transposed inputs, which alone has errors.
    """

    rows: tuple[Compared, ...] = ()
    notes: tuple[str, ...] = ()
    ruled: Verdict | None = None
    outcome: Outcome = Outcome.COMPLETED
    cotangents: tuple[HostTensor | None, ...] = ()
    recompute: Recompute | None = None
    caveat: str = ""
    is_transposed: bool = False

    @property
    def checks(self) -> tuple[OutputCheck, ...]:
        """The detail rows."""
        return tuple(row.check for row in self.rows)

    @property
    def verdict(self) -> Verdict:
        """Error if any row is an error; else pass if any row is a pass; else SKIP: nothing was compared."""
        if self.ruled is not None:
            return self.ruled
        verdicts = {row.check.verdict for row in self.rows}
        if Verdict.ERROR in verdicts:
            return Verdict.ERROR
        return Verdict.PASS if Verdict.PASS in verdicts else Verdict.SKIP

    @property
    def failing(self) -> tuple[OutputCheck, ...]:
        """The detail rows in error."""
        return tuple(check for check in self.checks if check.verdict is Verdict.ERROR)

    @property
    def messages(self) -> list[str]:
        """The sentences about this direction in the Message of the result row."""
        told = self.failing
        if not told and self.verdict is Verdict.SKIP:
            told = self.checks
        # X.0.forward.output.1 without the call's name
        rows = [f"{'.'.join(c.name.split('.')[-3:])}: {c.message}" for c in told]
        if self.ruled is None and not self.rows:
            rows.append("there was no output to compare")
        return [*rows, *self.notes]


@dataclass(frozen=True, slots=True)
class Judged:
    """Both directions of a call with the inputs that were judged: safer ones after a second try."""

    inputs: Inputs
    forward: DirectionCheck
    backward: DirectionCheck

    @property
    def rows(self) -> tuple[Compared, ...]:
        """The detail rows."""
        return (*self.forward.rows, *self.backward.rows)


def judge_forward(benched: Benched, terms: Terms) -> DirectionCheck:
    """Compare the outputs.

    Raises:
        NotCheckable: the bench raised, alone or as the device did; or the two sides cannot be compared.
    """
    tested, bench = benched.tested.outputs, benched.attempt
    if tested is None:
        return device_failed(benched)
    if bench.execution is None:
        raise NotCheckable(f"the bench raised: {describe(bench.error)}")
    inputs = benched.tested.inputs
    name = inputs.record.name
    expected = chosen_like(name, inputs.call, tested, bench.execution.outputs, terms.framework)
    if len(tested) != len(expected):
        return _wrong_count(benched, terms, len(tested), len(expected))
    captured = benched.tested.is_captured
    implementations = _implementations(benched, terms, _outputs_and_changed, captured=captured)

    known = exactness(name.type_name, terms.framework)
    # The bench compares with the numbers that it gets.
    given = inputs.bench_call if known is not None and known.compares else inputs.call

    def judge(direction: str, place: int, mine: Leaf) -> Judge:
        exact = isinstance(mine, HostTensor) and is_exact(known, given, place, mine.dtype)
        return _judge(inputs, terms, direction, is_exact=exact)

    rows = tuple(
        compared(
            inputs.output_name("forward", position),
            mine,
            _overflowing_like(mine, other),
            judge("forward", position, mine),
            implementations(position, mine),
        )
        for position, (mine, other) in enumerate(zip(tested, expected, strict=True))
    )
    pairs, unknown = changed_pairs(benched)
    numbers = [len(expected) + pair.number for pair in pairs]
    rows += tuple(
        compared(
            f"{name}.forward.changed.{pair.name}",
            pair.tested,
            _overflowing_like(pair.tested, pair.bench),
            judge("changed", 0, pair.tested),
            implementations(number, pair.tested),
        )
        for number, pair in zip(numbers, pairs, strict=True)
    )

    def recompute(call: HostCall, _: list[HostTensor | None]) -> list[Leaf]:
        leaves = _outputs_and_changed(benched.run_again(call), [])
        return [*leaves[: len(expected)], *(leaves[number] for number in numbers)]

    notes = tuple(filter(None, [benched.tested.note, *unknown]))
    result = DirectionCheck(rows, notes, recompute=recompute)
    added = _length_note(inputs.record, result)
    return replace(result, notes=(*notes, *added)) if added else result


def _outputs_and_changed(run: Execution, _: list[HostTensor | None]) -> list[Leaf]:
    return [*run.outputs, *changed_by(run)]


def forward_transposed(benched: Benched, terms: Terms, plain: DirectionCheck) -> DirectionCheck:
    """Return the check of the outputs with transposed inputs, if it alone has errors, else the plain one."""
    measured = benched.tested.measured
    other = measured.transposed if measured is not None else None
    if other is None or plain.verdict is not Verdict.PASS:
        return plain
    tested = replace(benched.tested, outputs=other.outputs, changed=other.changed)
    return _if_worse(plain, judge_forward(replace(benched, tested=tested), terms))


def backward_transposed(benched: Benched, terms: Terms, plain: DirectionCheck) -> DirectionCheck:
    """Return the check of the gradients with transposed inputs, if it alone has errors."""
    measured, inputs = benched.tested.measured, benched.tested.inputs
    other = measured.transposed if measured is not None else None
    if other is None or other.gradients is None or plain.verdict is not Verdict.PASS:
        return plain
    if benched.attempt.execution is None or len(other.gradients) != len(plain.rows):
        return plain
    try:
        bench = benched.attempt.execution.outputs
        _require_same_choice(inputs, terms.framework, other.outputs or (), bench)
    except NotCheckable:
        return plain
    pairs = enumerate(zip(other.gradients, plain.rows, strict=True))
    asked = [(at, row.check.name, mine, row.bench) for at, (mine, row) in pairs]
    rows = _gradient_rows(benched, terms, plain.cotangents, asked)
    return _if_worse(plain, replace(plain, rows=rows))


def _if_worse(plain: DirectionCheck, again: DirectionCheck) -> DirectionCheck:
    """Return the check with transposed inputs where it has more errors than another order of sums makes."""
    if again.verdict is not Verdict.ERROR:
        return plain
    if len(again.rows) == len(plain.rows):
        pairs = zip(again.rows, plain.rows, strict=True)
        if all(_is_near(mine, other) for mine, other in pairs):
            return plain
    return replace(again, rows=tuple(map(_said, again.rows)), is_transposed=True)


def _is_near(again: Compared, plain: Compared) -> bool:
    """Return whether an output passes, or errs little more than with contiguous inputs.

    A kernel that adds up in another order has another error, which a limit for the first one may not know.
    """
    mine, other = again.check.metrics, plain.check.metrics
    if again.check.verdict is not Verdict.ERROR:
        return True
    if mine is None or other is None or mine.mismatch or not isinstance(again.tested, HostTensor):
        return False
    dtype = again.tested.dtype
    least = machine_epsilon(dtype) * mine.bench_largest
    return is_differentiable(dtype) and mine.max_abs_err <= _NEAR * max(other.max_abs_err, least)


def _said(row: Compared) -> Compared:
    """Return a row whose Message says with which inputs it fails."""
    check = row.check
    if check.verdict is not Verdict.ERROR:
        return row
    message = f"{check.message}, with transposed inputs alone (contiguous ones pass)"
    return replace(row, check=replace(check, message=message))


def _overflowing_like(tested: Leaf, bench: Leaf) -> Leaf:
    """Return the bench's leaf, in which elements beyond the tested dtype's range (fp8) become infinity,
    NaN or the largest number, as in the tested leaf: the format allows each of them."""
    tensors = isinstance(tested, HostTensor) and isinstance(bench, HostTensor)
    if tensors and bench.storage is not None:
        return quantized_like(tested, bench)
    if not tensors or tested.shape != bench.shape or DTYPES[bench.dtype].kind != "float":
        return bench
    data = saturated_like(bench.data, tested.data, tested.dtype)
    return bench if data is bench.data else replace(bench, data=data)


def _length_note(record: ApiRecord, result: DirectionCheck) -> list[str]:
    """Return a note for outputs of different shapes whose shape depends on the values of the inputs."""
    if not SIZED_BY_VALUES.of(record.name.type_name, record.framework):
        return []
    if not any(check.metrics is None for check in result.failing):
        return []
    return ["the shape of its output depends on the values: an element counts on one side alone"]


def device_failed(benched: Benched) -> DirectionCheck:
    """Return the check of a call that raised on the device: an error, because the bench runs it.

    Raises:
        NotCheckable: the bench raised, too, or the CPU lacks a kernel of the framework under test.
    """
    measured, bench = benched.tested.measured, benched.attempt
    assert measured is not None
    assert measured.error is not None
    text = measured.error.text
    if bench.execution is None:
        raise NotCheckable(
            f"device and bench raised; device: {text}; bench: {describe(bench.error)}"
        )
    if measured.error.lacks_kernel:
        raise NotCheckable(f"the CPU has no kernel for it: {text}")
    note = f"the device raised where the bench is fine: {text}"
    return DirectionCheck(notes=(note,), ruled=Verdict.ERROR, outcome=Outcome.RAISED)


def _wrong_count(benched: Benched, terms: Terms, tested: int, expected: int) -> DirectionCheck:
    if benched.author:
        theirs = "the dump holds" if terms.tests_dump else "the device returned"
        raise NotCheckable(f"{benched.author} returned {expected} outputs where {theirs} {tested}")
    if terms.tests_dump:
        raise NotCheckable(f"the dump holds {tested} outputs where the bench has {expected}")
    note = f"{tested} outputs where the bench has {expected}"
    return DirectionCheck(notes=(note,), ruled=Verdict.ERROR)


def _judge(inputs: Inputs, terms: Terms, direction: str, *, is_exact: bool = False) -> Judge:
    """Return the judge of a direction, which can ask whether all inputs are finite."""

    def of_finite() -> bool:
        given = input_tensors(inputs.call).values()
        return all(bool(np.isfinite(each.data).all()) for each in given)

    type_name = inputs.record.name.type_name
    return Judge(terms.framework, terms.standard, type_name, direction, is_exact, of_finite)


def judge_backward(benched: Benched, terms: Terms) -> DirectionCheck:
    """Compare the gradients.

    Raises:
        NotCheckable: there is no gradient to compare, or the bench raised.
    """
    if terms.tests_dump and has_captured_gradients(benched.tested.inputs.record):
        return _against_captured(benched, terms)
    return _against_device(benched, terms)


def _against_captured(benched: Benched, terms: Terms) -> DirectionCheck:
    """Compare captured gradients with the bench's."""
    inputs, bench = benched.tested.inputs, benched.attempt.execution
    if bench is None or benched.attempt.gradient_error is not None:
        reason = describe(benched.attempt.gradient_error)
        raise NotCheckable(f"backward: the bench raised: {reason}")
    if benched.tested.is_captured:
        assert benched.tested.outputs is not None
        _require_same_choice(inputs, terms.framework, benched.tested.outputs, bench.outputs)
    cotangents = cotangents_of(inputs, bench.outputs)
    gradients = partial(gradients_as_dumped, inputs, terms.framework)
    grads, error = attempt(partial(gradients, bench, cotangents))
    if grads is None:
        raise NotCheckable(f"backward: the bench raised: {describe(error)}")
    shapes = [None if grad is None else grad.shape for grad in grads]
    matched = captured_gradients(inputs.record, inputs.source, shapes)
    asked = [
        (mine, inputs.output_name("backward", theirs), tested, grads[mine])
        for mine, (theirs, tested) in matched.items()
    ]
    rows = _gradient_rows(benched, terms, cotangents, asked, gradients, captured=True)

    def recompute(call: HostCall, incoming: list[HostTensor | None]) -> list[Leaf]:
        again = gradients(benched.run_again(call), incoming)
        return [again[position] for position in matched]

    return DirectionCheck(rows, cotangents=tuple(cotangents), recompute=recompute)


def _against_device(benched: Benched, terms: Terms) -> DirectionCheck:
    inputs, measured, bench = benched.tested.inputs, benched.tested.measured, benched.attempt
    assert measured is not None
    if measured.outputs is None or bench.execution is None:
        raise NotCheckable("backward: the forward pass raised")
    if len(measured.outputs) != len(bench.execution.outputs):
        raise NotCheckable("backward: device and bench have different outputs")
    if measured.no_gradients:
        raise NotCheckable(measured.no_gradients)
    _require_same_choice(inputs, terms.framework, measured.outputs, bench.execution.outputs)
    cotangents = benched.tested.cotangents or cotangents_of(inputs, measured.outputs)
    grads, failure = measured.gradients, measured.gradient_error
    expected, bench_error = attempt_gradients(bench, cotangents)
    if expected is None:
        both = failure and f"device and bench raised; device: {failure.text}; bench"
        raise NotCheckable(f"backward: {both or 'the bench raised'}: {describe(bench_error)}")
    notes = tuple(filter(None, [benched.tested.note]))
    if grads is None:
        result = DirectionCheck(notes=notes, cotangents=tuple(cotangents))
        return _gradients_failed(result, failure)
    asked = [
        (at, inputs.output_name("backward", at), mine, _UNDERIVABLE if other is None else other)
        for at, (mine, other) in enumerate(zip(grads, expected, strict=True))
    ]
    return DirectionCheck(
        rows=_gradient_rows(benched, terms, cotangents, asked),
        notes=notes,
        cotangents=tuple(cotangents),
        recompute=lambda call, incoming: benched.run_again(call).gradients(incoming),
    )


def _gradients(run: Execution, cotangents: list[HostTensor | None]) -> Sequence[Leaf]:
    return run.gradients(cotangents)


def _gradient_rows(
    benched: Benched,
    terms: Terms,
    cotangents: Sequence[HostTensor | None],
    asked: Sequence[tuple[int, str, Leaf, Leaf]],
    pick: Pick = _gradients,
    *,
    captured: bool = False,
) -> tuple[Compared, ...]:
    """Return the rows of gradients, asked for by position, name, and the leaves of both sides."""
    inputs = benched.tested.inputs
    judge = _judge(inputs, terms, "backward")
    implementations = _implementations(benched, terms, pick, cotangents, captured=captured)
    rows = []
    for position, name, tested, bench in asked:
        mine = inputs.gradient_as_computed(tested)
        rows.append(compared(name, mine, bench, judge, implementations(position, mine)))
    return tuple(rows)


def _gradients_failed(result: DirectionCheck, failure: Failure | None) -> DirectionCheck:
    assert failure is not None
    if failure.lacks_kernel:
        raise NotCheckable(f"backward: the CPU has no kernel for it: {failure.text}")
    note = f"backward: the device raised where the bench is fine: {failure.text}"
    return replace(result, notes=(note, *result.notes), ruled=Verdict.ERROR, outcome=Outcome.RAISED)


def _require_same_choice(
    inputs: Inputs, framework: str, tested: Sequence[Leaf], bench: Sequence[Leaf]
) -> None:
    """Require that both sides chose the same of several right outputs, as gradients depend on the choice.

    Raises:
        NotCheckable: they chose differently.
    """
    if isinstance(AMBIGUOUS.of(inputs.record.name.type_name, framework), Stepped):
        return  # the gradient is that of the input, wherever it is rounded to
    chosen = chosen_like(inputs.record.name, inputs.call, tested, bench, framework)
    for mine, other in zip(chosen, bench, strict=True):
        # Where both chose the same vectors, they differ by factors that are 1 but for rounding.
        if mine is not other and not np.allclose(mine.data, other.data, 1e-3, 1e-3, equal_nan=True):
            raise NotCheckable(
                "backward: of several right outputs (equal values, signs of vectors) the device took"
                " others than the bench, and their gradients differ"
            )


def _implementations(
    benched: Benched,
    terms: Terms,
    pick: Pick,
    cotangents: Sequence[HostTensor | None] = (),
    *,
    captured: bool = False,
) -> ImplementationsByPlace:
    """Return a function from the position of a leaf to its implementations, which are computed once a
    standard reads them. `captured`: the dump's results are judged, else those of the device."""
    measured, inputs = benched.tested.measured, benched.tested.inputs
    float32 = terms.float32 if captured or measured is None else measured.float32
    device = (inputs.record.autocast_device or "cpu") if captured else terms.device

    # Most outputs are the bench's bits, and no standard reads their implementations. `functools.cache` takes
    # longer to set up than a small call to compare.
    made: list[Implementations] = []

    def implementations() -> Implementations:
        if not made:
            found = Implementations(
                benched.function,
                inputs.bench_call,
                inputs.plan,
                pick,
                tuple(cotangents),
                kernel_is_tested=terms.tests_own_kernel,
                float32=float32.of_call(inputs.record.name.type_name),
                narrow_steps=inputs.narrow_steps(device),
            )
            made.append(found)
        return made[0]

    def of(position: int, tested: Leaf) -> Callable[[], Sequence[Array]]:
        if not isinstance(tested, HostTensor):
            return no_implementations
        return lambda: implementations().of(position, tested)

    return of
