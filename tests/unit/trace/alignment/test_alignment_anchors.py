"""Anchors: calls whose values stand once on each side, unless their place speaks against them."""

import math
import random

import pytest

from ray_precheck.trace.alignment.calls import Call, features_of
from ray_precheck.trace.alignment.order import anchors
from ray_precheck.trace.side import API

pytestmark = pytest.mark.unit


def calls(norms: list[float], digests: bool = False) -> list[Call]:
    return [
        Call(
            f"Torch.add.{at}", API, "Torch.add", "add", ((2,),), ((2,),),
            (f"{norm:.9g}",) if digests else (), (math.nan if digests else norm,),
        )
        for at, norm in enumerate(norms)
    ]  # fmt: skip


def found(target: list[Call], golden: list[Call]) -> list[tuple[int, int]]:
    return anchors(*features_of(target, golden))


def different(count: int) -> list[float]:
    return [math.exp(random.Random(at).gauss(0, 2)) for at in range(count)]


@pytest.mark.parametrize("digests", [False, True])
def test_equal_values_that_stand_once_are_anchors(digests: bool) -> None:
    golden = different(30)
    target = [*golden[:10], 99.0, *golden[10:]]
    expected = [(at + (at >= 10), at) for at in range(30)]
    assert found(calls(target, digests), calls(golden, digests)) == expected


def test_values_that_stand_twice_are_none() -> None:
    assert found(calls([1.0, 2.0, 1.0]), calls([1.0, 2.0, 1.0])) == [(1, 1)]


def test_values_of_another_honest_run_are_anchors_by_three_neighbours() -> None:
    golden = different(200)
    rng = random.Random(1)
    target = [norm * (1 + rng.uniform(-1e-3, 1e-3)) for norm in golden]
    pairs = found(calls([5.0, *target]), calls(golden))
    assert len(pairs) > 100
    assert all(x == y + 1 for x, y in pairs)


def test_a_value_that_agrees_by_chance_far_from_its_place_is_none() -> None:
    golden = different(100)
    target = list(golden)
    # Of 60 calls in the middle none has its value, but one has that of a call 20 further on.
    target[20:80] = [norm * 1.7 for norm in golden[20:80]]
    target[40] = golden[60]
    pairs = found(calls(target), calls(golden))
    assert (40, 60) not in pairs
    assert pairs == [(at, at) for at in range(100) if at < 20 or at >= 80]


def test_nan_infinity_and_zero_are_no_anchors() -> None:
    for norm in (math.nan, math.inf, 0.0):
        assert found(calls([norm]), calls([norm])) == []


def test_other_shapes_are_no_anchor() -> None:
    other = [each._replace(outputs=((3,),)) for each in calls([1.5])]
    assert found(other, calls([1.5])) == []
