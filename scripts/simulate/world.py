"""A cluster in simulated time around the package's own `Scheduler`.

Comes in: a workload, how many devices, what goes wrong, what messages cost. Goes out: an `Account`
of the run. Called by scripts/simulate. The driver is one server: each of its steps takes what has
arrived, asks the scheduler, and sends, as `runtime.driver` does; what arrives meanwhile waits. The
scheduler's own time is its real one, measured while it is asked, unless it is given.
"""

import gc
import heapq
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from ray_precheck.runtime.scheduling.bench_stage import BenchStage
from ray_precheck.runtime.scheduling.commands import Command, Forget, Record, SendBatch, StartWorker
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.schema.casualty import BatchReport, Casualty, Cause, MeasuredTask
from ray_precheck.schema.done import Done
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import Task
from scripts.simulate.costs import Workload
from scripts.simulate.ray import MEASURED, DriverCosts

DEVICES_PER_NODE = 8
# What the driver lets wait for the writer before it waits itself; of runtime/recorder.py.
MOST_UNACKNOWLEDGED = 8
TIMEOUT_S = 300.0
BENCH_BYTES = 1 << 30
BENCH_SHARE = 0.6
NODE_REASON = "its worker was lost with it every time (its node died)"


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong. Zero is never.

    One device in `slow_every` is `slow_factor` times as slow; one record in `crash_every` kills its
    process, which takes `restart_s` to replace. At `loss_at_s` the devices of `lost_nodes` machines
    are gone, which is noticed `notice_s` later, and back after `return_s`.
    """

    slow_every: int = 0
    slow_factor: float = 3.0
    crash_every: int = 0
    restart_s: float = 1.5
    loss_at_s: float = 0.0
    lost_nodes: int = 0
    notice_s: float = 5.0
    return_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated. `scheduler_s`: what the scheduler takes for each event, None to measure it.

    The driver hands all results of a step to the writer as one append; `append_per_batch`: one for
    each batch.
    """

    devices: int
    benches: int = 0
    faults: Faults = Faults()
    costs: DriverCosts = MEASURED
    scheduler_s: float | None = None
    seed: int = 0
    append_per_batch: bool = False


@dataclass(slots=True)
class Account:
    """What a run came to, in seconds. `useful_s` is the time of devices whose records counted,
    `available_s` the time that devices were there."""

    setup: Setup
    records: int
    bound_s: float
    wall_s: float = 0.0
    useful_s: float = 0.0
    away_s: float = 0.0
    driver_s: float = 0.0
    scheduler_s: float = 0.0
    blocked_s: float = 0.0
    writer_s: float = 0.0
    steps: int = 0
    messages: int = 0
    batches: int = 0
    recorded: list[int] = field(default_factory=list)

    @property
    def efficiency(self) -> float:
        """Useful time / (wall x workers that were there)."""
        workers = self.setup.devices + self.setup.benches
        return self.useful_s / (self.wall_s * workers - self.away_s)


@dataclass(frozen=True, slots=True)
class News:
    """Something that reaches the driver: of which worker's life, and what the scheduler is told."""

    name: str
    life: int
    ticket: int = 0
    records: int = 0
    report: BatchReport | None = None
    useful_s: float = 0.0
    # For news of the cluster, not of a worker.
    tell: Callable[[], list[Command]] | None = None


