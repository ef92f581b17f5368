"""Plant random mutants in the package and see whether its unit tests notice.

    python -m scripts.mutants [--count 100] [--seed N] [--rooms store accuracy ...] [--map FILE]

Places to change are drawn by the seed from the modules of the rooms. Each mutant is planted alone, in
a copy of the tree, never in the checkout. All unit tests are run once without a mutant, to see which
test enters which function; tests that fail then are named and left out. With `--map` that is kept for as
long as the tree stays the same. For a mutant the tests that enter its function are run, those of its room
first, the fastest first, then the fastest others of its room, which may reach it through another process.
The first test that fails kills the mutant, and so does a time-out. What survives is printed with its diff: a
missing test, or a change that makes no difference (an equivalent mutant), which a person must tell apart.
The exit code is 1 where less than `--at-least` percent were killed, equivalent mutants among those that
were not.
"""

import argparse
import difflib
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.measuring import ROOT
from scripts.mutants.changes import Change, find_changes, mutate
from scripts.mutants.reached import VARIABLE, TestMap

ROOMS = (
    "store",
    "accuracy",
    "dump",
    "replay",
    "inputs",
    "runtime/scheduling",
    "runtime/places/placement.py",
)
_LEFT_OUT = (".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis", "build")
# With a mutant a test may take so many times its own time, and some seconds.
_TIMES, _PLUS_S = 20.0, 10.0
_START_LIMIT_S, _MAP_LIMIT_S = 120.0, 3600.0
# So long may the tests take that are tried though they do not enter the function.
_BEYOND_S = 10.0


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one file; `path` is below the root."""

    path: str
    change: Change

    @property
    def room(self) -> str:
        """The folder of the package that has the file; its unit tests have one of the same name."""
        return self.path.split("/")[1]


def draw(root: Path, rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return so many mutants of the modules of the rooms, which are folders or files."""
    mutants = [
        Mutant(str(path.relative_to(root)), change)
        for room in rooms
        for path in _modules(root / "ray_precheck" / room)
        for change in find_changes(path.read_text("utf-8"))
    ]
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def _modules(room: Path) -> list[Path]:
    return [room] if room.is_file() else sorted(room.rglob("*.py"))


def map_tests(tree: Path, kept: Path) -> TestMap:
    """Return what each unit test enters: as kept in a file, if that is of the same tree.

    The tests of `scripts` are left out: they run scripts, this one among them, not the package.

    Raises:
        SystemExit: the tests do not run on the code as it is.
    """
    tests = tree / "tests" / "unit"
    files = [path for path in sorted(tests.rglob("test_*.py")) if "scripts" not in path.parts[-2:]]
    digest = hashlib.sha256()
    for path in [*files, *_modules(tree / "ray_precheck")]:
        digest.update(path.read_bytes())
    if (
        kept.exists()
        and (found := TestMap(**json.loads(kept.read_text()))).digest == digest.hexdigest()
    ):
        return found
    out = tree.with_suffix(".json")
    names = [str(path.relative_to(tree)) for path in files]
    done = _pytest(tree, names, _MAP_LIMIT_S, {VARIABLE: str(out)})
    # A test or two that fail here, as they run in a copy, are left out.
    found = TestMap(**json.loads(out.read_text())) if out.exists() else TestMap()
    if done is None or done.returncode not in (0, 1) or not found.seconds:
        shown = done.stdout[-3000:] if done else "they take too long"
        raise SystemExit(f"the unit tests do not pass without a mutant:\n{shown}")
    found.digest = digest.hexdigest()
    kept.write_text(json.dumps(asdict(found)))
    return found


def tests_of(tree: Path, mutant: Mutant, tests: TestMap) -> list[str]:
    """Return the tests that may notice a mutant, in the order in which they are tried."""
    at_home = {test for test in tests.seconds if test.startswith(f"tests/unit/{mutant.room}/")}
    if mutant.change.function:
        direct = tests.reaching(mutant.path, mutant.change.function)
    else:  # it runs as the module is imported
        users = [mutant.path, *_importers(tree, mutant.path)]
        direct = {test for path in users for test in tests.reaching(path)}
    chosen = [*_in_order(direct & at_home, tests), *_in_order(direct - at_home, tests)]
    beyond_s = 0.0
    for test in _in_order((at_home | tests.reaching(mutant.path)) - direct, tests):
        beyond_s += tests.seconds[test]
        if beyond_s > _BEYOND_S:
            break
        chosen.append(test)
    return chosen


