"""The machines of a simulated run: nodes, slots, bench workers, and the files that have to be sent.

Comes in: choices. Goes out: a `Layout`, from which every driver of a history begins. Called by
`histories.world` and `histories.actors`.
"""

import math

from ray_precheck.runtime.driver import _STORE_SHARE as STORE_SHARE
from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.places.placement import DeviceRequest
from scripts.histories.answers import Choices

MOST_NODES = 4
# The place that breaks every process, in histories that have a bad place.
BAD_PLACE = "n1"
_CORES = 4
_BENCHES = (0, 0, 1, 1, 1, 2, 3, 4)
_MOST_BYTES = (1 << 40, 3_000_000, 1_000_000, 0)


class Layout:
    """How many slots and nodes there are. Logical slots move between nodes, devices leave with theirs.

    `benches` is how many bench workers are wanted. `bench_suffices`: they may do whole records.
    `benches_are_first`: they are ready before any device. `benches_are_slow`: devices are done before
    them. `ends_what_waits`: a node dies on which parcels wait for them. `ships`: only the driver's
    machine sees the files. `most_bytes` is how many bytes may wait for benches, `room_bytes` how many
    may be on their way to other machines.
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
        self.ships = chance(2)
        self.most_bytes = _MOST_BYTES[below(4)]
        self.room_bytes = _MOST_BYTES[below(3)]

    @property
    def request(self) -> DeviceRequest:
        """The devices that the run asks for: ids that move between nodes, or all devices."""
        if self.is_logical:
            return DeviceRequest("cpu", ids=tuple(range(self.slots)))
        return DeviceRequest("npu", takes_all=True)

    def make_node(self, number: int) -> Node:
        """Return a node that has its number for a name; the devices are spread over the first ones."""
        devices = len(range(number % self.nodes, self.slots, self.nodes)) or 1
        return Node(
            f"n{number}",
            f"10.0.0.{number}",
            {} if self.is_logical else {"npu": tuple(map(str, range(devices)))},
            _CORES,
            math.ceil(self.most_bytes / STORE_SHARE),
            f"host{number}",
        )
