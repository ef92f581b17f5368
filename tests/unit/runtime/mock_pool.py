"""Workers that crash, hang and forget, without processes and without a clock.

Carries out the commands of a `Scheduler` and checks each against what is allowed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from ray_precheck.runtime.scheduler import (
    MAX_BATCH_RECORDS,
    Command,
    GiveUpDevice,
    Report,
    Scheduler,
    SendBatch,
    StartWorker,
)
from ray_precheck.schema.result import Outcome, TaskResult, Verdict
from ray_precheck.schema.task import Task

CRASHES, HANGS = "crashes", "hangs"
# Once a record of a batch is suspect it runs alone; an innocent one may be unlucky this often.
UNLUCKY, FORGOTTEN = "crashes once", "missing from a reply once"
BEHAVIOURS = (CRASHES, HANGS, UNLUCKY, FORGOTTEN)


def make_tasks(costs: Sequence[float]) -> list[Task]:
    """One task for each cost, in their order."""
    return [Task(index, f"Mint.a.{index}", cost) for index, cost in enumerate(costs)]


def answer(task: Task) -> TaskResult:
    """What a healthy worker answers."""
    return TaskResult(task.index, task.name, Outcome.COMPLETED, Verdict.PASS, Verdict.NONE)


@dataclass
class Pool:
    """A pool of mock workers. `behaviours` are what becomes of tasks by index; others pass.

    `failing_starts` are how many starts of a slot fail before one works. `sudden_deaths` are
    workers that die through no fault of their batch.
    """

    scheduler: Scheduler
    random: Random
    behaviours: dict[int, str]
    failing_starts: dict[str, int] = field(default_factory=dict)
    sudden_deaths: int = 0
    batches_at_drain: int = -1
    answered: Counter[int] = field(default_factory=Counter)
    reported: dict[int, Outcome] = field(default_factory=dict)
    given_up: list[str] = field(default_factory=list)
    batches: list[SendBatch] = field(default_factory=list)
    starting: set[str] = field(default_factory=set)
    idle: set[str] = field(default_factory=set)
    busy: dict[str, SendBatch] = field(default_factory=dict)
    sent: Counter[int] = field(default_factory=Counter)
    events: int = 0

    def run(self, most_events: int, drain_after: int = -1) -> None:
        """Run to the end; more events than `most_events` mean that it does not terminate."""
        self.carry_out(self.scheduler.start())
        while not self.scheduler.finished and self.scheduler.has_devices:
            if self.events == drain_after:
                self.scheduler.drain()
                self.batches_at_drain = len(self.batches)
            self.events += 1
            assert self.events <= most_events, "the scheduler does not come to an end"
            self.carry_out(self.next_event())
            self.carry_out(self.scheduler.wake())

    def next_event(self) -> list[Command]:
        """Let something happen on a random slot that a worker starts or works on."""
        active = sorted(self.starting | set(self.busy))
        assert active, "nothing is in flight, and yet the run is not finished"
        slot = self.random.choice(active)
        return self.started(slot) if slot in self.starting else self.worked(slot)

    def started(self, slot: str) -> list[Command]:
        """Let the start of a worker succeed or fail."""
        self.starting.remove(slot)
        if self.failing_starts.get(slot, 0) > 0:
            self.failing_starts[slot] -= 1
            return self.scheduler.start_failed(slot, "no driver")
        self.idle.add(slot)
        return self.scheduler.worker_ready(slot)

    def worked(self, slot: str) -> list[Command]:
        """Let a worker answer its batch, or die of it."""
        tasks = self.busy.pop(slot).tasks
        if self.sudden_deaths and not any(self.behaviours.get(t.index) == UNLUCKY for t in tasks):
            self.sudden_deaths -= 1
            return self.scheduler.worker_lost(slot, "its node is gone", Outcome.CRASHED)
        results: list[TaskResult] = []
        for task in tasks:
            behaviour = self.behaviours.get(task.index)
            if behaviour == UNLUCKY and self.sent[task.index] == 1:
                behaviour = CRASHES
            if behaviour == CRASHES:
                return self.scheduler.worker_lost(slot, "killed its worker", Outcome.CRASHED)
            if behaviour == HANGS:
                return self.scheduler.worker_lost(slot, "no answer", Outcome.TIMED_OUT)
            if behaviour != FORGOTTEN or self.sent[task.index] > 1:
                results.append(answer(task))
        self.answered.update(result.index for result in results)
        self.random.shuffle(results)
        self.idle.add(slot)
        return self.scheduler.batch_done(slot, results)

    def carry_out(self, commands: Sequence[Command]) -> None:
        """Act on commands as the driver does; none may ask for the impossible."""
        for command in commands:
            match command:
                case StartWorker(slot):
                    assert slot not in self.starting | self.idle | set(self.busy)
                    assert slot not in self.given_up
                    self.starting.add(slot)
                case SendBatch(slot, tasks, deadline_s):
                    assert slot in self.idle, "a batch for a worker that is busy or dead"
                    assert 1 <= len(tasks) <= MAX_BATCH_RECORDS
                    assert deadline_s >= self.scheduler.timeout_s
                    again = [task for task in tasks if self.sent[task.index]]
                    assert not again or len(tasks) == 1, "a suspect runs with others"
                    self.idle.remove(slot)
                    self.sent.update(task.index for task in tasks)
                    self.busy[slot] = command
                    self.batches.append(command)
                case Report(result):
                    assert result.index not in self.reported
                    self.reported[result.index] = result.outcome
                case GiveUpDevice(slot, _):
                    self.given_up.append(slot)
