"""Where a run may run, on this machine and without Ray."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.commands.compare.run import cores_for_forks
from ray_precheck.commands.overflow.options import OverflowConfig
from ray_precheck.errors import DeviceError
from ray_precheck.replay.config import RunConfig
from ray_precheck.runtime.places.choice import Cluster, Places, find_places, on_cores
from ray_precheck.runtime.places.devices import local_node

pytestmark = pytest.mark.unit


def places(**settings: Any) -> Places:
    config = RunConfig(dump=Path("dump.json"), device_type="cpu", **settings)
    with ExitStack() as joined:
        return find_places(config, "mindspore", Cluster(config, joined), show=False)


def test_ids_are_places_on_this_machine_however_many_there_are() -> None:
    found = places(devices=(0, 2))
    assert [node.node_id for node in found.nodes] == [local_node().node_id]
    assert (found.request.kind, found.request.ids, found.most_on_a_node) == ("cpu", (0, 2), None)


def test_without_ids_it_counts_how_many_workers_share_a_machine() -> None:
    assert places(devices="all").most_on_a_node == 1


def test_a_node_that_is_not_there_is_an_error() -> None:
    with pytest.raises(DeviceError, match="node-of-nobody"):
        places(devices="node-of-nobody:0")


@pytest.mark.parametrize(("named", "slots", "forks"), [((), 3, 3), ((0,), 1, 1), ((4, 7), 2, 2)])
def test_a_search_has_a_slot_for_each_id_or_for_each_core_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: tuple[int, ...], slots: int, forks: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 5, 7})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    config = on_cores(OverflowConfig(dump=tmp_path, devices=named))
    assert (len(config.devices), config.device_type) == (slots, "cpu")
    assert cores_for_forks(named) == forks
