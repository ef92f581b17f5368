"""Plant random mutants in the package and see whether its tests notice.

    python -m scripts.mutants [--count 100] [--seed N] [--rooms store accuracy ...] [--maps FOLDER]

Places to change are drawn by the seed from the modules of the rooms. Each mutant is planted alone, in
a copy of the tree, never in the checkout. All unit tests are run once without a mutant, to see which
test enters which function; tests that fail then are named and left out. With `--maps` that is kept for as
long as the tree stays the same. For a mutant the tests that enter its function are run, those of its room
first, the fastest first, then the fastest others of its room, which may reach it through another process.
The first test that fails, then and by itself, kills the mutant, and so does a time-out. Only where mutants
survive the unit tests, those of `tests/frameworks` are run once in the same way, which takes longer, and the
fastest of them that enter the function of a survivor are tried on it, as what needs torch or MindSpore is
tested there alone.
What survives is printed with its diff: a missing test, or a change that makes no difference (an equivalent
mutant), which a person must tell apart.
The exit code is 1 where less than `--at-least` percent were killed, equivalent mutants among those that
were not.
"""

import argparse
import difflib
import hashlib
import json
import math
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
from itertools import accumulate
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
# So long may the tests of frameworks take that are tried on a survivor.
_FRAMEWORKS_S = 60.0


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


def map_tests(tree: Path, folder: str, maps: Path) -> TestMap:
    """Return what each test of a folder of `tests` enters: as kept in `maps`, if that is of the same tree.

    The tests of `scripts` are left out: they run scripts, this one among them, not the package.

    Raises:
        SystemExit: the tests do not run on the code as it is.
    """
    tests, kept = tree / "tests" / folder, maps / f"{folder}.json"
    files = [path for path in sorted(tests.rglob("test_*.py")) if "scripts" not in path.parts[-2:]]
    if not files:
        return TestMap()
    digest = hashlib.sha256()
    for path in [*files, *_modules(tree / "ray_precheck")]:
        digest.update(path.read_bytes())
    if (
        kept.exists()
        and (found := TestMap(**json.loads(kept.read_text()))).digest == digest.hexdigest()
    ):
        return found
    begin, out = time.monotonic(), tree.with_suffix(".json")
    out.unlink(missing_ok=True)
    names = [str(path.relative_to(tree)) for path in files]
    done = _pytest(tree, names, _MAP_LIMIT_S, {VARIABLE: str(out)})
    # A test or two that fail here, as they run in a copy, are left out.
    found = TestMap(**json.loads(out.read_text())) if out.exists() else TestMap()
    if done is None or done.returncode not in (0, 1) or not found.seconds:
        shown = done.stdout[-3000:] if done else "they take too long"
        raise SystemExit(f"the {folder} tests do not pass without a mutant:\n{shown}")
    found.digest = digest.hexdigest()
    maps.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(asdict(found)))
    took_s = time.monotonic() - begin
    print(f"{len(found.seconds)} {folder} tests, {took_s:.0f} s", flush=True)
    for test in found.failing:
        print(f"left out, as it fails without a mutant: {test}", flush=True)
    return found


def unit_tests_of(tree: Path, mutant: Mutant, tests: TestMap) -> list[str]:
    """Return the unit tests that may notice a mutant, in the order in which they are tried."""
    at_home = {test for test in tests.seconds if test.startswith(f"tests/unit/{mutant.room}/")}
    direct = _entering(tree, mutant, tests)
    others = _in_order((at_home | tests.reaching(mutant.path)) - direct, tests, _BEYOND_S)
    return [*_in_order(direct & at_home, tests), *_in_order(direct - at_home, tests), *others]


def framework_tests_of(tree: Path, mutant: Mutant, tests: TestMap) -> list[str]:
    """Return the tests of frameworks that are tried on a mutant which no unit test has noticed."""
    return _in_order(_entering(tree, mutant, tests), tests, _FRAMEWORKS_S)


