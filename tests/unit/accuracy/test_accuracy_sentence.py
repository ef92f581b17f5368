"""The one sentence that says why an output is in error."""

import math

import numpy as np
import pytest
from standard_cases import comparison, normal

from ray_precheck.accuracy.standards.auto import error_findings
from ray_precheck.accuracy.standards.base import (
    EXACT,
    Finding,
    error_sentence,
    place,
    share_of,
    shown_ratio,
)
from ray_precheck.accuracy.standards.honest import Distance

pytestmark = pytest.mark.unit

DEVICE, BENCH = np.array([[1.0, 2.5], [3.0, 4.0]]), np.array([[1.0, 2.0], [3.0, 4.0]])
CASE = comparison(DEVICE, BENCH, "float64")


def test_a_sentence_has_metric_value_limit_place_count_and_what_it_would_take() -> None:
    finding = Finding("RMSE", 0.25, 0.05, basis="2 times that of the CPU", wrong=1, total=4, at=1)
    assert error_sentence([finding], CASE) == (
        "RMSE is 0.25, must be at most 0.05 (2 times that of the CPU); it is 5 times as large; the worst is"
        " at index [0, 1]: 2.5 where the bench has 2; 1 of 4 elements (0.25 of all) is beyond it"
    )


def test_the_share_is_that_of_all_elements_and_those_left_out_are_counted() -> None:
    limits = Distance(rmse=0.1, largest=0.1)
    # One of four elements does not count: the bench jumps there.
    findings = error_findings(CASE, Distance(0.3, 0.5, count=3, at=1), Distance(0.01, 0.01), limits)
    assert error_sentence(findings, CASE) == (
        "largest error is 0.5, must be at most 0.1 (the worst honest implementation's is 0.01); it is 5 times"
        " as large; the worst is at index [0, 1]: 2.5 where the bench has 2; 1 of 4 elements (0.25 of all) is"
        " beyond it; left out are 1, whose errors honest implementations have, too; also RMSE is 0.3,"
        " must be at most 0.1"
    )


def test_the_worst_finding_comes_first_and_the_others_by_their_numbers() -> None:
    findings = [
        Finding("mean", 2.0, 1.0),
        Finding("share", 0.1, 0.9, relation="at least"),
        Finding("max", 3.0, 1.0, relation="below"),
    ]
    assert error_sentence(findings, CASE) == (
        "share is 0.1, must be at least 0.9; the limit is 9 times as large; also mean is 2, must be"
        " at most 1, max is 3, must be below 1"
    )


def test_a_limit_of_zero_and_nan_are_beyond_all_measure() -> None:
    assert Finding("share", 0.1, 0.0).excess == math.inf
    assert Finding("share", math.nan, 1.0).excess == math.inf
    assert error_sentence([Finding("share", 0.1, 0.0)], CASE) == "share is 0.1, must be at most 0"


@pytest.mark.parametrize("limit", [2.0**-126, 0.0])
def test_a_limit_that_nobody_can_reach_but_by_equal_bits_is_said_so(limit: float) -> None:
    findings = [
        Finding("largest error", 0.5, limit, basis=EXACT, wrong=1, total=4, at=1),
        Finding("RMSE", 0.25, limit, basis=EXACT),
    ]
    assert error_sentence(findings, CASE) == (
        "must have the same bits as the bench (honest implementations are exact), but the largest error is"
        " 0.5; the worst is at index [0, 1]: 2.5 where the bench has 2; 1 of 4 elements (0.25 of all) is"
        " off; also RMSE is 0.25"
    )


def test_a_ratio_beyond_all_measure_has_no_digits() -> None:
    assert error_sentence([Finding("RMSE", 1.0, 1e-30)], CASE) == (
        "RMSE is 1, must be at most 1e-30; it is more than a million times as large"
    )


def test_the_likely_cause_comes_last() -> None:
    bench = normal(8, 8)
    found = error_sentence([Finding("RMSE", 2.0, 1.0)], comparison(-bench, bench))
    assert found.endswith("; likely cause: the sign of every element is flipped")


def test_numbers_are_shown_as_the_dtype_has_them() -> None:
    assert place(0, np.array([0.1], np.float32), np.array([0.1])) == (
        "at index [0]: 0.100000001 where the bench has 0.1"
    )
    assert place(1, np.array([True, False]), np.array([True, True])) == (
        "at index [1]: False where the bench has True"
    )
    assert place(0, np.array(5), np.array(6)) == "at index []: 5 where the bench has 6"


def test_a_share_is_counted_in_the_singular_and_in_the_plural() -> None:
    assert share_of(1, 4) == "1 of 4 elements (0.25 of all) is"
    assert share_of(3, 4) == "3 of 4 elements (0.75 of all) are"


def test_a_number_that_is_its_limit_has_no_ratio() -> None:
    assert error_sentence([Finding("max", 1.0, 1.0, relation="below")], CASE) == (
        "max is 1, must be below 1"
    )


def test_ratios_are_shown_up_to_a_million_and_infinity_as_it_is() -> None:
    shown = [shown_ratio(ratio) for ratio in (0.25, 1e6, 1.01e6, math.inf)]
    assert shown == ["0.25", "1e+06", "more than a million", "inf"]


def test_the_first_element_can_be_the_worst() -> None:
    finding = Finding("largest error", 0.5, 0.25, wrong=1, total=4, at=0)
    assert "the worst is at index [0, 0]: 1 where the bench has 1" in error_sentence(
        [finding], CASE
    )


def test_a_value_of_0_that_must_be_larger_is_beyond_all_measure() -> None:
    assert Finding("share", 0.0, 0.9, relation="at least").excess == math.inf
    assert Finding("share", 0.0, 0.5).excess == 0.0
