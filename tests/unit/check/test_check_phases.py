"""What a check is at, and how its time is divided."""

import pytest

from ray_precheck.check import device
from ray_precheck.check.device import PhaseClock
from ray_precheck.schema.task import Phase

pytestmark = pytest.mark.unit


class Time:
    """Stands in for the module `time`: it goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture(name="time")
def make_time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(device, "time", made)
    return made


def test_every_second_counts_for_one_phase(time: Time) -> None:
    clock = PhaseClock()
    clock.start()
    time.now_s += 1
    with clock.during(Phase.BENCH):
        time.now_s += 2
        with clock.during(Phase.DEVICE):
            time.now_s += 4
        time.now_s += 8
    time.now_s += 16
    clock.enter(Phase.INPUTS)
    assert clock.seconds == [17.0, 4.0, 10.0]  # inputs, device, bench


def test_a_new_check_begins_with_none(time: Time) -> None:
    clock = PhaseClock()
    clock.enter(Phase.DEVICE)
    time.now_s += 5
    clock.start()
    time.now_s += 1
    assert clock.enter(Phase.BENCH) is Phase.INPUTS
    assert clock.seconds == [1.0, 0.0, 0.0]


def test_who_watches_is_told_of_every_change_and_of_nothing_else() -> None:
    told: list[Phase] = []
    clock = PhaseClock(told.append)
    clock.start()
    with clock.during(Phase.BENCH):
        with clock.during(Phase.BENCH):
            pass
        with clock.during(Phase.DEVICE):
            pass
    assert told == [Phase.BENCH, Phase.DEVICE, Phase.BENCH, Phase.INPUTS]


def test_a_phase_ends_where_an_error_leaves_it(time: Time) -> None:
    told: list[Phase] = []
    clock = PhaseClock(told.append)
    device = clock.during(Phase.DEVICE)
    device.__enter__()
    time.now_s += 3
    assert not device.__exit__(ValueError, ValueError(), None)
    assert told[-1] is Phase.INPUTS
    assert clock.seconds[Phase.DEVICE] == 3.0


def test_a_phase_fits_a_byte() -> None:
    assert all(0 <= phase < 256 for phase in Phase)
