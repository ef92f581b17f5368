"""Faults that are planted in what the scheduler does with devices, and in the journal, for histories to find.

Each is a function that patches one thing; called by `test_runtime_histories.py`.
"""

from collections.abc import Callable
from typing import Any

import pytest

from ray_precheck.runtime.scheduling.bench_stage import BenchStage
from ray_precheck.runtime.scheduling.commands import Command, Record, SendBatch
from ray_precheck.runtime.scheduling.queue import TaskQueue
from ray_precheck.runtime.scheduling.scheduler import Dispatch, Scheduler
from ray_precheck.runtime.scheduling.slots import CrashCounts, SlotState, SlotTable
from ray_precheck.schema.task import BatchReport
from ray_precheck.store import journal
from ray_precheck.store.journal import Journal
from ray_precheck.store.tables import BOM

# What goes wrong with devices.


def convict_in_a_batch(patch: pytest.MonkeyPatch) -> None:
    count_crash = Scheduler._count_crash

    def always(self: Scheduler, name: str, *others: Any) -> list[Command]:
        self._slots[name].fresh = True
        return count_crash(self, name, *others)

    patch.setattr(Scheduler, "_count_crash", always)


def convict_on_a_used_worker(patch: pytest.MonkeyPatch) -> None:
    done = Scheduler.batch_done

    def stay_fresh(self: Scheduler, name: str, *others: Any) -> list[Command]:
        commands = done(self, name, *others)
        if name in self._slots:
            self._slots[name].fresh = True
        return commands

    patch.setattr(Scheduler, "batch_done", stay_fresh)


def forget_the_rest(patch: pytest.MonkeyPatch) -> None:
    def drop(self: Scheduler, broken: int, batch: dict[int, Any]) -> dict[int, Any]:
        before = list(batch)[: list(batch).index(broken)]
        return {index: batch[index] for index in before}

    patch.setattr(Scheduler, "_requeue_after", drop)


def requeue_what_was_run(patch: pytest.MonkeyPatch) -> None:
    def all_others(self: Scheduler, broken: int, batch: dict[int, Any]) -> dict[int, Any]:
        self._dispatch.queue.put_back(task for index, task in batch.items() if index != broken)
        return {}

    patch.setattr(Scheduler, "_requeue_after", all_others)


def hear_late_answers(patch: pytest.MonkeyPatch) -> None:
    done = Scheduler.batch_done

    def any_ticket(self: Scheduler, name: str, ticket: int, report: BatchReport) -> list[Command]:
        if name in self._slots:
            ticket = self._slots[name].ticket
        return done(self, name, ticket, report)

    patch.setattr(Scheduler, "batch_done", any_ticket)


def hear_late_losses(patch: pytest.MonkeyPatch) -> None:
    lost = Scheduler.worker_lost

    def any_ticket(self: Scheduler, name: str, ticket: int, *others: Any) -> list[Command]:
        slot = self._slots.get(name)
        if slot is not None:
            ticket = slot.ticket if slot.batch else 0
        return lost(self, name, ticket, *others)

    patch.setattr(Scheduler, "worker_lost", any_ticket)


def record_twice(patch: pytest.MonkeyPatch) -> None:
    done = Scheduler.batch_done

    def doubled(self: Scheduler, *others: Any) -> list[Command]:
        commands = done(self, *others)
        return [*commands, *(c for c in commands if isinstance(c, Record))][: len(commands) + 1]

    patch.setattr(Scheduler, "batch_done", doubled)


def take_quarantined_anywhere(patch: pytest.MonkeyPatch) -> None:
    def first(self: CrashCounts, place: str, *, elsewhere: bool) -> Any:
        return self.quarantined.popleft() if self.quarantined else None

    patch.setattr(CrashCounts, "take_quarantined", first)


def keep_the_quarantined_when_moving(patch: pytest.MonkeyPatch) -> None:
    choose = Dispatch.choose_quarantined

    def keep(self: Dispatch, name: str) -> None:
        if self.slots[name].quarantined is None:
            choose(self, name)

    patch.setattr(Dispatch, "choose_quarantined", keep)


def move_at_once(patch: pytest.MonkeyPatch) -> None:
    revive = Scheduler.revive

    def now(self: Scheduler, name: str, place: str) -> list[Command]:
        self._slots[name].place = place
        return revive(self, name, place)

    patch.setattr(Scheduler, "revive", now)


def blame_while_draining(patch: pytest.MonkeyPatch) -> None:
    break_all = Scheduler._break_all

    def regardless(self: Scheduler, *others: Any) -> list[Command]:
        draining, self.draining = self.draining, False
        try:
            return break_all(self, *others)
        finally:
            self.draining = draining

    patch.setattr(Scheduler, "_break_all", regardless)


def lose_the_quarantined_of_a_dead_device(patch: pytest.MonkeyPatch) -> None:
    failed = Scheduler.start_failed

    def forget(self: Scheduler, name: str, reason: str) -> list[Command]:
        if name in self._slots:
            self._slots.keep_quarantined(name, None)
        return failed(self, name, reason)

    patch.setattr(Scheduler, "start_failed", forget)


def keep_the_promise_of_a_lost_slot(patch: pytest.MonkeyPatch) -> None:
    lost = Scheduler.slot_lost

    def with_promise(self: Scheduler, name: str, reason: str) -> list[Command]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(BenchStage, "withdraw", lambda *_: None)
            return lost(self, name, reason)

    patch.setattr(Scheduler, "slot_lost", with_promise)


