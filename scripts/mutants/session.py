"""One session of pytest that has loaded all unit tests and tries mutants, each in a fork of itself.

Comes in: a copy of the tree, mutants. Goes out: what killed each of them. Called by `main`. A fork has
the tests ready, so that a mutant costs little more than the tests that notice it.
"""

import gc
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from scripts.mutants.changes import mutate
from scripts.mutants.choice import stages
from scripts.mutants.drawing import Mutant
from scripts.mutants.planting import Planter, write
from scripts.mutants.tests_of import TestMap
from scripts.mutants.trial import OPTIONS, TIMED_OUT, ended, forked, in_fork, limit_s, limit_tests

# A fork's exit codes: all tests passed; one failed; the mutant cannot be planted in a loaded module.
_PASSED, _FAILED, _NOT_PLANTED, _BROKEN = 0, 1, 3, 4


def try_all(root: Path, mutants: Sequence[Mutant], tests: TestMap) -> Iterator[str | None]:
    """Yield for each mutant what killed it, "" for nothing, None where a fresh process must tell.

    Raises:
        SystemExit: pytest could not load the tests.
    """
    reading, writing = os.pipe()
    log = root.with_suffix(".session.log")
    files = sorted({test.partition("::")[0] for test in tests.seconds})

    def run() -> int:
        session = _Session(root, mutants, tests, writing)
        folder = root.with_suffix(".tmp")
        return int(pytest.main([*OPTIONS, f"--basetemp={folder}", *files], plugins=[session]))

    process = forked(root, run, log)
    os.close(writing)
    tried = 0
    with open(reading, encoding="utf-8") as answers:
        for line in answers:
            yield json.loads(line)
            tried += 1
    ended(process, 60.0)
    if tried < len(mutants):
        raise SystemExit(f"the session of tests has ended:\n{log.read_text()[-3000:]}")


class _Session:
    """A plugin of pytest that tries mutants in the place of running all tests."""

    def __init__(self, root: Path, mutants: Sequence[Mutant], tests: TestMap, answers: int) -> None:
        self._root = root
        self._mutants = mutants
        self._tests = tests
        self._answers = answers
        self._items: dict[str, pytest.Item] = {}
        self._planter: Planter
        self._has_failed = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants."""
        self._items = {item.nodeid: item for item in session.items}
        limit_tests(session.items, self._tests.seconds)
        self._planter = Planter(self._root / "ray_precheck")
        # The forks need not look through what is loaded, which would copy it.
        gc.freeze()
        for mutant in self._mutants:
            os.write(self._answers, f"{json.dumps(self._try(mutant))}\n".encode())
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notice a test that fails in a fork."""
        self._has_failed = self._has_failed or report.failed

    def _try(self, mutant: Mutant) -> str | None:
        path = self._root / mutant.path
        before = path.read_text("utf-8")
        after = mutate(before, mutant.change)
        # Other processes that a test starts read the file.
        write(path, after)
        try:
            return self._killer(mutant, path, after)
        finally:
            write(path, before)

    def _killer(self, mutant: Mutant, path: Path, after: str) -> str | None:
        line = mutant.change.statement
        begun: set[str] = set()
        for stage in stages(mutant, self._tests) if line else ():
            new = [test for test in stage if test in self._items and test not in begun]
            begun.update(new)
            killer = self._first_failure(new, path, after) if new else ""
            if killer is None or killer:
                return killer
        return None if not line or self._tests.runs_on_import(mutant.path, line) else ""

    def _first_failure(self, tests: Sequence[str], path: Path, after: str) -> str | None:
        """Return the test that failed first, "" where all passed, None where it cannot be planted."""
        note = self._root.with_suffix(".note")
        note.unlink(missing_ok=True)

        def alone() -> int:
            os.setsid()
            return self._run(tests, path, after, note)

        pid = in_fork(alone, _BROKEN)
        code = ended(pid, limit_s(self._tests.seconds[test] for test in tests))
        if code == _NOT_PLANTED:
            return None
        if code == -signal.SIGKILL:
            return TIMED_OUT
        if code == _PASSED:
            return ""
        return note.read_text() if note.exists() else f"a test ended with {code}"

    def _run(self, tests: Sequence[str], path: Path, after: str, note: Path) -> int:
        """Run tests in a fork until one fails; returns the exit code."""
        if not self._planter.plant(path, after):
            return _NOT_PLANTED
        items = [self._items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._has_failed:
                note.write_text(item.nodeid)
                return _FAILED
        return _PASSED