@dataclass(slots=True)
class World:
    """The state of a simulation; `run` it once."""

    workload: Workload
    setup: Setup
    now_s: float = 0.0
    account: Account = field(init=False)
    _scheduler: Scheduler = field(init=False)
    _arrivals: list[tuple[float, int, News]] = field(init=False, default_factory=list)
    _count: int = field(init=False, default=0)
    _flights: dict[str, set[int]] = field(init=False, default_factory=dict)
    _sent_to: dict[int, str] = field(init=False, default_factory=dict)
    _lives: dict[str, int] = field(init=False, default_factory=dict)
    _free_s: dict[str, float] = field(init=False, default_factory=dict)
    _lost: frozenset[str] = field(init=False, default=frozenset())
    _away: set[str] = field(init=False, default_factory=set)
    _acknowledged_s: deque[float] = field(init=False, default_factory=deque)
    _writer_free_s: float = field(init=False, default=0.0)
    _factors: dict[str, float] = field(init=False, default_factory=dict)
    _killers: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        setup, faults = self.setup, self.setup.faults
        devices = [f"npu:{number}" for number in range(setup.devices)]
        benches = {f"bench:{n}": f"node{n // DEVICES_PER_NODE}" for n in range(setup.benches)}
        self._scheduler = Scheduler(
            self.workload.tasks,
            {name: name for name in devices},
            TIMEOUT_S,
            _Rows(),
            bench=BenchStage(benches, BENCH_BYTES),
            machines={name: _node(name) for name in devices},
        )
        rng = random.Random(setup.seed)
        if faults.slow_every:
            slow = rng.sample(devices, max(1, len(devices) // faults.slow_every))
            self._factors = dict.fromkeys(slow, faults.slow_factor)
        count = len(self.workload.tasks)
        crashes = count // faults.crash_every if faults.crash_every else 0
        self._killers = frozenset(rng.sample(range(count), crashes))
        speed = sum(1 / self._factors.get(name, 1.0) for name in devices) + setup.benches
        bound_s = max(self.workload.total_s / speed, self.workload.longest_s)
        self.account = Account(setup, count, bound_s, recorded=[0] * count)

    def run(self) -> Account:
        """Simulate to the end; the account's `recorded` counts how often each record was."""
        gc.collect()
        gc.freeze()  # what is simulated is not the driver's garbage
        self._begin()
        while not self._scheduler.finished:
            assert self._arrivals, "nothing is in flight, and yet the run is not finished"
            self.now_s = max(self.now_s, self._arrivals[0][0])
            self._step()
        account, faults = self.account, self.setup.faults
        account.wall_s = max(self.now_s, self._writer_free_s)
        account.away_s += len(self._away) * (account.wall_s - faults.loss_at_s)
        gc.unfreeze()
        return account

    def _begin(self) -> None:
        """Start with every worker ready: what Ray takes to start them is left out."""
        for command in self._asked(self._scheduler.start):
            if isinstance(command, StartWorker):
                self._start(command.slot, 0.0)
        self.now_s = 0.0
        faults = self.setup.faults
        if not faults.lost_nodes:
            return
        count = min(self.setup.devices, DEVICES_PER_NODE * faults.lost_nodes)
        self._lost = frozenset(f"npu:{number}" for number in range(count))
        notice_s = faults.loss_at_s + faults.notice_s
        self._arrive(notice_s, News("", 0, tell=self._lose))
        self._arrive(notice_s + faults.return_s, News("", 0, tell=self._return))

    def _arrive(self, at_s: float, news: News) -> None:
        self._count += 1
        heapq.heappush(self._arrivals, (at_s, self._count, news))

    def _asked(self, ask: Callable[[], list[Command]]) -> list[Command]:
        """Ask the scheduler; the clock goes on by what that takes."""
        begin = time.thread_time()
        commands = ask()
        given = self.setup.scheduler_s
        elapsed_s = time.thread_time() - begin if given is None else given
        self.account.scheduler_s += elapsed_s
        self.now_s += elapsed_s
        return commands

    def _step(self) -> None:
        """One step of the driver: wait, get all that has come, ask, send."""
        costs, account, begin_s = self.setup.costs, self.account, self.now_s
        blocked_before_s = account.blocked_s
        # Of each worker the driver waits for the first of its calls alone.
        self.now_s += costs.wait_s + costs.wait_per_flight_s * len(self._flights)
        self._take_acknowledgements()
        commands: list[Command] = []
        ready: list[News] = []
        # What ray.wait returns is what had come by then, not what comes while it is handled.
        while self._arrivals and self._arrivals[0][0] <= self.now_s:
            ready.append(heapq.heappop(self._arrivals)[2])
        for news in ready:
            commands += self._on_news(news)
        self._carry_out(commands + self._asked(self._scheduler.wake))
        account.steps += 1
        account.driver_s += self.now_s - begin_s - (account.blocked_s - blocked_before_s)

    def _on_news(self, news: News) -> list[Command]:
        if news.tell is not None:
            return news.tell()
        if self._lives.get(news.name) != news.life:
            return []  # of a worker that was given up
        costs, report = self.setup.costs, news.report
        per_record_s = costs.get_per_record_s + costs.book_per_record_s
        self.now_s += costs.get_s + per_record_s * news.records
        self.account.messages += 1
        self._land(news.name, news.ticket)
        if report is None:
            return self._asked(partial(self._scheduler.worker_ready, news.name))
        self.account.useful_s += news.useful_s
        done = self._scheduler.batch_done
        return self._asked(partial(done, news.name, news.ticket, report))

    def _carry_out(self, commands: Sequence[Command]) -> None:
        """Send what is to be sent, then hand over what is to be written, as the driver does."""
        appends: list[list[int]] = []
        for command in commands:
            match command:
                case StartWorker(name):
                    self.now_s += self.setup.costs.send_s
                    self._start(name, self.now_s + self.setup.faults.restart_s)
                case SendBatch():
                    self._send(command)
                case Record():
                    appends.append([result.index for result in command.results])
                case Forget(ticket):
                    name = self._sent_to.get(ticket, "")
                    if ticket in self._flights.get(name, ()):
                        self._land(name, ticket)
                case _:
                    raise AssertionError(f"not simulated: {command}")
        if appends and not self.setup.append_per_batch:
            appends = [list(chain.from_iterable(appends))]
        for indices in appends:
            self._record(indices)

    def _take_off(self, name: str, ticket: int) -> None:
        self._flights.setdefault(name, set()).add(ticket)

    def _land(self, name: str, ticket: int) -> None:
        self._flights[name].remove(ticket)
        if not self._flights[name]:
            del self._flights[name]
        self._sent_to.pop(ticket, None)

    def _start(self, name: str, ready_s: float) -> None:
        self._lives[name] = self._lives.get(name, 0) + 1
        self._free_s[name] = ready_s
        self._take_off(name, 0)
        self._come_back(ready_s, News(name, self._lives[name]))

    def _come_back(self, at_s: float, news: News) -> None:
        """Have news of a worker arrive, unless its machine is gone by then, or was."""
        faults = self.setup.faults
        back_s = faults.loss_at_s + faults.notice_s + faults.return_s
        if news.name in self._lost and self.now_s < back_s and at_s >= faults.loss_at_s:
            return
        self._arrive(at_s, news)

    def _send(self, batch: SendBatch) -> None:
        """The batch is on its way; what will come of it is known already."""
        costs, account = self.setup.costs, self.account
        self.now_s += costs.send_s + costs.send_per_record_s * len(batch.tasks)
        account.batches += 1
        report, elapsed_s, useful_s = self._worked(batch)
        self._take_off(batch.slot, batch.ticket)
        self._sent_to[batch.ticket] = batch.slot
        # A bench worker may have one in work still; it does one after the other.
        begin_s = max(self.now_s + costs.one_way_s, self._free_s.get(batch.slot, 0.0))
        self._free_s[batch.slot] = begin_s + elapsed_s
        done_s = begin_s + elapsed_s + costs.one_way_s
        records = len(batch.tasks)
        life = self._lives[batch.slot]
        news = News(batch.slot, life, batch.ticket, records, report, useful_s)
        self._come_back(done_s, news)

    def _worked(self, batch: SendBatch) -> tuple[BatchReport, float, float]:
        """Return the report of a batch, what it takes, and what of that is of use."""
        share = {Stage.CHECK: 1.0, Stage.DEVICE: 1 - BENCH_SHARE, Stage.BENCH: BENCH_SHARE}
        factor = self._factors.get(batch.slot, 1.0) * share[batch.stage]
        results: list[Done] = []
        measured: list[MeasuredTask] = []
        elapsed_s = 0.0
        for task in batch.tasks:
            actual_s = self.workload.actual_s[task.index] * factor
            if task.index in self._killers and batch.stage is not Stage.BENCH:
                casualty = Casualty(task.index, Cause.CRASHED, "killed its worker (SIGSEGV)")
                report = BatchReport(tuple(results), casualty, tuple(measured))
                return report, elapsed_s + actual_s, elapsed_s
            elapsed_s += actual_s
            if batch.stage is Stage.DEVICE:
                measured.append(MeasuredTask(task.index, 0, 0.0, actual_s))
            else:
                results.append(_result(task, actual_s, batch.stage))
        return BatchReport(tuple(results), None, tuple(measured)), elapsed_s, elapsed_s

    def _record(self, indices: Sequence[int]) -> None:
        """Hand results to the writer; wait for it where it falls behind."""
        costs, account = self.setup.costs, self.account
        for index in indices:
            account.recorded[index] += 1
        self.now_s += costs.record_s + costs.record_per_record_s * len(indices)
        took_s = costs.write_s + costs.write_per_record_s * len(indices)
        self._writer_free_s = max(self._writer_free_s, self.now_s + costs.one_way_s) + took_s
        account.writer_s += took_s
        self._acknowledged_s.append(self._writer_free_s + costs.one_way_s)
        if len(self._acknowledged_s) > MOST_UNACKNOWLEDGED:
            oldest_s = self._acknowledged_s.popleft()
            account.blocked_s += max(0.0, oldest_s - self.now_s)
            self.now_s = max(self.now_s, oldest_s) + costs.acknowledge_s

    def _take_acknowledgements(self) -> None:
        while self._acknowledged_s and self._acknowledged_s[0] <= self.now_s:
            self._acknowledged_s.popleft()
            self.now_s += self.setup.costs.acknowledge_s

    def _lose(self) -> list[Command]:
        """Tell the scheduler of devices that are gone with their machine."""
        commands: list[Command] = []
        for name in self._lost:
            self._flights.pop(name, None)
        for name in sorted(self._lost):
            self._lives[name] += 1
            commands += self._asked(partial(self._scheduler.slot_lost, name, NODE_REASON))
        self._away.update(self._lost)
        return commands

    def _return(self) -> list[Command]:
        commands: list[Command] = []
        for name in sorted(self._lost):
            commands += self._asked(partial(self._scheduler.revive, name, name))
        self.account.away_s += len(self._lost) * (self.now_s - self.setup.faults.loss_at_s)
        self._away.clear()
        return commands


class _Rows:
    """The rows of records that no worker answers for; the scheduler does not look into them."""

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        return Done(task.index, task.name, Verdict.ERROR, b"")

    def unchecked(self, task: Task, reason: str) -> Done:
        return Done(task.index, task.name, Verdict.SKIP, b"")


def _result(task: Task, actual_s: float, stage: Stage) -> Done:
    """Return a pass without rows, which the scheduler does not look at."""
    bench_s = actual_s if stage is Stage.BENCH else BENCH_SHARE * actual_s
    return Done(
        task.index,
        task.name,
        Verdict.PASS,
        b"",
        device_s=actual_s - bench_s,
        bench_s=bench_s,
    )


def _node(device: str) -> str:
    return f"node{int(device.partition(':')[2]) // DEVICES_PER_NODE}"
