"""Try one cell: make its environment, check the captures, run the tests, remove the environment.

Comes in: a cell, the folder of the matrix. Goes out: what was found, noted after each piece, so that an
attempt which is interrupted goes on where it stopped. Called by `main`.
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from scripts.matrix.cells import Cell
from scripts.matrix.environment import Environment, EnvironmentFailed, make
from scripts.matrix.notes import CellResult, machine_words, read_found, today, write_found
from scripts.matrix.trial import STANDARDS, precheck, run_again, run_tests

ROOT = Path(__file__).resolve().parents[2]
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
_CAPTURES = (
    "mindspore_llm",
    "mindspore_llm_fp16",
    "mindspore_llm_tensor",
    "torch_cnn",
    "torch_llm",
    "torch_llm_bf16",
    "torch_llm_tensor",
)


def attempt(cell: Cell, folder: Path, keep: bool = False, again: bool = False) -> None:
    """Do what a cell still lacks, noting each piece; `keep` keeps the environment.

    With `again` the tests that failed before are run again, alone, from the tree of now.
    """
    found = noted(cell, folder)
    if not lacks(cell, found) and not (again and any(run.failed for run in found.tests.values())):
        return
    tree = folder / cell.name / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    _say(cell, "making its environment")
    try:
        made = make(cell, tree, folder / cell.name / "env")
    except EnvironmentFailed as error:
        write_found(replace(found, failure=str(error)), folder)
        return
    found = replace(found, failure="", plan=made.plan, clashes=made.clashes, versions=made.versions)
    found = _check_captures(cell, found, made, tree, folder)
    found = _test(cell, found, made, tree, folder)
    if again:
        _test_again(cell, found, made, tree, folder)
    if not keep:
        shutil.rmtree(folder / cell.name / "env", ignore_errors=True)


def noted(cell: Cell, folder: Path) -> CellResult:
    """Return what is noted of a cell, or a result without any piece."""
    try:
        return read_found(folder / f"{cell.name}.json")
    except FileNotFoundError:
        return CellResult(cell.name, today(), machine_words())


def lacks(cell: Cell, found: CellResult) -> list[str]:
    """Return the pieces that a cell has not got yet: prechecks, and runs of tests."""
    wanted = [f"{capture} {standard}" for capture in _CAPTURES for standard in STANDARDS]
    missing = [run for run in wanted if run not in found.prechecks]
    return missing + [run for run in map(" ".join, cell.suites()) if run not in found.tests]


def _check_captures(
    cell: Cell, found: CellResult, made: Environment, tree: Path, folder: Path
) -> CellResult:
    for capture in _CAPTURES:
        for standard in STANDARDS:
            name = f"{capture} {standard}"
            if name in found.prechecks:
                continue
            _say(cell, name)
            dump = tree / "tests" / "data" / capture / "dump.json"
            out = folder / cell.name / "out" / f"{capture}_{standard}"
            shutil.rmtree(out, ignore_errors=True)
            checked = precheck(made.python, dump, standard, out)
            found = replace(found, prechecks={**found.prechecks, name: checked})
            write_found(found, folder)
    return found


def _test(cell: Cell, found: CellResult, made: Environment, tree: Path, folder: Path) -> CellResult:
    for arguments in cell.suites():
        name = " ".join(arguments)
        if name in found.tests:
            continue
        _say(cell, name)
        run = run_tests(made.python, tree, arguments, folder / cell.name)
        found = replace(found, tests={**found.tests, name: run})
        write_found(found, folder)
    return found


def _test_again(
    cell: Cell, found: CellResult, made: Environment, tree: Path, folder: Path
) -> CellResult:
    for name, run in found.tests.items():
        if not run.failed:
            continue
        _say(cell, f"{len(run.failed)} failed tests of {name} again")
        now = run_again(made.python, tree, run, folder / cell.name)
        found = replace(found, tests={**found.tests, name: now})
        write_found(found, folder)
    return found


def _say(cell: Cell, words: str) -> None:
    print(f"{cell.name}: {words} ...", file=sys.stderr, flush=True)
