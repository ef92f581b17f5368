"""Workers on the CPU stay on a core each."""

import os

import pytest

from ray_precheck.runtime.places.devices import pin_to_core
from ray_precheck.schema.task import DeviceSlot

pytestmark = pytest.mark.unit


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """What the process is pinned to, on a machine that lets it use cores 2, 5 and 7."""
    calls: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 2, 5})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: calls.append(cores))
    return calls


def slot(kind: str, device_id: int, core: int | None = None) -> DeviceSlot:
    return DeviceSlot(kind, device_id, "node", "host", "", core=core)


def test_cpu_slots_take_the_cores_that_are_allowed_in_turn(chosen: list[set[int]]) -> None:
    for device_id in (0, 1, 2, 3):
        pin_to_core(slot("cpu", device_id))
    assert chosen == [{2}, {5}, {7}, {2}]


def test_a_slot_that_names_its_core_has_that_one(chosen: list[set[int]]) -> None:
    for core in (1, 0, 4):
        pin_to_core(slot("cpu", 8, core))
    assert chosen == [{5}, {2}, {5}]


def test_a_worker_of_an_accelerator_may_use_every_core(chosen: list[set[int]]) -> None:
    pin_to_core(slot("npu", 0))
    assert chosen == []
