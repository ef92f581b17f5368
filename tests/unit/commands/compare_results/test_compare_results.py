"""Two result sets of one dump compared: the errors of one device beside those of another."""

import csv
import math
from pathlib import Path

import pytest

from ray_precheck.accuracy.standards.base import ERROR_HEADINGS
from ray_precheck.cli import IN_ERROR, NOTHING_CHECKED, PASSED, UNUSABLE, main
from ray_precheck.commands.compare_results.run import (
    COLUMNS,
    LISTED,
    ResultComparison,
    compare_results,
    format_comparison,
)
from ray_precheck.errors import UsageError
from ray_precheck.replay.job import done_of
from ray_precheck.schema.result import Metrics, Outcome, OutputCheck, TaskResult, Verdict
from ray_precheck.store.journal import Journal
from ray_precheck.store.settings import RunSettings, save_settings
from ray_precheck.store.tables import added_setting, run_files

pytestmark = pytest.mark.unit

EXP, SUM = "Torch.exp.0.forward.output.0", "Torch.sum.0.forward.output.0"
GOOD = (1e-6, 1e-7, 1e-7, 0.0)


def row(
    name: str = EXP,
    errors: tuple[float, ...] | None = GOOD,
    *,
    dtype: str = "torch.float32",
    shape: str = "(2, 3)",
    max_rel: float = 1e-6,
    max_abs: float = 1e-6,
    verdict: Verdict = Verdict.PASS,
) -> OutputCheck:
    """A detail row with the errors max_rel, mean_rel, rmse and small values, or without them."""
    cells = () if errors is None else tuple(zip(ERROR_HEADINGS, errors, strict=True))
    metrics = Metrics(1.0, max_abs, max_rel)
    return OutputCheck(name, "torch.float64", dtype, shape, metrics, verdict, columns=cells)


def text_row(verdict: Verdict) -> OutputCheck:
    return OutputCheck("Tensor.dim.0.forward.output.0", "int", "int", "", None, verdict)


def details(folder: Path, *checks: OutputCheck, columns: bool = True, **settings: str) -> Path:
    """The details file of a run, in a folder of its own."""
    folder.mkdir()
    files = run_files(folder / "accuracy_checking_result_20260101120000.csv")
    added = tuple(ERROR_HEADINGS) if columns else ()
    save_settings(files.settings, RunSettings({"dump": "d1", **settings, **added_setting(added)}))
    journal = Journal.open(files.result, files.details)
    results = [
        TaskResult(i, f"X.{i}", Outcome.COMPLETED, Verdict.PASS, Verdict.NONE, checks=(check,))
        for i, check in enumerate(checks)
    ]
    journal.append([done_of(result, added) for result in results])
    journal.close()
    return files.details


def compared(
    tmp_path: Path, mine: list[OutputCheck], theirs: list[OutputCheck], *, columns: bool = True
) -> ResultComparison:
    npu = details(tmp_path / "npu", *mine, columns=columns)
    gpu = details(tmp_path / "gpu", *theirs, columns=columns)
    return compare_results(npu, gpu, tmp_path / "out", "1")


def written(comparison: ResultComparison) -> list[dict[str, str]]:
    with comparison.path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_ratios_are_those_of_the_errors(tmp_path: Path) -> None:
    comparison = compared(
        tmp_path, [row(errors=(0.9, 0.2, 0.3, 0.1))], [row(errors=(0.1, 0.1, 0.2, 0.1))]
    )
    (found,) = comparison.rows
    assert found.verdict is Verdict.PASS
    assert tuple(found.ratios.values()) == pytest.approx((9.0, 2.0, 1.5, 1.0))
    assert (found.dtype, found.shape, found.level) == ("float32", "(2, 3)", "L0")


def test_files_with_the_old_names_of_the_columns_are_read(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [row(errors=(0.9, 0.2, 0.3, 0.1))], [row(errors=(0.1,) * 4)])
    old = tmp_path / "old"
    old.mkdir()
    for side in ("npu", "gpu"):
        (path,) = (tmp_path / side).glob("*_details_*.csv")
        text = path.read_text(encoding="utf-8")
        assert "MaxRelErrAboveSmall,MeanRelErrAboveSmall,RMSE" in text
        (old / f"{side}.csv").write_text(text.replace("RelErrAboveSmall", "RelErr"), "utf-8")
    again = compare_results(old / "npu.csv", old / "gpu.csv", tmp_path / "out", "2")
    assert again.rows == comparison.rows
    assert set(again.rows[0].ratios) == set(comparison.rows[0].ratios) != set()


