"""The matrix of versions: what it takes for a difference, a replaced package, a failed cell."""

import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.matrix import attempt as attempts
from scripts.matrix import trial
from scripts.matrix.attempt import attempt, lacks, noted
from scripts.matrix.cells import CELLS, DEFAULT, Cell
from scripts.matrix.environment import (
    Environment,
    EnvironmentFailed,
    Planned,
    find_python,
    planned_of,
)
from scripts.matrix.main import is_wrong
from scripts.matrix.notes import CellResult, machine_words, read_found, write_found
from scripts.matrix.table import changed_verdicts, render, unchecked
from scripts.matrix.trial import (
    STANDARDS,
    Precheck,
    SuiteRun,
    clean_environ,
    functions_of,
    mended,
    suite_of,
    together,
    verdicts_of,
)

pytestmark = pytest.mark.unit

_JUNIT = """<testsuites><testsuite>
<testcase classname="tests.a" file="tests/a.py" name="test_1"/>
<testcase classname="tests.a.TestB" file="tests/a.py" name="test_2[x.y]"><failure message="no"/></testcase>
<testcase classname="tests.a" file="tests/a.py" name="test_3"><error message="no"/></testcase>
<testcase classname="tests.a" file="tests/a.py" name="test_4"><skipped message="no mindspore"/></testcase>
<testcase classname="tests.a" file="tests/a.py" name="test_5"><skipped message="no mindspore"/></testcase>
</testsuite></testsuites>"""
_LATER = """<testsuites><testsuite>
<testcase classname="tests.a.TestB" file="tests/a.py" name="test_2[x.y]"/>
<testcase classname="tests.a.TestB" file="tests/a.py" name="test_2[z]"><failure message="no"/></testcase>
<testcase classname="tests.a" file="tests/a.py" name="test_3"><skipped message="no mindspore"/></testcase>
</testsuite></testsuites>"""


_SUITES = [" ".join(arguments) for arguments in CELLS[1].suites()]


def _found(name: str, verdicts: dict[str, tuple[str, str, str]]) -> CellResult:
    return CellResult(
        name,
        "2026-01-02",
        "Linux x86_64",
        versions={"torch": "2.4.1", "numpy": "1.26.4", "ray": "2.60.0"},
        tests={"tests/unit": SuiteRun(3, (), {}, 1.5), "tests/b": SuiteRun(4, (), {}, 1.5, 2)},
        prechecks={"torch_cnn auto": Precheck(0, verdicts, "")},
        plan=(Planned("orjson", "3.13"),),
    )


def test_planned_of_names_a_package_that_is_there_already() -> None:
    chosen = [{"metadata": {"name": "Num_Py", "version": "2"}}]
    chosen += [{"metadata": {"name": "orjson", "version": "3"}}]
    planned = planned_of({"install": chosen}, {"num-py": "1"})
    assert planned == (Planned("Num_Py", "2", "1"), Planned("orjson", "3", ""))


def test_suite_of_counts_errors_as_failures_and_skips_by_reason() -> None:
    tests = suite_of(_JUNIT, 2.0)
    assert tests.passed == 1
    assert tests.failed == ("tests/a.py::TestB::test_2[x.y]", "tests/a.py::test_3")
    assert tests.skipped == {"no mindspore": 2}


def test_runs_together_have_all_that_failed_and_was_skipped() -> None:
    one = SuiteRun(2, ("a",), {"no torch": 1}, 1.0, 3)
    assert together([one, one]) == SuiteRun(4, ("a", "a"), {"no torch": 2}, 2.0, 6)


def test_after_a_mend_what_failed_has_its_later_outcome_and_what_fails_now_has_failed() -> None:
    before = suite_of(_JUNIT, 2.0)
    # test_2[z] passed before; test_3 is skipped now.
    now = mended(replace(before, passed=2), _LATER)
    assert now.failed == ("tests/a.py::TestB::test_2[z]",)
    assert (now.passed, now.skipped, now.again) == (2, {"no mindspore": 3}, 2)


def test_a_test_that_the_later_run_lacks_has_still_failed() -> None:
    before = SuiteRun(5, ("tests/a.py::test_9",), {}, 1.0)
    assert mended(before, _LATER).failed == ("tests/a.py::TestB::test_2[z]", "tests/a.py::test_9")


def test_a_test_with_parameters_of_other_names_has_the_outcome_of_its_function() -> None:
    before = SuiteRun(5, ("tests/a.py::test_1[old]", "tests/a.py::TestB::test_2[old]"), {}, 1.0)
    later = _LATER.replace("test_3", "test_1[new]").replace('<skipped message="no mindspore"/>', "")
    now = mended(before, later)
    assert now.failed == ("tests/a.py::TestB::test_2[old]", "tests/a.py::TestB::test_2[z]")
    assert now.again == 1


