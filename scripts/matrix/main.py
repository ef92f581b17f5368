"""Install the package beside other versions of Python, the frameworks, NumPy and Ray, and try it there.

    python -m scripts.matrix FOLDER [--cells NAME ...] [--tests PATH ...] [--list] [--table] [--write]

For each cell an environment is made as a host may have it, pip's plan for `pip install .` is noted
(nothing that is there may be replaced), the package is installed from a copy of the tree, its unit and
framework tests are run (those of the cluster, too, with the oldest Ray; the simulated histories in the
default cell only), and the shipped captures are checked under `msprobe` and `auto`. Then the
environment is removed: one takes up to 8 GB. What was found stands in FOLDER/{cell}.json; a cell that
has it is not tried again, so an interrupted matrix goes on. `--table` prints the table of what was
found, `--write` puts it into the docs as well. The exit code is 1 where a package of a host would be
replaced, a test fails or a cell cannot be made.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.matrix.cells import CELLS, DEFAULT, Cell
from scripts.matrix.environment import EnvironmentFailed, make
from scripts.matrix.notes import CellResult, machine_words, read_found, today, write_found
from scripts.matrix.table import render
from scripts.matrix.trial import STANDARDS, Precheck, precheck, run_tests, together

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "ray_precheck" / "VERSIONS.md"
_MARK = "<!-- What follows is written by: python -m scripts.matrix FOLDER --write -->"
_LEFT_OUT = (
    ".git",
    ".venv",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    "build",
    "*.egg-info",
    "checker_result",
)
# Simulated histories of the driver: minutes of Python that knows no framework, the same in each cell.
_ONLY_IN_DEFAULT = "tests/unit/runtime/test_runtime_histories.py"
_CAPTURES = (
    "mindspore_llm",
    "mindspore_llm_fp16",
    "mindspore_llm_tensor",
    "torch_cnn",
    "torch_llm",
    "torch_llm_bf16",
    "torch_llm_tensor",
)


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
            if not (options.folder / f"{cell.name}.json").exists():
                _try(cell, options)
    found = {}
    for cell in chosen:
        path = options.folder / f"{cell.name}.json"
        if path.exists():
            found[cell.name] = read_found(path)
    if DEFAULT.name not in found:
        print(f"no table: the cell {DEFAULT.name} has not been tried", file=sys.stderr)
        return 1
    table = render(found, chosen, DEFAULT.name)
    print(table)
    if options.write:
        before = DOCS.read_text(encoding="utf-8")
        DOCS.write_text(before[: before.index(_MARK)] + f"{_MARK}\n\n{table}", encoding="utf-8")
    return int(any(is_wrong(each) for each in found.values()))


def is_wrong(found: CellResult) -> bool:
    """Return whether a cell could not be made, replaces what is there, or fails a test."""
    return bool(
        found.failure
        or any(planned.replaces for planned in found.plan)
        or found.tests is None
        or found.tests.failed
        or not found.tests.passed
    )


def _try(cell: Cell, options: argparse.Namespace) -> None:
    """Make a cell's environment, try the package there, note what was found, remove it."""
    folder = options.folder / cell.name
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.rmtree(folder / "out", ignore_errors=True)
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    print(f"{cell.name}: making its environment ...", file=sys.stderr, flush=True)
    try:
        environment = make(cell, tree, folder / "env")
    except EnvironmentFailed as error:
        write_found(CellResult(cell.name, today(), machine_words(), str(error)), options.folder)
        return
    prechecks: dict[str, Precheck] = {}
    for capture in _CAPTURES:
        for standard in STANDARDS:
            print(f"{cell.name}: {capture} {standard} ...", file=sys.stderr, flush=True)
            dump = tree / "tests" / "data" / capture / "dump.json"
            out = folder / "out" / f"{capture}_{standard}"
            prechecks[f"{capture} {standard}"] = precheck(environment.python, dump, standard, out)
    print(f"{cell.name}: tests ...", file=sys.stderr, flush=True)
    (folder / "tests.log").unlink(missing_ok=True)
    # Each in a process of its own, as the package has it: MindSpore 2.7 cannot be loaded where Ray is.
    chosen = [[path] for path in options.tests]
    if cell != DEFAULT:
        chosen = [[*paths, "--ignore", _ONLY_IN_DEFAULT] for paths in chosen]
    chosen += [list(cell.also)] if cell.also else []
    tests = together([run_tests(environment.python, tree, each, folder) for each in chosen])
    found = CellResult(
        cell.name,
        today(),
        machine_words(),
        plan=environment.plan,
        clashes=environment.clashes,
        versions=environment.versions,
        tests=tests,
        prechecks=prechecks,
    )
    write_found(found, options.folder)
    if not options.keep:
        shutil.rmtree(folder / "env", ignore_errors=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts.matrix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [cell.name for cell in CELLS]
    parser.add_argument("folder", type=Path, help="where environments and notes are made")
    parser.add_argument("--cells", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--tests", nargs="+", default=["tests/unit", "tests/frameworks"])
    parser.add_argument("--keep", action="store_true", help="do not remove the environments")
    parser.add_argument("--list", action="store_true", help="name the cells and end")
    parser.add_argument("--table", action="store_true", help="only print what was found")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    return parser.parse_args(arguments)
