"""Workers that crash, hang and forget, without processes and without a clock.

Carries out the commands of a `Scheduler` and checks each against what is allowed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from ray_precheck.runtime.scheduling.commands import (
    Command,
    Forget,
    GiveUpDevice,
    Record,
    SendBatch,
    StartWorker,
)
from ray_precheck.runtime.scheduling.queue import MAX_BATCH_RECORDS, CostModel
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.runtime.scheduling.slots import CRASHES_NEEDED, MAX_RUNS
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import BatchReport, Cause, Done, Task, WorkerFailure

ALWAYS = 1_000_000
# What a record did before it broke its worker is sent along with these.
PROVISIONAL = (Cause.OUT_OF_MEMORY, Cause.POISONED)


def make_tasks(costs: Sequence[float]) -> list[Task]:
    """One task for each cost, in their order."""
    return [Task(index, f"Mint.a.{index}", cost) for index, cost in enumerate(costs)]


def done(task: Task, verdict: Verdict, outcome: Outcome, reason: str = "") -> Done:
    """A finished task whose row says what happened to it, and nothing else; `said` reads it."""
    return Done(task.index, task.name, verdict, f"{outcome.value}: {reason}".encode())


def said(finished: Done) -> tuple[Outcome, str]:
    """The outcome and the reason in a row that `done` has written."""
    outcome, _, reason = finished.row.decode().partition(": ")
    return Outcome(outcome), reason


@dataclass(frozen=True)
class MockJob:
    """Writes the rows of tasks that no worker answers for, as a job does; all are equal."""

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        return done(task, Verdict.ERROR, outcome, reason)

    def unchecked(self, task: Task, reason: str) -> Done:
        return done(task, Verdict.SKIP, Outcome.SKIPPED, reason)


JOB = MockJob()


def answer(task: Task) -> Done:
    """What a healthy worker answers."""
    return done(task, Verdict.PASS, Outcome.COMPLETED)


def at_ratio(ratio: float) -> CostModel:
    """A model of a machine where records take so many times what was estimated, device and bench."""
    model, task = CostModel(), Task(0, "Mint.any.0", 1.0)
    inputs_s, device_s, bench_s = (share * ratio for share in (0.1, 0.3, 0.6))
    model.learn(task, replace(answer(task), inputs_s=inputs_s, device_s=device_s, bench_s=bench_s))
    return model


def provisional(task: Task) -> Done:
    """What a worker says of a record that broke it."""
    return done(task, Verdict.ERROR, Outcome.RAISED, "broke")


def answers(tasks: Sequence[Task]) -> BatchReport:
    """The report of a worker that has finished all of `tasks`."""
    return BatchReport(tuple(answer(task) for task in tasks))


def broken(task: Task, cause: Cause, finished: Sequence[Task] = ()) -> BatchReport:
    """The report of a worker that `task` broke after `finished`."""
    result = provisional(task) if cause in PROVISIONAL else None
    return BatchReport(
        tuple(answer(each) for each in finished), WorkerFailure(task.index, cause, "broke", result)
    )


@dataclass
class Pool:
    """A pool of mock workers. `behaviours` say of tasks by index how, and how often, they break
    their worker; others pass.

    `failing_starts` are how many starts of a slot fail before one works. `sudden_deaths` are
    workers that die through no fault of their batch.
    """

    scheduler: Scheduler
    random: Random
    behaviours: dict[int, tuple[Cause, int]]
    failing_starts: dict[str, int] = field(default_factory=dict)
    sudden_deaths: int = 0
    batches_at_drain: int = -1
    recorded: dict[int, Done] = field(default_factory=dict)
    given_up: list[str] = field(default_factory=list)
    batches: list[SendBatch] = field(default_factory=list)
    starting: set[str] = field(default_factory=set)
    idle: set[str] = field(default_factory=set)
    fresh: set[str] = field(default_factory=set)
    busy: dict[str, SendBatch] = field(default_factory=dict)
    behind: dict[str, SendBatch] = field(default_factory=dict)
    sent: Counter[int] = field(default_factory=Counter)
    runs: Counter[int] = field(default_factory=Counter)
    crashes: Counter[tuple[int, Cause]] = field(default_factory=Counter)
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
        assert max(self.runs.values(), default=0) <= MAX_RUNS

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
        self.fresh.add(slot)
        return self.scheduler.worker_ready(slot)

    def worked(self, slot: str) -> list[Command]:
        """Let a worker answer its batch, or die of it."""
        batch = self.busy.pop(slot)
        report = self._work(batch.tasks)
        if report is None:
            self._count(batch.tasks, Cause.LOST)
            commands = self.scheduler.worker_lost(slot, batch.ticket, "its node is gone")
        else:
            if slot in self.behind and report.failure is None:
                self.busy[slot] = self.behind.pop(slot)
            else:
                self.idle.add(slot)
            commands = self.scheduler.batch_done(slot, batch.ticket, report)
        self._check_verdicts(batch, report, commands)
        self.fresh.discard(slot)
        assert self.scheduler.batch_done(slot, batch.ticket, answers(batch.tasks)) == []
        assert self.scheduler.worker_lost(slot, batch.ticket, "its node is gone") == []
        return commands

    def _work(self, tasks: Sequence[Task]) -> BatchReport | None:
        """Run tasks as a worker does; None where it dies with all that it had."""
        if self.sudden_deaths:
            self.sudden_deaths -= 1
            return None
        finished: list[Task] = []
        for position, task in enumerate(tasks):
            self.runs[task.index] += 1
            cause = self._cause(task)
            if cause is Cause.LOST:
                return None
            if cause is None:
                finished.append(task)
            elif cause is not Cause.SILENT:
                before = [each for each in tasks[:position] if each not in finished]
                self._count(before, Cause.SILENT)
                self._count([task], cause)
                return broken(task, cause, finished)
        self._count([task for task in tasks if task not in finished], Cause.SILENT)
        self.random.shuffle(finished)
        return answers(finished)

    def _cause(self, task: Task) -> Cause | None:
        cause, times = self.behaviours.get(task.index, (None, 0))
        return cause if self.runs[task.index] <= times else None

    def _count(self, tasks: Sequence[Task], cause: Cause) -> None:
        """Where several gave no answer nobody knows whose fault it is."""
        if len(tasks) == 1:
            self.crashes[tasks[0].index, cause] += 1

    def _check_verdicts(
        self, batch: SendBatch, report: BatchReport | None, commands: Sequence[Command]
    ) -> None:
        """What no worker said is recorded only of a record that ran alone on a fresh worker, or whose
        bench took too long.
        """
        answered = () if report is None else report.results
        failure = None if report is None else report.failure
        for command in commands:
            for result in command.results if isinstance(command, Record) else ():
                if failure is not None and failure.cause is Cause.OVER_BUDGET:
                    assert result in answered or result.index == failure.index
                elif result not in answered:
                    assert [task.index for task in batch.tasks] == [result.index]
                    assert batch.slot in self.fresh
                    assert self._is_guilty(result.index)

    def _is_guilty(self, index: int) -> bool:
        return any(self.crashes[index, cause] >= needed for cause, needed in CRASHES_NEEDED.items())

    def carry_out(self, commands: Sequence[Command]) -> None:
        """Act on commands as the driver does; none may ask for the impossible."""
        for command in commands:
            match command:
                case StartWorker(slot):
                    assert slot not in self.starting | set(self.busy) | set(self.behind)
                    assert slot not in self.given_up
                    self.idle.discard(slot)
                    self.fresh.discard(slot)
                    self.starting.add(slot)
                case SendBatch():
                    self._send(command)
                case Record(results):
                    for result in results:
                        assert result.index not in self.recorded
                        self.recorded[result.index] = result
                case Forget(ticket):
                    held = [n for n, batch in self.behind.items() if batch.ticket == ticket]
                    assert all(name not in self.busy for name in held), "its worker will begin it"
                    for name in held:
                        del self.behind[name]
                case GiveUpDevice(slot, _):
                    self.given_up.append(slot)

    def _send(self, batch: SendBatch) -> None:
        slot, tasks = batch.slot, batch.tasks
        assert slot in self.idle or slot in self.busy, "a batch for a worker that is dead"
        assert slot not in self.behind, "a third batch for a worker"
        assert 1 <= len(tasks) <= MAX_BATCH_RECORDS
        assert len(batch.limits_s) == len(tasks)
        assert min(batch.limits_s) >= self.scheduler.timeout_s
        if any(self.crashes[task.index, cause] for task in tasks for cause in Cause):
            assert len(tasks) == 1, "a quarantined record runs with others"
            assert slot not in self.busy, "a quarantined record runs behind others"
            assert slot in self.fresh, "a quarantined record runs on a used worker"
        tickets = [earlier.ticket for earlier in self.batches]
        assert batch.ticket > max(tickets, default=0)
        self.sent.update(task.index for task in tasks)
        (self.behind if slot in self.busy else self.busy)[slot] = batch
        self.idle.discard(slot)
        self.batches.append(batch)
