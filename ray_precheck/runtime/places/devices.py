"""The devices of a machine, the choice of their kind, and the pinning of a worker to its device.

Comes in: the facts that machines report (`probe`), ids of `-d`. Goes out: `Node`s and `DeviceSlot`s, or a
`DeviceError` that lists the devices there are. Called by the session, the driver and `placement`; the
environment of a device by the worker.
"""

import itertools
import os
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ray_precheck.descriptors.descriptor import (
    find_framework,
    known_frameworks,
    versioned_distributions,
)
from ray_precheck.errors import DeviceError
from ray_precheck.runtime.places.probe import VISIBLE_DEVICES, AskedFacts, Facts, probe_machine
from ray_precheck.schema.task import BENCH, DeviceSlot

RAY_RESOURCES = {"npu": "NPU", "gpu": "GPU"}


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster: Ray's id and address, its devices, cores and software.

    `visible` are the devices of each kind in the order of their ids, each as the value of a worker's
    visible-devices variable. `cores` is the number of its processor cores, `store_bytes` the size of
    Ray's object store there, `labels` are Ray's, `versions` the versions of installed software by
    name, `names` the names of its devices by kind. `plugins` tell which framework can use which kind
    of device there, as "pytorch:npu".
    """

    node_id: str
    address: str
    visible: Mapping[str, tuple[str, ...]]
    cores: int = 0
    store_bytes: int = 0
    hostname: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    plugins: Collection[str] = ()


def usable_cores() -> int:
    """Return how many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def local_node() -> Node:
    """Return this machine, before Ray has given it an id."""
    facts = probe_machine(asked_facts())
    visible = visible_devices(facts)
    return Node(
        "",
        "127.0.0.1",
        visible,
        usable_cores(),
        hostname=socket.gethostname(),
        versions=facts["versions"],
        names=facts["names"],
        plugins=facts["plugins"],
    )


def asked_facts() -> AskedFacts:
    """Return the questions to machines about the frameworks that are known here."""
    accelerators = [each for known in known_frameworks() for each in known.accelerators]
    return {
        "distributions": list(versioned_distributions()),
        "plugins": {each.plugin: (each.package, each.files, each.text) for each in accelerators},
    }


