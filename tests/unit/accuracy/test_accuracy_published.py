"""The published standards: their numbers, what they pass and what they call an error."""

from typing import Any

import numpy as np
import pytest
from standard_cases import comparison, normal
from test_accuracy_auto import Implementations

from ray_precheck.accuracy.standards.base import Judgement, added_cells, added_headings
from ray_precheck.accuracy.standards.msprobe import Msprobe
from ray_precheck.accuracy.standards.published import (
    Absolute,
    Benchmark,
    Binary,
    Published,
    Thousandth,
    Ulp,
    level_of,
)
from ray_precheck.accuracy.thresholds import SMALLEST_REFERENCE_ERR
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.unit

PASS, ERROR = Verdict.PASS, Verdict.ERROR
LARGEST = float(np.finfo(np.float32).max)
RATED = (Published(), Benchmark(), Absolute(), Ulp(), Thousandth(), Binary())


def cell(judgement: Judgement, heading: str) -> Any:
    return dict(judgement.columns)[heading]


class TestBenchmark:
    """Ratios to the error of the CPU in the same dtype."""

    @pytest.mark.parametrize(
        ("api", "level", "limits"),
        [
            ("Torch.exp", "L0", (10, 2, 2, 2)),
            ("MintFunctional.embedding", "L1", (5, 1.5, 1.5, 2)),
            ("NPU.npu_fusion_attention", "L1", (5, 1.5, 1.5, 2)),
            ("Tensor.scatter_add_", "L1", (5, 1.5, 1.5, 2)),
            ("Torch.matmul", "L2", (2, 1.2, 1.2, 2)),
            ("MintFunctional.layer_norm", "L2", (2, 1.2, 1.2, 2)),
            ("Functional.gelu", "L2", (2, 1.2, 1.2, 2)),
        ],
    )
    def test_an_api_has_the_limits_of_its_level(
        self, api: str, level: str, limits: tuple[float, ...]
    ) -> None:
        assert level_of(api) == level
        assert tuple(Benchmark().limits(api).values()) == limits

    @pytest.mark.parametrize(
        ("api", "limit"),
        [("Torch.exp", 10.0), ("MintFunctional.embedding", 5.0), ("Torch.sum", 2.0)],
    )
    def test_the_largest_relative_error_may_be_so_many_times_that_of_the_reference(
        self, api: str, limit: float
    ) -> None:
        bench = np.ones(1000)
        implementation, right, wrong = bench.copy(), bench.copy(), bench.copy()
        # The others are off as well, so that mean and RMSE are those of the reference.
        implementation[1:], right[1:], wrong[1:] = 1.01, 1.01, 1.01
        implementation[0], right[0], wrong[0] = 1.01, 1 + 0.0099 * limit, 1 + 0.0101 * limit
        for device, verdict in ((right, PASS), (wrong, ERROR)):
            found = Benchmark().judge(
                comparison(device, bench, api=api, implementations=[implementation])
            )
            assert found.verdict is verdict
        assert "largest relative error is" in found.message
        assert f"{limit:g} times that of a composed implementation, 0.01" in found.message

    def test_the_mean_relative_error_and_the_rmse_have_limits_of_their_own(self) -> None:
        bench = np.ones(100)
        implementation = np.full(100, 1.01)
        found = Benchmark().judge(
            comparison(np.full(100, 1.021), bench, implementations=[implementation])
        )
        assert found.verdict is ERROR
        assert cell(found, "MeanRelErrRatio") == pytest.approx(2.1, rel=1e-3)
        assert cell(found, "RMSERatio") == pytest.approx(2.1, rel=1e-3)
        assert "RMSE is" in found.message
        assert "mean relative error is" in found.message
        within = Benchmark().judge(
            comparison(np.full(100, 1.019), bench, implementations=[implementation])
        )
        assert within.verdict is PASS

    def test_small_values_that_are_wrong_are_compared_by_their_share(self) -> None:
        bench = np.full(100, 2.0**-22)
        implementation, device = bench.copy(), bench.copy()
        implementation[:10], device[:20] = 0.0, 0.0  # 2**-22 is wrong by more than 2**-30
        assert (
            Benchmark().judge(comparison(device, bench, implementations=[implementation])).verdict
            is PASS
        )
        device[:21] = 0.0
        found = Benchmark().judge(comparison(device, bench, implementations=[implementation]))
        assert found.verdict is ERROR
        assert cell(found, "SmallValueErrRatio") == pytest.approx(2.1)
        assert "share of wrong small values is 0.21" in found.message

    @pytest.mark.parametrize(
        ("dtype", "floor"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8), ("float32", 2.0**-14)]
    )
    def test_no_error_of_the_reference_counts_as_less_than_the_smallest(
        self, dtype: str, floor: float
    ) -> None:
        assert SMALLEST_REFERENCE_ERR[dtype] == floor
        bench = np.full(64, 4.0)
        device = np.full(64, 4.0 * (1 + 1.5 * floor))
        found = Benchmark(rmse=1e9).judge(comparison(device, bench, dtype, implementations=[bench]))
        device_err = float(round_to_dtype(device, dtype)[0]) / 4 - 1
        assert cell(found, "MaxRelErrRatio") == pytest.approx(device_err / floor, rel=1e-2)
        assert found.verdict is PASS

    def test_an_element_at_the_small_value_is_small(self) -> None:
        bench = np.full(100, 2.0**-20)
        implementation, device = bench.copy(), bench.copy()
        implementation[:10], device[:21] = 0.0, 0.0
        found = Benchmark().judge(comparison(device, bench, implementations=[implementation]))
        assert "21 of 100 elements" in found.message

    @pytest.mark.parametrize(("exponent", "is_less"), [(-14, False), (-15, True)])
    def test_a_reference_says_where_its_error_is_less_than_the_smallest(
        self, exponent: int, is_less: bool
    ) -> None:
        bench = np.ones(16)
        standard = Benchmark(max_rel_err=1e9, mean_rel_err=1e9)
        found = standard.judge(
            comparison(bench * 1.5, bench, implementations=[bench + 2.0**exponent])
        )
        assert found.verdict is ERROR
        assert ("of which less than 6.104e-05 does not count" in found.message) is is_less

    def test_a_kernel_that_is_refused_is_named_in_an_error_alone(self) -> None:
        bench = normal(256)
        good, bad = bench * (1 + 2.0**-24), bench * 1.5
        for kernel, label in ((good, "the CPU"), (bad, "a composed implementation")):
            for device, verdict in ((good, PASS), (bench + 0.5, ERROR)):
                implementations = Implementations(
                    good.astype(np.float32), kernel=kernel.astype(np.float32)
                )
                found = Benchmark().judge(
                    comparison(device, bench, implementations=implementations)
                )
                assert (found.verdict, cell(found, "Reference")) == (verdict, label)
                is_refused = kernel is bad and verdict is ERROR
                assert ("the CPU's own kernel is off" in found.message) is is_refused

    def test_only_the_first_implementation_is_the_reference(self) -> None:
        bench = np.ones(10)
        far = np.full(10, 2.0)
        found = Benchmark().judge(comparison(np.full(10, 1.5), bench, implementations=[bench, far]))
        assert found.verdict is ERROR

    def test_without_an_implementation_the_rounded_bench_is_the_reference(self) -> None:
        exact = normal(64)
        found = Benchmark().judge(comparison(exact, exact, "bfloat16"))
        assert (found.verdict, cell(found, "Reference")) == (PASS, "the rounded bench")
        assert cell(found, "RMSERatio") <= 1.0

    def test_a_level_and_each_limit_may_be_given(self) -> None:
        assert Benchmark(level="L2").limits("Torch.exp")["rmse"] == 1.2
        assert Benchmark(level="L2", rmse=7.0).limits("Torch.exp")["rmse"] == 7.0
        assert Benchmark(rmse=7.0).limits("Torch.exp")["max_rel_err"] == 10.0


