"""`auto`: the errors of honest implementations are the measure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from standard_cases import comparison, normal

from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.accuracy.standards.base import Comparison
from ray_precheck.accuracy.thresholds import allowed
from ray_precheck.numerics.arrays import round_to_dtype, spacing
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.unit

API = "Torch.add"  # no approximation is allowed for it


class Implementations(Sequence[Array]):
    """Implementations that count how many of them are computed, with benches of moved inputs.

    As with those that a check computes, all are computed once the length is asked for.
    """

    def __init__(self, *found: Any, moved: Sequence[Any] = (), kernel: Any = None) -> None:
        self._found = [np.asarray(each) for each in found]
        self.moved = [np.asarray(each) for each in moved]
        self._kernel = kernel
        self.read = 0
        self.kernel_was_run = False

    @property
    def kernel(self) -> Any:
        self.kernel_was_run = True
        return self._kernel

    def __len__(self) -> int:
        self.read = len(self._found)
        return self.read

    def __getitem__(self, index: Any) -> Any:
        if index < len(self._found):
            self.read = max(self.read, index + 1)
        return self._found[index]


def half(values: Any) -> Array:
    return round_to_dtype(np.asarray(values, np.float64), "float16")


def off(bench: Array, size: float, dtype: str = "float16", seed: int = 1) -> Array:
    """The bench with errors of `size` in random directions, rounded."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=bench.shape)
    return round_to_dtype(bench + size * signs, dtype)


def judged(case: Comparison) -> tuple[Verdict, str]:
    found = Auto().judge(case)
    return found.verdict, found.message


def verdict(case: Comparison) -> Verdict:
    return Auto().judge(case).verdict


def test_a_correctly_rounded_output_passes_and_no_implementation_is_run() -> None:
    implementations = Implementations(half([1.0, 2.0]))
    bench = np.array([1.0001, 2.0001])
    assert (
        verdict(comparison(bench, bench, "float16", api=API, implementations=implementations))
        is Verdict.PASS
    )
    assert implementations.read == 0


def test_an_error_of_one_rounding_passes_and_no_implementation_is_run() -> None:
    bench = normal(4096)
    step = spacing(bench, "float32") * np.random.default_rng(1).choice([-1.0, 1.0], size=4096)
    implementations = Implementations(bench)
    tested = round_to_dtype(bench, "float32").astype(np.float64) + step
    assert (
        verdict(comparison(tested, bench, api=API, implementations=implementations)) is Verdict.PASS
    )
    assert implementations.read == 0


def test_an_error_like_that_of_an_implementation_passes_and_one_of_four_times_it_does_not() -> None:
    bench = normal(4096) + 8.0
    implementation = off(bench, 0.05)
    same, larger = off(bench, 0.05, seed=2), off(bench, 0.2, seed=3)
    passed = comparison(
        same, bench, "float16", api=API, implementations=Implementations(implementation)
    )
    failed = comparison(
        larger, bench, "float16", api=API, implementations=Implementations(implementation)
    )
    assert verdict(passed) is Verdict.PASS
    found, message = judged(failed)
    assert found is Verdict.ERROR
    assert "RMSE" in message
    assert "largest error" in message
    assert "the worst honest implementation's is" in message


def test_the_worst_of_the_implementations_counts() -> None:
    bench = normal(4096) + 8.0
    good, poor = off(bench, 0.0), off(bench, 0.1)
    tested, wrong = off(bench, 0.15, seed=2), off(bench, 0.6, seed=2)
    assert (
        verdict(comparison(tested, bench, "float16", api=API, implementations=[good]))
        is Verdict.ERROR
    )
    for implementations in ([good, poor], [poor, good]):
        passed = comparison(tested, bench, "float16", api=API, implementations=implementations)
        assert verdict(passed) is Verdict.PASS
        failed = comparison(wrong, bench, "float16", api=API, implementations=implementations)
        worst = np.sqrt(np.mean((poor - bench) ** 2))
        assert f"the worst honest implementation's is {worst:.4g}" in judged(failed)[1]


