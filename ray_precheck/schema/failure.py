"""A worker's report on a batch: the results, and the record that broke the worker, if any."""

from dataclasses import dataclass
from enum import Enum

from ray_precheck.schema.done import Done
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.result import Outcome


class Cause(Enum):
    """How a record broke its worker."""

    CRASHED = "the process ended by a signal or an exit code"
    KILLED = "the process was ended by SIGKILL, which anyone may have sent"
    TIMED_OUT = "no answer in time"
    OVER_BUDGET = "its bench took longer than it may"
    OUT_OF_MEMORY = "an allocation failed"
    POISONED = "the device cannot compute 1 + 1 any more"
    SILENT = "the worker answered without a result for it"
    LOST = "the worker is gone with its machine, or was ended from outside"

    @property
    def outcome(self) -> Outcome:
        """The outcome of a record that is found guilty of it."""
        return Outcome.TIMED_OUT if self is Cause.TIMED_OUT else Outcome.CRASHED


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A record that was running when its worker broke, and why.

    `done` is the result that the record gave before it broke the worker (by a failed allocation, or an
    error that left the device unusable); it counts only if the record ran alone on a fresh worker.
    """

    index: int
    cause: Cause
    reason: str
    done: Done | None = None


@pickled_by_position
@dataclass(frozen=True, slots=True)
class MeasuredTask:
    """A record whose device half is done: the bytes that wait for its bench, and when it ran, in
    seconds since the epoch."""

    index: int
    nbytes: int
    began_s: float = 0.0
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The answer of a worker: the records that it finished, and the record that broke it.

    Records are run in their order: those after the failure were not run. `measured` are those that
    wait for the bench, `needs_device` the indices that a worker without one could not check, as it lacks
    the device's results, too.
    `handover_s` are the seconds that passing tensors between processes took.
    """

    results: tuple[Done, ...]
    failure: WorkerFailure | None = None
    measured: tuple[MeasuredTask, ...] = ()
    needs_device: tuple[int, ...] = ()
    handover_s: float = 0.0