class TestAbsolute:
    """Fixed limits, each element by itself."""

    @pytest.mark.parametrize(
        ("dtype", "rtol"), [("float16", 2.0**-10), ("bfloat16", 2.0**-8), ("float32", 2.0**-20)]
    )
    def test_no_element_may_be_further_off_than_the_relative_limit(
        self, dtype: str, rtol: float
    ) -> None:
        device = np.full(100, 1.0)
        near, far = np.full(100, 1.0), np.full(100, 1.0)
        near[3], far[3] = 1 / (1 + 0.9 * rtol), 1 / (1 + 1.1 * rtol)
        assert Absolute().judge(comparison(device, near, dtype)).verdict is PASS
        found = Absolute().judge(comparison(device, far, dtype))
        assert found.verdict is ERROR
        assert cell(found, "RelErrShare") == 0.01
        assert "at index [3]: 1 where the bench has" in found.message
        assert "1 of 100 elements (0.01 of all) is beyond it" in found.message

    @pytest.mark.parametrize(
        ("dtype", "limit"), [("float16", 2.0**-16), ("bfloat16", 1e-16), ("float32", 2.0**-30)]
    )
    def test_a_small_value_may_not_be_further_off_than_the_absolute_limit(
        self, dtype: str, limit: float
    ) -> None:
        near, far = np.array([0.0, 0.9 * limit]), np.array([0.0, 1.1 * limit])
        assert Absolute().judge(comparison(np.zeros(2), near, dtype)).verdict is PASS
        found = Absolute().judge(comparison(np.zeros(2), far, dtype))
        assert (found.verdict, cell(found, "AbsErrShare")) == (ERROR, 0.5)

    def test_an_infinity_beside_the_largest_number_is_right(self) -> None:
        # 65520 is the first number that float16 rounds to infinity.
        found = Absolute().judge(comparison([np.inf, 1.0], [65519.0, 1.0], "float16"))
        assert (found.verdict, cell(found, "InfNanErrShare")) == (PASS, 0.0)
        also = Absolute().judge(comparison([65504.0, 1.0], [65521.0, 1.0], "float16"))
        assert also.verdict is PASS

    @pytest.mark.parametrize(
        ("device", "bench"),
        [(np.inf, 1.0), (np.nan, 1.0), (1.0, np.nan), (np.inf, -np.inf), (1.0, np.inf)],
    )
    def test_other_infinities_and_nan_are_errors(self, device: float, bench: float) -> None:
        found = Absolute().judge(comparison([device, 1.0], [bench, 1.0]))
        assert (found.verdict, cell(found, "InfNanErrShare")) == (ERROR, 1.0)

    @pytest.mark.parametrize("both", [np.nan, np.inf, -np.inf])
    def test_infinities_and_nan_on_both_sides_are_right(self, both: float) -> None:
        found = Absolute().judge(comparison([both, 1.0], [both, 1.0]))
        assert found.verdict is PASS
        assert found.message == "1 NaN or infinite elements agree and are left out"

    def test_an_element_at_the_small_value_is_small(self) -> None:
        # 2^-31 is far more than 2^-20 of it, and less than the absolute limit.
        bench = np.array([2.0**-20, 1.0])
        assert (
            Absolute().judge(comparison(bench + np.array([2.0**-31, 0.0]), bench)).verdict is PASS
        )

    @pytest.mark.parametrize(
        ("device", "bench", "verdict"),
        [
            (complex(1, np.inf), complex(1, LARGEST), PASS),
            (complex(np.inf, 1), complex(LARGEST, 1), PASS),
            (complex(np.inf, 1), complex(-np.inf, 1), ERROR),
            (complex(np.inf, LARGEST), complex(np.inf, -LARGEST), ERROR),
        ],
    )
    def test_the_parts_of_a_complex_number_are_clipped_each(
        self, device: complex, bench: complex, verdict: Verdict
    ) -> None:
        found = Absolute().judge(comparison([device, 1.0], [bench, 1.0], "complex64"))
        assert found.verdict is verdict

    def test_the_limits_may_be_given(self) -> None:
        found = Absolute(rtol=0.1).judge(comparison([1.05], [1.0]))
        assert found.verdict is PASS
        assert Absolute(small_value=2.0, small_value_atol=0.1).judge(
            comparison([1.05], [1.0])
        ).columns[3] == ("AbsErrShare", 0.0)


