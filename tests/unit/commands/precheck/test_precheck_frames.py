"""The tables of a report: numbers are numbers, text is text."""

import math
from pathlib import Path

import pytest

from ray_precheck.commands.precheck.run import PrecheckReport
from ray_precheck.commands.precheck.summary import Summary
from ray_precheck.replay.job import done_of
from ray_precheck.schema.result import Metrics, Outcome, OutputCheck, TaskResult, Verdict
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import start_run
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import added_setting

pytestmark = pytest.mark.unit

ADDED = ("HonestRMSE", "Standard", "Reference", "Bench", "HonestBy")


def check(number: int, metrics: Metrics | None, *added: tuple[str, float | str]) -> OutputCheck:
    """A detail row."""
    name = f"Mint.a.0.forward.output.{number}"
    return OutputCheck(name, "Float64", "Float32", "(2,)", metrics, Verdict.PASS, "1", added)


@pytest.fixture
def report(tmp_path: Path) -> PrecheckReport:
    """A call with an output that is a tensor, one that is none, and one that is NaN."""
    files = start_run(tmp_path, "20260101120000", RunSettings(added_setting(ADDED)))
    checks = (
        check(0, Metrics(0.5, 1e-3, 2.0), ("HonestRMSE", 1e-7), ("Standard", "ulp")),
        check(1, None),
        check(2, Metrics(None, math.nan, math.inf), ("HonestRMSE", math.nan)),
    )
    journal = Journal.open(files.result, files.details)
    result = TaskResult(
        0, "Mint.a.0", Outcome.COMPLETED, Verdict.PASS, Verdict.NONE, "12", checks=checks
    )
    journal.append([done_of(result, ADDED)])
    journal.close()
    return PrecheckReport(Summary(files), completed=True)


def test_metrics_are_numbers_also_where_a_row_has_none(report: PrecheckReport) -> None:
    details = report.details
    for heading in ("Cosine", "MaxAbsErr", "MaxRelativeErr", "HonestRMSE"):
        assert details[heading].dtype == "float64", heading
    assert details["MaxAbsErr"].max() == 1e-3
    assert details["MaxAbsErr"].isna().tolist() == [False, True, True]
    assert details["MaxRelativeErr"].tolist()[2] == math.inf
    assert details["HonestRMSE"].isna().tolist() == [False, True, True]


def test_text_stays_text_also_where_it_looks_like_a_number(report: PrecheckReport) -> None:
    details = report.details
    assert details["Message"].tolist() == ["1", "1", "1"]
    assert details["Standard"].tolist() == ["ulp", "", ""]
    for heading in ("Reference", "Bench", "HonestBy"):
        assert details[heading].tolist() == ["", "", ""], heading
    assert report.results["Message"].tolist() == ["12"]
    assert report.results["Backward Test Success"].tolist() == [""]
