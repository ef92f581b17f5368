"""The View of a precheck: where to look first, what is known of it, and what is not on this machine."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.accuracy.heat import ElementLimit, ErrorKind, heat_of
from ray_precheck.commands.precheck.cards import bars_of, histogram_of, worst_measure
from ray_precheck.commands.precheck.report import view
from ray_precheck.commands.precheck.summary import beyond_limit
from ray_precheck.errors import UsageError
from ray_precheck.replay.job import done_of
from ray_precheck.running.view_data import views_data
from ray_precheck.running.views import FoundRun
from ray_precheck.schema.environment import Environment, environment_to_dict
from ray_precheck.schema.result import (
    Metrics,
    Outcome,
    OutputCheck,
    TaskResult,
    Verdict,
    failed,
    skipped,
)
from ray_precheck.schema.view import (
    CellKind,
    HeatMap,
    LineChart,
    ModuleTree,
    TimelineChart,
    Tone,
    View,
    ViewState,
)
from ray_precheck.store.claim import claimed
from ray_precheck.store.error_data import saved_json
from ray_precheck.store.heat import heat_line
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import start_run
from ray_precheck.store.settings import RunSettings, note_environment
from ray_precheck.store.tables import RunFiles, added_setting

pytestmark = pytest.mark.unit

STAMP = "20260101120000"
WRONG = "MaxAbsErr 0.5 at index [0, 1] is not below 0.0001"
CAUSE = "likely cause: a factor of 2"
ROUNDED = f"{WRONG}; rounding: one unit in the last place of float16 is 0.5"
LIMIT = ElementLimit(ErrorKind.ABSOLUTE, 1e-4)


def heat(name: str) -> bytes:
    bench = np.ones((4, 6))
    device = bench.copy()
    device[3, 5] = 1.5
    return heat_line(heat_of(name, device, bench, "float64", LIMIT))


def result(
    name: str,
    error: float = 0.5,
    message: str = f"{WRONG}; {CAUSE}",
    *,
    direction: str = "forward",
    dtype: str = "torch.float32",
    index: int = 0,
    heats: bool = True,
) -> TaskResult:
    """A call with one output, whose largest error is this."""
    is_error = error >= 1e-4
    verdict = Verdict.ERROR if is_error else Verdict.PASS
    output = f"{name}.{direction}.output.0"
    check = OutputCheck(
        output, "torch.float64", dtype, "(4, 6)", Metrics(1.0, error, error), verdict,
        message if is_error else "",
    )  # fmt: skip
    forward, backward = verdict, Verdict.NONE
    if direction == "backward":
        forward, backward = Verdict.PASS, verdict
    told = f"{direction}.output.0: {message}" if is_error else ""
    lines = (heat(output),) if is_error and heats else ()
    return TaskResult(
        index, name, Outcome.COMPLETED, forward, backward, told, (check,), heats=lines
    )


def crashed(name: str) -> TaskResult:
    return failed(0, name, Outcome.CRASHED, "killed its worker (SIGSEGV)", True)


def written(
    folder: Path,
    *results: TaskResult,
    dump: Path | None = None,
    complete: bool = True,
    **settings: Any,
) -> RunFiles:
    made_with = {"standard": "msprobe", "seed": "0", **settings}
    words = ("run_ut", "-api_info", "the dumps", "-o", "out", "--retry", "skip")
    files = start_run(folder, STAMP, RunSettings(made_with, command=words, folder="/the folder"))
    there = Environment("pytorch", "cpu", calls=len(results), dump=str(dump or "/gone/dump.json"))
    note_environment(files.settings, environment_to_dict(there))
    journal = Journal.open(files.result, files.details)
    journal.append([done_of(each) for each in results])
    if complete:
        journal.complete([each.name for each in results])
    journal.close()
    return files


def seen(*runs: RunFiles, labels: tuple[str, ...] = ("",)) -> View:
    found = zip(runs, labels, strict=True)
    return view([FoundRun(files.result, STAMP, label) for files, label in found])


def dump_in(folder: Path, *names: str) -> Path:
    """A dump with a source line and a module for each call."""
    source = folder / "net.py"
    folder.mkdir(parents=True, exist_ok=True)
    source.write_text("".join(f"line {number}\n" for number in range(1, 21)))
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4, 6]}
    tensor |= {"Max": 2.0, "Min": -1.0, "Mean": 0.25, "Norm": 3.0}
    data = {f"{n}.forward": {"input_args": [tensor], "output": [tensor]} for n in names}
    data |= {f"{n}.backward": {"input": [tensor], "output": [tensor]} for n in names}
    header = {"task": "statistics", "framework": "pytorch", "data": data}
    (folder / "dump.json").write_text(json.dumps(header))
    stack = [f"File {source}, line 10, in forward, \n y = f(x)"]
    (folder / "stack.json").write_text(json.dumps({f"{n}.forward": stack for n in names}))
    construct = {"Module.net.Net.forward.0": None}
    for place, name in enumerate(names):
        block = f"Module.net.{place % 2}.Block.forward.0"
        construct[block] = "Module.net.Net.forward.0"
        construct[f"{name}.forward"] = block
    (folder / "construct.json").write_text(json.dumps(construct))
    return folder / "dump.json"


def test_the_worst_output_comes_first_with_everything_that_is_known(tmp_path: Path) -> None:
    dump = dump_in(tmp_path / "dump", "Torch.a.0", "Torch.b.0")
    found = seen(
        written(tmp_path, result("Torch.a.0", 2e-3), result("Torch.b.0", 0.5, index=1), dump=dump)
    )
    card = found.cards[0]
    assert [each.name for each in found.cards] == [
        "Torch.b.0.forward.output.0",
        "Torch.a.0.forward.output.0",
    ]
    assert card.row == card.name
    assert card.tone is Tone.ERROR
    assert card.why == f"{WRONG}."
    assert card.cause == "a factor of 2"
    assert card.times == pytest.approx(5000)
    # The badge is the first bar.
    first = card.bars[0]
    assert first.name == "Error beside the size of the output"
    assert (first.value / first.limit, card.unit) == (pytest.approx(card.times), "times its limit")
    assert [(bar.name, bar.value, bar.limit, bar.is_least) for bar in card.bars[1:3]] == [
        ("Cosine", 1.0, 0.99, True),
        ("MaxAbsErr", 0.5, 1e-4, False),
    ]
    assert card.inputs[0].value == "float32 [4, 6], max 2, min -1, mean 0.25, norm 3"
    assert card.module == "Module.net.1.Block.forward.0"
    assert card.source.endswith("net.py:10, in forward: y = f(x)")
    assert [line.text for line in card.code if line.is_here] == ["line 10"]
    assert card.blocks is not None
    assert float(card.blocks.values[3, 5]) == pytest.approx(5000)
    assert np.count_nonzero(card.blocks.values) == 1
    assert card.histogram is not None
    assert sum(card.histogram.counts) == 1
    assert card.histogram.limit == 1.0
    assert card.missing == ()
    assert card.reproduce == (f"ray-precheck run_ut -api_info {dump} -k Torch.b.0 -save_error_data")
    assert found.sentence == (
        "2 operators are in error: Torch.b, Torch.a (2 of 2 calls); the worst output is"
        " Torch.b.0.forward.output.0: its error beside the size of the output is 5,000 times its limit."
    )
    assert (found.tone, found.state, found.exit_code) == (Tone.ERROR, ViewState.FINISHED, 1)


def test_a_gradient_shows_the_inputs_and_the_gradients_that_came_in(tmp_path: Path) -> None:
    dump = dump_in(tmp_path / "dump", "Torch.a.0")
    [card] = seen(written(tmp_path, result("Torch.a.0", direction="backward"), dump=dump)).cards
    assert [fact.name for fact in card.inputs] == ["input.0", "gradient input.0"]
    assert card.module == "Module.net.0.Block.forward.0"
    assert card.name == "Torch.a.0.backward.output.0"


def test_what_is_not_on_this_machine_is_said(tmp_path: Path) -> None:
    [card] = seen(written(tmp_path, result("Torch.a.0", heats=False))).cards
    assert (card.inputs, card.code, card.module, card.histogram) == ((), (), "", None)
    no_heat, no_dump = card.missing
    assert "heat_20260101120000.npz has no histogram" in no_heat
    assert "the dump /gone/dump.json is not on this machine" in no_dump


def test_saved_tensors_are_what_reproduces_a_call(tmp_path: Path) -> None:
    files = written(tmp_path / "my out", result("Torch.a/b.0"))
    case = saved_json(files.errors, "Torch.a/b.0")
    case.parent.mkdir(parents=True)
    case.write_text("{}")
    [card] = seen(files).cards
    assert card.case == str(case)
    assert card.reproduce == f"ray-precheck repro '{case}'"
    assert case.name == "Torch.a_b.0.json"


def test_the_settings_of_the_run_are_in_the_command_that_reproduces(tmp_path: Path) -> None:
    files = written(tmp_path, result("Torch.a.0"), seed="7", standard="auto")
    [card] = seen(files).cards
    assert card.reproduce.endswith("-save_error_data --standard auto --seed 7")


def test_calls_that_crashed_have_cards_where_ten_outputs_are_wrong(tmp_path: Path) -> None:
    wrong = [result(f"Torch.op{n}.0", 1.0 + n, index=n) for n in range(12)]
    rounded = result("Torch.rounded.0", 1e4, ROUNDED)
    found = seen(written(tmp_path, *wrong, rounded, crashed("Torch.bad.3"), crashed("Torch.bad.4")))
    names = [card.name for card in found.cards]
    assert len(names) == 10
    assert names[:9] == [f"Torch.op{n}.0.forward.output.0" for n in range(11, 2, -1)]
    assert names[9] == "Torch.bad.3"
    crash = found.cards[9]
    assert crash.why == "The device could not run it: killed its worker (SIGSEGV)."
    assert (crash.row, math.isnan(crash.times)) == ("Torch.bad.3", True)
    # 14 API types are in error, ten have a card.
    assert found.more_cards == 4
    assert "14 operators are in error: Torch.op11, " in found.sentence
    assert ", and 4 more (15 of 15 calls); the device could not run 2 calls;" in found.sentence
    assert [(fact.name, fact.value) for fact in crash.facts[1:]] == [
        ("Also could not be run", "Torch.bad.4")
    ]


def test_what_rounding_explains_comes_last_and_is_said(tmp_path: Path) -> None:
    found = seen(
        written(tmp_path, result("Torch.a.0", 9.0, ROUNDED), result("Torch.b.0", 1e-3, index=1))
    )
    assert [card.name.split(".")[1] for card in found.cards] == ["b", "a"]
    assert found.cards[1].cause.startswith("rounding: ")
    assert found.cards[1].why == f"{WRONG}."
    assert any("--standard auto" in command for each in found.advice for command in each.commands)
    alone = seen(written(tmp_path / "alone", result("Torch.a.0", 9.0, ROUNDED)))
    assert alone.sentence.endswith("rounding explains every number that is beyond its limit.")


def test_the_map_of_types_and_dtypes_links_to_the_worst_row(tmp_path: Path) -> None:
    files = written(
        tmp_path,
        result("Torch.a.0", 2e-5),
        result("Torch.a.1", 5e-5, index=1),
        result("Torch.a.2", 5e-2, dtype="torch.float16", index=2),
        result("Torch.b.0", math.inf, index=3),
    )
    chart = seen(files).overview[0]
    assert isinstance(chart, HeatMap)
    cells = {
        (row, column): (chart.values[r, c], chart.links.get((r, c)))
        for r, row in enumerate(chart.rows)
        for c, column in enumerate(chart.columns)
    }
    assert cells["Torch.a", "torch.float32"] == (
        pytest.approx(0.5),
        "Torch.a.1.forward.output.0",
    )
    assert cells["Torch.a", "torch.float16"][0] == pytest.approx(500)
    assert cells["Torch.b", "torch.float32"] == (1e6, "Torch.b.0.forward.output.0")
    assert math.isnan(cells["Torch.b", "torch.float16"][0])
    assert chart.rows[0] == "Torch.b"


def test_an_output_in_error_is_never_drawn_as_one_that_passes(tmp_path: Path) -> None:
    # Its relative error is small: the number that orders errors is below 1.
    check = OutputCheck(
        "Torch.a.0.forward.output.0", "", "torch.float32", "(1,)",
        Metrics(1.0, 1e-3, 1e-7), Verdict.ERROR, WRONG,
    )  # fmt: skip
    whole = TaskResult(
        0, "Torch.a.0", Outcome.COMPLETED, Verdict.ERROR, Verdict.NONE, WRONG, (check,)
    )
    found = seen(written(tmp_path, whole))
    chart = found.overview[0]
    assert isinstance(chart, HeatMap)
    assert chart.values[0, 0] > chart.above
    # The badge is that of the metric beyond its limit, and this is the first bar.
    card = found.cards[0]
    assert (card.times, card.bars[0].name) == (pytest.approx(10), "MaxAbsErr")


def test_of_very_many_types_the_worst_are_drawn_and_the_title_says_so(tmp_path: Path) -> None:
    many = [result(f"Torch.op{n}.0", 1e-3 * (n + 1), index=n, heats=False) for n in range(100)]
    found = seen(written(tmp_path, *many))
    chart = found.overview[0]
    assert isinstance(chart, HeatMap)
    assert (len(chart.rows), chart.rows[0]) == (60, "Torch.op99")
    assert "the 60 worst of 100 API types" in chart.title
    assert found.more_cards == 90


def test_counts_reasons_and_types_are_those_of_the_rows(tmp_path: Path) -> None:
    found = seen(
        written(
            tmp_path,
            result("Torch.a.0", 1e-5),
            result("Torch.a.1", 0.5, index=1),
            skipped(2, "Torch.c.0", "not supported", True),
            crashed("Torch.d.0"),
        )
    )
    counts = {each.name: each.number for each in found.counts}
    assert counts == {
        "pass": 1,
        "error": 2,
        "SKIP": 1,
        "forward in error": 2,
        "could not be run": 1,
    }
    facts = {each.name: each.value for each in found.facts}
    assert facts["Forward"].startswith("2 of 4 compared (1 pass, 1 error)")
    [reason] = found.reasons
    assert (reason.text, reason.count, reason.names) == ("not supported", 1, ("Torch.c.0",))
    _, calls, outputs, types = found.tables
    assert [each.kind.value for each in calls.columns] == ["name", "tone", "tone", "text"]
    assert [each.heading for each in outputs.columns][4:7] == [
        "Cosine",
        "MaxAbsErr",
        "MaxRelativeErr",
    ]
    assert types.rows[0] == ("Torch.a", "2", "1", "1", "0")


def test_runs_of_several_ranks_are_one_view(tmp_path: Path) -> None:
    dump = dump_in(tmp_path / "dump", "Torch.a.0", "Torch.b.0")
    fine, wrong = (
        written(
            tmp_path / f"r{rank}",
            result("Torch.a.0", error),
            result("Torch.b.0", 1e-5, index=1),
            dump=dump,
        )
        for rank, error in enumerate((1e-5, 0.5))
    )
    labels = ("step0/rank0", "step0/rank1")
    found = seen(fine, wrong, labels=labels)
    [card] = found.cards
    assert (card.label, card.row) == (labels[1], f"{labels[1]}/Torch.a.0.forward.output.0")
    assert found.sentence.startswith("1 operator is in error: Torch.a (1 of 4 calls)")
    chart = found.overview[1]
    assert isinstance(chart, HeatMap)
    assert (chart.rows[0], chart.columns) == ("net.0.Block", labels)
    assert chart.values[0].tolist() == pytest.approx([0.0, 5000])
    assert chart.links[0, 1] == f"{labels[1]}/Torch.a.0.forward.output.0"
    assert {each.label for each in found.tables if each.path is not None} == set(labels)
    [tree] = found.model
    assert isinstance(tree, ModuleTree)
    root, *blocks = tree.nodes
    assert (root.calls, root.errors, root.tone) == (4, 1, Tone.ERROR)
    assert {(node.errors, node.link) for node in blocks} == {
        (1, f"{labels[1]}/Torch.a.0.forward.output.0"),
        (0, f"{labels[0]}/Torch.b.0"),
    }
    facts = {each.name: each.value for each in found.facts}
    assert facts[labels[1]] == "2 calls: 1 pass, 1 error, 0 SKIP"


def test_an_api_that_is_wrong_in_several_ranks_has_the_card_of_the_worst(tmp_path: Path) -> None:
    errors = (1e-2, 0.5, 1e-3)
    runs = [written(tmp_path / str(n), result("Torch.a.0", each)) for n, each in enumerate(errors)]
    [card] = seen(*runs, labels=("rank0", "rank1", "rank2")).cards
    assert (card.label, card.times) == ("rank1", pytest.approx(5000))
    (also,) = (fact.value for fact in card.facts if fact.name == "Also in error")
    assert also == "rank0 Torch.a.0 forward (100 times), rank2 Torch.a.0 forward (10 times)"


def test_an_operator_has_one_card_that_names_its_other_calls(tmp_path: Path) -> None:
    gradients = [
        result(f"Torch.a.{n}", 1e-3 * (n + 1), direction="backward", index=n) for n in range(14)
    ]
    found = seen(written(tmp_path, *gradients, result("Torch.a.14", 0.5), result("Torch.b.0")))
    assert [card.name for card in found.cards] == [
        "Torch.b.0.forward.output.0",
        "Torch.a.14.forward.output.0",
    ]
    (also,) = (fact.value for fact in found.cards[1].facts if fact.name == "Also in error")
    names = [f"Torch.a.{n} backward ({10 * (n + 1)} times)" for n in range(13, 3, -1)]
    assert also == f"{', '.join(names)}, and 4 more"
    assert found.more_cards == 0
    assert len(found.advice[0].commands) == 2


@pytest.mark.parametrize(
    ("standard", "cells", "name", "times", "unit"),
    [
        ("auto", {"HonestRMSE": "1", "RMSE": "50"}, "Error beside that of the worst honest", 50,
         "times the error of the worst honest implementation"),
        ("ulp", {"MaxUlpErr": "128"}, "Largest error in units in the last place", 4, "times its limit"),
        ("thousandth", {}, "Error beside the size of the output", 100, "times its limit"),
        ("binary", {}, "Error beside the size of the output", 838861,
         "units in the last place"),
    ],
)  # fmt: skip
def test_the_measure_of_each_standard_has_its_name(
    standard: str, cells: dict[str, str], name: str, times: float, unit: str
) -> None:
    row = {
        **ROW, "Tested Dtype": "torch.float32", "Cosine": "1.0", "MaxAbsErr": "0.1",
        "MaxRelativeErr": "0.1", "Standard": standard, "Message": "", **cells,
    }  # fmt: skip
    worst = worst_measure(row, beyond_limit(row))
    assert worst.bars[0].name.startswith(name)
    assert (worst.times, worst.unit) == (pytest.approx(times, rel=1e-5), unit)


def test_a_card_and_the_details_say_by_which_implementation_it_was_judged(tmp_path: Path) -> None:
    added = ("Standard", "HonestRMSE", "HonestBy")
    wrong = result("Torch.a.0")
    cells = (("Standard", "auto"), ("HonestRMSE", 0.1), ("HonestBy", "rounded steps"))
    wrong = replace(wrong, checks=(replace(wrong.checks[0], columns=cells),))
    files = start_run(tmp_path, STAMP, RunSettings(added_setting(added)))
    journal = Journal.open(files.result, files.details)
    journal.append([done_of(wrong, added)])
    journal.close()
    found = seen(files)
    (by,) = (fact.value for fact in found.cards[0].facts if fact.name == "Judged by")
    kinds = {each.heading: each.kind for table in found.tables for each in table.columns}
    assert (by, kinds["HonestBy"], kinds["HonestRMSE"]) == (
        "rounded steps", CellKind.TEXT, CellKind.NUMBER,
    )  # fmt: skip


def test_what_is_in_error_is_the_first_table_the_worst_first(tmp_path: Path) -> None:
    dump = dump_in(tmp_path / "dump", "Torch.a.0", "Torch.b.0", "Torch.bad.0")
    results = (result("Torch.a.0", 1e-3), result("Torch.b.0", 0.5, index=1), crashed("Torch.bad.0"))
    found = seen(written(tmp_path, *results, dump=dump))
    table = found.tables[0]
    assert (table.title, table.repeats) == ("In error", True)
    assert [each.heading for each in table.columns] == [
        "API Name", "Times its limit", "Verdict", "Cause", "Module", "Source", "Message",
    ]  # fmt: skip
    crash, worst, other = table.rows
    assert crash[:3] == ("Torch.bad.0", "", "could not be run")
    assert (worst[0], float(worst[1])) == ("Torch.b.0.forward.output.0", pytest.approx(5000))
    assert worst[2:5] == ("error", "a factor of 2", "Module.net.1.Block.forward.0")
    assert worst[5].endswith("net.py:10, in forward: y = f(x)")
    assert worst[6] == WRONG
    assert (other[0], float(other[1])) == ("Torch.a.0.forward.output.0", pytest.approx(10))


def test_what_is_in_error_in_several_runs_is_one_table(tmp_path: Path) -> None:
    runs = [written(tmp_path / str(n), result("Torch.a.0", 0.1 * (n + 1))) for n in range(2)]
    found = seen(*runs, labels=("rank0", "rank1"))
    table = found.tables[0]
    assert (table.columns[1].heading, table.name_parts) == ("Step and rank", (1,))
    assert [row[1] for row in table.rows] == ["rank1", "rank0"]


def test_the_worst_call_of_a_module_is_its_worst(tmp_path: Path) -> None:
    names = ("Torch.a.0", "Torch.x.0", "Torch.b.0")  # The first and the last are in one block.
    dump = dump_in(tmp_path / "dump", *names)
    errors = (1e-3, 1e-5, 0.5)
    results = [result(*each, index=n) for n, each in enumerate(zip(names, errors, strict=True))]
    (tree,) = seen(written(tmp_path, *results, dump=dump)).model
    assert isinstance(tree, ModuleTree)
    assert [node.link for node in tree.nodes[:2]] == ["Torch.b.0.forward.output.0"] * 2


def test_ranks_without_modules_are_drawn_by_api_types(tmp_path: Path) -> None:
    runs = [written(tmp_path / str(n), result("Torch.a.0", 0.5 * n)) for n in range(2)]
    chart = seen(*runs, labels=("rank0", "rank1")).overview[1]
    assert isinstance(chart, HeatMap)
    assert (chart.rows, chart.values.tolist()) == (("Torch.a",), [[0.0, pytest.approx(5000)]])


def test_a_run_that_stopped_says_how_to_go_on(tmp_path: Path) -> None:
    files = written(tmp_path, result("Torch.a.0", 1e-5), complete=False)
    found = seen(files)
    assert (found.state, found.exit_code) == (ViewState.STOPPED, 3)
    assert found.sentence == "Stopped before its end; so far: All 1 call pass."
    assert found.advice[0].commands == (
        "cd '/the folder' && ray-precheck run_ut -api_info 'the dumps' -o out -csv_path"
        f" {files.result}",
    )


def test_ranks_that_stopped_go_on_in_the_folder_of_all(tmp_path: Path) -> None:
    dumps = [dump_in(tmp_path / f"dumps/step0/rank{n}", "Torch.a.0") for n in range(2)]
    runs = [
        written(
            tmp_path / f"out/step0/rank{n}", result("Torch.a.0", 1e-5), dump=dump, complete=not n
        )
        for n, dump in enumerate(dumps)
    ]
    found = seen(*runs, labels=("step0/rank0", "step0/rank1"))
    assert (found.state, found.exit_code) == (ViewState.STOPPED, 3)
    assert found.advice[0].commands == (
        "cd '/the folder' && ray-precheck run_ut -api_info 'the dumps' -o out -csv_path"
        f" {tmp_path}/out",
    )


def test_a_run_that_goes_on_has_no_exit_code_yet(tmp_path: Path) -> None:
    files = written(tmp_path, result("Torch.a.0", 0.5), complete=False)
    with claimed(files.lock):
        found = seen(files)
    assert (found.state, found.exit_code) == (ViewState.RUNNING, -1)
    assert found.sentence.startswith("So far: 1 operator is in error: Torch.a (1 of 1 call)")
    # Its block maxima are in the log still.
    assert found.cards[0].blocks is not None


def test_torn_files_are_read_as_far_as_they_go_and_this_is_said(tmp_path: Path) -> None:
    files = written(tmp_path, result("Torch.a.0", 0.5), result("Torch.b.0", 0.5, index=1))
    files.details.write_bytes(files.details.read_bytes()[:-9])
    found = seen(files)
    assert len(found.cards) == 1
    assert any("ends in the middle of a row" in note for note in found.notes)


def test_where_nothing_was_compared_this_is_the_sentence(tmp_path: Path) -> None:
    found = seen(written(tmp_path, skipped(0, "Torch.c.0", "not supported", True)))
    assert (found.tone, found.exit_code, found.cards) == (Tone.SKIP, 4, ())
    assert found.sentence == "Nothing was compared, so this says nothing about the device."


def test_the_timeline_and_how_many_calls_end_in_a_second(tmp_path: Path) -> None:
    files = written(tmp_path, *(result(f"Torch.a.{n}", 1e-5, index=n) for n in range(8)))
    events = [
        {"name": f"Torch.a.{n}", "cat": "check", "ph": "X", "ts": n * 1_000_000, "dur": 1_000_000,
         "pid": 1, "tid": 2}
        for n in range(8)
    ]  # fmt: skip
    events.append({**events[0], "name": "Torch.bad.0", "cat": "crash", "ts": 3_500_000, "dur": 0})
    lines = ",\n".join(map(json.dumps, events))
    files.timeline.write_text(f"[\n{lines}\n]\n")
    timeline, throughput = seen(files).run
    assert isinstance(timeline, TimelineChart)
    assert isinstance(throughput, LineChart)
    assert throughput.series[0].y.tolist() == pytest.approx([0.75, 1.25])
    assert len(timeline.begin) == 8
    assert timeline.marks == ((3.5, "Torch.bad.0 broke its worker on 2"),)


@pytest.mark.parametrize(
    ("name", "content"),
    [("accuracy_checking_result_1.csv", None), ("accuracy_checking_result_1.csv", b"a,b\r\n")],
)
def test_what_is_no_result_csv_is_one_sentence(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"cannot read|its first line must be"):
        view([FoundRun(path, "1")])


def test_files_of_msprobe_have_a_view(tmp_path: Path) -> None:
    path = tmp_path / f"accuracy_checking_result_{STAMP}.csv"
    head = b"API Name,Forward Test Success,Backward Test Success,Message\n"
    path.write_bytes(head + b"Torch.a.0,pass,pass,\n")
    found = view([FoundRun(path, STAMP)])
    assert found.sentence == "All 1 call pass."
    assert any("has no settings beside it" in note for note in found.notes)


def test_hostile_names_are_kept_as_they_are(tmp_path: Path) -> None:
    odd = "Torch.<script>\n\u202e\x1b[2J.0"
    found = seen(written(tmp_path, result(odd), crashed(f"{odd[:-1]}1")))
    assert [card.name for card in found.cards] == [f"{odd}.forward.output.0", f"{odd[:-1]}1"]
    json.dumps(views_data([found]), allow_nan=False)


ROW = {
    "API Name": "x",
    "Bench Dtype": "",
    "Tested Dtype": "torch.float16",
    "Shape": "",
    "Status": "",
}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (
            {"Cosine": "0.5", "MaxAbsErr": "0.5", "Message": "cosine 0.5 is not above 0.999"},
            {"Cosine": (0.5, 0.999, True), "MaxAbsErr": (0.5, 1e-4, False)},
        ),
        (
            {"MaxAbsErr": "3", "RMSE": "2", "Standard": "auto", "HonestRMSE": "1",
             "Message": "RMSE is 2, must be at most 1.5; also largest error is 3, must be at most 2.5e-06"},
            {"MaxAbsErr": (3.0, 2.5e-6, False), "RMSE": (2.0, 1.5, False)},
        ),
        (
            {"MaxRelErrRatio": "12", "Standard": "benchmark L1", "Message": ""},
            {"MaxRelErrRatio": (12.0, 5.0, False)},
        ),
        (
            {"MaxUlpErr": "9", "UlpErrShare": "0.5", "Standard": "ulp", "Message": ""},
            {"MaxUlpErr": (9.0, math.nan, False), "UlpErrShare": (0.5, 0.001, False)},
        ),
        (
            {"ThousandthShare": "0.5", "Standard": "thousandth", "Message":
             "share of elements with a relative error below 0.001 is 0.5, must be at least 0.99"},
            {"ThousandthShare": (0.5, 0.99, True)},
        ),
        (
            {"DifferentShare": "0.5", "Standard": "binary", "Message": ""},
            {"DifferentShare": (0.5, 0.0, False)},
        ),
    ],
)  # fmt: skip
def test_every_metric_stands_beside_the_limit_of_its_standard(
    cells: dict[str, str], expected: dict[str, tuple[float, float, bool]]
) -> None:
    bars = {bar.name: (bar.value, bar.limit, bar.is_least) for bar in bars_of({**ROW, **cells})}
    assert repr(bars) == repr(expected)


def test_a_histogram_reaches_from_its_smallest_error_to_the_limit() -> None:
    bench = np.ones(3)
    found = heat_of("x", bench + np.array([1e-7, 2e-7, 0]), bench, "float64", LIMIT)
    drawn = histogram_of(found)
    assert (drawn.edges[0], drawn.edges[-2]) == (pytest.approx(10**-3.0), 1.0)
    assert sum(drawn.counts) == 2
    assert "1 elements without an error" in drawn.title
