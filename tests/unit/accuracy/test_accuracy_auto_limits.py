"""What lies exactly on a limit of `auto`, and the numbers that its limits are made of."""

from typing import Any

import numpy as np
import pytest
from standard_cases import comparison
from test_accuracy_auto import API, Implementations, judged

from ray_precheck.accuracy.standards.base import Comparison
from ray_precheck.accuracy.standards.honest import (
    Distance,
    Measure,
    distance,
    estimates,
    excused_elements,
    steep_result,
    steepness,
)
from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.unit

ONE = Distance(1.0, 1.0, 1.0, 4)


class TestDistance:
    @pytest.mark.parametrize("field", ["rmse", "largest", "relative"])
    def test_a_distance_admits_its_equal_and_nothing_larger(self, field: str) -> None:
        assert ONE.admits(ONE)
        assert not ONE.admits(Distance(**{field: 1.5}))
        assert not ONE.admits(Distance(**{field: np.nan}))
        assert not ONE.admits(Distance(strange=1))

    def test_a_subnormal_number_counts_as_64_of_its_units(self) -> None:
        # 2^-149 is the unit of float32.
        found = distance(np.array([2.0**-149]), np.zeros(1), "float32")
        assert found.relative == 1 / 64

    def test_an_error_that_is_not_above_the_least_is_no_relative_one(self) -> None:
        out, bench = np.array([1.0, 1.5, 3.0]), np.array([1.0, 1.0, 2.0])
        found = distance(out, bench, "float64", least=0.5)
        assert (found.relative, found.relative_at) == (pytest.approx(0.5), 2)
        assert distance(out[:2], bench[:2], "float64", least=0.5).relative == 0.0

    def test_nan_and_infinities_of_one_side_are_counted(self) -> None:
        out, bench = np.array([np.nan, 1.0, np.inf, np.nan]), np.array([1.0, 1.0, -np.inf, np.nan])
        assert distance(out, bench, "float64").strange == 2


class TestMeasure:
    CASE = comparison([1.0, 2.0], [1.0, 2.0], "float16", api=API)

    @pytest.mark.parametrize(
        ("own", "passes"),
        [
            (Distance(1.0, 1.0, 1.0), True),
            (Distance(1.0, 1.0, 5.0), True),  # measured again for these implementations it is 0
            (Distance(2.0, 1.0, 0.0), False),
            (Distance(1.0, 2.0, 0.0), False),
        ],
    )
    def test_a_result_on_its_limits_passes(self, own: Distance, passes: bool) -> None:
        assert Measure().passes(self.CASE, own, ONE, ONE) is passes

    def test_limits_are_wider_for_few_elements(self) -> None:
        # 1 + 1 / sqrt(4) = 1.5 times 2.4 and 3.
        found = Measure().limits(self.CASE, ONE)
        assert (found.rmse, found.largest, found.relative) == pytest.approx((3.6, 4.5, 64.0))

    def test_a_sum_may_be_off_by_a_share_of_its_largest_element(self) -> None:
        # 2^-18 of 4 is 2^-16: an error of that size is not far from a small element's own magnitude.
        bench = np.array([4.0, 2.0**-20])
        for size, relative in ((2.0**-16, 0.0), (2.0**-15, 32.0)):
            case = comparison(bench + np.array([0.0, size]), bench, api="Torch.log_softmax")
            found = Measure().own_distance(case, Distance())
            assert found.relative == pytest.approx(relative, rel=1e-6)

    def test_the_steepness_of_the_inputs_is_an_estimate_where_kernels_compute_in_the_dtype(
        self,
    ) -> None:
        for dtype, count in (("float16", 0), ("float32", 1), ("complex128", 1)):
            assert len(list(estimates(comparison([1.0], [1.0], dtype, api=API)))) == count

    @pytest.mark.parametrize(
        "kernel", [np.ones(3, np.float16), np.ones(2, np.int64), np.ones(3, np.int64)]
    )
    def test_a_kernel_of_another_shape_or_kind_is_no_measure(self, kernel: Any) -> None:
        assert Measure().refutation(self.CASE, kernel, ONE) == (
            "the CPU's own kernel gives another kind of result, so it does not count"
        )


