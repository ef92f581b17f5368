"""How large is the page of a million rows, how long does it take to write, to open and to search?

    python -m scripts.report_size [--rows 1000000] [--calls 100000] [--browser chromium]

Comes in: nothing. Goes out: a table of what was measured beside its bounds, and exit code 1 where one is not
met. The rows are like those of a precheck's details, nine columns; the graph is the flow of a run with an
error in the middle. tests/web has a short form.
"""

import argparse
import contextlib
import csv
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from ray_precheck.commands.report.page import write_report_page
from ray_precheck.schema.view import (
    CellKind,
    FlowGraph,
    RowColumn,
    RowTable,
    Tone,
    View,
    ViewState,
)
from ray_precheck.store.tables import DETAIL_COLUMNS
from scripts.browser import Browser, missing
from scripts.measuring import machine, markdown_table, ran

_NUMBERS = ("Cosine", "MaxAbsErr", "MaxRelativeErr")
_NAME, _STATUS = "API Name", "Status"
_TONES = {"pass": Tone.PASS, "error": Tone.ERROR, "warning": Tone.WARNING, "SKIP": Tone.SKIP}
# Rows that are made at once.
_PIECE = 50_000
# The bounds: bytes of the page, seconds and MiB of writing it, seconds of the browser.
_MOST_MB, _WRITE_S, _WRITE_MIB, _VIEW_S, _SEARCH_S, _GRAPH_S = 20.0, 40.0, 1024.0, 2.0, 0.5, 2.0
# From typing to the count of the rows found, which the page says.
_SEARCH = """
new Promise((done) => {
  const [box, text] = [document.querySelector(".row-tools input"), %r];
  const begin = performance.now();
  const look = () => document.querySelector(".row-count").textContent.includes(`have "${text}"`)
    ? done((performance.now() - begin) / 1000) : requestAnimationFrame(look);
  box.value = text;
  box.dispatchEvent(new InputEvent("input", { bubbles: true }));
  look();
})
"""
_SORT = """
new Promise((done) => {
  const first = () => document.querySelector("regular-table tbody tr").textContent;
  const begin = performance.now();
  const before = first();
  const look = () => first() === before && performance.now() - begin < 60000
    ? requestAnimationFrame(look) : done((performance.now() - begin) / 1000);
  [...document.querySelectorAll("regular-table th button")].find((each) => each.textContent === %r).click();
  look();
})
"""


@dataclass(frozen=True, slots=True)
class _Measured:
    """A figure, its unit, and the bound that it must not exceed, None for none."""

    what: str
    value: float
    unit: str
    most: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether it is within its bound."""
        return self.most is None or self.value <= self.most


def write_rows(path: Path, rows: int) -> None:
    """Write a table like a precheck's details: of 200 APIs; one row in 1,000 is in error."""
    random = np.random.default_rng(0)
    apis = [
        f"{kind}.{name}{n}"
        for kind in ("Mint", "Torch")
        for name in ("mul", "add")
        for n in range(50)
    ]
    shapes = [f"({a}, {b})" for a in (1, 8, 4096) for b in range(16, 1600, 16)]
    dtypes = ("torch.bfloat16", "torch.float16", "torch.float32")
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(DETAIL_COLUMNS)
        for begin in range(0, rows, _PIECE):
            count = min(_PIECE, rows - begin)
            picked = random.integers(0, 1 << 30, (3, count)).tolist()
            errors = 10 ** random.normal(-5, 2, (2, count))
            cosines = 1 - 10 ** random.normal(-7, 2, count)
            wrong = random.random(count) < 1e-3
            for i in range(count):
                at = begin + i
                call = f"{apis[picked[0][i] % 200]}.{at // 4}.{('forward', 'backward')[at % 2]}"
                dtype = dtypes[picked[1][i] % 3]
                status = "error" if wrong[i] else "pass"
                message = f"MaxAbsErr is {errors[0, i]:.3g}, above 0.001" if wrong[i] else ""
                writer.writerow(
                    (
                        f"{call}.output.{at % 3}",
                        "torch.float64",
                        dtype,
                        shapes[picked[2][i] % len(shapes)],
                        repr(cosines[i]),
                        repr(errors[0, i]),
                        repr(errors[1, i]),
                        status,
                        message,
                    )
                )


def rows_view(path: Path) -> View:
    """Return a view of the table."""
    kinds = {_NAME: CellKind.NAME, _STATUS: CellKind.TONE} | dict.fromkeys(
        _NUMBERS, CellKind.NUMBER
    )
    columns = tuple(RowColumn(each, kinds.get(each, CellKind.TEXT)) for each in DETAIL_COLUMNS)
    table = RowTable("details", columns, path, tones=_TONES)
    return View(
        "run_ut", "many rows", "Some are in error.", Tone.ERROR, ViewState.FINISHED, tables=(table,)
    )


