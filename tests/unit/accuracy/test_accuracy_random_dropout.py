"""Dropout and rrelu: what is seen in the output, and gradients that follow it."""

import numpy as np
import pytest
from draws import MANY, alarms, held, judged, rng

from ray_precheck.accuracy.random.dropout import (
    Dropping,
    alpha_dropout,
    dropout,
    dropout_gradient_tests,
    dropout_tests,
    mask_of,
    recorded_mask_tests,
    rrelu_gradient_tests,
    rrelu_tests,
    slopes_of,
)
from ray_precheck.numerics import arrays
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.values import HostTensor

pytestmark = pytest.mark.unit


class TestDropout:
    def masked(self, dropping: Dropping, *values: float) -> list[bool]:
        x = held([1.0, 2.0, 0.0, np.inf])
        return mask_of(x, held(values), dropping).wrong.tolist()

    def test_what_is_0_or_infinite_does_not_show_whether_it_was_kept(self) -> None:
        mask = mask_of(held([1, 0, np.inf, -1]), held([2, 0, np.nan, 0]), dropout(0.5))
        assert mask.seen.tolist() == [True, False, False, True]
        assert mask.kept[mask.seen].tolist() == [True, False]
        assert not mask.wrong.any()

    def test_the_gradient_follows_the_mask_of_the_output(self) -> None:
        x, incoming = held([1.0, 2.0, 3.0, 0.0]), held([1.0, 1.0, -2.0, 5.0])
        mask = mask_of(x, held([2.0, 0.0, 6.0, 0.0]), dropout(0.5))
        for grad, is_wrong in (
            ([2.0, 0.0, -4.0, 0.0], False),
            ([2.0, 0.0, -4.0, 10.0], False),
            ([2.0, 2.0, -4.0, 0.0], True),
            ([2.0, 0.0, 0.0, 0.0], True),
            ([1.0, 0.0, -2.0, 0.0], True),
            ([2.0, 0.0, -4.0, 7.0], True),
        ):
            tests = dropout_gradient_tests(mask, dropout(0.5), incoming, held(grad))
            assert alarms(tests) is is_wrong, grad

    def test_without_an_incoming_gradient_it_is_0(self) -> None:
        mask = mask_of(held([1.0, 2.0]), held([2.0, 0.0]), dropout(0.5))
        assert not alarms(dropout_gradient_tests(mask, dropout(0.5), None, held([0.0, 0.0])))
        assert alarms(dropout_gradient_tests(mask, dropout(0.5), None, held([2.0, 0.0])))

    def test_a_channel_is_dropped_as_a_whole(self) -> None:
        x = held(np.ones((1, 3, 2)))
        parts = [[2.0, 2.0], [0.0, 0.0], [2.0, 0.0]]
        tests = dropout_tests(mask_of(x, held([parts]), dropout(0.5, 2)), dropout(0.5, 2))
        assert "1 of 3 channels are dropped in part, the first at [0, 2]" in judged(tests).message

    def test_an_element_that_is_0_has_the_gradient_of_its_channel(self) -> None:
        x = held([[[1.0, 0.0], [0.0, 3.0]]])
        mask = mask_of(x, held([[[2.0, 0.0], [0.0, 0.0]]]), dropout(0.5, 2))
        ones = held(np.ones((1, 2, 2)))
        good, bad = held([[[2.0, 2.0], [0.0, 0.0]]]), held([[[2.0, 0.0], [0.0, 0.0]]])
        assert not alarms(dropout_gradient_tests(mask, dropout(0.5, 2), ones, good))
        assert alarms(dropout_gradient_tests(mask, dropout(0.5, 2), ones, bad))

    def test_all_is_dropped_where_the_probability_is_1(self) -> None:
        x = held([1.0, 2.0])
        for out, is_wrong in (([0.0, 0.0], False), ([0.0, 2.0], True)):
            assert (
                alarms(dropout_tests(mask_of(x, held(out), dropout(1.0)), dropout(1.0))) is is_wrong
            )

    def test_alpha_dropout_keeps_mean_and_variance(self) -> None:
        dropping = alpha_dropout(0.3)
        x = rng().normal(size=1_000_000)
        out = np.where(
            rng(1).random(len(x)) < 0.3, dropping.dropped, dropping.scale * x + dropping.shift
        )
        assert (abs(out.mean()) < 0.01, abs(out.var() - 1) < 0.01) == (True, True)

    def test_a_returned_mask_is_that_of_the_output(self) -> None:
        mask = mask_of(held([1.0, 2.0, 0.0]), held([2.0, 0.0, 0.0]), dropout(0.5))
        for returned, is_wrong in (([1, 0, 0], False), ([1, 0, 1], False), ([0, 1, 0], True)):
            tensor = HostTensor("bool", np.array(returned, bool))
            assert alarms(recorded_mask_tests(mask, tensor)) is is_wrong

    def test_half_a_unit_in_the_last_place_of_the_scale_is_no_error(self) -> None:
        # As torch does on the CPU: the scale is rounded to bfloat16 before it is multiplied.
        x = held(rng().normal(size=1000), "bfloat16")
        scale = round_to_dtype(np.array(1 / 0.9), "bfloat16").astype(np.float64)
        out = held(x.data.astype(np.float64) * scale, "bfloat16")
        assert not mask_of(x, out, dropout(0.1)).wrong.any()


