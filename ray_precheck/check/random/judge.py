"""The station that judges calls whose output is random, in the place of `check.judge`.

Comes in: `UnderTest`. Goes out: a `DirectionCheck`. Called by the checker. Random outputs cannot be
compared with a bench: they are judged by facts that hold for all draws (such as a range), and by
statistics whose limits a correct generator exceeds once in a million calls.
"""

from dataclasses import dataclass, replace

import numpy as np

from ray_precheck.accuracy.random.bounds import FALSE_ALARM_RATE
from ray_precheck.accuracy.random.pooled import Drawn, drawn_text
from ray_precheck.accuracy.random.statistics import Observation, check_random_output, drawn_of
from ray_precheck.bench.checkable import is_dropping, seed_of, shows_mask, without_drawing
from ray_precheck.bench.run import Bench
from ray_precheck.check.bench import Benched, run_bench
from ray_precheck.check.decode import decoded_record
from ray_precheck.check.device import AGAIN
from ray_precheck.check.inputs import Inputs, cotangents_of, make_inputs
from ray_precheck.check.judge import (
    Compared,
    DirectionCheck,
    compared,
    device_failed,
    judge_forward,
)
from ray_precheck.check.random.arguments import RandomCall, bind
from ray_precheck.check.random.rules import RandomRule, is_seeded, rule_of
from ray_precheck.check.settings import Terms
from ray_precheck.check.tested import UnderTest, captured_gradients
from ray_precheck.descriptors.descriptor import find_framework
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Leaf
from ray_precheck.operators.drawing import SELF_SEEDED
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.values import HostTensor, TensorSpec

_JUDGED = "its output is random: judged by statistics"
_REPEATED = Observation("another run with another seed drew the same", passed=False)
_OWN_SEED = "it has a seed of its own, which may be another call's: they are not judged together"
_SWITCHED_OFF = (
    "dropout was switched off when this was captured, as msprobe's seed_all(rm_dropout=True) does"
)
IDENTITY = f"the output is the input exactly: {_SWITCHED_OFF}"
WITHOUT = f"the output is that without dropout: {_SWITCHED_OFF}"


def require_rule(record: ApiRecord, framework: str) -> RandomRule:
    """Return the rule by which a random call is judged.

    Raises:
        NotCheckable: there is no rule for the distribution of this API.
    """
    rule = rule_of(record.name, framework)
    if rule is None and is_dropping(record):
        raise NotCheckable(
            "it drops at random between its steps, which does not show in its output"
        )
    if rule is None:
        raise NotCheckable("its output is random, and no statistic of it is known")
    return rule


def judge_random_forward(tested: UnderTest, bench: Bench, terms: Terms) -> DirectionCheck:
    """Judge the outputs of a random call.

    Raises:
        NotCheckable: the call cannot be run, or there is no rule for its distribution.
    """
    inputs, outputs = tested.inputs, tested.outputs
    name, recorded = inputs.record.name, inputs.record.outputs
    rule = require_rule(inputs.record, terms.framework)
    if outputs is None:
        return _device_failed(tested, bench)
    call = _random_call(inputs, rule, outputs, terms.seed)
    # An output without elements has no statistic; its row says so.
    tests = [[] if _is_empty(outputs[0]) else rule.tests(call)] if outputs else []
    repeatable = terms.tests_dump or is_seeded(name, terms.framework)
    drawn, is_own = Drawn(()), _seeds_itself(call, rule, name, terms.framework)
    if tests and repeatable and not is_own:
        drawn = drawn_of(tests[0], tested.is_captured)
        again = () if tested.measured is None or tested.is_captured else tested.measured.again
        for leaf, which in zip(again, AGAIN, strict=False):
            other = rule.tests(_random_call(inputs, rule, [leaf], terms.seed, which))
            drawn = drawn.with_sums_of(drawn_of(other, False))
        if drawn.pattern and tested.measured is not None and tested.measured.repeats_itself:
            tests[0] = [*tests[0], lambda _: _REPEATED]
    if rule.others is not None and len(outputs) > 1:
        tests.append(rule.others(call))
    rows: list[Compared] = []
    for position, (leaf, its_tests) in enumerate(zip(outputs, tests, strict=False)):
        check = check_random_output(
            inputs.output_name("forward", position),
            leaf,
            its_tests,
            terms.framework,
            chance=FALSE_ALARM_RATE / len(tests),
            recorded=recorded[position] if position < len(recorded) else None,
            repeatable=repeatable,
        )
        if not position:
            check = replace(check, drawn=drawn_text(drawn))
        if is_own and check.verdict is Verdict.PASS:
            check = replace(check, message=f"{check.message}; {_OWN_SEED}")
        rows.append(Compared(check, leaf))
    result = DirectionCheck(tuple(rows), tuple(filter(None, [tested.note])))
    if result.verdict is Verdict.SKIP:
        return result
    return replace(result, notes=(*result.notes, _JUDGED))


