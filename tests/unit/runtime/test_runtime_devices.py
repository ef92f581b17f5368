"""Which devices there are, who may use them, and how a worker is pinned to one."""

import os
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_precheck.errors import DeviceError
from ray_precheck.runtime.places.devices import (
    Node,
    choose_kind,
    local_node,
    move_slots,
    place_ids,
    require_plugins,
    slot_variables,
    visible_devices,
)
from ray_precheck.runtime.places.probe import VISIBLE_DEVICES, Facts
from ray_precheck.schema.task import DeviceSlot

pytestmark = pytest.mark.unit

NPU_VARIABLE, GPU_VARIABLE = VISIBLE_DEVICES["npu"], VISIBLE_DEVICES["gpu"]


def node(
    name: str = "n0",
    *,
    versions: dict[str, str] | None = None,
    plugins: tuple[str, ...] = ("mindspore:npu",),
    **devices: int,
) -> Node:
    """A node with devices by kind."""
    visible = {kind: tuple(map(str, range(count))) for kind, count in devices.items()}
    return Node(name, f"10.0.0.{name[1:]}", visible, versions=versions or {}, plugins=plugins)


def seen(npus: int, *, ray: int = 0, variable: str | None = None) -> tuple[str, ...]:
    """The NPUs of a machine with device files, which Ray counts as well, and a variable."""
    facts: Facts = {
        "files": {"npu": npus, "gpu": 3},
        "variables": {} if variable is None else {"npu": variable},
        "versions": {},
        "names": {},
        "plugins": [],
    }
    found = visible_devices(facts, {"npu": ray, "gpu": 0})
    assert found["gpu"] == ("0", "1", "2")
    return found["npu"]


class TestVisibleDevices:
    def test_device_files_are_counted(self) -> None:
        assert seen(4) == ("0", "1", "2", "3")

    def test_a_machine_without_any_has_none(self) -> None:
        assert seen(0) == ()

    def test_what_ray_counts_comes_before_device_files(self) -> None:
        assert seen(0, ray=2) == ("0", "1")
        assert seen(8, ray=2) == ("0", "1")

    @pytest.mark.parametrize(
        ("variable", "visible"),
        [("4,5", ("4", "5")), ("", ()), (" 6 , ", ("6",)), ("7,0,3", ("7", "0", "3"))],
    )
    def test_the_variable_of_the_user_hides_the_others_and_numbers_anew(
        self, variable: str, visible: tuple[str, ...]
    ) -> None:
        assert seen(8, variable=variable) == visible
        assert seen(0, ray=8, variable=variable) == visible

    def test_the_variable_of_the_user_makes_no_device(self) -> None:
        assert seen(0, variable="0,1") == ()
        assert seen(1, variable="0,1") == ("0",)

    def test_minus_one_hides_itself_and_what_follows(self) -> None:
        assert seen(8, variable="-1") == ()
        assert seen(8, variable="3,-1,4") == ("3",)

    def test_this_machine_is_a_node(self, monkeypatch: pytest.MonkeyPatch) -> None:
        here = local_node()
        assert set(here.visible) == {"npu", "gpu"}
        assert here.cores == os.cpu_count()
        assert here.hostname


