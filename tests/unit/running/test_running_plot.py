import io

import numpy as np
import pytest

from ray_precheck.errors import UsageError
from ray_precheck.running import plot
from ray_precheck.running.plot import draw_view, require_rich
from ray_precheck.schema.view import Card, FlowGraph, Histogram, Tone, View, ViewState

TONES = list(Tone)


def view(**parts):
    return View("run_ut", "Precheck", "", Tone.ERROR, ViewState.FINISHED, **parts)


def drawn(found: View) -> str:
    screen = io.StringIO()
    draw_view(found, screen)
    return screen.getvalue()


def histogram(counts, limit=1.0):
    edges = tuple(10.0**power for power in range(-len(counts) // 2, len(counts) // 2 + 1))
    return Histogram("Errors", "the limit", edges, tuple(counts), limit)


def chain(length: int, start: int, **parts) -> FlowGraph:
    tones = np.full(length, TONES.index(Tone.PASS), np.uint8)
    tones[start:] = TONES.index(Tone.ERROR)
    own, inherited = np.full(length, np.nan), np.full(length, np.nan)
    own[start], inherited[start + 1] = 4.0, 2.0
    edges = np.array([(each, each + 1) for each in range(length - 1)])
    names = parts.get("names", tuple(f"call.{each}" for each in range(length)))
    return FlowGraph("Flow", "limits", names, tones, own, inherited, edges, edges[:0], (start,))


def test_the_first_card_with_a_histogram_is_drawn():
    cards = (
        Card("Mint.first.0", Tone.ERROR, ""),
        Card("Mint.second.0", Tone.ERROR, "", histogram=histogram([0, 1000, 1, 0])),
    )
    text = drawn(view(cards=cards))
    assert "Mint.second.0" in text
    assert "Mint.first.0" not in text
    [line] = [line for line in text.splitlines() if "beyond the limit" in line]
    # One element of a thousand has a bar, too.
    assert line.split() == ["1", "to", "10", "1", "█", "beyond", "the", "limit"]


def test_many_bins_are_put_together_and_no_element_is_lost():
    text = drawn(view(cards=(Card("a", Tone.ERROR, "", histogram=histogram([2] * 60)),)))
    lines = [line for line in text.splitlines() if " to " in line]
    assert len(lines) == 20
    assert sum(int(line.split()[3]) for line in lines) == 120


def test_the_flow_ends_three_steps_from_the_start():
    text = drawn(view(model=(chain(20, 10),)))
    shown = [f"call.{each}" in text.replace("\n", " ").split() for each in range(20)]
    assert [place for place, there in enumerate(shown) if there] == list(range(7, 14))
    assert "error, its own" in text
    assert "error, inherited" in text


def test_a_call_with_a_million_neighbors_shows_the_nearest():
    edges = np.array([(0, each) for each in range(1, 100_000)])
    names = tuple(map(str, range(100_000)))
    nothing = np.full(100_000, np.nan)
    tones = np.zeros(100_000, np.uint8)
    graph = FlowGraph("Flow", "limits", names, tones, nothing, nothing, edges, edges[:0], (0,))
    assert len(drawn(view(model=(graph,))).splitlines()) < 40


def test_names_cannot_obey_the_terminal_or_rich():
    names = ("\x1b[31mred\u202e", "[bold]b[/bold]", "x" * 1_000_000)
    text = drawn(view(model=(chain(3, 1, names=names),)))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]b[/bold]" in text
    assert len(text) < 5000


def test_a_view_with_nothing_to_draw_says_so():
    assert "nothing to draw" in drawn(view())


def test_without_rich_one_sentence_names_the_package(monkeypatch):
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install rich"):
        require_rich()
