"""What a run has found, kept as JSON beside its tables, for its `View`.

Comes in: a frozen dataclass at the end of a run. Goes out: a file, and its content. Called by commands whose
tables do not tell everything that they print.
"""

import json
from contextlib import suppress
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

from ray_precheck.foreign import from_json, read_file
from ray_precheck.store.tables import replace_file


def keep_found(path: Path, found: Any, version: int) -> None:
    """Write a dataclass, enums by their names; where the file cannot be written the run has none."""
    text = json.dumps({"format": version, **asdict(found)}, indent=1, default=_name)
    with suppress(OSError):
        replace_file(path, [text.encode(errors="backslashreplace"), b"\n"])


def _name(value: Enum) -> str:
    return value.name


def kept_found(path: Path, version: int) -> dict[str, Any] | None:
    """Return the fields that a file keeps, with tuples in the place of lists; None where it is not there, is
    torn, or of another version."""
    try:
        found = from_json(read_file(path))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.pop("format", None) != version:
        return None
    return {str(key): _tuples(value) for key, value in found.items()}


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
