"""Mutants are found in a text, planted one at a time, killed by tests that look, and else survive."""

import ast
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.mutants import __main__ as command
from scripts.mutants.__main__ import ROOT, draw
from scripts.mutants.changes import Change, find_changes, mutate
from scripts.mutants.reached import Marks

pytestmark = pytest.mark.unit

MODULE = '''"""A module."""

LIMIT = 3


def is_small(value: int) -> bool:
    return value < LIMIT


def half(value: int) -> float:
    return value / 2


def largest(values: list[int]) -> int:
    found = values[0]
    for value in values:
        if value > found:
            found = value
    return found
'''
TESTS = """

def test_a_number_is_small_below_the_limit() -> None:
    assert [is_small(value) for value in (2, 3, 4)] == [True, False, False]


def test_half() -> None:
    assert half(3) == 1.5


def test_largest() -> None:
    assert [largest(values) for values in ([1, 3, 2], [5])] == [3, 5]
"""


def changed(text: str) -> set[str]:
    """Return every line that a mutant of a text has in the place of another."""
    before = text.splitlines()
    found = set()
    for change in find_changes(text):
        after = mutate(text, change).splitlines()
        ast.parse("\n".join(after))
        (line,) = set(after) - set(before)
        found.add(line.strip())
    return found


@pytest.mark.parametrize(
    ("line", "mutants"),
    [
        ("x = a < b", {"x = (a <= b)", "x = (a >= b)"}),
        ("x = a is None", {"x = (a is not None)"}),
        ("x = a < b <= c", {"x = (a <= b <= c)", "x = (a >= b <= c)", "x = (a < b < c)", "x = (a < b > c)"}),
        ("x = a and b", {"x = (a or b)"}),
        ("x = not a", {"x = (a)"}),
        ("x = -a", {"x = (a)"}),
        ("x = f(a, key=True)", {"x = f(a, key=False)"}),
        ("x = a + b * c", {"x = (a - b * c)", "x = a + (b / c)"}),
        ("x += 1", {"x -= 1"}),
        ("x = a if b else c", {"x = a if (not b) else c"}),
        ("x = [a for a in b if a]", {"x = [a for a in b if (not a)]"}),
        ("x = f'{a + 1}'", set()),
        ("x: Literal[True] | None = a", set()),
        ("ä = 'ä' + b", {"ä = ('ä' - b)"}),
    ],
)  # fmt: skip
def test_the_changes_of_a_line(line: str, mutants: set[str]) -> None:
    assert changed(line) == mutants


def test_decorators_annotations_and_imports_for_types_are_left_alone() -> None:
    text = (
        "if TYPE_CHECKING:\n    x = 1 + 1\n"
        "@dataclass(frozen=True)\nclass A:\n    b: Literal[True]\n"
        "@cached(a=True)\ndef f(a: Literal[True] = 1) -> Literal[True]:\n    return a\n"
    )
    assert find_changes(text) == []


def test_a_change_knows_the_line_of_the_function_around_it() -> None:
    text = (
        "A = 1 + 1\n\n@cache\ndef f(a=1 + 1):\n    def g(b=1 + 1):\n        if b:\n"
        "            return -b\n    return (\n        a + 1\n    )\nB = [\n    lambda a: a + 1,\n]\n"
        "class C:\n    D = 1 + 1\n    def f(self):\n        return 1 + 1\n"
    )
    found = [(each.line, each.function) for each in find_changes(text)]
    in_functions = [(5, 4), (6, 5), (7, 5), (9, 4), (12, 12)]
    assert found == [(1, 0), (4, 0), *in_functions, (15, 0), (17, 16)]


def test_the_same_seed_draws_the_same_mutants_and_another_seed_others() -> None:
    first, again, other = (draw(ROOT, ["replay", "dump"], 20, seed) for seed in (1, 1, 2))
    assert first == again
    assert len(set(first)) == 20
    assert set(first) != set(other)
    assert {mutant.room for mutant in first} == {"replay", "dump"}


