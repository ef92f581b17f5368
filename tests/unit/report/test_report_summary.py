"""The summary: counts, the worst outputs, and the text."""

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ray_precheck.report.summary import (
    WORST_OUTPUTS,
    Summary,
    format_summary,
    read_rows,
    summarise,
)
from ray_precheck.schema.result import (
    Metrics,
    Outcome,
    OutputCheck,
    TaskResult,
    Verdict,
    failed,
    skipped,
)
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import RunFiles, load_done, run_files

pytestmark = pytest.mark.unit

PASS, ERROR, SKIP, NONE = Verdict.PASS, Verdict.ERROR, Verdict.SKIP, Verdict.NONE


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return run_files(tmp_path / "accuracy_checking_result_1.csv")


def compared(
    name: str,
    errors: list[float] | None = None,
    forward: Verdict = PASS,
    backward: Verdict = NONE,
) -> TaskResult:
    """A result whose outputs have these largest absolute errors."""
    checks = tuple(
        OutputCheck(
            name=f"{name}.forward.output.{position}",
            bench_dtype="torch.float64",
            tested_dtype="torch.float32",
            shape="(2, 3)",
            metrics=Metrics(0.5, error, 2 * error),
            verdict=forward,
        )
        for position, error in enumerate(errors or [])
    )
    return TaskResult(0, name, Outcome.COMPLETED, forward, backward, checks=checks)


def summary_of(files: RunFiles, *results: TaskResult) -> Summary:
    """The summary of a run with these results."""
    journal = Journal.open(files.result, files.details)
    journal.append(results)
    journal.close()
    return summarise(files)


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


def test_the_worst_ten_outputs_are_errors_first_then_by_the_largest_error(
    files: RunFiles,
) -> None:
    summary = summary_of(
        files,
        compared("Mint.small.0", [float(i) for i in range(9)]),
        compared("Mint.wrong.0", [0.25, 0.5], forward=ERROR),
        compared("Mint.large.0", [100.0]),
    )
    worst = [(row["API Name"], float(row["MaxAbsErr"])) for row in summary.worst]
    assert worst == [
        ("Mint.wrong.0.forward.output.1", 0.5),
        ("Mint.wrong.0.forward.output.0", 0.25),
        ("Mint.large.0.forward.output.0", 100.0),
        *((f"Mint.small.0.forward.output.{i}", float(i)) for i in range(8, 1, -1)),
    ]


def test_nan_and_what_is_no_number_count_as_the_largest_error(files: RunFiles) -> None:
    summary = summary_of(
        files,
        compared("Mint.big.0", [1e300]),
        compared("Mint.nan.0", [float("nan")]),
        compared("Mint.inf.0", [float("inf")]),
    )
    names = [row["API Name"].split(".")[1] for row in summary.worst]
    assert names == ["nan", "inf", "big"]


@given(
    outputs=st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 2.0, math.nan, math.inf]), st.booleans()), max_size=60
    )
)
@example(outputs=[(0.5, False)] * 15)
@settings(max_examples=100, deadline=None)
def test_the_worst_are_those_of_all_rows_whatever_came_before(
    outputs: list[tuple[float, bool]],
) -> None:
    results = [
        compared(f"Mint.a.{place}", [error], forward=ERROR if is_error else PASS)
        for place, (error, is_error) in enumerate(outputs)
    ]
    with tempfile.TemporaryDirectory() as folder:
        files = run_files(Path(folder) / "accuracy_checking_result_1.csv")
        summary = summary_of(files, *results)
        rows = list(read_rows(files.details))

    def badness(row: dict[str, str]) -> tuple[bool, float, str]:
        error = float(row["MaxAbsErr"])
        return row["Status"] == "error", math.inf if math.isnan(error) else error, row["API Name"]

    assert summary.worst == sorted(rows, key=badness, reverse=True)[:WORST_OUTPUTS]


def test_columns_that_a_file_lacks_are_empty(files: RunFiles) -> None:
    files.result.write_bytes(b"API Name,Message\r\nTorch.a.0,\r\nTorch.b.0,pass,pass,pass\r\n")
    files.details.write_bytes(b"API Name,MaxAbsErr\r\nTorch.a.0.forward.output.0,0.5,error\r\n")
    summary = summarise(files)
    assert (summary.total, summary.passes, summary.errors, summary.skips) == (2, 0, 0, 2)
    assert [row["Status"] for row in summary.worst] == [""]


def test_outputs_without_metrics_are_not_among_the_worst(files: RunFiles) -> None:
    check = OutputCheck("Mint.a.0.forward.output.0", "int", "int", "", None, ERROR, "3 for 4")
    result = TaskResult(0, "Mint.a.0", Outcome.COMPLETED, ERROR, NONE, checks=(check,))
    assert summary_of(files, result).worst == []


def test_names_are_shown_as_the_dump_has_them(files: RunFiles) -> None:
    name = "=Tensor.a\\b.0"
    summary = summary_of(files, compared(name, [1.0], forward=ERROR))
    assert summary.worst[0]["API Name"] == f"{name}.forward.output.0"
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
    assert [row["API Name"] for row in summary.worst] == ["Torch.b.0.forward.output.0"]
    assert next(read_rows(files.result))["API Name"] == "Torch.a.0"


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


def test_the_text_names_counts_worst_outputs_types_and_files(files: RunFiles) -> None:
    summary = summary_of(
        files,
        compared("Mint.exp.0", [0.125], forward=ERROR),
        compared("Mint.add.0", [1e-7]),
        skipped(2, "Mint.foo.0", "not supported", False),
    )
    assert format_summary(summary).splitlines() == [
        "3 APIs: 1 pass, 1 error, 1 SKIP",
        "",
        "Worst outputs (errors first, by MaxAbsErr):",
        "  status  MaxAbsErr     cosine  MaxRelErr  output",
        "  error       0.125        0.5       0.25"
        "  Mint.exp.0.forward.output.0 (torch.float32, (2, 3))",
        "  pass        1e-07        0.5      2e-07"
        "  Mint.add.0.forward.output.0 (torch.float32, (2, 3))",
        "",
        "API types with most errors:",
        "       1  Mint.exp",
        "",
        f"Results: {files.result}",
        f"Details: {files.details}",
    ]


def test_a_run_without_outputs_has_a_short_text(files: RunFiles) -> None:
    text = format_summary(summary_of(files, skipped(0, "Mint.a.0", "not supported", False)))
    assert text.splitlines()[0] == "1 APIs: 0 pass, 0 error, 1 SKIP"
    assert "Worst" not in text
    assert "most errors" not in text


def test_names_that_a_terminal_obeys_are_shown_and_long_ones_are_cut() -> None:
    summary = Summary(run_files(Path("accuracy_checking_result_1.csv")))
    summary.error_types.update(["Tensor.\x1b[2Jadd", "Tensor.\ud800", "T" * 10**6])
    text = format_summary(summary)
    assert "Tensor.\\x1b[2Jadd" in text
    assert "Tensor.\\ud800" in text
    assert max(map(len, text.splitlines())) < 200
    text.encode()
