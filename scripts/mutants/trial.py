"""Runs of pytest in a copy of the tree, each in a forked process that has loaded nothing of the package.

Comes in: a tree, tests. Goes out: which test reaches what, or the first test that failed. Called by
`main`, whose process has loaded what the tests need besides.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from scripts.mutants.marks import install
from scripts.mutants.tests_of import TestMap, Tracer, digests

# A test that takes longer without a mutant hangs, and so does one that takes as many times its own time
# and some seconds with a mutant.
_TEST_LIMIT_S = 120
_TIMES, _PLUS_S = 20.0, 10.0
_MAP_LIMIT_S = 3600.0
_START_LIMIT_S = 120.0
TIMED_OUT = "a time-out"


class Chosen:
    """A plugin of pytest that runs these tests alone, in their order, and notes what fails first.

    `seconds` has the time that each test took without a mutant.
    """

    def __init__(self, seconds: Mapping[str, float], note: Path) -> None:
        self._seconds = seconds
        self._order = {test: number for number, test in enumerate(seconds)}
        self._note = note

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Choose and sort."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order),
            key=lambda item: self._order[item.nodeid],
        )
        limit_tests(items, self._seconds)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module of tests that cannot be imported fails too."""
        if report.failed:
            self._note.write_text(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that failed."""
        if report.failed and not self._note.exists():
            self._note.write_text(report.nodeid)


def limit_tests(items: Iterable[pytest.Item], seconds: Mapping[str, float]) -> None:
    """Have tests fail that take many times as long as they took without a mutant."""
    for item in items:
        allowed_s = _PLUS_S + _TIMES * seconds.get(item.nodeid, 0.0)
        item.add_marker(pytest.mark.timeout(allowed_s), append=False)


def limit_s(seconds: Iterable[float]) -> float:
    """Return how long tests may take together."""
    return _START_LIMIT_S + _TIMES * sum(seconds)


def map_tests(root: Path, kept: Path) -> TestMap:
    """Return what each unit test runs: as kept in a file, but for files of tests that have changed.

    Raises:
        SystemExit: a test fails on the code as it is.
    """
    now = digests(root)
    before = TestMap.load(kept) if kept.exists() else TestMap()
    if before.digests.get("") != now[""]:
        before = TestMap()
    changed = [file for file in now if file and now[file] != before.digests.get(file)]
    gone = [file for file in before.digests if file not in now]
    found = before.without({*changed, *gone})
    if changed:
        found.add(_traced(root, changed))
    found.digests = now
    found.save(kept)
    return found


def _traced(root: Path, files: Sequence[str]) -> TestMap:
    out, log = root.with_suffix(".json"), root.with_suffix(".log")

    def trace() -> int:
        tracer = Tracer(install(root, "ray_precheck"))
        code = pytest.main([*OPTIONS, *files], plugins=[tracer])
        tracer.found.save(out)
        return int(code)

    code = ended(forked(root, trace, log), _MAP_LIMIT_S)
    found = TestMap.load(out) if out.exists() else TestMap()
    # A test or two that fail here, as they run in a copy, are left out.
    if code not in (0, pytest.ExitCode.TESTS_FAILED) or not found.seconds:
        raise SystemExit(f"the unit tests do not pass without a mutant:\n{log.read_text()[-3000:]}")
    return found


def first_failure(root: Path, tests: Mapping[str, float]) -> str:
    """Return which of the tests failed first, `TIMED_OUT`, or "" where all of them pass.

    The tests come with the seconds that each took without a mutant.
    """
    note, log = root.with_suffix(".note"), root.with_suffix(".log")
    note.unlink(missing_ok=True)
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))

    def run() -> int:
        return int(pytest.main([*OPTIONS, "-x", *files], plugins=[Chosen(tests, note)]))

    code = ended(forked(root, run, log), limit_s(tests.values())) if tests else 0
    if code == -signal.SIGKILL:
        return TIMED_OUT
    if code == 0:
        return ""
    return note.read_text() if note.exists() else f"pytest ended with {code}"


OPTIONS = [
    "-q", "--rootdir=.", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=ci", "--no-header",
    "-o", f"addopts=--strict-markers --timeout {_TEST_LIMIT_S}",
]  # fmt: skip


def forked(root: Path, run: Callable[[], int], log: Path) -> int:
    """Run in a process of its own, in this folder; returns its id."""

    def there() -> int:
        _become(root, log)
        return run()

    return in_fork(there)


def in_fork(run: Callable[[], int], broken: int = 99) -> int:
    """Run in a fork, which ends with the code that `run` returns, `broken` if it raises; returns the
    id of the process."""
    pid = os.fork()
    if pid == 0:
        code = broken
        try:
            code = run()
        except BaseException:  # a mutant may raise anything, and the fork must end here
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return pid


def ended(pid: int, limit_s: float) -> int:
    """Wait until a process has ended; returns its exit code, -9 where it was killed after the limit."""
    until = time.monotonic() + limit_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -signal.SIGKILL
        time.sleep(0.01)


def _become(root: Path, log: Path) -> None:
    """Make this process one that works in a folder: its modules, its output."""
    os.setsid()
    os.chdir(root)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(out, descriptor)
    for name in [name for name in sys.modules if name == "scripts" or name.startswith("scripts.")]:
        del sys.modules[name]
    sys.path.insert(0, str(root))
    os.environ["PYTHONPATH"] = str(root)