def _in_order(chosen: Iterable[str], tests: TestMap) -> list[str]:
    return sorted(chosen, key=lambda test: (tests.seconds[test], test))


def _importers(root: Path, path: str) -> list[str]:
    """Return the files of the package that import a module by its name."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    needle = re.compile(rf"^\s*(from|import) {re.escape(name)}\b(?!\.)", re.MULTILINE)
    modules = _modules(root / "ray_precheck")
    return [str(p.relative_to(root)) for p in modules if needle.search(p.read_text("utf-8"))]


def first_failure(tree: Path, tests: Mapping[str, float]) -> str:
    """Return which of the tests failed first, "a time-out", or "" where all of them pass.

    The tests come with the seconds that each took without a mutant.
    """
    if not tests:
        return ""
    each_s = _PLUS_S + _TIMES * max(tests.values())
    words = ["-x", "--timeout", str(each_s), *tests]
    done = _pytest(tree, words, _START_LIMIT_S + _TIMES * sum(tests.values()))
    if done is None:
        return "a time-out"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    # A time-out ends the process; of others pytest says which test it was.
    begun = re.findall(r"^(tests/\S+::.+?) ", done.stdout, re.MULTILINE)
    return failed[1] if failed else (begun or [f"pytest ended with {done.returncode}"])[-1]


def _pytest(
    tree: Path, words: Sequence[str], limit_s: float, environment: Mapping[str, str] = {}
) -> "subprocess.CompletedProcess[str] | None":
    """Run pytest in a tree; returns None where it takes too long."""
    command = [
        *(sys.executable, "-m", "pytest", "-v", "--tb=short", "-rfE", "--no-header", "--rootdir=."),
        *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "scripts.mutants.reached"),
        *("--hypothesis-profile=ci", "-o", "addopts=--strict-markers --timeout 120"),
    ]
    path = os.pathsep.join([str(tree), str(ROOT)])
    try:
        return subprocess.run(
            [*command, *words], cwd=tree, env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None


def is_killed(tree: Path, mutant: Mutant, tests: TestMap, count: int) -> bool:
    """Plant a mutant, and say what became of it. `count` makes the file look new to Python."""
    path, begin = tree / mutant.path, time.monotonic()
    before = path.read_text("utf-8")
    after = mutate(before, mutant.change)
    try:
        path.write_text(after, "utf-8")
        os.utime(path, (count, count))
        killer = first_failure(tree, {t: tests.seconds[t] for t in tests_of(tree, mutant, tests)})
    finally:
        path.write_text(before, "utf-8")
    took_s = time.monotonic() - begin
    took = f"{mutant.path}:{mutant.change.line} ({mutant.change.kind}, {took_s:.1f} s)"
    if killer:
        print(f"killed    {took} by {killer}", flush=True)
        return True
    texts = before.splitlines(), after.splitlines()
    lines = difflib.unified_diff(*texts, mutant.path, mutant.path, lineterm="", n=2)
    print(f"SURVIVED  {took}", *(f"    {line}" for line in lines), sep="\n", flush=True)
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants; returns 1 where too few were killed."""
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
    options = parser.parse_args(arguments)
    chosen = draw(options.root, options.rooms, options.count, options.seed)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder, "tree")
        shutil.copytree(options.root, tree, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        begin = time.monotonic()
        tests = map_tests(tree, options.map or Path(folder, "map.json"))
        print(f"{len(tests.seconds)} unit tests, {time.monotonic() - begin:.0f} s", flush=True)
        for test in tests.failing:
            print(f"left out, as it fails without a mutant: {test}", flush=True)
        survivors = [
            each for at, each in enumerate(chosen, 1) if not is_killed(tree, each, tests, at)
        ]
    killed = len(chosen) - len(survivors)
    share = 100 * killed / max(1, len(chosen))
    print(f"seed {options.seed}: {killed} of {len(chosen)} mutants killed ({share:.0f} %)")
    alive = Counter(mutant.change.kind for mutant in survivors)
    for kind, count in sorted(Counter(mutant.change.kind for mutant in chosen).items()):
        print(f"  {kind}: {count - alive[kind]} of {count}")
    return int(share < options.at_least)


if __name__ == "__main__":
    raise SystemExit(main())
