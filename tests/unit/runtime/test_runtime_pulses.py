"""A worker that is stopped is given up after a minute; a slow one that is there never is."""

from typing import Any

import pytest

from ray_precheck.runtime.crew import ANSWER_SLACK_S
from ray_precheck.runtime.workers.process import SILENT_S
from scripts.simulate.account import Setup
from scripts.simulate.actors import TimedActors, TimedAnswer
from scripts.simulate.costs import draw_workload
from scripts.simulate.world import World

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("stops", [False, True])
def test_a_stopped_worker_costs_a_minute_and_its_records_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    world = World(draw_workload("20ms", 2000, seed=1), Setup(16, own_s=0.0))
    stopped: set[Any] = set()
    arrive = TimedActors._arrive

    def maybe(self: TimedActors, ref: TimedAnswer, at_s: float) -> None:
        if stops and not stopped and ref.method == "run" and self._now_s > 0.5:
            stopped.add(ref.actor)
        if ref.actor not in stopped:
            arrive(self, ref, at_s)

    monkeypatch.setattr(TimedActors, "_arrive", maybe)
    world.run()
    assert set(world.account.recorded) == {1}
    assert world.account.wall_s < (SILENT_S + 10 if stops else 10)
    assert len(stopped) == stops


def test_a_record_that_takes_hours_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    work = TimedActors._worked
    asked = []
    call = TimedActors.call

    def slow(self: TimedActors, *others: Any) -> Any:
        report, elapsed_s, useful_s = work(self, *others)
        return report, elapsed_s + ANSWER_SLACK_S + 200, useful_s

    def noted(self: TimedActors, handle: Any, method: str, *args: Any) -> Any:
        asked.append(method)
        return call(self, handle, method, *args)

    monkeypatch.setattr(TimedActors, "_worked", slow)
    monkeypatch.setattr(TimedActors, "call", noted)
    world = World(draw_workload("20ms", 100, seed=1), Setup(4, own_s=0.0))
    world.run()
    assert set(world.account.recorded) == {1}
    assert asked.count("pulse") > 10
    assert asked.count("open") == 4
