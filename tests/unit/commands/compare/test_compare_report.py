"""The View of a comparison: of whole runs, torn ones, ones whose captures are gone, and of hostile names."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.cli import main
from ray_precheck.commands.compare.report import view
from ray_precheck.commands.compare.run import ComparisonReports, compare_captures
from ray_precheck.running.views import FoundRun, found_run
from ray_precheck.schema.view import FlowGraph, HeatMap, ModuleTree, Tone, View, ViewState
from tests.unit.commands.small_captures import element, write_capture

pytestmark = pytest.mark.unit
REAL = Path(__file__).parents[3] / "data/torch_llm/dump.json"
RNG = np.random.default_rng(0)
OFF = 0.05
A, B, C = (RNG.standard_normal((4, 8)).astype(np.float32) for _ in range(3))
ADD, MUL, EXP = "Mint.add.0.forward", "Mint.mul.0.forward", "Mint.exp.0.forward"
CALLS = [
    (ADD, [A, B], [A + B]),
    (MUL, [A + B, C], [(A + B) * C]),
    (EXP, [(A + B) * C], [np.exp((A + B) * C)]),
]


def with_fault() -> list[Any]:
    """The product is wrong in one element, and so is what is made of it."""
    wrong = (A + B) * C
    wrong[3, 7] += OFF
    return [CALLS[0], (MUL, [A + B, C], [wrong]), (EXP, [wrong], [np.exp(wrong)])]


def compared(
    folder: Path, target: Sequence[Any], golden: Sequence[Any], *, files: bool = True, **more: Any
) -> ComparisonReports:
    one = write_capture(folder / "target", target, files=files)
    two = write_capture(folder / "golden", golden, files=files)
    return compare_captures(one, two, out=folder / "out", **{"standard": "auto", **more})


def view_of(reports: ComparisonReports) -> View:
    runs = []
    for each in reports.reports:
        place = each.files.result.parent.relative_to(reports.folder)
        runs.append(found_run(each.files.result, place.as_posix() if place.parts else ""))
    return view(runs)


def graph_of(found: View) -> FlowGraph:
    (graph,) = (chart for chart in found.model if isinstance(chart, FlowGraph))
    return graph


def links(graph: FlowGraph) -> set[tuple[str, str]]:
    return {(graph.names[one], graph.names[two]) for one, two in graph.edges.tolist()}


def map_of(found: View, row_title: str) -> HeatMap:
    (chart,) = (
        each for each in found.overview if isinstance(each, HeatMap) and each.row_title == row_title
    )
    return chart


def test_the_first_card_is_the_call_whose_inputs_are_in_no_error(tmp_path: Path) -> None:
    found = view_of(compared(tmp_path, with_fault(), CALLS))
    assert found.sentence == f"1 of 3 pairs of records is in error; the first is {MUL}."
    assert (found.tone, found.state, found.exit_code) == (Tone.ERROR, ViewState.FINISHED, 1)
    assert {each.name: each.number for each in found.counts} == {
        "error": 1,
        "warning": 1,
        "unmatched": 0,
        "pass": 1,
    }
    (card,) = found.cards
    assert (card.name, card.row, card.tone) == (MUL, MUL, Tone.ERROR)
    assert "times what rounding explains" in card.why
    outputs, inputs, *metrics = card.bars
    assert outputs.value == pytest.approx(card.times * 4)
    assert outputs.limit == 4
    assert inputs.value == 0
    distance = next(bar for bar in metrics if bar.name == "Relative L2")
    assert distance.value == pytest.approx(OFF / np.linalg.norm((A + B) * C), rel=1e-4)
    assert distance.limit == pytest.approx(4 * distance.value / outputs.value, rel=1e-2)
    assert [each.name for each in card.inputs] == ["input.0", "input.1", "output.0"]
    assert card.inputs[0].value.endswith("the golden run has the same")
    assert "; the golden run: Float32 [4, 8], max" in card.inputs[2].value
    assert card.reproduce.startswith("ray-precheck inspect ")
    assert card.reproduce.endswith(MUL)
    assert any(f"locate -tp {tmp_path}" in each.commands[0] for each in found.advice)


def test_a_card_shows_how_many_elements_differ_and_where(tmp_path: Path) -> None:
    (card,) = view_of(compared(tmp_path, with_fault(), CALLS)).cards
    assert card.histogram is not None
    assert card.blocks is not None
    assert sum(card.histogram.counts) == 1
    assert "31 of 32 are equal" in card.histogram.title
    expected = OFF / np.sqrt(np.mean(((A + B) * C).astype(np.float64) ** 2))
    place = card.histogram.counts.index(1)
    assert card.histogram.edges[place] <= expected < card.histogram.edges[place + 1]
    assert card.blocks.values.shape == (4, 8)
    assert card.blocks.values[3, 7] == pytest.approx(expected, rel=1e-5)
    assert np.count_nonzero(card.blocks.values) == 1


def test_the_graph_has_what_flows_between_calls_and_opens_at_the_first_difference(
    tmp_path: Path,
) -> None:
    graph = graph_of(view_of(compared(tmp_path, with_fault(), CALLS)))
    assert graph.names == (ADD, MUL, EXP)
    assert links(graph) == {(ADD, MUL), (MUL, EXP)}
    assert [tuple(Tone)[tone] for tone in graph.tones] == [Tone.PASS, Tone.ERROR, Tone.WARNING]
    assert graph.starts == (1,)
    assert graph.own[1] > 1e3
    assert graph.inherited[1] == 0
    assert graph.inherited[2] > 1e3
    assert "times what rounding" in graph.texts[1]


def test_a_real_capture_opens_at_the_planted_fault(tmp_path: Path) -> None:
    content = json.loads(REAL.read_text())
    culprit = "Functional.silu.0.forward"
    for name in ("Max", "Min", "Mean", "Norm"):
        content["data"][culprit]["output"][0][name] *= 1.05
    (tmp_path / "t").mkdir()
    (tmp_path / "t/dump.json").write_text(json.dumps(content))
    reports = compare_captures(tmp_path / "t", REAL, out=tmp_path / "out", standard="auto")
    found = view_of(reports)
    assert found.cards[0].name == culprit
    assert found.cards[0].histogram is None
    assert any("no files of tensors" in each for each in found.cards[0].missing)
    graph = graph_of(found)
    assert graph.names[graph.starts[0]] == culprit
    assert len(graph.names) == len(content["data"])
    assert len(graph.edges) > 300
    types = map_of(found, "operator type")
    assert types.rows[0] == "Functional.silu"
    assert types.above == 4
    assert types.values[0, 0] == pytest.approx(graph.own[graph.starts[0]])
    assert types.links[0, 0] == culprit


@pytest.mark.parametrize("gone", ["target", "golden"])
def test_a_capture_that_is_gone_is_said_and_the_rows_still_show_values(
    tmp_path: Path, gone: str
) -> None:
    reports = compared(tmp_path, with_fault(), CALLS)
    (tmp_path / gone / "dump.json").unlink()
    found = view_of(reports)
    what = "target" if gone == "target" else "golden run"
    (said,) = (note for note in found.notes if f"the {what} {tmp_path}" in note)
    assert "cannot be read on this machine" in said
    (card,) = found.cards
    assert said in card.missing
    assert card.histogram is None
    assert "float32 [4, 8]" in card.inputs[-1].value.lower()
    assert "max" in card.inputs[-1].value.lower()
    has_graph = any(isinstance(chart, FlowGraph) for chart in found.model)
    assert has_graph == (gone == "golden")


def test_files_of_tensors_that_are_gone_are_said_on_the_card(tmp_path: Path) -> None:
    reports = compared(tmp_path, with_fault(), CALLS)
    path = tmp_path / "target/dump_tensor_data" / f"{MUL}.output.0.npy"
    path.write_bytes(path.read_bytes()[:-4])
    (card,) = view_of(reports).cards
    assert card.histogram is None
    assert any("output.0 of the target cannot be read" in each for each in card.missing)


def test_torn_tables_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    reports = compared(tmp_path, with_fault(), CALLS)
    files = reports.reports[0].files
    raw = files.result.read_bytes()
    files.result.write_bytes(raw[: raw.rindex(b"Mint.exp") + 20])
    files.details.unlink()
    found = view_of(reports)
    assert {each.name: each.number for each in found.counts if each.number} == {
        "error": 1,
        "pass": 1,
    }
    assert any(f"{files.result} ends in the middle of a row" in note for note in found.notes)
    assert any(f"{files.details} cannot be read" in note for note in found.notes)
    assert [card.name for card in found.cards] == [MUL]
    assert math.isnan(found.cards[0].times)
    assert [table.path for table in found.tables] == [files.result]


@pytest.mark.parametrize("content", [b"", b"nonsense\n", b"\x00\xff\xfe" * 100])
def test_tables_of_nonsense_make_a_view_without_rows(tmp_path: Path, content: bytes) -> None:
    reports = compared(tmp_path, CALLS, CALLS)
    files = reports.reports[0].files
    for path in (files.result, files.details, files.settings):
        path.write_bytes(content)
    found = view_of(reports)
    assert not found.cards
    assert found.state is ViewState.STOPPED


def test_a_run_that_was_stopped_says_so(tmp_path: Path) -> None:
    reports = compared(tmp_path, CALLS, CALLS)
    files = reports.reports[0].files
    settings = json.loads(files.settings.read_text())
    del settings["completed"]
    files.settings.write_text(json.dumps(settings))
    lines = files.result.read_bytes().splitlines(keepends=True)
    files.result.write_bytes(b"".join(lines[:-1]))
    found = view_of(reports)
    assert (found.state, found.exit_code) == (ViewState.STOPPED, 3)
    assert "of 2 of 3" in found.sentence
    assert "stopped before its end" in found.sentence
    graph = graph_of(found)
    assert graph.texts[2] == "not compared yet"


HOSTILE = (
    "Mint.<script>alert(1)</script>.0.forward",
    "Mint.=cmd|'/c calc'!A0.0.forward",
    'Mint.a,b"c.0.forward',
    "Mint.\u202egnp.\n\r.0.forward",
    "Mint.\\u0041.0.forward",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_are_hostile_stay_names(tmp_path: Path, name: str) -> None:
    for side, factor in (("target", 2.0), ("golden", 1.0)):
        data = {ADD: {"input_args": [element(A)], "output": [element(B)]}}
        data[name] = {"input_args": [element(A)], "output": [element(A * factor)]}
        header = {"task": "statistics", "level": "L1", "framework": "mindspore"}
        (tmp_path / side).mkdir()
        (tmp_path / side / "dump.json").write_text(json.dumps({**header, "data": data}))
    sides = tmp_path / "target", tmp_path / "golden"
    found = view_of(compare_captures(*sides, out=tmp_path / "out", standard="auto"))
    assert [card.name for card in found.cards] == [name]
    assert found.cards[0].row == name
    assert math.isfinite(found.cards[0].times)
    assert found.cards[0].times > 1


def test_two_ranks_share_a_card_and_have_a_map_of_modules(tmp_path: Path) -> None:
    module = "Module.layers.1.Block.forward.0"
    for side, calls in (("t", with_fault()), ("g", CALLS)):
        for rank in (0, 1):
            folder = tmp_path / side / "step0" / f"rank{rank}"
            write_capture(folder, calls, files=False)
            modules = {
                MUL: module,
                module: "Module.Model.forward.0",
                "Module.Model.forward.0": None,
            }
            (folder / "construct.json").write_text(json.dumps(modules))
    reports = compare_captures(
        tmp_path / "t", tmp_path / "g", out=tmp_path / "out", standard="auto"
    )
    found = view_of(reports)
    first = found.cards[0]
    assert [card.name for card in found.cards].count(MUL) == 1
    assert (first.name, first.label, first.row) == (MUL, "step0/rank0", f"step0/rank0/{MUL}")
    assert {each.name: each.value for each in first.facts}["Also in"] == "step0/rank1"
    (advice, *_) = found.advice
    words = f"ray-precheck locate -tp {tmp_path}/t/step0 -gp {tmp_path}/g/step0"
    assert advice.commands == (words,)
    assert found.title == f"{tmp_path}/t/step0 against {tmp_path}/g/step0"
    chart = map_of(found, "module")
    assert chart.columns == ("step0/rank0", "step0/rank1")
    assert chart.rows[0] == "layers.1.Block"
    assert chart.links[0, 1] == f"step0/rank1/{MUL}"
    (tree,) = (each for each in found.model if isinstance(each, ModuleTree))
    assert [(node.name, node.parent) for node in tree.nodes] == [
        ("Model", -1),
        ("layers.1.Block", 0),
    ]
    assert tree.nodes[0].errors == 2
    assert tree.nodes[0].tone is Tone.ERROR
    assert [table.label for table in found.tables] == ["step0/rank0"] * 2 + ["step0/rank1"] * 2


def test_the_golden_calls_of_a_fusion_stand_beside_the_call_that_fuses_them(tmp_path: Path) -> None:
    fused = [
        ("Mint.addcmul.0.forward", [A, B, C], [A + B * C]),
        (EXP, [A + B * C], [np.exp(A + B * C)]),
    ]
    steps = [
        (MUL, [B, C], [B * C]),
        (ADD, [A, B * C], [A + B * C]),
        (EXP, [A + B * C], [np.exp(A + B * C)]),
    ]
    forward = view_of(compared(tmp_path / "fused", fused, steps))
    graph = graph_of(forward)
    pairs = {(graph.names[one], graph.names[two]) for one, two in graph.pairs.tolist()}
    assert pairs == {
        ("Mint.addcmul.0.forward", f"golden: {MUL}"),
        ("Mint.addcmul.0.forward", f"golden: {ADD}"),
    }
    assert (f"golden: {MUL}", f"golden: {ADD}") in links(graph)
    graph = graph_of(view_of(compared(tmp_path / "split", steps, fused)))
    assert {(graph.names[one], graph.names[two]) for one, two in graph.pairs.tolist()} == {
        (MUL, ADD)
    }


def test_nan_is_beyond_every_limit(tmp_path: Path) -> None:
    wrong = (A + B) * C
    wrong[0, 0] = np.nan
    target = [CALLS[0], (MUL, [A + B, C], [wrong])]
    found = view_of(compared(tmp_path, target, CALLS[:2]))
    (card,) = found.cards
    assert card.times == math.inf
    types = map_of(found, "operator type")
    assert types.values[0, 0] == 1e9
    assert "1e+09 stands for" in types.title


def test_what_has_no_partner_and_what_the_capture_did_not_see_is_said(tmp_path: Path) -> None:
    reports = compared(tmp_path, CALLS, CALLS[:2])
    path = tmp_path / "target/dump.json"
    content = json.loads(path.read_text())
    places = [{"what": "TorchScript", "module": "Module.a", "place": "net.py:3", "times": 2}]
    path.write_text(json.dumps({"dark": {"count": 5, "places": places}, **content}))
    alone, dark = view_of(reports).reasons
    assert alone.text.startswith("only the target has these records")
    assert (alone.count, alone.names) == (1, (EXP,))
    assert (dark.text, dark.count) == ("places that the target did not see", 5)
    assert dark.names == ("TorchScript, Module.a, net.py:3",)


def test_json_on_the_screen_leaves_the_closing_lines_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_capture(tmp_path / "t", with_fault())
    two = write_capture(tmp_path / "g", CALLS)
    words = ["compare", "-tp", str(one), "-gp", str(two), "-o", str(tmp_path / "out")]
    assert main([*words, "--standard", "auto", "--json", "-"]) == 1
    told = capsys.readouterr()
    (found,) = json.loads(told.out)["views"]
    assert found["command"] == "compare"
    assert found["exit_code"] == 1
    assert "3 of 3 pairs of records" in told.err


def test_plot_draws_the_errors_and_the_flow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    one = write_capture(tmp_path / "t", with_fault())
    two = write_capture(tmp_path / "g", CALLS)
    words = ["compare", "-tp", str(one), "-gp", str(two), "-o", str(tmp_path / "out"), "--plot"]
    assert main([*words, "--standard", "auto"]) == 1
    told = capsys.readouterr().out
    assert "31 of 32 are equal" in " ".join(told.split())
    assert "error, its own" in told


def test_a_run_of_another_version_that_names_no_captures_still_has_rows(tmp_path: Path) -> None:
    reports = compared(tmp_path, with_fault(), CALLS)
    files = reports.reports[0].files
    files.settings.unlink()
    found = view([FoundRun(files.result, "20260101000000")])
    assert found.state is ViewState.FINISHED
    assert "the run does not say which captures it read: no flow is drawn" in found.notes
    assert [card.name for card in found.cards] == [MUL]


def test_what_errs_on_one_rank_before_a_collective_stands_before_it(tmp_path: Path) -> None:
    """Ranks are looked at one by one, and on the first one the error begins with the collective."""
    summed = "MintDistributed.all_reduce.0.forward"
    wrong = (A + B) * C * 1.01
    for side in "tg":
        for rank in (0, 1):
            product = wrong if (side, rank) == ("t", 1) else (A + B) * C
            total = (A + B) * C + (wrong if side == "t" else (A + B) * C)
            calls = [CALLS[0], (MUL, [A + B, C], [product]), (summed, [product], [total])]
            write_capture(tmp_path / side / "step0" / f"rank{rank}", calls, files=False)
    reports = compare_captures(
        tmp_path / "t", tmp_path / "g", out=tmp_path / "out", standard="auto"
    )
    found = view_of(reports)
    assert [(card.name, card.label) for card in found.cards] == [
        (MUL, "step0/rank1"),
        (summed, "step0/rank0"),
    ]
    assert found.sentence.endswith(f"the first is {MUL}.")


def test_the_worst_of_several_outputs_counts(tmp_path: Path) -> None:
    split = "Mint.split.0.forward"
    found = view_of(
        compared(tmp_path, [(split, [A], [A * 1.01, B])], [(split, [A], [A, B])], files=False)
    )
    (card,) = found.cards
    assert card.times > 1000
    assert graph_of(found).own[0] == pytest.approx(card.times * 4)


def test_warnings_have_cards_where_nothing_is_in_error_and_unread_files_are_said(
    tmp_path: Path,
) -> None:
    for side in ("target", "golden"):
        write_capture(tmp_path / side, CALLS)
    path = tmp_path / "golden/dump_tensor_data" / f"{MUL}.output.0.npy"
    path.write_bytes(path.read_bytes()[:-4])
    sides = tmp_path / "target", tmp_path / "golden"
    found = view_of(compare_captures(*sides, out=tmp_path / "out", standard="auto"))
    assert (found.tone, found.exit_code) == (Tone.WARNING, 0)
    assert found.sentence == "No pair of records is in error, of 3. 1 has a warning."
    assert [(card.name, card.tone) for card in found.cards] == [(MUL, Tone.WARNING)]
    (unread,) = found.reasons
    assert unread.text.startswith("pairs whose files of tensors cannot be read")
    assert (unread.count, unread.names) == (1, (MUL,))