class TestKind:
    @pytest.mark.parametrize("wanted", ["npu", "cpu"])
    def test_what_is_asked_for_is_used(self, wanted: str) -> None:
        assert choose_kind(wanted, "mindspore", [node(gpu=8)]) == wanted

    def test_a_gpu_may_be_asked_for_with_pytorch(self) -> None:
        assert choose_kind("gpu", "pytorch", []) == "gpu"

    @pytest.mark.parametrize("framework", ["mindspore", "mindtorch"])
    def test_mindspore_does_not_run_on_a_gpu(self, framework: str) -> None:
        with pytest.raises(DeviceError, match="use --device-type npu or cpu"):
            choose_kind("gpu", framework, [node(gpu=1)])

    @pytest.mark.parametrize("framework", ["mindspore", "mindtorch"])
    def test_auto_takes_an_npu_for_mindspore(self, framework: str) -> None:
        assert choose_kind("auto", framework, [node(npu=1, gpu=8)]) == "npu"

    @pytest.mark.parametrize("framework", ["mindspore", "mindtorch"])
    def test_auto_takes_the_cpu_for_mindspore_without_npus(self, framework: str) -> None:
        assert choose_kind("auto", framework, [node(gpu=8)]) == "cpu"

    @pytest.mark.parametrize(
        ("plugins", "devices", "kind"),
        [
            (("pytorch:npu", "pytorch:gpu"), {"npu": 1, "gpu": 1}, "npu"),
            (("pytorch:gpu",), {"npu": 1, "gpu": 1}, "gpu"),
            (("pytorch:gpu",), {"npu": 0, "gpu": 1}, "gpu"),
            (("pytorch:npu",), {"npu": 0, "gpu": 0}, "cpu"),
        ],
    )
    def test_auto_takes_what_the_torch_of_a_node_can_use(
        self, plugins: tuple[str, ...], devices: dict[str, int], kind: str
    ) -> None:
        # The head has no device and a torch for the CPU, which says nothing of the other.
        nodes = [node(plugins=()), node("n1", plugins=plugins, **devices)]
        assert choose_kind("auto", "pytorch", nodes) == kind

    @pytest.mark.parametrize(
        ("framework", "devices", "said"),
        [
            (
                "pytorch",
                {"npu": 8},
                r"10.0.0.1 has 8 NPUs, .*fits torch 2.6.0\+cu124 \(pip install 'torch_npu==2.6.0.\*'\)",
            ),
            (
                "pytorch",
                {"gpu": 1},
                r"10.0.0.1 has 1 GPU, but its torch 2.6.0\+cu124 is built without CUDA",
            ),
            ("mindspore", {"npu": 2}, r"10.0.0.1 has 2 NPUs, but its mindspore is built without"),
            ("mindtorch", {"npu": 2}, r"10.0.0.1 has 2 NPUs, but its mindspore is built without"),
        ],
    )
    def test_an_accelerator_without_its_package_is_an_error_and_never_a_run_on_the_cpu(
        self, framework: str, devices: dict[str, int], said: str
    ) -> None:
        lacking = node("n1", plugins=(), versions={"torch": "2.6.0+cu124"}, **devices)
        nodes = [node(plugins=()), lacking]
        with pytest.raises(DeviceError, match=said + ".*--device-type cpu$"):
            choose_kind("auto", framework, nodes)
        assert choose_kind("cpu", framework, nodes) == "cpu"
        assert choose_kind("auto", framework, nodes, device_runs=False) == "cpu"
        with pytest.raises(DeviceError, match=said):
            require_plugins(next(iter(devices)), framework, nodes)

    def test_devices_that_the_user_has_hidden_need_no_package(self) -> None:
        assert choose_kind("auto", "pytorch", [node(npu=0, plugins=())]) == "cpu"


class TestSlots:
    def test_ids_are_those_of_the_first_node(self) -> None:
        slots = place_ids("npu", [1, 3], [node("n0", npu=4), node("n1", npu=4)])
        assert slots == [
            DeviceSlot("npu", 1, "n0", "10.0.0.0", "1"),
            DeviceSlot("npu", 3, "n0", "10.0.0.0", "3"),
        ]
        assert [slot.label for slot in slots] == ["npu:1", "npu:3"]

    def test_an_id_that_is_not_there_is_refused_with_those_that_are(self) -> None:
        with pytest.raises(DeviceError) as refused:
            place_ids("npu", [0, 2, 9], [node("n0", npu=2)])
        assert str(refused.value) == (
            "-d 2: this machine (10.0.0.0) has npu 0, 1; choose among them, or use --device-type cpu"
        )

    def test_a_machine_without_the_kind_says_so(self) -> None:
        with pytest.raises(DeviceError, match=r"-d 0: this machine \(10\.0\.0\.0\) has no gpu"):
            place_ids("gpu", [0], [node("n0", npu=2)])

    def test_ids_count_among_the_devices_that_the_user_lets_us_see(self) -> None:
        slots = place_ids("npu", [1, 0], [Node("n0", "10.0.0.0", {"npu": ("4", "7")})])
        assert [(slot.device_id, slot.visible) for slot in slots] == [(1, "7"), (0, "4")]

    def test_ids_of_the_cpu_are_logical_and_dealt_out_over_the_nodes(self) -> None:
        slots = place_ids("cpu", [0, 1, 7], [node("n0"), node("n1")])
        assert [(slot.device_id, slot.node_id) for slot in slots] == [
            (0, "n0"),
            (1, "n1"),
            (7, "n0"),
        ]
        assert {slot.visible for slot in slots} == {""}


