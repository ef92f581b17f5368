"""The slots of a run, from the devices that were asked for and the living nodes; pure.

Comes in: a `DeviceRequest` and `Node`s, the driver's first. Goes out: `DeviceSlot`s at the start,
and `Changes` whenever nodes have come or gone. Called by the session and the driver.

The names of nodes in options and messages, and the versions that differ between nodes.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ray_precheck.descriptors.descriptor import known_frameworks, versioned_distributions
from ray_precheck.errors import DeviceError, UsageError
from ray_precheck.options.shared import ALL_DEVICES, JobOptions, NodeDevices, parse_node_devices
from ray_precheck.runtime.places.devices import Node, move_slots, place_ids
from ray_precheck.runtime.places.probe import DRIVERS, PACKAGE
from ray_precheck.schema.task import DeviceSlot

_WARNING = (
    "warning: versions differ between the nodes, so a row may depend on the node that computes it:"
)
# A list of nodes in a message ends after as many.
_LISTED = 20


def node_called(option: str, name: str, nodes: Sequence[Node]) -> Node:
    """Return the node that a name means.

    Raises:
        DeviceError: no node or several are called so; lists the nodes.
    """
    meant = [node for node in nodes if is_called(node, name)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise DeviceError(
            f"{option}: {name} may be any of {listed_nodes(meant)}; name one by its address, or by"
            " a label of its own"
        )
    raise DeviceError(f"{option}: no node is called {name}; there are {listed_nodes(nodes)}")


def is_called(node: Node, name: str) -> bool:
    """Return whether a name fits a node: its host name, with or without its domain, its address,
    Ray's id, a label (`key=value`) or the value of one."""
    names = {node.hostname, node.hostname.split(".")[0], node.address, node.node_id}
    for key, value in node.labels.items():
        names |= {value, f"{key}={value}"}
    return name in names - {""}


def listed_nodes(nodes: Sequence[Node]) -> str:
    """Return nodes as a list for people: host, address, labels of the user's, devices."""
    texts = [_listed(node) for node in nodes[:_LISTED]]
    if len(nodes) > _LISTED:
        texts.append(f"{len(nodes) - _LISTED} more")
    return "; ".join(texts) or "no nodes"


def _listed(node: Node) -> str:
    own = (f"{k}={v}" for k, v in sorted(node.labels.items()) if not k.startswith("ray.io/"))
    inside = ", ".join([node.address, *own])
    counts = ((kind, len(ids)) for kind, ids in node.visible.items() if ids)
    has = ", ".join(f"{kind} {ranged(range(count))}" for kind, count in counts)
    return f"{node.hostname or 'a node'} ({inside}) with {has or 'the CPU alone'}"


def ranged(ids: Sequence[int]) -> str:
    """Return rising ids as an option takes them: `0-3,6`."""
    runs = itertools.groupby(enumerate(ids), key=lambda pair: pair[1] - pair[0])
    texts = []
    for _, run in runs:
        members = [device for _, device in run]
        texts.append(
            str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}",
        )
    return ",".join(texts)


def require_same_package(version: str, nodes: Sequence[Node]) -> None:
    """Require that every node has the version of ray_precheck that this process runs.

    Raises:
        UsageError: a node has another version or none; names the nodes and the versions.
    """
    other = [node for node in nodes if has_other_package(version, node)]
    if other:
        theirs = "; ".join(_package_of(node) for node in other[:_LISTED])
        more = f"; and {len(other) - _LISTED} more" if len(other) > _LISTED else ""
        raise UsageError(
            f"this is ray_precheck {version}, but {theirs}{more}; install {version} there, or leave"
            " these nodes out with --exclude"
        )


def has_other_package(version: str, node: Node) -> bool:
    """Return whether workers on a node would run another version of this package, or none."""
    return node.versions.get(PACKAGE) != version


def _package_of(node: Node) -> str:
    return f"{_title(node)} has {node.versions.get(PACKAGE, 'none')}"


def version_table(nodes: Sequence[Node], here: Node) -> str:
    """Return a table of the versions that differ, "" where none does; nodes alike share a column.

    `here` has the versions of this process, which may be another environment than that of its node;
    it has a column where no node is like it. A node without a driver or torch_npu is no odd one, where
    others have it.
    """
    differing = _differing([*nodes, here])
    if not differing:
        return ""
    columns: dict[tuple[str, ...], list[Node]] = {}
    for node in nodes:
        columns.setdefault(_versions_of(node, differing), []).append(node)
    heads = [
        _title(group[0]) + (f" and {len(group) - 1} more" if len(group) > 1 else "")
        for group in columns.values()
    ]
    if _versions_of(here, differing) not in columns:
        columns[_versions_of(here, differing)] = [here]
        heads.append("this command")
    rows = [["", *heads]]
    rows.extend(
        [name, *(alike[place] for alike in columns)] for place, name in enumerate(differing)
    )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join([_WARNING, *lines])


