"""The records of a simulated run, and its machines.

Comes in: choices. Goes out: a `Cast`, the records with their costs, their answers and how they break workers;
a `Layout`, the nodes, slots and bench workers from which every driver of a history begins. Called by
`histories.world`.
"""

import math
from typing import Protocol

from ray_precheck.replay.job import done_of
from ray_precheck.runtime.driver import _STORE_SHARE as STORE_SHARE
from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.places.placement import DeviceRequest
from ray_precheck.schema.result import (
    Metrics,
    Outcome,
    OutputCheck,
    TaskResult,
    Verdict,
    failed,
    skipped,
)
from ray_precheck.schema.task import BatchReport, Cause, Done, Task, WorkerFailure

MOST_NODES = 4
# The place that breaks every process, in histories that have a bad place.
BAD_PLACE = "n1"
_CORES = 4
_BENCHES = (0, 0, 1, 1, 1, 2, 3, 4)
_MOST_BYTES = (1 << 40, 3_000_000, 1_000_000, 0)


class Choices(Protocol):
    """The choices that a history is made of."""

    def below(self, count: int) -> int:
        """Choose a number from 0 to `count` - 1; 0 is the choice without trouble."""

    def chance(self, one_in: int) -> bool:
        """Choose whether something unlikely happens."""


class Say(Protocol):
    """A function that is told the events: a format and its parts; of records only the indices."""

    def __call__(self, text: str, *parts: object) -> None: ...


class Layout:
    """How many slots and nodes there are. Logical slots move between nodes, devices leave with theirs.

    `benches` is how many bench workers are wanted. `bench_suffices`: they may do whole records.
    `benches_are_first`: they are ready before any device. `benches_are_slow`: devices are done before
    them. `ends_what_waits`: a node dies on which transfers wait for them. `ships`: only the driver's
    machine sees the files. `most_bytes` is how many bytes may wait for benches, `room_bytes` how many
    may be on their way to other machines. `grows`: records come one by one, as workers ask for them.
    """

    def __init__(self, choices: Choices) -> None:
        below, chance = choices.below, choices.chance
        self.slots = 1 + below(5)
        self.nodes = 1 + below(3)
        self.is_logical = not chance(5)
        self.has_bad_place = chance(8)
        self.benches = _BENCHES[below(len(_BENCHES))]
        self.bench_suffices = chance(4)
        self.benches_are_first = not chance(3)
        self.benches_are_slow = chance(2)
        self.ends_what_waits = chance(3)
        self.ships = chance(2)
        self.most_bytes = _MOST_BYTES[below(4)]
        self.room_bytes = _MOST_BYTES[below(3)]
        self.grows = self.slots == 5 or (self.slots == 1 and self.nodes == 2)

    @property
    def request(self) -> DeviceRequest:
        """The devices that the run asks for: ids that move between nodes, or all devices."""
        if self.is_logical:
            return DeviceRequest("cpu", ids=tuple(range(self.slots)))
        return DeviceRequest("npu", takes_all=True)

    def make_node(self, number: int) -> Node:
        """Return a node that has its number for a name; the devices are spread over the first ones."""
        devices = len(range(number % self.nodes, self.slots, self.nodes)) or 1
        return Node(
            f"n{number}",
            f"10.0.0.{number}",
            {} if self.is_logical else {"npu": tuple(map(str, range(devices)))},
            _CORES,
            math.ceil(self.most_bytes / STORE_SHARE),
            f"host{number}",
        )


MOST_RECORDS = 30
# A record that runs well, and after which its process cannot run another record.
TAINTS = "taints"
_HOW = (*Cause, TAINTS)
# A record that a worker without a device cannot check.
NEEDS_DEVICE = "needs a device"
_HOW_OF_BENCH = (*(cause for cause in Cause if cause is not Cause.POISONED), NEEDS_DEVICE)
_ALWAYS = 1_000_000
_COSTS = (0.0, 1e-6, 0.01, 0.4, 5.0, 30.0)
_SIZES = (0, 1000, 400_000, 2_000_000)
_WITH_BACKWARD, _SKIPPED = 1, 4
_PROVISIONAL = (Cause.OUT_OF_MEMORY, Cause.POISONED)


