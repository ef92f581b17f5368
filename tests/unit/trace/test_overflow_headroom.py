"""How near tensors are to the limit of their dtype, and when a line through the steps gets there."""

from pathlib import Path

import pytest

from ray_precheck.trace.overflow.headroom import Headroom, headrooms, trends
from ray_precheck.trace.side import open_side
from tests.unit.trace.overflow_records import INF, forward, tensor, write_dump

pytestmark = pytest.mark.unit


def measured(folder: Path, *outputs: dict[str, object]) -> list[Headroom]:
    records = {
        f"Torch.mul.{number}.forward": forward([tensor(1e38)], [each])
        for number, each in enumerate(outputs)
    }
    with open_side(write_dump(folder, records)) as side:
        return list(headrooms(side))


def test_the_headroom_is_the_logarithm_of_the_limit_by_the_largest(tmp_path: Path) -> None:
    (near,) = measured(tmp_path, tensor(1.0, -65504.0 / 4, "torch.float16"))
    assert (near.key, near.tensor, near.dtype) == ("Torch.mul.0.forward", "output.0", "float16")
    assert near.bits == pytest.approx(2.0)


def test_tensors_far_from_their_limit_and_whole_numbers_have_none(tmp_path: Path) -> None:
    whole = tensor(127, 0, "torch.int8")
    far = tensor(60.0, -1.0, "torch.float16")
    assert measured(tmp_path, far, whole, tensor(65504.0), tensor(0.0, 0.0)) == []


def test_the_finite_end_of_an_infinite_tensor_counts(tmp_path: Path) -> None:
    (near,) = measured(tmp_path, tensor(INF, -32752.0, "torch.float16"))
    assert near.bits == pytest.approx(1.0)


def test_subnormal_values_are_counted_where_the_capture_did(tmp_path: Path) -> None:
    health = {"zero": 8, "subnormal": 16}
    (low,) = measured(tmp_path, tensor(1e-3, 0.0, "torch.float16", health=health))
    assert (low.underflow, low.subnormal) == (0.25, 0.5)


def steps(*bits: float, key: str = "k") -> list[tuple[str, int, Headroom]]:
    return [
        ("0", step, Headroom(key, "output.0", "float16", each, None, None))
        for step, each in enumerate(bits)
    ]


def test_a_falling_line_tells_the_step_of_the_limit() -> None:
    (trend,) = trends(steps(10.0, 8.0, 6.0))
    assert (trend.steps, trend.bits) == (3, 6.0)
    assert (trend.slope, trend.reached) == (pytest.approx(-2.0), pytest.approx(5.0))


def test_a_line_that_rises_or_is_far_from_the_limit_tells_none() -> None:
    assert trends(steps(6.0, 8.0)) == []
    assert trends(steps(9.0, 8.99, 8.98)) == []


def test_tensors_within_a_factor_of_eight_come_first() -> None:
    found = trends(
        [*steps(9.0, 8.0, key="falling"), *steps(2.5, key="near"), *steps(5.0, key="no")]
    )
    assert [(each.key, each.reached) for each in found] == [
        ("near", None),
        ("falling", pytest.approx(9.0)),
    ]
