"""Which values a tensor may take, from what the dump recorded."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.inputs.distribution import ValueRange, value_range
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.values import Bound, TensorSpec

pytestmark = pytest.mark.unit

INTEGERS = [name for name, dtype in DTYPES.items() if dtype.kind in ("int", "uint")]
FLOATS = [name for name, dtype in DTYPES.items() if dtype.kind in ("float", "complex")]
INF, NAN = math.inf, math.nan


def spans(dtype: str, low: Bound, high: Bound) -> ValueRange:
    return value_range(TensorSpec(dtype, (4,), low, high))


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_range_over_what_was_recorded(dtype: str) -> None:
    assert spans(dtype, -2, 1.5) == ValueRange(-2.0, 1.5)
    assert spans(dtype, 3, 3) == ValueRange(3.0, 3.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "float8_e4m3fn"])
@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(None, None, "missing"), (None, 1.0, "missing"), (NAN, NAN, "NaN"), (0.0, NAN, "NaN")],
)
def test_floats_without_a_recorded_range_lie_in_one_around_zero_with_a_note(
    dtype: str, low: Bound, high: Bound, word: str
) -> None:
    span = spans(dtype, low, high)
    assert (span.low, span.high) == (-1.0, 1.0)
    assert span.note == f"recorded range is {word}, drawn from [-1.0, 1.0]"


def test_an_empty_tensor_needs_no_note() -> None:
    for dtype in ("float32", "int64"):
        assert value_range(TensorSpec(dtype, (3, 0))).note == ""


@pytest.mark.parametrize(
    ("low", "high", "finite", "span"),
    [
        (-INF, 2.0, (-5.0, None), ValueRange(-5.0, 2.0, minus_infinity=True)),
        (-3.0, INF, (None, 7.0), ValueRange(-3.0, 7.0, plus_infinity=True)),
        (-INF, INF, (-4.0, 9.0), ValueRange(-4.0, 9.0, minus_infinity=True, plus_infinity=True)),
        (-3.0, 2.0, (-1.0, 1.0), ValueRange(-3.0, 2.0)),  # as recorded: all are finite
        (-INF, INF, (9.0, -4.0), spans("float32", -INF, INF)),
    ],
)
def test_recorded_finite_extremes_are_the_range_of_the_finite_elements(
    low: float, high: float, finite: tuple[float | None, float | None], span: ValueRange
) -> None:
    """Captures of msprobe's first versions have them where Min or Max is not finite."""
    spec = TensorSpec("float32", (4,), low, high, finite_low=finite[0], finite_high=finite[1])
    assert value_range(spec) == span


def test_where_the_extremes_are_nan_the_finite_ones_are_the_range() -> None:
    spec = TensorSpec("float32", (4,), NAN, NAN, finite_low=-2.5, finite_high=80.0)
    found = value_range(spec)
    assert (found.low, found.high) == (-2.5, 80.0)
    assert found.note == "recorded range is NaN, drawn from that of its finite elements, [-2.5, 80]"


@pytest.mark.parametrize(
    ("low", "high", "span"),
    [
        (-INF, 2.0, ValueRange(1.0, 2.0, minus_infinity=True)),
        (-3.0, INF, ValueRange(-3.0, -2.0, plus_infinity=True)),
        (INF, INF, ValueRange(INF, INF)),
        (-INF, -INF, ValueRange(-INF, -INF)),
    ],
)
def test_an_infinite_extreme_stands_for_infinities_beside_finite_numbers(
    low: float, high: float, span: ValueRange
) -> None:
    assert spans("float32", low, high) == span


