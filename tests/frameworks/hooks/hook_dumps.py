"""Reads what the hooks have written."""

import json
from pathlib import Path
from typing import Any, NamedTuple


class Read(NamedTuple):
    name: str
    values: list[Any]
    dtype: str
    shape: list[int]


def read_lines(path: str) -> list[Read]:
    """Return the lines of a dump."""
    return [Read(*json.loads(text)) for text in Path(path).read_text().splitlines()]


def names(path: str) -> list[str]:
    """Return the names in a dump without their numbers, which are 0, 1, 2, .."""
    found = [line.name.split("_", 1) for line in read_lines(path)]
    assert [int(number) for number, _ in found] == list(range(len(found)))
    return [name for _, name in found]


def by_name(path: str) -> dict[str, Read]:
    """Return the lines by their names without numbers; the last of each name."""
    return {line.name.split("_", 1)[1]: line for line in read_lines(path)}
