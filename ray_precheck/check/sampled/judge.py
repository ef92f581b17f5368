"""The station that judges large products by a sample, beside the whole bench.

Comes in: `UnderTest`, and a function that lets the device compute the gradients. Goes out: the checks of both
directions if all is clear, None where there is doubt; then the stations behind it compute the whole bench, so
that nobody is blamed for what a sample says. Called by the checker.

A result is looked at in two ways. Some of its rows, those with the largest numbers and others by chance, are
computed in float64 from the operands that belong to them, and judged as a whole result is: by the error of
honest implementations, and by the shape of errors. All of its elements are looked at together, in sums by
chance: of rows of a product (`sampled.products`), of columns of attention (`sampled.attention`). Their errors
must keep to the limits of the sample, and be as large as in the sample.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.bench.products import product_of
from ray_precheck.bench.run import Bench
from ray_precheck.check.inputs import cotangents_of
from ray_precheck.check.judge import Compared, DirectionCheck
from ray_precheck.check.sampled.attention import attention_of
from ray_precheck.check.sampled.parts import DTYPES_SEEN, LargeCall, SampledCall
from ray_precheck.check.sampled.products import SampledProduct
from ray_precheck.check.sampled.tiles import tiled_of, tiles_in
from ray_precheck.check.settings import Terms
from ray_precheck.check.tested import UnderTest, captured_gradients, has_captured_gradients
from ray_precheck.descriptors.descriptor import find_framework
from ray_precheck.frameworks.base import Leaf, tensors_of
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.values import HostTensor

# Products of fewer multiply-adds cost less than what is said about them.
LEAST_MACS = 1e7


def judge_sampled(
    bench: Bench,
    tested: UnderTest,
    terms: Terms,
    run_gradients: Callable[[UnderTest], UnderTest],
    *,
    samples: bool = True,
    is_final: bool = False,
) -> tuple[DirectionCheck, DirectionCheck] | None:
    """Return the checks of both directions where parts of the bench show that all results are right; None
    where they do not, and for calls that are not large, or that are not known to have such parts.

    `run_gradients` returns the call with the gradients of the device. Without `samples` each element of each
    result is compared. `is_final`: the whole bench of a product is not computed where there is doubt, so that
    there are rows of errors, too.

    Raises:
        NotCheckable: there is no bench, or the gradients cannot be tested.
    """
    call = _large_call(bench, tested, terms)
    if call is None or not (samples or tiles_in(call)):
        return None
    call = replace(call, is_final=is_final)
    gradients = _Gradients((), None)
    if tested.inputs.record.has_backward:
        found = _captured(call) if _has_captured(call) else _computed(call, run_gradients)
        if found is None:
            return None
        call, gradients = found
    incoming = gradients.incoming
    sampled = tiled_of(call, incoming, gradients.asked) or _sampled(call, incoming)
    name = tested.inputs.output_name("forward", 0)
    row = None if sampled is None else sampled.output(name, call.output)
    if sampled is None or row is None:
        return None
    forward = DirectionCheck((row,), _notes(call, [row]))
    if incoming is None:
        return forward, DirectionCheck(ruled=Verdict.NONE)
    rows = _gradient_rows(sampled, gradients)
    if rows is None:
        return None
    return forward, DirectionCheck(rows, _notes(call, rows), cotangents=(incoming,))


class _Gradients(NamedTuple):
    """The gradients that are tested, each with the name of its row and its place among the tensors of the
    call; `incoming` is the incoming one, None where there is no backward pass."""

    asked: Sequence[tuple[str, int, Leaf]]
    incoming: HostTensor | None


def _has_captured(call: LargeCall) -> bool:
    return call.terms.tests_dump and has_captured_gradients(call.tested.inputs.record)


def _computed(
    call: LargeCall, run_gradients: Callable[[UnderTest], UnderTest]
) -> tuple[LargeCall, _Gradients] | None:
    """Return the call with the gradients of the device, None where it has none."""
    tested = run_gradients(call.tested)
    inputs, measured = tested.inputs, tested.measured
    if measured is None or not measured.outputs or measured.gradients is None:
        return None
    incoming = tested.cotangents or cotangents_of(inputs, measured.outputs)
    asked = [
        (inputs.output_name("backward", number), position, inputs.gradient_as_computed(gradient))
        for number, (position, gradient) in enumerate(
            zip(inputs.plan.differentiable, measured.gradients, strict=True)
        )
    ]
    if len(incoming) != 1 or incoming[0] is None:
        return None
    return replace(call, tested=tested), _Gradients(asked, incoming[0])


def _captured(call: LargeCall) -> tuple[LargeCall, _Gradients] | None:
    """Return the call with the gradients of the dump, None where it does not say to which tensor each
    belongs."""
    inputs = call.tested.inputs
    record = inputs.record
    if record.gradient_of is None and find_framework(call.terms.framework).node_gradients:
        return None
    tensors = tensors_of(inputs.call)
    wanted = inputs.plan.differentiable
    shapes = [each.shape if at in wanted else None for at, each in enumerate(tensors)]
    incoming = cotangents_of(inputs, [call.output])
    if incoming[0] is None:
        return None
    matched = captured_gradients(record, inputs.source, shapes)
    asked = [
        (inputs.output_name("backward", theirs), mine, inputs.gradient_as_computed(gradient))
        for mine, (theirs, gradient) in matched.items()
    ]
    return call, _Gradients(asked, incoming[0])


def _notes(call: LargeCall, rows: Sequence[Compared]) -> tuple[str, ...]:
    """Return the notes of a direction: beside rows that pass, a row that is in doubt says nothing."""
    doubts = [row.check for row in rows if row.check.verdict is Verdict.SKIP]
    said = [f"{'.'.join(each.name.split('.')[-3:])}: {each.message}" for each in doubts]
    return tuple(filter(None, [call.tested.note, *(said if len(said) < len(rows) else ())]))


def _large_call(bench: Bench, tested: UnderTest, terms: Terms) -> LargeCall | None:
    """Return a call as one that can be sampled: of plain tensors, with one output of a known dtype."""
    inputs, measured = tested.inputs, tested.measured
    name, plan = inputs.record.name, inputs.plan
    is_plain = not (plan.in_place or plan.changed or inputs.narrow_steps(terms.device))
    if not isinstance(terms.standard, Auto) or not is_plain or bench.origin(name):
        return None
    if tested.outputs is None or len(tested.outputs) != 1:
        return None
    # The results of transposed inputs are there if they differ, and are judged by the whole bench.
    if measured is not None and (measured.transposed is not None or measured.error is not None):
        return None
    output, call = tested.outputs[0], inputs.bench_call
    if not isinstance(output, HostTensor) or output.dtype not in DTYPES_SEEN:
        return None
    if any(each.storage for each in (*tensors_of(call), output)):
        return None
    return LargeCall(tested, terms, bench.resolve(name), call, output)


def _sampled(call: LargeCall, incoming: HostTensor | None) -> SampledCall | None:
    """Return the way in which a call is sampled, None for none."""
    record, output = call.tested.inputs.record, call.output
    attention = attention_of(call, LEAST_MACS, incoming)
    if attention is not None:
        return attention
    if {each.dtype for each in tensors_of(call.call)} != {output.dtype}:
        return None
    product = product_of(record.name.type_name, record.framework, call.call, output.shape)
    if product is None or product.macs < LEAST_MACS:
        return None
    return SampledProduct(call, product, incoming)


def _gradient_rows(sampled: SampledCall, gradients: _Gradients) -> tuple[Compared, ...] | None:
    """Return the rows of the gradients, None where one is in doubt."""
    rows: list[Compared] = []
    for name, position, mine in gradients.asked:
        if not isinstance(mine, HostTensor) or mine.dtype not in DTYPES_SEEN:
            return None
        row = sampled.gradient(name, position, mine)
        if row is None:
            return None
        rows.append(row)
    return tuple(rows)
