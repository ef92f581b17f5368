"""Which slots a request gets on which nodes, and what follows when nodes come and go."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_precheck.errors import DeviceError
from ray_precheck.replay.config import RunConfig
from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.places.placement import (
    Changes,
    DeviceRequest,
    follow_nodes,
    place_slots,
    usable_nodes,
)
from ray_precheck.schema.task import DeviceSlot

pytestmark = pytest.mark.unit


def node(
    name: str, npus: int | Sequence[str] = 0, *, life: int = 1, hostname: str | None = None
) -> Node:
    """A node called node-x, at 10.0.0.x, in one of its lives: each has another id of Ray's."""
    visible = tuple(map(str, range(npus))) if isinstance(npus, int) else tuple(npus)
    address = f"10.0.0.{ord(name) - ord('a') + 1}"
    return Node(
        f"{name}{life}-0123456789",
        address,
        {"npu": visible, "gpu": ()},
        hostname=f"node-{name}" if hostname is None else hostname,
        labels={"ray.io/node-id": f"{name}{life}-0123456789", "rack": f"rack-{name}"},
    )


def request(kind: str = "npu", **settings: Any) -> DeviceRequest:
    return DeviceRequest.of(RunConfig(Path("dump.json"), **settings), kind)


def labels(slots: Sequence[DeviceSlot]) -> list[str]:
    return [slot.label for slot in slots]


def placed(nodes: Sequence[Node], kind: str = "npu", **settings: Any) -> list[str]:
    return labels(place_slots(request(kind, **settings), nodes))


def refusal(nodes: Sequence[Node], kind: str = "npu", **settings: Any) -> str:
    with pytest.raises(DeviceError) as refused:
        place_slots(request(kind, **settings), nodes)
    return str(refused.value)


A, B = node("a", 4), node("b", ["4", "5"])


class TestIds:
    def test_ids_of_d_are_those_of_the_drivers_machine_without_its_name(self) -> None:
        assert place_slots(request(devices=(3, 1)), [A, B]) == [
            DeviceSlot("npu", 3, A.node_id, A.address, "3"),
            DeviceSlot("npu", 1, A.node_id, A.address, "1"),
        ]

    def test_what_is_excluded_is_left_out(self) -> None:
        assert placed([A, B], devices=(0, 1, 2), exclude="node-a:1,node-b") == ["npu:0", "npu:2"]

    def test_ids_of_the_cpu_are_on_nodes_that_are_not_excluded(self) -> None:
        slots = place_slots(request("cpu", devices=(0, 1, 2), exclude="node-a"), [A, B])
        assert {slot.address for slot in slots} == {B.address}

    def test_ids_of_the_cpu_cannot_be_excluded_on_a_node(self) -> None:
        assert refusal([A, B], "cpu", exclude="node-a:0-1") == (
            "--exclude node-a:0-1: CPU ids of -d are on no node of their own; exclude the whole"
            " node (node-a), or name ids with --devices"
        )

    def test_slots_of_the_cpu_on_one_node_have_cores_of_their_own(self) -> None:
        slots = place_slots(request("cpu", devices=(0, 2, 4, 6)), [A, B])
        assert [(slot.address, slot.core) for slot in slots] == [
            (A.address, 0),
            (B.address, 0),
            (A.address, 1),
            (B.address, 1),
        ]


class TestAll:
    def test_every_device_of_every_node_is_taken(self) -> None:
        slots = place_slots(request(devices="all"), [A, B])
        assert labels(slots) == [
            *(f"node-a/npu:{i}" for i in range(4)),
            *("node-b/npu:0", "node-b/npu:1"),
        ]
        assert [slot.visible for slot in slots] == ["0", "1", "2", "3", "4", "5"]
        assert [slot.node_id for slot in slots] == [A.node_id] * 4 + [B.node_id] * 2

    def test_on_one_machine_labels_do_not_name_it(self) -> None:
        assert placed([B], devices="all") == ["npu:0", "npu:1"]

    def test_on_the_cpu_a_node_has_one_slot(self) -> None:
        slots = place_slots(request("cpu", devices="all"), [A, B])
        assert labels(slots) == ["node-a/cpu:0", "node-b/cpu:0"]
        assert {(slot.visible, slot.core) for slot in slots} == {("", 0)}

    def test_nodes_and_devices_can_be_left_out(self) -> None:
        assert placed([A, B], devices="all", exclude="node-a:0-2") == [
            "node-a/npu:3",
            "node-b/npu:0",
            "node-b/npu:1",
        ]
        assert placed([A, B], devices="all", exclude="rack-a,10.0.0.2:0") == ["node-b/npu:1"]

    def test_where_nothing_is_left_it_says_what_there_is(self) -> None:
        assert refusal([B], devices="all", exclude="node-b") == (
            "no npu is left to run on: there are node-b (10.0.0.2, rack=rack-b) with npu 0-1; name"
            " others, exclude fewer, or use --device-type cpu"
        )
        assert refusal([A], "gpu", devices="all").startswith("no gpu is left to run on: there are")

    def test_nodes_of_one_host_name_are_told_apart_by_address_and_then_by_id(self) -> None:
        twins = [node("a", 1, hostname="vm"), node("b", 1, hostname="vm")]
        assert placed(twins, devices="all") == ["10.0.0.1/npu:0", "10.0.0.2/npu:0"]
        twins = [node("a", 1, hostname="vm"), node("a", 1, life=2, hostname="vm")]
        assert placed(twins, devices="all") == [
            "10.0.0.1-a1-01234/npu:0",
            "10.0.0.1-a2-01234/npu:0",
        ]


