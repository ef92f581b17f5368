"""The state of a scheduler begins empty: its parts are given no more than what they are about."""

from inspect import signature

import pytest

from ray_precheck.runtime.scheduling.bench_stage import BenchStage
from ray_precheck.runtime.scheduling.queue import TaskQueue
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.runtime.scheduling.slots import SlotTable

pytestmark = pytest.mark.unit

GIVEN = {
    TaskQueue: ["tasks"],
    SlotTable: ["places"],
    BenchStage: ["places", "most_bytes"],
    Scheduler: [
        "tasks",
        "places",
        "timeout_s",
        "rows",
        "draining",
        "grows",
        "bench",
        "bench_suffices",
        "ahead",
        "machines",
        "model",
    ],
}


@pytest.mark.parametrize("kind", GIVEN, ids=lambda kind: kind.__name__)
def test_state_that_events_change_cannot_be_given(kind: type) -> None:
    assert list(signature(kind).parameters) == GIVEN[kind]
