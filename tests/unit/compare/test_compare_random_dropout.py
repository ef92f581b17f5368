"""Dropout and rrelu: what is seen in the output, and gradients that follow it."""

import numpy as np
import pytest
from draws import MANY, alarms, held, judged, rng

from ray_precheck.compare.random.dropout import (
    Dropping,
    alpha_dropout,
    dropout,
    dropout_gradient_looks,
    dropout_looks,
    mask_of,
    recorded_mask_looks,
    rrelu_gradient_looks,
    rrelu_looks,
    slopes_of,
)
from ray_precheck.schema.dtypes import round_to_dtype
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
            looks = dropout_gradient_looks(mask, dropout(0.5), incoming, held(grad))
            assert alarms(looks) is is_wrong, grad

    def test_without_an_incoming_gradient_it_is_0(self) -> None:
        mask = mask_of(held([1.0, 2.0]), held([2.0, 0.0]), dropout(0.5))
        assert not alarms(dropout_gradient_looks(mask, dropout(0.5), None, held([0.0, 0.0])))
        assert alarms(dropout_gradient_looks(mask, dropout(0.5), None, held([2.0, 0.0])))

    def test_a_channel_is_dropped_as_a_whole(self) -> None:
        x = held(np.ones((1, 3, 2)))
        parts = [[2.0, 2.0], [0.0, 0.0], [2.0, 0.0]]
        looks = dropout_looks(mask_of(x, held([parts]), dropout(0.5, 2)), dropout(0.5, 2))
        assert "1 of 3 channels are dropped in part, the first at [0, 2]" in judged(looks).message

    def test_an_element_that_is_0_has_the_gradient_of_its_channel(self) -> None:
        x = held([[[1.0, 0.0], [0.0, 3.0]]])
        mask = mask_of(x, held([[[2.0, 0.0], [0.0, 0.0]]]), dropout(0.5, 2))
        ones = held(np.ones((1, 2, 2)))
        good, bad = held([[[2.0, 2.0], [0.0, 0.0]]]), held([[[2.0, 0.0], [0.0, 0.0]]])
        assert not alarms(dropout_gradient_looks(mask, dropout(0.5, 2), ones, good))
        assert alarms(dropout_gradient_looks(mask, dropout(0.5, 2), ones, bad))

    def test_all_is_dropped_where_the_probability_is_1(self) -> None:
        x = held([1.0, 2.0])
        for out, is_wrong in (([0.0, 0.0], False), ([0.0, 2.0], True)):
            assert (
                alarms(dropout_looks(mask_of(x, held(out), dropout(1.0)), dropout(1.0))) is is_wrong
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
            assert alarms(recorded_mask_looks(mask, tensor)) is is_wrong

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
        assert not alarms(rrelu_looks(x, out, 0.1, 0.3))
        assert not alarms(rrelu_gradient_looks(x, out, ones, held(slopes)))
        assert alarms(rrelu_looks(x, out, 0.1, 0.31))
        assert alarms(rrelu_gradient_looks(x, out, ones, held(slopes * 1.001)))

    def test_what_is_not_negative_stays(self) -> None:
        x = held([1.0, 2.0])
        assert (
            "change though they are not negative"
            in judged(rrelu_looks(x, held([1.0, 1.9]), 0.1, 0.3)).message
        )


def test_what_is_not_negative_or_next_to_0_shows_no_slope() -> None:
    x = held([-1.0, 2.0, 0.0, 1e-37, -1e-37, -np.inf])
    slopes, _ = slopes_of(x, held(0.25 * x.data.astype(np.float64)))
    np.testing.assert_array_equal(slopes, [0.25, *[np.nan] * 5])


@pytest.mark.parametrize(("out", "is_wrong"), [(100.001, False), (100.01, True)])
def test_the_scale_may_be_rounded_as_1_minus_p_in_float32(out: float, is_wrong: bool) -> None:
    # 2^-22 / 0.01 of 100 is 0.0024.
    assert mask_of(held([1.0]), held([out]), dropout(0.99)).wrong.tolist() == [is_wrong]
