"""How far statistics say that two values differ."""

import math
from typing import Any

import numpy as np
import pytest

from ray_precheck.commands.locate.walk import estimate
from ray_precheck.commands.locate.walk.estimate import (
    EstimatedEvidence,
    statistics_difference,
)
from ray_precheck.trace.difference.measuring import Source
from ray_precheck.trace.items import Item
from tests.unit.commands.locate.run_records import tensor

FINITE = [0.0, -0.0, 1.0, -2.5, 1e-300, 3e38, 1e308]


def _item(**statistics: Any) -> Item:
    return Item("input.0", "input", {**tensor(1.0), **statistics})


@pytest.mark.parametrize("name", ["Max", "Min", "Mean", "Norm"])
@pytest.mark.parametrize("ours", FINITE)
@pytest.mark.parametrize("theirs", FINITE)
def test_finite_numbers_are_compared_as_all_others_are(
    monkeypatch: pytest.MonkeyPatch, name: str, ours: float, theirs: float
) -> None:
    pair = _item(**{name: ours}), _item(**{name: theirs})
    at_once = statistics_difference(*pair)
    monkeypatch.setattr(estimate, "_are_finite", lambda numbers: False)
    assert statistics_difference(*pair) == at_once


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", None, True, 3])
def test_numbers_of_other_kinds_go_the_long_way(word: Any) -> None:
    found = statistics_difference(_item(Max=word), _item(Max=2.0)).difference
    assert found == math.inf if isinstance(word, str) else found != 0.0


def test_the_same_statistics_are_no_difference_whatever_they_are() -> None:
    for word in ("NaN", "Infinity", 1.5):
        assert statistics_difference(_item(Max=word), _item(Max=word)).difference == 0.0


def test_other_shapes_are_another_value() -> None:
    evidence = EstimatedEvidence()
    other = _item(shape=[2, 8])
    assert evidence.value("", _item(), other).difference == math.inf
    assert evidence.value("", _item(), _item()).difference == 0.0


def test_an_extreme_of_a_half_type_may_be_rounded_to_its_neighbour() -> None:
    half = {"dtype": "torch.bfloat16", "Min": -0.25, "Mean": 0.1, "norm": 2.0}
    golden = Item("output.0", "output", tensor(1.0, **half))
    other = Item("output.0", "output", tensor(1.0, **{**half, "Max": 1 + 2.0**-7}))
    found = statistics_difference(other, golden)
    assert found.difference == pytest.approx(2.0**-7, rel=0.01)
    assert found.slack == found.difference
    # A norm is no single element, and two units in the last place are more than one rounding.
    for further in ({"Norm": 2.02}, {"Max": 1 + 2.0**-6}):
        moved = Item("output.0", "output", tensor(1.0, **{**half, **further}))
        found = statistics_difference(moved, golden)
        assert found.difference - found.slack > 0.9 * 2.0**-7
    single = tensor(1.0), tensor(1.0, Max=1 + 2.0**-23)
    ours, theirs = (Item("output.0", "output", each) for each in single)
    assert statistics_difference(theirs, ours).slack == 0.0


def test_sketches_tell_of_another_order_where_statistics_agree() -> None:
    sketches = np.eye(2, 64)
    evidence = EstimatedEvidence(Source(sketches=sketches), Source(sketches=sketches))
    mine, other = _item(sketch=0), _item(sketch=1)
    found = evidence.value("", mine, other)
    assert (found.order, found.difference > 0.0) == ("the same values in another order", True)
    assert evidence.value("", mine, mine).order == ""
    assert evidence.value("", _item(sketch=0, Mean=0.5), other).order == ""
    # A shard's sketch has the places in the whole tensor.
    shard = _item(sketch=0, placements=[{"Shard": {"dim": 0}}])
    assert evidence.value("", shard, other).difference == 0.0
