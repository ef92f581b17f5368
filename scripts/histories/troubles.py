"""What befalls the workers and the nodes of a simulated driver, beside what records do to them.

Comes in: a `Crew`, at a moment that the history has chosen. Called by `histories_world.py`.
"""

from collections.abc import Callable

from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.scheduling.commands import Record
from ray_precheck.schema.casualty import Cause
from scripts.histories.layout import MOST_NODES, make_node
from scripts.histories.rules import Flight, require
from scripts.histories.workers import Crew, Process


def _any_busy(crew: Crew) -> Flight | None:
    flights = crew.busy()
    return flights[crew.choices.below(len(flights))] if flights else None


def _any_idle(crew: Crew) -> tuple[str, Process] | None:
    idle = [
        (label, process)
        for label, process in crew.processes.items()
        if process is not None and label not in crew.flights
    ]
    return idle[crew.choices.below(len(idle))] if idle else None


def _kill_process(crew: Crew) -> None:
    flight = _any_busy(crew)
    if flight is not None:
        flight.killed_at = crew.choices.below(len(flight.tasks))
        crew.say("the process of {} is killed", flight.slot)


def _kill_idle_process(crew: Crew) -> None:
    idle = _any_idle(crew)
    if idle is not None:
        idle[1].killed = True


def _kill_worker(crew: Crew) -> None:
    flight = _any_busy(crew)
    if flight is not None:
        flight.lost = "its worker was killed"


def _kill_worker_for_memory(crew: Crew) -> None:
    flight = _any_busy(crew)
    if flight is not None:
        flight.lost, flight.cause = "ran out of memory", Cause.OUT_OF_MEMORY


def _kill_idle_worker(crew: Crew) -> None:
    """Kill a worker that is idle; the driver knows at once, or when it sends the next batch."""
    idle = _any_idle(crew)
    if idle is None:
        return
    label, process = idle
    if crew.choices.chance(2):
        process.actor_lost = True
        return
    crew.say("{} is lost while it is idle", label)
    crew.dismiss(label)
    crew.rules.reasons_to_start += 1
    commands = crew.scheduler.worker_lost(label, 0, "its worker was killed")
    require(not any(isinstance(c, Record) for c in commands), "blamed for an idle worker")
    crew.carry_out(commands)


def _double(crew: Crew) -> None:
    crew.doubles_next = True


def _fail_starts(crew: Crew) -> None:
    labels = list(crew.slots)
    label = labels[crew.choices.below(len(labels))]
    crew.failing_starts[label] = 1 + crew.choices.below(4)


def _end_node(crew: Crew) -> None:
    others = crew.nodes[1:]  # The first one is the driver's.
    if others:
        _end(crew, others[crew.choices.below(len(others))])


def _end(crew: Crew, node: Node) -> None:
    crew.nodes.remove(node)
    crew.alive = [each.node_id for each in crew.nodes]
    crew.say("node {} dies", node.node_id)


def end_what_waits(crew: Crew) -> bool:
    """End a node, if that is to be, as soon as something waits there for a bench."""
    full = [node for node in crew.nodes[1:] if node.node_id in crew.parcels.nodes()]
    if not (crew.ends_what_waits and full):
        return False
    crew.ends_what_waits = False
    _end(crew, full[0])
    crew.see_nodes()
    return True


def _add_node(crew: Crew) -> None:
    if len(crew.nodes) < MOST_NODES:
        node = make_node(crew.nodes_made)
        crew.nodes_made += 1
        crew.nodes.append(node)
        crew.alive = [*crew.alive, node.node_id]
        crew.say("node {} joins", node.node_id)


def _revive(crew: Crew) -> None:
    """A device that was given up, or that is idle, is there anew."""
    idle = _any_idle(crew)
    labels = [*sorted(crew.given_up), *([idle[0]] if idle else [])]
    if labels:
        label = labels[0]
        crew.say("{} is revived", label)
        crew.rules.reasons_to_start += 2
        crew.carry_out(crew.scheduler.revive(label, crew.slots[label].place))


TROUBLES: tuple[Callable[[Crew], None], ...] = (
    _kill_process,
    _kill_worker,
    _double,
    _kill_idle_process,
    _kill_idle_worker,
    _kill_worker_for_memory,
    _fail_starts,
    _end_node,
    _add_node,
    _revive,
    lambda crew: crew.benches.kill(),
    lambda crew: crew.benches.fail_starts(),
    lambda crew: crew.benches.end_all(),
)
