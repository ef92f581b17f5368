"""How far rows are beyond the limit of their standard, as the cells that comparisons write tell."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from ray_precheck.trace.difference.limits import RowLimits, number_of_cell
from ray_precheck.trace.difference.rows import ComparisonMode, headings

pytestmark = pytest.mark.unit
REAL, STATISTICS = ComparisonMode.REAL, ComparisonMode.STATISTICS


def limits_of(
    standard: str, mode: ComparisonMode = REAL, max_err: float | None = None
) -> RowLimits:
    return RowLimits(headings(mode), standard, max_err)


def row(mode: ComparisonMode = REAL, **cells: str) -> Sequence[str]:
    names = {name.replace("_", " "): cell for name, cell in cells.items()}
    names = {"Err_message" if name == "Err message" else name: cell for name, cell in names.items()}
    return [names.get(heading, "") for heading in headings(mode)]


TOLD = '["error: relative L2 is 0.02, 500 times what rounding explains (4e-05); the largest"]'


def test_auto_tells_the_multiple_and_the_bar_has_four_times_what_is_explained() -> None:
    cells = row(Result="error", Relative_L2="0.02", Err_message=TOLD)
    limits = limits_of("auto")
    assert limits.times(cells) == 500
    assert limits.limit == 4
    (bar,) = limits.bars(cells)
    assert (bar.name, bar.value) == ("Relative L2", 0.02)
    assert bar.limit == pytest.approx(1.6e-4)


def test_a_lower_bound_by_statistics_has_a_bar() -> None:
    cells = row(STATISTICS, Result="error", Err_message=TOLD.replace("is 0.02", "is at least 0.02"))
    (bar,) = limits_of("auto", STATISTICS).bars(cells)
    assert bar.name == "Relative L2, at least"
    assert bar.value == pytest.approx(0.02)


def test_noise_counts_like_rounding() -> None:
    told = TOLD.replace("rounding", "noise of golden runs")
    assert limits_of("auto").times(row(Result="error", Err_message=told)) == 500


@pytest.mark.parametrize(("distance", "expected"), [("0", 0.0), ("1e-3", 4.0), ("8.43e-08", 1.0)])
def test_a_row_that_passes_auto_is_never_beyond_its_limit(distance: str, expected: float) -> None:
    cells = row(
        Result="pass", Relative_L2=distance, NPU_Dtype="torch.float32", Bench_Dtype="torch.float32"
    )
    assert limits_of("auto").times(cells) == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize(
    ("standard", "mode", "cells", "expected"),
    [
        ("msprobe", REAL, {"One_Thousandth_Err_Ratio": "0.05"}, 0.95 / 0.9),
        ("msprobe", STATISTICS, {"NormRelativeErr": "75%"}, 1.5),
        ("msprobe", STATISTICS, {"NormRelativeErr": "inf"}, math.inf),
        ("ptdbg", REAL, {"Cosine": "0.98", "MaxAbsErr": "0.0015"}, 1.5),
        ("ptdbg", REAL, {"Cosine": "0.985", "MaxAbsErr": "0.5"}, 1.5),
        ("precision_tool", REAL, {"Cosine": "0.9"}, 5.0),
        ("megengine", REAL, {"Err_message": '["error 0.004, of its inputs none is known"]'}, 4.0),
        ("assert-close", REAL, {"Relative_L2": "0.25"}, 0.25),
    ],
)
def test_each_standard_has_its_own_measure(
    standard: str, mode: ComparisonMode, cells: dict[str, str], expected: float
) -> None:
    found = limits_of(standard, mode).times(row(mode, Result="error", **cells))
    assert found == pytest.approx(expected)


def test_max_err_is_the_limit_of_megengine() -> None:
    cells = row(Result="error", Err_message='["error 0.004, of its inputs none is known"]')
    limits = limits_of("megengine", max_err=0.002)
    assert limits.times(cells) == pytest.approx(2)
    (bar,) = limits.bars(cells)
    assert (bar.name, bar.limit) == ("error", 0.002)


@pytest.mark.parametrize("standard", ["auto", "msprobe", "ptdbg", "assert-close"])
def test_an_error_that_no_number_shows_is_beyond_every_limit(standard: str) -> None:
    cells = row(Result="error", Cosine="N/A", Err_message='["error: the shapes differ"]')
    assert limits_of(standard).times(cells) == math.inf


def test_digests_are_equal_or_beyond_every_limit() -> None:
    limits = limits_of("msprobe", ComparisonMode.DIGESTS)
    same = row(ComparisonMode.DIGESTS, Result="pass", NPU_MD5="1a", BENCH_MD5="1a")
    other = row(ComparisonMode.DIGESTS, Result="error", NPU_MD5="1a", BENCH_MD5="1b")
    assert limits.times(same) == 0
    assert limits.times(other) == math.inf


def test_what_has_no_partner_has_no_number() -> None:
    for standard in ("auto", "assert-close"):
        assert math.isnan(limits_of(standard).times(row(Result="unmatched", Relative_L2="0.1")))


def test_a_cosine_must_not_be_below_its_limit() -> None:
    bars = limits_of("ptdbg").bars(row(Result="error", Cosine="0.5", MaxAbsErr="2"))
    assert [(bar.name, bar.is_least, bar.limit) for bar in bars] == [
        ("Cosine", True, 0.99),
        ("MaxAbsErr", False, 0.001),
    ]


@pytest.mark.parametrize(
    ("cell", "expected"), [("12.5%", 0.125), (" inf", math.inf), ("Nan", math.nan), ("x", math.nan)]
)
def test_numbers_of_cells(cell: str, expected: float) -> None:
    np.testing.assert_equal(number_of_cell(cell), expected)
