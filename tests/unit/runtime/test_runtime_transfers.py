"""Who keeps what devices have measured, and how a bench worker is given it."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from ray_precheck.runtime.actors import Actors
from ray_precheck.runtime.crew import Crew, PendingCall, WorkerOptions
from ray_precheck.runtime.job import Job
from ray_precheck.runtime.scheduling.commands import SendBatch, Stage
from ray_precheck.schema.task import BENCH, DeviceSlot, Task

pytestmark = pytest.mark.unit


class AnyJob:
    """Its payloads are the tasks."""

    def opener(self, *, is_home: bool) -> None:
        return None

    def payload(self, task: Task) -> Task:
        return task


@dataclass
class Calls:
    """Starts actors, and notes the calls of them; an answer is the call itself."""

    made: list[tuple[Any, ...]] = field(default_factory=list)

    def clock(self) -> float:
        return 0.0

    def start(self, actor: type, node_id: str, slot: DeviceSlot, *_: Any, **options: Any) -> str:
        return slot.label

    def call(self, handle: str, method: str, *args: Any) -> tuple[Any, ...]:
        self.made.append((handle, method, *args))
        return len(self.made), handle, method, *args

    def kill(self, handle: str) -> None:
        pass

    def of(self, *methods: str) -> list[tuple[Any, ...]]:
        return [call for call in self.made if call[1] in methods]


@pytest.fixture(name="calls")
def make_calls() -> Calls:
    return Calls()


@pytest.fixture(name="crew")
def make_crew(calls: Calls) -> Crew:
    """Return a device on m0, and bench workers on m0 and m1; the device has measured batch 7."""
    crew = Crew(cast("Actors", calls), cast("Job", AnyJob()), WorkerOptions(), "m0")
    for kind, number, node in (("cpu", 0, "m0"), (BENCH, 0, "m0"), (BENCH, 1, "m1")):
        slot = DeviceSlot(kind, number, node, "", "", "")
        crew.slots[slot.label] = slot
        crew.start(slot.label)
    crew.collect(PendingCall("cpu:0", 1.0, 7))
    return crew


def sent(crew: Crew, calls: Calls, slot: str, ticket: int = 8, transfer: int = 7) -> Any:
    """Send a bench worker a batch; returns what it gets for it of the device's worker."""
    batch = SendBatch(slot, ticket, (Task(0, "a", 1.0),), (1.0,), Stage.BENCH, transfer)
    crew.send(batch)
    return calls.of("run")[-1][3]


@pytest.mark.parametrize(("slot", "is_near"), [("bench:0", True), ("bench:1", False)])
def test_a_bench_of_the_machine_opens_the_memory_and_another_gets_a_copy(
    crew: Crew, calls: Calls, slot: str, is_near: bool
) -> None:
    assert sent(crew, calls, slot)[1:] == ("cpu:0", "hand_over", 7, is_near)


def test_it_stays_with_its_worker_until_it_is_forgotten(crew: Crew, calls: Calls) -> None:
    sent(crew, calls, "bench:0")
    assert calls.of("release") == []
    crew.forget(7)
    crew.forget(7)
    assert calls.of("release") == [("cpu:0", "release", 7)]


def test_a_batch_that_no_device_has_measured_has_no_transfer(crew: Crew, calls: Calls) -> None:
    assert sent(crew, calls, "bench:0", transfer=0) is None


def test_what_a_worker_had_is_gone_with_it_though_its_slot_has_another(
    crew: Crew, calls: Calls
) -> None:
    crew.dismiss("cpu:0")
    crew.start("cpu:0")
    assert sent(crew, calls, "bench:0") == {}
    crew.forget(7)
    assert calls.of("hand_over", "release") == []


def test_after_a_refusal_the_tensors_of_that_worker_are_copied(crew: Crew, calls: Calls) -> None:
    crew.refuse(PendingCall("bench:0", 1.0, 8, Stage.BENCH, 7))
    assert sent(crew, calls, "bench:0")[1:] == ("cpu:0", "hand_over", 7, False)


def test_a_refusal_of_what_is_kept_no_more_changes_nothing(crew: Crew, calls: Calls) -> None:
    for ticket in (0, 9):
        crew.refuse(PendingCall("bench:0", 1.0, 8, Stage.BENCH, ticket))
    assert sent(crew, calls, "bench:0")[1:] == ("cpu:0", "hand_over", 7, True)
