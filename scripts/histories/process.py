"""The check process of a simulated worker; the worker above it is the package's own.

Comes in: batches. Goes out: a `BatchReport`, and the outputs of the device. The `Cast` says how a
record breaks its process.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ray_precheck.errors import DeviceError
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.runtime.workers import worker as worker_module
from ray_precheck.runtime.workers.messages import Sealed, Work
from ray_precheck.runtime.workers.worker import Worker
from ray_precheck.schema.task import BENCH, BatchReport, Cause, DeviceSlot, Done, MeasuredTask
from scripts.histories.answers import BAD_PLACE, NEEDS_DEVICE, TAINTS, Cast, Choices, Layout, broken
from scripts.histories.rules import require


class WorkerDies(Exception):
    """A record has ended the whole worker, not only its process."""


class Surroundings(Protocol):
    """The machines that a process runs on, as far as it asks them."""

    cast: Cast
    choices: Choices
    layout: Layout

    def needs_files(self, node_id: str) -> bool:
        """Return whether files have to be sent to a node."""

    def fails_to_start(self, label: str) -> bool:
        """Return whether a process does not start now."""


class SimulatedWorker(Worker):
    """The package's worker with simulated processes."""

    def __init__(
        self, machine: Surroundings, slot: DeviceSlot, *others: Any, **options: Any
    ) -> None:
        self.machine = machine
        super().__init__(slot, *others, **options)

    @property
    def process(self) -> "Process | None":
        """The simulated process of this worker, None while it has none."""
        return self._process  # type: ignore[return-value]

    def _launch(self, server: Any) -> str:
        self._process = Process(self.machine, self._slot)  # type: ignore[assignment]
        return self._process.wait_ready()  # type: ignore[union-attr]


class Process:
    """A process that runs records; it is killed at the record `killed_at` of the next batch."""

    def __init__(self, machine: Surroundings, slot: DeviceSlot) -> None:
        self._machine = machine
        self._slot = slot
        self._batches: deque[Sequence[Work]] = deque()
        self.used = False
        self.is_closed = False
        self.killed_at = -1
        self._tainted = False

    def wait_ready(self) -> str:
        if self._machine.fails_to_start(self._slot.label):
            raise DeviceError("no driver")
        return ""

    def submit(self, batch: Sequence[Work]) -> None:
        self._batches.append(batch)

    def close(self) -> None:
        self.is_closed = True

    def collect(
        self,
        batch: Sequence[Work],
        limits_s: Sequence[float],
        halted: Callable[[], bool],
        *,
        budget_s: float,
    ) -> tuple[BatchReport, dict[int, Sealed]]:
        """Do the oldest batch that was submitted."""
        require(self._batches.popleft() is batch, "a process does another batch than is awaited")
        machine = self._machine
        self._require_needs(batch)
        most = len(batch)
        if halted():
            most = machine.choices.below(most + 1)
        results: list[Done] = []
        measured: list[MeasuredTask] = []
        sealed: dict[int, Sealed] = {}
        needs_device: list[int] = []
        for position, work in enumerate(batch[:most]):
            how = self._run(work, position)
            self.used = True
            if how is Cause.LOST:
                raise WorkerDies
            if how == NEEDS_DEVICE:
                needs_device.append(work.index)
            elif isinstance(how, Cause) and how is not Cause.SILENT:
                self.close()
                report = broken(results, machine.cast.tasks[work.index], how)
                failure = report.failure
                return BatchReport(tuple(results), failure, tuple(measured)), sealed
            elif how is Cause.SILENT:
                continue
            elif work.stage is Stage.DEVICE and machine.cast.measures(work.index):
                nbytes = machine.cast.tasks[work.index].nbytes // (1 + work.index % 3)
                measured.append(MeasuredTask(work.index, nbytes))
                sealed[work.index] = Sealed(str(work.index).encode())
            else:
                results.append(machine.cast.answer(work.index))
            self._tainted = how == TAINTS
        if most < len(batch):
            self.close()
        report = BatchReport(tuple(results), None, tuple(measured), tuple(needs_device))
        return report, sealed

    def _run(self, work: Work, position: int) -> Cause | str | None:
        """Return how a record misbehaves, None where it does not."""
        machine, slot = self._machine, self._slot
        if slot.kind == BENCH:
            return machine.cast.run_bench(work.index)
        if self.killed_at == position:
            return Cause.KILLED
        if self._tainted or (machine.layout.has_bad_place and slot.place == BAD_PLACE):
            return Cause.CRASHED
        how = machine.cast.run(work.index)
        if how is Cause.OVER_BUDGET and work.stage is Stage.DEVICE:
            return None
        return how

    def _require_needs(self, batch: Sequence[Work]) -> None:
        """Check that each record came with the transfer and the files that it needs."""
        for work in batch:
            if work.stage is Stage.BENCH:
                half = work.half.data if work.half is not None else b""
                require(half == str(work.index).encode(), f"{work.index} lacks what was made of it")
            if self._machine.needs_files(self._slot.node_id):
                require(work.files == frozenset([work.index]), f"{work.index} lacks its files")


def without_a_machine() -> dict[str, Any]:
    """Return stand-ins for the functions of `worker` that would change this process."""
    return {"_allow_descriptors": lambda: None}


WORKER_MODULE: Any = worker_module