def version_differences(node: Node, others: Sequence[Node]) -> str:
    """Return which versions of a node differ from those of the first of others, "" for none."""
    if not others:
        return ""
    first = others[0]
    texts = [
        f"{name} {node.versions.get(name, 'none')} where {_title(first)} has"
        f" {first.versions.get(name, 'none')}"
        for name in _differing([first, node])
    ]
    return ", ".join(texts)


def _differing(nodes: Sequence[Node]) -> list[str]:
    compared = ("python", *versioned_distributions(), *DRIVERS)
    return [name for name in compared if _differs(name, nodes)]


def _versions_of(node: Node, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(node.versions.get(name, "-") for name in names)


def _differs(name: str, nodes: Sequence[Node]) -> bool:
    found = {node.versions.get(name, "-") for node in nodes}
    if name in DRIVERS or name in _packages_of_devices():
        found.discard("-")
    return len(found) > 1


def _packages_of_devices() -> set[str]:
    """Return the packages that a framework needs for a kind of device alone, such as torch_npu: a node
    without them is no odd one, it has no such device."""
    known = known_frameworks()
    return {
        each.package for own in known for each in own.accelerators if each.package != own.package
    } - {own.package for own in known}


def _title(node: Node) -> str:
    return f"{node.hostname} ({node.address})" if node.hostname else node.address


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """The devices that were asked for, all of one kind.

    `ids` are those of `-d`, of the driver's machine. Otherwise every device of the cluster is
    wanted (`takes_all`), or those that are `named` with their nodes. `exclude` leaves some out.
    """

    kind: str
    ids: tuple[int, ...] = ()
    takes_all: bool = False
    named: tuple[NodeDevices, ...] = ()
    exclude: tuple[NodeDevices, ...] = ()

    @classmethod
    def of(cls, config: JobOptions, kind: str) -> "DeviceRequest":
        """Return the request of a configuration for devices of this kind.

        Raises:
            UsageError: --devices or --exclude is not written as it should be.
        """
        exclude = parse_node_devices("--exclude", config.exclude) if config.exclude else ()
        if not isinstance(config.devices, str):
            return cls(kind, ids=config.devices, exclude=exclude)
        if config.devices == ALL_DEVICES:
            return cls(kind, takes_all=True, exclude=exclude)
        return cls(kind, named=parse_node_devices("--devices", config.devices), exclude=exclude)


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes to the slots of a run after nodes have come or gone.

    `moved` are known by their labels and belong on another node from now on, `added` are new,
    `lost` are all whose node is gone now, also those that were lost before.
    """

    moved: tuple[DeviceSlot, ...] = ()
    added: tuple[DeviceSlot, ...] = ()
    lost: tuple[DeviceSlot, ...] = ()


def place_slots(request: DeviceRequest, nodes: Sequence[Node]) -> list[DeviceSlot]:
    """Return the slots of a run, at least one, whose labels are unique.

    On the CPU a node has one slot, unless ids are named, which are logical there: any number.

    Raises:
        DeviceError: a node or a device is not there, or none is left; lists the devices there are.
    """
    for left_out in request.exclude:
        _require_devices("--exclude", request.kind, left_out, nodes)
    if request.ids:
        slots = _place_ids(request, nodes)
    elif request.takes_all:
        hosts = _unique_hosts(nodes, [])
        slots = [slot for node in nodes for slot in _slots_of(request, node, hosts[node.node_id])]
    else:
        slots = _place_named(request, nodes)
    if not slots:
        raise DeviceError(
            f"no {request.kind} is left to run on: there are {listed_nodes(nodes)}; name others,"
            f" exclude fewer{'' if request.kind == 'cpu' else ', or use --device-type cpu'}"
        )
    return slots


def usable_nodes(request: DeviceRequest, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes that are not left out as a whole."""
    whole = [left_out for left_out in request.exclude if left_out.ids is None]
    return [node for node in nodes if not any(is_called(node, each.name) for each in whole)]


def follow_nodes(
    request: DeviceRequest, slots: Sequence[DeviceSlot], nodes: Sequence[Node]
) -> Changes:
    """Return the changes of a run's slots now that these nodes live.

    Slots of -d on the CPU move to nodes that live and to those that join; NPUs and GPUs stay. A
    node that comes back under its name gets its slots again; where all devices are wanted, one
    that joins brings its own.
    """
    alive = {node.node_id for node in nodes}
    moved: list[DeviceSlot] = []
    added: list[DeviceSlot] = []
    if request.ids:
        moved = move_slots(slots, usable_nodes(request, nodes))
    else:
        known = {slot.label for slot in slots}
        for wanted in _wanted_anew(request, slots, nodes):
            (moved if wanted.label in known else added).append(wanted)
    housed = {slot.label for slot in moved}
    lost = (s for s in slots if s.node_id not in alive and s.label not in housed)
    return Changes(tuple(moved), tuple(added), tuple(lost))


def _place_ids(request: DeviceRequest, nodes: Sequence[Node]) -> list[DeviceSlot]:
    if request.kind != "cpu":
        slots = place_ids(request.kind, request.ids, nodes)
        return [slot for slot in slots if not _is_excluded(request, nodes[0], slot.device_id)]
    for left_out in request.exclude:
        if left_out.ids is not None:
            raise DeviceError(
                f"--exclude {left_out.name}:{ranged(left_out.ids)}: CPU ids of -d are on no node of"
                f" their own; exclude the whole node ({left_out.name}), or name ids with --devices"
            )
    usable = usable_nodes(request, nodes)
    return place_ids("cpu", request.ids, usable) if usable else []


def _place_named(request: DeviceRequest, nodes: Sequence[Node]) -> list[DeviceSlot]:
    slots: dict[tuple[str, int], DeviceSlot] = {}
    for wanted in request.named:
        node = _require_devices("--devices", request.kind, wanted, nodes)
        host = wanted.name if len(nodes) > 1 else ""
        for slot in _slots_of(request, node, host, wanted.ids):
            twice = slots.setdefault((node.node_id, slot.device_id), slot)
            if twice is not slot:
                raise DeviceError(
                    f"--devices: {twice.label} and {slot.label} are the same device of"
                    f" {listed_nodes([node])}; name it once"
                )
    return list(slots.values())


def _require_devices(option: str, kind: str, wanted: NodeDevices, nodes: Sequence[Node]) -> Node:
    """Return the node that is meant, which has the devices that are named.

    Raises:
        DeviceError: there is no such node or device; lists the nodes or devices there are.
    """
    node = node_called(option, wanted.name, nodes)
    if kind == "cpu":
        return node
    there = range(len(node.visible.get(kind, ())))
    missing = [device for device in wanted.ids or () if device not in there]
    if missing:
        has = f"{kind} {ranged(there)}" if there else f"no {kind}"
        raise DeviceError(
            f"{option} {wanted.name}:{missing[0]}: that node has {has}; there are"
            f" {listed_nodes(nodes)}"
        )
    return node


def _slots_of(
    request: DeviceRequest, node: Node, host: str, ids: Sequence[int] | None = None
) -> Iterator[DeviceSlot]:
    """Yield the slots of a node: those ids (None: all of them), without the excluded ones."""
    kind = request.kind
    visible = node.visible.get(kind, ())
    if ids is None:
        ids = range(1 if kind == "cpu" else len(visible))
    for position, device in enumerate(d for d in ids if not _is_excluded(request, node, d)):
        if kind == "cpu":
            yield DeviceSlot(kind, device, node.node_id, node.address, "", host, position)
        else:
            yield DeviceSlot(kind, device, node.node_id, node.address, visible[device], host)


def _is_excluded(request: DeviceRequest, node: Node, device: int) -> bool:
    return any(
        is_called(node, left_out.name) and (left_out.ids is None or device in left_out.ids)
        for left_out in request.exclude
    )


def _wanted_anew(
    request: DeviceRequest, slots: Sequence[DeviceSlot], nodes: Sequence[Node]
) -> Iterator[DeviceSlot]:
    """Yield the slots of the nodes that have none of these slots; hosts keep their names."""
    homes = {slot.node_id for slot in slots}
    fresh = [node for node in nodes if node.node_id not in homes]
    if request.takes_all:
        names = _unique_hosts(nodes, slots)
        for node in fresh:
            yield from _slots_of(request, node, names[node.node_id])
        return
    for wanted in request.named:
        meant = [node for node in nodes if is_called(node, wanted.name)]
        if len(meant) == 1 and meant[0] in fresh:
            there = len(meant[0].visible.get(request.kind, ()))
            ids = wanted.ids
            if ids is not None and request.kind != "cpu":  # It may come back with fewer.
                ids = tuple(device for device in ids if device < there)
            yield from _slots_of(request, meant[0], wanted.name, ids)


def _unique_hosts(nodes: Sequence[Node], slots: Sequence[DeviceSlot]) -> dict[str, str]:
    """Return the name of each node in labels, by its id; nodes with slots keep their names.

    The name is the host name if no other node has it, else the address, else the address with Ray's
    id. A name of a node that is gone is taken first, because the node may have come back. The only
    node at the start is called "".
    """
    if len(nodes) == 1 and not slots:
        return {nodes[0].node_id: ""}
    ids = {node.node_id for node in nodes}
    hosts = {slot.node_id: slot.host for slot in slots if slot.node_id in ids}
    gone = {slot.host for slot in slots if slot.node_id not in ids}
    shared = Counter(name for node in nodes for name in {node.hostname, node.address})
    for node in nodes:
        if node.node_id in hosts:
            continue
        names = [
            name
            for name in (node.hostname, node.address)
            if name and shared[name] == 1 and name not in hosts.values()
        ]
        names.sort(key=lambda name: name not in gone)
        hosts[node.node_id] = names[0] if names else f"{node.address}-{node.node_id[:8]}"
    return hosts
