"""The exit code of a bisect says what its findings rest on, and its job asks no question twice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.commands.bisect import job as bisect_job
from ray_precheck.commands.bisect.closing import BisectReport, bisect_exit_code, unresolved_foot
from ray_precheck.commands.bisect.job import BisectJob
from ray_precheck.commands.bisect.options import BisectConfig
from ray_precheck.commands.bisect.target import Survey
from ray_precheck.searching.bisection import Rung, RungFinding, RungSwitch, Search, SearchEnd
from ray_precheck.store.tables import run_files

pytestmark = pytest.mark.unit
OFF = Rung("off")
ON = Rung("on", (RungSwitch("a"), RungSwitch("b")), over="off")
CLEAN, FOUND, WRONG_AT_FOOT, NOISE, UNRESOLVED, BUDGET = SearchEnd
SOME = frozenset("a")


def report(*findings: RungFinding, completed: bool = True) -> BisectReport:
    files = run_files(Path("bisect_1.csv"), bisect_job.TABLES)
    return BisectReport(files, Survey((OFF, ON)), findings, (), (), completed)


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([RungFinding(OFF, CLEAN), RungFinding(ON, CLEAN)], 0),
        ([RungFinding(OFF, CLEAN), RungFinding(ON, NOISE)], 0),
        ([RungFinding(OFF, CLEAN)], 0),
        ([RungFinding(ON, CLEAN)], 0),
        ([RungFinding(OFF, CLEAN), RungFinding(ON, FOUND, (SOME,))], 1),
        ([RungFinding(OFF, WRONG_AT_FOOT)], 1),
        ([RungFinding(OFF, CLEAN), RungFinding(ON, BUDGET, suspects=SOME)], 1),
        ([RungFinding(OFF, CLEAN), RungFinding(ON, BUDGET, (SOME,))], 1),
        # Right with everything off, and no answer of anything that is on: nothing was compared.
        ([RungFinding(OFF, CLEAN), RungFinding(ON, UNRESOLVED)], 4),
        ([RungFinding(OFF, CLEAN), RungFinding(ON, BUDGET)], 4),
        ([RungFinding(OFF, CLEAN), RungFinding(ON, CLEAN), RungFinding(ON, BUDGET)], 4),
        ([RungFinding(OFF, UNRESOLVED)], 4),
        ([], 4),
    ],
)
def test_the_exit_code_rests_on_what_was_answered(findings: list[RungFinding], code: int) -> None:
    assert bisect_exit_code(report(*findings)) == code


def test_a_run_that_was_stopped_is_stopped_whatever_it_has_found() -> None:
    stopped = report(RungFinding(OFF, UNRESOLVED), completed=False)
    assert bisect_exit_code(stopped) == 3
    assert unresolved_foot(stopped) == ""
    assert unresolved_foot(replace(stopped, completed=True)) != ""


def test_a_search_is_not_asked_again_before_an_answer_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver asks for tasks five times a second, whatever a trial takes."""
    asked = 0
    wanted = Search.wanted

    def counted(self: Search, workers: int) -> Any:
        nonlocal asked
        asked += 1
        return wanted(self, workers)

    monkeypatch.setattr(Search, "wanted", counted)
    survey = Survey((OFF, ON), is_exact=True)
    job = BisectJob(None, BisectConfig(), survey, tmp_path, {}, [])  # type: ignore[arg-type]
    assert job.first_tasks(64)
    before = asked
    for _ in range(50):
        assert job.grow((), 64) == []
    assert asked - before <= 1
