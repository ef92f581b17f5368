"""The summary: counts, the worst outputs, and the text."""

import csv
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from report_runs import compared, output, summary_of

from ray_precheck.commands.precheck.closing import format_summary
from ray_precheck.commands.precheck.summary import (
    WORST_OUTPUTS,
    Summary,
    WorstOutput,
    beyond_limit,
    nearness,
    summarise,
    worst_of,
)
from ray_precheck.schema.environment import Environment, environment_to_dict
from ray_precheck.schema.result import Outcome, OutputCheck, TaskResult, Verdict, failed, skipped
from ray_precheck.store.results import read_results
from ray_precheck.store.resume import load_done
from ray_precheck.store.settings import RunSettings, note_environment, save_settings
from ray_precheck.store.tables import RunFiles, run_files

pytestmark = pytest.mark.unit

PASS, ERROR, SKIP, NONE = Verdict.PASS, Verdict.ERROR, Verdict.SKIP, Verdict.NONE


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return run_files(tmp_path / "accuracy_checking_result_1.csv")


def test_every_call_is_counted_once_by_both_its_verdicts(files: RunFiles) -> None:
    summary = summary_of(
        files,
        compared("Mint.a.0", forward=PASS, backward=NONE),
        compared("Mint.a.1", forward=PASS, backward=PASS),
        compared("Mint.a.2", forward=PASS, backward=SKIP),
        compared("Mint.a.3", forward=PASS, backward=ERROR),
        compared("Mint.a.4", forward=ERROR, backward=SKIP),
        skipped(5, "Mint.a.5", "not supported", True),
        failed(6, "Mint.a.6", Outcome.CRASHED, "killed its worker", False),
    )
    counts = (summary.total, summary.passes, summary.errors, summary.skips)
    assert counts == (7, 2, 3, 2)


def test_errors_are_counted_by_api_type(files: RunFiles) -> None:
    summary = summary_of(
        files,
        *(compared(f"Torch.linalg.inv.{i}", forward=ERROR) for i in range(3)),
        compared("Mint.add.0", forward=ERROR),
        compared("Mint.add.1"),
    )
    assert summary.error_types == {"Torch.linalg.inv": 3, "Mint.add": 1}


def test_the_worst_outputs_of_ten_apis_are_named_the_farthest_beyond_their_limit_first(
    files: RunFiles,
) -> None:
    summary = summary_of(
        files,
        compared("Mint.large.0", [100.0]),
        *(compared(f"Mint.small{i}.0", [float(i)], forward=ERROR) for i in range(1, 10)),
        compared("Mint.wrong.0", [25.0, 50.0], forward=ERROR),
        compared("Mint.wrong.1", [15.0], forward=ERROR),
        compared("Mint.bad.0", [25.0], forward=ERROR),
    )
    shown = summary.worst[:WORST_OUTPUTS]
    worst = [(output.name, float(output.row["MaxAbsErr"])) for output in shown]
    assert worst == [
        ("Mint.wrong.0.forward.output.1", 50.0),
        ("Mint.bad.0.forward.output.0", 25.0),
        *((f"Mint.small{i}.0.forward.output.0", float(i)) for i in range(9, 1, -1)),
    ]
    assert [output.more for output in summary.worst[:3]] == [2, 0, 0]
    others = [name for name, _ in summary.worst[0].others]
    assert others == ["Mint.wrong.0.forward.output.0", "Mint.wrong.1.forward.output.0"]
    assert "small1.0" not in format_summary(summary)


def test_a_tiny_gradient_that_is_all_wrong_comes_before_a_sum_of_thousands_that_is_right(
    files: RunFiles,
) -> None:
    summary = summary_of(
        files,
        output("Mint.sum.0.forward.output.0", 1.0, 0.0005, 1e-7),
        output("Mint.noted.0.forward.output.0", 0.5, 9.0, 9.0, "rounding: the terms are large"),
        output("Mint.silu.0.backward.output.0", 0.02, 1e-5, 1.9),
    )
    names = [found.name.split(".")[1] for found in summary.worst]
    assert names == ["silu", "sum", "noted"]
    assert summary.worst[0].beyond > 10_000
    assert summary.worst[1].beyond < 1.0


