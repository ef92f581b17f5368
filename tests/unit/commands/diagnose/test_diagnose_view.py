"""The View of diagnose: its sentence, the culprits of its parts once each, and what to do next."""

import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.cli import main
from ray_precheck.commands.diagnose.kept import kept_file
from ray_precheck.commands.diagnose.parts import DiagnosisParts
from ray_precheck.commands.diagnose.report import view
from ray_precheck.errors import StoppedError
from ray_precheck.running.views import found_run
from ray_precheck.schema.view import Card, Tone, View, ViewState
from tests.unit.commands.diagnose.test_diagnose_run import ADD, MUL, StandIn, calls, pair

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(DiagnosisParts, "precheck", lambda parts, *rest: stand_in(parts, *rest))
    return stand_in


def page_in(folder: Path) -> Path:
    (page,) = (folder / "out").glob("diagnose_*.txt")
    return page


def seen(folder: Path) -> View:
    return view([found_run(page_in(folder))])


def test_the_culprit_of_its_parts_has_one_card_and_the_steps_are_the_advice(tmp_path: Path) -> None:
    assert main(pair(tmp_path, calls(1.01))) == 1
    found = seen(tmp_path)
    assert found.sentence.startswith(f"{MUL} (own error (estimate)): it differs by more than")
    assert (found.tone, found.state, found.exit_code) == (Tone.ERROR, ViewState.FINISHED, 1)
    assert [card.name for card in found.cards].count(MUL) == 1
    assert found.cards[0].name == MUL
    assert found.cards[0].row == ""
    assert found.advice[0].sentence.startswith("It passes on the CPU")
    assert found.advice[0].commands[0].startswith("ray-precheck run_ut -api_info ")
    questions = [row[0] for row in found.tables[0].rows]
    assert questions[0] == "Were both runs given the same?"
    assert ("compare: error", 1) in [(count.name, count.number) for count in found.counts]
    assert found.invocation.endswith(f"-o {tmp_path}/out")
    assert f"ray-precheck diagnose -tp {tmp_path}" in found.invocation


def test_an_honest_pair_has_no_card(tmp_path: Path) -> None:
    assert main(pair(tmp_path, calls())) == 0
    found = seen(tmp_path)
    assert found.sentence == "Nothing is wrong in these captures."
    assert (found.tone, found.exit_code, found.cards) == (Tone.PASS, 0, ())


def test_a_diagnosis_that_was_stopped_has_the_cards_of_what_it_has_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def stopped(*_: Any) -> None:
        raise StoppedError("the cluster is gone")

    monkeypatch.setattr(DiagnosisParts, "check_overflow", stopped)
    words = [*pair(tmp_path, calls(1.01)), "--json", "-"]
    assert main(words) == 3
    told = capsys.readouterr()
    (one,) = json.loads(told.out)["views"]
    assert (one["state"], one["exit_code"]) == ("stopped", 3)
    assert one["sentence"].startswith("Stopped before its end; so far: ")
    assert one["cards"][0]["name"] == MUL
    assert "-csv_path" in one["advice"][-1]["commands"][0]
    assert "Stopped before the end: the cluster is gone" in told.err


def test_a_page_whose_kept_file_is_torn_has_the_verdict_of_its_parts(tmp_path: Path) -> None:
    assert main(pair(tmp_path, calls(1.01))) == 1
    kept_file(page_in(tmp_path)).write_text('{"format": 1')
    found = seen(tmp_path)
    assert (found.state, found.exit_code) == (ViewState.FINISHED, 1)
    assert "is missing or cannot be read" in found.notes[0]
    assert found.cards[0].name == MUL


def test_other_inputs_are_the_sentence_where_no_operator_is_to_blame(tmp_path: Path) -> None:
    assert main(pair(tmp_path, calls(given=calls()[0][1][0] * 2))) == 1
    found = seen(tmp_path)
    assert found.sentence.startswith("The runs were given different things: ")
    assert found.cards[0].name == ADD


def test_a_call_that_several_parts_suspect_has_one_card_with_what_each_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(pair(tmp_path, calls(1.01))) == 1
    page = page_in(tmp_path)
    stamp = page.stem.removeprefix("diagnose_")
    (page.parent / f"accuracy_checking_result_{stamp}.csv").write_text("")
    output = Card(
        "Mint.mul.0.forward.output.0", Tone.ERROR, "too far", reproduce="run it", case="c"
    )
    other = Card("Mint.tanh.0.backward.output.1", Tone.ERROR, "too far")
    checked = View("run_ut", "", "", Tone.ERROR, ViewState.FINISHED, cards=(output, other))
    monkeypatch.setattr("ray_precheck.commands.precheck.report.view", lambda found: checked)
    found = seen(tmp_path)
    assert found.cards[0].name == MUL
    assert [card.name for card in found.cards].count(output.name) == 0
    assert found.cards[0].case == "c"
    assert found.cards[0].bars
    assert other.name in [card.name for card in found.cards]
