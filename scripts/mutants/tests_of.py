"""Which unit tests run which functions of the package.

Comes in: a tree with `ray_precheck` and `tests/unit`. Goes out: a `TestMap`. Called by `main`.
Functions are told apart by file and first line; a test that starts other processes is noted, as what
runs in them is not seen.
"""

import hashlib
import json
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

_STARTS_PROCESSES = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}


@dataclass(slots=True)
class TestMap:
    """`functions`: the tests that ran a function ("path:line", path below the tree; line 0: any
    function of the file); `seconds` of each test; `starters`: tests that start processes;
    `digests`: of each file of tests, and of the package under "", as they were."""

    functions: dict[str, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    starters: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)))

    def without(self, files: Collection[str]) -> "TestMap":
        """Return the map without the tests of these files."""

        def kept(tests: Iterable[str]) -> list[str]:
            return [test for test in tests if test.partition("::")[0] not in files]

        return TestMap(
            {function: kept(tests) for function, tests in self.functions.items()},
            {test: self.seconds[test] for test in kept(self.seconds)},
            kept(self.starters),
        )

    def add(self, other: "TestMap") -> None:
        """Take over what another map has."""
        for function, tests in other.functions.items():
            self.functions.setdefault(function, []).extend(tests)
        self.seconds.update(other.seconds)
        self.starters.extend(other.starters)

    @staticmethod
    def load(path: Path) -> "TestMap":
        """Read what `save` has written."""
        return TestMap(**json.loads(path.read_text()))


def digests(root: Path) -> dict[str, str]:
    """Return the digests of the files of unit tests, and under "" that of the whole package."""
    found = {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((root / "tests" / "unit").rglob("test_*.py"))
    }
    package = hashlib.sha256()
    for path in sorted((root / "ray_precheck").rglob("*.py")):
        package.update(path.read_bytes())
    return {**found, "": package.hexdigest()}


class Tracer:
    """A plugin of pytest that fills a `TestMap` with the tests that pass; only the calls of functions
    are traced."""

    def __init__(self, root: Path) -> None:
        self.found = TestMap()
        self.failed: set[str] = set()
        self._package = f"{root}/ray_precheck/"
        self._root = f"{root}/"
        self._seen: set[tuple[str, int]] = set()
        self._starts = False
        sys.addaudithook(self._audit)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """Trace one test with its fixtures."""
        self._seen, self._starts = set(), False
        begin = time.perf_counter()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            if item.nodeid not in self.failed:
                self._note(item.nodeid, time.perf_counter() - begin)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the names of tests that fail on the code as it is."""
        if report.failed:
            self.failed.add(report.nodeid)

    def _note(self, test: str, seconds: float) -> None:
        self.found.seconds[test] = seconds
        if self._starts:
            self.found.starters.append(test)
        for path, line in self._seen | {(path, 0) for path, _ in self._seen}:
            self.found.functions.setdefault(f"{path.removeprefix(self._root)}:{line}", []).append(
                test
            )

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self._package):
            self._seen.add((code.co_filename, code.co_firstlineno))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS_PROCESSES:
            self._starts = True
