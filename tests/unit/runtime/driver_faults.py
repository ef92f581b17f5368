"""Faults that are planted in the driver, the crew, the recorder and the worker, for histories to find.

Each is a function that patches one thing; called by `test_runtime_histories.py`. The first two are the
races that were found in live runs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ray_precheck.runtime.actors import ActorLost, ActorPulses
from ray_precheck.runtime.crew import Crew
from ray_precheck.runtime.driver import Driver, Machines
from ray_precheck.runtime.recorder import Recorder
from ray_precheck.runtime.scheduling.commands import Command, Forget, SendBatch
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.runtime.workers.worker import Turns


def carry_out_at_the_end_of_a_step(patch: pytest.MonkeyPatch) -> None:
    """The commands of all events of a step are carried out after the last of them.

    Then an answer and the loss of its node in one step have a batch sent to a worker that is
    dismissed by then.
    """
    step = Driver._step

    def batched(self: Driver, run: Any, wait_s: float) -> None:
        kept: list[Command] = []
        record = run.recorder.record

        def record_last(finished: Any, tracks: Any = ()) -> None:
            type(self)._carry_out(self, kept, run)
            finished, run.finished = [*finished, *run.finished], []
            record(finished, tracks)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_carry_out", lambda commands, run: kept.extend(commands))
            inner.setattr(Crew, "send_held", lambda self: None)
            inner.setattr(run.recorder, "record", record_last)
            step(self, run, wait_s)
        self._crew.send_held()

    patch.setattr(Driver, "_step", batched)


def ask_the_slot_where_its_worker_is(patch: pytest.MonkeyPatch) -> None:
    """A batch is sent with files, or without, by where its slot belongs by now.

    Where commands wait for the end of a step, the slot may have moved since: its files were never
    asked for. What is for a dismissed worker is left out here, to find that alone.
    """
    carry_out_at_the_end_of_a_step(patch)
    send = Crew.send

    def by_slot(self: Crew, batch: SendBatch) -> None:
        if batch.slot not in self._workers:
            return
        if self.shipper is not None and self.needs_files(batch.slot):
            self.shipper.take(batch.ticket)
        send(self, batch)

    patch.setattr(Crew, "send", by_slot)


def keep_waiting_for_a_lost_worker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Crew, "late", lambda self: [])
    patch.setattr(Machines, "_abandon", lambda self, label, scheduler: [])


def keep_waiting_for_a_stopped_writer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActorPulses, "is_lost", lambda self, handle: False)


def send_behind_a_crash(patch: pytest.MonkeyPatch) -> None:
    """The worker goes on with what was sent for the process that broke."""
    patch.setattr(Turns, "forget", lambda self, last: None)


def wait_for_what_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    carry_out = Driver._carry_out

    def remember(self: Driver, commands: Sequence[Command], run: Any) -> None:
        carry_out(self, [c for c in commands if not isinstance(c, Forget)], run)

    patch.setattr(Driver, "_carry_out", remember)


def lose_what_a_dead_writer_had(patch: pytest.MonkeyPatch) -> None:
    succeed = Recorder._succeed

    def forget(self: Recorder, error: ActorLost) -> None:
        self._unacknowledged.clear()
        succeed(self, error)

    patch.setattr(Recorder, "_succeed", forget)


def hand_a_result_over_twice(patch: pytest.MonkeyPatch) -> None:
    record = Recorder.record

    def twice(self: Recorder, finished: Any, tracks: Any = ()) -> None:
        record(self, [*finished, *finished[:1]], tracks)

    patch.setattr(Recorder, "record", twice)


def start_no_successor_while_no_task_is_left(patch: pytest.MonkeyPatch) -> None:
    """Also where more tasks may come."""
    replace = Scheduler._replace

    def as_if_all_had_come(self: Scheduler, name: str) -> list[Command]:
        grows, self.grows = self.grows, False
        commands = replace(self, name)
        self.grows = grows
        return commands

    patch.setattr(Scheduler, "_replace", as_if_all_had_come)


DRIVER_FAULTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    carry_out_at_the_end_of_a_step,
    ask_the_slot_where_its_worker_is,
    keep_waiting_for_a_lost_worker,
    keep_waiting_for_a_stopped_writer,
    send_behind_a_crash,
    wait_for_what_is_forgotten,
    lose_what_a_dead_writer_had,
    hand_a_result_over_twice,
    start_no_successor_while_no_task_is_left,
]
