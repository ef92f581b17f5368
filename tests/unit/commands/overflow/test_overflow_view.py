"""The View of overflow_check: births with what came in and went out, their spread, headroom over steps."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.cli import main
from ray_precheck.commands.overflow.replay import REPLAY_TABLES
from ray_precheck.commands.overflow.report import view
from ray_precheck.running.views import found_run
from ray_precheck.schema.view import (
    FlowGraph,
    HeatMap,
    LineChart,
    ModuleTree,
    Tone,
    View,
    ViewState,
)
from ray_precheck.store.settings import load_settings, save_settings
from ray_precheck.store.tables import encode_row, header
from tests.unit.trace.overflow_records import INF, NAN, forward, tensor, write_dump

pytestmark = pytest.mark.unit
BAD = tensor(INF, 0.0, health={"+inf": 3, "headroom": 1.5})
EXP, NEG = "Torch.exp.0.forward", "Torch.neg.0.forward"
CONSTRUCT = {
    EXP: "Module.layer.Block.forward.0",
    NEG: "Module.layer.Block.forward.0",
    "Module.layer.Block.forward.0": "Module.Net.forward.0",
    "Module.Net.forward.0": None,
}


def training(folder: Path, born_at: int = 2) -> Path:
    """Write three steps of two ranks; the values of `mul` grow, and `exp` of rank 1 overflows in a step."""
    for step in range(3):
        for rank in range(2):
            grown = tensor(3e38 * 10.0 ** (step - 2), -1.0)
            records = {"Torch.mul.0.forward": forward([tensor()], [grown])}
            is_bad = (step, rank) == (born_at, 1)
            records[EXP] = forward([tensor()], [BAD if is_bad else tensor()])
            given = BAD if is_bad else tensor()
            records[NEG] = forward([given], [tensor(0.0, -INF) if is_bad else tensor()])
            write_dump(folder / f"step{step}" / f"rank{rank}", records, CONSTRUCT)
    return folder


def searched(folder: Path, *options: str, code: int = 1) -> Path:
    """Search the dumps below a folder; return the table of findings."""
    out = folder / "out"
    assert main(["overflow_check", str(folder / "dumps"), "-o", str(out), *options]) == code
    (path,) = out.glob("overflow_check_*.csv")
    return path


def seen(folder: Path, *options: str, code: int = 1) -> View:
    return view([found_run(searched(folder, *options, code=code))])


def chart(found: View, kind: type) -> Any:
    return next(each for each in (*found.overview, *found.model) if isinstance(each, kind))


def test_a_birth_has_a_card_with_what_came_in_and_what_came_out(tmp_path: Path) -> None:
    training(tmp_path / "dumps")
    found = seen(tmp_path)
    assert found.sentence == (
        "NaN or infinity was born in 1 place, 1 of 6 dumps; the first is inf in"
        f" {EXP}.output.0 of step 2, rank 1."
    )
    assert (found.tone, found.state, found.exit_code) == (Tone.ERROR, ViewState.FINISHED, 1)
    (card,) = found.cards
    assert (card.name, card.label, card.row) == (EXP, "step 2, rank 1", EXP)
    assert "all floating inputs were finite, the largest absolute value was 2" in card.why
    facts = {fact.name: fact.value for fact in card.facts}
    assert facts["Given: output.0"] == (
        "float32 [4, 8], max inf, min 0, mean inf, norm inf, 3 +inf, 1.5 powers of two below the dtype's"
        " limit"
    )
    assert facts["Passed on by"] == "1 record"
    assert [(fact.name, fact.value) for fact in card.inputs] == [
        ("input.0", "float32 [4, 8], max 2, min -1, mean 0.5, norm 2")
    ]
    assert card.module == "Module.layer.Block.forward.0"
    assert card.source == "/home/me/train.py:7, in forward: y = f(x)"
    assert [line for line in card.missing if "/home/me/train.py is not on this machine" in line]
    assert "-k Torch.exp.0" in card.reproduce
    assert [(count.name, count.number) for count in found.counts] == [
        ("pass", 5),
        ("error", 1),
        ("SKIP", 0),
    ]


def test_ranks_and_steps_and_the_spread_open_at_the_birth(tmp_path: Path) -> None:
    training(tmp_path / "dumps")
    found = seen(tmp_path)
    ranks: HeatMap = chart(found, HeatMap)
    assert (ranks.rows, ranks.columns) == (("rank0", "rank1"), ("step0", "step1", "step2"))
    np.testing.assert_array_equal(ranks.values, [[0, 0, 0], [0, 0, 1]])
    assert ranks.links == {(1, 2): EXP}
    flow: FlowGraph = chart(found, FlowGraph)
    assert [flow.names[start] for start in flow.starts] == [EXP]
    assert [(flow.names[a], flow.names[b]) for a, b in flow.edges] == [(EXP, NEG)]
    tree: ModuleTree = chart(found, ModuleTree)
    assert [(node.name, node.tone, node.calls, node.errors, node.link) for node in tree.nodes] == [
        ("Module.Net.forward.0", Tone.ERROR, 2, 1, EXP),
        ("Module.layer.Block.forward.0", Tone.ERROR, 2, 1, EXP),
    ]


def test_headroom_falls_to_the_limit_over_the_steps(tmp_path: Path) -> None:
    training(tmp_path / "dumps", born_at=9)
    found = seen(tmp_path, "--headroom", code=0)
    assert found.sentence == "No NaN and no infinity was born in 18 records of 6 dumps."
    lines: LineChart = chart(found, LineChart)
    assert [line.name for line in lines.series] == [
        f"rank {rank}: Torch.mul.0.forward.output.0 (float32)" for rank in (0, 1)
    ]
    np.testing.assert_allclose(lines.series[0].y, [6.83, 3.5, 0.18], atol=0.01)
    np.testing.assert_array_equal(lines.series[0].x, [0, 1, 2])
    assert lines.limit == 0.0
    assert [table.title for table in found.tables][-1] == "Tensors near the limit of their dtype"
    assert not found.advice


def test_what_came_in_from_outside_is_no_birth_and_has_a_card(tmp_path: Path) -> None:
    lost = tensor(NAN, NAN)
    write_dump(tmp_path / "dumps", {NEG: forward([lost], [lost])})
    found = seen(tmp_path)
    assert found.sentence.startswith(
        "No operator has borne NaN or infinity: it came in from outside; the first is NaN in"
    )
    assert (found.cards[0].name, found.cards[0].tone, found.exit_code) == (NEG, Tone.ERROR, 1)


def test_a_dump_that_is_gone_is_said_on_the_card(tmp_path: Path) -> None:
    dumps = training(tmp_path / "dumps")
    path = searched(tmp_path)
    dumps.rename(tmp_path / "elsewhere")
    card = view([found_run(path)]).cards[0]
    assert card.missing[0].startswith(f"the dump {dumps} is not on this machine, so that")
    assert card.inputs == ()
    assert card.reproduce == ""


def test_dumps_without_statistics_are_not_checked_and_say_why(tmp_path: Path) -> None:
    unknown = tensor(None, None)
    write_dump(tmp_path / "dumps", {EXP: forward([unknown], [unknown])})
    found = seen(tmp_path, code=4)
    assert found.sentence == (
        "Nothing could be checked: no record has statistics of floating values."
    )
    assert (found.exit_code, found.tone) == (4, Tone.SKIP)
    assert [(reason.count, reason.names) for reason in found.reasons] == [(1, ("dump.json",))]
    assert found.advice[0].commands[0].startswith("ray-precheck capture --task statistics")


def cut_settings(path: Path, tables_stem: str) -> None:
    """Take the mark of a run's end away, as if it had been stopped."""
    (file,) = path.parent.glob(f"{tables_stem}_*.run.json")
    settings = load_settings(file)
    assert settings is not None
    save_settings(file, replace(settings, completed=None))


