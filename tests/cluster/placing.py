"""A driver that places slots and says where workers on them are; run on a node of a `Network`.

`placing.py ADDRESS KIND DEVICES [EXCLUDE]` prints a line of JSON for every slot, and then, for every
number of nodes that it reads, what has changed since once there are as many.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_precheck import __version__
from ray_precheck.replay.config import RunConfig
from ray_precheck.runtime.places.cluster import Roster, open_cluster
from ray_precheck.runtime.places.devices import slot_variables
from ray_precheck.runtime.places.placement import DeviceRequest, follow_nodes, place_slots
from ray_precheck.schema.task import DeviceSlot


def whereabouts(slots: Sequence[DeviceSlot]) -> list[tuple[str, str, str]]:
    """Start an actor on each slot; return the address of each, and what it sees."""

    class Pinned:  # Here, so that it travels with its code: workers do not find this module.
        """An actor that is pinned as a worker is; loads nothing."""

        def __init__(self, slot: DeviceSlot) -> None:
            os.environ.update(slot_variables(slot))

        def where(self) -> tuple[str, str, str]:
            """Return the address that it is at, and what it can see, in a call after the first."""
            visible = (os.environ["ASCEND_RT_VISIBLE_DEVICES"], os.environ["CUDA_VISIBLE_DEVICES"])
            return (ray.util.get_node_ip_address(), *visible)

    actors = [
        ray.remote(num_cpus=0)(Pinned)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(slot.node_id, soft=False))
        .remote(slot)
        for slot in slots
    ]
    found: list[tuple[str, str, str]] = ray.get([a.where.remote() for a in actors], timeout=400)
    for actor in actors:
        ray.kill(actor)
    return found


def main() -> None:
    address, kind, devices, exclude = (*sys.argv[1:], "")[:4]
    config = RunConfig(Path("dump.json"), devices=devices, exclude=exclude)
    request = DeviceRequest.of(config, kind)

    def tell(**facts: Any) -> None:
        print(json.dumps(facts), flush=True)

    with open_cluster(address, debug=False) as nodes:
        slots = {slot.label: slot for slot in place_slots(request, nodes)}
        for slot, where in zip(slots.values(), whereabouts(list(slots.values())), strict=True):
            tell(label=slot.label, where=where)
        tell(nodes=len(nodes))
        said: list[str] = []
        roster = Roster(nodes, __version__, said.append)
        for line in sys.stdin:
            until = time.monotonic() + 300
            while len(nodes := roster.nodes()) != int(line) and time.monotonic() < until:
                time.sleep(0.2)
            changes = follow_nodes(request, list(slots.values()), nodes)
            fresh = [*changes.moved, *changes.added]
            slots |= {slot.label: slot for slot in fresh}
            labels = {
                kind: [slot.label for slot in getattr(changes, kind)]
                for kind in ("moved", "added", "lost")
            }
            tell(**labels, where=whereabouts(fresh), said=said)


if __name__ == "__main__":
    main()
