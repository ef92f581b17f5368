"""The View of a search for the operator to blame: of estimates, ranks, gone captures and torn tables."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.cli import main
from ray_precheck.commands.locate.plan import LOCATION_TABLES
from ray_precheck.commands.locate.report import view
from ray_precheck.commands.locate.run import locate_captures
from ray_precheck.commands.locate.search import LocationReport
from ray_precheck.commands.locate.walk.places import COLUMNS
from ray_precheck.commands.report.rows import TableRows, linked_name
from ray_precheck.running.views import found_run
from ray_precheck.schema.view import FlowGraph, HeatMap, ModuleTree, Tone, View, ViewState
from scripts.speed.locate_scale import faulty_call, make_runs, operators
from tests.unit.commands.small_captures import write_capture

pytestmark = pytest.mark.unit
RNG = np.random.default_rng(0)
A, B, C = (RNG.standard_normal((4, 8)).astype(np.float32) for _ in range(3))
ADD, MUL, EXP = "Mint.add.0.forward", "Mint.mul.0.forward", "Mint.exp.0.forward"
CALLS = [
    (ADD, [A, B], [A + B]),
    (MUL, [A + B, C], [(A + B) * C]),
    (EXP, [(A + B) * C], [np.exp((A + B) * C)]),
]
STACKS = {MUL: ["File /home/me/net.py, line 7, in forward, \n return x * c"]}
MODULE = "Module.block.Block.forward.0"


def with_fault() -> list[Any]:
    wrong = (A + B) * C * 1.1
    return [CALLS[0], (MUL, [A + B, C], [wrong]), (EXP, [wrong], [np.exp(wrong)])]


def located(folder: Path, target: Sequence[Any], golden: Sequence[Any]) -> LocationReport:
    one = write_capture(folder / "target", target, files=False, stacks=STACKS)
    modules = {
        ADD: MODULE,
        MUL: MODULE,
        MODULE: "Module.Net.forward.0",
        "Module.Net.forward.0": None,
    }
    one.with_name("construct.json").write_text(json.dumps(modules))
    two = write_capture(folder / "golden", golden, files=False)
    return locate_captures(one, two, out=folder / "out")


def names_of(found: View) -> list[str]:
    """The names of the rows of the first table."""
    (table,) = found.tables
    assert table.path is not None
    pieces = TableRows(table.path, table.columns).pieces()
    return [linked_name(table, cells) for piece in pieces for cells in piece]


def view_of(report: LocationReport) -> View:
    return view([found_run(report.table)])


def graph_of(found: View) -> FlowGraph:
    (graph,) = (chart for chart in found.model if isinstance(chart, FlowGraph))
    return graph


def links(graph: FlowGraph) -> set[tuple[str, str]]:
    return {(graph.names[one], graph.names[two]) for one, two in graph.edges.tolist()}


def test_the_culprit_has_the_first_card(tmp_path: Path) -> None:
    found = view_of(located(tmp_path, with_fault(), CALLS))
    assert found.sentence.startswith("One operator is to blame: Mint.mul.0 (forward)")
    assert (found.tone, found.state, found.exit_code) == (Tone.ERROR, ViewState.FINISHED, 1)
    (card,) = found.cards
    assert (card.name, card.row) == (MUL, MUL)
    assert card.why.startswith("Own error (estimate), ")
    assert card.unit == "times what rounding explains"
    assert "times what rounding explains: output.0 differs by" in card.why
    own, inherited = card.bars
    assert own.value == card.times > 1000
    # What would be too much is said in words: an estimate has one threshold, an inherited error has none.
    assert math.isnan(own.limit)
    assert inherited.value == 0
    assert math.isnan(inherited.limit)
    facts = {each.name: each.value for each in found.facts}
    assert facts["A call is to blame above"] == "14 times what rounding explains, 4 of half types"
    assert facts["Records (forward or backward passes of calls)"] == (
        "3: 1 to blame, 1 only pass an error on, 0 could not be checked, 1 pass, which have no row; 3 were"
        " judged by themselves, 3 have a partner in the golden run"
    )
    assert card.source == "/home/me/net.py:7, in forward: return x * c"
    assert any("/home/me/net.py is not on this machine" in each for each in card.missing)
    assert card.module == MODULE
    assert [each.name for each in card.inputs] == ["input.0", "input.1", "output.0"]
    assert card.inputs[0].value.endswith("the golden run has the same")
    assert "; the golden run: " in card.inputs[2].value
    assert any("no files of tensors" in each for each in card.missing)
    assert card.reproduce.endswith(f"why {MUL}")
    assert {each.name: each.number for each in found.counts} == {
        "to blame": 1,
        "inherited": 1,
        "not checked": 0,
        "pass": 1,
    }
    assert any("--task tensor" in each.sentence for each in found.advice)


HEAD = ",".join(COLUMNS)
PASSED_ON = (("b", "inherited"), ("d", "not checked"))
TOLD = (
    "RMSE is 0.02, must be at most 1e-06 (the worst honest implementation's is 1e-07); it is 2e+04 times as"
    " large; 9 of 10 compared elements (0.9 of them) are beyond it; also largest error is 0.5, must be at"
    " most 2e-05; likely cause: every element is zero"
)


def of_rows(folder: Path, *rows: str, process: str = "proc15071") -> View:
    """The View of a table alone: its captures are gone."""
    table = folder / "locate_20260101120000.csv"
    (folder / "step0" / process).mkdir(parents=True, exist_ok=True)
    (folder / "step0" / process / "locate_calls_20260101120000.csv").touch()
    table.write_text("\r\n".join([HEAD, *rows, ""]))
    return view([found_run(table)])


def root_row(
    place: int, step: int, name: str, direction: str = "forward", own: str = "7e+05"
) -> str:
    cells = (place, step, 15071, name, direction, own, 5, "own error", '"output.0[1, 2]"', "", "")
    return f'{",".join(map(str, cells))},every element is zero,"{TOLD}"'


def test_a_card_says_one_metric_and_each_thing_once(tmp_path: Path) -> None:
    (card,) = of_rows(tmp_path, root_row(1, 0, "Mint.a.0")).cards
    assert card.why == (
        "Own error, 700,000 times what rounding explains: RMSE 0.02, must be at most 1e-06"
    )
    facts = {each.name: each.value for each in card.facts}
    assert facts["In detail"] == (
        "it is 20,000 times as large; 9 of 10 compared elements (0.9 of them) are beyond it; also largest"
        " error is 0.5, must be at most 2e-05"
    )
    assert card.cause == "every element is zero"
    assert facts["Worst element"] == "output.0[1, 2]"
    assert facts["Process"] == "15071"
    # At 1e-06, its limit, the metric would be 1 / 20,000 of what it is, and the own error 35.
    assert card.bars[0].limit == pytest.approx(35)


def test_an_operator_has_one_card_and_the_sentence_names_all(tmp_path: Path) -> None:
    calls = [(0, "forward"), (0, "backward"), (1, "forward"), (1, "backward")]
    rows = [
        root_row(place, step, f"Mint.{name}.0", direction, f"{9 - place}e+05")
        for place, (name, (step, direction)) in enumerate(((n, c) for n in "ab" for c in calls), 1)
    ]
    found = of_rows(tmp_path, *rows)
    assert found.sentence == (
        "2 operators are to blame, the likeliest first: Mint.a, Mint.b (8 suspects of 2 steps); the likeliest"
        " call is Mint.a.0 (forward) (own error, 800,000 times what rounding explains)."
    )
    assert [card.row for card in found.cards] == [
        "0/15071/Mint.a.0.forward",
        "0/15071/Mint.b.0.forward",
    ]
    (also,) = (fact.value for fact in found.cards[0].facts if fact.name == "Also")
    assert also == (
        "step 0 Mint.a.0 backward (700,000 times), step 1 Mint.a.0 forward (600,000 times),"
        " step 1 Mint.a.0 backward (500,000 times)"
    )
    assert found.more_cards == 0
    assert len(set(names_of(found))) == 8


def test_the_counts_of_a_replay_add_up(tmp_path: Path) -> None:
    folder = tmp_path / "step0/proc1"
    folder.mkdir(parents=True)
    names = [f"Mint.{name}.0.forward" for name in "abcd"]
    # Integers pass without an own error; a row with a value is of no record.
    verdicts = (("error", "9"), ("pass", "2"), ("pass", ""), ("SKIP", ""))
    rows = [f"{name},,,,,,{','.join(each)}" for name, each in zip(names, verdicts, strict=True)]
    values = "\r\n".join([",".join(LOCATION_TABLES.details), *rows, f"{names[0]},input.0,1", ""])
    (folder / "locate_values_20260101120000.csv").write_text(values)
    others = [f",0,1,Mint.{name}.0,forward,,,{said},,,,," for name, said in PASSED_ON]
    found = of_rows(tmp_path, root_row(1, 0, "Mint.a.0"), *others, process="proc1")
    counts = {each.name: each.number for each in found.counts}
    assert counts == {"to blame": 1, "inherited": 1, "not checked": 1, "pass": 1}
    (said,) = (each.value for each in found.facts if each.name.startswith("Records"))
    assert said == (
        "4: 1 to blame, 1 only pass an error on, 1 could not be checked, 1 pass, which have no row; 3 were"
        " judged by themselves"
    )


def test_what_the_runs_were_given_keeps_cards_of_its_own(tmp_path: Path) -> None:
    given = [
        root_row(place, 0, f"Mint.a.{place}").replace("own error", "other input")
        for place in (1, 2)
    ]
    found = of_rows(tmp_path, *given, root_row(3, 0, "Mint.a.3"), root_row(4, 0, "Mint.a.4"))
    assert [card.name for card in found.cards] == [
        "Mint.a.1.forward",
        "Mint.a.2.forward",
        "Mint.a.3.forward",
    ]
    assert found.sentence.startswith(
        "The runs were given different things: other input at Mint.a.1"
    )


def test_the_graph_opens_at_the_culprit_and_has_what_passes_its_error_on(tmp_path: Path) -> None:
    found = view_of(located(tmp_path, with_fault(), CALLS))
    graph = graph_of(found)
    assert graph.names == (ADD, MUL, EXP)
    assert links(graph) == {(ADD, MUL), (MUL, EXP)}
    assert [tuple(Tone)[tone] for tone in graph.tones] == [Tone.PASS, Tone.ERROR, Tone.WARNING]
    assert graph.starts == (1,)
    assert graph.own[1] == found.cards[0].times
    (tree,) = (chart for chart in found.model if isinstance(chart, ModuleTree))
    assert [(node.name, node.calls, node.errors) for node in tree.nodes] == [
        ("Net", 2, 1),
        ("block.Block", 2, 1),
    ]
    (types,) = found.overview
    assert isinstance(types, HeatMap)
    assert types.rows[0] == "Mint.mul"
    assert types.columns == ("Float32",)
    assert types.links[0, 0] == MUL
    # The map, the graph and the row have one number for a call.
    assert types.values[0, 0] == graph.own[1]
    assert graph.links == ("", MUL, EXP)
    assert types.values[1, 0] == graph.own[2] <= types.above < graph.own[1]


@pytest.mark.parametrize("gone", ["target", "golden"])
def test_where_a_capture_is_gone_the_links_of_the_journal_are_drawn(
    tmp_path: Path, gone: str
) -> None:
    report = located(tmp_path, with_fault(), CALLS)
    (tmp_path / gone / "dump.json").unlink()
    found = view_of(report)
    assert any("the captures cannot be read on this machine" in note for note in found.notes)
    assert "the flow is that of affected records alone" in " ".join(found.notes)
    graph = graph_of(found)
    assert links(graph) == {(MUL, EXP)}
    assert graph.names[graph.starts[0]] == MUL
    (card,) = found.cards
    assert card.inputs == ()
    assert card.times > 1000


def test_without_captures_and_links_no_flow_is_drawn(tmp_path: Path) -> None:
    report = located(tmp_path, with_fault(), CALLS)
    (tmp_path / "target" / "dump.json").unlink()
    for path in (tmp_path / "out").glob("locate_roots_*.csv"):
        path.write_bytes(b"nonsense\n")
    found = view_of(report)
    assert not any(isinstance(chart, FlowGraph) for chart in found.model)
    assert any(note.startswith("no flow of calls is drawn") for note in found.notes)
    assert any("it has links between records" in note for note in found.notes)
    assert [card.name for card in found.cards] == [MUL]


def test_two_runs_that_agree_have_no_culprit(tmp_path: Path) -> None:
    found = view_of(located(tmp_path, CALLS, CALLS))
    assert found.sentence == "No operator is to blame: rounding explains what the records show."
    assert (found.cards, found.tone, found.exit_code) == ((), Tone.PASS, 0)
    assert graph_of(found).starts == ()


def test_another_input_is_no_operators_fault(tmp_path: Path) -> None:
    other = B + 1
    target = [(ADD, [A, other], [A + other]), (EXP, [A + other], [np.exp(A + other)])]
    golden = [(ADD, [A, B], [A + B]), (EXP, [A + B], [np.exp(A + B)])]
    found = view_of(located(tmp_path, target, golden))
    assert found.sentence.startswith(
        "The runs were given different things: other input at Mint.add.0"
    )
    assert found.exit_code == 1


def test_torn_tables_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    report = located(tmp_path, with_fault(), CALLS)
    raw = report.table.read_bytes()
    report.table.write_bytes(raw[: raw.rindex(b"Mint.exp") + 5])
    found = view_of(report)
    assert [card.name for card in found.cards] == [MUL]
    assert any("ends in the middle of a row" in note for note in found.notes)
    for content in (b"", b"nonsense\n", b"\xff\x00" * 50):
        report.table.write_bytes(content)
        assert view_of(report).cards == ()


def test_a_search_without_a_table_has_not_come_to_its_end(tmp_path: Path) -> None:
    report = located(tmp_path, with_fault(), CALLS)
    report.table.unlink()
    found = view_of(report)
    assert (found.state, found.exit_code) == (ViewState.STOPPED, 3)
    assert "has not come to its end" in found.sentence


def test_names_that_are_hostile_stay_names(tmp_path: Path) -> None:
    name = "Mint.<script>alert(1)</script>.0.forward"
    golden = [CALLS[0], (name, [A + B], [np.exp(A + B)])]
    target = [CALLS[0], (name, [A + B], [np.exp(A + B) * 2])]
    found = view_of(located_plain(tmp_path, target, golden))
    assert [card.name for card in found.cards] == [name]
    assert graph_of(found).names == (ADD, name)


def located_plain(folder: Path, target: Sequence[Any], golden: Sequence[Any]) -> LocationReport:
    """Search in captures whose file names cannot have the names of their calls."""
    paths = [folder / "t", folder / "g"]
    for path, calls in zip(paths, (target, golden), strict=True):
        write_capture(
            path, [(f"Mint.x{n}.0.forward", *each[1:]) for n, each in enumerate(calls)], files=False
        )
        dump = path / "dump.json"
        content = json.loads(dump.read_text())
        content["data"] = dict(
            zip([each[0] for each in calls], content["data"].values(), strict=True)
        )
        dump.write_text(json.dumps(content))
    return locate_captures(*paths, out=folder / "out")


def test_ranks_have_a_map_that_opens_to_one_call(tmp_path: Path) -> None:
    ranks, calls = 4, 303
    make_runs(tmp_path, ranks, calls, 2)
    number = operators(calls)[: faulty_call(calls)].count("linear")
    report = locate_captures(tmp_path / "target", tmp_path / "golden", out=tmp_path / "out")
    found = view_of(report)
    assert found.cards[0].name.startswith(f"Functional.linear.{number}.")
    facts = {each.name: each.value for each in found.cards[0].facts}
    assert found.cards[0].label == f"step0/rank{facts['Rank']}"
    assert facts["Rank"] != "0"
    (chart,) = (
        each for each in found.overview if isinstance(each, HeatMap) and each.row_title == "module"
    )
    assert len(chart.columns) == ranks
    assert np.nanmax(chart.values) > 1
    assert chart.columns[0] == "step 0, rank 0"
    row = f"0/{facts['Rank']}/Functional.linear.{number}.{facts['Direction']}"
    assert row == found.cards[0].row
    assert row in chart.links.values()
    assert row in names_of(found)
    assert len(graph_of(found).names) >= calls


def test_json_on_the_screen_leaves_the_closing_lines_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_capture(tmp_path / "t", with_fault(), files=False)
    two = write_capture(tmp_path / "g", CALLS, files=False)
    words = ["locate", "-tp", str(one), "-gp", str(two), "-o", str(tmp_path / "out")]
    assert main([*words, "--json", "-"]) == 1
    told = capsys.readouterr()
    (found,) = json.loads(told.out)["views"]
    assert (found["command"], found["exit_code"]) == ("locate", 1)
    assert [each["name"] for each in found["cards"]] == [MUL]
    assert "one operator is to blame:" in told.err


def test_plot_draws_the_flow_around_the_culprit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    one = write_capture(tmp_path / "t", with_fault(), files=False)
    two = write_capture(tmp_path / "g", CALLS, files=False)
    words = ["locate", "-tp", str(one), "-gp", str(two), "-o", str(tmp_path / "out"), "--plot"]
    assert main(words) == 1
    assert "error, its own" in capsys.readouterr().out
