"""The scheduler in simulated time: what the driver's costs, crashes and lost machines do to a run."""

import random
from functools import cache

import pytest

from scripts.simulate.account import FREE, Account, DriverCosts, Faults, Setup
from scripts.simulate.costs import WORKLOADS, Workload, draw_heavy, draw_workload
from scripts.simulate.world import World

pytestmark = pytest.mark.unit

MESSAGE_S = 5e-3
DEVICES = 16
NO_FAULTS = Faults()


def simulate(
    workload: Workload,
    devices: int = DEVICES,
    *,
    costs: DriverCosts = FREE,
    faults: Faults = NO_FAULTS,
    benches: int = 0,
) -> Account:
    return World(workload, Setup(devices, benches, faults, costs, own_s=0.0)).run()


def send_costs(seconds: float) -> DriverCosts:
    """A driver whose sending takes `seconds`, and nothing else anything."""
    return DriverCosts(**{**dict.fromkeys(DriverCosts.__slots__, 0.0), "send_s": seconds})


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_record_is_recorded_once(name: str) -> None:
    account = simulate(draw_workload(name, 2000, seed=1), costs=DriverCosts())
    assert set(account.recorded) == {1}


def test_a_driver_that_costs_nothing_keeps_its_devices_busy() -> None:
    account = simulate(draw_workload("20ms", 20_000, seed=1))
    assert account.efficiency > 0.99
    assert account.wall_s >= account.bound_s


@pytest.mark.parametrize("name", ["20ms", "heavy20ms"])
def test_a_bench_worker_does_one_batch_after_the_other(name: str) -> None:
    account = simulate(draw_workload(name, 20_000, seed=1), benches=DEVICES)
    assert account.wall_s >= account.bound_s
    assert account.efficiency <= 1


def test_a_heavy_tail_ends_close_to_the_least_time_there_can_be() -> None:
    account = simulate(draw_workload("heavy20ms", 20_000, seed=1))
    assert account.wall_s < 1.05 * account.bound_s


def test_a_driver_that_is_asked_for_more_than_it_can_is_what_limits() -> None:
    workload = draw_workload("20ms", 2000, seed=1)
    free, slow = simulate(workload), simulate(workload, costs=send_costs(MESSAGE_S))
    very_slow = simulate(workload, costs=send_costs(40 * MESSAGE_S))
    assert free.efficiency > slow.efficiency > 0.5
    # All messages one after the other take longer than the devices do.
    assert very_slow.batches * 40 * MESSAGE_S > very_slow.bound_s
    assert very_slow.wall_s >= very_slow.batches * 40 * MESSAGE_S
    assert very_slow.efficiency < 0.5
    assert very_slow.driver_s == pytest.approx(very_slow.batches * 40 * MESSAGE_S)


def test_more_devices_do_not_help_a_driver_that_is_the_limit() -> None:
    workload = draw_workload("tiny", 10_000, seed=1)
    few, many = (simulate(workload, n, costs=send_costs(0.05)) for n in (DEVICES, 8 * DEVICES))
    assert many.wall_s > 0.9 * few.wall_s


def test_a_writer_that_falls_behind_makes_the_driver_wait() -> None:
    costs = DriverCosts(
        **{**dict.fromkeys(DriverCosts.__slots__, 0.0), "write_per_record_s": 10e-3}
    )
    account = simulate(draw_workload("20ms", 2000, seed=1), costs=costs)
    assert 0.5 * account.wall_s < account.blocked_s <= account.wall_s
    assert account.wall_s >= account.writer_s == pytest.approx(20.0)


def test_all_results_of_a_step_are_one_append_which_spares_the_writer() -> None:
    workload = draw_workload("20ms", 4000, seed=1)
    costs = DriverCosts(**{**dict.fromkeys(DriverCosts.__slots__, 0.0), "write_s": 0.1})
    account = simulate(workload, 64, costs=costs)
    assert set(account.recorded) == {1}
    # Fewer appends than batches: each took 0.1 s of the writer.
    assert account.writer_s < 0.5 * 0.1 * account.batches


