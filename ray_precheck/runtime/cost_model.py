"""Whether a bench is worth being done by another process than its device, and with how many threads.

Comes in: estimates of the planner, and what the run measures. Goes out: seconds. Called by the
scheduler. The estimates are corrected as the run goes on; the number of threads is not, since the
bits of a sum depend on it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ray_precheck.schema.casualty import BatchReport
from ray_precheck.schema.result import TaskResult
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
# The weight of a new measurement in the running mean.
_WEIGHT = 0.2
# A border to be crossed clearly: both sides are estimates.
_MARGIN = 2.5
# Another process is worth its start where it saves this much.
_START_WORTH_S = 2.0
# Nothing cheaper can be worth it.
_LEAST_S = 5e-3
_MOST_KINDS = 10_000


def bench_threads(cost_s: float) -> int:
    """Return the threads for the bench of a record; by its estimate alone, on every machine."""
    return HUGE_THREADS if cost_s >= HUGE_S else 1


@dataclass(slots=True)
class CostModel:
    """Estimates in seconds, corrected by ratios of measured to estimated time.

    `whole_ratio` is that of whole records, device and bench together.
    """

    whole_ratio: float = 1.0
    _bench_ratio: float = _BENCH_SHARE
    _bench_ratios: dict[str, float] = field(default_factory=dict)
    _handover_ratio: float = 1.0

    def bench_s(self, task: Task) -> float:
        """Return how long the bench of a task is expected to take."""
        return task.cost_s * self._bench_ratios.get(_kind(task), self._bench_ratio)

    def handover_s(self, task: Task) -> float:
        """Return what doing the bench elsewhere is expected to cost more."""
        return self._handover_ratio * _handover_s(task)

    def is_worth(self, task: Task) -> bool:
        """Return whether the bench of a task is better done elsewhere, where somebody is free."""
        return task.cost_s > _LEAST_S and self.bench_s(task) > _MARGIN * self.handover_s(task)

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

    def learn(self, task: Task, result: TaskResult) -> None:
        """Correct the estimate of a bench by what one has taken."""
        if task.cost_s <= 0 or result.bench_s <= 0:
            return
        if result.device_s > 0:  # device and bench in one piece
            whole = (result.inputs_s + result.device_s + result.bench_s) / task.cost_s
            self.whole_ratio += _WEIGHT / 8 * (whole - self.whole_ratio)
        ratio = result.bench_s / task.cost_s
        kind = _kind(task)
        if len(self._bench_ratios) >= _MOST_KINDS:
            self._bench_ratios.clear()
        before = self._bench_ratios.get(kind, ratio)
        self._bench_ratios[kind] = before + _WEIGHT * (ratio - before)
        self._bench_ratio += _WEIGHT / 8 * (ratio - self._bench_ratio)

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