def test_two_infinite_extremes_leave_the_finite_numbers_around_zero() -> None:
    span = spans("float16", -INF, INF)
    assert (span.low, span.high, span.minus_infinity, span.plus_infinity) == (-1.0, 1.0, True, True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2", "float32"])
def test_a_bound_beyond_the_largest_number_of_the_dtype_is_an_infinity(dtype: str) -> None:
    largest = DTYPES[dtype].largest
    assert spans(dtype, 0.0, largest) == ValueRange(0.0, largest)
    assert spans(dtype, 0.0, largest * 2) == ValueRange(0.0, 1.0, plus_infinity=True)
    assert spans(dtype, -largest * 2, 0.0) == ValueRange(-1.0, 0.0, minus_infinity=True)
    assert spans(dtype, largest * 2, largest * 3) == ValueRange(INF, INF)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_an_integer_beyond_all_floats_is_a_bound_like_infinity(dtype: str) -> None:
    assert spans(dtype, 0, 10**400) == spans(dtype, 0, INF)


@pytest.mark.parametrize(
    ("low", "high", "span"),
    [
        (None, None, (0, 1)),
        (False, True, (0, 1)),
        (True, True, (1, 1)),
        (False, False, (0, 0)),
        (1, 1, (1, 1)),
        (0.0, 1.0, (0, 1)),
        (None, True, (0, 1)),
    ],
)
def test_booleans_are_both_unless_both_extremes_are_the_same(
    low: Bound, high: Bound, span: tuple[int, int]
) -> None:
    assert spans("bool", low, high) == ValueRange(*span)


def test_booleans_with_strange_extremes_have_a_range_in_order() -> None:
    assert spans("bool", -1, 0) == ValueRange(0, 1)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_range_over_the_recorded_closed_range(dtype: str) -> None:
    assert spans(dtype, 0, 1) == ValueRange(0, 1)
    assert spans(dtype, 7.0, 100.0) == ValueRange(7, 100)
    assert isinstance(spans(dtype, 7.0, 100.0).low, int)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_beyond_the_dtype_are_cut_to_what_it_holds(dtype: str) -> None:
    info = DTYPES[dtype]
    smallest = -(2 ** (info.bits - 1)) if info.kind == "int" else 0
    largest = 2 ** (info.bits - 1) - 1 if info.kind == "int" else 2**info.bits - 1
    for low, high in ((-(10**30), 10**30), (-INF, INF), (-1e300, 1e300)):
        assert spans(dtype, low, high) == ValueRange(smallest, largest)


def test_extremes_of_64_bit_integers_are_exact() -> None:
    assert spans("int64", 2**63 - 2, 2**63 - 1) == ValueRange(2**63 - 2, 2**63 - 1)
    assert spans("uint64", 2**64 - 2, 2**64 - 1) == ValueRange(2**64 - 2, 2**64 - 1)


@pytest.mark.parametrize(("low", "high"), [(None, None), (3, None), (NAN, NAN), (0, NAN)])
def test_integers_without_a_recorded_range_are_0_and_1_with_a_note(low: Bound, high: Bound) -> None:
    span = spans("int32", low, high)
    assert (span.low, span.high) == (0, 1)
    assert span.note.endswith("drawn from [0, 1]")


BOUNDS = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats())


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(sorted(DTYPES)), BOUNDS, BOUNDS)
def test_every_range_is_in_order_and_within_its_dtype(dtype: str, low: Bound, high: Bound) -> None:
    if low is not None and high is not None and low > high:
        low, high = high, low
    if dtype == "bool":
        low, high = sorted((bool(low), bool(high)))
    span = spans(dtype, low, high)
    assert span.low <= span.high
    info = DTYPES[dtype]
    if info.kind in ("float", "complex"):
        assert math.isinf(span.low) == math.isinf(span.high)
        assert math.isinf(span.low) or -info.largest <= span.low <= span.high <= info.largest
    else:
        assert -(2 ** (info.bits - 1)) <= span.low <= span.high < 2**info.bits


def test_beside_infinity_the_finite_part_stays_within_a_small_format() -> None:
    up = value_range(TensorSpec("float8_e4m3fn", (4,), 448.0, math.inf))
    down = value_range(TensorSpec("float8_e4m3fn", (4,), -math.inf, -448.0))
    assert (up.low, up.high, up.plus_infinity) == (448.0, 448.0, True)
    assert (down.low, down.high, down.minus_infinity) == (-448.0, -448.0, True)


def test_a_boolean_needs_both_extremes() -> None:
    for low, high in ((None, False), (True, None)):
        assert spans("bool", low, high) == ValueRange(0, 1)


def test_finite_extremes_may_be_the_ends_of_the_dtype_or_one_number() -> None:
    for low, high in ((-65504.0, 65504.0), (3.0, 3.0)):
        spec = TensorSpec("float16", (4,), -INF, INF, finite_low=low, finite_high=high)
        assert value_range(spec) == ValueRange(low, high, minus_infinity=True, plus_infinity=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_whole_number_beyond_all_floats_is_an_infinity_of_its_sign(dtype: str) -> None:
    assert spans(dtype, -(10**400), 1) == ValueRange(0.0, 1.0, minus_infinity=True)
    assert spans(dtype, 1, 10**400) == ValueRange(1.0, 2.0, plus_infinity=True)
