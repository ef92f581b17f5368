"""The machines of a simulated run: its nodes and slots, who may run benches, and what has to travel.

Comes in: choices. Goes out: a `Layout`, from which every driver of a history begins. Called by
`histories_world.py` and `histories_workers.py`.
"""

from collections.abc import Sequence

from ray_precheck.runtime.places.devices import Node, place_ids
from ray_precheck.schema.task import DeviceSlot
from scripts.histories.answers import Choices

MOST_NODES = 4
# The place that breaks every process, where a history has such a one.
BAD_PLACE = "n1"
_CORES = 4
# Where the dump is: everywhere, on the driver's node, or on a machine where nothing runs.
_HOMES = ("", "n0", "elsewhere")
_BENCHES = (0, 0, 1, 1, 1, 2, 3, 4)
_MOST_BYTES = (1 << 40, 3_000_000, 1_000_000, 0)


class Layout:
    """How many slots and nodes there are. Logical slots move between nodes, devices leave with theirs.

    `benches` is how many bench workers are wanted, `bench_suffices` whether these may do whole
    records, `benches_are_first` that they are ready before any device, `benches_are_slow` that
    devices are done before them, `ends_what_waits` that a node dies where something waits for
    them. `most_bytes` may wait for benches, `room_bytes` be on its way to other machines.
    """

    def __init__(self, choices: Choices) -> None:
        below, chance = choices.below, choices.chance
        self.slots = 1 + below(5)
        self.nodes = 1 + below(3)
        self.is_logical = not chance(5)
        self.has_bad_place = chance(8)
        self.benches = _BENCHES[below(len(_BENCHES))]
        self.bench_suffices = chance(4)
        self.benches_are_first = not chance(3)
        self.benches_are_slow = chance(2)
        self.ends_what_waits = chance(3)
        self.home = _HOMES[max(0, below(4) - 1)]
        self.most_bytes = _MOST_BYTES[below(4)]
        self.room_bytes = _MOST_BYTES[below(3)]

    def needs_files(self, slot: DeviceSlot) -> bool:
        """Return whether captured files have to be sent to a slot."""
        return bool(self.home) and slot.node_id != self.home

    def device_slots(self, nodes: Sequence[Node]) -> list[DeviceSlot]:
        """Return the slots of the devices."""
        ids = range(self.slots)
        if self.is_logical:
            return place_ids("cpu", ids, nodes)
        homes = [nodes[i % len(nodes)] for i in ids]
        return [
            DeviceSlot("npu", i, home.node_id, home.address, str(i))
            for i, home in zip(ids, homes, strict=True)
        ]


def make_node(number: int) -> Node:
    """Return a node that has its number for a name."""
    return Node(f"n{number}", f"10.0.0.{number}", {}, _CORES)