MARKED = """
    '''A module.'''
    from __future__ import annotations
    from dataclasses import dataclass

    double = (
        lambda a: a * 2
    )

    @dataclass(slots=True)
    class Pair:
        '''Two.'''
        left: int
        right: int = 1 + 1

        @property
        def sum(self) -> int:
            '''Both.'''
            return self.left + self.right

    def sign(value):
        if value < 0:
            return -1
        elif value == 0:
            return 0
        return [each for each in (1,)][0]
"""


def test_marks_say_which_functions_were_entered_and_change_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "marked_toy.py").write_text(textwrap.dedent(MARKED))
    monkeypatch.syspath_prepend(str(tmp_path))
    marks = Marks(tmp_path, "marked_toy")
    monkeypatch.setattr(sys, "meta_path", [marks, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "marked_toy", raising=False)
    toy = __import__("marked_toy")
    monkeypatch.delitem(sys.modules, "marked_toy")
    assert marks.take() == {}
    assert toy.double(4) == 8
    assert marks.take() == {"marked_toy.py": [7]}
    assert toy.Pair(1).sum == 3
    assert (toy.Pair.__doc__, toy.Pair.sum.__doc__, toy.__doc__) == ("Two.", "Both.", "A module.")
    assert marks.take() == {"marked_toy.py": [17]}
    assert [toy.sign(value) for value in (0, 3)] == [0, 1]
    assert marks.take() == {"marked_toy.py": [21]}


@dataclass(frozen=True)
class Toy:
    """A tree with a package of one module, and tests of it."""

    root: Path

    @property
    def module(self) -> Path:
        return self.root / "ray_precheck" / "store" / "toy.py"

    def write_tests(self, name: str, *lines: str, folder: str = "unit/store") -> None:
        head = "from ray_precheck.store.toy import *"
        (self.root / "tests" / folder / name).write_text("\n".join([head, *lines, ""]))

    def try_mutants(self, *options: str) -> "subprocess.CompletedProcess[str]":
        where = ["--root", str(self.root), "--rooms", "store", *options]
        command = [sys.executable, "-m", "scripts.mutants", *where]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    made = Toy(tmp_path)
    made.module.parent.mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "store").mkdir(parents=True)
    for folder in (made.module.parent, made.module.parent.parent):
        (folder / "__init__.py").touch()
    made.module.write_text("def half(value):\n    return value / 2\n")
    return made


def test_mutants_are_killed_but_for_the_one_that_makes_no_difference(toy: Toy) -> None:
    toy.module.write_text(MODULE)
    toy.write_tests("test_store_toy.py", TESTS)
    done = toy.try_mutants()
    total = len(find_changes(MODULE))
    assert f"seed 0: {total - 1} of {total} mutants killed" in done.stdout, (
        done.stdout + done.stderr
    )
    assert done.stdout.count("SURVIVED") == 1
    # Of two values that are equal it makes no difference which one is kept.
    assert "+        if (value >= found):" in done.stdout
    assert "by tests/unit/store/test_store_toy.py::test_half" in done.stdout
    assert toy.module.read_text() == MODULE
    assert done.returncode == int(total - 1 < 0.95 * total)


def test_a_kept_map_is_used_until_the_tree_has_changed(toy: Toy) -> None:
    kept = ("--maps", str(toy.root / "maps"))
    toy.write_tests("test_store_toy.py", "def test_half():", "    half(3)")
    done = toy.try_mutants(*kept)
    assert "+    return (value * 2)" in done.stdout, done.stdout + done.stderr
    assert "0 of 1 mutants killed" in done.stdout
    assert done.returncode == 1
    toy.write_tests("test_store_new.py", "def test_new():", "    assert half(3) == 1.5")
    done = toy.try_mutants(*kept)
    assert "2 unit tests" in done.stdout, done.stdout + done.stderr
    assert "by tests/unit/store/test_store_new.py::test_new" in done.stdout
    assert done.returncode == 0