class TestRrelu:
    def test_slopes_are_uniform_in_their_range_and_the_gradient_has_them(self) -> None:
        x = held(rng().normal(size=MANY))
        slopes = np.where(x.data < 0, rng(1).uniform(0.1, 0.3, MANY), 1.0)
        out, ones = held(x.data * slopes), held(np.ones(MANY))
        assert not alarms(rrelu_tests(x, out, 0.1, 0.3))
        assert not alarms(rrelu_gradient_tests(x, out, ones, held(slopes)))
        assert alarms(rrelu_tests(x, out, 0.1, 0.31))
        assert alarms(rrelu_gradient_tests(x, out, ones, held(slopes * 1.001)))

    def test_what_is_not_negative_stays(self) -> None:
        x = held([1.0, 2.0])
        assert (
            "change though they are not negative"
            in judged(rrelu_tests(x, held([1.0, 1.9]), 0.1, 0.3)).message
        )


def test_what_is_not_negative_or_next_to_0_shows_no_slope() -> None:
    x = held([-1.0, 2.0, 0.0, 1e-37, -1e-37, -np.inf])
    slopes, _ = slopes_of(x, held(0.25 * x.data.astype(np.float64)))
    np.testing.assert_array_equal(slopes, [0.25, *[np.nan] * 5])


@pytest.mark.parametrize(("out", "is_wrong"), [(100.001, False), (100.01, True)])
def test_the_scale_may_be_rounded_as_1_minus_p_in_float32(out: float, is_wrong: bool) -> None:
    # 2^-22 / 0.01 of 100 is 0.0024.
    assert mask_of(held([1.0]), held([out]), dropout(0.99)).wrong.tolist() == [is_wrong]


def test_alpha_dropout_of_all_drops_to_0() -> None:
    assert alpha_dropout(1.0, 2) == Dropping(1.0, 0.0, unit_dims=2)


# 3 * |x| against 0.98 of 65504, that is 64193.9.
@pytest.mark.parametrize(("size", "is_judged"), [(21392.0, True), (21408.0, False)])
def test_what_is_about_to_overflow_is_not_judged(size: float, is_judged: bool) -> None:
    x = held([size, -size], "float16")
    assert mask_of(x, held([1.0, 1.0], "float16"), dropout(0.5)).wrong.tolist() == [is_judged] * 2


def test_nor_is_what_lies_on_the_limit() -> None:
    x = HostTensor("float64", np.array([np.finfo(np.float64).max * 0.98 / 2]))
    assert not mask_of(x, HostTensor("float64", np.ones(1)), dropout(0.0)).wrong.any()


@pytest.mark.parametrize(("found", "is_wrong"), [(2.0**-126, False), (2.0**-125, True)])
def test_the_smallest_normal_number_may_stand_for_0(found: float, is_wrong: bool) -> None:
    mask = mask_of(held([0.0]), held([found]), dropout(0.5))
    assert mask.wrong.tolist() == [is_wrong]
    kept = mask_of(held([1.0]), held([2.0]), dropout(0.5))
    tests = dropout_gradient_tests(kept, dropout(0.5), held([0.0]), held([found]))
    assert alarms(tests) is is_wrong


def test_where_no_element_is_seen_or_all_are_dropped_the_share_is_not_looked_at() -> None:
    for values, p, scale in ((np.zeros(50), 0.5, 2), (np.ones(50), 1.0, 0)):
        tests = dropout_tests(mask_of(held(values), held(np.zeros(50)), dropout(p)), dropout(p))
        assert [test(1.0).text for test in tests] == [f"all are 0 or x * {scale}"]


def test_gradients_are_looked_at_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CHUNK_ELEMENTS", 2)
    mask = mask_of(held(np.ones(5)), held([2.0, 0.0, 0.0, 2.0, 2.0]), dropout(0.5))
    incoming = held([1.0, 2.0, 3.0, 4.0, 5.0])
    for given, grad in ((incoming, [2.0, 0.0, 0.0, 8.0, 10.0]), (None, [0.0] * 5)):
        assert not alarms(dropout_gradient_tests(mask, dropout(0.5), given, held(grad)))
        seen = dropout_gradient_tests(mask, dropout(0.5), given, held([*grad[:4], 1.0]))[0](1.0)
        assert seen.text.startswith("1 of 5 elements are not")
        assert ", the first at [4]" in seen.text


def test_a_slope_is_told_from_256_times_the_smallest_normal_number_on() -> None:
    x = held([-(2.0**-118), -(2.0**-117)])
    slopes, _ = slopes_of(x, held(0.25 * x.data.astype(np.float64)))
    np.testing.assert_array_equal(slopes, [np.nan, 0.25])


def test_0_stays_and_its_gradient_may_be_that_of_either_side() -> None:
    zero = held([0.0])
    assert alarms(rrelu_tests(zero, held([0.5]), 0.1, 0.3)[:1])
    for slope in (0.2, 1.0):
        assert not alarms(rrelu_gradient_tests(zero, zero, held([1.0]), held([slope])))


# The slope of 1/4 is known to 2^-25, twice that and two units of the gradient are 2^-23.
@pytest.mark.parametrize(("off", "is_wrong"), [(2.0**-23, False), (2.0**-23 + 2.0**-25, True)])
def test_a_gradient_may_be_as_far_off_as_its_slope_is_blurred(off: float, is_wrong: bool) -> None:
    x, out = held([-1.0]), held([-0.25])
    assert alarms(rrelu_gradient_tests(x, out, held([1.0]), held([0.25 + off]))) is is_wrong
