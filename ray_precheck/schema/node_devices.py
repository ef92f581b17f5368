"""Devices of a cluster, as a user names them with their nodes: `DEVICE_GRAMMAR`.

Comes in: the value of --devices or --exclude. Goes out: its nodes, each with ids of devices. Called by
the configuration, to validate the value, and by the placement.
"""

import re
from dataclasses import dataclass

from ray_precheck.errors import UsageError

LARGEST_DEVICE_ID = 4095
DEVICE_GRAMMAR = "NODE[:IDS],..., where IDS are 0-7 or 0,2,4-6, as in node-a:0-3,6,node-b:0"
_IDS = re.compile(r"([0-9]+)(?:-([0-9]+))?")


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Devices of one node, as an option names them: the node's name, and ids in their order.

    `ids` None means every device of the node.
    """

    name: str
    ids: tuple[int, ...] | None


def parse_node_devices(option: str, text: str) -> tuple[NodeDevices, ...]:
    """Return the nodes that a value of --devices or --exclude names, each with its ids.

    Commas part items. An item that is a number or a range belongs to the last `NODE:` before it,
    every other one begins a node, whose ids stand after its last colon; an IPv6 address is written
    in brackets.

    Raises:
        UsageError: an item is neither, an id is out of range or stands twice; says the grammar.
    """
    names: list[str] = []
    ids: dict[str, list[int] | None] = {}
    for item in (part.strip() for part in text.split(",")):
        if not item:
            raise _wrong_item(option, text, "a comma has nothing beside it")
        name, numbers = _split_item(item)
        if not name:
            if not names or ids[names[-1]] is None:
                raise _wrong_item(option, item, "no NODE: stands before it")
            name = names[-1]
        elif name in ids:
            raise _wrong_item(option, item, f"{name} is named twice")
        else:
            names.append(name)
            ids[name] = None if numbers is None else []
        there = ids[name]
        if there is not None and numbers is not None:
            there.extend(_parse_ids(option, item, numbers, there))
    return tuple(
        NodeDevices(name, None if (found := ids[name]) is None else tuple(found)) for name in names
    )


def _split_item(item: str) -> tuple[str, str | None]:
    """Return the node's name and the ids of an item; "" for no name, None for no ids."""
    if _IDS.fullmatch(item):
        return "", item
    name, colon, numbers = item.rpartition(":")
    if not colon or item.endswith("]"):
        return item.strip("[]"), None
    return name.strip("[]"), numbers


def _parse_ids(option: str, item: str, numbers: str, before: list[int]) -> list[int]:
    match = _IDS.fullmatch(numbers)
    if match is None:
        raise _wrong_item(option, item, f"{numbers!r} is no id and no range")
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last <= LARGEST_DEVICE_ID:
        raise _wrong_item(option, item, f"ids rise, from 0 to {LARGEST_DEVICE_ID}")
    found = list(range(first, last + 1))
    twice = sorted(set(found) & set(before))
    if twice:
        raise _wrong_item(option, item, f"id {twice[0]} is named twice")
    return found


def _wrong_item(option: str, item: str, why: str) -> UsageError:
    return UsageError(f"{option}: {item!r} is wrong: {why}; expected {DEVICE_GRAMMAR}")