def logical(*nodes: str) -> list[DeviceSlot]:
    """Slots of the CPU, each on a node."""
    return [DeviceSlot("cpu", i, name, f"10.0.0.{name[1:]}", "") for i, name in enumerate(nodes)]


def homes(slots: Sequence[DeviceSlot], nodes: Sequence[Node]) -> list[str]:
    """The nodes of slots, in their order, after they have moved."""
    moved = {slot.label: slot for slot in move_slots(slots, nodes)}
    return [moved.get(slot.label, slot).node_id for slot in slots]


class TestMoving:
    def test_nothing_moves_while_the_nodes_are_the_same(self) -> None:
        assert move_slots(logical("n0", "n1", "n0"), [node("n0"), node("n1")]) == []

    def test_the_slots_of_a_dead_node_go_to_those_that_live(self) -> None:
        slots = logical("n0", "n1", "n2", "n1")
        assert homes(slots, [node("n0"), node("n2")]) == ["n0", "n2", "n2", "n0"]

    def test_a_slot_that_moves_has_the_address_of_its_new_node(self) -> None:
        (moved,) = move_slots(logical("n1"), [node("n2")])
        assert moved == DeviceSlot("cpu", 0, "n2", "10.0.0.2", "")

    def test_a_slot_that_moves_takes_a_core_that_no_slot_of_its_new_node_has(self) -> None:
        slots = place_ids("cpu", range(5), [node("n0"), node("n1")])
        moved = {slot.label: slot.core for slot in move_slots(slots, [node("n0")])}
        assert moved == {"cpu:3": 3, "cpu:1": 4}

    def test_a_node_that_joins_takes_slots_from_the_fullest(self) -> None:
        slots = logical("n0", "n1", "n0", "n0")
        assert homes(slots, [node("n0"), node("n1"), node("n2")]) == ["n0", "n1", "n0", "n2"]

    def test_a_node_that_joins_takes_none_where_each_has_one(self) -> None:
        assert move_slots(logical("n0", "n1"), [node("n0"), node("n1"), node("n2")]) == []

    def test_a_node_that_comes_back_gets_its_share_again(self) -> None:
        nodes = [node("n0"), node("n1")]
        without = homes(logical("n0", "n1", "n0", "n1"), nodes[:1])
        assert sorted(homes(logical(*without), nodes)) == ["n0", "n0", "n1", "n1"]

    def test_where_no_node_lives_nothing_moves(self) -> None:
        assert move_slots(logical("n0", "n1"), []) == []

    @pytest.mark.parametrize("kind", ["npu", "gpu"])
    def test_devices_stay_where_they_are(self, kind: str) -> None:
        slots = [DeviceSlot(kind, i, "n0", "10.0.0.0", str(i)) for i in range(3)]
        assert move_slots(slots, [node("n1", npu=8, gpu=8)]) == []

    @given(st.lists(st.sampled_from("n0 n1 n2 n3".split()), max_size=12), st.integers(1, 15))
    def test_no_node_has_two_more_than_another(self, before: list[str], alive: int) -> None:
        nodes = [node(f"n{i}") for i in range(4) if alive >> i & 1]
        after = Counter({each.node_id: 0 for each in nodes})
        after.update(homes(logical(*before), nodes))
        assert set(after) == {each.node_id for each in nodes}
        assert max(after.values()) - min(after.values()) <= 1


class TestPinning:
    @pytest.mark.parametrize(
        ("kind", "variable", "other"),
        [("npu", NPU_VARIABLE, GPU_VARIABLE), ("gpu", GPU_VARIABLE, NPU_VARIABLE)],
    )
    def test_a_worker_sees_its_device_alone(self, kind: str, variable: str, other: str) -> None:
        slot = DeviceSlot(kind, 1, "n0", "", "5")
        assert slot_variables(slot) == {variable: "5", other: ""}

    def test_a_worker_on_the_cpu_sees_no_device(self) -> None:
        assert set(slot_variables(DeviceSlot("cpu", 3, "n0", "", "")).values()) == {""}
