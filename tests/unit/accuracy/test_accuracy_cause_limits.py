"""The likely cause of an error that lies exactly on a limit."""

import numpy as np
import pytest

from ray_precheck.accuracy import cause
from ray_precheck.accuracy.cause import likely_cause
from ray_precheck.numerics import arrays
from ray_precheck.schema.dtypes import Array

pytestmark = pytest.mark.unit

# The rounding unit of float16, and of TF32: the relative error of one rounding to 11 bits.
UNIT = 2.0**-11
SIGNS = np.random.default_rng(1).choice([-1.0, 1.0], 256)
ERROR_SIGNS = np.random.default_rng(2).choice([-1.0, 1.0], 256)


def noisy(size: float, errors: Array) -> str:
    """Return the cause of these errors in numbers of one size."""
    bench = size * SIGNS[: len(errors)]
    return likely_cause(bench + errors * ERROR_SIGNS[: len(errors)], bench, "float32")


@pytest.mark.parametrize(
    ("size", "error", "coarse"),
    [
        (1.0, 2 * UNIT, "float16"),
        (1.0, 2 * UNIT * (1 + 2.0**-10), "bfloat16"),
        (10.0, UNIT, "float16"),
        (10.0, UNIT * (1 - 2.0**-8), ""),
    ],
)
def test_noise_is_of_a_format_from_a_tenth_of_its_unit_to_twice_it(
    size: float, error: float, coarse: str
) -> None:
    found = noisy(size, np.full(256, error))
    assert found.endswith(f"sums accumulated in {coarse}") if coarse else found == ""


def test_noise_may_reach_8_times_its_root_mean_square() -> None:
    # 84 errors of 1 and one of 16 have the mean square (84 + 256) / 85 = 4.
    errors = np.r_[16.0, np.ones(84)] * UNIT / 4
    assert noisy(1.0, errors).startswith("lower precision")
    errors[0] *= 1 + 2.0**-8
    assert noisy(1.0, errors) == ""


@pytest.mark.parametrize(("zeros", "is_block"), [(9, True), (8, False)])
def test_a_block_is_filled_to_nine_tenths(zeros: int, is_block: bool) -> None:
    bench = np.arange(1.0, 41.0)
    device = bench.copy()
    device[[*range(10, 10 + zeros - 1), 19]] = 0.0
    block = ", one block of 10 from index [10] on" if is_block else ""
    assert likely_cause(device, bench, "float32") == f"{zeros} elements are zero{block}"


@pytest.mark.parametrize(("holes", "is_block"), [(1, True), (2, False)])
def test_a_block_of_two_dimensions_too(holes: int, is_block: bool) -> None:
    bench = np.arange(1.0, 101.0).reshape(10, 10)
    device = bench.copy()
    device[2:4, 3:8] = 0.0
    device[2, 4 : 4 + holes] = bench[2, 4 : 4 + holes]
    block = ", one block, [2:4, 3:8]" if is_block else ""
    assert likely_cause(device, bench, "float32") == f"{10 - holes} elements are zero{block}"


def test_few_wrong_elements_among_equal_neighbours_are_no_shift() -> None:
    bench = np.repeat([1.0, 2.0, 3.0, 4.0], 500)
    device = bench.copy()
    device[[100, 300, 700, 1200, 1900]] += [0.5, 0.25, 0.125, 0.75, 0.375]
    assert "shifted" not in likely_cause(device, bench, "float32")


@pytest.mark.parametrize(
    ("size", "wrong", "is_named"), [(16, 4, True), (16, 5, False), (15, 3, False)]
)
def test_a_block_is_at_most_a_quarter_of_16_elements_or_more(
    size: int, wrong: int, is_named: bool
) -> None:
    bench = np.arange(1.0, size + 1.0) ** 2
    device = bench.copy()
    device[3 : 3 + wrong] += [5.0, 50.0, -3.0, 20.0, -8.0][:wrong]
    found = likely_cause(device, bench, "float32")
    assert (
        found == f"all {wrong} wrong elements are in one block of {wrong} from index [3] on"
    ) is is_named


def test_a_shift_along_three_elements_is_named() -> None:
    bench = np.random.default_rng(0).normal(size=(5, 3))
    for axis, shown in ((0, "rows"), (1, "elements")):
        found = likely_cause(np.roll(bench, 1, axis), bench, "float64")
        assert found.startswith(f"{shown} shifted by one: along axis {axis}")


