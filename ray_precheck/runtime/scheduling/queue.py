"""The tasks that no worker has yet, the costly ones first, and their division into batches.

Pure, a part of the scheduler and called by it alone.

Estimates of time: whether to compute a bench in another process than its device's, and with how many
threads. The run corrects the estimates as it goes on, but not the number of threads, because the bits of a
sum depend on it.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ray_precheck.schema.task import BatchReport, Done, Task

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


MAX_BATCH_RECORDS = 128
TARGET_BATCH_S = 0.4
# What a batch costs the driver beside its records: 0.1 ms to send it, 0.06 ms to take its answer, and
# its shares of the wait over all calls in flight and of the write (cluster/README, "Scale"); and how
# much of the driver's time may go there. So batches become longer where there are many devices.
MESSAGE_S = 0.5e-3
_MESSAGES_SHARE = 0.25
# The seconds of work that bench workers must have ahead before a device computes benches itself. Costly
# records come first, and their benches take longer than the device's side; later it is the other way
# round, and then the bench workers work off the transfers that have gathered.
_ENOUGH_S = 3.0


@dataclass(slots=True)
class TaskQueue:
    """Tasks in the order to run them, and the sum of their estimated seconds."""

    tasks: deque[Task]
    cost_left_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.cost_left_s = sum(task.cost_s for task in self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def append(self, tasks: Iterable[Task]) -> None:
        """Put new tasks behind the others."""
        new = list(tasks)
        self.tasks.extend(new)
        self.cost_left_s += sum(task.cost_s for task in new)

    def put_back(self, tasks: Iterable[Task]) -> None:
        """Put tasks that were not run back to the head of the queue."""
        waiting = list(tasks)
        self.tasks.extendleft(reversed(waiting))
        self.cost_left_s += sum(task.cost_s for task in waiting)

    def is_ample(self, devices: int, model: CostModel) -> bool:
        """Return whether a device may get its next batch early without leaving too little for the others.

        It may if each device's share of the tasks that are left is larger than that batch.
        """
        share_s = self._share_s(devices)
        is_large = model.whole_ratio * share_s >= target_batch_s(devices)
        return is_large and self.tasks[0].cost_s <= share_s

    def _share_s(self, devices: int) -> float:
        return self.cost_left_s / (2 * max(1, devices))

    def take(
        self,
        devices: int,
        room_bytes: int,
        model: CostModel,
        spare_s: float = 0.0,
    ) -> tuple[tuple[Task, ...], bool]:
        """Remove and return a batch, and whether bench workers compute its benches.

        Batches are small if records are costly, and near the end. `room_bytes` is the room for
        transfers, `spare_s` the seconds for which the bench workers have work after the device has begun
        this batch. A device computes the bench of a record itself if `spare_s` is longer than the
        device needs for the whole record and for its side of the next record, which is about as
        costly, and is also longer than `_ENOUGH_S`, or than the devices need for their side of all
        tasks that are left. All records of a batch are treated like its first.
        """
        # Guided self-scheduling (Polychronopoulos and Kuck, IEEE Trans. Computers C-36, 1987): a
        # share of what is left, so that the last batches are small and all devices end together.
        scale = model.whole_ratio
        share_s = min(target_batch_s(devices), scale * self._share_s(devices))
        budget_s = max(share_s, devices * MESSAGE_S / 2)
        batch: list[Task] = []
        spent_s, splits = 0.0, False
        while self.tasks and len(batch) < MAX_BATCH_RECORDS:
            task = self.tasks[0]
            goes_split = 0 < room_bytes >= task.nbytes and (
                model.is_worth(task, are_dry=spare_s <= 0)
                and (splits or spare_s <= self._busy_s(task, spent_s, devices, model))
            )
            if batch and (scale * (spent_s + task.cost_s) > budget_s or splits is not goes_split):
                break
            splits = goes_split
            room_bytes -= task.nbytes if splits else 0
            spare_s -= scale * task.cost_s
            spent_s += task.cost_s
            batch.append(self.tasks.popleft())
        self.cost_left_s -= spent_s
        return tuple(batch), splits

    def _busy_s(self, task: Task, spent_s: float, devices: int, model: CostModel) -> float:
        """Return how long the bench workers must have enough to do for a device to do a task whole;
        `spent_s` is the cost of what was taken from the queue before it.
        """
        until_next_s = (model.whole_ratio + model.device_ratio) * task.cost_s
        left_s = model.device_ratio * (self.cost_left_s - spent_s) / max(1, devices)
        return max(until_next_s, min(_ENOUGH_S, left_s))


def target_batch_s(devices: int) -> float:
    """Return how many seconds of work a batch has, where enough is left and records are cheap."""
    return max(TARGET_BATCH_S, devices * MESSAGE_S / _MESSAGES_SHARE)