class Cast:
    """The records of a history. No choice is one record's own, so that a history with fewer records
    is much the same.
    """

    def __init__(self, choices: Choices) -> None:
        below, chance = choices.below, choices.chance
        count = 1 + min(below(MOST_RECORDS), below(MOST_RECORDS), below(MOST_RECORDS))
        costs = _digits(below(len(_COSTS) ** 8) if below(4) else 0, len(_COSTS))
        sizes = _digits(below(len(_SIZES) ** 8) if chance(2) else 0, len(_SIZES))
        self.tasks = [
            Task(i, f"Mint.a.{i}", _COSTS[costs[i % 8]], _SIZES[sizes[i % 8]]) for i in range(count)
        ]
        self.names = [task.name for task in self.tasks]
        kinds = _digits(below(5**8) if chance(2) else 0, 5)
        self._answers = [_ANSWERS[i][kinds[i % 8]] for i in range(count)]
        self.with_backward = frozenset(i for i in range(count) if kinds[i % 8] == _WITH_BACKWARD)
        self.skipped = frozenset(i for i in range(count) if kinds[i % 8] == _SKIPPED)
        self._ways: dict[int, tuple[Cause | str, int]] = {}
        for _ in range(below(2 + count // 3)):
            self._ways[below(count)] = _HOW[below(len(_HOW))], (_ALWAYS, 1, 2)[below(3)]
        self._bench_ways: dict[int, Cause | str] = {}
        for _ in range(below(2 + count // 3)):
            self._bench_ways[below(count)] = _HOW_OF_BENCH[below(len(_HOW_OF_BENCH))]
        self._runs = [0] * count

    def run(self, index: int) -> Cause | str | None:
        """Run a record once more; returns how it misbehaves, None where it does not."""
        self._runs[index] += 1
        how, times = self._ways.get(index, (None, 0))
        return how if self._runs[index] <= times else None

    def run_bench(self, index: int) -> Cause | str | None:
        """Run a record in a process without a device; returns how it misbehaves there."""
        return self._bench_ways.get(index)

    def measures(self, index: int) -> bool:
        """Return whether the device makes something of a record that a bench can judge."""
        return index % 5 != 4

    def answer(self, index: int) -> Done:
        """Return the answer of a healthy worker for a record, or that of the plan if it is skipped."""
        return self._answers[index]


def broken(results: list[Done], task: Task, cause: Cause) -> BatchReport:
    """Return the report of a worker that a record broke after `results`."""
    half = _HALVES[task.index] if cause in _PROVISIONAL else None
    failure = WorkerFailure(task.index, cause, f"broke it ({cause.name})", half)
    return BatchReport(tuple(results), failure)


def _digits(number: int, base: int) -> list[int]:
    return [number // base**place % base for place in range(8)]


def _check(name: str, verdict: Verdict, message: str) -> OutputCheck:
    return OutputCheck(
        name, "Float64", "Float32", "(2,)", Metrics(0.5, 1e-6, 2e-6), verdict, message
    )


def _answers_of(index: int) -> tuple[TaskResult, ...]:
    """Return the possible results of a record, by its kind."""
    name = f"Mint.a.{index}"
    done, ok, none = Outcome.COMPLETED, Verdict.PASS, Verdict.NONE
    outputs = tuple(_check(f"{name}.forward.output.{i}", ok, "") for i in range(3))
    gradient = _check(f"{name}.backward.output.0", ok, "")
    why = 'forward.output.0: "far", off'
    bad = _check(f"{name}.forward.output.0", Verdict.ERROR, why)
    return (
        TaskResult(index, name, done, ok, none, checks=outputs[:1]),
        TaskResult(index, name, done, ok, ok, checks=(outputs[0], gradient)),
        TaskResult(index, name, done, Verdict.ERROR, none, why, checks=(bad,)),
        TaskResult(index, name, done, ok, none, checks=outputs),
        skipped(index, name, "not supported", has_backward=False),
    )


_ANSWERS = [tuple(map(done_of, _answers_of(index))) for index in range(MOST_RECORDS)]
_HALVES = [
    done_of(
        TaskResult(
            i, f"Mint.a.{i}", Outcome.RAISED, Verdict.ERROR, Verdict.NONE, "no memory, 2 GiB"
        )
    )
    for i in range(MOST_RECORDS)
]


def failed_row(task: Task, outcome: Outcome, reason: str, has_backward: bool) -> Done:
    """Return the rows of a record that broke its worker."""
    return done_of(failed(task.index, task.name, outcome, reason, has_backward))


def unchecked_row(task: Task, reason: str, has_backward: bool) -> Done:
    """Return the rows of a record that could not be checked."""
    return done_of(skipped(task.index, task.name, reason, has_backward))
