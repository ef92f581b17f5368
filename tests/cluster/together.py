"""Lets the workers of a run begin together, in the process of its driver.

A worker's start takes seconds on a busy machine. Where one starts late the others may have done
everything by then, and nothing of what a test is about happens.
"""

from collections.abc import Callable

from ray_precheck.runtime.scheduling.commands import Command
from ray_precheck.runtime.scheduling.scheduler import Scheduler

WorkerReady = Callable[[Scheduler, str], list[Command]]


def begun_together() -> WorkerReady:
    """Return a `Scheduler.worker_ready` that hears of the first workers once all have started."""
    worker_ready = Scheduler.worker_ready
    # With each scheduler itself, whose number another could have once it is gone.
    waiting: dict[int, tuple[Scheduler, list[str]]] = {}
    begun: set[int] = set()

    def once_all_are_ready(self: Scheduler, name: str) -> list[Command]:
        if id(self) in begun:
            return worker_ready(self, name)
        _, ready = waiting.setdefault(id(self), (self, []))
        ready.append(name)
        if not set(ready) >= {*self._slots, *self.bench.names}:
            return []
        begun.add(id(self))
        # Bench workers first: devices ask whether there are any.
        ready.sort(key=lambda name: name not in self.bench)
        return [command for name in ready for command in worker_ready(self, name)]

    return once_all_are_ready
