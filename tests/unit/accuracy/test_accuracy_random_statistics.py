"""Statistical tests of statistics of random draws: values on a limit, and stretches that occur twice."""

import numpy as np
import pytest
from draws import drawn, held, rng, whole

from ray_precheck.accuracy.random.statistics import (
    Observation,
    average,
    check_random_output,
    no_repeats,
    within,
)
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.values import TensorSpec

pytestmark = pytest.mark.unit

TOO_FEW = "too few elements to look for repeated stretches"


def test_the_grain_is_that_of_the_dtype_or_of_the_generator() -> None:
    bits = {"float64": 24, "float32": 24, "float16": 11, "bfloat16": 8}
    grains = {dtype: drawn(np.zeros(1), dtype).grain for dtype in bits}
    assert grains == {dtype: 2.0**-count for dtype, count in bits.items()}
    assert whole(np.zeros(1)).grain == 2.0**-23


@pytest.mark.parametrize(
    ("value", "passes"), [(0.9, False), (1.0, True), (2.0, True), (2.1, False), (np.nan, False)]
)
def test_a_statistic_may_lie_on_its_limits(value: float, passes: bool) -> None:
    seen = within("it", value, (1.0, 2.0))
    assert (seen.passed, seen.telling) == (passes, True)


@pytest.mark.parametrize(
    ("possible", "tells"), [((1.0, 2.0), False), ((0.9, 2.0), True), ((1.0, 2.1), True)]
)
def test_limits_that_no_value_leaves_tell_nothing(
    possible: tuple[float, float], tells: bool
) -> None:
    assert within("it", 1.5, (1.0, 2.0), possible).telling is tells


def test_a_mean_may_be_off_by_its_slack_besides() -> None:
    # With ln(2 / chance) = 1 the limit is sqrt(2 * 8 / 4) = 2.
    test = average("the mean", np.array([1.0, 2.0, 3.0, 4.0]), 2.0, 8.0, 0.25, "mean")
    assert test(2 / np.e).text == "the mean is 2.5, limits -0.25 to 4.25"


class TestRepeats:
    @pytest.mark.parametrize("most_common", [0.0, 1.0])
    def test_values_that_all_agree_or_never_occur_tell_nothing(self, most_common: float) -> None:
        assert no_repeats(rng().random(100), most_common)(0.5).text == TOO_FEW

    def test_two_elements_can_be_judged(self) -> None:
        # 2^2 / 2 / 1 = 2 < 10: one element tells.
        seen = no_repeats(np.array([5.0, 5.0]), 0.1)(1.0)
        assert seen.text == "the 1 elements from 1 on repeat those from 0 on"

    def test_a_stretch_is_at_most_half_of_all_elements(self) -> None:
        # 20^2 / 2 / 0.19 > 2^10: eleven elements would tell.
        seen = no_repeats(np.tile(np.arange(10), 2), 0.5)(0.19)
        assert (seen.telling, seen.text) == (False, TOO_FEW)

    # 256^2 / 2 / chance is just below 2^16 and 2^17.
    @pytest.mark.parametrize(("chance", "width"), [(0.51, 16), (0.26, 17)])
    def test_a_repeated_stretch_is_found_among_many(self, chance: float, width: int) -> None:
        values = rng().random(256)
        values[200 : 200 + width] = values[100 : 100 + width]
        seen = no_repeats(values, 0.5)(chance)
        assert seen.text == f"the {width} elements from 200 on repeat those from 100 on"

    def test_stretches_that_agree_but_for_one_element_do_not_repeat_each_other(self) -> None:
        for place in range(16):
            values = rng().random(256)
            values[200:216] = values[100:116]
            values[200 + place] = -1.0
            assert no_repeats(values, 0.5)(0.51).text == "no stretch of 16 elements occurs twice"


class TestRows:
    """What a row says of an output that is random."""

    def test_each_look_has_its_part_of_the_chance(self) -> None:
        tests = [lambda chance: Observation(f"{chance:g}")] * 4
        row = check_random_output("X", held(np.ones((2, 3))), tests, "pytorch", chance=0.5)
        assert row.message == "random: 0.125; 0.125; 0.125; 0.125"
        assert (row.tested_dtype, row.shape) == ("torch.float32", "(2, 3)")

    @pytest.mark.parametrize(
        ("recorded", "verdict"), [(None, Verdict.SKIP), (TensorSpec("float32", ()), Verdict.ERROR)]
    )
    def test_a_tensor_must_stay_one(self, recorded: TensorSpec | None, verdict: Verdict) -> None:
        row = check_random_output("X", 0.5, [], "pytorch", recorded=recorded)
        assert (row.verdict, row.tested_dtype, row.shape) == (verdict, "float", "")
        assert ("it is no tensor, which it was" in row.message) is (verdict is Verdict.ERROR)