def test_implementations_are_run_until_the_output_passes_and_no_further() -> None:
    bench = normal(4096) + 8.0
    implementations = Implementations(off(bench, 0.05), off(bench, 0.05, seed=4))
    tested = off(bench, 0.05, seed=2)
    assert (
        verdict(comparison(tested, bench, "float16", api=API, implementations=implementations))
        is Verdict.PASS
    )
    assert implementations.read == 1
    wrong = off(bench, 1.0, seed=2)
    assert (
        verdict(comparison(wrong, bench, "float16", api=API, implementations=implementations))
        is Verdict.ERROR
    )
    assert implementations.read == 2


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_where_implementations_are_exact_one_unit_in_one_element_is_an_error(dtype: str) -> None:
    bench = round_to_dtype(normal(64), dtype).astype(np.float64)
    tested = bench.copy()
    tested[7] += spacing(bench, dtype)[7]
    implementations = [round_to_dtype(bench, dtype)]
    found, message = judged(
        comparison(tested, bench, dtype, api=API, implementations=implementations)
    )
    assert found is Verdict.ERROR
    assert "honest implementations are exact" in message
    assert "at index [7]" in message
    assert "1 of 64 elements" in message


def test_one_wrong_element_is_found_among_many() -> None:
    bench = normal(100_000)
    tested = bench.copy()
    tested[500] += 0.01
    case = comparison(tested, bench, api=API, implementations=[off(bench, 1e-7, "float32")])
    found, message = judged(case)
    assert found is Verdict.ERROR
    assert "at index [500]" in message


def test_flipped_signs_of_small_elements_are_found_by_their_relative_error() -> None:
    bench = np.concatenate([normal(64) * 100.0, [1e-5, -1e-5]])
    implementation = bench * (1 + 5e-8)
    tested = np.where(np.abs(bench) < 2e-5, -bench, bench)
    limit = 8.0 * np.abs(implementation - bench).max()
    assert limit > 2e-5  # the error itself is none to speak of
    case = comparison(
        tested, bench, api=API, implementations=[round_to_dtype(implementation, "float32")]
    )
    found, message = judged(case)
    assert found is Verdict.ERROR
    assert "largest relative error" in message


def test_small_sums_of_large_terms_may_be_off_by_more_than_their_own_size() -> None:
    bench = np.concatenate([normal(64) * 100.0, [1e-5]])
    # The implementation is by luck right where much cancels, and off by more than the device elsewhere.
    implementation = bench + np.concatenate([np.full(64, 3e-5), [0.0]])
    tested = bench.copy()
    tested[-1] -= 2e-5
    case = comparison(tested, bench, api=API, implementations=[implementation])
    assert verdict(case) is Verdict.PASS
    tested[-1] -= 2e-5
    assert (
        verdict(comparison(tested, bench, api=API, implementations=[implementation]))
        is Verdict.ERROR
    )


class TestNonFinite:
    BENCH = np.array([1.0, 70000.0, 3.0])

    def judge(self, tested: Sequence[float], implementation: Sequence[float]) -> Verdict:
        return verdict(
            comparison(
                tested, self.BENCH, "float16", api=API, implementations=[half(implementation)]
            )
        )

    def test_an_overflow_that_the_rounded_bench_has_too_passes(self) -> None:
        assert self.judge([1.0, np.inf, 3.0], [1.0, np.inf, 3.0]) is Verdict.PASS

    def test_a_nan_is_an_error_that_names_the_place(self) -> None:
        case = comparison(
            [1.0, np.inf, np.nan], self.BENCH, "float16", api=API, implementations=[half([1, 2, 3])]
        )
        found, message = judged(case)
        assert found is Verdict.ERROR
        assert "at index [2] it is nan" in message

    def test_a_clamped_infinity_is_an_error(self) -> None:
        assert self.judge([1.0, 65504.0, 3.0], [1.0, np.inf, 3.0]) is Verdict.ERROR

    def test_what_an_implementation_has_in_the_same_place_is_none(self) -> None:
        assert self.judge([1.0, 65504.0, 3.0], [1.0, 65504.0, 3.0]) is Verdict.PASS
        assert self.judge([1.0, np.inf, np.inf], [1.0, np.inf, np.inf]) is Verdict.PASS