class TestNamed:
    def test_devices_are_those_that_are_named_in_that_order(self) -> None:
        slots = place_slots(request(devices="node-b:1,node-a:2-3,0"), [A, B])
        assert [(slot.label, slot.visible, slot.node_id) for slot in slots] == [
            ("node-b/npu:1", "5", B.node_id),
            ("node-a/npu:2", "2", A.node_id),
            ("node-a/npu:3", "3", A.node_id),
            ("node-a/npu:0", "0", A.node_id),
        ]

    @pytest.mark.parametrize("name", ["node-b", "10.0.0.2", "rack-b", "rack=rack-b", B.node_id])
    def test_a_label_has_the_name_that_was_given(self, name: str) -> None:
        assert placed([A, B], devices=f"{name}:0") == [f"{name}/npu:0"]

    def test_on_one_machine_labels_do_not_name_it(self) -> None:
        assert placed([B], devices="node-b:1") == ["npu:1"]

    def test_a_node_alone_means_all_of_its_devices(self) -> None:
        assert placed([A, B], devices="node-b") == ["node-b/npu:0", "node-b/npu:1"]
        assert placed([A, B], "cpu", devices="node-b") == ["node-b/cpu:0"]

    def test_on_the_cpu_any_ids_may_be_named_and_have_cores_of_their_own(self) -> None:
        slots = place_slots(
            request("cpu", devices="node-b:8-9,node-a:8", exclude="node-a:0"), [A, B]
        )
        assert [(slot.label, slot.core) for slot in slots] == [
            ("node-b/cpu:8", 0),
            ("node-b/cpu:9", 1),
            ("node-a/cpu:8", 0),
        ]

    def test_a_device_that_is_not_there_is_refused_with_those_that_are(self) -> None:
        assert refusal([A, B], devices="node-b:0-3") == (
            "--devices node-b:2: that node has npu 0-1; there are node-a (10.0.0.1, rack=rack-a)"
            " with npu 0-3; node-b (10.0.0.2, rack=rack-b) with npu 0-1"
        )
        assert "that node has no gpu;" in refusal([A], "gpu", devices="node-a:0")
        assert refusal([A, B], devices="all", exclude="node-b:7").startswith("--exclude node-b:7:")

    @pytest.mark.parametrize("option", ["--devices", "--exclude"])
    def test_a_node_that_is_not_there_is_refused_with_those_that_are(self, option: str) -> None:
        settings = {"devices": "all", option.strip("-"): "node-x:0"}
        message = refusal([A, B], **settings)
        assert message.startswith(f"{option}: no node is called node-x; there are node-a (")

    def test_a_device_of_two_names_is_refused(self) -> None:
        assert refusal([A, B], devices="node-a:0,10.0.0.1:0").startswith(
            "--devices: node-a/npu:0 and 10.0.0.1/npu:0 are the same device of node-a ("
        )

    def test_two_names_of_one_node_may_have_different_devices(self) -> None:
        assert placed([A, B], devices="node-a:0,10.0.0.1:1") == ["node-a/npu:0", "10.0.0.1/npu:1"]


def follow(
    before: Sequence[Node], after: Sequence[Node], kind: str = "npu", **settings: Any
) -> Changes:
    """What changes for slots that were placed on nodes, now that others live."""
    wanted = request(kind, **settings)
    return follow_nodes(wanted, place_slots(wanted, before), after)