def _entering(tree: Path, mutant: Mutant, tests: TestMap) -> set[str]:
    """Return the tests that run what a mutant changes."""
    if mutant.change.function:
        return tests.reaching(mutant.path, mutant.change.function)
    # It runs as the module is imported.
    users = [mutant.path, *_importers(tree, mutant.path)]
    return {test for path in users for test in tests.reaching(path)}


def _in_order(chosen: Iterable[str], tests: TestMap, limit_s: float = math.inf) -> list[str]:
    """Return the tests, the fastest first, as many of them as take no longer than the limit."""
    found = sorted(chosen, key=lambda test: (tests.seconds[test], test))
    sums = accumulate(tests.seconds[test] for test in found)
    return [test for test, sum_s in zip(found, sums, strict=True) if sum_s <= limit_s]


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


def killer_of(tree: Path, tests: Mapping[str, float]) -> str:
    """Return the first test that fails, and does so again by itself, as `first_failure` does.

    Tests of frameworks leave things behind in their process, and may fail in another order than theirs.
    """
    left = dict(tests)
    while (found := first_failure(tree, left)) in left:
        if first_failure(tree, {found: left.pop(found)}):
            break
    return found


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


def is_killed(tree: Path, mutant: Mutant, tests: Mapping[str, float], count: int) -> bool:
    """Plant a mutant, run tests, and say which of them fails. `count` makes the file look new to Python."""
    path, begin = tree / mutant.path, time.monotonic()
    before = path.read_text("utf-8")
    try:
        path.write_text(mutate(before, mutant.change), "utf-8")
        os.utime(path, (count, count))
        killer = killer_of(tree, tests)
    finally:
        path.write_text(before, "utf-8")
    took_s = time.monotonic() - begin
    took = f"{mutant.path}:{mutant.change.line} ({mutant.change.kind}, {took_s:.1f} s)"
    said = f"killed    {took} by {killer}" if killer else f"lives     {took} of {len(tests)} tests"
    print(said, flush=True)
    return bool(killer)


def diff_of(tree: Path, mutant: Mutant) -> str:
    """Return the diff of a mutant."""
    before = (tree / mutant.path).read_text("utf-8")
    texts = before.splitlines(), mutate(before, mutant.change).splitlines()
    lines = difflib.unified_diff(*texts, mutant.path, mutant.path, lineterm="", n=2)
    place = f"SURVIVED  {mutant.path}:{mutant.change.line} ({mutant.change.kind})"
    return "\n".join([place, *(f"    {line}" for line in lines)])


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
        "--maps",
        type=Path,
        metavar="FOLDER",
        help="keep there which test runs what, to use it again",
    )
    parser.add_argument("--at-least", type=float, default=95.0, metavar="PERCENT")
    options = parser.parse_args(arguments)
    chosen = draw(options.root, options.rooms, options.count, options.seed)
    alive, count, killed_by = chosen, 0, []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder, "tree")
        shutil.copytree(options.root, tree, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        for name, tests_of in (("unit", unit_tests_of), ("frameworks", framework_tests_of)):
            if not alive:
                break
            tests = map_tests(tree, name, options.maps or Path(folder))
            tried, alive = alive, []
            for mutant in tried:
                count += 1
                names = tests_of(tree, mutant, tests)
                if not is_killed(tree, mutant, {t: tests.seconds[t] for t in names}, count):
                    alive.append(mutant)
            killed_by.append(f"{len(tried) - len(alive)} by tests/{name}")
        for mutant in alive:
            print(diff_of(tree, mutant))
    killed = len(chosen) - len(alive)
    share = 100 * killed / max(1, len(chosen))
    by = ", ".join(killed_by)
    print(f"seed {options.seed}: {killed} of {len(chosen)} mutants killed ({share:.0f} %): {by}")
    living = Counter(mutant.change.kind for mutant in alive)
    for kind, total in sorted(Counter(mutant.change.kind for mutant in chosen).items()):
        print(f"  {kind}: {total - living[kind]} of {total}")
    return int(share < options.at_least)


if __name__ == "__main__":
    raise SystemExit(main())