def keep_what_a_lost_slot_had_in_store(patch: pytest.MonkeyPatch) -> None:
    lost = Scheduler.slot_lost

    def keep(self: Scheduler, name: str, reason: str) -> list[Command]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Dispatch, "give_back", lambda *_: [])
            return lost(self, name, reason)

    patch.setattr(Scheduler, "slot_lost", keep)


def forget_the_batch_of_a_lost_slot(patch: pytest.MonkeyPatch) -> None:
    lost = Scheduler.slot_lost

    def without(self: Scheduler, name: str, reason: str) -> list[Command]:
        if name in self._slots:
            self._slots.take(name)
        return lost(self, name, reason)

    patch.setattr(Scheduler, "slot_lost", without)


def start_on_a_lost_machine(patch: pytest.MonkeyPatch) -> None:
    lost = Scheduler.slot_lost

    def and_start(self: Scheduler, name: str, reason: str) -> list[Command]:
        return [*lost(self, name, reason), self._restart(name)]

    patch.setattr(Scheduler, "slot_lost", and_start)


def wait_for_a_lost_slot(patch: pytest.MonkeyPatch) -> None:
    lost = Scheduler.slot_lost

    def as_if_it_started(self: Scheduler, name: str, reason: str) -> list[Command]:
        commands = lost(self, name, reason)
        if name in self._slots:
            self._slots.enter(name, SlotState.STARTING)
        return commands

    patch.setattr(Scheduler, "slot_lost", as_if_it_started)


def hear_of_a_start_twice(patch: pytest.MonkeyPatch) -> None:
    ready = Scheduler.worker_ready

    def always(self: Scheduler, name: str) -> list[Command]:
        if name in self._slots:
            self._slots[name].state = SlotState.STARTING
        return ready(self, name)

    patch.setattr(Scheduler, "worker_ready", always)


def start_workers_while_draining(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "revive", lambda self, name, place: [self._restart(name)])


def never_wake(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "wake", lambda self: [])


def count_a_crash_twice(patch: pytest.MonkeyPatch) -> None:
    count_crash = Scheduler._count_crash

    def twice(self: Scheduler, name: str, task: Any, failure: Any) -> list[Command]:
        self._dispatch.crash_counts._crashes[task.index, failure.cause] += 1
        return count_crash(self, name, task, failure)

    patch.setattr(Scheduler, "_count_crash", twice)


def drop_the_result_of_a_failure(patch: pytest.MonkeyPatch) -> None:
    count_crash = Scheduler._count_crash

    def without(self: Scheduler, name: str, task: Any, failure: Any) -> list[Command]:
        commands = count_crash(self, name, task, failure)
        return [
            Record((self._dispatch.crash_counts._failure(task, failure),))
            if isinstance(c, Record)
            else c
            for c in commands
        ]

    patch.setattr(Scheduler, "_count_crash", without)


def begin_what_is_behind_a_crash(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatch, "recall", lambda self, name: [])


def forget_what_is_behind_a_crash(patch: pytest.MonkeyPatch) -> None:
    recall = Dispatch.recall

    def drop(self: Dispatch, name: str) -> list[Command]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(TaskQueue, "put_back", lambda self, tasks: None)
            return recall(self, name)

    patch.setattr(Dispatch, "recall", drop)


def send_what_is_behind_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlotTable, "advance", lambda self, name: self.recall(name) and False)


def miscount_what_is_behind(patch: pytest.MonkeyPatch) -> None:
    follow = SlotTable.follow

    def uncounted(self: SlotTable, name: str, batch: SendBatch) -> None:
        follow(self, name, batch)
        self.in_batches -= len(batch.tasks)

    patch.setattr(SlotTable, "follow", uncounted)


# What goes wrong on the disk.


def write_the_result_first(patch: pytest.MonkeyPatch) -> None:
    write = Journal._write
    held: list[bytes] = []

    def swapped(self: Journal, fd: int, data: bytes) -> None:
        if data.startswith(BOM):
            write(self, fd, data)
        elif fd == self._details_fd:
            held[:] = [data]
        else:
            write(self, fd, data)
            write(self, self._details_fd, held[0])

    patch.setattr(Journal, "_write", swapped)


def write_known_rows_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "_without_known", lambda self, results: results)


def reopen_without_repair(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "reopen", Journal.open)


def never_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "_write", lambda self, fd, data: journal.os.write(fd, memoryview(data)))


def leave_the_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "complete", lambda self, order: self.close())


FAULTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    convict_in_a_batch,
    convict_on_a_used_worker,
    forget_the_rest,
    requeue_what_was_run,
    hear_late_answers,
    hear_late_losses,
    record_twice,
    take_quarantined_anywhere,
    keep_the_quarantined_when_moving,
    move_at_once,
    blame_while_draining,
    lose_the_quarantined_of_a_dead_device,
    keep_the_promise_of_a_lost_slot,
    keep_what_a_lost_slot_had_in_store,
    forget_the_batch_of_a_lost_slot,
    start_on_a_lost_machine,
    wait_for_a_lost_slot,
    hear_of_a_start_twice,
    start_workers_while_draining,
    never_wake,
    count_a_crash_twice,
    drop_the_result_of_a_failure,
    begin_what_is_behind_a_crash,
    forget_what_is_behind_a_crash,
    send_what_is_behind_again,
    miscount_what_is_behind,
    write_the_result_first,
    write_known_rows_again,
    reopen_without_repair,
    never_sync,
    leave_the_order,
]
