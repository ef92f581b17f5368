"""Which cores are free for benches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_precheck.runtime.driver import follow_cores, number_cores, place_benches
from ray_precheck.runtime.places.devices import Node
from ray_precheck.schema.task import BENCH, DeviceSlot

pytestmark = pytest.mark.unit


def node(name: str, cores: int) -> Node:
    return Node(name, f"addr-{name}", {}, cores)


def device(number: int, on: str) -> DeviceSlot:
    return DeviceSlot("npu", number, on, f"addr-{on}", str(number))


def homes(slots: list[DeviceSlot]) -> list[str]:
    return [slot.node_id for slot in slots]


def test_devices_take_the_first_cores_of_their_machines() -> None:
    slots = number_cores([device(0, "n0"), device(1, "n1"), device(2, "n0")])
    assert [slot.core for slot in slots] == [0, 0, 1]


def test_the_spare_cores_of_all_machines_are_used_those_of_the_driver_last() -> None:
    nodes = [node("n0", 3), node("n1", 2), node("n2", 1)]
    slots = [device(0, "n0")]
    assert homes(place_benches(slots, nodes, 99)) == ["n1", "n0", "n1", "n2", "n0"]
    assert homes(place_benches(slots, nodes, 1)) == ["n1"]


def test_each_has_a_core_of_its_own_after_those_of_the_devices() -> None:
    placed = place_benches([device(0, "n0"), device(1, "n0")], [node("n0", 4)], 99)
    assert [slot.core for slot in placed] == [2, 3]


def test_they_are_slots_without_a_device_that_share_the_fate_of_their_machine() -> None:
    (slot,) = place_benches([], [node("n0", 1)], 99)
    assert (slot.kind, slot.label, slot.visible) == (BENCH, "bench:0", "")
    assert (slot.place, slot.address) == ("n0", "addr-n0")


def test_without_a_spare_core_there_is_none() -> None:
    assert place_benches([device(0, "n0")], [node("n0", 1)], 99) == []
    assert place_benches([], [], 99) == []


def test_as_many_as_were_asked_for_also_where_there_are_fewer_cores() -> None:
    placed = place_benches([device(0, "n0")], [node("n0", 1)], 3, crowded=True)
    assert len(placed) == 3
    assert {slot.core for slot in placed} == {0}


def test_cores_of_a_machine_that_joins_are_added_under_new_names() -> None:
    before = place_benches([], [node("n0", 2)], 99)
    added = follow_cores([], before, [node("n0", 2), node("n1", 2)], 3)
    assert [(slot.label, slot.node_id) for slot in added] == [("bench:2", "n1")]
    assert follow_cores([], [*before, *added], [node("n0", 2), node("n1", 2)], 3) == []


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), max_size=8),
    st.integers(0, 30),
)
def test_no_core_is_taken_twice(cores: list[int], devices: list[int], most: int) -> None:
    nodes = [node(f"n{i}", count) for i, count in enumerate(cores)]
    slots = number_cores([device(i, f"n{on % len(nodes)}") for i, on in enumerate(devices)])
    placed = place_benches(slots, nodes, most)
    spare = sum(
        max(0, each.cores - sum(slot.node_id == each.node_id for slot in slots)) for each in nodes
    )
    assert len(placed) == min(most, spare)
    assert len({slot.label for slot in placed}) == len(placed)
    taken = [(slot.node_id, slot.core) for slot in placed]
    used = [(slot.node_id, slot.core) for slot in slots]
    assert len({*taken, *used}) == len(taken) + len(used)
    assert all(0 <= (slot.core or 0) < cores[int(slot.node_id[1:])] for slot in placed)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 12), st.integers(0, 12))
def test_who_is_added_later_has_a_core_of_its_own_too(
    first: int, second: int, most: int, more: int
) -> None:
    nodes = [node("n0", first), node("n1", second)]
    before = place_benches([], nodes, most)
    added = follow_cores([], before, nodes, most + more)
    taken = [(slot.node_id, slot.core) for slot in [*before, *added]]
    assert len(set(taken)) == len(taken) == min(most + more, first + second)