class TestConditioning:
    """Where half a unit of the inputs moves every element, so may the device."""

    BENCH = normal(1000)
    STEEP = 1e-3

    def case(self, size: float) -> Comparison:
        moved = [self.BENCH + self.STEEP * share for share in (1.0, -1.0, 2.0**-6, -(2.0**-6))]
        implementations = Implementations(round_to_dtype(self.BENCH, "float32"), moved=moved)
        tested = off(self.BENCH, size, "float32")
        return comparison(tested, self.BENCH, api=API, implementations=implementations)

    def test_an_error_of_that_size_passes(self) -> None:
        assert verdict(self.case(7.0 * self.STEEP)) is Verdict.PASS

    def test_an_error_far_beyond_it_does_not(self) -> None:
        assert verdict(self.case(9.0 * self.STEEP)) is Verdict.ERROR


class TestKernel:
    """The CPU's own kernel widens a limit only as far as rounding explains its own error."""

    BENCH = normal(4096) + 8.0

    def judged(
        self, kernel_error: float, error: float
    ) -> tuple[tuple[Verdict, str], Implementations]:
        implementations = Implementations(
            off(self.BENCH, 0.02), kernel=off(self.BENCH, kernel_error, seed=5)
        )
        tested = off(self.BENCH, error, seed=2)
        return judged(
            comparison(tested, self.BENCH, "float16", api=API, implementations=implementations)
        ), implementations

    def test_a_kernel_within_the_limits_widens_them(self) -> None:
        found, implementations = self.judged(kernel_error=0.04, error=0.08)
        assert implementations.kernel_was_run
        assert found == (Verdict.PASS, "")

    def test_a_kernel_that_rounding_does_not_explain_is_left_out(self) -> None:
        (found, message), _ = self.judged(kernel_error=0.5, error=0.5)
        assert found is Verdict.ERROR
        assert "the CPU's own kernel is off: its RMSE is 0.5" in message
        assert "so it does not count" in message

    def test_a_kernel_with_a_fault_of_its_own_does_not_hide_that_of_the_device(self) -> None:
        shifted = np.roll(half(self.BENCH), 1)
        implementations = Implementations(half(self.BENCH), kernel=shifted)
        case = comparison(shifted, self.BENCH, "float16", api=API, implementations=implementations)
        assert verdict(case) is Verdict.ERROR
        with_nan = half(self.BENCH)
        with_nan[7] = np.nan
        implementations = Implementations(half(self.BENCH), kernel=with_nan)
        found, message = judged(
            comparison(with_nan, self.BENCH, "float16", api=API, implementations=implementations)
        )
        assert found is Verdict.ERROR
        assert "NaN or infinities where none belong" in message

    def test_a_device_that_passes_without_it_does_not_have_it_run(self) -> None:
        _, implementations = self.judged(kernel_error=0.5, error=0.02)
        assert not implementations.kernel_was_run

    def test_whole_numbers_are_not_measured_against_it(self) -> None:
        bench = np.arange(10)
        implementations = Implementations(kernel=bench + 1)
        assert (
            verdict(comparison(bench + 1, bench, "int64", api=API, implementations=implementations))
            is Verdict.ERROR
        )
        assert not implementations.kernel_was_run