def test_a_search_that_was_stopped_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    training(tmp_path / "dumps")
    path = searched(tmp_path)
    cut_settings(path, "overflow")
    found = view([found_run(path)])
    assert (found.state, found.exit_code) == (ViewState.STOPPED, 3)
    assert found.sentence.startswith("Stopped before its end; so far: NaN or infinity was born")
    assert "-csv_path" in found.advice[0].commands[0]


def test_the_json_is_that_view_and_plot_draws_the_spread(tmp_path: Path, capsys: Any) -> None:
    training(tmp_path / "dumps")
    searched(tmp_path, "--json", "-", "--plot")
    told = capsys.readouterr()
    data = json.loads(told.out)
    assert data["views"][0]["cards"][0]["name"] == EXP
    assert "NaN or infinity was born in 1 place" in told.err
    assert "How NaN and infinity spread in step2/rank1" in told.err


def test_a_json_that_cannot_be_written_is_refused_before_the_search(
    tmp_path: Path, capsys: Any
) -> None:
    training(tmp_path / "dumps")
    words = ["overflow_check", str(tmp_path / "dumps"), "-o", str(tmp_path / "out")]
    assert main([*words, "--json", str(tmp_path / "nowhere" / "o.json")]) == 2
    assert "make it first" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def replayed(folder: Path, rows: Sequence[Sequence[str]]) -> Path:
    path = folder / REPLAY_TABLES.file("result", "20260101120000")
    path.write_bytes(b"".join([header(REPLAY_TABLES.result), *map(encode_row, rows)]))
    return path


def test_a_replay_has_a_card_for_each_abnormal_overflow(tmp_path: Path) -> None:
    path = replayed(
        tmp_path,
        [
            ("Torch.exp.0", "error", "", "forward: abnormal overflow: the CPU's result is finite"),
            ("Torch.neg.0", "pass", "", "forward: normal overflow"),
            ("Torch.mul.0", "SKIP", "", "no inputs"),
        ],
    )
    found = view([found_run(path)])
    assert found.command == "run_overflow_check"
    assert found.sentence == (
        "Of 3 calls whose captured results are not finite, 1 overflowed on the device alone (abnormal); the"
        " first is Torch.exp.0."
    )
    assert [card.name for card in found.cards] == ["Torch.exp.0"]
    assert [(count.name, count.number) for count in found.counts] == [
        ("normal", 1),
        ("abnormal", 1),
        ("SKIP", 1),
    ]
    assert (found.exit_code, found.reasons[0].text) == (1, "no inputs")


def test_a_dump_without_an_overflow_has_a_view_without_files(tmp_path: Path, capsys: Any) -> None:
    write_dump(tmp_path / "dumps", {EXP: forward([tensor()], [tensor()])})
    words = [
        "run_overflow_check",
        "-api_info",
        str(tmp_path / "dumps"),
        "-o",
        str(tmp_path / "out"),
    ]
    assert main([*words, "--json", "-"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["views"]
    assert one["sentence"] == "The captured results of all 1 call are finite."
    assert (one["exit_code"], one["files"]) == (0, [])