def test_functions_are_named_once_without_parameters() -> None:
    failed = ["tests/a.py::T::test_2[x[0]::y]", "tests/a.py::T::test_2[z]", "tests/a.py::test_3"]
    assert functions_of(failed) == ["tests/a.py::T::test_2", "tests/a.py::test_3"]


def test_verdicts_of_reads_messages_with_commas() -> None:
    text = 'API Name,Forward Test Success,Backward Test Success,Message\na,pass,SKIP,"x, y"\n'
    assert verdicts_of(text) == {"a": ("pass", "SKIP", "x, y")}


def test_differences_are_other_verdicts_and_missing_rows_but_not_other_messages() -> None:
    base = _found(
        "default", {"a": ("pass", "pass", "x"), "b": ("pass", "", ""), "c": ("pass", "", "")}
    )
    found = _found(
        "other", {"a": ("pass", "pass", "y"), "b": ("SKIP", "", "no kernel"), "d": ("pass", "", "")}
    )
    assert [(each.api, each.here[0]) for each in changed_verdicts(found, base)] == [
        ("b", "SKIP"),
        ("c", "no row"),
        ("d", "pass"),
    ]


def test_a_capture_without_rows_is_unchecked_and_no_difference() -> None:
    base = _found("default", {"a": ("pass", "", "")})
    found = _found("other", {})
    assert changed_verdicts(found, base) == []
    assert list(unchecked(found)) == ["torch_cnn auto"]


@pytest.mark.parametrize(
    "change",
    [
        {"failure": "no Python 3.10"},
        {"plan": (Planned("numpy", "2.4.6", "1.26.4"),)},
        {"tests": {}},
        {"prechecks": {}},
        {"tests": {name: SuiteRun(7, ("tests/a.py::test_2",), {}, 1.0) for name in _SUITES}},
        {"tests": {name: SuiteRun(0, (), {"no torch": 9}, 1.0) for name in _SUITES}},
    ],
    ids=["not made", "replaces", "not tested", "not checked", "failed", "nothing passed"],
)
def test_a_cell_is_wrong_where_anything_is(change: dict[str, object]) -> None:
    found = _whole(CELLS[1])
    assert not is_wrong(CELLS[1], found)
    assert is_wrong(CELLS[1], replace(found, **change))  # type: ignore[arg-type]


def _whole(cell: Cell) -> CellResult:
    """A cell that lacks nothing."""
    names = [each for each in lacks(cell, _found(cell.name, {})) if each.split()[-1] in STANDARDS]
    return replace(
        _found(cell.name, {}),
        tests={name: SuiteRun(7, (), {}, 1.0) for name in map(" ".join, cell.suites())},
        prechecks={name: Precheck(0, {"a": ("pass", "", "")}, "") for name in names}
        | {"torch_cnn auto": Precheck(0, {"a": ("pass", "", "")}, "")},
    )


def test_an_attempt_that_was_interrupted_does_only_what_is_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def check(python: Path, dump: Path, standard: str, out: Path) -> Precheck:
        done.append(f"{dump.parent.name} {standard}")
        return Precheck(0, {}, "")

    def suite(python: Path, tree: Path, chosen: Sequence[str], folder: Path) -> SuiteRun:
        if chosen == ("tests/frameworks",) and "crash" not in done:
            done.append("crash")
            raise KeyboardInterrupt
        done.append(" ".join(chosen))
        return SuiteRun(1, (), {}, 1.0)

    monkeypatch.setattr(attempts, "make", lambda *_: Environment(tmp_path / "python", (), {}, ""))
    monkeypatch.setattr(attempts, "ROOT", Path(__file__).parent)
    monkeypatch.setattr(attempts, "precheck", check)
    monkeypatch.setattr(attempts, "run_tests", suite)
    with pytest.raises(KeyboardInterrupt):
        attempt(CELLS[1], tmp_path)
    attempt(CELLS[1], tmp_path)
    attempt(CELLS[1], tmp_path)
    wanted = lacks(CELLS[1], CellResult("other", "", ""))
    crashed = wanted.index("tests/frameworks")
    assert done == [*wanted[:crashed], "crash", *wanted[crashed:]]
    assert lacks(CELLS[1], noted(CELLS[1], tmp_path)) == []


