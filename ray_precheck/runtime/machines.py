"""Which slots a run has on which machines, while nodes leave and join.

Comes in: the nodes that there are, looked at now and then. Goes out: events for the scheduler, whose
commands are carried out one event after the other. Called by the driver's loop, which owns it.
"""

from collections.abc import Callable, Sequence

from ray_precheck.runtime.actors import Actors
from ray_precheck.runtime.crew import Crew
from ray_precheck.runtime.places.bench_slots import follow_cores, number_cores, place_benches
from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.places.placement import DeviceRequest, follow_nodes, usable_nodes
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.scheduling.commands import Command
from ray_precheck.runtime.scheduling.crash_counts import CRASHES_NEEDED
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.schema.failure import Cause
from ray_precheck.schema.task import DeviceSlot

_NODES_INTERVAL_S = 2.0
# What the row of a record says whose worker was lost with it as often as it may be.
LOST = f"the worker process died on each of {CRASHES_NEEDED[Cause.LOST]} attempts"

CarryOut = Callable[[Sequence[Command]], None]


class Machines:
    """The device slots and the bench workers of a run by label, and where they are.

    `of_slots` says where slots are whose place is not their machine. `given_up` has the reason why a
    device is not used any more.
    """

    def __init__(
        self, actors: Actors, crew: Crew, request: DeviceRequest, slots: Sequence[DeviceSlot]
    ) -> None:
        self._actors = actors
        self._crew = crew
        self._request = request
        self._most_benches = 0
        self.nodes = actors.nodes()
        self._seen_at = actors.clock()
        self.slots: dict[str, DeviceSlot] = {}
        self.benches: dict[str, DeviceSlot] = {}
        self.of_slots: dict[str, str] = {}
        self.given_up: dict[str, str] = {}
        for slot in number_cores(slots):
            self._know(slot)

    def usable(self) -> list[Node]:
        """Return the nodes that the run may use."""
        return usable_nodes(self._request, self.nodes)

    def place_benches(self, most: int, *, crowded: bool) -> None:
        """Choose the bench workers, at most so many; `crowded`: also where a device has the core."""
        self._most_benches = most
        slots = list(self.slots.values())
        for slot in place_benches(slots, self.usable(), most, crowded=crowded):
            self.benches[slot.label] = self._crew.slots[slot.label] = slot

    def keep_only(self, wanted: set[str]) -> None:
        """Drop the device slots for which there is nothing to do."""
        for label in set(self.slots) - wanted:
            self._crew.dismiss(label)
            del self.slots[label]

    def ahead(self) -> frozenset[str]:
        """Return the slots to which files have to be sent before their batches."""
        return frozenset(filter(self._crew.needs_files, [*self.slots, *self.benches]))

    def look_soon(self) -> None:
        """Look at the nodes in the next step: one of them may be gone."""
        self._seen_at = -_NODES_INTERVAL_S

    def follow(self, scheduler: Scheduler, progress: Progress, carry_out: CarryOut) -> None:
        """Look now and then for nodes that have left or joined, and follow them.

        Raises:
            StoppedError: the driver's own node is gone.
        """
        now = self._actors.clock()
        if now - self._seen_at < _NODES_INTERVAL_S:
            return
        self._seen_at = now
        before, self.nodes = self.nodes, self._actors.nodes()
        if {node.node_id for node in self.nodes} == {node.node_id for node in before}:
            return
        self._follow_cores(scheduler, before, carry_out)
        changes = follow_nodes(self._request, list(self.slots.values()), self.nodes)
        left = {node.node_id for node in before}
        for slot in (slot for slot in changes.lost if slot.node_id in left):
            carry_out(self._abandon(slot.label, scheduler))
            progress.say(f"node {slot.address} is gone, and {slot.label} with it")
        for slot in changes.moved:
            self._move(slot, scheduler, progress, carry_out)
        for slot in changes.added:
            progress.say(f"a node has joined: {slot.label} on {slot.address}")
            self._know(slot)
            scheduler.send_files_to(self.ahead())
            carry_out(scheduler.add_slot(slot.label, slot.place))
        scheduler.send_files_to(self.ahead())

    def _move(
        self, slot: DeviceSlot, scheduler: Scheduler, progress: Progress, carry_out: CarryOut
    ) -> None:
        before = self.slots[slot.label]
        gone = before.node_id not in {node.node_id for node in self.nodes}
        why = f"node {before.address} is gone" if gone else "a node has joined"
        progress.say(f"{why}: {slot.label} moves to {slot.address}")
        self._know(slot)
        scheduler.send_files_to(self.ahead())
        if gone:
            carry_out(self._abandon(slot.label, scheduler))
        self.given_up.pop(slot.label, None)
        carry_out(scheduler.revive(slot.label, slot.place))

    def _know(self, slot: DeviceSlot) -> None:
        self.slots[slot.label] = self._crew.slots[slot.label] = slot
        if slot.place != slot.node_id:
            self.of_slots[slot.label] = slot.node_id

    def _abandon(self, label: str, scheduler: Scheduler) -> list[Command]:
        """Wait no longer for a worker whose node is dead; what it still says is ignored."""
        self._crew.dismiss(label)
        self.given_up[label] = "its node is gone"
        return scheduler.slot_lost(label, f"{LOST} (its node died)")

    def _follow_cores(
        self, scheduler: Scheduler, before: Sequence[Node], carry_out: CarryOut
    ) -> None:
        """Have bench workers on the nodes that are there now."""
        alive = {node.node_id for node in self.nodes}
        for node in before:
            if node.node_id in alive:
                continue
            labels = [n for n, slot in self.benches.items() if slot.node_id == node.node_id]
            for label in labels:
                self._crew.dismiss(label)
                del self.benches[label]
            carry_out(scheduler.place_lost(node.node_id, labels))
        slots, benches = list(self.slots.values()), list(self.benches.values())
        for slot in follow_cores(slots, benches, self.usable(), self._most_benches):
            self.benches[slot.label] = self._crew.slots[slot.label] = slot
            scheduler.send_files_to(self.ahead())
            carry_out(scheduler.add_bench(slot.label, slot.place))
