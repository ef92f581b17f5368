"""The troubles of workers and nodes in a history, beside records that break workers.

Comes in: the machines, at a moment that the history has chosen. Called by `histories.world`.
"""

from collections.abc import Callable

from ray_precheck.runtime.actors import ActorLost
from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.scheduling.blame import START_ATTEMPTS
from ray_precheck.schema.task import BENCH
from scripts.histories.actors import Actor, Machine
from scripts.histories.layout import MOST_NODES
from scripts.histories.watch import Lookout


def _any(machine: Machine, actors: list[Actor]) -> Actor | None:
    return actors[machine.choices.below(len(actors))] if actors else None


def _devices(machine: Machine, *, busy: bool) -> list[Actor]:
    found = [a for a in machine.workers() if a.slot is not None and a.slot.kind != BENCH]
    return [actor for actor in found if actor.is_busy is busy]


def _benches(machine: Machine) -> list[Actor]:
    return [a for a in machine.workers() if a.slot is not None and a.slot.kind == BENCH]


def _kill_process(machine: Machine, watch: Lookout) -> None:
    """Kill the process of a worker at a record of the batch that it has, or of the next one."""
    busy = machine.choices.chance(2)
    actor = _any(machine, _devices(machine, busy=not busy))
    if actor is not None and actor.body.process is not None:
        actor.body.process.killed_at = machine.choices.below(4)
        machine.say("the process of {} is killed", actor.body._slot.label)


def _kill_worker(machine: Machine, watch: Lookout) -> None:
    actor = _any(machine, machine.workers())
    if actor is not None:
        machine.say("the worker of {} is killed", actor.body._slot.label)
        machine.lose(actor, ActorLost("ActorDiedError"))


def _kill_worker_for_memory(machine: Machine, watch: Lookout) -> None:
    actor = _any(machine, _devices(machine, busy=True))
    if actor is not None:
        machine.say("the worker of {} is killed for its memory", actor.body._slot.label)
        machine.lose(actor, ActorLost("OutOfMemoryError", for_memory=True))


def _stop_worker(machine: Machine, watch: Lookout) -> None:
    """Stop a worker or the writer: it neither answers nor dies."""
    actor = _any(machine, [a for a in machine.actors if a.lost_as is None])
    if actor is not None:
        actor.is_stopped = True
        machine.say("{} is stopped", "the writer" if actor.slot is None else actor.slot.label)


def _double(machine: Machine, watch: Lookout) -> None:
    watch.doubles_next = True


def _fail_starts(machine: Machine, watch: Lookout) -> None:
    actor = _any(machine, machine.workers())
    if actor is not None:
        machine.failing_starts[actor.body._slot.label] = 1 + machine.choices.below(4)


def _end_benches(machine: Machine, watch: Lookout) -> None:
    """End every bench worker for good: none can be started again."""
    for actor in _benches(machine):
        machine.failing_starts[actor.body._slot.label] = START_ATTEMPTS
        machine.lose(actor, ActorLost("ActorDiedError"))


def _end_node(machine: Machine, watch: Lookout) -> None:
    others = machine.living[1:]  # The first node is the driver's.
    if others:
        _end(machine, others[machine.choices.below(len(others))])


def _end(machine: Machine, node: Node) -> None:
    machine.living.remove(node)
    for actor in machine.actors:
        if actor.node_id == node.node_id:
            actor.is_silent = machine.choices.chance(2)
    machine.say("node {} dies", node.node_id)


def end_what_waits(machine: Machine, watch: Lookout) -> bool:
    """End a node on which a parcel waits for a bench, in histories that have this trouble."""
    if not machine.layout.ends_what_waits or watch.rules.draining:
        return False
    full = [node for node in machine.living[1:] if node.node_id in watch.parcels.nodes()]
    if not full:
        return False
    machine.layout.ends_what_waits = False
    _end(machine, full[0])
    return True


def _add_node(machine: Machine, watch: Lookout) -> None:
    if len(machine.living) < MOST_NODES:
        node = machine.layout.make_node(machine.nodes_made)
        machine.nodes_made += 1
        machine.living.append(node)
        machine.say("node {} joins", node.node_id)


TROUBLES: tuple[Callable[[Machine, Lookout], None], ...] = (
    _kill_process,
    _kill_worker,
    _double,
    _kill_process,
    _kill_worker,
    _kill_worker_for_memory,
    _fail_starts,
    _end_node,
    _add_node,
    _end_node,
    _add_node,
    _end_benches,
    _stop_worker,
)
