"""Columns that a standard adds to the details: written, kept through a resume, never mixed."""

from dataclasses import replace
from pathlib import Path

import pytest
from store_results import DETAIL_HEADER, contents, encoded, files_in, names_in, passed, split_rows

from ray_precheck.errors import ResumeError
from ray_precheck.schema.result import TaskResult
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import resume_run, start_run
from ray_precheck.store.settings import RunSettings, load_settings
from ray_precheck.store.tables import (
    DETAIL_COLUMNS,
    RunFiles,
    added_columns,
    added_setting,
    decode_row,
    detail_rows,
    header,
)

pytestmark = pytest.mark.unit

ADDED = ("Standard", "RMSE", "Reference")
PLAIN = {"dump": "d1", "standard": "msprobe"}
RATED = {"dump": "d1", "standard": "benchmark", **added_setting(ADDED)}
OTHER = {"dump": "d1", "standard": "ulp", **added_setting(["Standard", "MeanUlpErr"])}
NAMES = {"Mint.a.0", "Mint.b.0", "Mint.c.0"}


def rated(index: int, name: str) -> TaskResult:
    """A call that passes, with cells of the added columns."""
    result = passed(index, name, outputs=2)
    cells = (("RMSE", 0.1), ("Standard", "benchmark L0"), ("Elsewhere", 3.0))
    checks = (replace(result.checks[0], columns=cells), result.checks[1])
    return replace(result, checks=checks)


def started(folder: Path, settings: dict[str, str], *results: TaskResult) -> RunFiles:
    """The files of a run that was stopped after these results."""
    files = start_run(folder, "20260101120000", RunSettings(settings))
    journal = Journal.open(files.result, files.details)
    journal.append(encoded(results, *added_columns(settings)))
    journal.close()
    return files


def test_settings_name_the_added_columns() -> None:
    assert added_columns(RATED) == ADDED
    assert added_columns(PLAIN) == added_columns({}) == ()
    assert added_setting(()) == {}


def test_cells_stand_under_their_headings_and_what_is_missing_stays_empty() -> None:
    first, second = detail_rows(rated(0, "Mint.a.0"), *ADDED).splitlines(keepends=True)
    assert decode_row(first.rstrip(b"\r\n"))[9:] == ["benchmark L0", "0.1", ""]
    assert decode_row(second.rstrip(b"\r\n"))[9:] == ["", "", ""]
    assert len(decode_row(first)) == len(DETAIL_COLUMNS) + 3


def test_without_added_columns_the_rows_are_as_ever() -> None:
    assert detail_rows(rated(0, "Mint.a.0")) == detail_rows(passed(0, "Mint.a.0", outputs=2))


def test_a_text_that_a_spreadsheet_would_run_gets_an_apostrophe() -> None:
    result = passed(0, "Mint.a.0")
    result = replace(result, checks=(replace(result.checks[0], columns=(("Standard", "=1"),)),))
    assert decode_row(detail_rows(result, "Standard").rstrip(b"\r\n"))[9] == "'=1"


def test_a_run_has_the_columns_of_its_settings(tmp_path: Path) -> None:
    files = started(tmp_path, RATED, rated(0, "Mint.a.0"))
    details = files.details.read_bytes()
    assert details.startswith(header((*DETAIL_COLUMNS, *ADDED)))
    assert details.endswith(detail_rows(rated(0, "Mint.a.0"), *ADDED))


def test_a_run_of_the_default_has_none(tmp_path: Path) -> None:
    files = started(tmp_path, PLAIN, rated(0, "Mint.a.0"))
    assert files.details.read_bytes() == DETAIL_HEADER + detail_rows(rated(0, "Mint.a.0"))