@pytest.mark.parametrize(
    ("errors", "metric"),
    [
        ((1.01, 0.1, 0.1, 0.1), "largest relative error 1.01 is 10.1 times"),
        ((0.1, 0.21, 0.1, 0.1), "mean relative error 0.21 is 2.1 times"),
        ((0.1, 0.1, 0.21, 0.1), "RMSE 0.21 is 2.1 times"),
        ((0.1, 0.1, 0.1, 0.21), "share of wrong small values 0.21 is 2.1 times"),
        ((0.1, math.nan, 0.1, 0.1), "mean relative error nan is nan times"),
    ],
)
def test_a_ratio_beyond_its_limit_is_an_error_that_says_so(
    tmp_path: Path, errors: tuple[float, ...], metric: str
) -> None:
    comparison = compared(tmp_path, [row(errors=errors)], [row(errors=(0.1, 0.1, 0.1, 0.1))])
    (found,) = comparison.rows
    assert found.verdict is Verdict.ERROR
    assert f"{metric} that of the reference, 0.1; at most" in found.message
    assert found.excess > 1


def test_an_api_has_the_limits_of_its_level(tmp_path: Path) -> None:
    errors, reference = (0.15, 0.13, 0.1, 0.1), (0.1, 0.1, 0.1, 0.1)
    comparison = compared(
        tmp_path,
        [row(EXP, errors), row(SUM, errors)],
        [row(EXP, reference), row(SUM, reference)],
    )
    assert [(r.level, r.verdict) for r in comparison.rows] == [
        ("L0", Verdict.PASS),
        ("L2", Verdict.ERROR),
    ]


@pytest.mark.parametrize(
    ("dtype", "floor"),
    [("torch.float32", 2.0**-14), ("Float16", 2.0**-11), ("torch.bfloat16", 2.0**-8)],
)
def test_errors_of_the_reference_below_the_smallest_do_not_count(
    tmp_path: Path, dtype: str, floor: float
) -> None:
    mine = row(errors=(9.9 * floor, 1.9 * floor, 0.0, 0.0), dtype=dtype)
    comparison = compared(tmp_path, [mine], [row(errors=(0.0,) * 4, dtype=dtype)])
    (found,) = comparison.rows
    assert found.verdict is Verdict.PASS
    assert found.ratios["MaxRelErrRatio"] == pytest.approx(9.9)


def test_the_default_columns_give_the_largest_relative_error_and_this_is_said(
    tmp_path: Path,
) -> None:
    comparison = compared(
        tmp_path,
        [row(EXP, None, max_rel=0.9), row(SUM, None, max_rel=0.9)],
        [row(EXP, None, max_rel=0.1), row(SUM, None, max_rel=0.1)],
        columns=False,
    )
    assert [r.verdict for r in comparison.rows] == [Verdict.PASS, Verdict.ERROR]
    assert comparison.limited == 2
    text = format_comparison(comparison)
    assert "Of 2 outputs only MaxRelativeErr was compared" in text
    assert "--standard benchmark" in text


def test_with_all_errors_nothing_is_said_to_be_missing(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [row()], [row()])
    assert comparison.limited == 0
    assert "only MaxRelativeErr" not in format_comparison(comparison)


@pytest.mark.parametrize(
    ("here", "there", "verdict"),
    [
        (math.inf, 1e-6, Verdict.ERROR),
        (math.inf, math.inf, Verdict.PASS),
        (1e-6, math.inf, Verdict.PASS),
        (math.nan, 1e-6, Verdict.ERROR),
    ],
)
def test_nan_and_infinities_that_only_the_first_has_wrong_are_an_error(
    tmp_path: Path, here: float, there: float, verdict: Verdict
) -> None:
    comparison = compared(tmp_path, [row(max_abs=here)], [row(max_abs=there)])
    assert comparison.rows[0].verdict is verdict


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.ERROR])
def test_what_has_no_errors_keeps_its_own_verdict(tmp_path: Path, verdict: Verdict) -> None:
    comparison = compared(tmp_path, [text_row(verdict)], [text_row(Verdict.ERROR)])
    assert comparison.rows[0].verdict is verdict