@pytest.mark.parametrize("error", [float("nan"), float("inf")])
def test_nan_and_infinity_count_as_the_largest_error(files: RunFiles, error: float) -> None:
    big, worse = (
        compared(f"Mint.{name}.0", [value], forward=ERROR)
        for name, value in (("big", 1e300), ("worse", error))
    )
    summary = summary_of(files, big, worse)
    assert [found.name.split(".")[1] for found in summary.worst] == ["worse", "big"]


@given(
    outputs=st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 2.0, 3.0, math.inf]), st.booleans()), max_size=60
    )
)
@example(outputs=[(0.5, False)] * 15)
@settings(max_examples=100, deadline=None)
def test_the_worst_are_those_of_all_rows_whatever_came_before(
    outputs: list[tuple[float, bool]],
) -> None:
    results = [
        compared(f"Mint.a{place}.0", [error], forward=ERROR if is_error else PASS)
        for place, (error, is_error) in enumerate(outputs)
    ]
    with tempfile.TemporaryDirectory() as folder:
        files = run_files(Path(folder) / "accuracy_checking_result_1.csv")
        summary = summary_of(files, *results)
        with files.details.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))

    def badness(row: dict[str, str]) -> tuple[float, str]:
        is_error = row["Status"] == "error"
        return beyond_limit(row) if is_error else nearness(row["MaxAbsErr"]), row["API Name"]

    has_errors = any(is_error for _, is_error in outputs)
    count = [row for row in rows if row["Status"] == ("error" if has_errors else "pass")]
    # Twice as many as are shown by name: an operator may have two directions.
    expected = sorted(count, key=badness, reverse=True)[: 2 * WORST_OUTPUTS]
    assert [badness(found.row)[0] for found in summary.worst] == [badness(r)[0] for r in expected]
    assert {found.row["Status"] for found in summary.worst} <= {"error" if has_errors else "pass"}


def test_columns_that_a_file_lacks_are_empty(files: RunFiles) -> None:
    files.result.write_bytes(b"API Name,Message\r\nTorch.a.0,\r\nTorch.b.0,pass,pass,pass\r\n")
    files.details.write_bytes(b"API Name,Status\r\nTorch.a.0.forward.output.0,error,0.5\r\n")
    summary = summarise(files)
    assert (summary.total, summary.passes, summary.errors, summary.skips) == (2, 0, 0, 2)
    assert [(found.row["Status"], found.row["MaxAbsErr"]) for found in summary.worst] == [
        ("error", "")
    ]


@pytest.mark.parametrize(("verdict", "count"), [(ERROR, 1), (PASS, 0), (SKIP, 0)])
def test_outputs_without_metrics_are_among_the_worst_where_they_are_in_error(
    files: RunFiles, verdict: Verdict, count: int
) -> None:
    check = OutputCheck("Mint.a.0.forward.output.0", "int", "int", "", None, verdict, "3 for 4")
    result = TaskResult(0, "Mint.a.0", Outcome.COMPLETED, verdict, NONE, checks=(check,))
    assert [found.beyond for found in summary_of(files, result).worst] == [math.inf] * count


def test_names_are_shown_as_the_dump_has_them(files: RunFiles) -> None:
    name = "=Tensor.a\\b.0"
    summary = summary_of(files, compared(name, [1.0], forward=ERROR))
    assert summary.worst[0].name == f"{name}.forward.output.0"
    assert summary.error_types == {"=Tensor.a\\b": 1}


def test_files_without_rows_give_zeros(files: RunFiles) -> None:
    summary = summary_of(files)
    assert (summary.total, summary.passes, summary.errors, summary.skips) == (0, 0, 0, 0)
    assert summary.worst == []


def test_missing_files_give_zeros(files: RunFiles) -> None:
    assert summarise(files).total == 0


@pytest.mark.parametrize("heading", ["API name", "API Name"])
def test_files_of_msprobe_are_summarised(files: RunFiles, heading: str) -> None:
    files.result.write_bytes(
        b"\xef\xbb\xbf"
        + heading.encode()
        + b",Forward Test Success,Backward Test Success,Message\r\n"
        b"Torch.a.0,pass, , \r\n"
        b'Torch.b.0,error,SKIP,"two\r\nlines"\r\n'
        b"Torch.c.0,SKIP\r\n"
    )
    files.details.write_bytes(
        b"API Name,Bench Dtype,Tested Dtype,Shape,Cosine,MaxAbsErr,MaxRelativeErr,Status,Message\n"
        b"Torch.b.0.forward.output.0,f,f,(),N/A,N/A,N/A,error,\n"
    )
    summary = summarise(files)
    counts = (summary.total, summary.passes, summary.errors, summary.skips)
    assert counts == (3, 1, 1, 1)
    assert summary.error_types == {"Torch.b": 1}
    assert [found.name for found in summary.worst] == ["Torch.b.0.forward.output.0"]
    assert next(read_results(files.result)).name == "Torch.a.0"


