"""Which tests are tried on a mutant, and in which order.

Comes in: a mutant and the `TestMap`. Goes out: stages of tests, the likeliest to fail first. Called by
`session`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from scripts.mutants.drawing import Mutant, importers
from scripts.mutants.tests_of import TestMap

# So long may the tests take that are tried though they do not reach the statement.
_BEYOND_S = 10.0


def stages(mutant: Mutant, tests: TestMap) -> Iterator[list[str]]:
    """Yield tests that reach the statement, those of its room first, then others that might.

    The map does not see what a fixture of a module does for its later tests, what a cache keeps for
    later tests, nor other processes: the last stage has tests for these, as many as are fast.
    """
    at_home = f"tests/unit/{mutant.room}/"
    direct = tests.reaching(mutant.path, mutant.change.statement) if mutant.change.statement else []
    first = [test for test in direct if test.startswith(at_home)]
    yield _in_order(first, tests)
    yield _in_order({*direct} - {*first}, tests)
    of_file = tests.reaching(mutant.path)
    files = {test.partition("::")[0] for test in direct}
    of_files = (test for test in tests.seconds if test.partition("::")[0] in files)
    at_home_too = (test for test in tests.starters if test.startswith(at_home))
    yield _fastest({*of_file, *of_files, *at_home_too} - {*direct}, tests)


def tests_of_import(root: Path, mutant: Mutant, tests: TestMap) -> list[str]:
    """Return the tests for what runs as a module is imported: those that use it, and those of its room."""
    users = [mutant.path, *importers(root, mutant.path)]
    of_users = {test for path in users for test in tests.reaching(path)}
    at_home = {test for test in tests.seconds if test.startswith(f"tests/unit/{mutant.room}/")}
    first = _in_order(of_users & at_home, tests)
    return [*first, *_fastest((of_users | at_home) - {*first}, tests)]


def _in_order(chosen: Iterable[str], tests: TestMap) -> list[str]:
    return sorted(chosen, key=lambda test: (tests.seconds[test], test))


def _fastest(chosen: Iterable[str], tests: TestMap) -> list[str]:
    found, seconds = [], 0.0
    for test in _in_order(chosen, tests):
        seconds += tests.seconds[test]
        if seconds > _BEYOND_S:
            break
        found.append(test)
    return found