class TestFollowing:
    @pytest.mark.parametrize("kind", ["cpu", "npu"])
    @pytest.mark.parametrize("devices", [(0, 1), "all", "node-a:0,node-b:0-1"])
    def test_nothing_changes_while_the_nodes_are_the_same(
        self, kind: str, devices: tuple[int, ...] | str
    ) -> None:
        assert follow([A, B], [A, B], kind, devices=devices) == Changes()

    def test_slots_of_d_on_the_cpu_move_to_nodes_that_live_and_are_not_excluded(self) -> None:
        c = node("c")
        changes = follow([A, B, c], [A, c], "cpu", devices=(0, 1), exclude="node-c")
        ((slot,), added, lost) = changes.moved, changes.added, changes.lost
        assert (slot.label, slot.node_id, slot.core) == ("cpu:1", A.node_id, 1)
        assert (added, lost) == ((), ())

    def test_devices_of_d_stay_though_nodes_join(self) -> None:
        assert follow([A], [A, B], devices=(0, 1)) == Changes()

    def test_where_all_are_wanted_a_node_that_joins_brings_its_devices(self) -> None:
        changes = follow([A], [A, B], devices="all", exclude="node-a:0")
        assert (labels(changes.added), changes.moved) == (["node-b/npu:0", "node-b/npu:1"], ())
        assert [slot.visible for slot in changes.added] == ["4", "5"]

    def test_a_node_that_is_excluded_brings_nothing_in_another_life_either(self) -> None:
        again = node("b", 2, life=2)
        assert follow([A, B], [A, again], devices="all", exclude="node-b") == Changes()

    def test_where_devices_are_named_a_node_that_joins_brings_nothing(self) -> None:
        assert follow([A, B], [A, B, node("c", 8)], devices="node-a,node-b") == Changes()

    @pytest.mark.parametrize("kind", ["cpu", "npu"])
    @pytest.mark.parametrize("devices", ["all", "node-a:0,node-b:0"])
    def test_the_slots_of_a_node_that_is_gone_are_lost(self, kind: str, devices: str) -> None:
        changes = follow([A, B], [A], kind, devices=devices)
        assert (changes.moved, changes.added) == ((), ())
        assert labels(changes.lost)[0] == f"node-b/{kind}:0"

    @pytest.mark.parametrize("devices", ["all", "node-a:0,node-b:0-1"])
    def test_a_node_that_comes_back_gets_its_slots_again(self, devices: str) -> None:
        again = node("b", ["6", "7"], life=2)
        changes = follow([A, B], [A, again], devices=devices)
        assert [(s.label, s.node_id, s.visible) for s in changes.moved] == [
            ("node-b/npu:0", again.node_id, "6"),
            ("node-b/npu:1", again.node_id, "7"),
        ]
        assert (changes.added, changes.lost) == ((), ())

    @pytest.mark.parametrize("devices", ["all", "node-a:0,node-b:0-1"])
    def test_a_node_that_comes_back_with_fewer_devices_gets_fewer(self, devices: str) -> None:
        changes = follow([A, B], [A, node("b", 1, life=2)], devices=devices)
        assert labels(changes.moved) == ["node-b/npu:0"]
        assert labels(changes.lost) == ["node-b/npu:1"]

    def test_a_node_is_known_again_by_its_address_where_host_names_were_the_same(self) -> None:
        a, b, c = node("a"), node("b", 1, hostname="vm"), node("c", 1, hostname="vm")
        wanted = request(devices="all")
        slots = place_slots(wanted, [a, b, c])
        again = node("c", 1, life=2, hostname="vm")
        (moved,) = follow_nodes(wanted, slots, [a, again]).moved
        assert (moved.label, moved.node_id) == ("10.0.0.3/npu:0", again.node_id)

    def test_where_two_nodes_may_be_the_one_that_was_named_neither_is_taken(self) -> None:
        after = [A, node("b", 2, life=2), node("b", 2, life=3)]
        assert follow([A, B], after, devices="node-a:0,node-b:0").moved == ()

    @given(
        st.sampled_from(["all", "node-a,node-b,node-c", "node-b:0,node-c:0"]),
        st.sampled_from(["cpu", "npu"]),
        st.lists(st.sets(st.sampled_from("bc")), max_size=6),
    )
    def test_each_wanted_device_of_the_living_has_one_slot_in_any_history(
        self, devices: str, kind: str, history: list[set[str]]
    ) -> None:
        lives = {"a": node("a", 2), "b": node("b", 2), "c": node("c", 2)}
        wanted = request(kind, devices=devices)
        nodes = list(lives.values())
        expected = {(s.address, s.device_id) for s in place_slots(wanted, nodes)}
        slots = {slot.label: slot for slot in place_slots(wanted, nodes)}
        for life, alive in enumerate(history, start=2):
            before = {each.address for each in nodes}
            nodes = [lives["a"]]
            for name in sorted(alive):
                if lives[name].address not in before:
                    lives[name] = node(name, 2, life=life)
                nodes.append(lives[name])
            changes = follow_nodes(wanted, list(slots.values()), nodes)
            assert {slot.label for slot in changes.moved} <= set(slots)
            assert not {slot.label for slot in changes.added} & set(slots)
            slots |= {slot.label: slot for slot in (*changes.moved, *changes.added)}
            ids = {each.node_id for each in nodes}
            running = [slot for slot in slots.values() if slot.node_id in ids]
            here = [(slot.address, slot.device_id) for slot in running]
            assert sorted(here) == sorted(
                pair for pair in expected if pair[0] in {each.address for each in nodes}
            )


def test_nodes_that_are_excluded_as_a_whole_are_not_used() -> None:
    assert usable_nodes(request(exclude="node-a:0,rack-b"), [A, B]) == [A]
