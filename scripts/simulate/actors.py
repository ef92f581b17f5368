"""Ray, its workers and the writer of a run in simulated time.

Comes in: the calls of the package's driver. Goes out: answers, at the time at which they would be
there. The driver is one server: while it computes, and while Ray's messages take its time, all answers
wait. The time of its own code is real time, measured between two of its calls of these actors.
"""

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ray_precheck.runtime.actors import ActorLost
from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.runtime.workers.worker import Order, Worker
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import (
    BENCH,
    BatchReport,
    Cause,
    DeviceSlot,
    Done,
    MeasuredTask,
    WorkerFailure,
)
from scripts.simulate.account import Account, Setup
from scripts.simulate.costs import Workload

DEVICES_PER_NODE = 8
BENCH_SHARE = 0.6
_STORE_BYTES = 1 << 32


@dataclass(frozen=True, slots=True)
class TimedPayload:
    """The part of a record that is sent to a worker."""

    index: int


class TimedAnswer:
    """An answer: the time at which it is there, and its value."""

    __slots__ = ("actor", "at_s", "is_there", "method", "records", "useful_s", "value")

    def __init__(self, actor: "TimedActor", method: str) -> None:
        self.actor = actor
        self.method = method
        self.at_s = float("inf")
        self.is_there = False
        self.records = 0
        self.useful_s = 0.0
        self.value: Any = None


class TimedActor:
    """A worker, or the writer (no slot); `free_s` is when it has finished its calls."""

    __slots__ = ("factor", "free_s", "is_lost", "node_id", "slot")

    def __init__(self, slot: DeviceSlot | None, node_id: str, factor: float) -> None:
        self.slot = slot
        self.node_id = node_id
        self.factor = factor
        self.free_s = 0.0
        self.is_lost = False