@pytest.mark.parametrize(
    "head",
    [
        b"API NAME,Forward Test Success,Backward Test Success,Message\r\n",
        b"API Name,Forward Test Success ,Backward Test Success,Message\r\n",
    ],
)
def test_headings_that_a_run_goes_on_with_can_be_summarised(files: RunFiles, head: bytes) -> None:
    files.result.write_bytes(head + b"Torch.a.0,error,,\r\n")
    assert load_done(files, {"Torch.a.0"}) == {"Torch.a.0"}
    assert summarise(files).error_types == {"Torch.a": 1}


def test_a_message_may_be_of_any_length(files: RunFiles) -> None:
    result = skipped(0, "Mint.a.0", "x" * 200_000, False)
    assert summary_of(files, result).skips == 1


def test_the_text_names_what_was_compared_why_not_worst_outputs_types_and_files(
    files: RunFiles,
) -> None:
    save_settings(files.settings, RunSettings({"seed": "7", "standard": "msprobe"}))
    there = Environment(
        framework="mindspore",
        kind="npu",
        device_names=("Ascend 910B",),
        devices=8,
        nodes=2,
        rule="msprobe",
        versions={"mindspore": "2.10.0"},
    )
    note_environment(files.settings, environment_to_dict(there))
    wrong = output("Mint.exp.0.forward.output.0", 0.5, 0.125, 0.25, "x; likely cause: a shift")
    summary = summary_of(
        files,
        wrong,
        compared("Mint.add.0", [1e-7], backward=PASS),
        skipped(2, "Mint.foo.0", "no kernel for 'foo'", False),
        skipped(3, "Mint.bar.0", "no kernel for 'bar'", True),
        failed(4, "Mint.crash.0", Outcome.CRASHED, "killed its worker (SIGSEGV)", True),
    )
    assert format_summary(summary).splitlines() == [
        "5 APIs: 1 pass, 2 error, 2 SKIP",
        "Forward:  2 of 5 compared (1 pass, 1 error), 1 that the device could not run (error),"
        " 2 not compared",
        "Backward: 1 of 3 compared (1 pass, 0 error), 2 not compared",
        "Tested:   mindspore 2.10.0 on 8 npu (Ascend 910B) on 2 nodes",
        "With:     standard msprobe, seed 7",
        "",
        "Why 2 calls were not, or not wholly, compared:",
        "       2  no kernel for 'foo'",
        "          (Mint.foo.0, Mint.bar.0)",
        "",
        "1 call that the device could not run:",
        "  Mint.crash.0: killed its worker (SIGSEGV)",
        "",
        "Worst output of each API, by how many times it is beyond its limit:",
        "            times     cosine  MaxAbsErr  output",
        "  error     10000        0.5      0.125  Mint.exp.0.forward.output.0 (Float32, (4,))",
        "        likely cause: a shift",
        "",
        "API types with most errors:",
        "       1  Mint.exp",
        "       1  Mint.crash",
        "",
        f"Results: {files.result}",
        f"Details: {files.details}",
    ]


def test_without_an_error_the_outputs_nearest_to_their_limits_are_shown(files: RunFiles) -> None:
    text = format_summary(summary_of(files, compared("Mint.add.0", [1e-7])))
    assert "Nearest to their limits" in text
    assert "Worst" not in text


def test_a_run_without_outputs_has_a_short_text(files: RunFiles) -> None:
    text = format_summary(summary_of(files, skipped(0, "Mint.a.0", "not supported", False)))
    assert text.splitlines()[0] == "1 APIs: 0 pass, 0 error, 1 SKIP"
    assert "Nothing was compared" in text
    assert "Worst" not in text
    assert "most errors" not in text


