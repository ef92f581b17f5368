"""One output against the bench: the detail row."""

import math
from typing import Any

import numpy as np
import pytest

from ray_precheck.accuracy.outputs import Judge, check_output
from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.result import OutputCheck, Verdict
from ray_precheck.schema.values import HostTensor

pytestmark = pytest.mark.unit

NAME = "Mint.add.0.forward.output.0"


def tensor(dtype: str, values: Any) -> HostTensor:
    return HostTensor(dtype, np.array(values, DTYPES[dtype].carrier))


def checked(
    tested: Any, bench: Any, framework: str = "pytorch", judge: Judge | None = None
) -> OutputCheck:
    return check_output(NAME, tested, bench, judge or Judge(framework))


def test_a_row_has_name_dtypes_shape_numbers_and_verdict() -> None:
    row = checked(tensor("float32", [[1, 2, 3]]), tensor("float64", [[1, 2, 3]]), "mindspore")
    assert (row.name, row.tested_dtype, row.bench_dtype) == (NAME, "Float32", "Float64")
    assert row.shape == "(1, 3)"
    assert row.metrics is not None
    assert (row.metrics.cosine, row.metrics.max_abs_err) == (pytest.approx(1.0), 0.0)
    assert (row.verdict, row.message) == (Verdict.PASS, "")
    assert checked(tensor("int8", [1]), tensor("int8", [1])).tested_dtype == "torch.int8"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
def test_a_correctly_rounded_result_has_no_error(dtype: str) -> None:
    wide = "complex128" if dtype == "complex64" else "float64"
    exact = np.array([1 / 3, 1000 / 3, 1e-5 / 3]).astype(wide)
    row = checked(HostTensor(dtype, round_to_dtype(exact, dtype)), HostTensor(wide, exact))
    assert row.metrics is not None
    assert row.metrics.max_abs_err == 0.0
    assert row.verdict is Verdict.PASS


def test_what_overflows_the_tested_dtype_agrees_with_infinity() -> None:
    row = checked(tensor("float16", [np.inf, 1]), tensor("float64", [1e6, 1]))
    assert row.verdict is Verdict.PASS
    assert row.metrics is not None
    assert row.metrics.left_out == 1


def test_an_error_says_what_is_wrong() -> None:
    row = checked(tensor("float32", [1, 2.5]), tensor("float64", [1, 2]))
    assert row.verdict is Verdict.ERROR
    assert "MaxAbsErr 0.5 at index [1]" in row.message


def test_the_relative_error_is_measured_from_the_smallest_normal_of_the_tested_dtype() -> None:
    row = checked(tensor("float16", [2.0**-14, 1]), tensor("float64", [0, 1]))
    assert row.metrics is not None
    assert row.metrics.max_rel_err == 1.0
    row = checked(tensor("int32", [3, 1]), tensor("int32", [0, 1]))
    assert row.metrics is not None
    assert row.metrics.max_rel_err == 3.0


@pytest.mark.parametrize(
    ("tested", "bench"), [((2,), (3,)), ((2, 1), (2,)), ((), (1,)), ((0,), (0, 1))]
)
def test_another_shape_is_an_error_without_numbers(
    tested: tuple[int, ...], bench: tuple[int, ...]
) -> None:
    row = checked(tensor("float32", np.zeros(tested)), tensor("float64", np.zeros(bench)))
    assert (row.verdict, row.metrics) == (Verdict.ERROR, None)
    assert row.message == f"shape {list(tested)} where the bench has {list(bench)}"
    assert row.shape == str(tested)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_integers_and_booleans_are_compared_as_they_are(dtype: str) -> None:
    assert checked(tensor(dtype, [0, 1]), tensor(dtype, [0, 1])).verdict is Verdict.PASS
    assert checked(tensor(dtype, [0, 1]), tensor(dtype, [1, 1])).verdict is Verdict.ERROR


def test_integers_where_the_bench_has_floats_are_not_rounded() -> None:
    row = checked(tensor("int32", [1, 2]), tensor("float64", [1, 2.4]))
    assert row.metrics is not None
    assert row.metrics.max_abs_err == pytest.approx(0.4)
    assert row.bench_dtype == "torch.float64"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_a_scalar_tensor_and_a_number_are_compared_as_numbers(dtype: str) -> None:
    for pair in ((tensor(dtype, 2), 2.0), (2, tensor(dtype, 2)), (tensor(dtype, 2), 2)):
        row = checked(*pair)
        assert row.verdict is Verdict.PASS
        assert row.metrics is not None
        assert row.shape == "()"
    assert checked(tensor(dtype, 2), 3).verdict is Verdict.ERROR
    assert checked(3, tensor(dtype, 2)).verdict is Verdict.ERROR


def test_a_number_and_a_tensor_of_another_shape_differ() -> None:
    assert checked(2.0, tensor("float32", [2.0])).message == "shape [] where the bench has [1]"


