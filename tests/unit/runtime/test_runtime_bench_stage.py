"""Who takes what a device has made, how many bytes may wait for it, and how long that will take."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mock_pool import make_tasks

from ray_precheck.runtime.scheduling.bench_stage import BenchStage, BenchState, Transfer
from ray_precheck.runtime.scheduling.queue import HUGE_S, HUGE_THREADS
from ray_precheck.runtime.scheduling.slots import START_ATTEMPTS
from ray_precheck.schema.task import Task

pytestmark = pytest.mark.unit

LARGE = 1 << 40
SHORT_S, LONG_S = 0.01, 10.0
A_TASK = (Task(0, "Mint.a.0", 1.0, 100),)
HUGE_TASK = (Task(1, "Mint.a.1", HUGE_S, 100),)


def stage(places: Sequence[str], most_bytes: int = LARGE, ready: int = 99) -> BenchStage:
    """Bench workers b0, b1, ... at places; the first `ready` have started."""
    made = BenchStage({f"b{i}": place for i, place in enumerate(places)}, most_bytes)
    for name in made.names[:ready]:
        made.ready(name)
    return made


def transfer(
    ticket: int,
    place: str = "m0",
    tasks: tuple[Task, ...] = A_TASK,
    bench_s: float = LONG_S,
) -> Transfer:
    return Transfer(ticket, place, tasks, sum(task.nbytes for task in tasks), bench_s=bench_s)


def hand_out(made: BenchStage, *transfers: Transfer) -> list[str]:
    """Have transfers arrive; returns who gets them, in their turn."""
    for each in transfers:
        made.promise(each.ticket, each.tasks, each.bench_s)
        made.arrive(each)
    names = []
    while found := made.next_assignment():
        name, taken = found
        made.assign(name, 1000 + taken.ticket, taken)
        names.append(name)
    return names


def states(made: BenchStage) -> list[BenchState]:
    return [made._slots[name].state for name in made.names]


class TestAssignment:
    def test_a_transfer_goes_to_who_is_free_first_on_its_own_machine(self) -> None:
        assert hand_out(stage(["m0", "m1"]), transfer(1, "m1"), transfer(2, "m1")) == ["b1", "b0"]

    def test_the_one_that_has_waited_longest_comes_first(self) -> None:
        made = stage(["m0"], ready=0)
        assert hand_out(made, transfer(1), transfer(2)) == []
        made.ready("b0")
        found = made.next_assignment()
        assert found is not None
        assert found[1].ticket == 1

    def test_a_busy_worker_gets_a_second_long_one_from_another_machine_alone(self) -> None:
        both = [transfer(1), transfer(2)]
        assert hand_out(stage(["m0"] * 2), *both, transfer(3)) == ["b0", "b1"]
        assert hand_out(stage(["m0"] * 2), *both, transfer(3, "m1")) == ["b0", "b1", "b0"]
        assert hand_out(stage(["m0", "m1"]), *both, transfer(3)) == ["b0", "b1", "b1"]

    @pytest.mark.parametrize("bench_s", [SHORT_S, LONG_S])
    def test_or_of_as_many_that_wait_as_there_are_workers(self, bench_s: float) -> None:
        transfers = [transfer(1), transfer(2), *(transfer(i, bench_s=bench_s) for i in (3, 4, 5))]
        assert hand_out(stage(["m0"] * 2), *transfers[:3]) == ["b0", "b1"]
        assert hand_out(stage(["m0"] * 2), *transfers[:4]) == ["b0", "b1", "b0"]
        assert hand_out(stage(["m0"] * 2), *transfers) == ["b0", "b1", "b0", "b1"]

    def test_who_starts_is_none_of_these(self) -> None:
        made = stage(["m0"] * 2, ready=1)
        assert hand_out(made, transfer(1), transfer(2)) == ["b0", "b0"]

    def test_and_who_has_lent_its_core_is_one(self) -> None:
        made = stage(["m0"] * 2)
        assert hand_out(made, transfer(1, tasks=HUGE_TASK), transfer(2)) == ["b0"]
        assert hand_out(made, transfer(3)) == ["b0"]

    def test_a_short_one_waits_behind_another_short_one_of_its_machine(self) -> None:
        made = stage(["m0"] * 2)
        transfers = [transfer(1), *(transfer(i, bench_s=SHORT_S) for i in (2, 3))]
        assert hand_out(made, *transfers) == ["b0", "b1", "b1"]
        assert made.busy() == ["b0", "b1"]
        assert made.in_flight == 3

    def test_but_not_while_somebody_is_free(self) -> None:
        transfers = [transfer(i, bench_s=SHORT_S) for i in (1, 2, 3)]
        assert sorted(hand_out(stage(["m0", "m0"]), *transfers[:2])) == ["b0", "b1"]
        assert sorted(hand_out(stage(["m0", "m1"]), *transfers)) == ["b0", "b0", "b1"]

    def test_and_not_behind_a_long_one(self) -> None:
        transfers = [transfer(1), transfer(2), transfer(3, bench_s=SHORT_S)]
        assert hand_out(stage(["m0"] * 2), *transfers) == ["b0", "b1"]

    def test_nor_does_a_long_one_behind_a_short_one(self) -> None:
        transfers = [*(transfer(i, bench_s=SHORT_S) for i in (1, 2)), transfer(3)]
        assert hand_out(stage(["m0"] * 2), *transfers) == ["b0", "b1"]
        made = stage(["m0", "m1"])
        assert hand_out(made, *transfers) == ["b0", "b1", "b1"]
        assert hand_out(made, transfer(4)) == []

    def test_nor_one_that_needs_several_cores(self) -> None:
        huge = transfer(2, tasks=HUGE_TASK, bench_s=SHORT_S)
        assert hand_out(stage(["m0"]), transfer(1), huge) == ["b0"]

    @pytest.mark.parametrize(
        ("place", "bench_s"), [("m1", LONG_S), ("m0", SHORT_S), ("m0", LONG_S)]
    )
    def test_and_no_third_one(self, place: str, bench_s: float) -> None:
        transfers = [transfer(i, place, bench_s=bench_s) for i in (1, 2, 3)]
        assert hand_out(stage(["m0"]), *transfers) == ["b0", "b0"]

    def test_who_starts_or_is_given_up_gets_nothing(self) -> None:
        made = stage(["m0", "m0"], ready=0)
        for _ in range(START_ATTEMPTS):
            made.start_failed("b1")
        assert hand_out(made, transfer(1)) == []
        assert made.has_living
        for _ in range(START_ATTEMPTS):
            made.start_failed("b0")
        assert not made.has_living

    def test_a_worker_is_given_up_after_three_starts_that_fail_in_a_row(self) -> None:
        made = stage(["m0"], ready=0)
        assert [made.start_failed("b0") for _ in range(START_ATTEMPTS - 1)] == [True, True]
        made.ready("b0")
        made.lose("b0")
        assert [made.start_failed("b0") for _ in range(START_ATTEMPTS)] == [True, True, False]
        assert states(made) == [BenchState.GIVEN_UP]

    def test_an_answer_that_is_not_awaited_is_none(self) -> None:
        made = stage(["m0", "m0"])
        hand_out(made, transfer(1), transfer(2))
        assert made.done("b0", 1002) is None
        assert made.done("nobody", 1001) is None
        assert made.in_flight == 2
        assert made.done("b0", 1001) == transfer(1)
        assert made.done("b0", 1001) is None
        assert made.in_flight == 1

    def test_whole_records_take_no_bytes_and_end_like_transfers(self) -> None:
        made = stage(["m0"], most_bytes=0)
        made.take("b0", 7, A_TASK)
        assert (made.busy(), made.in_flight, made.is_empty) == (["b0"], 1, False)
        assert made.done("b0", 7) == Transfer(0, "m0", A_TASK, 0)
        assert (made.busy(), made.in_flight, made.is_empty) == ([], 0, True)

    def test_room_for_a_batch_is_with_who_has_none_or_is_one_ahead(self) -> None:
        made = stage(["m0", "m1", "m2"], ready=2)
        made.take("b0", 1, A_TASK)
        made.take("b1", 2, A_TASK)
        assert made.with_room(frozenset()) == []
        assert made.with_room({"b1", "b2"}) == ["b1"]
        made.take("b1", 3, A_TASK)
        assert made.with_room({"b1", "b2"}) == []

    def test_it_waits_behind_who_will_be_done_first(self) -> None:
        made = stage(["m0", "m0"])
        first, second = transfer(1, bench_s=100.0), transfer(2, bench_s=1.0)
        names = hand_out(made, first, second)
        assert hand_out(made, transfer(3), transfer(4))[0] == names[1]


class TestRoom:
    def test_it_is_of_bytes_alone_however_many_wait(self) -> None:
        made = stage(["m0"], most_bytes=1000)
        for ticket in range(9):
            made.promise(ticket, HUGE_TASK, LONG_S)
        assert made.room_bytes == 100
        made.promise(9, HUGE_TASK, LONG_S)
        assert made.room_bytes == 0

    def test_there_is_none_where_nobody_can_take_a_transfer(self) -> None:
        made = stage(["m0"] * 2, ready=0)
        assert made.room_bytes == 0
        made.ready("b1")
        assert made.room_bytes == LARGE
        made.lose("b1")
        assert made.room_bytes == 0

    def test_a_promise_counts_until_it_is_withdrawn(self) -> None:
        made = stage(["m0"], most_bytes=1000)
        made.promise(1, A_TASK, LONG_S)
        assert made.room_bytes == 900
        made.withdraw(1)
        made.withdraw(1)
        assert made.room_bytes == 1000
        assert made.is_empty

    def test_what_arrives_counts_instead_of_what_was_promised(self) -> None:
        made = stage(["m0"], most_bytes=1000)
        made.promise(1, A_TASK, LONG_S)
        made.arrive(Transfer(1, "m0", A_TASK, 30, bench_s=LONG_S))
        assert made.room_bytes == 970

    def test_and_until_its_bench_is_done(self) -> None:
        made = stage(["m0"], most_bytes=1000)
        hand_out(made, transfer(1))
        assert made.room_bytes == 900
        made.done("b0", 1001)
        assert made.room_bytes == 1000

    def test_nothing_waits_where_a_place_is_lost(self) -> None:
        made = stage(["m2"], ready=0)
        hand_out(made, transfer(1, "m0"), transfer(2, "m1"), transfer(3, "m0"))
        assert [each.ticket for each in made.lose_waiting("m0")] == [1, 3]
        assert [each.ticket for each in made.lose_waiting()] == [2]
        assert made.is_empty


def test_it_is_full_where_each_has_three() -> None:
    made = stage(["m0", "m0"], ready=1)
    for ticket in (1, 2, 3):
        assert not made.is_full
        made.promise(ticket, A_TASK, 1.0)
    assert made.is_full
    made.ready("b1")
    assert not made.is_full


class TestBacklog:
    def test_a_promise_counts_until_it_is_withdrawn(self) -> None:
        made = stage(["m0"])
        assert made.backlog_s == 0.0
        made.promise(1, A_TASK, 6.0)
        made.promise(2, A_TASK, 0.5)
        assert made.backlog_s == 6.5
        made.withdraw(1)
        assert made.backlog_s == 0.5

    def test_what_arrives_counts_instead_of_what_was_promised(self) -> None:
        made = stage(["m0"])
        made.promise(1, A_TASK, 6.0)
        made.arrive(transfer(1, bench_s=2.0))
        assert made.backlog_s == 2.0

    def test_and_no_more_once_a_worker_has_it(self) -> None:
        made = stage(["m0"])
        hand_out(made, transfer(1), transfer(2))
        assert made.in_flight == 2
        assert made.backlog_s == 0.0

    def test_nor_do_whole_records(self) -> None:
        made = stage(["m0"])
        made.take("b0", 7, A_TASK)
        assert made.backlog_s == 0.0

    def test_nor_what_is_lost_with_its_place(self) -> None:
        made = stage(["m0"])
        hand_out(made, transfer(1), transfer(2), *(transfer(i, "m1", bench_s=1.0) for i in (3, 4)))
        assert made.backlog_s == 2.0
        made.lose_waiting("m1")
        assert made.backlog_s == 0.0

    def test_no_rounding_is_left_over_of_what_is_gone(self) -> None:
        made = stage(["m0"])
        for ticket, bench_s in enumerate([0.1, 0.2, 0.3]):
            made.promise(ticket, A_TASK, bench_s)
        for ticket in range(3):
            made.withdraw(ticket)
        assert made.backlog_s == 0.0

    def test_each_worker_that_is_there_has_its_share(self) -> None:
        made = stage(["m0", "m0", "m1"], ready=2)
        made.promise(1, A_TASK, 4.0)
        made.arrive(Transfer(2, "m0", A_TASK, 100, bench_s=2.0))
        assert made.backlog_s == 3.0
        made.ready("b2")
        assert made.backlog_s == 2.0
        made.lose("b0")
        assert made.backlog_s == 3.0

    def test_and_so_has_one_that_has_lent_its_core(self) -> None:
        made = stage(["m0"] * 2)
        hand_out(made, transfer(1, tasks=HUGE_TASK))
        made.promise(2, A_TASK, 4.0)
        assert states(made) == [BenchState.READY, BenchState.LENT]
        assert made.backlog_s == 2.0

    def test_it_has_no_end_where_nobody_is_there(self) -> None:
        made = stage(["m0"], ready=0)
        assert made.backlog_s == math.inf
        made.promise(1, A_TASK, 4.0)
        assert made.backlog_s == math.inf


class TestLentCores:
    def test_a_huge_record_has_the_cores_of_those_on_its_machine_who_are_free(self) -> None:
        made = stage(["m0", "m0", "m1", "m0", "m0", "m0", "m0"])
        made.take("b1", 1, A_TASK)
        assert hand_out(made, transfer(2, tasks=HUGE_TASK)) == ["b0"]
        ready, lent = BenchState.READY, BenchState.LENT
        assert states(made) == [ready, ready, ready, lent, lent, lent, ready]

    def test_who_has_lent_its_core_gets_nothing(self) -> None:
        made = stage(["m0"] * 3)
        assert hand_out(made, transfer(1, tasks=HUGE_TASK), transfer(2)) == ["b0"]

    def test_the_cores_come_back_when_it_is_done(self) -> None:
        made = stage(["m0"] * 3)
        hand_out(made, transfer(1, tasks=HUGE_TASK))
        made.done("b0", 1001)
        assert states(made) == [BenchState.READY] * 3
        assert sorted(hand_out(made, transfer(2), transfer(3), transfer(4))) == ["b0", "b1", "b2"]

    def test_the_cores_come_back_though_the_borrower_has_another(self) -> None:
        made = stage(["m0"] * 4)
        waiting = [transfer(i) for i in range(2, 7)]
        assert hand_out(made, transfer(1, tasks=HUGE_TASK), *waiting) == ["b0", "b0"]
        made.done("b0", 1001)
        assert states(made) == [BenchState.READY] * 4

    def test_and_when_the_borrower_dies(self) -> None:
        made = stage(["m0"] * 3)
        hand_out(made, transfer(1, tasks=HUGE_TASK))
        assert made.lose("b0") == {1001: transfer(1, tasks=HUGE_TASK)}
        assert states(made) == [BenchState.STARTING, BenchState.READY, BenchState.READY]

    def test_and_when_its_machine_leaves(self) -> None:
        made = stage(["m0"] * 3)
        hand_out(made, transfer(1, tasks=HUGE_TASK))
        assert list(made.remove("b0")) == [1001]
        assert states(made) == [BenchState.READY] * 2
        assert made.is_empty

    def test_a_lender_that_died_and_lends_again_is_not_given_back_by_the_first(self) -> None:
        made = stage(["m0"] * 3, ready=0)
        for name in ("b1", "b2"):
            made.ready(name)
        assert hand_out(made, transfer(1, tasks=HUGE_TASK)) == ["b1"]
        made.lose("b2")
        for name in ("b0", "b2"):
            made.ready(name)
        assert hand_out(made, transfer(2, tasks=HUGE_TASK)) == ["b0"]
        made.done("b1", 1001)
        assert states(made) == [BenchState.READY, BenchState.READY, BenchState.LENT]

    def test_one_that_is_gone_is_not_missed(self) -> None:
        made = stage(["m0"] * 3)
        hand_out(made, transfer(1, tasks=HUGE_TASK))
        made.remove("b1")
        assert made.done("b0", 1001) is not None
        assert states(made) == [BenchState.READY] * 2


class Bytes(RuleBasedStateMachine):
    """Devices that ask for room, promise, and make no more than that; benches that work and die."""

    MOST = 1000

    def __init__(self) -> None:
        super().__init__()
        self.stage = stage(["m0", "m1", "m0"], most_bytes=self.MOST)
        self.last = 0
        self.promised: dict[int, tuple[tuple[Task, ...], float]] = {}
        self.waiting: list[Transfer] = []
        self.working: dict[int, tuple[str, Transfer]] = {}

    @rule(
        nbytes=st.integers(0, 1200),
        cost_s=st.sampled_from([1.0, HUGE_S]),
        bench_s=st.sampled_from([SHORT_S, LONG_S]),
    )
    def ask(self, nbytes: int, cost_s: float, bench_s: float) -> None:
        if 0 < self.stage.room_bytes >= nbytes:
            self.last += 1
            tasks = (Task(self.last, "Mint.a.0", cost_s, nbytes),)
            self.promised[self.last] = tasks, bench_s
            self.stage.promise(self.last, tasks, bench_s)

    @precondition(lambda self: self.promised)
    @rule(
        share=st.integers(0, 4),
        place=st.sampled_from(["m0", "m1"]),
        bench_s=st.sampled_from([SHORT_S, LONG_S]),
    )
    def make(self, share: int, place: str, bench_s: float) -> None:
        ticket, (tasks, _) = self.promised.popitem()
        nbytes = tasks[0].nbytes * share // 4
        self.waiting.append(Transfer(ticket, place, tasks, nbytes, bench_s=bench_s))
        self.stage.arrive(self.waiting[-1])

    @precondition(lambda self: self.promised)
    @rule()
    def break_down(self) -> None:
        self.stage.withdraw(self.promised.popitem()[0])

    @rule()
    def hand_out(self) -> None:
        while found := self.stage.next_assignment():
            name, taken = found
            self.waiting.remove(taken)
            self.stage.assign(name, taken.ticket, taken)
            self.working[taken.ticket] = name, taken

    @precondition(lambda self: self.working)
    @rule()
    def finish(self) -> None:
        ticket, (name, taken) = self.working.popitem()
        assert self.stage.done(name, ticket) == taken

    @rule(name=st.sampled_from(["b0", "b1", "b2"]), is_back=st.booleans())
    def die(self, name: str, is_back: bool) -> None:
        lost = self.stage.lose(name)
        assert lost == {t: each for t, (who, each) in self.working.items() if who == name}
        self.working = {t: each for t, each in self.working.items() if each[0] != name}
        if is_back:
            self.stage.ready(name)

    @rule(name=st.sampled_from(["b0", "b1", "b2"]))
    def come_back(self, name: str) -> None:
        self.stage.ready(name)

    @rule(place=st.sampled_from(["m0", "m1"]))
    def leave(self, place: str) -> None:
        lost = self.stage.lose_waiting(place)
        assert lost == [each for each in self.waiting if each.place == place]
        self.waiting = [each for each in self.waiting if each.place != place]

    @invariant()
    def no_more_bytes_than_allowed(self) -> None:
        total = sum(task.nbytes for tasks, _ in self.promised.values() for task in tasks)
        total += sum(each.nbytes for each in self.waiting)
        total += sum(each.nbytes for _, each in self.working.values())
        assert total == self.stage._bytes <= self.MOST
        assert self.stage.room_bytes == (self.MOST - total if self.stage._usable else 0)
        assert self.stage.in_flight == len(self.working)
        assert self.stage.is_empty == (not (self.promised or self.waiting or self.working))

    @invariant()
    def the_backlog_is_what_no_worker_has(self) -> None:
        total_s = sum(bench_s for _, bench_s in self.promised.values())
        total_s += sum(each.bench_s for each in self.waiting)
        usable = len(self.stage._usable)
        assert self.stage.backlog_s == (pytest.approx(total_s / usable) if usable else math.inf)

    @invariant()
    def who_is_free_or_usable_is_counted_right(self) -> None:
        slots = self.stage._slots
        ready = {name for name, slot in slots.items() if slot.state is BenchState.READY}
        lent = {name for name, slot in slots.items() if slot.state is BenchState.LENT}
        assert set(self.stage._free) == {name for name in ready if not slots[name].transfers}
        assert self.stage._usable == ready | lent
        assert self.stage._at == Counter(slot.place for slot in slots.values())
        assert all(len(slot.transfers) <= 2 for slot in slots.values())

    @invariant()
    def only_borrowed_cores_are_lent(self) -> None:
        lent = [
            n
            for n, s in zip(self.stage.names, states(self.stage), strict=True)
            if s.value == "lent"
        ]
        borrowed = [n for slot in self.stage._slots.values() for n in slot.borrowed]
        assert sorted(lent) == sorted(borrowed)


Bytes.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestNoMoreBytesThanAllowed = pytest.mark.unit(Bytes.TestCase)


@given(st.lists(st.sampled_from([0.1, 1.0, HUGE_S - 1e-9, HUGE_S, 100.0]), min_size=1, max_size=5))
def test_a_transfer_has_the_threads_of_its_costliest_record(costs: list[float]) -> None:
    tasks = tuple(make_tasks(costs))
    expected = HUGE_THREADS if max(costs) >= HUGE_S else 1
    assert Transfer(1, "m0", tasks, 0).threads == expected
