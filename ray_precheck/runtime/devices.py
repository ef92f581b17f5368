"""Which devices there are, and how a worker is pinned to one.

Comes in: the ids that were asked for and the nodes of the cluster. Goes out: `DeviceSlot`s, or a
`DeviceError` that lists what there is. Called by the driver; the environment by the worker.
"""

import glob
import importlib.metadata
import importlib.util
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ray_precheck.errors import DeviceError
from ray_precheck.schema.task import DeviceSlot

VISIBLE_DEVICES = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "gpu": "CUDA_VISIBLE_DEVICES"}
_DEVICE_FILES = {"npu": "/dev/davinci[0-9]*", "gpu": "/dev/nvidia[0-9]*"}
RAY_RESOURCES = {"npu": "NPU", "gpu": "GPU"}
# Processes that a worker keeps ready for one that breaks: a second one takes memory of a device.
DEFAULT_SPARES = {"cpu": 1, "npu": 0, "gpu": 0}


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster: Ray's id and address, and how many devices of each kind it has.

    `cores` is the number of its processor cores, `store_bytes` the size of Ray's object store there.
    """

    node_id: str
    address: str
    devices: dict[str, int]
    cores: int = 0
    store_bytes: int = 0


def local_devices() -> dict[str, int]:
    """Return how many NPUs and GPUs this machine lets us see.

    A visible-devices variable that is already set hides the others, as it does for frameworks.
    """
    counts = {}
    for kind, pattern in _DEVICE_FILES.items():
        visible = _visible_ids(kind)
        there = len(glob.glob(pattern))
        counts[kind] = there if visible is None else min(there, len(visible))
    return counts


def choose_kind(wanted: str, framework: str, devices: dict[str, int]) -> str:
    """Return the kind of device to use: npu, gpu or cpu.

    `auto` takes an NPU where there is one, else (PyTorch built for CUDA) a GPU, else the CPU.

    Raises:
        DeviceError: the kind that was asked for does not run this framework.
    """
    if wanted == "gpu" and framework == "mindspore":
        raise DeviceError("MindSpore does not run on a GPU here; use --device-type npu or cpu")
    if wanted != "auto":
        return wanted
    if devices.get("npu") and (framework == "mindspore" or importlib.util.find_spec("torch_npu")):
        return "npu"
    if devices.get("gpu") and framework == "pytorch" and not _torch_is_cpu_only():
        return "gpu"
    return "cpu"


def _torch_is_cpu_only() -> bool:
    try:
        return "+cpu" in importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return True


def place_slots(kind: str, ids: Sequence[int], nodes: Sequence[Node]) -> list[DeviceSlot]:
    """Return one slot for each id. The first node is the one that the driver runs on.

    On the CPU ids are logical, any number of them, dealt out over the nodes in turn. NPUs and GPUs
    are those of the driver's node.

    Raises:
        DeviceError: an id is not there; says which are.
    """
    if kind == "cpu":
        dealt = [nodes[position % len(nodes)] for position in range(len(ids))]
        return [
            DeviceSlot(kind, i, n.node_id, n.address, "") for i, n in zip(ids, dealt, strict=True)
        ]
    node = nodes[0]
    visible = _visible_ids(kind)
    count = node.devices.get(kind, 0)
    if visible is not None:
        count = min(count, len(visible))
    missing = [device for device in ids if device >= count]
    if missing:
        there = f"{kind} {', '.join(map(str, range(count)))}" if count else f"no {kind}"
        raise DeviceError(
            f"-d {missing[0]}: this machine ({node.address}) has {there};"
            " choose among them, or use --device-type cpu"
        )
    names = {device: str(device) if visible is None else visible[device] for device in ids}
    return [DeviceSlot(kind, i, node.node_id, node.address, names[i]) for i in ids]


def move_slots(slots: Sequence[DeviceSlot], nodes: Sequence[Node]) -> list[DeviceSlot]:
    """Return the slots that belong on another node now: theirs is gone, or one has joined.

    Slots of the CPU are logical: they leave dead nodes, and are dealt out again so that no node has
    two more than another. NPUs and GPUs stay where they are.
    """
    load = {node.node_id: 0 for node in nodes}
    logical = [slot for slot in slots if slot.kind == "cpu"]
    for slot in logical:
        if slot.node_id in load:
            load[slot.node_id] += 1
    address = {node.node_id: node.address for node in nodes}
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
        moved.append(replace(slot, node_id=emptiest, address=address[emptiest]))
    return moved


def pin_process(slot: DeviceSlot) -> None:
    """Let this process see the slot's device alone; must run before the framework is imported.

    Every kind's variable is set, so that a worker on the CPU takes no accelerator.
    """
    for kind, variable in VISIBLE_DEVICES.items():
        os.environ[variable] = slot.visible if kind == slot.kind else ""


def pin_to_core(slot: DeviceSlot) -> None:
    """Keep a worker on the CPU, and every thread that it starts, on one core; slots take turns.

    MindSpore's own threads spin while they wait. Measured with two workers on two cores: 350 to 570
    records a second each, and 510 to 610 when each is kept on its core, for half the processor time.
    """
    if slot.kind == "cpu" and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[slot.device_id % len(cores)]})


def _visible_ids(kind: str) -> list[str] | None:
    """Return the ids that the user's variable lets through, None where it is not set."""
    text = os.environ.get(VISIBLE_DEVICES[kind])
    if text is None:
        return None
    ids = [part.strip() for part in text.split(",") if part.strip()]
    # An id that does not exist, -1 by custom, hides itself and all that follow it.
    return list(itertools.takewhile(lambda device: not device.startswith("-"), ids))
