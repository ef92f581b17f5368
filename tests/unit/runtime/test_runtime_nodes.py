"""What nodes are called, and which versions on them differ."""

import pytest

from ray_precheck.errors import DeviceError, UsageError
from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.places.placement import (
    has_other_package,
    is_called,
    listed_nodes,
    node_called,
    ranged,
    require_same_package,
    version_differences,
    version_table,
)

pytestmark = pytest.mark.unit


def node(number: int, **versions: str) -> Node:
    """A node with these versions beside the usual ones."""
    usual = {"ray_precheck": "1.0", "python": "3.11.7", "numpy": "1.26.4"}
    named = {name.replace("__", " "): version for name, version in versions.items()}
    return Node(
        f"id{number}",
        f"10.0.0.{number}",
        {"npu": ("0", "1") if number % 2 else ()},
        hostname=f"node-{number}.cluster",
        labels={"ray.io/node-id": f"id{number}", "zone": "east" if number < 3 else "west"},
        versions={name: version for name, version in (usual | named).items() if version},
    )


class TestNames:
    @pytest.mark.parametrize(
        "name", ["node-3.cluster", "node-3", "10.0.0.3", "id3", "west", "zone=west"]
    )
    def test_host_names_addresses_and_labels_name_a_node(self, name: str) -> None:
        nodes = [node(1), node(2), node(3)]
        assert node_called("--devices", name, nodes) is nodes[2]

    @pytest.mark.parametrize("name", ["", "node", "10", "zone", "zone=", "10.0.0.33"])
    def test_a_part_of_a_name_is_none(self, name: str) -> None:
        assert not is_called(node(3), name)

    def test_a_node_without_a_host_name_has_no_empty_name(self) -> None:
        assert not is_called(Node("id", "10.0.0.1", {}), "")

    def test_a_name_of_several_is_refused_with_them(self) -> None:
        with pytest.raises(DeviceError) as refused:
            node_called("--exclude", "east", [node(1), node(2), node(3)])
        assert str(refused.value) == (
            "--exclude: east may be any of node-1.cluster (10.0.0.1, zone=east) with npu 0-1;"
            " node-2.cluster (10.0.0.2, zone=east) with the CPU alone; name one by its address, or"
            " by a label of its own"
        )

    def test_a_name_of_none_is_refused_with_all(self) -> None:
        with pytest.raises(DeviceError) as refused:
            node_called("--devices", "node-9", [node(3)])
        assert str(refused.value) == (
            "--devices: no node is called node-9; there are node-3.cluster (10.0.0.3, zone=west)"
            " with npu 0-1"
        )

    def test_a_long_list_is_cut(self) -> None:
        text = listed_nodes([node(number) for number in range(100)])
        assert text.count("10.0.0.") == 20
        assert text.endswith("; 80 more")

    @pytest.mark.parametrize(
        ("ids", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([0, 1, 4, 6, 7], "0-1,4,6-7")]
    )
    def test_ids_are_written_as_ranges(self, ids: list[int], text: str) -> None:
        assert ranged(ids) == text


class TestVersions:
    def test_where_all_are_alike_there_is_no_table(self) -> None:
        assert version_table([node(1), node(2)], node(1)) == ""
        assert version_table([], node(1)) == ""

    def test_the_table_has_the_rows_that_differ_and_nodes_alike_share_a_column(self) -> None:
        nodes = [
            node(1, torch="2.6.0", NPU__driver="24.1.0"),
            node(2, torch="2.13.0"),
            node(3, torch="2.6.0", NPU__driver="24.1.0"),
            node(4, NPU__driver="25.0.rc1"),
        ]
        assert version_table(nodes, nodes[0]).splitlines() == [
            "warning: versions differ between the nodes, so a row may depend on the node that"
            " computes it:",
            "            node-1.cluster (10.0.0.1) and 1 more  node-2.cluster (10.0.0.2)"
            "  node-4.cluster (10.0.0.4)",
            "torch       2.6.0                                 2.13.0                     -",
            "NPU driver  24.1.0                                -                          25.0.rc1",
        ]

    @pytest.mark.parametrize("name", ["NPU__driver", "GPU__driver", "torch_npu"])
    def test_a_node_without_a_device_needs_no_driver(self, name: str) -> None:
        nodes = [node(1, **{name: "1"}), node(2), node(3, **{name: "2"})]
        assert version_table(nodes[:2], nodes[0]) == ""
        assert version_table(nodes, nodes[0]) != ""

    @pytest.mark.parametrize("name", ["python", "numpy", "torch", "mindspore"])
    def test_a_framework_that_a_node_lacks_is_a_difference(self, name: str) -> None:
        nodes = [node(1, **{name: "9"}), node(2, **{name: ""})]
        assert name in version_table(nodes, nodes[0])

    def test_the_environment_of_the_command_has_a_column_where_no_node_is_like_it(self) -> None:
        nodes, here = [node(1), node(2)], node(1, python="3.11.9", torch="2.13.0")
        assert version_table(nodes, here).splitlines()[1:] == [
            "        node-1.cluster (10.0.0.1) and 1 more  this command",
            "python  3.11.7                                3.11.9",
            "torch   -                                     2.13.0",
        ]
        others = [node(1), node(2, python="3.11.9", torch="2.13.0")]
        assert "this command" not in version_table(others, here)

    def test_what_differs_on_a_node_is_told_beside_the_first_of_the_others(self) -> None:
        others = [node(1, torch="2.13.0"), node(2, torch="2.4.1")]
        assert version_differences(node(3, torch="2.13.0"), others) == ""
        assert version_differences(node(3, torch="2.13.0"), []) == ""
        assert version_differences(node(3, numpy="2.1.0"), others) == (
            "torch none where node-1.cluster (10.0.0.1) has 2.13.0,"
            " numpy 2.1.0 where node-1.cluster (10.0.0.1) has 1.26.4"
        )

    def test_one_version_of_the_package_is_fine(self) -> None:
        nodes = [node(1), node(2)]
        require_same_package("1.0", nodes)
        assert not any(has_other_package("1.0", each) for each in nodes)

    def test_another_version_of_the_package_or_none_is_refused_with_the_nodes(self) -> None:
        nodes = [node(1), node(2, ray_precheck="0.9"), node(3, ray_precheck="")]
        with pytest.raises(UsageError) as refused:
            require_same_package("1.0", nodes)
        assert str(refused.value) == (
            "this is ray_precheck 1.0, but node-2.cluster (10.0.0.2) has 0.9; node-3.cluster"
            " (10.0.0.3) has none; install 1.0 there, or leave these nodes out with --exclude"
        )
