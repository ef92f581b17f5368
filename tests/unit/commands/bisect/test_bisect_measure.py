"""How far outputs are from the golden ones, against values worked out by hand."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_precheck.commands.bisect.measure import (
    FLOORS,
    OutputMeasure,
    distance_of,
    dtype_floor,
    honest_floors,
    judged_by,
)
from ray_precheck.searching.bisection import TrialAnswer

pytestmark = pytest.mark.unit
PASS, FAIL, UNRESOLVED = TrialAnswer.PASS, TrialAnswer.FAIL, TrialAnswer.UNRESOLVED


def f32(*values: float) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("max", 2 / 4),
        ("mean", (1 + 0 + 2) / 3 / 4),
        ("rms", math.sqrt(5 / 3) / math.sqrt(21 / 3)),
        ("cosine", 1 - 25 / math.sqrt(21 * 40)),
        ("abs", 2.0),
    ],
)
def test_distances_are_those_of_their_formulas(metric: str, expected: float) -> None:
    found, index = distance_of(f32(0, 2, 6), f32(1, 2, 4), metric)
    assert found == pytest.approx(expected if metric != "cosine" else 1 - 28 / math.sqrt(21 * 40))
    assert index == (2,)


def test_what_is_not_finite_is_left_out_and_zero_is_far_from_anything() -> None:
    assert distance_of(f32(math.nan, 2), f32(1, 2), "max") == (0.0, (0,))
    assert distance_of(f32(math.inf), f32(math.inf), "max") == (0.0, ())
    assert distance_of(f32(), f32(), "rms") == (0.0, ())
    assert distance_of(f32(1), f32(0), "max")[0] == math.inf
    assert distance_of(f32(0), f32(0), "rms")[0] == 0.0


@given(
    st.lists(st.floats(-6e4, 6e4, width=32), min_size=1, max_size=9), st.sampled_from(list(FLOORS))
)
def test_an_array_is_not_away_from_itself(values: list[float], dtype: str) -> None:
    array = np.array(values, dtype if dtype != "bfloat16" else "float32")
    assert distance_of(array, array, "max")[0] == 0.0
    assert distance_of(array, array, "cosine")[0] == pytest.approx(0.0, abs=1e-12)


def test_complex_numbers_are_compared_as_such() -> None:
    golden = np.array([3 + 4j, 0], np.complex64)
    assert distance_of(golden + np.complex64(0.5j), golden, "max")[0] == pytest.approx(0.1)
    assert dtype_floor(golden, golden) == FLOORS["float32"]


def judged(
    tested: object, golden: object, **options: object
) -> tuple[TrialAnswer, float | None, str]:
    found = OutputMeasure(Path("none"), **options).compare(  # type: ignore[arg-type]
        {"y": np.asarray(tested)}, {"y": np.asarray(golden)}
    )
    return found.answer, found.metric, found.message


def test_the_unit_is_what_honest_runs_differ_by() -> None:
    golden, near, far = f32(1, 2), f32(1, 2.0001), f32(1, 2.001)
    assert judged(near, golden)[0] is PASS
    answer, metric, message = judged(far, golden)
    assert (answer, metric) == (FAIL, pytest.approx(5, rel=1e-3))
    assert "y at [1]: 5 times what honest runs differ by" in message
    assert judged(far, golden, floors={"y": 1e-3})[0] is PASS
    assert judged(far, golden, tolerance=6.0)[0] is PASS
    assert judged(far, golden, metric="abs", tolerance=1e-4)[0] is FAIL
    assert judged(far, golden, metric="abs", tolerance=1e-2)[0] is PASS


@pytest.mark.parametrize(
    ("tested", "golden", "why"),
    [
        (f32(1, 2), f32(1), "has the shape [2] instead of [1]"),
        (np.array([1]), f32(1), "is int64 instead of float32"),
        (f32(1, math.nan), f32(1, 2), "y at [1]: NaN on one side alone"),
        (f32(math.inf), f32(1), "y at [0]: infinity on one side alone"),
        (f32(-math.inf), f32(math.inf), "infinity with another sign"),
        (np.array([1, 3, 3]), np.array([1, 2, 2]), "y at [1]: 2 of 3 whole numbers differ"),
        (np.array([True]), np.array([False]), "1 of 1 whole numbers differ"),
    ],
)
def test_what_is_of_another_kind_is_wrong_whatever_the_tolerance(
    tested: object, golden: object, why: str
) -> None:
    answer, metric, message = judged(tested, golden, tolerance=1e9)
    assert (answer, metric) == (FAIL, math.inf)
    assert why in message


def test_a_missing_output_is_wrong_and_no_output_says_nothing(tmp_path: Path) -> None:
    measure = OutputMeasure(tmp_path / "golden.npz")
    assert measure.compare({}, {"y": f32(1)}).message == "y is missing"
    assert measure.compare({"y": f32(1)}, {}).answer is UNRESOLVED
    np.savez(tmp_path / "golden.npz", y=f32(1))
    np.savez(tmp_path / "tested.npz", y=f32(1), more=f32(2))
    assert measure.judge(tmp_path / "tested.npz").answer is PASS


def test_floors_are_twice_what_honest_runs_differ_by() -> None:
    runs = [{"y": f32(1, 4), "n": np.array([1])}, {"y": f32(1, 5)}, {"y": f32(1.5, 4)}]
    assert honest_floors(runs) == {"y": 0.5}
    assert honest_floors(runs[:1]) == {"y": 0.0}


def test_a_check_finds_both_outputs(tmp_path: Path) -> None:
    def checked(script: str) -> TrialAnswer:
        measure = OutputMeasure(tmp_path / "golden", check=("sh", "-c", script))
        return measure.judge(tmp_path / "tested").answer

    (tmp_path / "golden").write_text("1")
    (tmp_path / "tested").write_text("2")
    assert checked('cmp -s "$BISECT_OUTPUTS" "$BISECT_GOLDEN"') is FAIL
    assert checked('[ "$(cat $BISECT_OUTPUTS $BISECT_GOLDEN)" = 21 ]') is PASS
    assert checked("exit 125") is UNRESOLVED
    assert checked("exit 127") is UNRESOLVED


def test_a_check_that_hangs_or_is_not_there_says_nothing(tmp_path: Path) -> None:
    found = judged_by(("sleep", "60"), os.environ, 0.3)
    assert (found.answer, found.exit) == (UNRESOLVED, "timeout")
    found = judged_by(("nowhere",), os.environ, 9.0)
    assert found.answer is UNRESOLVED
    assert "nowhere cannot be started" in found.message