class TimedActors:
    """The cluster of one simulated run."""

    def __init__(
        self,
        workload: Workload,
        setup: Setup,
        account: Account,
        factors: dict[int, float],
        killers: frozenset[int],
    ) -> None:
        self._workload = workload
        self._setup = setup
        self._costs = setup.costs
        self._account = account
        self._factors = factors
        self._killers = killers
        self._tasks = {task.index: task for task in workload.tasks}
        self._now_s = 0.0
        self._before_s = 0.0
        self._arrivals: list[tuple[float, int, TimedAnswer]] = []
        self._count = 0
        self._mark = 0.0
        self._last_record_s = 0.0
        self._nodes = [self._node(number) for number in range(self._machines)]
        faults = setup.faults
        lost = min(faults.lost_nodes, self._machines - 1)
        # The first node is the driver's.
        self._lost = (
            {node.node_id for node in self._nodes[self._machines - lost :]} if lost else set()
        )
        self._returned = [
            self._node(n, "again") for n in range(self._machines - lost, self._machines)
        ]
        self._has_begun = False

    @property
    def _machines(self) -> int:
        return -(-self._setup.devices // DEVICES_PER_NODE)

    def _node(self, number: int, life: str = "") -> Node:
        first = number * DEVICES_PER_NODE
        count = min(DEVICES_PER_NODE, self._setup.devices - first)
        benches = -(-self._setup.benches // self._machines)
        return Node(
            f"node{number}{life}",
            f"10.0.{number // 250}.{number % 250}",
            {"npu": tuple(map(str, range(count)))},
            DEVICES_PER_NODE + benches,
            _STORE_BYTES,
            f"host{number}",
        )

    def begin(self) -> None:
        """Begin to count: every worker is ready, as what Ray takes to start them is left out."""
        # The driver's clock goes on.
        self._before_s, self._now_s, self._has_begun = self._now_s, 0.0, True
        self._arrivals = [(0.0, number, ref) for _, number, ref in self._arrivals]
        for _, _, ref in self._arrivals:
            ref.actor.free_s = 0.0
        self._account.driver_s = self._account.own_s = 0.0
        self._mark = time.thread_time()

    def end(self) -> None:
        """Close the account."""
        account, faults = self._account, self._setup.faults
        account.wall_s = self._last_record_s
        if self._lost:
            gone = sum(len(n.visible["npu"]) for n in self._nodes if n.node_id in self._lost)
            back_s = faults.loss_at_s + faults.notice_s + faults.return_s
            away_s = max(0.0, min(account.wall_s, back_s) - faults.loss_at_s)
            account.away_s = gone * away_s

    # The clock.

    def _enter(self) -> None:
        """Count the time that the driver has computed since its last call."""
        if self._setup.own_s is None:
            own_s = time.thread_time() - self._mark
            self._now_s += own_s
            self._account.own_s += own_s
            self._account.driver_s += own_s

    def _leave(self, costs_s: float = 0.0) -> None:
        self._now_s += costs_s
        self._account.driver_s += costs_s
        self._mark = time.thread_time()

    def clock(self) -> float:
        self._enter()
        self._leave()
        return self._before_s + self._now_s

    def _is_gone(self, node_id: str, at_s: float) -> bool:
        return node_id in self._lost and at_s >= self._setup.faults.loss_at_s

    def nodes(self) -> list[Node]:
        self._enter()
        faults = self._setup.faults
        noticed_s = faults.loss_at_s + faults.notice_s
        nodes = self._nodes
        if self._lost and self._has_begun and self._now_s >= noticed_s:
            nodes = [node for node in nodes if node.node_id not in self._lost]
            if self._now_s >= noticed_s + faults.return_s:
                nodes = [*nodes, *self._returned]
        self._leave()
        return list(nodes)

    # Actors.

    def start(self, actor: Any, node_id: str, *args: Any, **options: Any) -> TimedActor:
        self._enter()
        slot = args[0] if actor is Worker else None
        factor = 1.0
        if slot is not None and slot.kind != BENCH:
            number = int("".join(filter(str.isdigit, node_id)) or 0)
            factor = self._factors.get(number * DEVICES_PER_NODE + slot.device_id, 1.0)
        self._leave()
        return TimedActor(slot, node_id, factor)

    def kill(self, handle: TimedActor) -> None:
        handle.is_lost = True

    def put(self, content: object) -> Any:
        raise AssertionError("nothing is put in a simulated run")

    def call(self, handle: TimedActor, method: str, *args: Any) -> TimedAnswer:
        self._enter()
        ref, costs_s = TimedAnswer(handle, method), 0.0
        costs = self._costs
        if method == "open":
            restart_s = self._setup.faults.restart_s if self._has_begun else 0.0
            handle.free_s = self._now_s + restart_s
            ref.value = ""
            self._arrive(ref, handle.free_s)
        elif method == "run":
            costs_s = costs.send_s + costs.send_per_record_s * len(args[0].payloads)
            self._work(ref, args[0], self._now_s + costs_s)
        elif method == "append":
            costs_s = costs.record_s + costs.record_per_record_s * len(args[0])
            self._write(ref, args[0], self._now_s + costs_s)
        elif method in ("hand_over", "release", "pulse"):
            costs_s = costs.send_s
            self._arrive(ref, self._now_s)
        else:  # the writer's `complete` and `close`, after the end
            self._arrive(ref, max(self._now_s, handle.free_s))
        self._leave(costs_s)
        return ref

    def _arrive(self, ref: TimedAnswer, at_s: float) -> None:
        """Have an answer come, unless its machine is gone by then."""
        node_id = ref.actor.node_id
        if self._is_gone(node_id, at_s) and ref.actor.slot is not None:
            return
        ref.at_s = at_s
        self._count += 1
        heapq.heappush(self._arrivals, (at_s, self._count, ref))

    def _work(self, ref: TimedAnswer, order: Order, sent_s: float) -> None:
        """Put a batch on its way; its answer is known already."""
        actor = ref.actor
        self._account.batches += 1
        report, elapsed_s, useful_s = self._worked(actor, order)
        # A worker may still work on another batch; it does one after the other.
        begin_s = max(sent_s + self._costs.one_way_s, actor.free_s)
        actor.free_s = begin_s + elapsed_s
        ref.value, ref.useful_s = report, useful_s
        ref.records = len(report.results) + len(report.measured)
        self._arrive(ref, actor.free_s + self._costs.one_way_s)

    def _worked(self, actor: TimedActor, order: Order) -> tuple[BatchReport, float, float]:
        """Return the report of a batch, the seconds that it takes, and how many of them count."""
        share = {Stage.CHECK: 1.0, Stage.DEVICE: 1 - BENCH_SHARE, Stage.BENCH: BENCH_SHARE}
        factor = actor.factor * share[order.stage]
        results: list[Done] = []
        measured: list[MeasuredTask] = []
        elapsed_s = 0.0
        for payload in order.payloads:
            index = payload.index
            actual_s = self._workload.actual_s[index] * factor
            if index in self._killers and order.stage is not Stage.BENCH:
                failure = WorkerFailure(index, Cause.CRASHED, "killed its worker (SIGSEGV)")
                report = BatchReport(tuple(results), failure, tuple(measured))
                return report, elapsed_s + actual_s, elapsed_s
            elapsed_s += actual_s
            if order.stage is Stage.DEVICE:
                measured.append(MeasuredTask(index, 0, 0.0, actual_s))
            else:
                results.append(_done(self._tasks[index].name, index, actual_s, order.stage))
        return BatchReport(tuple(results), None, tuple(measured)), elapsed_s, elapsed_s

    def _write(self, ref: TimedAnswer, finished: Sequence[Done], sent_s: float) -> None:
        """Have the writer put an append on the disk after the appends before it."""
        costs, writer = self._costs, ref.actor
        for done in finished:
            self._account.recorded[done.index] += 1
        took_s = costs.write_s + costs.write_per_record_s * len(finished)
        writer.free_s = max(writer.free_s, sent_s + costs.one_way_s) + took_s
        self._account.writer_s += took_s
        self._last_record_s = writer.free_s
        self._arrive(ref, writer.free_s + costs.one_way_s)

    # Answers.

    def wait(
        self, answers: Sequence[TimedAnswer], timeout_s: float, gather_s: float = 0.0
    ) -> list[TimedAnswer]:
        """Wait for one of the answers, and `gather_s` for more; the driver is idle meanwhile, and then
        computes again."""
        self._enter()
        costs, account = self._costs, self._account
        costs_s = costs.wait_s + costs.wait_per_call_s * len(answers)
        self._now_s += costs_s
        account.driver_s += costs_s
        account.steps += 1
        until_s = self._now_s + timeout_s
        begun_s = self._now_s
        while True:
            self._land()
            ready = [ref for ref in answers if ref.is_there]
            if ready or self._now_s >= until_s:
                break
            next_s = self._arrivals[0][0] if self._arrivals else until_s
            self._now_s = max(self._now_s, min(next_s, until_s))
        if ready and gather_s:
            self._now_s += gather_s
            self._land()
            ready = [ref for ref in answers if ref.is_there]
        if len(answers) == 1 and answers[0].method == "append":
            account.blocked_s += self._now_s - begun_s
        self._leave()
        return ready

    def _land(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self._now_s:
            heapq.heappop(self._arrivals)[2].is_there = True

    def result(self, ref: TimedAnswer) -> Any:
        self._enter()
        costs, account = self._costs, self._account
        costs_s = costs.acknowledge_s
        if ref.method in ("run", "open"):
            account.messages += 1
            costs_s = costs.get_s + costs.get_per_record_s * ref.records
            account.useful_s += ref.useful_s
        self._leave(costs_s)
        if ref.actor.is_lost:
            raise ActorLost("it was killed")
        return ref.value


def _done(name: str, index: int, actual_s: float, stage: Stage) -> Done:
    """Return a pass without rows, which the driver does not look at."""
    bench_s = actual_s if stage is Stage.BENCH else BENCH_SHARE * actual_s
    return Done(index, name, Verdict.PASS, b"", device_s=actual_s - bench_s, bench_s=bench_s)