@pytest.mark.parametrize(
    "faults",
    [
        Faults(slow_every=4),
        Faults(crash_every=100),
        Faults(loss_at_s=1.0, lost_nodes=1, notice_s=0.5, return_s=1.0),
        Faults(4, 3.0, 100, 1.5, 1.0, 1, 0.5, 1.0),
    ],
    ids=["slow devices", "crashes", "a lost node", "all of it"],
)
@pytest.mark.parametrize("benches", [0, DEVICES])
def test_what_goes_wrong_costs_time_and_no_record(faults: Faults, benches: int) -> None:
    account = simulate(draw_workload("20ms", 2000, seed=1), faults=faults, benches=benches)
    assert set(account.recorded) == {1}
    assert account.wall_s > undisturbed_s(benches)


@cache
def undisturbed_s(benches: int) -> float:
    """Return how long the same run takes in which nothing goes wrong."""
    return simulate(draw_workload("20ms", 2000, seed=1), benches=benches).wall_s


def test_devices_that_are_gone_for_good_cost_what_they_had() -> None:
    faults = Faults(loss_at_s=1.0, lost_nodes=1, notice_s=0.5, return_s=1e9)
    account = simulate(draw_workload("20ms", 4000, seed=1), faults=faults)
    assert set(account.recorded) == {1}
    assert account.away_s > 0
    # Half of the devices have to do nearly all of it.
    assert account.wall_s > 1.5 * account.bound_s


@pytest.mark.parametrize("benches", [0, DEVICES])
def test_nor_is_the_run_held_where_they_were_to_run_quarantined_records(benches: int) -> None:
    # So many crashes that some of the lost devices start a worker for a quarantined record just then.
    faults = Faults(0, 0.0, 20, 1.5, loss_at_s=5.0, lost_nodes=1, notice_s=0.5, return_s=1e9)
    account = simulate(draw_workload("20ms", 4000, seed=1), faults=faults, benches=benches)
    assert set(account.recorded) == {1}
    assert account.wall_s < 1e3 * account.bound_s


def test_slow_devices_do_not_hold_the_run() -> None:
    workload = draw_workload("20ms", 8000, seed=1)
    account = simulate(workload, faults=Faults(slow_every=4, slow_factor=3.0))
    assert account.wall_s < 1.1 * account.bound_s


def test_a_seed_decides_everything() -> None:
    def figures(seed: int) -> tuple[float, float, int]:
        workload = draw_workload("heavy", 1000, seed)
        faults = Faults(4, 3.0, 100, 1.5, 0.1, 1, 0.5, 1.0)
        account = simulate(workload, costs=DriverCosts(), faults=faults)
        return account.wall_s, account.useful_s, account.batches

    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


def test_one_record_in_a_hundred_takes_half_of_the_time() -> None:
    costs = sorted(draw_heavy([1e-3, 2e-3, 5e-3], 10_000, random.Random(0), mean_s=20e-3))
    assert sum(costs) == pytest.approx(200.0)
    assert sum(costs[-100:]) == pytest.approx(100.0, rel=0.01)


def test_a_driver_of_1024_devices_is_not_taken_up_by_its_messages() -> None:
    # Batches of 0.4 s, as a few devices have them, leave 0.42.
    account = simulate(draw_workload("20ms", 150_000, seed=1), 1024, costs=DriverCosts())
    assert set(account.recorded) == {1}
    assert account.efficiency > 0.6


def test_messages_leave_the_driver_time_for_50_000_cheap_records_a_second() -> None:
    # Its own code takes 4 microseconds for each, of 20.
    account = simulate(draw_workload("tiny", 120_000, seed=1), 64, costs=DriverCosts())
    assert account.driver_s / account.records < 16e-6
