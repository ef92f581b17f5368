"""What the Views of all commands share."""

import json
from pathlib import Path

import numpy as np
import pytest

from ray_precheck.running import views
from ray_precheck.running.views import (
    JudgedCall,
    code_around,
    module_tree,
    named_and_more,
    shown_times,
    timeline_chart,
)
from ray_precheck.schema.view import Tone

pytestmark = pytest.mark.unit


def timeline(path: Path, spans: list[tuple[int, float, float]]) -> Path:
    """Write a timeline as a run does: spans are (thread, begin, length) in microseconds."""
    lines = [
        '{"name":"process_name","ph":"M","pid":1,"tid":1,"args":{"name":"host"}}',
        *(
            f'{{"name":"thread_name","ph":"M","pid":1,"tid":{tid},"args":{{"name":"cpu:{tid}"}}}}'
            for tid in (2, 3)
        ),
        *(
            json.dumps(
                {
                    "name": f"c{i}",
                    "cat": "check",
                    "ph": "X",
                    "ts": ts,
                    "dur": dur,
                    "pid": 1,
                    "tid": tid,
                }
            )
            for i, (tid, ts, dur) in enumerate(spans)
        ),
    ]
    path.write_text("[\n" + ",\n".join(lines) + ',\n{"name":"torn","ph":"X","ts":1')
    return path


def test_a_timeline_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = timeline(tmp_path / "t.json", [(2, 5e6, 1e6), (3, 4e6, 2e6), (2, 7e6, 5e5)])
    chart = timeline_chart({"rank0": path, "gone": tmp_path / "none.json"})
    assert chart is not None
    assert chart.lanes == ("rank0 host cpu:2", "rank0 host cpu:3")
    assert [chart.names[name] for name in chart.name] == ["c1", "c0", "c2"]
    assert chart.begin.tolist() == [0.0, 1.0, 3.0]
    assert chart.length.tolist() == [2.0, 1.0, 0.5]
    assert chart.lane.tolist() == [1, 0, 0]
    assert timeline_chart({"gone": tmp_path / "none.json"}) is None


def test_of_too_many_pieces_some_are_drawn_together_and_idle_time_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_MOST_SPANS", 4)
    spans = [(2, 10.0 * i, 5.0 + i) for i in range(7)] + [(3, 10.0 * i, 9.0 - i) for i in range(4)]
    path = timeline(tmp_path / "t.json", spans)
    chart = timeline_chart({"": path})
    assert chart is not None
    assert "11 pieces, 3 that followed each other drawn as one" in chart.title
    busy = [chart.length[chart.lane == lane].sum() * 1e6 for lane in (0, 1)]
    assert busy == pytest.approx([sum(5.0 + i for i in range(7)), sum(9.0 - i for i in range(4))])
    assert len(chart.begin) == 5
    assert [chart.names[name] for name in chart.name[chart.lane == 0]] == ["c2", "c5", "c6"]
    assert [chart.names[name] for name in chart.name[chart.lane == 1]] == ["c7", "c10"]
    assert np.all(np.diff(chart.begin) >= 0)


def test_code_around_a_line_or_why_it_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("\n".join(f"line {i}" for i in range(1, 21)))
    lines, why = code_around(f"{path}:10, in forward: x; called by {path}:12, in main: y")
    assert [line.number for line in lines if line.is_here] == [12]
    assert (lines[0].number, lines[-1].number, why) == (8, 16, "")
    assert code_around(f"{path}:99, in f: x") == (
        (),
        f"{path} has 20 lines, not 99: it is not the file that was run",
    )
    assert code_around(f"{tmp_path}/gone.py:3, in f")[1] == (
        f"{tmp_path}/gone.py is not on this machine, so that its code cannot be shown"
    )
    assert code_around("") == ((), "the capture has no source line of this call")


def test_a_module_has_the_worst_verdict_below_it() -> None:
    parents = {"m.a": "m", "m.b": "m", "m": "", "m.a.x": "m.a", "l1": "l2", "l2": "l1"}
    calls = (
        JudgedCall("m.a.x", Tone.PASS, "1"),
        JudgedCall("m.a.x", Tone.ERROR, "2"),
        JudgedCall("m.b", Tone.SKIP, "3"),
        JudgedCall("l1", Tone.WARNING, "4"),
        JudgedCall("", Tone.ERROR, "5"),
    )
    tree = module_tree("modules", calls, parents)
    assert tree is not None
    found = {node.name: (node.tone, node.calls, node.errors, node.link) for node in tree.nodes}
    assert found["m"] == (Tone.ERROR, 3, 1, "2")
    assert found["m.a"] == found["m.a.x"] == (Tone.ERROR, 2, 1, "2")
    assert found["m.b"] == (Tone.SKIP, 1, 0, "3")
    assert found["l1"] == found["l2"] == (Tone.WARNING, 1, 0, "4")
    names = [node.name for node in tree.nodes]
    assert all(node.parent < index for index, node in enumerate(tree.nodes))
    assert names[tree.nodes[names.index("m.a.x")].parent] == "m.a"
    assert module_tree("modules", calls[4:], parents) is None


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        (0.0381, "0.0381"), (200.0013, "200"), (3782.6, "3,783"), (7.036e6, "7,036,000"),
        (1.4881e7, "1.49e+7"), (float("inf"), "inf"),
    ],
)  # fmt: skip
def test_a_multiple_is_written_as_the_page_does(times: float, shown: str) -> None:
    assert shown_times(times) == shown


def test_at_most_ten_names_are_named() -> None:
    names = [str(n) for n in range(12)]
    assert named_and_more(names[:2]) == "0, 1"
    assert named_and_more(names, 3) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, and 5 more"


def test_of_calls_with_one_verdict_a_module_links_the_farthest_beyond_its_limit() -> None:
    calls = [
        JudgedCall("a", Tone.ERROR, "near", times=2.0),
        JudgedCall("b", Tone.ERROR, "unknown", times=float("nan")),
        JudgedCall("b", Tone.ERROR, "far", times=9.0),
        JudgedCall("b", Tone.WARNING, "other", times=99.0),
    ]
    tree = module_tree("t", calls, {"b": "a"})
    assert tree is not None
    assert [(node.name, node.link) for node in tree.nodes] == [("a", "far"), ("b", "far")]
