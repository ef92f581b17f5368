"""Errors of both sides in units of what rounding explains."""

import math
from typing import Any

import numpy as np
import pytest

from ray_precheck.check.judge import Compared
from ray_precheck.commands.naive.contrast import OutputContrast, contrasted
from ray_precheck.schema.result import Metrics, OutputCheck, Verdict
from ray_precheck.schema.values import HostTensor

pytestmark = pytest.mark.unit
NAME = "Torch.mul.0.forward.output.0"


def row(
    values: Any,
    bench: Any,
    honest: tuple[float, float] | None = None,
    verdict: Verdict = Verdict.PASS,
    name: str = NAME,
    dtype: str = "float32",
) -> Compared:
    """A judged row; `honest` are the RMSE and the largest error that rounding explains."""
    columns = () if honest is None else (("HonestRMSE", honest[0]), ("HonestMaxAbsErr", honest[1]))
    metrics = Metrics(None, 0.0, 0.0, (1,))
    tested = HostTensor(dtype, np.asarray(values, dtype))
    check = OutputCheck(name, "", "torch.x", "(2,)", metrics, verdict, "said", columns)
    wide = np.asarray(bench, "float64" if dtype == "float32" else dtype)
    return Compared(check, tested, HostTensor("float64", wide))


def only(default: Compared, naive: Compared) -> OutputContrast:
    (found,) = contrasted([default], [naive])
    return found


def test_the_unit_is_the_larger_honest_error_of_both_sides() -> None:
    default = row([1.0, 1.5], [1.0, 1.0], (0.1, 0.25), Verdict.ERROR)
    found = only(default, row([1.0, 1.125], [1.0, 1.0], (0.05, 0.125)))
    assert found.default_error == pytest.approx(
        math.sqrt(0.125) / 0.1
    )  # the RMSE has the larger share
    assert found.naive_error == pytest.approx(0.125 / math.sqrt(2) / 0.1)
    assert found.difference == pytest.approx(0.375 / math.sqrt(2) / 0.1)
    assert (found.verdict, found.index, found.message) == (Verdict.ERROR, (1,), "said")


def test_one_rounding_of_the_bench_is_the_unit_where_the_standard_asked_for_none() -> None:
    third = 1 / 3
    found = only(row([third], [third]), row([third], [third]))
    assert (found.default_error, found.naive_error, found.difference) == (1.0, 1.0, 0.0)


def test_an_error_where_honest_results_are_exact_is_infinite() -> None:
    found = only(row([2.0], [1.0], (0.0, 0.0), Verdict.ERROR), row([1.0], [1.0], (0.0, 0.0)))
    assert (found.default_error, found.naive_error, found.difference) == (math.inf, 0.0, math.inf)


def test_nan_at_another_place_is_infinite() -> None:
    found = only(row([math.nan], [1.0], (0.1, 0.1), Verdict.ERROR), row([1.0], [1.0], (0.1, 0.1)))
    assert (found.default_error, found.difference) == (math.inf, math.inf)


def test_whole_numbers_are_right_or_wrong() -> None:
    wrong = row([2], [1], verdict=Verdict.ERROR, dtype="int64")
    found = only(wrong, row([1], [1], dtype="int64"))
    assert (found.default_error, found.naive_error, found.difference) == (math.inf, 0.0, math.inf)


def test_what_was_not_compared_has_no_number() -> None:
    found = only(row([1.0], [1.0], verdict=Verdict.SKIP), row([1.0], [1.0], verdict=Verdict.SKIP))
    assert (found.default_error, found.naive_error, found.verdict) == (None, None, Verdict.SKIP)
    (alone,) = contrasted([row([1.0], [1.0])], [])
    assert (alone.naive_error, alone.difference) == (None, None)


def test_an_output_without_an_error_has_no_index() -> None:
    assert only(row([1.0, 1.0], [1.0, 1.0]), row([1.0, 1.0], [1.0, 1.0])).index == ()


def test_rows_of_both_sides_are_joined_by_name() -> None:
    names = ("a.0.forward.output.0", "a.0.forward.output.1")
    both = contrasted(
        [row([1.0], [1.0], name=names[1])],
        [row([1.0], [1.0], name=name) for name in names],
    )
    assert [each.name for each in both] == [names[1], names[0]]
    assert both[1].default_error is None
