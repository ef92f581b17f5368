"""A `View` as JSON: the file of `--json` of every command, and what a page is made of.

Comes in: `View`s. Goes out: objects of JSON; their schema is `view.schema.json` beside this module, which
`python -m scripts.view_schema --write` makes of the nouns. Called by the commands and by the report. Rows of
tables, flows and timelines are too large for it: of a table the file is named, of the others how much there
is.

The keys are those of the nouns in `schema/view.py`, always all of them; an object with several kinds has its
kind in `kind`. A number that is NaN or infinite is null, since JSON has none of them.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.schema.view import (
    FlowGraph,
    HeatMap,
    RowTable,
    TimelineChart,
    View,
)
from ray_precheck.store.output_file import require_writable, write_report

# Another number where a key has changed its meaning; 1 was the file of `run_ut` alone.
FORMAT = 2
# How an array or a table is written; None: in the way of `--json`.
Writer = Callable[[Any], Any]


# The name that stands for the screen.
_SCREEN = Path("-")


def json_target(named: str | None) -> Path | None:
    """Return the path that `--json` names, None where it was not given.

    Raises:
        UsageError: no file can be written there once the run has ended.
    """
    path = None if named is None else Path(named)
    if path is not None and path != _SCREEN:
        require_writable("--json", path)
    return path


@contextmanager
def lines_beside(target: Path | None) -> Iterator[None]:
    """Print on standard error what is printed in this block, where standard output is that of `--json -`."""
    if target != _SCREEN:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


def views_data(views: Sequence[View]) -> dict[str, Any]:
    """Return views as `--json` has them: `format`, and `views`, the first of which is the command's own."""
    return {"format": FORMAT, "views": [plain(view) for view in views]}


def write_views(path: Path, views: Sequence[View]) -> None:
    """Write views as JSON to a file, or to the screen where it is `-`.

    Raises:
        UsageError: the file cannot be written.
    """
    text = json.dumps(views_data(views), indent=1, ensure_ascii=False) + "\n"
    if path == _SCREEN:
        print(text, end="")
        return
    write_report("--json", path, [text.encode("utf-8", "backslashreplace")])


def plain(found: Any, writer: Writer | None = None) -> Any:
    """Return a noun as an object of JSON; `writer` is asked first for every value, and gives
    `NotImplemented` where it leaves it."""
    if writer is not None and (written := writer(found)) is not NotImplemented:
        return written
    if isinstance(found, Enum):
        return found.value
    if isinstance(found, bool | str | int) or found is None:
        return found
    if isinstance(found, float):
        return found if math.isfinite(found) else None
    if isinstance(found, Path):
        return str(found)
    if isinstance(found, np.ndarray):
        return plain(found.tolist(), writer)
    if isinstance(found, HeatMap):
        links = [[*cell, name] for cell, name in found.links.items()]
        return {**_fields(found, writer, "links"), "links": links}
    if writer is None and isinstance(found, TimelineChart | FlowGraph | RowTable):
        return _sizes(found)
    if is_dataclass(found):
        return _fields(found, writer)
    if isinstance(found, Mapping):
        return {str(key): plain(value, writer) for key, value in found.items()}
    if isinstance(found, Iterable):
        return [plain(each, writer) for each in found]
    raise TypeError(f"{type(found).__name__} is no noun of a view")


def _fields(found: Any, writer: Writer | None, *left_out: str) -> dict[str, Any]:
    values = {
        each.name: plain(getattr(found, each.name), writer)
        for each in fields(found)
        if each.name not in left_out
    }
    return {"kind": type(found).__name__, **values}


def _sizes(found: TimelineChart | FlowGraph | RowTable) -> dict[str, Any]:
    kind = {"kind": type(found).__name__, "title": found.title}
    match found:
        case TimelineChart():
            return {**kind, "spans": len(found.begin), "lanes": list(found.lanes)}
        case FlowGraph():
            starts = [found.names[start] for start in found.starts]
            return {**kind, "calls": len(found.names), "edges": len(found.edges), "starts": starts}
        case RowTable():
            file = "" if found.path is None else str(found.path)
            return {**kind, "file": file, "columns": [each.heading for each in found.columns]}
