"""What a capture says of the values of one call, as facts of a card.

Comes in: the path of a dump.json, or of the log of a capture that was cut off, and the key of a record. Goes
out: the record, and a `Fact` for each of its values. Called by the `report.py` of commands for the few calls
that have a card. The dump is not parsed: the bytes of the one record are looked for, so that a card of a dump
of a gigabyte takes a second.
"""

import json
import math
import mmap
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ray_precheck.foreign import from_json, open_file, read_file
from ray_precheck.schema.view import Fact, NotCompared
from ray_precheck.trace.items import Item, items_of
from ray_precheck.trace.side import LARGEST_RECORD_BYTES, MODULE_PREFIXES, unseen_from_json
from ray_precheck.trace.sources import CONSTRUCT_FILE

_FIRST_BYTES = 1 << 16
# As many arguments as a card has lines for; an optimizer's step has thousands.
_MOST_FACTS = 16
_LONGEST_VALUE = 120


def unseen_in(dumps: Iterable[Path]) -> tuple[NotCompared, ...]:
    """Return what captures say in their headers of places of the step that they did not see."""
    found = [unseen_from_json(record_in(dump, "dark", most_bytes=_FIRST_BYTES)) for dump in dumps]
    total = sum(max(0, each.total) for each in found)
    places = tuple(dict.fromkeys(place for each in found for place in each.places))
    return (
        (NotCompared("places that the capture did not see", total, places[:20]),) if total else ()
    )


def record_in(dump: Path, key: str, *, most_bytes: int = sys.maxsize) -> Mapping[str, Any]:
    """Return the record of a key, decoded; an empty mapping where the dump lacks it or cannot be read. It is
    looked for in the first `most_bytes`."""
    pattern = re.compile(re.escape(json.dumps(key).encode()) + rb"\s*:\s*(?=\{)")
    try:
        with (
            open_file(dump) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            found = pattern.search(data, 0, min(most_bytes, len(data)))
            return {} if found is None else _decoded(data, found.end())
    except (OSError, ValueError):  # ValueError: an empty file
        return {}


def _decoded(data: mmap.mmap, start: int) -> Mapping[str, Any]:
    """Return the object that begins at a place, {} for one that is torn or too large."""
    length = _FIRST_BYTES
    while True:
        text = data[start : start + length].decode("utf-8", "replace")
        try:
            found = json.JSONDecoder().raw_decode(text)[0]
        except (ValueError, RecursionError):
            if length >= LARGEST_RECORD_BYTES or start + length >= len(data):
                return {}
            length *= 8
            continue
        return found if isinstance(found, dict) else {}


def value_facts(record: Mapping[str, Any], part: str) -> tuple[Fact, ...]:
    """Return dtype, shape, layout and statistics of the values of a part of a record, such as
    `trace.items.INPUT`; of more than 16 values the first, and how many there are more."""
    items = [each for each in items_of(record) if each.part == part]
    facts = [Fact(each.path, value_text(each)) for each in items[:_MOST_FACTS]]
    if len(items) > _MOST_FACTS:
        facts.append(Fact("...", f"and {len(items) - _MOST_FACTS} more"))
    return tuple(facts)


def value_text(item: Item) -> str:
    """Return what is known of a value: `float32 [4, 8], max 2, min -1, mean 0.5, norm 3`."""
    if not item.is_tensor:
        value = item.statistic("value")
        text = item.type_name if value is None else f"{item.type_name} {value}"
        return text[:_LONGEST_VALUE] or "None"
    said = [f"{item.dtype.rpartition('.')[2]} {list(item.shape or ())}"]
    stride = item.statistic("stride")
    if isinstance(stride, list):
        said.append(f"strides {stride}"[:_LONGEST_VALUE])
    named = zip(("max", "min", "mean", "norm"), (*item.ends, item.mean, item.norm), strict=True)
    said += [f"{name} {value:.6g}" for name, value in named if value is not None]
    return ", ".join([*said, *_health(item)])


def _health(item: Item) -> list[str]:
    """Return how many values are NaN, infinite, zero or subnormal, where the capture has counted them."""
    found = item.statistic("health")
    if not isinstance(found, dict):
        return []
    counts = {str(name): each for name, each in found.items() if isinstance(each, int | float)}
    room = counts.pop("headroom", None)
    said = [f"{count:g} {name}" for name, count in counts.items() if count and math.isfinite(count)]
    return said if room is None else [*said, f"{room:g} powers of two below the dtype's limit"]


def module_parents(dump: Path) -> dict[str, str]:
    """Return the module around each record and module of a dump, by their keys, as the construct.json beside
    it says; "" for a root, {} where there is no such file."""
    try:
        found = from_json(read_file(dump.parent / CONSTRUCT_FILE))
    except (OSError, ValueError):
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    firsts = (
        (key, next(iter(each), "") if isinstance(each, list) else each) for key, each in pairs
    )
    return {key: each if isinstance(each, str) else "" for key, each in firsts}


def is_module(key: str) -> bool:
    """Return whether a key is that of a module, not of a call."""
    return key.startswith(MODULE_PREFIXES)
