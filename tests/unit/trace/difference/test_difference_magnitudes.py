"""What sums of squares hide: differences beside masks, and near the ends of float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from captured_pairs import from_files
from captured_pairs import judged as judge

from ray_precheck.dump.mapped import MappedTensor
from ray_precheck.trace.difference.elements import (
    beside_mask,
    element_difference,
    is_out_of_range,
    scaled_distance,
)
from ray_precheck.trace.difference.rows import ERROR, PASS, WARNING, ComparisonMode, TensorRow

pytestmark = pytest.mark.unit
RANDOM = np.random.default_rng(0)
SCORES = RANDOM.standard_normal((8, 64)).astype(np.float32)
MASKED = np.triu(np.ones((8, 64), bool), 40)


def with_mask(scores: Any, mask: float) -> Any:
    return np.where(MASKED, np.float32(mask), scores).astype(np.float32)


def mapped(array: Any) -> MappedTensor:
    return MappedTensor(str(array.dtype), array.shape, array.reshape(-1))


def judged(folder: Path, target: Any, golden: Any, *inputs: Any) -> TensorRow:
    """The row of an output, by `auto`, of an operator with the inputs of both sides, which are equal unless
    they are given."""
    ours, theirs = inputs or (golden, golden)
    rows = from_files(folder, ([ours], [target]), ([theirs], [golden]))
    judge(rows, "auto", ComparisonMode.REAL)
    (row,) = [row for row in rows if row.is_output]
    return row


@pytest.mark.parametrize("mask", [-1e4, -1e9, float(np.finfo(np.float32).min), 1e30])
def test_auto_finds_wrong_scores_beside_a_mask(tmp_path: Path, mask: float) -> None:
    golden = with_mask(SCORES, mask)
    row = judged(tmp_path, with_mask(SCORES * np.float32(1.3), mask), golden)
    assert row.result == ERROR
    assert row.messages[0].startswith(
        f"error: relative L2 beside {MASKED.sum()} masked elements is 0.3, "
    ), row.messages


def test_it_warns_of_what_the_inputs_explain(tmp_path: Path) -> None:
    golden, scale = with_mask(SCORES, -1e9), np.float32(1.01)
    row = judged(tmp_path, with_mask(SCORES * scale, -1e9), golden, SCORES * scale, SCORES)
    assert row.result == WARNING


def test_what_a_mask_hides_of_an_input_explains_the_output(tmp_path: Path) -> None:
    golden, target = with_mask(SCORES, -1e9), with_mask(SCORES * np.float32(1.01), -1e9)
    row = judged(tmp_path, np.tanh(SCORES * 1.01), np.tanh(SCORES), target, golden)
    assert row.result == WARNING
    assert "the inputs differ by 0.01" in row.messages[0]


def test_honest_scores_beside_a_mask_pass(tmp_path: Path) -> None:
    golden = with_mask(SCORES, -1e9)
    honest = with_mask(SCORES * (1 + 1e-7 * RANDOM.standard_normal(SCORES.shape)), -1e9)
    row = judged(tmp_path, honest, golden)
    assert (row.result, row.beside) == (PASS, None)


@pytest.mark.parametrize(
    "golden",
    [
        1e5 * RANDOM.standard_normal(4096),  # large, and no gap
        np.append(RANDOM.standard_normal(500), 30.0),  # an outlier that is no mask
        np.array([0.0, -1e9, -1e9]),  # nothing beside the mask
    ],
)
def test_what_is_no_mask_is_left_alone(golden: Any) -> None:
    assert beside_mask(mapped(golden * 1.3), mapped(golden)) is None


def test_a_mask_is_known_by_its_magnitude_where_it_was_added_to_scores() -> None:
    golden, target = (SCORES * scale + MASKED * -1e4 for scale in (1.0, 1.3))
    found = beside_mask(mapped(target), mapped(golden))
    assert found is not None
    assert found.relative_l2 == pytest.approx(0.3, rel=1e-6)
    assert (found.smallest, found.masked) == (2.0**13, MASKED.sum())


@pytest.mark.parametrize("scale", [1e200, 1e-300, 5e-324 * 1e6])
@pytest.mark.parametrize("share", [4e-16, 0.5])
def test_a_distance_whose_squares_leave_float64_is_that_of_scaled_elements(
    tmp_path: Path, scale: float, share: float
) -> None:
    values = RANDOM.standard_normal(24)
    golden, target = values * scale, values * scale * (1 + share)
    found = element_difference(mapped(target), mapped(golden))
    if not found.unequal:
        pytest.skip("the difference is below the smallest number")
    assert is_out_of_range(found)
    assert scaled_distance(mapped(target), mapped(golden)) == pytest.approx(
        np.linalg.norm((target - golden) / scale) / np.linalg.norm(golden / scale), rel=1e-6
    )
    assert judged(tmp_path, target, golden).result == (PASS if share < 1e-10 else ERROR)


def test_distances_within_the_range_are_left_as_they_are() -> None:
    found = element_difference(mapped(SCORES * 2), mapped(SCORES))
    assert not is_out_of_range(found)