def test_rows_that_one_file_lacks_are_listed_and_not_compared(tmp_path: Path) -> None:
    mine = [row(), *(row(f"Mint.a.{i}.forward.output.0") for i in range(LISTED + 2))]
    comparison = compared(tmp_path, mine, [row(), row("Mint.b.0.forward.output.0")])
    assert comparison.count(Verdict.SKIP) == LISTED + 3
    assert comparison.count(Verdict.PASS) == 1
    text = format_comparison(comparison)
    assert f"{LISTED + 2} outputs are in" in text
    assert "  Mint.a.0.forward.output.0\n" in text
    assert "  ... and 2 more" in text
    assert "  Mint.b.0.forward.output.0\n" in text
    messages = {line["API Name"]: line["Message"] for line in written(comparison)}
    assert messages["Mint.b.0.forward.output.0"].startswith("not in accuracy_checking_details")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": "(3, 2)"}, "shape (2, 3) here, (3, 2) in the reference"),
        ({"dtype": "torch.float16"}, "dtype float32 here, float16 in the reference"),
    ],
)
def test_outputs_of_other_shapes_or_dtypes_are_not_compared(
    tmp_path: Path, change: dict[str, str], message: str
) -> None:
    (found,) = compared(tmp_path, [row()], [row(**change)]).rows  # type: ignore[arg-type]
    assert (found.verdict, found.message) == (Verdict.SKIP, message)


def test_the_same_dtype_in_another_spelling_is_the_same(tmp_path: Path) -> None:
    (found,) = compared(tmp_path, [row(dtype="Float32")], [row(dtype="torch.float32")]).rows
    assert found.verdict is Verdict.PASS


def test_the_csv_has_a_row_for_every_output(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [row(), row("=Mint.a.0.forward.output.0")], [row()])
    first, second = written(comparison)
    assert tuple(first) == COLUMNS
    assert (first["API Name"], first["Status"], first["RMSERatio"]) == (
        EXP,
        "pass",
        repr(1e-7 / 2.0**-14),
    )
    assert (second["API Name"], second["Status"]) == ("'=Mint.a.0.forward.output.0", "SKIP")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    npu, gpu = details(tmp_path / "npu", row()), details(tmp_path / "gpu", row())
    paths = [compare_results(npu, gpu, tmp_path / "new" / "out", "1").path for _ in range(2)]
    assert [path.name for path in paths] == ["compare_results_1.csv", "compare_results_1_1.csv"]


def test_runs_with_other_benches_of_the_users_are_refused_in_one_sentence(tmp_path: Path) -> None:
    npu = details(tmp_path / "npu", row(), benches="none")
    gpu = details(tmp_path / "gpu", row(), benches="4f21")
    expected = (
        "the digest of the --bench-module files of the first is none, that of the second 4f21"
    )
    with pytest.raises(UsageError, match=expected):
        compare_results(npu, gpu, tmp_path, "1")
    assert list(tmp_path.glob("*.csv")) == []


@pytest.mark.parametrize("key", ["dump", "seed", "tested", "distribution"])
def test_runs_of_other_numbers_are_refused(tmp_path: Path, key: str) -> None:
    npu = details(tmp_path / "npu", row(), **{key: "one"})
    gpu = details(tmp_path / "gpu", row(), **{key: "two"})
    with pytest.raises(UsageError, match=f"the {key} of the first is one, that of the second two"):
        compare_results(npu, gpu, tmp_path, "1")


def test_a_run_from_before_there_was_a_distribution_had_uniform_inputs(tmp_path: Path) -> None:
    old = details(tmp_path / "old", row())
    compare_results(old, details(tmp_path / "same", row(), distribution="uniform"), tmp_path, "1")
    new = details(tmp_path / "new", row(), distribution="recorded")
    with pytest.raises(UsageError, match="of the first is uniform, that of the second recorded"):
        compare_results(old, new, tmp_path, "1")


