"""The guard of a check process: every exception of a check becomes a result.

Comes in: a payload, and the function that checks it. Goes out: what the function returns, or a
`TaskResult` that says why the call could not be checked. Called by the checker around all stations.
After an error of the device the guard has the device prove itself, and notes whether it is damaged.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ray_precheck.check.attempt import describe, is_out_of_memory
from ray_precheck.check.device import Device, DeviceNeeded
from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import caught
from ray_precheck.schema.failure import Cause
from ray_precheck.schema.result import Outcome, TaskResult, failed, skipped
from ray_precheck.schema.task import TaskPayload

T = TypeVar("T")


class Guard:
    """Guards one check after the other; `damage` is how the last check has damaged this process."""

    def __init__(self, device: Device, prove: Callable[[], None], limit_bytes: int) -> None:
        self._device = device
        self._prove = prove
        self._limit_bytes = limit_bytes
        self.damage: Cause | None = None

    def guarded(self, payload: TaskPayload, check: Callable[[], T]) -> T | TaskResult:
        """Return what a check returns, or the result of a call that could not be checked.

        Raises:
            DeviceNeeded: this process has no device and the check needs one.
        """
        self.damage, self._device.has_raised = None, False
        # A bug of this program must neither be blamed on the API nor end the run.
        value, error = caught(check, DeviceNeeded)
        if error is None:
            found: T | TaskResult = value  # type: ignore[assignment]
        elif isinstance(error, NotCheckable):
            found = _skipped_row(payload, str(error))
        elif is_out_of_memory(error):
            self.damage = Cause.OUT_OF_MEMORY
            return _out_of_memory_row(payload, error, self._limit_bytes)
        else:
            found = _skipped_row(payload, f"ray_precheck failed on this record: {describe(error)}")
        why = self._unusable() if self._device.has_raised else ""
        return _with_note(found, why) if why and isinstance(found, TaskResult) else found

    def _unusable(self) -> str:
        """Let the device prove itself; return the reason if it fails, "" if it works."""
        # The proof uses APIs of the framework, which may raise anything.
        _, error = caught(self._prove)
        if error is None:
            return ""
        self.damage = Cause.POISONED
        return describe(error)


def _with_note(result: TaskResult, why: str) -> TaskResult:
    note = f"the device was unusable afterwards: {why}"
    return replace(result, message="; ".join(filter(None, [result.message, note])))


def _skipped_row(payload: TaskPayload, reason: str) -> TaskResult:
    """Return the result of a call that cannot be checked."""
    return skipped(payload.index, payload.name, reason, payload.backward is not None)


def _out_of_memory_row(payload: TaskPayload, error: Exception, limit_bytes: int) -> TaskResult:
    """Return the result of a call for which there was not enough memory.

    `limit_bytes` is the limit of the worker, which the reason names; 0 for no limit.
    """
    limit = limit_bytes / 2**30
    allowed = f" (a worker may take {limit:.3g} GiB, --max-memory)" if limit else ""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    reason = f"ran out of memory: {describe(cause)}{allowed}"
    has_backward = payload.backward is not None
    return failed(payload.index, payload.name, Outcome.CRASHED, reason, has_backward)
