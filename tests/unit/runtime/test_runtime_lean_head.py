"""What Ray's head starts for a run: no more than that; all of it where another Ray has other parts."""

import time
from typing import Any

import pytest
import ray

from ray_precheck.runtime.places import cluster as module
from ray_precheck.runtime.places.cluster import lean_head

pytestmark = pytest.mark.unit


class Node:
    """Starts what Ray's own class does, and says so."""

    gcs_address = "127.0.0.1:1"

    def __init__(self) -> None:
        self.started: list[str] = []
        self.start_monitor()
        self.start_api_server(include_dashboard=False, raise_on_failure=False)
        self.start_log_monitor()
        self.start_ray_processes()

    def start_monitor(self) -> None:
        self.started.append("autoscaler")

    def start_api_server(self, *, include_dashboard: bool, raise_on_failure: bool) -> None:
        self.started.append("dashboard")

    def start_log_monitor(self) -> None:
        self.started.append("log monitor")

    def start_ray_processes(self) -> None:
        self.started.append("raylet")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """What the cluster's table of nodes says, look by look; its last word lasts."""
    looks: list[list[dict[str, Any]]] = [[], [{"Alive": False}], [{"Alive": True}]]

    class GlobalState:
        def _initialize_global_state(self, options: object) -> None:
            assert options == "options of 127.0.0.1:1"

        def node_table(self) -> list[dict[str, Any]]:
            return looks.pop(0) if len(looks) > 1 else looks[0]

    monkeypatch.setattr(ray._private.node, "Node", Node)
    monkeypatch.setattr(ray._private.state, "GlobalState", GlobalState)
    monkeypatch.setattr(
        ray._private.services, "_get_gcs_client_options", lambda address: f"options of {address}"
    )
    return looks


def test_the_installed_ray_has_the_parts_that_are_left_out() -> None:
    assert all(hasattr(ray._private.node.Node, part) for part in module._PARTS)


@pytest.mark.parametrize(
    ("reads_logs", "started"), [(False, ["raylet"]), (True, ["log monitor", "raylet"])]
)
@pytest.mark.usefixtures("table")
def test_a_head_starts_what_a_run_needs(reads_logs: bool, started: list[str]) -> None:
    with lean_head(reads_logs=reads_logs):
        assert ray._private.node.Node().started == started


@pytest.mark.usefixtures("table")
def test_afterwards_ray_is_as_before_also_where_it_did_not_start() -> None:
    with pytest.raises(OSError, match="no raylet"), lean_head(reads_logs=False):
        raise OSError("no raylet")
    assert ray._private.node.Node is Node


def test_it_waits_for_the_node_and_no_longer(table: list[list[dict[str, Any]]]) -> None:
    with lean_head(reads_logs=False):
        ray._private.node.Node()
    assert table == [[{"Alive": True}]]  # two looks found nobody


def test_a_node_that_does_not_come_is_waited_for_by_ray_itself(
    table: list[list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    table[:] = [[]]
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    with lean_head(reads_logs=False):
        assert ray._private.node.Node().started == ["raylet"]
    assert now[0] == pytest.approx(module._LONGEST_WAIT_S, abs=0.1)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("part", ["start_api_server", "start_ray_processes"])
def test_another_ray_without_such_a_part_starts_whole(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Node, part)
    with lean_head(reads_logs=False):
        assert ray._private.node.Node is Node


@pytest.mark.usefixtures("table")
def test_another_ray_whose_table_is_elsewhere_starts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ray._private.services, "_get_gcs_client_options")
    with lean_head(reads_logs=False):
        assert ray._private.node.Node().started == ["raylet"]


def test_another_ray_whose_node_is_elsewhere_starts_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ray._private, "node")
    with lean_head(reads_logs=False):
        assert not hasattr(ray._private, "node")
