"""The HTML file of a report: `page.html`, made of `web/`, with the data of views in it.

Comes in: views. Goes out: one file that needs no network and no server. Called by the command, and by
`follow` for what has changed.

No text of a dump can run as a script: all data stands in elements of a type that no browser runs, names and
messages become text nodes, and the page's content security policy allows the bundle's hash alone.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck import __version__
from ray_precheck.commands.report.encode import PageBlobs, cut_text, encode_table
from ray_precheck.foreign import read_file
from ray_precheck.running.view_data import FORMAT, plain
from ray_precheck.schema.view import (
    BlockMaxima,
    ChartLine,
    FlowGraph,
    HeatMap,
    RowTable,
    TimelineChart,
    View,
)
from ray_precheck.store.output_file import write_report

_PLACE = "<!-- report -->"
# A browser needs seconds for a name of 1,000,000 characters, and axe minutes.
_LONGEST_TEXT = 10_000


@dataclass(frozen=True, slots=True)
class PageData:
    """What the script of the page reads: `report`, an object of JSON, and the texts of its `blobs`."""

    report: dict[str, Any]
    blobs: list[str] = field(default_factory=list)


def page_data(
    views: Sequence[View], of: Sequence[str], *, follow_s: float | None = None
) -> PageData:
    """Return the data of a page; the files of tables are read here. `of` are the folders of the report,
    `follow_s` is how often the page asks for something new, None for never."""
    blobs = PageBlobs()

    def written(found: Any) -> Any:
        match found:
            case RowTable():
                return encode_table(found, blobs)
            case FlowGraph():
                return {
                    "kind": "FlowGraph",
                    "title": found.title,
                    "unit": found.unit,
                    "names": blobs.strings(found.names),
                    "tones": blobs.array(found.tones),
                    "own": blobs.array(found.own.astype(np.float32)),
                    "inherited": blobs.array(found.inherited.astype(np.float32)),
                    "edges": blobs.array(found.edges),
                    "pairs": blobs.array(found.pairs),
                    "starts": list(found.starts),
                    "texts": blobs.strings(found.texts or [""] * len(found.names)),
                    "links": blobs.strings(found.links) if found.links else None,
                }
            case TimelineChart():
                return {
                    "kind": "TimelineChart",
                    "title": found.title,
                    "lanes": list(found.lanes),
                    "lane": blobs.codes(found.lane, len(found.lanes)),
                    "begin": blobs.array(found.begin),
                    "length": blobs.array(found.length.astype(np.float32)),
                    "names": blobs.strings(found.names),
                    "name": blobs.codes(found.name, len(found.names)),
                    "stages": list(found.stages),
                    "stage": blobs.codes(found.stage, len(found.stages)),
                    "marks": [list(mark) for mark in found.marks],
                }
            case HeatMap() | BlockMaxima():
                # JSON has no word for infinity, the worst there is: the largest number stands for it
                # (`INFINITE` in web/src/charts/scale.ts). NaN stays "nothing here".
                return plain(replace(found, values=np.nan_to_num(found.values, nan=np.nan)))
            case ChartLine():
                return plain(found)
        return NotImplemented

    made = {
        "version": __version__,
        "when": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "of": list(of),
    }
    report = {
        "format": FORMAT,
        "made": made,
        "views": [_short(plain(view, written)) for view in views],
        "follow": None if follow_s is None else {"every_s": follow_s},
    }
    return PageData(report, blobs.texts)


def _short(found: Any) -> Any:
    """Return an object of JSON with no text longer than a person reads."""
    match found:
        case str():
            return cut_text(found, _LONGEST_TEXT)
        case dict():
            return {key: _short(value) for key, value in found.items()}
        case list():
            return [_short(value) for value in found]
    return found


def page_pieces(data: PageData) -> Iterator[bytes]:
    """Yield the page piece by piece."""
    text = read_file(Path(__file__).with_name("page.html")).decode()
    before, _, after = text.partition(_PLACE)
    if data.report["follow"] is not None:
        # The only page that asks anything: of the server that gave it.
        before = before.replace("connect-src 'none'", "connect-src 'self'", 1)
    yield before.encode()
    yield b'<script type="application/json" id="report">'
    yield script_json(data.report)
    yield b"</script>\n"
    for number, packed in enumerate(data.blobs):
        yield f'<script type="text/plain" id="b{number}">'.encode()
        yield packed.encode()
        yield b"</script>\n"
    yield after.encode()


def script_json(found: Any) -> bytes:
    """Return JSON that no parser of HTML takes for the end or the begin of anything."""
    text = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text.encode("utf-8", "backslashreplace")


def write_report_page(path: Path, views: Sequence[View], of: Sequence[str]) -> None:
    """Write the page of views.

    Raises:
        UsageError: the file cannot be written; one that was there is as it was.
    """
    write_report("-o", path, page_pieces(page_data(views, of)))
