"""Plant random mutants in the package and see whether its unit tests notice.

    python -m scripts.mutants [--count 100] [--seed N] [--rooms store compare ...] [--map FILE]

Places to change are drawn by the seed from the modules of the rooms. Each mutant is planted alone, in
a copy of the tree, never in the checkout. All unit tests are run once without a mutant, to see which
test reaches which line; tests that fail then are named and left out. For a mutant the tests that reach
its statement are run, those of its room first, the fastest first; where all of them pass, the other
tests of these files and of the room, then those that reach anything of the mutated file or start
processes. The first test that fails kills the mutant, and so does a time-out. What survives is printed
with its diff: a missing test, or a change that makes no difference (an equivalent mutant), which a
person must tell apart. The exit code is 1 where less than `--at-least` percent were killed.
"""

import argparse
import difflib
import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.mutants.changes import Change, find_changes, mutate
from scripts.mutants.tests_of import TestMap
from scripts.mutants.trial import first_failure, map_tests

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "store",
    "compare",
    "dump",
    "plan",
    "datagen",
    "runtime/scheduling",
    "runtime/places/placement.py",
)
# Loaded before the first fork: what the unit tests import that is not ours.
_PRELOADED = ("ml_dtypes", "numpy", "orjson", "pandas", "yaml")
_LEFT_OUT = (".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis", "build")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one file; `path` is below the root."""

    path: str
    change: Change

    @property
    def room(self) -> str:
        """The folder of the unit tests that are for this file."""
        return self.path.split("/")[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants; returns 1 where too few were killed."""
    options = _options(arguments)
    chosen = draw(options.root, options.rooms, options.count, options.seed)
    for name in _PRELOADED:
        __import__(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder, "tree")
        shutil.copytree(options.root, tree, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        begin = time.monotonic()
        tests = map_tests(tree, options.map or Path(folder, "map.json"))
        print(f"{len(tests.seconds)} unit tests, {time.monotonic() - begin:.0f} s", flush=True)
        for test in tests.failing:
            print(f"left out, as it fails without a mutant: {test}", flush=True)
        survivors = [mutant for mutant in chosen if not _is_killed(tree, mutant, tests)]
    killed = len(chosen) - len(survivors)
    share = 100 * killed / max(1, len(chosen))
    print(f"seed {options.seed}: {killed} of {len(chosen)} mutants killed ({share:.0f} %)")
    for kind, count in sorted(Counter(mutant.change.kind for mutant in chosen).items()):
        alive = sum(mutant.change.kind == kind for mutant in survivors)
        print(f"  {kind}: {count - alive} of {count}")
    return int(share < options.at_least)


def draw(root: Path, rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return so many mutants of the modules of the rooms."""
    mutants = [
        Mutant(str(path.relative_to(root)), change)
        for room in rooms
        for path in _modules(root / "ray_precheck" / room)
        for change in find_changes(path.read_text("utf-8"))
    ]
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def _modules(room: Path) -> list[Path]:
    return [room] if room.is_file() else sorted(room.rglob("*.py"))


def _is_killed(tree: Path, mutant: Mutant, tests: TestMap) -> bool:
    path = tree / mutant.path
    before = path.read_text("utf-8")
    after = mutate(before, mutant.change)
    begin = time.monotonic()
    _write(path, after)
    try:
        killer = _killer(tree, mutant, tests)
    finally:
        _write(path, before)
    took = f"{mutant.path}:{mutant.change.line} ({mutant.change.kind}, {time.monotonic() - begin:.1f} s)"
    if killer:
        print(f"killed    {took} by {killer}", flush=True)
        return True
    print(f"SURVIVED  {took}\n{difference(mutant.path, before, after)}", flush=True)
    return False


def _killer(tree: Path, mutant: Mutant, tests: TestMap) -> str:
    """Return what notices the mutant that is planted, "" for nothing."""
    begun: set[str] = set()
    for stage in _stages(tree, mutant, tests):
        new = {test: tests.seconds[test] for test in stage if test not in begun}
        begun.update(new)
        if killer := first_failure(tree, new):
            return killer
    return ""


def _stages(tree: Path, mutant: Mutant, tests: TestMap) -> Iterator[list[str]]:
    """Yield tests, the likeliest to fail first.

    The map does not see what a fixture of a module does for its later tests, nor what runs when a
    module is imported, nor other processes: the stages after the first two are for these.
    """
    at_home = f"tests/unit/{mutant.room}/"

    def in_order(chosen: Iterable[str]) -> list[str]:
        return sorted(chosen, key=lambda test: (not test.startswith(at_home), tests.seconds[test]))

    statement = mutant.change.statement
    direct = tests.reaching(mutant.path, statement) if statement else []
    yield in_order(test for test in direct if test.startswith(at_home))
    yield in_order(direct)
    of_file = tests.reaching(mutant.path)
    files = {test.partition("::")[0] for test in direct or of_file}
    yield in_order(
        test
        for test in tests.seconds
        if test.partition("::")[0] in files or test.startswith(at_home)
    )
    users = [] if statement else _importers(tree, mutant.path)
    yield in_order(
        {*of_file, *tests.starters, *(each for path in users for each in tests.reaching(path))}
    )


def _importers(tree: Path, path: str) -> list[str]:
    """Return the files of the package that import a module by its name."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    needle = re.compile(rf"^\s*(from|import) {re.escape(name)}\b(?!\.)", re.MULTILINE)
    modules = _modules(tree / "ray_precheck")
    return [
        str(each.relative_to(tree)) for each in modules if needle.search(each.read_text("utf-8"))
    ]


_writes = 0


def _write(path: Path, text: str) -> None:
    """Write a module so that Python sees that it is another one, also within a second."""
    global _writes
    _writes += 1
    path.write_text(text, "utf-8")
    os.utime(path, (_writes, _writes))


def difference(path: str, before: str, after: str) -> str:
    """Return a diff with little around it."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), path, path, lineterm="", n=2
    )
    return "\n".join(f"    {line}" for line in lines)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rooms", nargs="+", default=ROOMS, help="folders or files of ray_precheck"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree that is copied")
    parser.add_argument(
        "--map", type=Path, metavar="FILE", help="keep there which test runs what, and use it again"
    )
    parser.add_argument("--at-least", type=float, default=95.0, metavar="PERCENT")
    return parser.parse_args(arguments)
