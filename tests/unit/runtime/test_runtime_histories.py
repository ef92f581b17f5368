"""Simulated histories: none breaks a rule, and each of many planted faults is found by one."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import histories
import pytest

from ray_precheck.runtime.bench_stage import BenchStage, Parcel
from ray_precheck.runtime.commands import Command, Forget, Record
from ray_precheck.runtime.scheduler import Scheduler
from ray_precheck.runtime.slots import SlotState
from ray_precheck.runtime.task_queue import TaskQueue
from ray_precheck.schema.casualty import BatchReport, Casualty, Cause
from ray_precheck.store import journal
from ray_precheck.store.columns import BOM
from ray_precheck.store.journal import Journal

pytestmark = pytest.mark.unit

HISTORIES = 10_000
# A planted fault must be found within so many.
MOST_TO_FIND = 4000


def test_ten_thousand_histories_break_no_rule() -> None:
    failures = histories.check_seeds(0, HISTORIES)
    assert not failures, str(failures[0])


def test_every_prefix_of_a_few_histories_can_be_gone_on_with() -> None:
    failures = histories.check_seeds(1, 3, every_prefix_of=1)
    assert not failures, str(failures[0])


def test_a_seed_is_always_the_same_history() -> None:
    with histories.workplace() as (folder, disk):
        for seed in range(50):
            first, second = histories.Drawn(seed), histories.Drawn(seed)
            histories.run_history(first, folder, disk)
            histories.run_history(second, folder, disk)
            again = histories.Given(first.taken)
            histories.run_history(again, folder, disk)
            assert first.taken == second.taken == again.taken


def test_no_choices_at_all_are_a_history_too() -> None:
    with histories.workplace() as (folder, disk):
        assert histories.run_history(histories.Given([]), folder, disk) == ""


# What each fault does to the scheduler or the journal.


def convict_in_a_batch(patch: pytest.MonkeyPatch) -> None:
    strike = Scheduler._strike

    def always(self: Scheduler, name: str, *others: Any) -> list[Command]:
        self._slots[name].fresh = True
        return strike(self, name, *others)

    patch.setattr(Scheduler, "_strike", always)


def convict_on_a_used_worker(patch: pytest.MonkeyPatch) -> None:
    done = Scheduler.batch_done

    def stay_fresh(self: Scheduler, name: str, *others: Any) -> list[Command]:
        commands = done(self, name, *others)
        if name in self._slots:
            self._slots[name].fresh = True
        return commands

    patch.setattr(Scheduler, "batch_done", stay_fresh)


def forget_the_rest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TaskQueue, "put_back", lambda self, tasks: None)


def requeue_what_was_run(patch: pytest.MonkeyPatch) -> None:
    def all_others(self: Scheduler, broken: int, batch: dict[int, Any]) -> dict[int, Any]:
        self._queue.put_back(task for index, task in batch.items() if index != broken)
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


def take_suspects_anywhere(patch: pytest.MonkeyPatch) -> None:
    def first(self: Scheduler, place: str) -> Any:
        return self._blame.suspects.popleft() if self._blame.suspects else None

    patch.setattr(Scheduler, "_take_suspect", first)


def keep_a_suspect_when_moving(patch: pytest.MonkeyPatch) -> None:
    def keep(self: Scheduler, name: str) -> None:
        slot = self._slots[name]
        if slot.suspect is None:
            self._slots.keep_suspect(name, self._take_suspect(slot.place))

    patch.setattr(Scheduler, "_choose_suspect", keep)


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


def lose_the_suspect_of_a_dead_device(patch: pytest.MonkeyPatch) -> None:
    failed = Scheduler.start_failed

    def forget(self: Scheduler, name: str, reason: str) -> list[Command]:
        if name in self._slots:
            self._slots.keep_suspect(name, None)
        return failed(self, name, reason)

    patch.setattr(Scheduler, "start_failed", forget)


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


def count_a_strike_twice(patch: pytest.MonkeyPatch) -> None:
    strike = Scheduler._strike

    def twice(self: Scheduler, name: str, task: Any, casualty: Any) -> list[Command]:
        self._blame._strikes[task.index, casualty.cause] += 1
        return strike(self, name, task, casualty)

    patch.setattr(Scheduler, "_strike", twice)


def drop_the_result_of_a_casualty(patch: pytest.MonkeyPatch) -> None:
    strike = Scheduler._strike

    def without(self: Scheduler, name: str, task: Any, casualty: Any) -> list[Command]:
        commands = strike(self, name, task, casualty)
        return [
            Record((self._blame._failure(task, casualty),)) if isinstance(c, Record) else c
            for c in commands
        ]

    patch.setattr(Scheduler, "_strike", without)


# What goes wrong between a device and a bench.


def never_withdraw_a_promise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BenchStage, "withdraw", lambda self, ticket: None)


def blame_for_a_bench(patch: pytest.MonkeyPatch) -> None:
    done = Scheduler._bench_done

    def guilty(self: Scheduler, name: str, ticket: int, report: BatchReport) -> list[Command]:
        casualty = report.casualty
        if casualty is not None:
            over = Casualty(casualty.index, Cause.OVER_BUDGET, casualty.reason)
            report = BatchReport(report.results, over)
        return done(self, name, ticket, report)

    patch.setattr(Scheduler, "_bench_done", guilty)


def try_a_slow_bench_again(patch: pytest.MonkeyPatch) -> None:
    done = Scheduler._bench_done

    def crashed(self: Scheduler, name: str, ticket: int, report: BatchReport) -> list[Command]:
        casualty = report.casualty
        if casualty is not None:
            crash = Casualty(casualty.index, Cause.CRASHED, casualty.reason)
            report = BatchReport(report.results, crash)
        return done(self, name, ticket, report)

    patch.setattr(Scheduler, "_bench_done", crashed)


def drop_what_waits_on_a_lost_node(patch: pytest.MonkeyPatch) -> None:
    lose = BenchStage.lose_waiting

    def forget(self: BenchStage, place: str | None = None) -> list[Parcel]:
        return [] if lose(self, place) else []

    patch.setattr(BenchStage, "lose_waiting", forget)


def keep_what_waits_on_a_lost_node(patch: pytest.MonkeyPatch) -> None:
    lose = BenchStage.lose_waiting
    patch.setattr(
        BenchStage,
        "lose_waiting",
        lambda self, place=None: lose(self) if place is None else [],
    )


def wait_for_benches_that_are_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BenchStage, "has_living", True)


def lose_the_batch_that_is_reserved(patch: pytest.MonkeyPatch) -> None:
    def drop(self: Scheduler, name: str) -> list[Command]:
        reserved = self._slots.reserve(name, None)
        return [] if reserved is None else [Forget(reserved.ticket)]

    patch.setattr(Scheduler, "_release", drop)


def keep_files_that_nobody_needs(patch: pytest.MonkeyPatch) -> None:
    release = Scheduler._release
    patch.setattr(
        Scheduler,
        "_release",
        lambda self, name: [c for c in release(self, name) if not isinstance(c, Forget)],
    )


def let_a_suspect_wait_behind_the_next_batch(patch: pytest.MonkeyPatch) -> None:
    release = Scheduler._release

    def unless_suspect(self: Scheduler, name: str) -> list[Command]:
        return [] if self._slots[name].suspect is not None else release(self, name)

    patch.setattr(Scheduler, "_release", unless_suspect)


def send_before_the_files_are_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_prepare", lambda self, batch: [])


def send_what_a_lost_bench_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Scheduler,
        "_check_lost",
        lambda self, batches: self._check_again(batches.values()),
    )


def feed_a_busy_bench(patch: pytest.MonkeyPatch) -> None:
    def to_any(self: BenchStage) -> tuple[str, Parcel] | None:
        ready = [n for n, slot in self._slots.items() if slot.state.value == "ready"]
        return (ready[0], self._waiting.popleft()) if ready and self._waiting else None

    patch.setattr(BenchStage, "next_assignment", to_any)


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

    def oldest(self: BenchStage, name: str, ticket: int) -> Parcel | None:
        return done(self, name, next(iter(self._slots[name].parcels), ticket))

    patch.setattr(BenchStage, "done", oldest)


def try_a_bench_twice(patch: pytest.MonkeyPatch) -> None:
    def requeue(self: Scheduler, parcels: Any) -> list[Command]:
        parcels = list(parcels)
        for parcel in parcels:
            self._queue.put_back(parcel.tasks)
        return [Forget(parcel.ticket) for parcel in parcels if parcel.ticket]

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
    take_suspects_anywhere,
    keep_a_suspect_when_moving,
    move_at_once,
    blame_while_draining,
    lose_the_suspect_of_a_dead_device,
    hear_of_a_start_twice,
    start_workers_while_draining,
    never_wake,
    count_a_strike_twice,
    drop_the_result_of_a_casualty,
    never_withdraw_a_promise,
    blame_for_a_bench,
    try_a_slow_bench_again,
    drop_what_waits_on_a_lost_node,
    keep_what_waits_on_a_lost_node,
    wait_for_benches_that_are_given_up,
    lose_the_batch_that_is_reserved,
    keep_files_that_nobody_needs,
    let_a_suspect_wait_behind_the_next_batch,
    send_before_the_files_are_there,
    send_what_a_lost_bench_waited_for,
    feed_a_busy_bench,
    give_a_bench_whole_records_without_end,
    count_no_bytes,
    forget_what_is_lent,
    lend_nothing,
    hear_late_benches,
    try_a_bench_twice,
    leave_what_was_made,
    send_to_a_bench_that_starts,
    write_the_result_first,
    write_known_rows_again,
    reopen_without_repair,
    never_sync,
    leave_the_order,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    (failure,) = histories.check_seeds(0, MOST_TO_FIND)
    assert failure.error.startswith("Broken: ")
    assert f"--count 1 --seed {failure.seed}" in str(failure)


def test_a_failing_history_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_the_rest(monkeypatch)
    with histories.workplace() as (folder, disk):
        for seed in range(20):
            drawn = histories.Drawn(seed)
            if histories.run_history(drawn, folder, disk):
                smallest = histories.shrink(drawn.taken, folder, disk)
                assert histories.run_history(histories.Given(smallest), folder, disk)
                assert len(smallest) < 25
                assert sum(smallest) < 30
    (failure,) = histories.check_seeds(0, MOST_TO_FIND)
    # Nothing but a record that breaks its worker, and one after it.
    assert failure.error == "Broken: never settled: [1]"
    assert len(failure.trace) < 10


def test_the_command_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert histories.main(["--count", "30", "--seed", "5"]) == 0
    assert capsys.readouterr().out.startswith("30 histories from seed 5: no rule is broken (")


def test_and_fails_with_the_history(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "ProcessPoolExecutor", lambda jobs: ThreadPoolExecutor(jobs))
    leave_the_order(monkeypatch)
    assert histories.main(["--count", "50"]) == 1
    assert "the files are not in the order of the dump" in capsys.readouterr().out
