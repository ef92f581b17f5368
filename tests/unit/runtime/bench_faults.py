"""Faults that are planted between devices and benches, for histories to find.

Each is a function that patches one thing; called by `test_runtime_histories.py`.
"""

from collections.abc import Callable
from typing import Any

import pytest

from ray_precheck.runtime.scheduling.bench_stage import BenchStage, Transfer
from ray_precheck.runtime.scheduling.commands import Command, Forget
from ray_precheck.runtime.scheduling.scheduler import Dispatch, Scheduler
from ray_precheck.schema.task import BatchReport, Cause, WorkerFailure


def never_withdraw_a_promise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BenchStage, "withdraw", lambda self, ticket: None)


def blame_for_a_bench(patch: pytest.MonkeyPatch) -> None:
    _mistake_breaks_for(Cause.OVER_BUDGET, patch)


def try_a_slow_bench_again(patch: pytest.MonkeyPatch) -> None:
    _mistake_breaks_for(Cause.CRASHED, patch)


def _mistake_breaks_for(cause: Cause, patch: pytest.MonkeyPatch) -> None:
    """Have every break of a bench worker count as one of this cause."""
    done = Scheduler._bench_done

    def mistaken(self: Scheduler, name: str, ticket: int, report: BatchReport) -> list[Command]:
        failure = report.failure
        if failure is not None:
            other = WorkerFailure(failure.index, cause, failure.reason)
            report = BatchReport(report.results, other)
        return done(self, name, ticket, report)

    patch.setattr(Scheduler, "_bench_done", mistaken)


def drop_what_waits_on_a_lost_node(patch: pytest.MonkeyPatch) -> None:
    lose = BenchStage.lose_waiting

    def forget(self: BenchStage, place: str | None = None) -> list[Transfer]:
        lose(self, place)
        return []

    patch.setattr(BenchStage, "lose_waiting", forget)


def wait_for_benches_that_are_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BenchStage, "has_living", True)


def lose_the_batch_that_is_reserved(patch: pytest.MonkeyPatch) -> None:
    def drop(self: Dispatch, name: str) -> list[Command]:
        reserved = self.slots.reserve(name, None)
        return [] if reserved is None else [Forget(reserved.ticket)]

    patch.setattr(Dispatch, "release", drop)


def keep_files_that_nobody_needs(patch: pytest.MonkeyPatch) -> None:
    release = Dispatch.release
    patch.setattr(
        Dispatch,
        "release",
        lambda self, name: [c for c in release(self, name) if not isinstance(c, Forget)],
    )


def let_the_quarantined_wait_behind_the_next_batch(patch: pytest.MonkeyPatch) -> None:
    release = Dispatch.release

    def unless_quarantined(self: Dispatch, name: str) -> list[Command]:
        return [] if self.slots[name].quarantined is not None else release(self, name)

    patch.setattr(Dispatch, "release", unless_quarantined)


def send_before_the_files_are_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatch, "prepare", lambda self, batch: [])


def send_what_a_lost_bench_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Scheduler,
        "_check_lost",
        lambda self, batches: self._check_again(batches.values()),
    )


def feed_a_busy_bench(patch: pytest.MonkeyPatch) -> None:
    def to_any(self: BenchStage) -> tuple[str, Transfer] | None:
        ready = [n for n, slot in self._slots.items() if slot.state.value == "ready"]
        return (ready[0], self._waiting.popleft()) if ready and self._waiting else None

    patch.setattr(BenchStage, "next_assignment", to_any)


def send_long_transfers_to_who_is_busy(patch: pytest.MonkeyPatch) -> None:
    fetching = BenchStage._fetching

    def as_if_ample(self: BenchStage, transfer: Transfer) -> str:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_usable", set())
            return fetching(self, transfer)

    patch.setattr(BenchStage, "_fetching", as_if_ample)


def give_a_bench_whole_records_without_end(patch: pytest.MonkeyPatch) -> None:
    def all_ready(self: BenchStage, ahead: Any) -> list[str]:
        return [n for n, slot in self._slots.items() if slot.state.value == "ready"]

    patch.setattr(BenchStage, "with_room", all_ready)


def count_no_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BenchStage, "room_bytes", 1 << 60)


def forget_what_is_lent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BenchStage, "_give_back", lambda self, slot: slot.borrowed.clear())


def lend_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BenchStage, "_lend", lambda self, borrower, count: None)


def hear_late_benches(patch: pytest.MonkeyPatch) -> None:
    done = BenchStage.done

    def oldest(self: BenchStage, name: str, ticket: int) -> Transfer | None:
        return done(self, name, next(iter(self._slots[name].transfers), ticket))

    patch.setattr(BenchStage, "done", oldest)


def try_a_bench_twice(patch: pytest.MonkeyPatch) -> None:
    def requeue(self: Scheduler, transfers: Any) -> list[Command]:
        transfers = list(transfers)
        for transfer in transfers:
            self._dispatch.queue.put_back(transfer.tasks)
        return [Forget(transfer.ticket) for transfer in transfers if transfer.ticket]

    patch.setattr(Scheduler, "_check_again", requeue)


def leave_what_was_made(patch: pytest.MonkeyPatch) -> None:
    done = Scheduler._bench_done
    patch.setattr(
        Scheduler,
        "_bench_done",
        lambda self, *others: [c for c in done(self, *others) if not isinstance(c, Forget)],
    )


def send_to_a_bench_that_starts(patch: pytest.MonkeyPatch) -> None:
    lose = Scheduler._lose_bench

    def and_send(self: Scheduler, name: str) -> list[Command]:
        commands = lose(self, name)
        self.bench.ready(name)
        return commands

    patch.setattr(Scheduler, "_lose_bench", and_send)


BENCH_FAULTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    never_withdraw_a_promise,
    blame_for_a_bench,
    try_a_slow_bench_again,
    drop_what_waits_on_a_lost_node,
    wait_for_benches_that_are_given_up,
    lose_the_batch_that_is_reserved,
    keep_files_that_nobody_needs,
    let_the_quarantined_wait_behind_the_next_batch,
    send_before_the_files_are_there,
    send_what_a_lost_bench_waited_for,
    feed_a_busy_bench,
    send_long_transfers_to_who_is_busy,
    give_a_bench_whole_records_without_end,
    count_no_bytes,
    forget_what_is_lent,
    lend_nothing,
    hear_late_benches,
    try_a_bench_twice,
    leave_what_was_made,
    send_to_a_bench_that_starts,
]
