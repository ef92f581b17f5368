"""Where a run may run, on this machine and without Ray."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.config import RunConfig
from ray_precheck.errors import DeviceError
from ray_precheck.runtime.places.choice import Cluster, Places, find_places
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
