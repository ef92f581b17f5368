"""A fault of ours in the middle of a step: what was finished in it is written nevertheless."""

from typing import Any

import pytest

from ray_precheck.runtime.driver import Machines
from scripts.simulate.account import Setup
from scripts.simulate.actors import TimedActors
from scripts.simulate.costs import draw_workload
from scripts.simulate.world import World

pytestmark = pytest.mark.unit
STEPS = 5


def test_what_a_step_has_finished_is_written_also_where_it_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(draw_workload("20ms", 2000, seed=1), Setup(16, own_s=0.0))
    answered: set[int] = set()
    last: set[int] = set()
    result, follow = TimedActors.result, Machines.follow
    steps = 0

    def heard(self: TimedActors, ref: Any) -> Any:
        value = result(self, ref)
        if ref.method == "run":
            last.update(done.index for done in value.results)
            answered.update(last)
        return value

    def broken(self: Machines, *others: Any) -> None:
        nonlocal steps
        steps += bool(last)
        if steps == STEPS:
            raise RuntimeError("a fault of ours")
        last.clear()
        follow(self, *others)

    monkeypatch.setattr(TimedActors, "result", heard)
    monkeypatch.setattr(Machines, "follow", broken)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        world.run()
    assert last
    written = {index for index, count in enumerate(world.account.recorded) if count}
    assert written == answered
    assert set(world.account.recorded) == {0, 1}
