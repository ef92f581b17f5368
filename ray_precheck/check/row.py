"""The station that makes the row: the judgement of both directions becomes a `TaskResult`.

Comes in: `Judged`. Goes out: a `TaskResult`. Called by the checker, last but for the evidence;
`skipped_row` and `out_of_memory_row` are called by `check.guard`.
"""

from ray_precheck.check.judged import Judged
from ray_precheck.check.sides.raised import describe
from ray_precheck.schema.result import Outcome, TaskResult, Verdict, failed, skipped
from ray_precheck.schema.task import TaskPayload


def make_row(judged: Judged) -> TaskResult:
    """Return the result row of a call and its detail rows."""
    inputs, forward, backward = judged.inputs, judged.forward, judged.backward
    # Cotangents may be drawn for the device and for the bench, each with its notes.
    drawn = dict.fromkeys(getattr(inputs.source, "notes", []))
    notes = [*forward.messages, *backward.messages, *drawn]
    verdicts = forward.verdict, backward.verdict
    caveat = forward.caveat or backward.caveat
    if caveat and Verdict.ERROR in verdicts:
        notes.append(caveat)
    raised = Outcome.RAISED in (forward.outcome, backward.outcome)
    return TaskResult(
        index=inputs.payload.index,
        name=inputs.payload.name,
        outcome=Outcome.RAISED if raised else Outcome.COMPLETED,
        forward=verdicts[0],
        backward=verdicts[1],
        message="; ".join(notes),
        checks=tuple(row.check for row in judged.rows),
    )


def skipped_row(payload: TaskPayload, reason: str) -> TaskResult:
    """Return the result of a call that cannot be checked."""
    return skipped(payload.index, payload.name, reason, payload.backward is not None)


def out_of_memory_row(payload: TaskPayload, error: Exception, limit_bytes: int) -> TaskResult:
    """Return the result of a call for which there was not enough memory.

    `limit_bytes` is the limit of the worker, which the reason names; 0 for no limit.
    """
    limit = limit_bytes / 2**30
    allowed = f" (a worker may take {limit:.3g} GiB, --max-memory)" if limit else ""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    reason = f"ran out of memory: {describe(cause)}{allowed}"
    has_backward = payload.backward is not None
    return failed(payload.index, payload.name, Outcome.CRASHED, reason, has_backward)
