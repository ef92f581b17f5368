"""The commands of the scheduler, which the driver carries out.

Also here: the stages of a record, which a worker runs together or one at a time.
"""

from dataclasses import dataclass
from enum import Enum

from ray_precheck.schema.task import Done, Task


class Stage(Enum):
    """The part of a record that a worker runs: all of it, the device's half, or the bench's half."""

    CHECK = "check"
    DEVICE = "device"
    BENCH = "bench"


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker on a slot, or replace the worker that is there by a fresh one."""

    slot: str


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Send tasks to the worker of a slot, which runs them one after the other, each within its limit in
    seconds.

    The answer names the `ticket`; an answer with an older ticket is ignored. With the stage BENCH,
    `transfer` is the ticket of the batch in which a device measured these tasks.
    """

    slot: str
    ticket: int
    tasks: tuple[Task, ...]
    limits_s: tuple[float, ...]
    stage: Stage = Stage.CHECK
    transfer: int = 0


@dataclass(frozen=True, slots=True)
class Prepare:
    """Read the captured files of tasks, and send them on their way to a slot, under a `ticket`."""

    slot: str
    ticket: int
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the files that were prepared under a ticket, and what a device measured under it."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Record:
    """Write results; the result of each record is in exactly one of these commands."""

    results: tuple[Done, ...]


@dataclass(frozen=True, slots=True)
class GiveUpDevice:
    """Report that the worker of a device could not be started; the other devices go on."""

    slot: str
    reason: str


Command = StartWorker | SendBatch | Prepare | Forget | Record | GiveUpDevice
