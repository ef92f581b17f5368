"""Install the package beside other versions of Python, the frameworks, NumPy and Ray, and try it there.

    python -m scripts.matrix FOLDER [--cells NAME ...] [--again] [--keep] [--list] [--table] [--write]

For each cell an environment is made as a host may have it, pip's plan for `pip install .` is noted
(nothing that is there may be replaced), the package is installed from a copy of the tree, the shipped
captures are checked under `msprobe` and `auto`, and its unit and framework tests are run (with the oldest
Ray those of the cluster that are about Ray, too; the simulated histories in the default cell only; unit
tests that ask neither for a framework nor for Ray in some cells only, see `cells`). Then the environment
is removed: one takes up to 10 GB. What was found stands in FOLDER/{cell}.json, piece by piece: a cell does
only what it lacks there, so an interrupted matrix goes on. `--again` runs what failed again, alone,
which the table tells. `--table` prints the table of what was found, `--write` puts it into the docs as
well. The exit code is 1 where a package of a host would be replaced, a test fails, or a cell lacks
something or cannot be made.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.matrix.attempt import ROOT, attempt, lacks, noted
from scripts.matrix.cells import CELLS, DEFAULT, Cell
from scripts.matrix.notes import CellResult
from scripts.matrix.table import render

DOCS = ROOT / "ray_precheck" / "VERSIONS.md"
_MARK = "<!-- What follows is written by: python -m scripts.matrix FOLDER --write -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the cells that were asked for; returns 1 where something is wrong in one of them."""
    options = _options(arguments)
    chosen = [cell for cell in CELLS if cell.name in options.cells]
    if options.list:
        for cell in chosen:
            print(f"{cell.name}: Python {cell.python}, {', '.join(cell.host)}")
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    if not options.table:
        for cell in chosen:
            attempt(cell, options.folder, options.keep, options.again)
    found = {cell.name: noted(cell, options.folder) for cell in chosen}
    base = noted(DEFAULT, options.folder)
    if not base.prechecks:
        print(f"no table: the captures of the cell {DEFAULT.name} are not checked", file=sys.stderr)
        return 1
    table = render(found, chosen, base)
    print(table)
    if options.write:
        before = DOCS.read_text(encoding="utf-8")
        DOCS.write_text(before[: before.index(_MARK)] + f"{_MARK}\n\n{table}", encoding="utf-8")
    return int(any(is_wrong(cell, found[cell.name]) for cell in chosen))


def is_wrong(cell: Cell, found: CellResult) -> bool:
    """Return whether a cell could not be made, replaces what is there, lacks a piece, or fails a test."""
    return bool(
        found.failure
        or lacks(cell, found)
        or any(planned.replaces for planned in found.plan)
        or any(run.failed or not run.passed for run in found.tests.values())
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts.matrix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [cell.name for cell in CELLS]
    parser.add_argument("folder", type=Path, help="where environments and notes are made")
    parser.add_argument("--cells", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--again", action="store_true", help="run what failed again, alone")
    parser.add_argument("--keep", action="store_true", help="do not remove the environments")
    parser.add_argument("--list", action="store_true", help="name the cells and end")
    parser.add_argument("--table", action="store_true", help="only print what was found")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    return parser.parse_args(arguments)
