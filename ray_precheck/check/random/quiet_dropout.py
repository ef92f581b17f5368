"""Captured calls of dropout that dropped nothing, although their recorded arguments say otherwise.

Comes in: `UnderTest`, of a call with dropout whose outputs are captured. Goes out: `QuietDropout`, or
None where something was dropped. Called by the checker before a random call is judged by statistics.

msprobe's `seed_all(rm_dropout=True)` sets the probability of every dropout to 0 after the arguments were
recorded: the record says 0.5, and the output is the input. Only captured results are excused in this
way; a device that runs here and drops nothing is an error.
"""

from dataclasses import dataclass, replace

import numpy as np

from ray_precheck.bench.drawing import is_dropping, shows_mask, without_drawing
from ray_precheck.bench.run import Bench
from ray_precheck.check.bench import Benched, run_bench
from ray_precheck.check.decode import decoded_record
from ray_precheck.check.inputs import cotangents_of, make_inputs
from ray_precheck.check.judge import Compared, DirectionCheck, compared, judge_forward
from ray_precheck.check.random.arguments import bind
from ray_precheck.check.settings import Terms
from ray_precheck.check.tested import UnderTest
from ray_precheck.descriptors.known import find_framework
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Leaf
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.values import HostTensor, TensorSpec

_SWITCHED_OFF = (
    "dropout was switched off when this was captured, as msprobe's seed_all(rm_dropout=True) does"
)
IDENTITY = f"the output is the input exactly: {_SWITCHED_OFF}"
WITHOUT = f"the output is that without dropout: {_SWITCHED_OFF}"


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