def graph_view(calls: int) -> View:
    """Return a view of the flow of a run, each of whose calls takes from two before it."""
    random = np.random.default_rng(0)
    index = np.arange(calls)
    start = calls // 2
    behind = np.maximum(index[1:] - random.integers(1, 40, calls - 1), 0)
    edges = np.concatenate([np.stack([index[:-1], index[1:]], 1), np.stack([behind, index[1:]], 1)])
    graph = FlowGraph(
        "The error along the data flow",
        "relative error",
        tuple(f"Torch.add.{at}.forward" for at in range(calls)),
        np.where(index == start, 2, np.where(index > start, 1, 0)).astype(np.uint8),
        np.where(index == start, 3.0, 10 ** random.normal(-6, 1, calls)),
        np.where(index > start, 0.5, 1e-7),
        edges.astype(np.int64),
        np.empty((0, 2), np.int64),
        (start,),
        tuple(f"call {at}" for at in range(calls)),
    )
    return View(
        "locate", "many calls", "One differs.", Tone.ERROR, ViewState.FINISHED, model=(graph,)
    )


def _measured_rows(folder: Path, rows: int, browser: Browser) -> Iterator[_Measured]:
    page, table = folder / "rows.html", folder / "rows.csv"
    write_rows(table, rows)
    yield _Measured("the CSV file", table.stat().st_size / 1e6, "MB")
    used = ran("scripts.report_size", "--write", table, "--page", page)
    yield _Measured("the page", page.stat().st_size / 1e6, "MB", _MOST_MB)
    yield _Measured("writing it", used.wall_s, "s", _WRITE_S)
    yield _Measured("memory of writing it", float(used.printed.split()[-1]), "MiB", _WRITE_MIB)
    yield _Measured("its first view", browser.open(page), "s", _VIEW_S)
    began = time.monotonic()
    browser.js("document.querySelector('#rows > button')?.click()")
    browser.wait("document.querySelectorAll('regular-table tbody tr').length > 5", 120)
    yield _Measured("its rows, when asked for", time.monotonic() - began, "s")
    for text in ("mul49.12", "no such text", "0.00", "e"):
        yield _Measured(f'search "{text}"', float(browser.js(_SEARCH % text)), "s", _SEARCH_S)
    browser.js("document.querySelector('.row-tools button:nth-of-type(2)').click()")
    browser.wait("!document.querySelector('.row-count').textContent.includes('have')")
    for heading in ("MaxAbsErr", _NAME):
        yield _Measured(f"sort by {heading}", float(browser.js(_SORT % heading)), "s")
    name = _name_in(table, rows * 7 // 10)
    began = time.monotonic()
    browser.js(f"location.hash = {name!r}")
    browser.wait("document.querySelector('tr.wanted')", 60)
    yield _Measured("a link to a row", time.monotonic() - began, "s")
    last = f"document.querySelector('tr.current')?.textContent.startsWith({_name_in(table, rows - 1)!r})"
    browser.js("document.querySelector('.row-tools button:nth-of-type(2)').click()")
    browser.ask("focus", selector="regular-table")
    browser.ask("press", key="End")
    browser.wait(last, 10)
    yield _Measured("memory of the browser", _memory_mib(browser.pid), "MiB")


def _name_in(table: Path, row: int) -> str:
    """Return the name in a row of the table."""
    with table.open(encoding="utf-8-sig", newline="") as file:
        return next(cells[0] for at, cells in enumerate(csv.reader(file)) if at == row + 1)


def _memory_mib(pid: int) -> float:
    """Return the proportional resident memory of all processes below one, in MiB."""
    total = 0
    for each in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += each.memory_full_info().pss
    return total / 2**20


def _measured_graph(folder: Path, calls: int, browser: Browser) -> Iterator[_Measured]:
    page = folder / "graph.html"
    write_report_page(page, [graph_view(calls)], [str(folder)])
    yield _Measured("the page of the graph", page.stat().st_size / 1e6, "MB")
    began = time.monotonic()
    browser.open(page)
    browser.wait("document.querySelectorAll('.flow .node').length > 5", 120)
    yield _Measured("the graph, opened", time.monotonic() - began, "s", _GRAPH_S)
    began = time.monotonic()
    browser.js(
        "document.querySelector('.flow .node:last-of-type .box')"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    yield _Measured("a click that shows more", time.monotonic() - began, "s")


def main() -> int:
    """Measure, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--browser", default="chromium", choices=("chromium", "firefox"))
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--page", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write is not None:
        write_report_page(options.page, [rows_view(options.write)], ["measured"])
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return 0
    if lacks := missing(options.browser):
        print(lacks, file=sys.stderr)
        return 2
    browser = Browser(options.browser)
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = [
                *_measured_rows(Path(folder), options.rows, browser),
                *_measured_graph(Path(folder), options.calls, browser),
            ]
    finally:
        browser.close()
    print(f"{options.rows:,} rows, {options.calls:,} calls, {options.browser}; {machine()}\n")
    print(
        markdown_table(
            ("what", "measured", "at most"),
            [
                (
                    each.what,
                    f"{each.value:.3g} {each.unit}",
                    "" if each.most is None else f"{each.most:g} {each.unit}",
                )
                for each in found
            ],
        )
    )
    return 0 if all(each.is_met for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
