"""Dropout that was switched off while its outputs were captured, against its record's arguments.

Comes in: a `Job` whose captured outputs are tested. Goes out: its forward and backward check, or None
where something was dropped. Called by the checker before a random call is judged by statistics.

msprobe's `seed_all(rm_dropout=True)` sets the probability of every dropout to 0 below the place where
the arguments are recorded: the record says 0.5, and the output is the input. A device that is run
here and drops nothing is never excused: only captured results come here.
"""

from dataclasses import replace

import numpy as np

from ray_precheck.check.job import DirectionCheck, Job
from ray_precheck.check.judge import check_backward, check_forward
from ray_precheck.check.measured import cotangents_of
from ray_precheck.check.random.arguments import bind
from ray_precheck.datagen.generate import build_call
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Leaf
from ray_precheck.frameworks.known import find_framework
from ray_precheck.plan.drawing import is_dropping, shows_mask, without_drawing
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.values import HostTensor, TensorSpec

_SWITCHED_OFF = (
    "dropout was switched off when this was captured, as msprobe's seed_all(rm_dropout=True) does"
)
IDENTITY = f"the output is the input exactly: {_SWITCHED_OFF}"
WITHOUT = f"the output is that without dropout: {_SWITCHED_OFF}"


class QuietDropout:
    """A captured call that dropped nothing: `forward` is checked, `backward` on request."""

    def __init__(self, job: Job, forward: DirectionCheck) -> None:
        self._job = job
        self.forward = forward

    def backward(self, _: Job) -> DirectionCheck:
        """Compare the captured gradients with those of the call without dropout.

        Raises:
            NotCheckable: the dump holds none, or those of another operator.
        """
        if is_dropping(self._job.record):
            return _identity_backward(self._job)
        return check_backward(self._job)


def quiet_dropout(job: Job) -> QuietDropout | None:
    """Return the check of a captured call that dropped nothing; None where it did, or draws otherwise.

    Raises:
        NotCheckable: a captured file cannot be used.
    """
    if not job.sides.tests_dump or not is_dropping(job.record) or job.captured is None:
        return None
    if shows_mask(job.record):
        return _identity(job, job.captured)
    return _element_by_element(job)


def _identity(job: Job, outputs: list[Leaf]) -> QuietDropout | None:
    x, out = bind("input|x", job.call).get("input"), outputs[0]
    if not isinstance(x, HostTensor) or not isinstance(out, HostTensor):
        return None
    # Of zeros nobody can tell whether they were dropped.
    if DTYPES[x.dtype].kind != "float" or not _same_bits(x, out) or not x.data.any():
        return None
    result = DirectionCheck()
    expected: list[Leaf] = [_widened(x)]
    if len(outputs) > 1:  # native_dropout returns its mask, too
        expected.append(HostTensor("bool", np.ones(x.shape, np.bool_)))
    for position, (tested, bench) in enumerate(zip(outputs, expected, strict=False)):
        name = f"{job.record.name}.forward.output.{position}"
        result.compare(name, tested, bench, job.judge("forward"))
    _note(result, IDENTITY)
    return QuietDropout(job, result)


def _same_bits(one: HostTensor, other: HostTensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.array_equal(_bits(one.data), _bits(other.data))


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _widened(x: HostTensor) -> HostTensor:
    return HostTensor("float64", x.data.astype(np.float64))


def _note(result: DirectionCheck, text: str) -> None:
    """Say it in every row that is no error, and in the Message of the call."""
    result.checks = [
        check
        if check.verdict is Verdict.ERROR
        else replace(check, message="; ".join(filter(None, [check.message, text])))
        for check in result.checks
    ]
    result.notes.append(text)


def _identity_backward(job: Job) -> DirectionCheck:
    """Compare the captured gradient with the incoming one.

    torch has no step in its graph for what does nothing. msprobe hooks the step that made the output,
    which is then the one of the operator before; only an equal gradient can be told to be this one's.
    """
    captured = [
        (position, spec)
        for position, spec in enumerate(job.record.grads_out or ())
        if isinstance(spec, TensorSpec)
    ]
    if not captured:
        raise NotCheckable(
            "backward: the dump holds no gradient of a dropout that was switched off"
        )
    assert job.captured is not None
    result = DirectionCheck()
    result.cotangents = cotangents_of(job, job.captured)
    incoming = result.cotangents[0]
    position, spec = captured[0]
    tested = job.source.tensor(spec, f"backward output.{position}")
    is_same = incoming is not None and _same_bits(tested, incoming)
    if not is_same and find_framework(job.sides.framework).node_gradients:
        raise NotCheckable(
            "backward: dropout was switched off when this was captured and has no step of its own in"
            " torch's graph; the captured gradient is that of the operator before it"
        )
    name = f"{job.record.name}.backward.output.{position}"
    expected = None if incoming is None else _widened(incoming)
    result.compare(name, tested, expected, job.judge("backward"))
    if not result.failing:
        _note(result, "the gradient is the incoming one exactly")
        result.notes.clear()  # the forward check has said why
    return result


def _element_by_element(job: Job) -> QuietDropout | None:
    """Compare with the bench without dropout: attention, recurrent layers."""
    record = without_drawing(job.record)
    if is_dropping(record):
        return None
    other = Job(job.payload, record, build_call(record, job.source), job.source, job.sides)
    try:
        forward = check_forward(other)
    except NotCheckable:
        return None
    if forward.verdict is not Verdict.PASS:
        return None
    _note(forward, WITHOUT)
    return QuietDropout(other, forward)