def test_what_survives_the_unit_tests_is_tried_with_those_of_frameworks_that_enter_it(
    toy: Toy,
) -> None:
    toy.module.write_text(
        "def half(value):\n    return value / 2\ndef twice(value):\n    return value * 2\n"
    )
    toy.write_tests("test_store_toy.py", "def test_twice():", "    assert twice(3) == 6")
    (toy.root / "tests" / "frameworks").mkdir()
    # What the conftest file has imported counts as well.
    toy.write_tests("conftest.py", folder="frameworks")
    toy.write_tests(
        "test_real.py",
        *("def test_half():", "    assert half(3) == 1.5", "def test_nothing():", "    pass"),
        folder="frameworks",
    )
    done = toy.try_mutants()
    assert "2 of 2 mutants killed (100 %): 1 by tests/unit, 1 by tests/frameworks" in done.stdout, (
        done.stdout + done.stderr
    )
    assert "by tests/frameworks/test_real.py::test_half" in done.stdout
    assert "SURVIVED" not in done.stdout


@pytest.mark.parametrize(
    "lines", [("def test_broken():", "    assert half(3) == 2"), ("import nothing_of_that_name",)]
)
def test_a_tree_whose_tests_fail_without_a_mutant_is_refused(
    toy: Toy, lines: tuple[str, ...]
) -> None:
    toy.write_tests("test_store_toy.py", *lines)
    done = toy.try_mutants()
    assert done.returncode == 1
    assert "the unit tests do not pass without a mutant" in done.stderr
    assert "test_store_toy.py" in done.stderr


def test_a_test_that_fails_without_a_mutant_is_named_and_left_out(toy: Toy) -> None:
    toy.write_tests(
        "test_store_toy.py",
        "def test_broken():",
        "    assert half(3) == 2",
        "def test_half():",
        "    assert half(3) == 1.5",
    )
    done = toy.try_mutants()
    named = (
        "left out, as it fails without a mutant: tests/unit/store/test_store_toy.py::test_broken"
    )
    assert named in done.stdout, done.stdout + done.stderr
    assert "by tests/unit/store/test_store_toy.py::test_half" in done.stdout


def test_what_runs_on_import_is_tried_with_the_tests_of_modules_that_use_it(toy: Toy) -> None:
    toy.module.write_text("LIMIT = 1 + 2\n")
    user = toy.root / "ray_precheck" / "plan"
    user.mkdir()
    (user / "__init__.py").touch()
    (user / "user.py").write_text(
        "from ray_precheck.store.toy import LIMIT\ndef above():\n    return LIMIT + 1\n"
    )
    (toy.root / "tests" / "unit" / "plan").mkdir()
    (toy.root / "tests" / "unit" / "plan" / "test_plan_user.py").write_text(
        "from ray_precheck.plan.user import above\ndef test_above():\n    assert above() == 4\n"
    )
    done = toy.try_mutants()
    assert "1 of 1 mutants killed" in done.stdout, done.stdout + done.stderr
    assert "by tests/unit/plan/test_plan_user.py::test_above" in done.stdout


def test_a_test_that_hangs_has_failed_after_some_times_of_its_own_time(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_PLUS_S", 1.0)
    path = toy.root / "tests" / "unit" / "store" / "test_store_toy.py"
    path.write_text("def test_hang():\n    while True:\n        pass\n")
    test = f"{path.relative_to(toy.root)}::test_hang"
    begin = time.monotonic()
    assert command.first_failure(toy.root, {test: 0.01}) == test
    assert time.monotonic() - begin < 60


def test_a_test_that_passes_by_itself_has_noticed_nothing(toy: Toy) -> None:
    toy.write_tests(
        "test_store_toy.py",
        *("seen = []", "def test_first():", "    seen.append(1)"),
        *(
            "def test_second():",
            "    assert not seen",
            "def test_third():",
            "    assert half(3) == 2",
        ),
    )
    path = "tests/unit/store/test_store_toy.py"
    names = [f"{path}::test_{name}" for name in ("first", "second", "third")]
    assert command.killer_of(toy.root, dict.fromkeys(names, 0.1)) == names[2]
    assert command.killer_of(toy.root, dict.fromkeys(names[:2], 0.1)) == ""


def test_a_change_that_spans_lines_is_replaced_whole() -> None:
    text = "x = (\n    a\n    + b\n)\ny = 1\n"
    (change,) = find_changes(text)
    assert isinstance(change, Change)
    assert mutate(text, change) == "x = (\n    (a - b)\n)\ny = 1\n"
