"""How much of pretend devices' time a whole run uses: real Ray, driver, scheduler, workers, writer."""

import pytest

from scripts.simulate.costs import draw_workload
from scripts.speed.efficiency import TimedRun, bare_efficiency, measured_run

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

DEVICES = 4
RECORDS = 600
# What a run may lose beyond what processes lose here that only sleep. On a quiet machine it is
# below 0.05, on one with a load of 5 for each core 0.1.
MOST_LOST = 0.25
# One record in each batch, and half of a record's time before each: at most 2/3 is left.
ONE_BY_ONE = """
import time
import ray_precheck.runtime.scheduling.queue as queue
from ray_precheck.runtime.crew import Crew

queue.MAX_BATCH_RECORDS = 1
send = Crew.send

def slowly(self, batch):
    time.sleep(0.010)
    send(self, batch)

Crew.send = slowly
"""


def run(name: str, prelude: str = "") -> TimedRun:
    return measured_run(draw_workload(name, RECORDS, seed=1), DEVICES, prelude=prelude)


def lost(one: TimedRun) -> float:
    return bare_efficiency(DEVICES) - one.efficiency


def test_devices_are_busy_nearly_all_the_time() -> None:
    # Something else on the machine may hold up one run of 3 s: a driver that does so holds up each.
    assert any(lost(run("20ms")) < MOST_LOST for _ in range(3))


def test_a_heavy_tail_takes_little_more_than_the_least_time_there_can_be() -> None:
    most = MOST_LOST / (1 - MOST_LOST) + 1 / bare_efficiency(DEVICES) - 1
    assert any(run("heavy20ms").over_bound < most for _ in range(3))


@pytest.mark.exhaustive
def test_the_measure_sees_a_driver_that_lets_its_devices_wait() -> None:
    assert all(lost(run("20ms", prelude=ONE_BY_ONE)) > MOST_LOST for _ in range(3))