class TestBinary:
    """Equality, element by element."""

    @pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64"])
    def test_one_element_that_differs_is_an_error(self, dtype: str) -> None:
        bench = np.array([0, 1, 1, 0])
        exact = bench.astype("complex128" if dtype == "complex64" else float)
        exact = bench if dtype in ("int64", "bool") else exact
        assert Binary().judge(comparison(bench.astype(dtype), exact, dtype)).verdict is PASS
        device = bench.astype(dtype)
        device[2] = 0
        found = Binary().judge(comparison(device, exact, dtype))
        assert (found.verdict, cell(found, "DifferentShare")) == (ERROR, 0.25)
        assert "at index [2]" in found.message

    def test_the_bench_is_rounded_to_the_dtype(self) -> None:
        assert Binary().judge(comparison([1 / 3], [1 / 3], "float16")).verdict is PASS
        nearest = np.nextafter(np.float16(1 / 3), np.float16(1))
        assert Binary().judge(comparison([nearest], [1 / 3], "float16")).verdict is ERROR

    def test_nan_equals_nan_and_nothing_else(self) -> None:
        assert Binary().judge(comparison([np.nan], [np.nan])).verdict is PASS
        assert Binary().judge(comparison([np.nan], [1.0])).verdict is ERROR
        assert Binary().judge(comparison([1.0], [np.nan])).verdict is ERROR

    def test_64_bit_integers_are_compared_exactly(self) -> None:
        device, bench = np.array([2**53 + 1]), np.array([2**53])
        assert Binary().judge(comparison(device, bench, "int64")).verdict is ERROR


