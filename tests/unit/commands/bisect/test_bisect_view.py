"""The View of bisect: guilty sets with their proofs, lines and trials, from the files of a run alone."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.cli import main
from ray_precheck.commands.bisect.findings import (
    FORMAT,
    KeptFinding,
    KeptFindings,
    findings_file,
)
from ray_precheck.commands.bisect.job import TABLES
from ray_precheck.commands.bisect.report import view
from ray_precheck.running.views import found_run
from ray_precheck.schema.view import StepChart, Tone, View, ViewState
from ray_precheck.searching.bisection import SearchEnd
from ray_precheck.store.kept import keep_found
from ray_precheck.store.settings import load_settings, save_settings
from ray_precheck.store.tables import encode_row, header, run_files

pytestmark = pytest.mark.unit
FOUR = [f"env:{name}=1|0" for name in "ABCD"]
Bisect = Callable[..., Path]


@pytest.fixture
def bisect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bisect:
    """Return a function that bisects a shell's command and returns the table of trials."""
    monkeypatch.chdir(tmp_path)

    def run(script: str, *options: object, code: int = 1) -> Path:
        words = [word for each in FOUR for word in ("--switch", each)]
        places = ["-o", "out", "-d", "0", "1"]
        command = ["bisect", "run", *words, *places, *map(str, options), "--", "sh", "-c", script]
        assert main(command) == code
        (table,) = (tmp_path / "out").glob("bisect_2*.csv")
        return table

    return run


def seen(table: Path) -> View:
    return view([found_run(table)])


def test_a_guilty_pair_has_a_card_with_its_proofs_and_lines(bisect: Bisect) -> None:
    table = bisect('[ "$B$D" != 11 ]')
    found = seen(table)
    trials = sum(count.number for count in found.counts)
    assert found.sentence == (
        f"env:B=1|0, env:D=1|0 together make the result wrong ({trials} trials)."
    )
    assert (found.tone, found.state, found.exit_code) == (Tone.ERROR, ViewState.FINISHED, 1)
    (card,) = found.cards
    assert card.name == "env:B=1|0, env:D=1|0"
    assert (
        card.why
        == f"wrong with it alone: trial {card.row}; right without it: trial"
        + (card.why.rpartition("trial")[2])
    )
    facts = {fact.name: fact.value for fact in card.facts}
    assert facts["Off in shell"] == "export B=0"
    assert facts[f"Trial {card.row}"] == "FAIL, it ended with 1"
    rows = table.read_text("utf-8-sig").splitlines()
    (proof,) = (row for row in rows if row.startswith(f"{card.row},"))
    assert ",FAIL," in proof
    assert "only 2,4 of 4" in proof


def test_the_set_shrinks_from_all_switches_to_the_guilty_ones(bisect: Bisect) -> None:
    found = seen(bisect('[ "$B$D" != 11 ]'))
    (chart,) = found.overview
    assert isinstance(chart, StepChart)
    assert len(chart.steps) == sum(count.number for count in found.counts)
    assert (chart.steps[0].value, chart.steps[-1].value) == (4.0, 2.0)
    wrong = [step for step in chart.steps if step.tone is Tone.ERROR]
    assert all(": FAIL, " in step.text for step in wrong)
    assert len(wrong) == next(count.number for count in found.counts if count.name == "FAIL")


def test_alternatives_have_a_card_each_and_what_is_right_without(bisect: Bisect) -> None:
    table = bisect("[ $A = 0 ] && [ $C = 0 ]")
    found = seen(table)
    assert found.sentence.startswith("2 alternatives each make the result wrong (")
    assert [card.name for card in found.cards] == ["env:A=1|0", "env:C=1|0"]
    for card in found.cards:
        (proof,) = (
            r for r in table.read_text("utf-8-sig").splitlines() if r.startswith(f"{card.row},")
        )
        assert f"({card.name})" in proof
    cures = [
        fact.value for card in found.cards for fact in card.facts if fact.name == "Right without"
    ]
    assert cures == ["env:A=1|0, env:C=1|0"] * 2