def _seeds_itself(call: RandomCall, rule: RandomRule, name: ApiName, framework: str) -> bool:
    """Return whether a call has a seed or a generator of its own, which may be that of another call."""
    if SELF_SEEDED.of(name.type_name, framework):
        return True
    args, kwargs = call.call.args, call.call.kwargs
    if any(kwargs[key] is not None for key in kwargs if "seed" in key or key == "generator"):
        return True
    # mindspore.ops has them by position, too: behind the parameters of the distribution, or the shape.
    named = len(rule.signature.split()) - 1 or int(bool(args) and isinstance(args[0], list | tuple))
    return bool(named) and any(type(value) is int for value in args[named:])


def _is_empty(leaf: Leaf) -> bool:
    return isinstance(leaf, HostTensor) and not leaf.data.size


def _device_failed(tested: UnderTest, bench: Bench) -> DirectionCheck:
    """Return the check of a call that raised on the device: an error, because torch runs it on the CPU.

    Raises:
        NotCheckable: torch raised, too, or does not have the API, or the CPU lacks a kernel.
    """
    failure = None if tested.measured is None else tested.measured.error
    assert failure is not None
    if failure.lacks_kernel:
        raise NotCheckable(f"the CPU has no kernel for it: {failure.text}")
    try:
        return device_failed(run_bench(bench, tested))
    except NotCheckable as reason:
        text = str(reason)
        if failure.text in text:
            raise
        raise NotCheckable(f"the device raised: {failure.text}; bench: {text}") from None


def _random_call(
    inputs: Inputs, rule: RandomRule, outputs: list[Leaf], seed: int, which: str = ""
) -> RandomCall:
    name = f"{inputs.record.name}\0spread{which}"
    spread = np.random.Generator(np.random.Philox(key=seed_of(seed, name)))
    return RandomCall(bind(rule.signature, inputs.call), inputs.call, outputs, spread)


def judge_random_backward(tested: UnderTest, terms: Terms) -> DirectionCheck:
    """Judge the gradient of a random call by the draws that can be seen in its output.

    Raises:
        NotCheckable: there is no gradient, or the output does not show the draws that it depends on.
    """
    inputs, outputs = tested.inputs, tested.outputs
    rule = require_rule(inputs.record, terms.framework)
    if not inputs.plan.differentiable:
        raise NotCheckable("backward: no floating tensor among the inputs")
    if rule.gradient is None or len(inputs.plan.differentiable) != 1:
        raise NotCheckable(
            "backward: its output is random and does not show what the gradient depends on"
        )
    if outputs is None:
        raise NotCheckable("backward: the forward pass raised")
    call = _random_call(inputs, rule, outputs, terms.seed)
    cotangents = tuple(tested.cotangents or cotangents_of(inputs, outputs))
    grads = _tested_gradients(tested, terms)
    if grads is None:
        return DirectionCheck(
            notes=(f"backward: the device raised: {_gradient_error(tested)}",),
            ruled=Verdict.ERROR,
            outcome=Outcome.RAISED,
            cotangents=cotangents,
        )
    rows = []
    for position, grad in grads.items():
        tests = [] if _is_empty(grad) else rule.gradient(call, cotangents[0], grad)
        name = inputs.output_name("backward", position)
        rows.append(Compared(check_random_output(name, grad, tests, terms.framework), grad))
    return DirectionCheck(tuple(rows), cotangents=cotangents)


def _tested_gradients(tested: UnderTest, terms: Terms) -> dict[int, HostTensor] | None:
    """Return the captured gradients, or the device's, by their position; None if the device raised.

    Raises:
        NotCheckable: there is no gradient, or the CPU has no kernel.
    """
    if terms.tests_dump:
        captured = _captured_gradient(tested.inputs)
        if captured:
            return captured
        if tested.is_captured:
            raise NotCheckable(
                "backward: the dump holds no gradient of this call; the device's own would be of other"
                " draws than the captured output's"
            )
    measured = tested.measured
    assert measured is not None
    if measured.no_gradients:
        raise NotCheckable(measured.no_gradients)
    if measured.gradients is not None:
        return {i: grad for i, grad in enumerate(measured.gradients) if grad is not None}
    failure = measured.gradient_error
    if failure is None or failure.lacks_kernel:
        text = "the forward pass raised" if failure is None else failure.text
        raise NotCheckable(f"backward: the CPU has no kernel for it: {text}")
    return None


def _captured_gradient(inputs: Inputs) -> dict[int, HostTensor]:
    """Return the captured gradient of the first input; {} where the dump holds none."""
    shapes: list[tuple[int, ...] | None] = [spec.shape for _, spec in inputs.record.input_tensors()]
    return dict(captured_gradients(inputs.record, inputs.source, shapes[:1]).values())


def _gradient_error(tested: UnderTest) -> str:
    failure = None if tested.measured is None else tested.measured.gradient_error
    return "unknown error" if failure is None else failure.text


