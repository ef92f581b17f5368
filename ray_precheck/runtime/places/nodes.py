"""The names of nodes in options and messages, and the versions that differ between nodes.

Comes in: `Node`s, and names that options give them. Goes out: the node of that name, or a
`DeviceError` that lists the nodes; the table of versions that differ; a `UsageError` for another
version of this package. Called by the session and `placement`.
"""

import itertools
from collections.abc import Sequence

from ray_precheck.descriptors.descriptor import known_frameworks, versioned_distributions
from ray_precheck.errors import DeviceError, UsageError
from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.places.probe import DRIVERS, PACKAGE

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