def test_nothing_to_find_and_nothing_answered_are_said(bisect: Bisect, tmp_path: Path) -> None:
    found = seen(bisect("true", code=0))
    assert found.sentence.startswith("Right with everything on, in ")
    assert (found.tone, found.exit_code, found.cards) == (Tone.PASS, 0, ())
    (tmp_path / "out").rename(tmp_path / "before")
    found = seen(bisect("exit 125", code=2))
    assert found.sentence.startswith("With everything off there is no answer, in ")
    assert (found.tone, found.exit_code) == (Tone.SKIP, 2)
    assert "it cannot tell" in found.reasons[0].text
    assert found.advice[0].sentence.startswith("Mend what is run")


def test_wrong_with_everything_off_is_a_card_without_a_culprit(bisect: Bisect) -> None:
    found = seen(bisect("false"))
    assert found.sentence.startswith("Wrong with all of switches off (")
    assert [card.name for card in found.cards] == ["switches"]


def test_what_is_suspected_when_the_trials_are_used_up_is_a_warning(bisect: Bisect) -> None:
    found = seen(bisect('[ "$B$D" != 11 ]', "--trials", 6))
    assert found.sentence.startswith(
        "The trials or the time were used up in switches: of 4 switches"
    )
    assert (found.tone, found.cards[0].tone) == (Tone.WARNING, Tone.WARNING)
    assert "more of `--trials`" in found.advice[0].sentence


def test_a_run_that_was_killed_shows_its_trials_and_how_to_go_on(bisect: Bisect) -> None:
    table = bisect('[ "$B$D" != 11 ]')
    files = run_files(table, TABLES)
    findings_file(files).unlink()
    settings = load_settings(files.settings)
    assert settings is not None
    save_settings(files.settings, replace(settings, completed=None))
    found = seen(table)
    assert (found.state, found.exit_code, found.cards) == (ViewState.STOPPED, 3, ())
    assert "is missing or cannot be read" in found.notes[0]
    assert found.tables[0].path == table
    assert f"-csv_path {table.absolute()}" in found.advice[0].commands[0]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": 1, "findings": [{}]}', '{"format": 9}']
)
def test_findings_that_are_torn_are_said_and_not_needed(bisect: Bisect, content: str) -> None:
    table = bisect("false")
    findings_file(run_files(table, TABLES)).write_text(content)
    found = seen(table)
    assert "is missing or cannot be read" in found.notes[0]
    assert sum(count.number for count in found.counts) > 0


def test_a_metric_stands_beside_its_limit(tmp_path: Path) -> None:
    files = run_files(tmp_path / TABLES.file("result", "20260101120000"), TABLES)
    row = [
        "7",
        "passes",
        "only 1 of 2 (fuse)",
        "1",
        "",
        "FAIL",
        "12.5",
        "0.50",
        "out at [0]: 12.5 times",
    ]
    files.result.write_bytes(header(TABLES.result) + encode_row(row))
    found = KeptFinding(
        "passes", "graph passes", SearchEnd.FOUND, False, 2, (("fuse",),), ("fuse",),
        sufficient=("7",), grouped=(("fuse", "other"),), error_rate=0.02, is_complete=False,
        said=("fuse: model.py:3",), code=(("python", 'config.delete_pass("fuse")'),),
    )  # fmt: skip
    keep_found(findings_file(files), KeptFindings(1, "paddle", (found,), (), 2.5), FORMAT)
    (card,) = seen(files.result).cards
    assert [(bar.name, bar.value, bar.limit) for bar in card.bars] == [
        ("distance in trial 7", 12.5, 2.5)
    ]
    assert (card.times, card.why) == (
        5.0,
        "wrong with it alone: trial 7; right without it: no trial shows it.",
    )
    facts = {fact.name: fact.value for fact in card.facts}
    assert facts["Off in python"] == 'config.delete_pass("fuse")'
    assert facts["Found"] == "fuse: model.py:3"
    assert facts["Equal trials disagree in up to"] == "2%"
    assert card.missing == (
        "not told apart, as those trials gave no answer: fuse, other",
        "there may be more alternatives",
    )


def test_json_goes_to_the_screen_and_the_closing_lines_beside_it(
    bisect: Bisect, capsys: pytest.CaptureFixture[str]
) -> None:
    bisect('[ "$B$D" != 11 ]', "--json", "-")
    told = capsys.readouterr()
    found: dict[str, Any] = json.loads(told.out)["views"][0]
    assert (found["command"], found["exit_code"]) == ("bisect", 1)
    assert "together, none of them alone: env:B=1|0, env:D=1|0" in told.err
