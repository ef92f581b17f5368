"""Which benches are worth their way to another process, and what a run teaches the model."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mock_pool import answer

from ray_precheck.runtime.scheduling.queue import (
    HUGE_S,
    HUGE_THREADS,
    CostModel,
    bench_threads,
)
from ray_precheck.schema.task import BatchReport, Task

pytestmark = pytest.mark.unit

MIB = 1 << 20


def task(cost_s: float, nbytes: int = 0, name: str = "Mint.matmul.0") -> Task:
    return Task(0, name, cost_s, nbytes)


def learn(model: CostModel, of: Task, bench_s: float, times: int = 1) -> None:
    for _ in range(times):
        model.learn(of, replace(answer(of), bench_s=bench_s))


class TestWorth:
    def test_a_long_bench_of_small_tensors_is_worth_it(self) -> None:
        assert CostModel().is_worth(task(1.0, MIB))

    def test_a_bench_that_is_cheaper_than_the_transfer_is_not(self) -> None:
        assert not CostModel().is_worth(task(1.0, 1 << 30))

    def test_nor_is_a_tiny_one_whatever_was_measured(self) -> None:
        model, tiny = CostModel(), task(1e-3)
        learn(model, tiny, bench_s=60.0, times=50)
        assert not model.is_worth(tiny)

    @pytest.mark.parametrize(("cost_s", "is_worth"), [(5e-3, False), (5.1e-3, True)])
    def test_a_record_of_5_ms_is_tiny(self, cost_s: float, is_worth: bool) -> None:
        model = CostModel()
        learn(model, task(cost_s), bench_s=60.0)
        assert model.is_worth(task(cost_s)) is is_worth

    @pytest.mark.parametrize(("cost_s", "is_worth"), [(0.0124, False), (0.0126, True)])
    def test_a_bench_must_take_longer_than_two_and_a_half_handovers(
        self, cost_s: float, is_worth: bool
    ) -> None:
        # 0.6 of 12.5 ms is 7.5 ms, a handover takes 3 ms.
        assert CostModel().is_worth(task(cost_s)) is is_worth

    def test_more_bytes_are_never_better(self) -> None:
        worth = [CostModel().is_worth(task(0.1, nbytes)) for nbytes in range(0, 64 * MIB, MIB)]
        assert worth == sorted(worth, reverse=True)
        assert {*worth} == {True, False}


class TestCorrection:
    def test_benches_that_are_cheaper_than_thought_move_the_border(self) -> None:
        model, record = CostModel(), task(0.1, MIB)
        assert model.is_worth(record)
        learn(model, record, bench_s=1e-3, times=30)
        assert model.bench_s(record) == pytest.approx(1e-3, rel=0.05)
        assert not model.is_worth(record)

    def test_and_those_that_cost_more_move_it_back(self) -> None:
        model, record = CostModel(), task(0.1, 16 * MIB)
        assert not model.is_worth(record)
        learn(model, record, bench_s=0.5, times=30)
        assert model.is_worth(record)

    def test_what_one_api_teaches_says_little_of_another(self) -> None:
        model = CostModel()
        for number in range(20):
            learn(model, task(0.1, name=f"Mint.api{number}.0"), bench_s=0.06)
        other = task(0.1, MIB, "Mint.add.0")
        before = model.bench_s(other)
        learn(model, task(0.1), bench_s=1e-3)
        assert before > model.bench_s(other) > 0.9 * before

    def test_but_if_all_are_cheaper_so_is_one_that_never_ran(self) -> None:
        model = CostModel()
        for number in range(300):
            learn(model, task(0.1, name=f"Mint.api{number}.0"), bench_s=1e-3)
        assert model.bench_s(task(0.1, name="Mint.new.0")) == pytest.approx(1e-3, rel=0.2)

    def test_calls_of_one_api_learn_together(self) -> None:
        model = CostModel()
        learn(model, task(0.1, name="Mint.matmul.0"), bench_s=0.2)
        assert model.bench_s(task(0.1, name="Mint.matmul.7")) == pytest.approx(0.2)

    def test_handing_over_that_takes_longer_moves_the_border(self) -> None:
        model, record = CostModel(), task(0.1, MIB)
        result = replace(answer(record), inputs_s=0.05)
        before = model.handover_s(record)
        for _ in range(30):
            model.learn_handover([record], 0.02, BatchReport((result,), handover_s=0.01))
        assert model.handover_s(record) == pytest.approx(0.08, rel=0.05)
        assert before < model.handover_s(record)
        assert not model.is_worth(record)

    def test_what_was_assumed_before_anything_was_measured_does_not_count(self) -> None:
        model = CostModel()
        learn(model, task(0.1), bench_s=0.01)
        learn(model, task(0.1, name="Mint.add.0"), bench_s=0.03)
        assert model.bench_s(task(1.0, name="Mint.new.0")) == pytest.approx(0.2)

    def test_a_devices_half_teaches_what_devices_take(self) -> None:
        model = CostModel()
        model.learn_device(task(0.1, name="Mint.add.0"), 0.2)
        model.learn_device(task(0.1), 0.1)
        assert model.device_s(task(1.0, name="Mint.add.7")) == pytest.approx(2.0)
        assert model.device_s(task(1.0)) == pytest.approx(1.0)
        assert model.device_s(task(1.0, name="Mint.new.0")) == pytest.approx(1.5)
        assert model.device_ratio == pytest.approx(1.5)
        model.learn_device(task(0.0), 1.0)
        model.learn_device(task(1.0), 0.0)
        assert model.device_ratio == pytest.approx(1.5)

    def test_both_sides_are_what_a_whole_record_takes(self) -> None:
        model = CostModel()
        model.learn_device(task(1.0), 0.1)
        learn(model, task(1.0), bench_s=0.3)
        assert model.whole_ratio == pytest.approx(0.4)

    def test_whole_records_teach_how_fast_the_machine_is(self) -> None:
        model, record = CostModel(), task(0.1)
        taken = replace(answer(record), inputs_s=0.05, device_s=0.1, bench_s=0.15)
        before = model.whole_ratio
        for _ in range(300):
            model.learn(record, taken)
        assert before == 1.0
        assert model.whole_ratio == pytest.approx(3.0, rel=0.01)

    def test_and_a_bench_alone_says_nothing_of_devices(self) -> None:
        model = CostModel()
        learn(model, task(0.1), bench_s=60.0, times=50)
        assert model.device_ratio == CostModel().device_ratio

    @pytest.mark.parametrize(("cost_s", "bench_s"), [(0.0, 1.0), (1.0, 0.0)])
    def test_nothing_is_learnt_of_what_was_not_measured(
        self, cost_s: float, bench_s: float
    ) -> None:
        model = CostModel()
        learn(model, task(cost_s), bench_s)
        model.learn_handover([], 1.0, BatchReport(()))
        assert model == CostModel()

    @given(
        st.lists(st.tuples(st.floats(1e-4, 1e3), st.floats(1e-6, 1e3)), max_size=30),
        st.integers(0, 1 << 34),
    )
    def test_estimates_stay_finite_and_positive(
        self, measured: list[tuple[float, float]], nbytes: int
    ) -> None:
        model = CostModel()
        for cost_s, bench_s in measured:
            learn(model, task(cost_s), bench_s)
            report = BatchReport((), handover_s=bench_s)
            model.learn_handover([task(cost_s, nbytes)], 0.0, report)
        assert 0 < model.bench_s(task(1.0)) < 1e9
        assert 0 < model.handover_s(task(1.0, nbytes)) < 1e9


class TestThreads:
    @given(st.floats(0, 1e6), st.lists(st.floats(1e-3, 1e3), max_size=5))
    def test_they_depend_on_the_estimate_alone(self, cost_s: float, taken: list[float]) -> None:
        model = CostModel()
        before = bench_threads(cost_s)
        for bench_s in taken:
            learn(model, task(cost_s), bench_s)
        assert bench_threads(cost_s) == before == (HUGE_THREADS if cost_s >= HUGE_S else 1)


class TestWorthwhileBenches:
    def test_tiny_records_are_worth_no_process(self) -> None:
        assert CostModel().worthwhile_benches([task(1e-3)] * 10_000, has_device=True) == 0

    def test_more_work_is_worth_more_processes(self) -> None:
        model = CostModel()
        few, many = ([task(1.0)] * count for count in (10, 40))
        assert model.worthwhile_benches(few, has_device=True) > 1
        assert model.worthwhile_benches(many, has_device=True) == pytest.approx(
            4 * model.worthwhile_benches(few, has_device=True)
        )

    def test_what_is_dearer_to_hand_over_counts_only_where_nothing_is(self) -> None:
        large = [task(1.0, 1 << 32)] * 10
        assert CostModel().worthwhile_benches(large, has_device=True) == 0
        assert CostModel().worthwhile_benches(large, has_device=False) > 1


@pytest.mark.parametrize(("has_device", "workers"), [(True, 6.3), (False, 6.3024)])
def test_a_bench_worker_is_worth_two_seconds_of_work(has_device: bool, workers: float) -> None:
    # 0.6 of 21 s; without a device the bench of a record of 8 ms counts too.
    tasks = [task(20.0), task(1.0), task(8e-3)]
    assert CostModel().worthwhile_benches(tasks, has_device=has_device) == pytest.approx(workers)
