"""The yardstick of the alignment in short: what it reaches, and that it sees what is broken."""

import pytest

from scripts.align_edits import BROKEN, VALUES, WANTED_F1, is_reached, main, measured

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("values", VALUES)
def test_pairs_are_found_after_edits_at_five_percent_of_the_places(values: str) -> None:
    scores = list(measured(["torch_llm", "mindspore_llm"], 1000, values, 2, seed=1))
    assert is_reached(scores), scores


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("no anchors", "same"),
        ("no shapes", "none"),
        ("no fusions", "other run"),
        ("off by one", "same"),
        ("by name", "same"),
    ],
)
def test_a_broken_alignment_is_seen(name: str, values: str) -> None:
    with BROKEN[name]():
        scores = list(measured(["torch_llm"], 1000, values, 2, seed=1))
    assert sum(score.f1 for score in scores) / len(scores) < WANTED_F1


def test_a_dropped_call_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray_precheck.trace.alignment import align as room

    whole = room.align
    monkeypatch.setattr(room, "align", lambda *sides: whole(*sides)[1:])
    (score,) = measured(["mindspore_llm"], 300, "same", 1, seed=1)
    assert score.dropped >= 1
    assert not is_reached([score])


def test_the_command_says_whether_it_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--calls", "300", "--trials", "1", "--captures", "mindspore_llm", "--values", "same"]
    assert main(short) == 0
    assert main([*short, "--broken", "by name"]) == 1
    assert "| whole | 300 | same |" in capsys.readouterr().out
