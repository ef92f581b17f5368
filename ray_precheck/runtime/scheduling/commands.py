"""What the scheduler wants done. Called by the driver, which does it, and by whoever plays a driver."""

from dataclasses import dataclass

from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.schema.done import Done
from ray_precheck.schema.task import Task


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Have a fresh worker on a slot: start one, or replace the one that is there."""

    slot: str


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Send tasks to the worker of a slot; each may take its number of seconds, one after the other.

    The answer must name the `ticket`: an answer to an older one comes too late. The bench's half
    goes with what a device has made of the tasks under `parcel`, the ticket of that batch.
    """

    slot: str
    ticket: int
    tasks: tuple[Task, ...]
    limits_s: tuple[float, ...]
    stage: Stage = Stage.CHECK
    parcel: int = 0


@dataclass(frozen=True, slots=True)
class Prepare:
    """Have the captured files of tasks on their way to a slot; they are sent to it under `ticket`."""

    slot: str
    ticket: int
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """What was prepared, or made by a device, under a ticket is not needed any more."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Record:
    """Write results; each record is in exactly one of these commands."""

    results: tuple[Done, ...]


@dataclass(frozen=True, slots=True)
class GiveUpDevice:
    """A device could not be started; the others go on."""

    slot: str
    reason: str


Command = StartWorker | SendBatch | Prepare | Forget | Record | GiveUpDevice