def test_an_overflow_begins_at_a_quarter_of_the_largest_number() -> None:
    bench = np.linspace(1.0, 2.0, 50)
    device = bench.copy()
    device[7] = np.inf
    for share, is_overflow in ((0.25, True), (0.2499, False)):
        bench[7] = share * 65504.0
        found = likely_cause(device, bench, "float16")
        assert found.startswith("overflow") is is_overflow


COUNTED = np.arange(1.0, 201.0)


def changed(bench: Array, **changes: tuple[object, object]) -> str:
    """Return the cause of a copy of the bench in which places have other values."""
    device = bench.astype(float)
    for place, value in changes.values():
        device[place] = value
    return likely_cause(device, bench, "float32")


@pytest.mark.parametrize(("others", "is_named"), [(1, True), (2, False)])
def test_a_cause_explains_99_of_100_wrong_elements(others: int, is_named: bool) -> None:
    bench = COUNTED[:100]
    flipped = changed(-bench, all=(slice(None), bench), others=(slice(0, others), 0.3))
    assert flipped.startswith("the sign of every element") is is_named
    zeros = changed(COUNTED, zeros=(slice(50, 150), 0.0), others=(slice(50, 50 + others), 0.3))
    assert zeros.startswith(f"{100 - others} elements are zero") is is_named
    bench = np.r_[np.full(100 - others, np.inf), np.ones(others + 20)]
    nan = changed(bench, bad=(slice(0, 100), np.nan))
    assert nan.startswith("overflow: the bench is beyond the largest") is is_named


def test_an_array_of_the_largest_size_is_looked_at_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cause, "LARGEST_ELEMENTS", 48)
    bench = COUNTED[:48]
    assert changed(bench, place=(3, 9e9)).endswith("all others are as exact as rounding allows")
    rows = COUNTED[:96].reshape(2, 48)
    assert "(looked at: rows 1 to 1 of 2," in changed(rows, place=((1, 3), 9e9))


def test_signs_of_two_units_in_the_last_place_say_nothing() -> None:
    bench = np.r_[COUNTED, 2.0**-148]
    assert changed(bench, place=(200, -(2.0**-148))) == ""
    bench[200] = 2.0**-147  # 4 units: it is right with any sign of its own
    found = changed(bench, place=(slice(0, 2), [-1.0, -2.0]))
    assert found == "the sign is flipped in all 2 elements up to 2 in size"
    bench[2] = 2.0
    found = changed(bench, place=(slice(0, 2), [-1.0, -2.0]))
    assert found == "the sign is flipped in 2 elements"


def test_the_smallest_normal_number_is_not_flushed() -> None:
    bench = np.r_[COUNTED, 2.0**-126, 2.0**-127]
    assert changed(bench, subnormal=(201, 0.0)).startswith(
        "subnormal numbers flushed to zero: 1 elements"
    )
    assert "flushed" not in changed(bench, both=(slice(200, 202), 0.0))


def test_a_clamped_infinity_is_within_a_hundredth_of_the_largest() -> None:
    bench = np.r_[COUNTED, np.inf]
    for share, is_clamped in ((0.99, True), (0.9899, False)):
        device = np.r_[COUNTED, share * 65504.0]
        found = likely_cause(device, bench, "float16")
        assert found.startswith("infinity clamped") is is_clamped


def test_four_elements_show_a_factor_an_offset_and_a_shift_and_two_a_transposition() -> None:
    bench = np.array([1.0, 7.0, -3.0, 5.0])
    assert likely_cause(1.5 * bench, bench, "float32").startswith("a constant factor")
    assert likely_cause(bench + 10.0, bench, "float32").startswith("a constant offset")
    five = np.array([1.0, 7.0, -3.0, 5.0, 4.0])
    assert likely_cause(np.roll(five, 1), five, "float32").startswith("elements shifted")
    square = bench.reshape(2, 2)
    assert likely_cause(square.T, square, "float32").startswith("transposed")
    assert likely_cause(1.5 * bench[:3], bench[:3], "float32") == ""
    assert likely_cause(bench[:3] + 10.0, bench[:3], "float32") == ""


@pytest.mark.parametrize(("small", "is_named"), [(20, False), (21, True)])
def test_an_offset_shows_where_more_than_half_of_the_elements_are_wrong(
    small: int, is_named: bool
) -> None:
    bench = np.r_[COUNTED[:small], 1e8 + 1000 * COUNTED[: 40 - small]]
    found = likely_cause(bench + 0.5, bench, "float32")
    assert found.startswith("a constant offset") is is_named


