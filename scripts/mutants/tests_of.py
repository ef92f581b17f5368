"""Which unit tests reach which lines of the package.

Comes in: a tree with `ray_precheck` and `tests/unit`. Goes out: a `TestMap`. Called by `trial` and
`main`. A test that starts other processes is noted, as what it reaches there is not seen.
"""

import hashlib
import json
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scripts.mutants.marks import Marks

# Tests that break the package themselves: with a mutant they find a fault all the same.
_BREAKING = "test_a_planted_fault"
_STARTS_PROCESSES = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}


@dataclass(slots=True)
class TestMap:
    """What the unit tests do that pass on the code as it is.

    `reached`: for each test and file (its path below the tree) the lines, as bits of a number in
    hexadecimal; `seconds` of each test; `starters`: tests that start processes; `failing`: tests that
    fail, and are left out; `on_import`: for each file the lines of functions that are reached as the
    tests are loaded; `digests`: of each file of tests, and of the package under "".
    """

    reached: dict[str, dict[str, str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    starters: list[str] = field(default_factory=list)
    failing: list[str] = field(default_factory=list)
    on_import: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def reaching(self, path: str, line: int = 0) -> list[str]:
        """Return the tests that reach a line of a file; line 0: any of its lines."""
        return [
            test
            for test, files in self.reached.items()
            if path in files and (not line or int(files[path], 16) >> line & 1)
        ]

    def runs_on_import(self, path: str, line: int) -> bool:
        """Whether a line in a function is reached as the tests are loaded."""
        return bool(int(self.on_import.get(path, "0"), 16) >> line & 1)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)))

    def without(self, files: Collection[str]) -> "TestMap":
        """Return the map without the tests of these files."""

        def kept(tests: Iterable[str]) -> list[str]:
            return [test for test in tests if test.partition("::")[0] not in files]

        return TestMap(
            {test: self.reached[test] for test in kept(self.reached)},
            {test: self.seconds[test] for test in kept(self.seconds)},
            kept(self.starters),
            kept(self.failing),
            dict(self.on_import),
        )

    def add(self, other: "TestMap") -> None:
        """Take over what another map has."""
        self.reached.update(other.reached)
        self.seconds.update(other.seconds)
        self.starters.extend(other.starters)
        self.failing.extend(other.failing)
        for path, lines in other.on_import.items():
            self.on_import[path] = f"{int(self.on_import.get(path, '0'), 16) | int(lines, 16):x}"

    @staticmethod
    def load(path: Path) -> "TestMap":
        """Read what `save` has written."""
        return TestMap(**json.loads(path.read_text()))


def digests(root: Path) -> dict[str, str]:
    """Return the digests of the files of unit tests, and under "" that of the whole package.

    The tests of `scripts` are left out: they run scripts, this one among them, not the package.
    """
    tests = root / "tests" / "unit"
    found = {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(tests.rglob("test_*.py"))
        if "scripts" not in path.relative_to(tests).parts
    }
    package = hashlib.sha256()
    for path in sorted((root / "ray_precheck").rglob("*.py")):
        package.update(path.read_bytes())
    return {**found, "": package.hexdigest()}


class Tracer:
    """A plugin of pytest that fills a `TestMap`."""

    def __init__(self, marks: Marks) -> None:
        self.found = TestMap()
        self._marks = marks
        self._starts = False
        sys.addaudithook(self._audit)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave tests out that are no use for finding mutants, and take long."""
        items[:] = [item for item in items if not item.name.startswith(_BREAKING)]
        self.found.on_import = _bits(self._marks.take())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """Note what one test reaches with its fixtures."""
        self._marks.take()
        self._starts = False
        begin = time.perf_counter()
        done = yield
        if item.nodeid not in self.found.failing:
            self._note(item.nodeid, time.perf_counter() - begin)
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the names of tests that fail on the code as it is."""
        if report.failed and report.nodeid not in self.found.failing:
            self.found.failing.append(report.nodeid)

    def _note(self, test: str, seconds: float) -> None:
        self.found.seconds[test] = seconds
        if self._starts:
            self.found.starters.append(test)
        self.found.reached[test] = _bits(self._marks.take())

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS_PROCESSES:
            self._starts = True


def _bits(reached: dict[str, list[int]]) -> dict[str, str]:
    return {path: f"{sum(1 << line for line in lines):x}" for path, lines in reached.items()}