def off_by(units: float, dtype: str, share: float = 1.0) -> tuple[Array, Array]:
    """A thousand ones, of which a share is so many units in the last place off their bench."""
    bits = {"float32": 23, "float16": 10, "bfloat16": 7}[dtype]
    bench = np.ones(1000)
    bench[: round(1000 * share)] += units * 2.0**-bits
    return np.ones(1000), bench


class TestUlp:
    """Units in the last place."""

    def test_float32_passes_by_its_mean(self) -> None:
        found = Ulp().judge(comparison(*off_by(63, "float32")))
        assert (found.verdict, cell(found, "UlpErrShare")) == (PASS, 1.0)
        assert cell(found, "MeanUlpErr") == pytest.approx(63)
        assert Ulp().judge(comparison(*off_by(64, "float32"))).verdict is ERROR

    def test_float32_passes_by_the_share_of_elements_beyond_32_units(self) -> None:
        found = Ulp().judge(comparison(*off_by(10_000, "float32", 0.049)))
        assert (found.verdict, cell(found, "UlpErrShare")) == (PASS, 0.049)
        found = Ulp().judge(comparison(*off_by(10_000, "float32", 0.05)))
        assert found.verdict is ERROR
        assert "more than 32 units in the last place off is 0.05, must be below 0.05" in (
            found.message
        )
        assert "a mean below 64 would do as well" in found.message
        exactly = Ulp(mean=0.0).judge(comparison(*off_by(32, "float32")))
        assert exactly.verdict is PASS

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_half_types_pass_by_the_share_of_elements_beyond_one_unit(self, dtype: str) -> None:
        assert Ulp().judge(comparison(*off_by(1, dtype), dtype)).verdict is PASS
        assert Ulp().judge(comparison(*off_by(2, dtype, 0.001), dtype)).verdict is ERROR
        assert Ulp().judge(comparison(*off_by(2, dtype, 0.0005), dtype)).verdict is PASS

    def test_a_unit_is_that_of_the_bench_and_of_one_for_a_bench_of_zero(self) -> None:
        found = Ulp().judge(comparison([2.0 + 2.0**-22, 2.0**-23], [2.0, 0.0]))
        assert cell(found, "MaxUlpErr") == 1.0

    def test_subnormal_numbers_have_the_unit_of_the_smallest_normal_one(self) -> None:
        found = Ulp().judge(comparison([2.0**-24], [2.0**-23], "float16"))
        assert cell(found, "MaxUlpErr") == 1.0


