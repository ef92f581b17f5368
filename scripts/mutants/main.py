"""Plant random mutants in the package and see whether its unit tests notice.

    python -m scripts.mutants [--count 100] [--seed N] [--rooms store compare ...] [--map FILE]

Places to change are drawn by the seed from the modules of the rooms. Each mutant is planted alone, in
a copy of the tree, never in the checkout. All unit tests are run once without a mutant, to see which
test reaches which line; tests that fail then are named and left out. With `--map` that is kept, and
only files of tests that have changed are run again. For a mutant the tests that reach its statement
are run, those of its room first, the fastest first; where all of them pass, the fastest of the other
tests of their files and of those that reach anything of the mutated file. The first test that fails
kills the mutant, and so does a time-out. What survives is printed with its diff: a missing test, or a
change that makes no difference (an equivalent mutant), which a person must tell apart. The exit code is
1 where less than `--at-least` percent were killed, equivalent mutants among those that were not.
"""

import argparse
import difflib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.mutants.changes import mutate
from scripts.mutants.choice import tests_of_import
from scripts.mutants.drawing import Mutant, draw
from scripts.mutants.planting import write
from scripts.mutants.session import try_all
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
        survivors = _try_all(tree, chosen, tests)
    killed = len(chosen) - len(survivors)
    share = 100 * killed / max(1, len(chosen))
    print(f"seed {options.seed}: {killed} of {len(chosen)} mutants killed ({share:.0f} %)")
    for kind, count in sorted(Counter(mutant.change.kind for mutant in chosen).items()):
        alive = sum(mutant.change.kind == kind for mutant in survivors)
        print(f"  {kind}: {count - alive} of {count}")
    return int(share < options.at_least)


def _try_all(tree: Path, mutants: Sequence[Mutant], tests: TestMap) -> list[Mutant]:
    """Try the mutants, say what became of each; returns those that nothing killed."""
    survivors, rest = [], []
    # The session changes the files while it tries mutants.
    texts = {mutant.path: (tree / mutant.path).read_text("utf-8") for mutant in mutants}
    begin = time.monotonic()
    for mutant, killer in zip(mutants, try_all(tree, mutants, tests), strict=True):
        if killer is None:
            rest.append(mutant)
        elif not _is_killed(texts, mutant, killer, time.monotonic() - begin):
            survivors.append(mutant)
        begin = time.monotonic()
    for mutant in rest:
        path = tree / mutant.path
        begin = time.monotonic()
        write(path, mutate(texts[mutant.path], mutant.change))
        try:
            chosen = tests_of_import(tree, mutant, tests)
            killer = first_failure(tree, {test: tests.seconds[test] for test in chosen})
        finally:
            write(path, texts[mutant.path])
        if not _is_killed(texts, mutant, killer, time.monotonic() - begin):
            survivors.append(mutant)
    return survivors


def _is_killed(texts: Mapping[str, str], mutant: Mutant, killer: str, seconds: float) -> bool:
    took = f"{mutant.path}:{mutant.change.line} ({mutant.change.kind}, {seconds:.1f} s)"
    if killer:
        print(f"killed    {took} by {killer}", flush=True)
        return True
    before = texts[mutant.path]
    after = mutate(before, mutant.change)
    print(f"SURVIVED  {took}\n{difference(mutant.path, before, after)}", flush=True)
    return False


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
