"""Which earlier run is gone on with, however it is named."""

from pathlib import Path

import pytest

from ray_precheck.commands.naive.job import NAIVE_TABLES
from ray_precheck.commands.overflow.job import OVERFLOW_TABLES
from ray_precheck.errors import ResumeError
from ray_precheck.running.run import Series, results_folder, resumed_table
from ray_precheck.store.tables import API_TABLES, Tables

pytestmark = pytest.mark.unit

OLD, NEW = "20260102030405_2", "20260102030405_10"


@pytest.mark.parametrize("tables", [API_TABLES, NAIVE_TABLES, OVERFLOW_TABLES])
def test_a_run_is_named_by_its_tables_or_by_its_folder(tmp_path: Path, tables: Tables) -> None:
    for stamp in (NEW, OLD):
        for kind in ("result", "details"):
            (tmp_path / tables.file(kind, stamp)).touch()
    assert resumed_table(None, tables) is None
    assert resumed_table(tmp_path, tables) == tmp_path / tables.file("result", NEW)
    for kind in ("result", "details"):
        named = tmp_path / tables.file(kind, OLD)
        assert resumed_table(named, tables) == tmp_path / tables.file("result", OLD)


def test_a_folder_without_results_is_said(tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match=r"has no accuracy_checking_result_\*.csv to go on in"):
        resumed_table(tmp_path, API_TABLES)


@pytest.fixture
def series(tmp_path: Path) -> Series:
    (tmp_path / "step0").mkdir()
    for name in (f"compare_calls_{OLD}.csv", f"step0/compare_calls_{NEW}.csv"):
        (tmp_path / name).touch()
    return Series(tmp_path, [Path(), Path("step0")], "compare", "compare_calls_")


def test_runs_of_one_stamp_are_named_by_their_folder_or_by_a_table(series: Series) -> None:
    assert series.stamp_of(series.folder) == NEW
    assert series.stamp_of(series.folder / f"compare_calls_{OLD}.csv") == OLD


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("step1", r"step1 has no compare_calls_\*.csv to go on in"),
        ("rows.csv", "rows.csv is no table of such a run; a name like compare_calls_2"),
        (f"locate_calls_{OLD}.csv", "is no table of such a run"),
        ("compare_result_20260101000000.csv", "there is no such file"),
    ],
)
def test_what_is_no_such_run_is_said(series: Series, name: str, said: str) -> None:
    with pytest.raises(ResumeError, match=said):
        series.stamp_of(series.folder / name)


def test_the_folder_of_results_is_named_by_itself_or_by_a_table(tmp_path: Path) -> None:
    assert results_folder(Path("out"), None) == Path("out")
    assert results_folder(Path("out"), tmp_path) == tmp_path
    assert results_folder(Path("out"), tmp_path / f"locate_calls_{OLD}.csv") == tmp_path
