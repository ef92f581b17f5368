"""The nouns of scheduling: tasks, their payloads for workers, and the slots that run them.

Also here: a worker's report on a batch: the results, and the record that broke the worker, if any; the
phases of a runner's work, which a check process tells to the worker that watches it.

The result of one piece of a job: its rows, encoded in the worker, and the seconds that it took. The
scheduler, the recorder and the journal handle these and nothing else of a job.
"""

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.result import Outcome, Verdict

# The kind of a slot that has a processor core for benches and no device.
BENCH = "bench"


@dataclass(frozen=True, slots=True)
class Task:
    """One API call to check: its place in the dump, its name and its expected cost.

    A task has no tensors and no record: the driver may hold a million of them.
    `cost_s` is an estimate in seconds on one CPU core, device and bench together, used only for
    order, batch size and the choice of who does it; `nbytes` are the bytes of its outputs and
    gradients, which a bench elsewhere needs in any case.
    """

    index: int
    name: str
    cost_s: float
    nbytes: int = 0


@pickled_by_position
@dataclass(frozen=True, slots=True)
class TaskPayload:
    """A task on its way to a worker: the raw JSON of its two records, decoded where it is run."""

    index: int
    name: str
    forward: bytes | None
    backward: bytes | None


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """A place where one worker runs: a physical NPU or GPU, or a logical slot of the CPU.

    `node_id` is Ray's node id, `address` the node's address for messages, `visible` the value of the
    worker's visible-devices variable. `host` is part of the label if devices of several machines have
    the same ids. `core` is the core to which the worker is pinned, by its position among the usable
    cores of its machine; None: any core.
    """

    kind: str
    device_id: int
    node_id: str
    address: str
    visible: str
    host: str = ""
    core: int | None = None

    @property
    def label(self) -> str:
        """How the slot is called in messages: `npu:3`, `node-a/npu:3`."""
        name = f"{self.kind}:{self.device_id}"
        return f"{self.host}/{name}" if self.host else name

    @property
    def place(self) -> str:
        """The unit that fails together with the slot: the machine of a CPU, a device itself."""
        return self.node_id if self.kind in ("cpu", BENCH) else self.label


@pickled_by_position
@dataclass(frozen=True, slots=True)
class Done:
    """One piece that is finished.

    `row` is its line of the result table and `details` are its lines of the details table, encoded
    and with their line ends. `began_s` is the time of its beginning, in seconds since the epoch; the
    other seconds are the durations of the inputs, the device and the bench, each in its own process.
    `evidence` are files by name that the worker could not write into the folder of the results itself.
    `heats` are lines of `store.heat`, one for each output in error.
    """

    index: int
    name: str
    verdict: Verdict
    row: bytes
    details: bytes = b""
    began_s: float = 0.0
    inputs_s: float = 0.0
    device_s: float = 0.0
    bench_s: float = 0.0
    evidence: tuple[tuple[str, bytes], ...] = ()
    heats: tuple[bytes, ...] = ()

    @property
    def elapsed_s(self) -> float:
        """How long it took, all parts together."""
        return self.inputs_s + self.device_s + self.bench_s


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
    `seen_s` is when it was seen, in seconds since the epoch, 0 where that is unknown.
    """

    index: int
    cause: Cause
    reason: str
    done: Done | None = None
    seen_s: float = field(default=0.0, compare=False)


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


class Phase(IntEnum):
    """The parts of a piece of work; the value fits a byte.

    A device that gives no answer in time is an error of the piece. A bench that takes too long says
    nothing about the device, so that the time in BENCH has a limit of its own.
    """

    INPUTS = 0
    DEVICE = 1
    BENCH = 2