@pytest.mark.parametrize(("units", "is_named"), [(16, False), (17, True)])
def test_a_wrong_element_stands_out_by_more_than_16_units(units: int, is_named: bool) -> None:
    found = changed(np.ones(100), place=(5, 1 + units * 2.0**-23))
    assert found.startswith("a single element is wrong") is is_named


def test_noise_shows_in_8_elements_and_beyond_3_units() -> None:
    assert noisy(1.0, np.full(8, 2 * UNIT)).startswith("lower precision")
    assert noisy(1.0, np.full(7, 2 * UNIT)) == ""
    for units, is_named in ((3.0, False), (3.25, True)):
        device = SIGNS + units * 2.0**-10 * ERROR_SIGNS
        assert likely_cause(device, SIGNS, "float16").startswith("lower precision") is is_named


@pytest.mark.parametrize(("fractions", "is_named"), [(3, True), (2, False)])
def test_a_format_shows_where_less_than_three_quarters_of_the_bench_have_it(
    fractions: int, is_named: bool
) -> None:
    bench = np.r_[np.arange(1.0, 9.0 - fractions), np.arange(1.0, fractions + 1.0) / 7 + 11]
    device = bench.astype(np.float16).astype(float)
    found = likely_cause(device, bench, "float32")
    assert found.startswith("every value is exactly a float16") is is_named


def test_empty_outputs_and_booleans_have_no_cause() -> None:
    assert likely_cause(np.empty((0, 3)), np.empty((0, 3)), "float32") == ""
    assert likely_cause(np.zeros(20, bool), np.ones(20, bool), "bool") == ""


# Of 100 rows of 4 elements each window has 4 rows: two before the worst one, and one behind it.
@pytest.mark.parametrize(("row", "first"), [(0, 0), (1, 0), (2, 0), (3, 1), (98, 96), (99, 96)])
def test_the_rows_around_the_worst_end_with_the_output(
    row: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cause, "LARGEST_ELEMENTS", 16)
    bench = np.arange(1.0, 401.0).reshape(100, 4)
    device = bench.copy()
    device[row, 2] += 0.5
    found = likely_cause(device, bench, "float32")
    assert f"looked at: rows {first} to {first + 3} of 100" in found


def test_of_equal_errors_the_first_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cause, "LARGEST_ELEMENTS", 16)
    monkeypatch.setattr(arrays, "CHUNK_ELEMENTS", 64)
    bench = np.arange(1.0, 401.0).reshape(100, 4)
    device = bench.copy()
    device[[10, 90], 2] += 0.5
    assert "looked at: rows 8 to 11 of 100" in likely_cause(device, bench, "float32")


def test_subnormal_numbers_of_which_half_are_zero_were_not_flushed() -> None:
    bench = np.r_[np.full(10, 1e-39), np.ones(30)]
    device = bench.copy()
    device[:5] = 0.0
    assert "flushed" not in likely_cause(device, bench, "float32")
    device[:10] = 0.0
    assert likely_cause(device, bench, "float32").startswith("subnormal numbers flushed")


def test_a_factor_of_large_numbers_does_not_overflow() -> None:
    bench = 1e200 * np.arange(1.0, 20.0)
    found = likely_cause(2 * bench, bench, "float64")
    assert found == "a constant factor: the device is 2 times the bench everywhere"


@pytest.mark.parametrize(("step", "which"), [(1, "before"), (-1, "after")])
def test_the_element_that_a_shift_moves_in_may_be_any(step: int, which: str) -> None:
    bench = np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, 5.0])
    device = np.roll(bench, step)
    device[0 if step == 1 else -1] = 77.0
    found = likely_cause(device, bench, "float32")
    assert found == (
        f"elements shifted by one: along axis 0 each is the one {which} it in the bench"
    )


def test_wrong_elements_of_a_symmetric_matrix_are_no_transposition() -> None:
    bench = np.add.outer(np.arange(20.0), np.arange(20.0)) + 1.0
    device = bench.copy()
    device[2, 7], device[11, 3] = 77.0, 99.0
    assert "transposed" not in likely_cause(device, bench, "float32")


# Of numbers near 1 in size noise is told from 2^-10 on, 0.00098: the unit of float16.
@pytest.mark.parametrize(("size", "is_told"), [(6e-4, False), (1.2e-3, True)])
def test_noise_is_larger_than_the_unit_of_its_own_format(size: float, is_told: bool) -> None:
    generator = np.random.default_rng(3)
    bench = generator.normal(size=4096)
    device = (bench + size * generator.choice([-1.0, 1.0], 4096)).astype(np.float16)
    assert ("lower precision" in likely_cause(device, bench, "float16")) is is_told