def test_a_run_without_settings_has_none(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    Journal.open(files.result, files.details).close()
    assert files.details.read_bytes() == DETAIL_HEADER


@pytest.mark.parametrize("settings", [PLAIN, RATED], ids=["default", "added"])
def test_a_torn_run_goes_on_and_ends_as_an_undisturbed_one(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    results = [rated(i, name) for i, name in enumerate(sorted(NAMES))]
    whole = started(tmp_path / "whole", settings, *results)
    Journal.open(whole.result, whole.details).complete(sorted(NAMES))
    files = started(tmp_path / "torn", settings, *results[:2])
    files.details.write_bytes(files.details.read_bytes()[:-7])
    done = resume_run(files, NAMES, settings)
    assert done == {"Mint.a.0"}
    journal = Journal.open(files.result, files.details)
    journal.append(encoded(results[1:], *added_columns(settings)))
    journal.complete(sorted(NAMES))
    assert contents(files) == contents(whole)


def test_a_writer_that_died_is_followed_by_one_with_the_same_columns(tmp_path: Path) -> None:
    files = started(tmp_path, RATED, rated(0, "Mint.a.0"))
    with files.details.open("ab") as file:
        file.write(b"Mint.b.0.forward.out")
    journal = Journal.reopen(files.result, files.details)
    journal.append(encoded([rated(0, "Mint.a.0"), rated(1, "Mint.b.0")], *ADDED))
    journal.close()
    rows = split_rows(files.details.read_bytes())
    assert rows[0] == header((*DETAIL_COLUMNS, *ADDED))
    assert names_in(files.details.read_bytes()) == [
        f"Mint.{call}.0.forward.output.{i}" for call in "ab" for i in (0, 1)
    ]


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        (PLAIN, RATED, "was made with standard msprobe, not benchmark;"),
        (RATED, PLAIN, "was made with standard benchmark, not msprobe;"),
        (RATED, OTHER, "was made with standard benchmark, not ulp;"),
    ],
)
def test_a_resume_with_another_standard_is_refused(
    tmp_path: Path, before: dict[str, str], now: dict[str, str], named: str
) -> None:
    files = started(tmp_path, before, rated(0, "Mint.a.0"))
    was = contents(files)
    with pytest.raises(ResumeError) as raised:
        resume_run(files, NAMES, now)
    assert named in str(raised.value)
    assert contents(files) == was


@pytest.mark.parametrize(("before", "now"), [(PLAIN, RATED), (RATED, PLAIN), (RATED, OTHER)])
@pytest.mark.parametrize("is_complete", [True, False])
def test_other_columns_are_refused_even_with_force_and_nothing_is_changed(
    tmp_path: Path, before: dict[str, str], now: dict[str, str], is_complete: bool
) -> None:
    files = started(tmp_path, before, rated(0, "Mint.a.0"))
    if is_complete:
        Journal.open(files.result, files.details).complete(["Mint.a.0"])
    files.result.write_bytes(files.result.read_bytes() + b"Mint.b.0,pa")
    was = contents(files), load_settings(files.settings)
    with pytest.raises(ResumeError, match=r"API Name, Bench Dtype.*; one file cannot hold"):
        resume_run(files, NAMES, now, force=True)
    assert (contents(files), load_settings(files.settings)) == was


def test_another_standard_with_the_same_columns_goes_on_with_force(tmp_path: Path) -> None:
    files = started(tmp_path, RATED, rated(0, "Mint.a.0"), rated(1, "Mint.b.0"))
    now = {**RATED, "standard": "file 0123"}
    assert resume_run(files, NAMES, now, force=True) == {"Mint.a.0"}
    settings = load_settings(files.settings)
    assert settings is not None
    assert settings.added_columns == ADDED


def test_the_same_standard_with_other_columns_is_told_by_them(tmp_path: Path) -> None:
    files = started(tmp_path, RATED, rated(0, "Mint.a.0"))
    now = {**RATED, **added_setting(["Standard", "RMSE"])}
    with pytest.raises(ResumeError, match="added columns Standard, RMSE, Reference, not Standard"):
        resume_run(files, NAMES, now)


def test_msprobes_own_details_are_set_aside_for_a_run_with_added_columns(tmp_path: Path) -> None:
    files = started(tmp_path, PLAIN, rated(0, "Mint.a.0"))
    files.settings.unlink()
    assert resume_run(files, NAMES, RATED) == {"Mint.a.0"}
    assert not files.details.exists()
    Journal.open(files.result, files.details).close()
    assert files.details.read_bytes() == header((*DETAIL_COLUMNS, *ADDED))


@pytest.mark.parametrize("lacks", [("HonestBy",), ("Bench", "HonestBy")])
def test_a_run_that_a_former_version_began_goes_on_without_its_later_columns(
    tmp_path: Path, lacks: tuple[str, ...]
) -> None:
    added = ("Standard", "Bench", "RMSE", "HonestBy")
    before = tuple(each for each in added if each not in lacks)
    was = {"dump": "d1", "standard": "auto", **added_setting(before)}
    files = started(tmp_path, was, rated(0, "Mint.a.0"), rated(1, "Mint.b.0"))
    assert resume_run(files, NAMES, {**was, **added_setting(added)}) == {"Mint.a.0"}
    settings = load_settings(files.settings)
    assert settings is not None
    assert settings.added_columns == before
    Journal.open(files.result, files.details).close()
    assert files.details.read_bytes().startswith(header((*DETAIL_COLUMNS, *before)))


def test_a_run_with_later_columns_does_not_go_on_in_a_standard_that_lacks_them(
    tmp_path: Path,
) -> None:
    was = {"dump": "d1", "standard": "auto", **added_setting(["Standard", "HonestBy"])}
    files = started(tmp_path, was, rated(0, "Mint.a.0"))
    with pytest.raises(ResumeError, match="added columns Standard, HonestBy, not Standard;"):
        resume_run(files, NAMES, {**was, **added_setting(["Standard"])})
