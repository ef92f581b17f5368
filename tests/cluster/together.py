"""Lets the workers of a run begin together, or after one was given up; in the process of its driver.

A worker's start takes seconds on a busy machine. Where one starts late the others may have done
everything by then, and nothing of what a test is about happens.
"""

from collections.abc import Callable

from ray_precheck.runtime.scheduling.commands import Command, GiveUpDevice
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


def begin_together() -> None:
    """Let the first workers of this process's run begin together."""
    Scheduler.worker_ready = begun_together()  # type: ignore[method-assign]


def begin_after_one_is_given_up() -> None:
    """Let no worker of this process's run begin before a device is given up."""
    worker_ready, start_failed = Scheduler.worker_ready, Scheduler.start_failed
    ready: list[str] = []
    given_up: list[str] = []

    def once_one_is_given_up(self: Scheduler, name: str) -> list[Command]:
        if given_up:
            return worker_ready(self, name)
        ready.append(name)
        return []

    def and_then_begin(self: Scheduler, name: str, reason: str) -> list[Command]:
        commands = start_failed(self, name, reason)
        if any(isinstance(command, GiveUpDevice) for command in commands) and not given_up:
            given_up.append(name)
            commands += [command for each in ready for command in worker_ready(self, each)]
        return commands

    Scheduler.worker_ready = once_one_is_given_up  # type: ignore[method-assign]
    Scheduler.start_failed = and_then_begin  # type: ignore[method-assign]
