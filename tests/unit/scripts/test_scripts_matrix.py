"""The matrix of versions: what it takes for a difference, a replaced package, a failed cell."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.matrix.cells import CELLS, DEFAULT
from scripts.matrix.environment import EnvironmentFailed, Planned, find_python, planned_of
from scripts.matrix.main import is_wrong
from scripts.matrix.notes import CellResult, read_found, write_found
from scripts.matrix.table import changed_verdicts, render, unchecked
from scripts.matrix.trial import Precheck, SuiteRun, clean_environ, suite_of, together, verdicts_of

pytestmark = pytest.mark.unit

_JUNIT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_1"/>
<testcase classname="tests.a" name="test_2"><failure message="no"/></testcase>
<testcase classname="tests.a" name="test_3"><error message="no"/></testcase>
<testcase classname="tests.a" name="test_4"><skipped message="could not import 'mindspore'"/></testcase>
<testcase classname="tests.a" name="test_5"><skipped message="could not import 'mindspore'"/></testcase>
</testsuite></testsuites>"""


def _found(name: str, verdicts: dict[str, tuple[str, str, str]]) -> CellResult:
    return CellResult(
        name,
        "2026-01-02",
        "Linux x86_64",
        versions={"torch": "2.4.1", "numpy": "1.26.4", "ray": "2.60.0"},
        tests=SuiteRun(7, (), {}, 1.5),
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
    assert tests.failed == ("tests.a::test_2", "tests.a::test_3")
    assert tests.skipped == {"could not import 'mindspore'": 2}


def test_runs_together_have_all_that_failed_and_was_skipped() -> None:
    one = SuiteRun(2, ("a",), {"no torch": 1}, 1.0)
    assert together([one, one]) == SuiteRun(4, ("a", "a"), {"no torch": 2}, 2.0)


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
        {"tests": None},
        {"tests": SuiteRun(7, ("tests.a::test_2",), {}, 1.0)},
        {"tests": SuiteRun(0, (), {"no torch": 9}, 1.0)},
    ],
    ids=["not made", "replaces", "not tested", "failed", "nothing passed"],
)
def test_a_cell_is_wrong_where_anything_is(change: dict[str, object]) -> None:
    found = _found("other", {})
    assert not is_wrong(found)
    assert is_wrong(dataclasses.replace(found, **change))  # type: ignore[arg-type]


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
    found = dataclasses.replace(found, plan=(Planned("numpy", "2.4.6", "1.26.4"),))
    text = render({DEFAULT.name: base, cell.name: found}, CELLS, DEFAULT.name)
    assert f"| {cell.name} | 3.10 | 2.4.1 | - | 1.26.4 | 2.60.0 | 7 | 0 | 0 | 1 of 2 | 1 |" in text
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
    environ = clean_environ(Path("/cell/bin/python"))
    assert "PYTHONPATH" not in environ
    assert environ["PATH"].startswith("/cell/bin")