def test_with_again_what_failed_is_run_again_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = CELLS[1]
    failing = {name: SuiteRun(5, ("tests/a.py::test_9",), {}, 1.0) for name in _SUITES[:1]}
    write_found(replace(_whole(cell), tests=_whole(cell).tests | failing), tmp_path)
    chosen: list[tuple[str, ...]] = []

    def again(python: Path, tree: Path, before: SuiteRun, folder: Path) -> SuiteRun:
        chosen.append(before.failed)
        return SuiteRun(6, (), {}, 1.0, 1)

    monkeypatch.setattr(attempts, "make", lambda *_: Environment(tmp_path / "python", (), {}, ""))
    monkeypatch.setattr(attempts, "ROOT", Path(__file__).parent)
    monkeypatch.setattr(attempts, "run_again", again)
    attempt(cell, tmp_path)
    assert chosen == []
    attempt(cell, tmp_path, again=True)
    assert chosen == [("tests/a.py::test_9",)]
    assert sum(run.again for run in noted(cell, tmp_path).tests.values()) == 1


def test_a_cell_without_all_unit_tests_is_like_others_that_have_them() -> None:
    cells = {cell.name: cell for cell in CELLS}
    for cell in CELLS:
        others = [cells[name] for name in cell.like]
        assert ("tests/unit" in cell.suites()[-1]) == (not others)
        assert all("tests/unit" in other.suites()[-1] for other in others)
        if others:
            assert cell.python in [other.python for other in others]
            assert cell.version_of("numpy") in [other.version_of("numpy") for other in others]


def test_the_machine_is_named() -> None:
    assert platform.system() in machine_words()


def test_what_was_found_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = _found("other", {"a": ("pass", "pass", "x")})
    write_found(found, tmp_path)
    assert read_found(tmp_path / "other.json") == found


def test_the_table_tells_each_difference_with_its_reason() -> None:
    cell = CELLS[1]
    base = _found(DEFAULT.name, {"a": ("pass", "pass", ""), "b": ("pass", "pass", "")})
    found = _found(
        cell.name, {"a": ("pass", "pass", ""), "b": ("SKIP", "SKIP", "no kernel, please check")}
    )
    found = replace(found, plan=(Planned("numpy", "2.4.6", "1.26.4"),))
    text = render({DEFAULT.name: base, cell.name: found}, CELLS, base)
    assert (
        f"| {cell.name} | 3.10 | 2.4.1 | - | 1.26.4 | 2.60.0 | 7 | 2 | 0 | 0 | 1 of 2 | 1 |" in text
    )
    assert f"| {cell.name} | numpy 1.26.4 by 2.4.6 |  |" in text
    assert "- pass/pass -> SKIP/SKIP in 1 rows of torch_cnn auto: b: no kernel\n" in text


def test_find_python_finds_this_one_and_names_one_that_is_missing() -> None:
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    found = subprocess.run([find_python(minor), "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == minor
    with pytest.raises(EnvironmentFailed, match=r"Python 3\.99 is neither"):
        find_python("3.99")


def test_another_environment_is_not_led_into_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environ = clean_environ(Path("/cell/bin/python"))
    assert "PYTHONDONTWRITEBYTECODE" not in environ
    assert "PYTHONPATH" not in environ
    assert environ["PATH"].startswith("/cell/bin")


def test_the_table_names_what_was_not_run() -> None:
    cell = CELLS[1]
    text = render({cell.name: _found(cell.name, {})}, CELLS, _found(DEFAULT.name, {}))
    assert "- not run: `mindspore_llm msprobe`," in text
    assert "not run" not in render({cell.name: _whole(cell)}, CELLS, _found(DEFAULT.name, {}))


def test_captures_that_were_not_checked_for_one_reason_are_told_together() -> None:
    refused = Precheck(
        2, {}, "a mindspore dump needs mindspore, which is not installed here; install"
    )
    found = replace(_found("other", {}), prechecks={"a auto": refused, "b auto": refused})
    text = render({CELLS[1].name: found}, CELLS, _found(DEFAULT.name, {}))
    told = "exit code 2: a mindspore dump needs mindspore, which is not installed here"
    assert f"- not checked, {told} (a auto, b auto)\n" in text


def test_what_is_run_again_runs_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        commands.append(command)
        (tmp_path / "tests.xml").write_text(_LATER)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(trial.subprocess, "run", run)
    before = SuiteRun(3, ("tests/a.py::test_3",), {}, 1.5)
    now = trial.run_again(Path("python"), tmp_path, before, tmp_path)
    trial.run_tests(Path("python"), tmp_path, ["tests/unit"], tmp_path)
    assert now.again == 1
    assert ["-n" in command for command in commands] == [False, True]
