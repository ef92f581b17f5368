"""Estimates of time: whether to compute a bench in another process than its device's, and with how
many threads.

Comes in: the planner's estimates, and the times that the run measures. Goes out: seconds. Called by
the scheduler. The run corrects the estimates as it goes on, but not the number of threads, because the
bits of a sum depend on it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ray_precheck.schema.done import Done
from ray_precheck.schema.failure import BatchReport
from ray_precheck.schema.task import Task

# From this estimated cost on, a bench is computed with several threads: with one, float64 takes
# minutes, in which the other cores run out of work.
HUGE_S = 20.0
HUGE_THREADS = 4
# Measured on the CPU captures that the repository ships: the bench's share of the estimated cost, and
# the time to hand tensors to another process and to make the inputs there again.
_BENCH_SHARE = 0.6
_HANDOVER_S = 3e-3
_HANDOVER_S_PER_BYTE = 3e-9
# The weight of a new measurement in the running mean of its API, and in that of all APIs.
_WEIGHT = 0.2
_WEIGHT_OF_ALL = 0.025
# A bench goes to another process if it takes this many times as long as handing it over. The margin is
# larger while other benches wait, because handing over delays both processes; while a bench worker
# has nothing to do, the device gains in any case.
_MARGIN = 2.5
_MARGIN_OF_DRY = 1.0
# A bench worker is worth its start if it has this many seconds of work.
_START_WORTH_S = 2.0
# A record of this estimated cost or less is never divided.
_LEAST_S = 5e-3
_MOST_KINDS = 10_000


def bench_threads(cost_s: float) -> int:
    """Return the number of threads for the bench of a record, the same on every machine."""
    return HUGE_THREADS if cost_s >= HUGE_S else 1


@dataclass(slots=True)
class _Ratios:
    """Ratios of measured to estimated seconds: the `mean` of all records, and the mean of each API."""

    mean: float
    _count: int = 0
    _kinds: dict[str, float] = field(default_factory=dict)

    def of(self, kind: str) -> float:
        return self._kinds.get(kind, self.mean)

    def learn(self, kind: str, ratio: float) -> None:
        before = self._kinds.get(kind)
        if before is None:
            before = ratio
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
        self._kinds[kind] = before + _WEIGHT * (ratio - before)
        # The first measurements count alike, and the value that was assumed before them not at all.
        self._count += 1
        self.mean += max(1 / self._count, _WEIGHT_OF_ALL) * (ratio - self.mean)


@dataclass(slots=True)
class CostModel:
    """Estimates in seconds, corrected by ratios of measured to estimated time."""

    _device: _Ratios = field(default_factory=lambda: _Ratios(1 - _BENCH_SHARE))
    _bench: _Ratios = field(default_factory=lambda: _Ratios(_BENCH_SHARE))
    _handover_ratio: float = 1.0

    @property
    def device_ratio(self) -> float:
        """The mean ratio for the device's side of records, including their inputs."""
        return self._device.mean

    @property
    def whole_ratio(self) -> float:
        """The mean ratio for whole records, device and bench together."""
        return self._device.mean + self._bench.mean

    def device_s(self, task: Task) -> float:
        """Return the expected seconds of the device's side of a task, including its inputs."""
        return task.cost_s * self._device.of(_kind(task))

    def bench_s(self, task: Task) -> float:
        """Return the expected seconds of the bench of a task."""
        return task.cost_s * self._bench.of(_kind(task))

    def handover_s(self, task: Task) -> float:
        """Return the expected seconds that handing over the bench of a task takes."""
        return self._handover_ratio * _handover_s(task)

    def is_worth(self, task: Task, *, are_dry: bool = False) -> bool:
        """Return whether the bench of a task should be computed by a bench worker. `are_dry`: the bench
        workers have nothing to do, or soon will."""
        margin = _MARGIN_OF_DRY if are_dry else _MARGIN
        return task.cost_s > _LEAST_S and self.bench_s(task) > margin * self.handover_s(task)

    def worthwhile_benches(self, tasks: Iterable[Task], *, has_device: bool) -> float:
        """Return how many bench workers the tasks are worth; the costly tasks come first.

        Without `has_device` bench workers check whole records, and all tasks count.
        """
        total_s = 0.0
        for task in tasks:
            if task.cost_s <= _LEAST_S and has_device:
                break
            if not has_device or self.is_worth(task):
                total_s += self.bench_s(task)
        return total_s / _START_WORTH_S

    def learn(self, task: Task, done: Done) -> None:
        """Correct the estimates by the time that a whole record, or its bench alone, has taken."""
        if task.cost_s <= 0 or done.bench_s <= 0:
            return
        kind = _kind(task)
        self._bench.learn(kind, done.bench_s / task.cost_s)
        if done.device_s > 0:  # device and bench in one piece
            self._device.learn(kind, (done.inputs_s + done.device_s) / task.cost_s)

    def learn_device(self, task: Task, taken_s: float) -> None:
        """Correct the estimate of the device's side by the seconds that it has taken alone."""
        if task.cost_s > 0 < taken_s:
            self._device.learn(_kind(task), taken_s / task.cost_s)

    def learn_handover(
        self, tasks: Iterable[Task], device_side_s: float, report: BatchReport
    ) -> None:
        """Correct the estimate of handing over by the seconds that one has taken on both sides."""
        expected_s = sum(_handover_s(task) for task in tasks)
        if expected_s <= 0:
            return
        again_s = sum(result.inputs_s for result in report.results)
        ratio = (device_side_s + report.handover_s + again_s) / expected_s
        self._handover_ratio += _WEIGHT * (ratio - self._handover_ratio)


def _handover_s(task: Task) -> float:
    return _HANDOVER_S + task.nbytes * _HANDOVER_S_PER_BYTE


def _kind(task: Task) -> str:
    return task.name.rpartition(".")[0]