def visible_devices(
    facts: Facts, counted: Mapping[str, int] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the devices of each kind by their ids, as a `Node` has them.

    `counted` is how many Ray counts; where it counts none the device files do. A visible-devices
    variable renumbers: it hides the others, and device 0 is the first that it names.
    """
    visible = {}
    for kind in VISIBLE_DEVICES:
        count = (counted or {}).get(kind) or facts["files"][kind]
        variable = facts["variables"].get(kind)
        names = map(str, range(count)) if variable is None else _ids_of(variable)
        visible[kind] = tuple(itertools.islice(names, count))
    return visible


def _ids_of(variable: str) -> Iterable[str]:
    ids = [part.strip() for part in variable.split(",") if part.strip()]
    # An id that does not exist, -1 by custom, hides itself and all that follow it.
    return itertools.takewhile(lambda device: not device.startswith("-"), ids)


def choose_kind(
    wanted: str, framework: str, nodes: Sequence[Node], *, device_runs: bool = True
) -> str:
    """Return the kind of device to use on these nodes: npu, gpu or cpu.

    `auto` takes the first accelerator of the framework's that a node has and can use with it, else the
    CPU, unless there is an accelerator that could be used with another package: a run on the CPU
    instead would check the wrong device. Where no device runs, the CPU will do.

    Raises:
        DeviceError: the kind that was asked for does not run this framework, or an accelerator lacks
            its package.
    """
    own = find_framework(framework)
    kinds = [each.kind for each in own.accelerators]
    if wanted not in ("auto", "cpu", *kinds):
        there = " or ".join([*kinds, "cpu"])
        a_kind = f"{'an' if wanted == 'npu' else 'a'} {wanted.upper()}"
        raise DeviceError(f"{own.title} does not run on {a_kind} here; use --device-type {there}")
    if wanted != "auto":
        return wanted
    for kind in kinds:
        if any(node.visible.get(kind) and _has_plugin(node, framework, kind) for node in nodes):
            return kind
    if device_runs:
        for kind in kinds:
            require_plugins(kind, framework, nodes)
    return "cpu"


def require_plugins(kind: str, framework: str, nodes: Iterable[Node]) -> None:
    """Require that the framework can use the accelerators of this kind that nodes have.

    Raises:
        DeviceError: a node lacks a package; names it, and how to ask for the CPU.
    """
    for node in nodes:
        count = len(node.visible.get(kind, ()))
        if kind == "cpu" or not count or _has_plugin(node, framework, kind):
            continue
        title = f"{node.hostname} ({node.address})" if node.hostname else node.address
        what = f"{count} {kind.upper()}{'s' if count > 1 else ''}"
        own = find_framework(framework)
        version = node.versions.get(own.package, "")
        release = version.partition("+")[0] or "VERSION"
        accelerator = own.accelerator(kind)
        assert accelerator is not None  # `choose_kind` lets no other kind pass.
        lacks, remedy = (
            text.replace("{version}", version or "that is there").replace("{release}", release)
            for text in (accelerator.lacks, accelerator.remedy)
        )
        raise DeviceError(
            f"{title} has {what}, but {lacks}; {remedy}, or ask for a run on the CPU with"
            " --device-type cpu"
        )


def _has_plugin(node: Node, framework: str, kind: str) -> bool:
    accelerator = find_framework(framework).accelerator(kind)
    return accelerator is not None and accelerator.plugin in node.plugins


def place_ids(kind: str, ids: Sequence[int], nodes: Sequence[Node]) -> list[DeviceSlot]:
    """Return one slot for each id of -d. The first node is the one that the driver runs on.

    On the CPU ids are logical, any number of them, dealt out over the nodes in turn. NPUs and GPUs
    are those of the driver's node.

    Raises:
        DeviceError: an id is not there; lists the ids there are.
    """
    if kind == "cpu":
        return [
            DeviceSlot(kind, device, node.node_id, node.address, "", core=position // len(nodes))
            for position, (device, node) in enumerate(
                zip(ids, itertools.cycle(nodes), strict=False)
            )
        ]
    node = nodes[0]
    visible = node.visible.get(kind, ())
    missing = [device for device in ids if device >= len(visible)]
    if missing:
        there = f"{kind} {', '.join(map(str, range(len(visible))))}" if visible else f"no {kind}"
        raise DeviceError(
            f"-d {missing[0]}: this machine ({node.address}) has {there};"
            " choose among them, or use --device-type cpu"
        )
    return [DeviceSlot(kind, i, node.node_id, node.address, visible[i]) for i in ids]


def move_slots(slots: Sequence[DeviceSlot], nodes: Sequence[Node]) -> list[DeviceSlot]:
    """Return the slots that belong on another node now, because their node is gone or another has
    joined.

    Slots of the CPU are logical: they leave dead nodes, and are dealt out again so that no node has
    two more than another. NPUs and GPUs stay where they are.
    """
    logical = [slot for slot in slots if slot.kind == "cpu"]
    counts = Counter(slot.node_id for slot in logical)
    load = {node.node_id: counts[node.node_id] for node in nodes}
    address = {node.node_id: node.address for node in nodes}
    cores = {(slot.node_id, slot.core) for slot in logical}
    moved = []
    homeless = [slot for slot in logical if slot.node_id not in load]
    housed = [slot for slot in logical if slot.node_id in load]
    for slot in [*reversed(homeless), *reversed(housed)]:
        emptiest = min(load, key=lambda node_id: load[node_id], default="")
        is_homeless = slot.node_id not in load
        if not load or not (is_homeless or load[slot.node_id] > load[emptiest] + 1):
            continue
        if not is_homeless:
            load[slot.node_id] -= 1
        load[emptiest] += 1
        core = slot.core
        if core is not None:
            core = next(c for c in itertools.count() if (emptiest, c) not in cores)
            cores = (cores - {(slot.node_id, slot.core)}) | {(emptiest, core)}
        moved.append(replace(slot, node_id=emptiest, address=address[emptiest], core=core))
    return moved


def slot_variables(slot: DeviceSlot) -> dict[str, str]:
    """Return the variables by which a process sees the slot's device alone; they must be set before it opens
    a device.

    Every kind's variable is set, so that a worker on the CPU takes no accelerator.
    """
    return {
        variable: slot.visible if kind == slot.kind else ""
        for kind, variable in VISIBLE_DEVICES.items()
    }


def pin_to_core(slot: DeviceSlot) -> None:
    """Keep a worker on the CPU, and every thread that it starts, on one core; slots take turns.

    MindSpore's own threads spin while they wait. Measured with two workers on two cores: 350 to 570
    records a second each, and 510 to 610 when each is kept on its core, for half the processor time.
    """
    if slot.kind in ("cpu", BENCH) and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        core = slot.device_id if slot.core is None else slot.core
        os.sched_setaffinity(0, {cores[core % len(cores)]})
