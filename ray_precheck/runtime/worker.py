"""The actor around the checker: one on every device slot.

Comes in: batches of `TaskPayload`s. Goes out: their `TaskResult`s, numbers only.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray

from ray_precheck.runtime.devices import pin_process, pin_to_core
from ray_precheck.schema.result import TaskResult
from ray_precheck.schema.task import DeviceSlot, TaskPayload

if TYPE_CHECKING:
    from ray_precheck.check.checker import Checker
    from ray_precheck.check.settings import CheckSettings


class Worker:
    """Runs and checks APIs on one device. `open` comes first and may raise."""

    def __init__(self, slot: DeviceSlot, settings: "CheckSettings") -> None:
        self._slot = slot
        self._settings = settings
        self._checker: Checker | None = None

    def open(self) -> None:
        """Pin the process to its device and load the frameworks."""
        pin_process(self._slot)
        pin_to_core(self._slot)
        # Imported here: the frameworks behind it must not be loaded before the process is pinned.
        from ray_precheck.check.checker import Checker

        self._checker = Checker(self._settings, self._slot.kind)

    def run(self, payloads: Sequence[TaskPayload]) -> list[TaskResult]:
        """Check a batch, one record after the other."""
        assert self._checker is not None, "open comes first"
        checked = (self._checker.check(payload) for payload in payloads)
        return [replace(result, slot=self._slot.label) for result in checked]


# Its death must not be hidden by a restart: what becomes of its records is the scheduler's to say.
WorkerActor: Any = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Worker)