class TestJumps:
    """At a tie the gradient may go to either side; the moved benches show that."""

    BENCH = np.concatenate([np.ones(99), [0.5]])

    def case(self, last: float, ahead: float, back: float, least: float = 0.5) -> Comparison:
        tested = self.BENCH.copy()
        tested[-1] = last
        moved = [np.concatenate([self.BENCH[:-1], [x]]) for x in (ahead, back, least, 0.5)]
        return comparison(
            tested, self.BENCH, api=API, implementations=Implementations(self.BENCH, moved=moved)
        )

    def test_an_element_at_a_tie_may_be_on_either_side(self) -> None:
        assert verdict(self.case(1.0, ahead=1.0, back=0.0, least=1.0)) is Verdict.PASS

    def test_an_element_at_a_step_may_be_on_the_other_side(self) -> None:
        assert verdict(self.case(1.0, ahead=1.0, back=0.5)) is Verdict.PASS

    def test_an_element_may_not_be_far_beyond_the_jump(self) -> None:
        assert verdict(self.case(5.0, ahead=1.0, back=0.0, least=1.0)) is Verdict.ERROR

    def test_a_steep_place_is_no_jump(self) -> None:
        """Half a unit of the inputs makes 0.3 there; a jump would excuse 0.6, whatever it makes."""
        assert verdict(self.case(0.7, ahead=0.8, back=0.2)) is Verdict.PASS
        assert verdict(self.case(0.5 + 7.9 * 0.3, ahead=0.8, back=0.2)) is Verdict.PASS
        assert verdict(self.case(0.5 + 8.1 * 0.3, ahead=0.8, back=0.2)) is Verdict.ERROR

    def test_a_place_that_does_not_go_along_with_the_move_is_not_steep(self) -> None:
        assert verdict(self.case(3.0, ahead=0.8, back=0.2, least=0.55)) is Verdict.ERROR
        assert verdict(self.case(2.0, ahead=0.8, back=0.2, least=0.51)) is Verdict.PASS

    def test_a_steep_place_excuses_no_other_element(self) -> None:
        case = self.case(0.7, ahead=0.8, back=0.2)
        wrong = case.device_out.copy()
        wrong[0] += 0.2
        assert verdict(replace(case, device_out=wrong)) is Verdict.ERROR

    def test_half_types_compute_in_float32_and_have_no_steep_places(self) -> None:
        case = self.case(0.7, ahead=0.8, back=0.2)
        assert verdict(replace(case, dtype="float16")) is Verdict.ERROR

    def test_a_function_that_jumps_everywhere_excuses_nothing(self) -> None:
        bench = np.ones(100)
        moved = [bench + 1.0, bench - 1.0, bench + 1.0, bench]
        implementations = Implementations(bench, moved=moved)
        assert (
            verdict(comparison(bench + 0.5, bench, api=API, implementations=implementations))
            is Verdict.ERROR
        )

    def test_an_element_that_does_not_jump_is_not_excused_by_one_that_does(self) -> None:
        case = self.case(1.0, ahead=1.0, back=0.0, least=1.0)
        wrong = case.device_out.copy()
        wrong[3] = 2.0
        assert verdict(replace(case, device_out=wrong)) is Verdict.ERROR


class TestWholeNumbers:
    BENCH = np.array([3, 1, 2])

    def case(self, tested: Sequence[int], implementations: Sequence[Array]) -> Comparison:
        return comparison(
            np.array(tested),
            self.BENCH,
            "int64",
            api="Torch.argmax",
            implementations=implementations,
        )

    def test_a_number_that_nobody_has_is_an_error(self) -> None:
        found, message = judged(self.case([3, 1, 0], Implementations([3, 1, 2], moved=[[3, 1, 4]])))
        assert found is Verdict.ERROR
        assert "at index [2]" in message

    def test_of_equal_values_any_may_be_chosen(self) -> None:
        assert (
            verdict(self.case([3, 1, 4], Implementations([3, 1, 2], moved=[[3, 1, 4]])))
            is Verdict.PASS
        )

    def test_each_element_may_be_that_of_another_implementation(self) -> None:
        implementations = Implementations([7, 1, 2], moved=[[3, 1, 4]])
        assert verdict(self.case([7, 1, 4], implementations)) is Verdict.PASS

    def test_equal_ones_pass_and_no_implementation_is_run(self) -> None:
        implementations = Implementations([3, 1, 2])
        assert verdict(self.case([3, 1, 2], implementations)) is Verdict.PASS
        assert implementations.read == 0


