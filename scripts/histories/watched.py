"""The package's scheduler and driver, as a `Lookout` watches them.

Called by `histories.world` and `histories.search`. The driver makes a `WatchedScheduler` in place of its
own scheduler; it tells the lookout of every event and of the commands that answer it. `WatchedDriver`
tells the lookout of every command that it carries out, and of the end of every step. Neither changes
what the driver does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ray_precheck.runtime.driver import Driver
from ray_precheck.runtime.scheduling.commands import Command, StartWorker
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.schema.task import BatchReport, Cause
from scripts.histories.rules import require
from scripts.histories.watch import Lookout


@dataclass(slots=True)
class WatchedScheduler(Scheduler):
    """The package's scheduler, which tells `watch`, the lookout of the living driver, every event."""

    watch: ClassVar[Any] = None
    seen_by: Lookout = field(init=False)

    def __post_init__(self, ahead: frozenset[str]) -> None:
        Scheduler.__post_init__(self, ahead)
        self.seen_by = WatchedScheduler.watch

    def drain(self) -> None:
        self.seen_by.machine.say("the run is asked to stop")
        self.seen_by.rules.draining = True
        Scheduler.drain(self)
        require(not self.wake(), "a command while draining")

    def worker_ready(self, name: str) -> list[Command]:
        if name in self.bench:
            self.seen_by.ready_benches.add(name)
        commands = Scheduler.worker_ready(self, name)
        if self.seen_by.doubles_next and name not in self.bench:
            self.seen_by.doubles_next = False
            require(not Scheduler.worker_ready(self, name), "a worker is ready twice")
            require(not Scheduler.start_failed(self, name, "late"), "a start fails that did not")
        return commands

    def start_failed(self, name: str, reason: str) -> list[Command]:
        self.seen_by.rules.reasons_to_start += 1
        return Scheduler.start_failed(self, name, reason)

    def batch_done(self, name: str, ticket: int, report: BatchReport) -> list[Command]:
        return self.seen_by.answered(self, name, ticket, report)

    def worker_lost(self, name: str, ticket: int, reason: str) -> list[Command]:
        commands = Scheduler.worker_lost(self, name, ticket, reason)
        self.seen_by.lost(name, reason, Cause.LOST, commands)
        return commands

    def slot_lost(self, name: str, reason: str) -> list[Command]:
        self.seen_by.given_up.add(name)
        commands = Scheduler.slot_lost(self, name, reason)
        started = any(isinstance(command, StartWorker) for command in commands)
        require(not started, "a start on a dead node")
        self.seen_by.lost(name, reason, Cause.LOST, commands)
        return commands

    def revive(self, name: str, place: str) -> list[Command]:
        self.seen_by.rules.reasons_to_start += 2
        return Scheduler.revive(self, name, place)

    def add_slot(self, name: str, place: str) -> list[Command]:
        self.seen_by.rules.reasons_to_start += 1
        return Scheduler.add_slot(self, name, place)

    def add_bench(self, name: str, place: str) -> list[Command]:
        self.seen_by.rules.reasons_to_start += 1
        return Scheduler.add_bench(self, name, place)

    def place_lost(self, place: str, benches: Iterable[str]) -> list[Command]:
        labels = list(benches)
        commands = Scheduler.place_lost(self, place, labels)
        self.seen_by.place_lost(place, labels, commands)
        return commands


class WatchedDriver(Driver):
    """The package's driver, which tells its lookout every command and the end of every step."""

    def __init__(self, watch: Lookout, *others: Any, **options: Any) -> None:
        self._watch = watch
        super().__init__(*others, **options)
        watch.driver_machines = self._machines

    def _carry_out(self, commands: Sequence[Command], run: Any) -> None:
        for command in commands:
            self._watch.carries_out([command], run.scheduler)
            super()._carry_out([command], run)

    def _step(self, run: Any, wait_s: float) -> None:
        super()._step(run, wait_s)
        self._watch.step_ended(len(run.recorder.pending))
        if not self._watch.rules.draining:
            require(run.scheduler.finished or run.scheduler.has_devices, "no device, no end")