@pytest.mark.parametrize("bench", [2.7, math.nan, 1j])
def test_a_number_of_the_bench_is_not_cut_to_the_dtype_of_a_tested_tensor(bench: Any) -> None:
    assert checked(tensor("int32", 2), bench).verdict is Verdict.ERROR


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_number_of_the_bench_does_not_wrap() -> None:
    assert checked(tensor("uint8", 255), -1).verdict is Verdict.ERROR


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_on_both_sides_is_no_evidence(value: float) -> None:
    row = checked(value, value)
    assert (row.verdict, row.metrics) == (Verdict.SKIP, None)
    assert row.message == f"nothing to compare: it is {value} on both sides"
    assert checked(value, 1.0).verdict is Verdict.ERROR


@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([], "no element to compare: the output is empty"),
        ([math.nan, math.inf], "no element to compare: all 2 are NaN or infinite, on both sides"),
    ],
)
def test_a_row_without_an_element_to_compare_is_no_pass(
    standard: str, values: list[float], says: str
) -> None:
    device, bench = (HostTensor(d, np.array(values, d)) for d in ("float32", "float64"))
    row = checked(device, bench, judge=Judge("pytorch", STANDARDS[standard]()))
    assert (row.verdict, row.metrics, row.columns) == (Verdict.SKIP, None, ())
    assert row.message.startswith(says)


def test_one_element_that_can_be_compared_is_enough() -> None:
    values = [math.nan, math.inf, 1.0]
    device, bench = (HostTensor(d, np.array(values, d)) for d in ("float32", "float64"))
    row = checked(device, bench)
    assert row.verdict is Verdict.PASS
    assert row.message == "2 NaN or infinite elements agree and are left out"


@pytest.mark.parametrize(
    ("tested", "bench"),
    [
        (True, True),
        (3, 3),
        ("mean", "mean"),
        (None, None),
        ((1, 2), [1, 2]),
        ([1, (2, math.nan)], [1, [2, math.nan]]),
        ([], ()),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_values_that_are_equal_pass(tested: Any, bench: Any) -> None:
    row = checked(tested, bench)
    assert (row.verdict, row.message, row.metrics, row.shape) == (Verdict.PASS, "", None, "")


@pytest.mark.parametrize(
    ("tested", "bench"),
    [
        (True, False),
        (True, 1),
        (3, 4),
        ("mean", "sum"),
        (None, 0),
        (math.nan, 1.0),
        (1.0, math.nan),
        ((1, 2), (1, 2, 3)),
        ((1, 2), (2, 1)),
        ([1], 1),
    ],
)
def test_values_that_differ_are_an_error_that_shows_both(tested: Any, bench: Any) -> None:
    row = checked(tested, bench)
    assert row.verdict is Verdict.ERROR
    assert row.message == f"{tested!r} where the bench has {bench!r}"


def test_a_tensor_where_the_bench_has_a_text_is_an_error() -> None:
    row = checked(tensor("float32", [1, 2]), "text")
    assert row.verdict is Verdict.ERROR
    assert row.message == "a tensor of shape [2] where the bench has 'text'"
    assert (row.tested_dtype, row.bench_dtype) == ("torch.float32", "str")


def test_long_values_are_shown_shortened() -> None:
    assert len(checked("x" * 1000, "y" * 1000).message) < 200


# 78 characters and two quotes.
@pytest.mark.parametrize(("length", "shown"), [(78, f"'{'x' * 78}'"), (79, f"'{'x' * 76}...")])
def test_a_value_of_more_than_80_characters_is_cut(length: int, shown: str) -> None:
    assert checked("x" * length, 3).message == f"{shown} where the bench has 3"


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (1000, "int64"),
        (-1000, "int64"),
        (2**63 - 1, "int64"),
        (2**63, "float64"),
        (-(2**63), "int64"),
        (-(2**63) - 1, "float64"),
        (True, "bool"),
        (1j, "complex128"),
    ],
)
def test_a_number_beside_a_tensor_has_the_widest_dtype_of_its_kind(
    number: complex, dtype: str
) -> None:
    kind = "complex128" if dtype == "complex128" else "float64"
    row = checked(tensor(kind, number), number)
    assert (row.bench_dtype, row.verdict) == (f"torch.{dtype}", Verdict.PASS)


def test_the_dtype_of_a_python_value_is_its_type() -> None:
    row = checked((1, 2), 5)
    assert (row.tested_dtype, row.bench_dtype) == ("tuple", "int")


def test_a_bench_of_whole_numbers_is_not_rounded_to_a_tested_float() -> None:
    row = checked(tensor("float32", [2.0**24]), tensor("int64", [2**24 + 1]))
    assert row.metrics is not None
    assert row.metrics.max_abs_err == 1.0
