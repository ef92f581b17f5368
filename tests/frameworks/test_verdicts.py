"""Faults that count are found, honest implementations are not called an error: a quick subset of
`scripts/verdicts`, whose whole table is in accuracy/VERDICTS.md."""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mindspore")

from records import capture_settings, failing, payloads_of  # noqa: E402
from versions import DOCUMENTED, is_documented  # noqa: E402

from ray_precheck.accuracy.standards.auto import Auto  # noqa: E402
from ray_precheck.accuracy.standards.honest import Measure  # noqa: E402
from ray_precheck.accuracy.standards.user_file import STANDARDS  # noqa: E402
from ray_precheck.check.checker import Checker  # noqa: E402
from ray_precheck.check.options import CheckOptions  # noqa: E402
from ray_precheck.check.settings import CheckSettings  # noqa: E402
from ray_precheck.schema.values import HostTensor  # noqa: E402
from scripts.verdicts.calls import generated_calls  # noqa: E402
from scripts.verdicts.cases import CASES, DTYPES  # noqa: E402
from scripts.verdicts.faults import FAULTS, planted  # noqa: E402
from scripts.verdicts.kernels import KernelFault, kernels_of  # noqa: E402
from scripts.verdicts.main import (  # noqa: E402
    SAMPLE_SEED,
    Found,
    examine_kernels,
    sample_of_kernels,
    sample_of_tested,
)
from scripts.verdicts.subject import Run, Shared  # noqa: E402
from scripts.verdicts.table import SECTIONS, TABLE  # noqa: E402
from scripts.verdicts.tally import Court, Error, Tally, error_of, worst  # noqa: E402

pytestmark = pytest.mark.frameworks

CAPTURES = ["mindspore_llm", "mindspore_llm_fp16", "mindspore_llm_tensor", "torch_llm"]
CAPTURES += ["torch_llm_bf16", "torch_cnn", "torch_llm_tensor"]
WRONG_GRADIENTS = [f"Mint.split.{number}.backward.output.0" for number in range(4)]


@pytest.fixture(scope="module")
def found(mindspore_checker: Checker) -> Found:
    return sample_of_tested()


def total(tally: Tally, counts: str, standard: str) -> int:
    cells = getattr(tally, counts).items()
    return sum(count for (name, _, _), count in cells if name == standard)


def test_auto_finds_99_percent_of_the_faults_that_count(found: Found) -> None:
    planted_count, found_count = (total(found.tally, c, "auto") for c in ("planted", "found"))
    assert planted_count > 1000
    assert found_count >= 0.99 * planted_count, found.tally.named()


def test_auto_calls_at_most_half_a_percent_of_honest_results_an_error(found: Found) -> None:
    honest, alarmed = (total(found.tally, c, "auto") for c in ("honest", "alarmed"))
    assert honest > 1000
    assert alarmed <= 0.005 * honest, found.tally.named()


def test_the_rule_of_msprobe_misses_more_and_alarms_more_on_the_same_results(found: Found) -> None:
    for counts in ("planted", "honest"):
        assert total(found.tally, counts, "auto") == total(found.tally, counts, "msprobe")
    assert total(found.tally, "found", "msprobe") < total(found.tally, "found", "auto")
    assert total(found.tally, "alarmed", "msprobe") > total(found.tally, "alarmed", "auto")


@dataclass(frozen=True)
class Figures:
    """A row of a summary in the document."""

    standard: str
    found: int
    planted: int
    alarmed: int
    honest: int


def documented_rows(way: str) -> list[Figures]:
    """Return the rows of the summaries of a section of the document."""
    document = TABLE.read_text("utf-8")
    section = re.split(r"(?m)^# ", document[document.index(SECTIONS[way].partition("\n")[0]) :])[1]
    row = r"(?m)^\| `(\w+)` \| (\d+) of (\d+) \| [\d.]+ % \| (\d+) of (\d+) \|"
    return [Figures(name, *map(int, counts)) for name, *counts in re.findall(row, section)]


def assert_documented(tally: Tally, rows: list[Figures]) -> None:
    """Assert that the document has these counts; kernels of other processors round differently."""
    assert [row.standard for row in rows] == tally.standards
    for row in rows:
        for counts in ("found", "planted", "alarmed", "honest"):
            whole = row.planted if counts in ("found", "planted") else row.honest
            now = total(tally, counts, row.standard)
            remedy = "make the document again: python -m scripts.verdicts --write, in each --way"
            assert abs(now - getattr(row, counts)) <= 0.02 * whole, f"{row}: {now}; {remedy}"


def test_the_document_has_the_figures_of_the_sample(found: Found) -> None:
    assert_documented(found.tally, documented_rows("sample")[:2])


