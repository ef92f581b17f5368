"""Functions that round nothing have one right answer: which calls are such, and which outputs are right."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from standard_cases import comparison, normal

from ray_precheck.accuracy.ambiguous import exact_elements, is_exact
from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.accuracy.standards.base import Comparison
from ray_precheck.numerics.arrays import round_to_dtype, spacing
from ray_precheck.operators.exact import EXACT, exactness
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.values import HostCall, HostTensor

pytestmark = pytest.mark.unit


def tensor(values: Any, dtype: str = "float32") -> HostTensor:
    return HostTensor(dtype, round_to_dtype(np.asarray(values), dtype))


X = tensor([0.5, 0.25])


def exact(api: str, *args: Any, dtype: str = "float32", place: int = 0, **kwargs: Any) -> bool:
    return is_exact(exactness(api, "pytorch"), HostCall(args, kwargs), place, dtype)


class Moved(list[Array]):
    """Implementations with benches of moved inputs that have every element either way."""

    def __init__(self, *moved: Any) -> None:
        super().__init__()
        self.moved = [np.asarray(each) for each in moved]


@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
@pytest.mark.parametrize("api", ["eq", "floor", "gather", "abs", "sort", "where", "add"])
def test_a_fact_holds_for_functions_and_methods_of_both_frameworks(
    api: str, framework: str
) -> None:
    prefixes = {"pytorch": ("Torch", "Tensor"), "mindspore": ("Mint", "Tensor", "Functional")}
    for prefix in prefixes[framework]:
        assert exactness(f"{prefix}.{api}", framework) is EXACT.by_name[f"torch.{api}"]


@pytest.mark.parametrize("api", ["clamp_", "floor_", "masked_fill_", "index_put_", "relu_", "add_"])
def test_an_operator_in_place_is_as_exact_as_its_namesake(api: str) -> None:
    assert exactness(f"Tensor.{api}", "pytorch") == exactness(f"Tensor.{api[:-1]}", "pytorch")
    assert exactness(f"Tensor.{api}", "pytorch") is not None


@pytest.mark.parametrize("api", ["exp", "softmax", "isclose", "multinomial", "cdist", "histc"])
def test_what_is_computed_is_not_known_to_be_exact(api: str) -> None:
    assert not exact(f"Torch.{api}", X)
    assert not exact(f"Torch.{api}", X, dtype="bool")


def exact_of(comparison: Comparison) -> Array:
    return exact_elements(comparison.device_out, comparison.bench_out, comparison.dtype)


def test_sums_are_exact_in_integers_alone() -> None:
    whole = HostTensor("int64", np.arange(3))
    assert exact("Torch.sum", whole, dtype="int64")
    assert not exact("Torch.sum", X)


def test_an_argument_with_which_an_operator_computes_counts_where_it_is_given() -> None:
    index = HostTensor("int64", np.arange(1))
    assert exact("Torch.round", X)
    assert exact("Torch.round", X, decimals=0)
    assert not exact("Torch.round", X, decimals=2)
    assert exact("Tensor.index_put_", X, [index], X)
    assert exact("Tensor.index_put_", X, [index], X, False)
    assert not exact("Tensor.index_put_", X, [index], X, True)
    assert not exact("Functional.embedding", index, X, max_norm=1.0)


def test_a_magnitude_of_complex_numbers_is_computed() -> None:
    assert exact("Torch.abs", X)
    assert not exact("Torch.abs", HostTensor("complex64", np.ones(2, np.complex64)))


def test_of_a_pool_the_values_are_exact_and_of_equal_ones_any_place_is_right() -> None:
    assert exact("Functional.max_pool2d", X, 2)
    assert not exact("Functional.max_pool2d", X, 2, dtype="int64", place=1)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (0.5, True),
        (0.1, False),  # it is rounded to float32 first
        (2**24 + 1, False),
        (HostTensor("float64", np.array(0.1)), False),  # no dimensions
        (HostTensor("float64", np.array([0.1, 0.2])), True),  # float32 is widened
        (HostTensor("int64", np.array([2**24 + 1, 3])), False),
        (HostTensor("int64", np.array([2**24, 3])), True),
    ],
)
def test_a_comparison_is_exact_if_no_number_is_rounded_before_it(
    other: Any, expected: bool
) -> None:
    for api in ("Torch.eq", "Tensor.__lt__", "Torch.isin"):
        assert exact(api, X, other, dtype="bool") is expected


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_copy_that_is_one_unit_off_in_one_element_is_an_error(dtype: str) -> None:
    bench = round_to_dtype(normal(4096), dtype).astype(np.float64)
    tested = bench.copy()
    tested[7] += spacing(bench, dtype)[7]
    case = comparison(
        tested, bench, dtype, api="Torch.clone", implementations=[round_to_dtype(bench, dtype)]
    )
    found = Auto().judge(replace(case, is_exact=True))
    assert found.verdict is Verdict.ERROR
    assert "honest implementations are exact" in found.message
    assert "at index [7]" in found.message
    assert "1 of 4096 elements" in found.message


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_cast_that_cuts_off_is_an_error_and_one_to_the_nearest_is_none(dtype: str) -> None:
    bench = round_to_dtype(normal(4096), "float32").astype(np.float64)
    nearest = comparison(bench, bench, dtype, api="Tensor.to")
    unit = spacing(bench, dtype)
    cut = comparison(np.trunc(bench / unit) * unit, bench, dtype, api="Tensor.to")
    assert Auto().judge(replace(nearest, is_exact=True)).verdict is Verdict.PASS
    assert Auto().judge(replace(cut, is_exact=True)).verdict is Verdict.ERROR


def test_a_cast_of_float64_may_round_to_float32_first() -> None:
    tie = 1.0 + 2.0**-11
    bench = np.array([tie - 2.0**-30, tie + 2.0**-30, 1.0 + 2.0**-12])
    both_ways = np.array([[1.0, 1.0 + 2.0**-10, 1.0], [1.0, 1.0, 1.0]])
    for tested in both_ways:
        assert exact_of(comparison(tested, bench, "float16")).all()
    wrong = comparison(np.array([1.0 + 2.0**-10, 1.0, 1.0 + 2.0**-10]), bench, "float16")
    assert exact_of(wrong).tolist() == [False, True, False]


@pytest.mark.parametrize(("dtype", "expected"), [("float32", True), ("float16", False)])
def test_a_subnormal_number_may_be_flushed_in_formats_with_float32s_exponents(
    dtype: str, expected: bool
) -> None:
    tiny = {"float32": 2.0**-130, "float16": 2.0**-16}[dtype]
    assert exact_of(comparison([0.0], [tiny], dtype)).tolist() == [expected]


def test_nan_and_infinities_are_equal_to_their_like_alone() -> None:
    bench = np.array([np.nan, np.inf, 1e39, 1.0])
    same = replace(comparison(bench, bench, "float32"), is_exact=True)
    assert Auto().judge(same).verdict is Verdict.PASS
    other = replace(comparison([np.nan, -np.inf, np.inf, 1.0], bench), is_exact=True)
    assert Auto().judge(other).verdict is Verdict.ERROR


class TestWholeOutputs:
    BENCH = np.arange(400) % 2 == 0

    def case(self, wrong: int, *, exactly: bool, size: int = 400) -> Verdict:
        """Booleans of which some are wrong, and all are the other ones for moved inputs."""
        bench = self.BENCH[:size]
        tested = bench ^ (np.arange(size) < wrong)
        case = comparison(
            tested, bench, "bool", api="Torch.eq", implementations=Moved(bench, ~bench)
        )
        return Auto().judge(replace(case, is_exact=exactly)).verdict

    def test_a_comparison_is_held_to_the_given_inputs(self) -> None:
        assert self.case(0, exactly=True) is Verdict.PASS
        assert self.case(1, exactly=True) is Verdict.ERROR

    def test_what_is_computed_first_may_be_decided_otherwise_in_one_of_twenty(self) -> None:
        assert self.case(20, exactly=False) is Verdict.PASS
        assert self.case(21, exactly=False) is Verdict.ERROR

    def test_of_few_elements_two_may_be(self) -> None:
        assert self.case(2, exactly=False, size=3) is Verdict.PASS
        assert self.case(3, exactly=False, size=3) is Verdict.ERROR
