"""Whether a bench is worth being done by another process than its device, and with how many threads.

Comes in: estimates of the planner, and what the run measures. Goes out: seconds. Called by the
scheduler. The estimates are corrected as the run goes on; the number of threads is not, since the
bits of a sum depend on it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ray_precheck.schema.casualty import BatchReport
from ray_precheck.schema.done import Done
from ray_precheck.schema.task import Task

# A record of this estimated cost computes its bench with several threads: float64 runs for minutes
# otherwise, while the other cores have nothing left to do.
HUGE_S = 20.0
HUGE_THREADS = 4
# Measured on the CPU captures that the repository ships: the bench's share of the estimated cost,
# and what it takes to hand tensors to another process and to make the inputs there again.
_BENCH_SHARE = 0.6
_HANDOVER_S = 3e-3
_HANDOVER_S_PER_BYTE = 3e-9
# The weight of a new measurement in the running mean of its kind, and in that of all.
_WEIGHT = 0.2
_WEIGHT_OF_ALL = 0.025
# How many times its handing over a bench has to cost: more than that where others wait already, as
# handing over takes both sides longer; where benches would run dry the device gains in any case.
_MARGIN = 2.5
_MARGIN_OF_DRY = 1.0
# Another process is worth its start where it saves this much.
_START_WORTH_S = 2.0
# Nothing cheaper can be worth it.
_LEAST_S = 5e-3
_MOST_KINDS = 10_000


def bench_threads(cost_s: float) -> int:
    """Return the threads for the bench of a record; by its estimate alone, on every machine."""
    return HUGE_THREADS if cost_s >= HUGE_S else 1


@dataclass(slots=True)
class _Ratios:
    """Measured to estimated seconds: the `mean` of all, and that of each kind."""

    mean: float
    _count: int = 0
    _kinds: dict[str, float] = field(default_factory=dict)

    def of(self, task: Task) -> float:
        return self._kinds.get(_kind(task), self.mean)

    def learn(self, task: Task, taken_s: float) -> None:
        ratio = taken_s / task.cost_s
        kind = _kind(task)
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        before = self._kinds.get(kind, ratio)
        self._kinds[kind] = before + _WEIGHT * (ratio - before)
        # The first ones count as much as each other, and what was assumed before them not at all.
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
        """The ratio for the device's side of records, with their inputs."""
        return self._device.mean

    @property
    def whole_ratio(self) -> float:
        """The ratio for whole records, device and bench together."""
        return self._device.mean + self._bench.mean

    def device_s(self, task: Task) -> float:
        """Return how long the device's side of a task is expected to take, with its inputs."""
        return task.cost_s * self._device.of(task)

    def bench_s(self, task: Task) -> float:
        """Return how long the bench of a task is expected to take."""
        return task.cost_s * self._bench.of(task)

    def handover_s(self, task: Task) -> float:
        """Return what doing the bench elsewhere is expected to cost more."""
        return self._handover_ratio * _handover_s(task)

    def is_worth(self, task: Task, *, are_dry: bool = False) -> bool:
        """Return whether the bench of a task is better done elsewhere, where somebody is free, or
        would soon have nothing to do (`are_dry`).
        """
        margin = _MARGIN_OF_DRY if are_dry else _MARGIN
        return task.cost_s > _LEAST_S and self.bench_s(task) > margin * self.handover_s(task)

    def worthwhile_benches(self, tasks: Iterable[Task], *, has_device: bool) -> float:
        """Return how many processes are worth their start for tasks, the costly ones first.

        Without `has_device` they do whole records, and all of them count.
        """
        total_s = 0.0
        for task in tasks:
            if task.cost_s <= _LEAST_S and has_device:
                break
            if not has_device or self.is_worth(task):
                total_s += self.bench_s(task)
        return total_s / _START_WORTH_S

    def learn(self, task: Task, done: Done) -> None:
        """Correct the estimates by what a record has taken, or its bench alone."""
        if task.cost_s <= 0 or done.bench_s <= 0:
            return
        self._bench.learn(task, done.bench_s)
        if done.device_s > 0:  # device and bench in one piece
            self._device.learn(task, done.inputs_s + done.device_s)

    def learn_device(self, task: Task, taken_s: float) -> None:
        """Correct the estimate of the device's side by what it has taken alone."""
        if task.cost_s > 0 < taken_s:
            self._device.learn(task, taken_s)

    def learn_handover(
        self, tasks: Iterable[Task], device_side_s: float, report: BatchReport
    ) -> None:
        """Correct the estimate of handing over by what one has taken, on both sides."""
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