def test_a_largest_error_on_its_limit_is_not_blamed_beside_the_rmse() -> None:
    # For one element the limits are 2 * 2.4 and 2 * 3 times the implementation's error of 2 units: 9.6 and
    # 12.
    unit = 2.0**-10
    implementations = Implementations(np.array([1.0 + 2 * unit]))
    case = comparison([1.0 + 12 * unit], [1.0], "float16", api=API, implementations=implementations)
    found, message = judged(case)
    assert found is Verdict.ERROR
    assert "RMSE" in message
    assert "largest error" not in message


class TestMoved:
    """A hundred zeros, of which the first ones move with the inputs."""

    def case(self, error: float, *moved: float, count: int = 1) -> Comparison:
        """Moved ahead, back, and by next to nothing ahead and back."""
        bench, device = np.zeros(100), np.zeros(100)
        device[:count] = error
        benches = [np.where(np.arange(100) < count, by, 0.0) for by in moved]
        return comparison(
            device, bench, "float64", api=API, implementations=Implementations(bench, moved=benches)
        )

    def excused(self, case: Comparison, limit: float, steep: float = 0.0) -> int:
        return int(excused_elements(case, Distance(largest=limit), steep).sum())

    @pytest.mark.parametrize(("error", "count"), [(2.0, 1), (2.5, 0)])
    def test_an_error_of_twice_the_jump_is_excused(self, error: float, count: int) -> None:
        assert self.excused(self.case(error, 1.0, 0.0, 0.0, 0.0), 0.5) == count

    @pytest.mark.parametrize(("error", "count"), [(3.0, 1), (3.5, 0)])
    def test_an_error_of_so_many_times_the_steepness_is_excused(
        self, error: float, count: int
    ) -> None:
        assert self.excused(self.case(error, 1.0, 1.0, 0.0, 0.0), 0.5, steep=3.0) == count

    @pytest.mark.parametrize(
        ("moved", "is_a_jump"),
        [
            ((1.0, 1.0, 1.0, 1.0), False),  # not above the limit
            ((1.5, 1.5, 1.5, 0.0), True),
            ((1.0, 0.0, 0.0, 0.0), False),  # not above the limit
            ((1.5, 0.0, 0.0, 0.0), True),
            ((10.0, 1.0, 0.0, 0.0), False),  # a tenth to the other side
            ((10.0, 0.9, 0.0, 0.0), True),
        ],
    )
    def test_a_jump_is_larger_than_the_limit_and_at_once_or_to_one_side(
        self, moved: tuple[float, ...], is_a_jump: bool
    ) -> None:
        assert self.excused(self.case(0.5, *moved), 1.0) == is_a_jump

    @pytest.mark.parametrize(("count", "excused"), [(5, 5), (6, 0)])
    def test_jumps_are_at_one_element_of_twenty_at_most(self, count: int, excused: int) -> None:
        assert self.excused(self.case(1.0, 1.0, 0.0, 0.0, 0.0, count=count), 0.5) == excused

    @pytest.mark.parametrize(("least", "steep"), [(1.0, 10.0), (1.5, 0.0)])
    def test_a_bench_is_steep_whose_change_goes_along_with_the_move(
        self, least: float, steep: float
    ) -> None:
        assert steepness(self.case(0.0, 12.0, 10.0, least, 0.0))[0] == steep

    def test_the_error_of_steep_elements_is_added_to_the_bench(self) -> None:
        case = self.case(0.0, 1.0, 2.0, 0.0, 0.0, count=60)
        assert steep_result(case, 3.0).tolist() == [3.0] * 60 + [0.0] * 40

    def test_an_element_that_is_far_steeper_than_most_has_16_times_their_error(self) -> None:
        steep = np.array([1.0, 100.0, 1.0])
        zero = np.zeros(3)
        implementations = Implementations(zero, moved=[steep, steep, zero, zero])
        case = comparison(zero, zero, "float64", api=API, implementations=implementations)
        assert steep_result(case).tolist() == [1.0, 16.0, 1.0]