class TestKernels:
    """Faults in the kernels of the CPU, which the tested side shares with the CPU's own operator."""

    @pytest.fixture(scope="class")
    def found(self, mindspore_checker: Checker) -> Found:
        return sample_of_kernels()

    @pytest.mark.exhaustive
    def test_auto_finds_99_percent_of_them(self, found: Found) -> None:
        planted_count, found_count = (total(found.tally, c, "auto") for c in ("planted", "found"))
        assert planted_count > 500
        assert found_count >= 0.99 * planted_count, found.tally.named()

    @pytest.mark.exhaustive
    def test_benchmark_no_longer_measures_a_kernel_against_itself(self, found: Found) -> None:
        cells = [total(found.tally, c, "benchmark") for c in ("found", "planted")]
        assert cells[0] >= 0.8 * cells[1]

    @pytest.mark.exhaustive
    def test_kernels_without_a_fault_pass(self, found: Found) -> None:
        tally = found.tally
        assert {name for (_, _, name) in tally.honest} == {"pytorch", "mindspore"}
        assert total(tally, "honest", "auto") > 60
        assert total(tally, "alarmed", "auto") == 0, tally.named()

    @pytest.mark.exhaustive
    def test_the_document_has_the_figures_of_the_sample(self, found: Found) -> None:
        if not is_documented("mindspore"):
            pytest.skip(f"another MindSpore has other kernels than {DOCUMENTED['mindspore']}")
        assert_documented(found.tally, documented_rows("sample")[2:])

    def test_the_figure_falls_where_the_kernel_measures_itself(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With what was mended broken again nearly no fault of the kernels is found."""
        monkeypatch.setattr(CheckSettings, "tests_own_kernel", lambda *_: False)
        monkeypatch.setattr(Measure, "refutation", lambda *_: "")
        tally = examine_kernels(["auto"], ["float32"], ["Torch.matmul"], [SAMPLE_SEED]).tally
        assert total(tally, "planted", "auto") > 50
        assert total(tally, "found", "auto") < 0.2 * total(tally, "planted", "auto")

    def test_the_exponent_of_a_power_goes_through_no_kernel(
        self, mindspore_checker: Checker
    ) -> None:
        """The implementations of a square's gradient are powers; one whose exponent is faulty explains the
        fault."""
        tally = examine_kernels(["auto"], ["float32", "float16"], ["Torch.square"], [0]).tally
        assert total(tally, "planted", "auto") > 50
        assert total(tally, "found", "auto") == total(tally, "planted", "auto"), tally.named()

    def test_a_faulty_kernel_is_right_in_float64(self) -> None:
        call = next(generated_calls(["float32"], ["Torch.matmul"], [SAMPLE_SEED]))
        run = call.run(Shared("pytorch", with_mindspore=False))
        assert "mm" in kernels_of(run)
        honest = {key: leaf.data.copy() for key, leaf in run.bench.items()}
        with KernelFault("rows shifted by one", "mm"):
            again = call.run(Shared("pytorch", with_mindspore=False))
            for key, data in honest.items():
                assert np.array_equal(again.bench[key].data, data)
            faulty = again.tested(again.function)
        for key, leaf in faulty.items():
            assert np.array_equal(leaf.data, np.roll(run.native[key].data, 1, 0)), key

    def test_the_checker_judges_the_very_results_that_are_counted(self) -> None:
        call = next(generated_calls(["float32"], ["Torch.matmul"], [SAMPLE_SEED]))
        run = call.run(Shared("pytorch", with_mindspore=False))
        settings = CheckSettings(
            "pytorch", "statistics", Path(), CheckOptions(seed=SAMPLE_SEED), standard=Auto()
        )
        with KernelFault("factor 1 + 1e-2", "mm"):
            faulty = run.tested(run.function)
            result = Checker(settings, "cpu").check(call.payload)
        errors = [check.metrics.max_abs_err for check in result.checks if check.metrics]
        counted = [
            np.abs(leaf.data.astype(np.float64) - run.bench[key].data.astype(np.float32)).max()
            for key, leaf in faulty.items()
        ]
        assert errors == counted


def test_every_fault_and_dtype_counts_somewhere_but_those_that_change_nothing(found: Found) -> None:
    seen = {(name, dtype) for (_, dtype, name) in found.tally.planted}
    missing = {(name, dtype) for name in FAULTS for dtype in DTYPES} - seen
    # Rounding to bfloat16 leaves bfloat16 as it is, 1e-3 is less than half a unit of it; MindSpore
    # flushes the subnormals of both formats with the exponents of float32.
    assert missing <= {
        ("inputs rounded to bf16", "bfloat16"),
        ("factor 1 + 1e-3", "bfloat16"),
        ("subnormals flushed", "float32"),
        ("subnormals flushed", "bfloat16"),
        ("accumulated in bf16", "bfloat16"),
        ("accumulated in fp16", "bfloat16"),
    }


def test_the_whole_table_is_of_60_apis_and_more() -> None:
    assert len({case.name for case in CASES}) >= 60


@pytest.mark.parametrize("capture", CAPTURES)
def test_no_clean_output_of_a_capture_alarms_under_auto(
    capture: str, mindspore_checker: Checker
) -> None:
    checker = Checker(capture_settings(capture, standard=Auto()), "cpu")
    results = [checker.check(payload) for payload in payloads_of(capture)]
    assert sum(len(result.checks) for result in results) >= 30
    errors = [check.name for check in failing(results)]
    # MindSpore 2.10 splits strided gradients wrongly on the CPU (see test_check_captures). They were captured
    # so, and where the dump does not know the layout auto runs the first call again with transposed ones.
    wrong = {"mindspore_llm_tensor": WRONG_GRADIENTS, "mindspore_llm": WRONG_GRADIENTS[:1]}
    wrong["mindspore_llm_fp16"] = WRONG_GRADIENTS[:1]
    assert errors == wrong.get(capture, [])


@pytest.fixture(scope="module")
def run() -> Run:
    case = next(case for case in CASES if case.name == "Torch.matmul")
    return Run(case.payload("float16"), "", Shared("pytorch", with_mindspore=False))


def test_faults_are_planted_in_the_tested_side_only(run: Run) -> None:
    before = {key: leaf.data.copy() for key, leaf in run.bench.items()}
    native = {key: leaf.data.copy() for key, leaf in run.native.items()}
    names = [name for name, _ in planted(run)]
    assert len(names) >= 12
    assert all(np.array_equal(run.bench[key].data, data) for key, data in before.items())
    assert all(leaf.data.dtype == np.float64 for leaf in run.bench.values())
    assert all(np.array_equal(run.native[key].data, data) for key, data in native.items())


def test_each_fault_changes_what_torch_computes(run: Run) -> None:
    for name, results in planted(run):
        changed = [
            key
            for key, leaf in results.items()
            if not np.array_equal(leaf.data, run.native[key].data, equal_nan=True)
        ]
        no_such_values = name in ("infinity clamped", "signs below 1e-5 flipped")
        assert changed or no_such_values or name == "subnormals flushed", name


def test_honest_implementations_differ_in_their_bits(run: Run) -> None:
    assert {"torch", "permuted", "split-K", "blocked"} <= set(run.honest)
    key = ("forward", 0)
    wide = run.bench[key].data
    errors = {error_of(results[key].data, wide, "float16") for results in run.honest.values()}
    assert len(errors) > 2


def test_the_error_of_a_result_is_what_it_is_by_hand() -> None:
    bench = np.array([1.0, 2.0, 70000.0, 4.0])
    out = np.array([1.0, 2.5, np.inf, 4.0], np.float16)
    assert error_of(out, bench, "float16") == Error(math.sqrt(0.25 / 4), 0.5, 0)
    assert error_of(np.array([1, 2]), np.array([1, 3]), "int64") == Error(wrong=1)
    out[0], out[2] = np.nan, 65504.0
    assert error_of(out, bench, "float16").wrong == 2


def test_a_fault_counts_from_more_than_four_times_the_worst_honest_error() -> None:
    honest = worst([Error(1.0, 2.0, 0), Error(0.5, 3.0, 1)])
    assert honest == Error(1.0, 3.0, 1)
    assert not Error(4.0, 12.0, 1).beyond(honest)
    assert Error(4.1, 0.0, 0).beyond(honest)
    assert Error(0.0, 12.1, 0).beyond(honest)
    assert Error(0.0, 0.0, 2).beyond(honest)


def test_the_court_counts_misses_and_alarms(run: Run) -> None:
    key = ("forward", 0)
    leaf = run.native[key]
    doubled = {key: replace(leaf, data=leaf.data * 2)}
    strict = Court({"binary": STANDARDS["binary"](), "msprobe": STANDARDS["msprobe"]()})
    strict.judge_run(run, "matmul", [("twice as large", doubled), ("nothing", {key: leaf})])
    tally = strict.tally
    cell = ("msprobe", "float16", "twice as large")
    assert (tally.planted[cell], tally.found[cell]) == (1, 1)
    # A fault that changes nothing does not count, for no standard.
    assert not any(name == "nothing" for _, _, name in tally.planted)
    # No honest half-precision product is equal to the rounded bench everywhere.
    assert tally.alarmed["binary", "float16", "permuted"] >= 1
    assert isinstance(leaf, HostTensor)


def test_no_document_is_kept_that_does_not_reach_what_it_must() -> None:
    for way, planted_least, honest_least in (("tested", 10_000, 5_000), ("kernels", 3_000, 500)):
        (row,) = [row for row in documented_rows(way) if row.standard == "auto"]
        assert row.planted > planted_least
        assert row.found >= 0.99 * row.planted
        assert row.honest > honest_least
        assert row.alarmed <= 0.001 * row.honest
