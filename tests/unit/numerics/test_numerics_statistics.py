"""The list of statistics: one order for all who read and write it, those of parts and of changes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_precheck.capture.writing.elements import NO_STATISTICS, statistics_text
from ray_precheck.numerics.statistics import FIELDS, STATISTICS, TensorSummary, summary_of
from ray_precheck.trace.difference.rows import HEADINGS

pytestmark = pytest.mark.unit

LISTS = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12)


def test_a_summary_has_the_statistics_of_the_list_in_its_order() -> None:
    assert [name.capitalize() for name in TensorSummary._fields] == list(FIELDS)
    assert summary_of(np.array([3.0, -4.0])) == TensorSummary(3.0, -4.0, -0.5, 5.0)
    assert TensorSummary.of_single(2) == (2, 2, 2, 2)
    assert list(TensorSummary(1, 2, 3, 4).fields().items()) == list(
        zip(FIELDS, (1, 2, 3, 4), strict=True)
    )


def test_the_ends_come_first() -> None:
    assert [each.is_end for each in STATISTICS] == [True, True, False, False]


def test_a_dump_has_the_fields_of_msprobe() -> None:
    assert NO_STATISTICS == '"Max": null, "Min": null, "Mean": null, "Norm": null'
    text = statistics_text(TensorSummary(1.0, -math.inf, math.nan, None))
    assert text == '"Max": 1.0, "Min": -Infinity, "Mean": NaN, "Norm": null'


def test_a_comparison_has_the_columns_of_msprobe() -> None:
    assert HEADINGS == (
        "Max diff", "Min diff", "Mean diff", "L2norm diff",
        "MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr",
        "NPU max", "NPU min", "NPU mean", "NPU l2norm",
        "Bench max", "Bench min", "Bench mean", "Bench l2norm",
    )  # fmt: skip


@given(LISTS, st.integers(1, 11))
def test_the_statistics_of_parts_join_to_those_of_the_whole(values: list[float], cut: int) -> None:
    whole = np.array(values)
    parts = [part for part in np.split(whole, [cut]) if part.size]
    summaries = [summary_of(part) for part in parts]
    for place, statistic in enumerate(STATISTICS):
        joined = statistic.joined(
            [each[place] for each in summaries], [part.size for part in parts]
        )
        assert joined == pytest.approx(summary_of(whole)[place], abs=1e-9)


@given(LISTS)
def test_no_statistic_changes_by_more_than_the_tensor_does(values: list[float]) -> None:
    one, other = np.array(values), np.array(values[::-1]) * 0.5
    moved = float(np.linalg.norm(one - other))
    for statistic, before, after in zip(
        STATISTICS, summary_of(one), summary_of(other), strict=True
    ):
        assert abs(before - after) * statistic.distance(one.size) <= moved * (1 + 1e-9) + 1e-9