def test_without_settings_files_with_no_name_in_common_are_of_different_dumps(
    tmp_path: Path,
) -> None:
    npu, gpu = tmp_path / "npu.csv", tmp_path / "gpu.csv"
    details(tmp_path / "a", row(EXP)).rename(npu)
    details(tmp_path / "b", row(SUM)).rename(gpu)
    with pytest.raises(UsageError, match="have no output in common"):
        compare_results(npu, gpu, tmp_path, "1")


class TestCommand:
    """The command line."""

    def test_the_exit_code_says_whether_an_output_is_in_error(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        npu = details(tmp_path / "npu", row(errors=(0.9, 0.9, 0.9, 0.9)))
        gpu = details(tmp_path / "gpu", row())
        command = ["compare_results", str(npu), str(gpu), "-o", str(tmp_path / "out")]
        assert main(command) == IN_ERROR
        out = capsys.readouterr().out
        assert out.startswith("1 outputs compared: 0 pass, 1 error\n")
        assert f"error        7373  {EXP} (float32, (2, 3))" in out
        assert "Comparison: " in out
        assert main(["compare_results", str(gpu), str(gpu), "-o", str(tmp_path)]) == PASSED

    @pytest.mark.parametrize(
        ("npu_option", "gpu_option", "out_option"),
        [("-npu", "-gpu", "-o"), ("--npu_csv_path", "--gpu_csv_path", "--out_path")],
    )
    def test_the_command_of_msprobe_means_the_same(
        self,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        npu_option: str,
        gpu_option: str,
        out_option: str,
    ) -> None:
        npu = details(tmp_path / "npu", row(errors=(0.9, 0.9, 0.9, 0.9)))
        gpu = details(tmp_path / "gpu", row())
        out = [out_option, str(tmp_path / "out")]
        command = ["api_precision_compare", npu_option, str(npu), gpu_option, str(gpu), *out]
        assert main(command) == IN_ERROR
        assert capsys.readouterr().out.startswith("1 outputs compared: 0 pass, 1 error\n")
        assert len(list((tmp_path / "out").glob("compare_results_*.csv"))) == 1
        swapped = ["api_precision_compare", npu_option, str(gpu), gpu_option, str(npu), *out]
        assert main(swapped) == PASSED

    def test_where_nothing_could_be_compared_the_exit_code_says_so(self, tmp_path: Path) -> None:
        npu = details(tmp_path / "npu", row(shape="(2,)"))
        gpu = details(tmp_path / "gpu", row(shape="(3,)"))
        command = ["compare_results", str(npu), str(gpu), "-o", str(tmp_path / "out")]
        assert main(command) == NOTHING_CHECKED

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "cannot read"),
            (b"", "is no details file: its first line must begin with API Name, Bench Dtype"),
            (b"\xff\xfe\x00", "is no details file"),
            (
                b"API Name,Forward Test Success,Backward Test Success,Message\r\n",
                "; it is a result file, the details file stands beside it",
            ),
        ],
    )
    def test_what_is_no_details_file_is_one_sentence(
        self,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        content: bytes | None,
        message: str,
    ) -> None:
        bad, good = tmp_path / "bad.csv", details(tmp_path / "gpu", row())
        if content is not None:
            bad.write_bytes(content)
        for pair in ((bad, good), (good, bad)):
            out = tmp_path / "out"
            assert main(["compare_results", *map(str, pair), "-o", str(out)]) == UNUSABLE
            err = capsys.readouterr().err
            assert message in err
            assert err.count("\n") == 1
            assert not out.exists()

    def test_a_number_that_is_none_is_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        good, bad = details(tmp_path / "gpu", row()), details(tmp_path / "npu", row())
        bad.write_bytes(bad.read_bytes().replace(b"1e-06", b"small"))
        assert main(["compare_results", str(bad), str(good), "-o", str(tmp_path)]) == UNUSABLE
        assert f"{EXP}: MaxAbsErr is 'small' where a number is expected" in capsys.readouterr().err

    def test_a_folder_that_is_a_file_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        good = details(tmp_path / "gpu", row())
        assert main(["compare_results", str(good), str(good), "-o", str(good)]) == UNUSABLE
        assert "cannot write to the out path" in capsys.readouterr().err