@dataclass(frozen=True, slots=True)
class QuietDropout:
    """The forward check of a captured call that dropped nothing.

    `benched` is the same call without its dropout, for the check of its gradients; None where the call
    is a dropout alone, whose gradients `judge_identity_backward` checks.
    """

    forward: DirectionCheck
    benched: Benched | None = None


def quiet_dropout(tested: UnderTest, bench: Bench, terms: Terms) -> QuietDropout | None:
    """Return the check of a captured call that dropped nothing; None for every other random call.

    Raises:
        NotCheckable: a captured file cannot be used.
    """
    record = tested.inputs.record
    if not tested.is_captured or not is_dropping(record):
        return None
    if shows_mask(record):
        return _identity(tested, terms)
    return _element_by_element(tested, bench, terms)


def _identity(tested: UnderTest, terms: Terms) -> QuietDropout | None:
    inputs, outputs = tested.inputs, tested.outputs or []
    x, out = bind("input|x", inputs.call).get("input"), outputs[0]
    if not isinstance(x, HostTensor) or not isinstance(out, HostTensor):
        return None
    # An input of zeros gives zeros, dropped or not.
    if DTYPES[x.dtype].kind != "float" or not _same_bits(x, out) or not x.data.any():
        return None
    expected: list[Leaf] = [_widened(x)]
    if len(outputs) > 1:  # native_dropout returns its mask as a second output
        expected.append(HostTensor("bool", np.ones(x.shape, np.bool_)))
    judge = terms.judge(inputs.record.name, "forward")
    rows = tuple(
        compared(inputs.output_name("forward", position), leaf, bench, judge)
        for position, (leaf, bench) in enumerate(zip(outputs, expected, strict=False))
    )
    return QuietDropout(_noted(DirectionCheck(rows), IDENTITY))


def _same_bits(one: HostTensor, other: HostTensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.array_equal(_bits(one.data), _bits(other.data))


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _widened(x: HostTensor) -> HostTensor:
    return HostTensor("float64", x.data.astype(np.float64))


def _noted(result: DirectionCheck, text: str) -> DirectionCheck:
    """Add a note to every row that is no error, and to the Message of the call."""
    rows = tuple(_row_noted(row, text) for row in result.rows)
    return replace(result, rows=rows, notes=(*result.notes, text))


def _row_noted(row: Compared, text: str) -> Compared:
    if row.check.verdict is Verdict.ERROR:
        return row
    message = "; ".join(filter(None, [row.check.message, text]))
    return replace(row, check=replace(row.check, message=message))


def judge_identity_backward(tested: UnderTest, terms: Terms) -> DirectionCheck:
    """Compare the captured gradient of a dropout that dropped nothing with its incoming gradient.

    torch's graph has no node for such a dropout. msprobe hooks the node that made the output, which is
    then the node of the operator before: only a captured gradient that is equal to the incoming one is
    known to belong to the dropout.

    Raises:
        NotCheckable: the dump holds no gradient, or maybe that of another operator.
    """
    inputs = tested.inputs
    captured = [
        (position, spec)
        for position, spec in enumerate(inputs.record.grads_out or ())
        if isinstance(spec, TensorSpec)
    ]
    if not captured:
        raise NotCheckable(
            "backward: the dump holds no gradient of a dropout that was switched off"
        )
    assert tested.outputs is not None
    cotangents = cotangents_of(inputs, tested.outputs)
    incoming = cotangents[0]
    position, spec = captured[0]
    leaf = inputs.source.tensor(spec, f"backward output.{position}")
    is_same = incoming is not None and _same_bits(leaf, incoming)
    if not is_same and find_framework(terms.framework).node_gradients:
        raise NotCheckable(
            "backward: dropout was switched off when this was captured and has no step of its own in"
            " torch's graph; the captured gradient is that of the operator before it"
        )
    name = inputs.output_name("backward", position)
    expected = None if incoming is None else _widened(incoming)
    row = compared(name, leaf, expected, terms.judge(inputs.record.name, "backward"))
    if row.check.verdict is not Verdict.ERROR:
        row = _row_noted(row, "the gradient is the incoming one exactly")
    return DirectionCheck((row,), cotangents=tuple(cotangents))


def _element_by_element(tested: UnderTest, bench: Bench, terms: Terms) -> QuietDropout | None:
    """Compare a call with dropout inside (attention, recurrent layers) with the bench without it."""
    inputs = tested.inputs
    record = without_drawing(inputs.record)
    if is_dropping(record):
        return None
    other = make_inputs(decoded_record(inputs.payload, record), inputs.source)
    try:
        benched = run_bench(bench, replace(tested, inputs=other))
        forward = judge_forward(benched, terms)
    except NotCheckable:
        return None
    if forward.verdict is not Verdict.PASS:
        return None
    return QuietDropout(_noted(forward, WITHOUT), benched)
