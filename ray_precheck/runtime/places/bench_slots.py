"""Which processor cores are free for benches; pure.

Comes in: the device slots of a run and the nodes. Goes out: slots of the kind `BENCH`. Called by the
driver. A worker of a device takes one core of its machine; the others are spare, also those of
machines without a device.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ray_precheck.runtime.places.devices import Node
from ray_precheck.schema.task import BENCH, DeviceSlot


def number_cores(slots: Sequence[DeviceSlot]) -> list[DeviceSlot]:
    """Return the slots with a core each: on every machine they take the first ones in turn."""
    used: Counter[str] = Counter()
    numbered = []
    for slot in slots:
        numbered.append(replace(slot, core=used[slot.node_id]))
        used[slot.node_id] += 1
    return numbered


def place_benches(
    slots: Sequence[DeviceSlot], nodes: Sequence[Node], most: int, *, crowded: bool = False
) -> list[DeviceSlot]:
    """Return at most `most` slots for benches, spread over the spare cores of all nodes.

    The driver's node comes last: it has the driver to run. `crowded`: exactly so many are wanted,
    also where there are fewer cores.
    """
    return _place(slots, [], nodes, most, crowded)


def follow_cores(
    slots: Sequence[DeviceSlot],
    benches: Sequence[DeviceSlot],
    nodes: Sequence[Node],
    most: int,
) -> list[DeviceSlot]:
    """Return the slots for benches that are to be added, up to `most` in all."""
    return _place(slots, benches, nodes, most, crowded=False)


def _place(
    slots: Sequence[DeviceSlot],
    benches: Sequence[DeviceSlot],
    nodes: Sequence[Node],
    most: int,
    crowded: bool,
) -> list[DeviceSlot]:
    used = Counter(slot.node_id for slot in [*slots, *benches])
    spare = {node.node_id: node.cores - used[node.node_id] for node in nodes}
    number = max((slot.device_id for slot in benches), default=-1) + 1
    order = [*nodes[1:], *nodes[:1]]
    placed: list[DeviceSlot] = []
    while order and len(benches) + len(placed) < most:
        node = max(order, key=lambda each: spare[each.node_id])
        if spare[node.node_id] <= 0 and not crowded:
            break
        # Cores are counted from 0 on each machine, those of device workers first.
        core = max(0, node.cores - spare[node.node_id]) % max(1, node.cores)
        slot = DeviceSlot(BENCH, number + len(placed), node.node_id, node.address, "", "", core)
        placed.append(slot)
        spare[node.node_id] -= 1
    return placed
