"""Captures that hold less: the same step without tensors, or without tensors and sketches.

Comes in: the dump.json of a capture with both. Goes out: the dump.json of a copy without files of tensors
(sketches stay), or of one with statistics alone. Called by `locating`.
"""

import json
import os
from pathlib import Path
from typing import Any

SKETCHES, STATISTICS = "sketches", "statistics"
_LEFT_OUT = {
    SKETCHES: frozenset({"data_name"}),
    STATISTICS: frozenset({"data_name", "sketch", "health"}),
}
_SKETCH_FILE = "sketches.npy"
_OTHER_FILES = ("stack.json", "construct.json")


def twin_of(dump: Path, holds: str, folder: Path) -> Path:
    """Make a copy of a capture that holds sketches or statistics alone; return its dump.json."""
    path = folder / dump.parent.parent.name / dump.parent.name / dump.name
    if path.exists():
        return path
    path.parent.mkdir(parents=True)
    content = json.loads(dump.read_bytes())
    header = {**content, "task": "statistics", "dump_data_dir": None}
    header["data"] = _without(content["data"], _LEFT_OUT[holds])
    path.write_text(json.dumps(header), encoding="utf-8")
    others = (*_OTHER_FILES, *([_SKETCH_FILE] if holds == SKETCHES else []))
    for name in others:
        if (dump.parent / name).exists():
            os.link(dump.parent / name, path.parent / name)
    return path


def _without(value: Any, fields: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(each, fields) for name, each in value.items() if name not in fields}
    if isinstance(value, list):
        return [_without(each, fields) for each in value]
    return value