@pytest.mark.parametrize(
    ("results", "checked_nothing"),
    [
        ([], True),
        ([skipped(0, "Mint.a.0", "why", True)], True),
        ([skipped(0, "Mint.a.0", "why", True), compared("Mint.b.0")], False),
        ([compared("Mint.b.0", backward=SKIP)], False),
        ([failed(0, "Mint.a.0", Outcome.CRASHED, "killed its worker", True)], False),
    ],
)
def test_a_run_that_compared_nothing_is_told_from_one_that_did(
    files: RunFiles, results: list[TaskResult], checked_nothing: bool
) -> None:
    assert summary_of(files, *results).checked_nothing is checked_nothing


def test_a_torn_last_line_is_left_out(files: RunFiles) -> None:
    summary_of(files, compared("Mint.a.0", [1.0]), compared("Mint.b.0", [2.0]))
    for path in (files.result, files.details):
        path.write_bytes(path.read_bytes() + b'Mint.c.0,error,"half a')
    summary = summarise(files)
    assert (summary.total, summary.passes, len(summary.worst)) == (2, 2, 2)


def test_the_model_line_of_an_error_is_named_where_a_stack_stands_beside_the_dump(
    files: RunFiles, tmp_path: Path
) -> None:
    (tmp_path / "stack.json").write_text(
        '{"0": [["Mint.exp.0.forward"], ["File /lib/site-packages/mindspore/a.py, line 1, in f, \\n x",'
        ' "File /model/net.py, line 12, in construct, \\n y = exp(x)"]]}'
    )
    save_settings(files.settings, RunSettings({"seed": "0"}))
    there = Environment(dump=str(tmp_path / "dump.json"))
    note_environment(files.settings, environment_to_dict(there))
    summary = summary_of(files, output("Mint.exp.0.forward.output.0", 0.5, 1.0, 1.0))
    assert "        at /model/net.py:12, in construct: y = exp(x)" in format_summary(summary)


def test_names_that_a_terminal_obeys_are_shown_and_long_ones_are_cut() -> None:
    summary = Summary(run_files(Path("accuracy_checking_result_1.csv")))
    summary.error_types.update(["Tensor.\x1b[2Jadd", "Tensor.\ud800", "T" * 10**6])
    text = format_summary(summary)
    assert "Tensor.\\x1b[2Jadd" in text
    assert "Tensor.\\ud800" in text
    assert max(map(len, text.splitlines())) < 200
    text.encode()


def test_of_passes_by_another_rule_nobody_knows_how_near_they_are(files: RunFiles) -> None:
    heads = (
        b"API Name,Bench Dtype,Tested Dtype,Shape,Cosine,MaxAbsErr,MaxRelativeErr,Status,Message"
    )
    rows = (
        b"Mint.a.0.forward.output.0,Float64,Float32,(4;),1.0,inf,inf,pass,,auto\r\n"
        b"Mint.b.0.forward.output.0,Float64,Float32,(4;),0.5,1.0,1.0,error,,auto\r\n"
    )
    files.details.write_bytes(heads + b",Standard\r\n" + rows)
    assert [found.name for found in summarise(files).worst] == ["Mint.b.0.forward.output.0"]


def test_a_file_of_millions_of_names_takes_little_memory(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray_precheck.commands.precheck.summary._MOST_KINDS", 20)
    results = [compared(f"Mint.a{n}.0", [float(n)], forward=ERROR) for n in range(100)]
    worst = summary_of(files, *results).worst
    assert [float(found.row["MaxAbsErr"]) for found in worst] == [
        float(n) for n in range(99, 79, -1)
    ]


def test_of_several_runs_an_api_has_one_line_with_the_worst_of_all(files: RunFiles) -> None:
    near, far = (
        WorstOutput(
            {"API Name": "Mint.a.0.forward.output.0", "Status": "error", "Message": ""}, x, "", 2
        )
        for x in (5.0, 7.0)
    )
    other = replace(near, row={**near.row, "API Name": "Mint.b.0.forward.output.0"})
    worst = worst_of([("rank0", near), ("rank1", far), ("rank1", other)])
    assert [(found.name, found.beyond, found.more) for found in worst] == [
        ("rank1 Mint.a.0.forward.output.0", 7.0, 5),
        ("rank1 Mint.b.0.forward.output.0", 5.0, 2),
    ]
