"""How far an output is beyond its limit, for each standard."""

import math

import pytest

from ray_precheck.commands.precheck.summary import beyond_limit, is_rounding, times_cell

pytestmark = pytest.mark.unit


def row(
    cosine: str, absolute: str, relative: str, standard: str = "", **others: str
) -> dict[str, str]:
    """A detail row with these cells."""
    cells = {"Cosine": cosine, "MaxAbsErr": absolute, "MaxRelativeErr": relative}
    return {**cells, "Tested Dtype": "torch.float32", "Standard": standard, **others}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (row("1.0", "0.0002", "0.5"), 2.0),
        (row("1.0", "0.06", "6e-8"), 6e-4),  # a large sum, right to its last place
        (row("0.0", "2e-5", "2.0"), math.sqrt(2.0) * 1e4),  # a tiny gradient, all wrong
        (row("-1.0", "2e-5", "2.0"), 2e4),
        (row("", "0.5", "0.25"), 2500.0),
        (row("0.5", "0.0", "0.0"), 0.0),
        (row("1.0", "inf", "inf"), math.inf),
        (row("", "", ""), math.inf),
        (row("", "0.5", ""), 5000.0),
    ],
)
def test_by_the_rule_of_msprobe_it_is_beside_1e_4_or_the_own_size(
    cells: dict[str, str], expected: float
) -> None:
    assert beyond_limit(cells) == pytest.approx(expected)
    assert beyond_limit({**cells, "Standard": "msprobe"}) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (
            row(
                "1.0", "1e-4", "0.1", "auto", HonestMaxAbsErr="1e-6", HonestRMSE="1e-7", RMSE="5e-6"
            ),
            100.0,
        ),
        (
            row(
                "1.0", "1e-4", "0.1", "auto", HonestMaxAbsErr="1e-3", HonestRMSE="1e-7", RMSE="5e-6"
            ),
            50.0,
        ),
        (row("1.0", "0.1", "0.1", "benchmark L0", RMSERatio="3.0", MaxRelErrRatio="40.0"), 40.0),
        (row("1.0", "0.1", "0.1", "ulp", MaxUlpErr="128.0"), 128.0 / 32.0),
        (row("1.0", "0.1", "0.1", "thousandth"), 100.0),
        (row("1.0", "0.1", "0.1", "absolute"), 0.1 * 2**23),
        (row("1.0", "0.1", "0.1", "binary"), 0.1 * 2**23),
        (
            row("0.0", "7.0", "9.0", "binary", **{"Tested Dtype": "torch.int64"}),
            math.sqrt(2.0) * 1e4,
        ),
    ],
)
def test_by_other_rules_it_is_beside_what_their_columns_say(
    cells: dict[str, str], expected: float
) -> None:
    assert beyond_limit(cells) == pytest.approx(expected)


@pytest.mark.parametrize("honest", ["0.0", "1e-38"])
def test_where_equal_bits_are_expected_the_limit_is_a_unit_in_the_last_place(honest: str) -> None:
    cells = row("1.0", "1e-7", "2.384185791015625e-07", "auto", HonestMaxAbsErr=honest, RMSE="1e-7")
    assert beyond_limit(cells) == pytest.approx(2.0)


def test_an_error_that_rounding_explains_is_told_by_its_message() -> None:
    assert is_rounding("MaxAbsErr 1 is not below 0.0001; rounding: one unit is 0.5")
    assert not is_rounding("likely cause: a shift")


@pytest.mark.parametrize(
    ("times", "cell"),
    [
        (0.0381, "0.0381"),
        (4.444, "4.44"),
        (999.4, "999"),
        (1746.2, "1746"),
        (1e6, "1000000"),
        (1.63e36, ">1e6"),
        (math.inf, "inf"),
    ],
)
def test_a_table_shows_no_number_of_1e36(times: float, cell: str) -> None:
    assert times_cell(times) == cell