class TestThousandth:
    """Nearly all elements within a thousandth."""

    def test_so_many_elements_must_be_within_a_thousandth(self) -> None:
        bench, device = np.ones(1000), np.ones(1000)
        device[0] = 2.0
        found = Thousandth().judge(comparison(device, bench))
        assert (found.verdict, cell(found, "ThousandthShare")) == (PASS, 0.999)
        device[1] = 2.0
        found = Thousandth().judge(comparison(device, bench))
        assert found.verdict is ERROR
        assert "is 0.998, must be at least 0.999" in found.message
        assert "2 of 1000 elements" in found.message

    def test_an_error_of_a_thousandth_is_not_within_it(self) -> None:
        bench = np.full(10, 1.0)
        assert Thousandth(limit=0.5).judge(comparison(bench * 1.5, bench * 1.0)).verdict is PASS
        # Without the epsilon of the divisor 1.5 would be off by 0.5 exactly.
        assert Thousandth(limit=0.4999).judge(comparison(bench * 1.5, bench)).verdict is ERROR


@pytest.mark.parametrize("standard", RATED, ids=lambda standard: standard.name)
class TestAll:
    """What every standard but the default does."""

    def test_an_output_that_is_the_bench_passes_without_a_word(self, standard: Any) -> None:
        exact = round_to_dtype(normal(8, 8), "float16").astype(float)
        found = standard.judge(comparison(exact, exact, "float16"))
        assert (found.verdict, found.message) == (PASS, "")

    def test_an_empty_output_passes(self, standard: Any) -> None:
        assert standard.judge(comparison(np.zeros((0, 2)), np.zeros((0, 2)))).verdict is PASS

    def test_an_output_that_is_all_wrong_is_an_error(self, standard: Any) -> None:
        found = standard.judge(comparison(normal(64, seed=1), normal(64)))
        assert found.verdict is ERROR

    def test_nan_at_one_place_is_an_error_that_names_it(self, standard: Any) -> None:
        bench = normal(8, 8)
        device = bench.copy()
        device[2, 5] = np.nan
        found = standard.judge(comparison(device, bench, "float64"))
        assert found.verdict is ERROR
        assert "index [2, 5]" in found.message
        assert "likely cause: a single element is wrong" in found.message

    @pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
    def test_integers_and_booleans_must_be_equal(self, standard: Any, dtype: str) -> None:
        bench = np.array([0, 1, 1, 0], dtype)
        assert standard.judge(comparison(bench, bench, dtype)).verdict is PASS
        device = bench.copy()
        device[1] = 0
        found = standard.judge(comparison(device, bench, dtype))
        assert found.verdict is ERROR
        assert cell(found, "Standard") == "binary"

    def test_every_cell_has_a_heading(self, standard: Any) -> None:
        for dtype in ("float32", "int32"):
            case = comparison([1, 2], [1, 3], dtype)
            cells = added_cells(standard, case, standard.judge(case).columns)
            assert set(dict(cells)) <= set(added_headings(standard))

    def test_the_errors_are_told_whatever_the_rule(self, standard: Any) -> None:
        case = comparison([1.5, 2.0], [1.0, 2.0])
        cells = dict(added_cells(standard, case, standard.judge(case).columns))
        assert cells["MaxRelErrAboveSmall"] == pytest.approx(0.5)
        assert cells["MeanRelErrAboveSmall"] == pytest.approx(0.25)
        assert cells["RMSE"] == pytest.approx(np.sqrt(0.125))
        assert cells["SmallValueErr"] == 0.0


def test_the_default_adds_no_column() -> None:
    assert added_headings(Msprobe()) == ()
    assert added_cells(Msprobe(), comparison([1.0], [1.0]), (("x", 1.0),)) == ()
