"""The tasks that no worker has yet, the costly ones first, and their division into batches.

Pure, a part of the scheduler and called by it alone.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ray_precheck.runtime.scheduling.cost_model import CostModel
from ray_precheck.schema.task import Task

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