class TestAllowances:
    def test_only_approximations_in_float32_may_be_coarser_than_implementations(self) -> None:
        bench = np.linspace(1.0, 4.0, 512)
        for api, dtype, expected in (
            ("Mint.tanh", "float32", Verdict.PASS),
            ("Mint.mul", "float32", Verdict.ERROR),
            ("Mint.tanh", "float64", Verdict.ERROR),
        ):
            implementation = round_to_dtype(bench * (1 + 1e-9), dtype)
            tested = bench + np.where(np.arange(512) % 2, 3e-5, -3e-5)
            case = comparison(tested, bench, dtype, api=api, implementations=[implementation])
            assert verdict(case) is expected, (api, dtype)

    @pytest.mark.parametrize(
        ("dtype", "tiny", "expected"),
        [
            ("float32", 1e-39, Verdict.PASS),
            ("bfloat16", 1e-39, Verdict.PASS),
            ("float16", 5e-5, Verdict.ERROR),
        ],
    )
    def test_subnormals_may_be_flushed_but_those_of_float16(
        self, dtype: str, tiny: float, expected: Verdict
    ) -> None:
        bench = np.full(64, tiny) * np.linspace(0.5, 1.0, 64)
        implementation = round_to_dtype(bench, dtype)
        case = comparison(np.zeros(64), bench, dtype, api=API, implementations=[implementation])
        assert verdict(case) is expected

    def test_a_single_element_may_be_off_by_some_units_though_the_implementations_are_luckier(
        self,
    ) -> None:
        unit = 2.0**-23
        bench = np.array(1.0 + 0.01 * unit)
        for units, expected in ((6, Verdict.PASS), (10, Verdict.ERROR)):
            case = comparison(
                np.array(1.0 + units * unit), bench, api=API, implementations=[np.array(1.0)]
            )
            assert verdict(case) is expected

    def test_every_rule_leaves_half_types_less_room_than_wider_ones(self) -> None:
        for narrow in ("float16", "bfloat16", "float8_e5m2"):
            for wide in ("float32", "float64", "complex64", "complex128"):
                assert allowed(API, narrow).rmse < allowed(API, wide).rmse


def test_without_implementations_the_published_standard_judges() -> None:
    bench = normal(64)
    passed = Auto().judge(comparison(off(bench, 1e-7, "float32"), bench, api="Torch.mul"))
    failed = Auto().judge(comparison(bench * 1.1, bench, api="Torch.mul"))
    assert (passed.verdict, failed.verdict) == (Verdict.PASS, Verdict.ERROR)
    assert ("Standard", "absolute") in failed.columns


def test_its_own_factors_may_be_given() -> None:
    bench = normal(4096) + 8.0
    tested, implementations = off(bench, 0.05, seed=2), [off(bench, 0.05)]
    case = comparison(tested, bench, "float16", api=API, implementations=implementations)
    assert Auto(rmse=0.5).judge(case).verdict is Verdict.ERROR
    assert Auto(max_abs_err=0.5).judge(case).verdict is Verdict.ERROR
    assert Auto(rmse=2.0, max_abs_err=2.0).judge(case).verdict is Verdict.PASS


def test_an_empty_output_passes() -> None:
    empty = np.zeros((0, 3))
    assert verdict(comparison(empty, empty, api=API, implementations=[empty])) is Verdict.PASS


def test_the_largest_float64_numbers_do_not_overflow_the_measure() -> None:
    bench = np.array([1e300, -1e300, 1e300])
    case = comparison(
        bench * (1 + 1e-3), bench, "float64", api=API, implementations=[bench * (1 + 1e-15)]
    )
    found, message = judged(case)
    assert found is Verdict.ERROR
    assert "inf" not in message


class Coarse(Implementations):
    """Implementations with others whose operands have fewer bits."""

    formats = "operands of TF32"

    def __init__(self, coarse: Sequence[Array], *found: Any) -> None:
        super().__init__(*found)
        self.coarse = coarse


def test_operands_of_few_bits_are_no_reason_to_refuse_what_full_ones_explain() -> None:
    bench = normal(1000)
    near, far, farther = (off(bench, size, "float32") for size in (1e-6, 1e-3, 1e-1))
    case = comparison(far, bench, api=API, implementations=Coarse([near], far))
    assert judged(case)[0] is Verdict.PASS
    verdict, message = judged(
        comparison(farther, bench, api=API, implementations=Coarse([near], far))
    )
    assert verdict is Verdict.ERROR
    assert message.endswith("; operands of TF32 does not explain it")


def test_operands_of_few_bits_are_tried_one_way_after_the_other() -> None:
    bench = normal(1000)
    far, other, tested = (off(bench, 1e-3, "float32", seed) for seed in (1, 2, 3))
    ways = Implementations(far, other)
    case = comparison(tested, bench, api=API, implementations=Coarse(ways))
    assert judged(case)[0] is Verdict.PASS
    assert ways.read == 1
