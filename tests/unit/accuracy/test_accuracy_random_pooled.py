"""All calls of a random operator, judged together: what each call alone does not show."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from draws import Rng, alarms, drawn, held, rng, whole
from test_accuracy_random import HONEST, attention

from ray_precheck.accuracy.random import laws
from ray_precheck.accuracy.random.dropout import dropout, dropout_tests, mask_of
from ray_precheck.accuracy.random.pooled import (
    Drawn,
    Sums,
    drawn_text,
    judge_pooled,
    pattern_of,
    read_drawn,
)
from ray_precheck.accuracy.random.statistics import StatisticalTest, drawn_of
from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.unit

Make = Callable[[Rng], Sequence[StatisticalTest]]


def gathered(tests: Sequence[StatisticalTest], *, is_captured: bool = False) -> Drawn:
    """What a call drew, as it is read back from its row."""
    text = drawn_text(drawn_of(tests, is_captured))
    return read_drawn(f"random: told; {text}") or Drawn(())


def judged(make: Make, seeds: Sequence[int]) -> tuple[Verdict, str]:
    return judge_pooled([(f"X.{seed}", gathered(make(rng(seed)))) for seed in seeds])


def found(make: Make, calls: int) -> int:
    """In how many of 20 runs of so many calls the operator is in error; no call is so by itself."""
    runs = [range(run * calls, (run + 1) * calls) for run in range(20)]
    assert not any(alarms(make(rng(seed))) for seed in range(20 * calls))
    return sum(judged(make, seeds)[0] is Verdict.ERROR for seeds in runs)


def dropped(generator: Rng, count: int, told: float, drops: float) -> list[StatisticalTest]:
    """Dropout of so many elements that was told one probability, and drops with another."""
    x = held(generator.normal(size=count))
    out = held(np.where(generator.random(count) >= drops, x.data / (1 - told), 0.0))
    return dropout_tests(mask_of(x, out, dropout(told)), dropout(told))


def wide(generator: Rng, std: float, dtype: str = "float32") -> list[StatisticalTest]:
    return laws.normal(drawn(generator.normal(0, std, 4096), dtype), 0.0, 1.0)


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", pytest.param("float16", marks=pytest.mark.exhaustive)]
)
def test_a_deviation_of_1_percent_is_found_in_125_000_elements(dtype: str) -> None:
    # A small call draws three times.
    assert found(lambda r: wide(r, 1.01, dtype), 3 * 31) == 20


def test_a_probability_of_11_for_10_percent_is_found_in_25_000_elements() -> None:
    assert found(lambda r: dropped(r, 4096, 0.1, 0.11), 3 * 6) == 20


SLIGHTLY_WRONG: dict[str, Make] = {
    "Cauchy, median": lambda r: laws.cauchy(drawn(0.06 + r.standard_cauchy(4096)), 0.0, 1.0),
    "Laplace, mean": lambda r: laws.laplace(drawn(r.laplace(0.04, 1, 4096)), 0.0, 1.0),
    "gamma of shapes, rate": lambda r: laws.gamma(
        drawn(r.gamma(SHAPES, 1 / 1.03)), SHAPES, np.ones(4096)
    ),
    "binomial, probability": lambda r: laws.binomial(drawn(r.binomial(9, 0.3045, 4096)), 9.0, 0.3),
    "one number never drawn": lambda r: laws.uniform_whole_numbers(
        whole(r.integers(0, 499, 4096)), 0, 500
    ),
    "a range that is 1 % narrower": lambda r: laws.uniform_whole_numbers(
        whole(r.integers(5, 995, 4096)), 0, 1000
    ),
}
SHAPES = np.linspace(0.5, 4, 4096)


@pytest.mark.parametrize("fault", SLIGHTLY_WRONG)
def test_a_parameter_that_is_slightly_wrong_is_found_in_20_000_elements(fault: str) -> None:
    assert found(SLIGHTLY_WRONG[fault], 15) == 20


def test_attention_that_drops_twice_as_much_is_found() -> None:
    assert found(lambda r: attention(r, 32, 0.1, 0.2, 1 / 0.8), 3) == 20


@pytest.mark.parametrize("name", HONEST)
def test_honest_draws_are_never_accused(name: str) -> None:
    for run in range(20):
        seeds = range(5 * run, 5 * run + 5)
        verdict, message = judged(lambda r: HONEST[name](r, 3000), seeds)
        assert verdict is Verdict.PASS, message


def test_calls_with_other_arguments_add_up() -> None:
    calls = [
        ("X.0", gathered(laws.normal(drawn(rng(0).normal(3, 2, 50_000)), 3.0, 2.0))),
        ("X.1", gathered(laws.normal(drawn(rng(1).normal(-7, 0.01, 50_000)), -7.0, 0.01))),
    ]
    verdict, message = judge_pooled(calls)
    assert verdict is Verdict.PASS
    assert message.startswith("random: 100,000 elements drawn in 2 calls: the mean, in standard")


def test_the_row_says_what_so_few_elements_cannot_show() -> None:
    _, message = judged(lambda r: wide(r, 1.0), range(3))
    assert message.startswith("random: 12,288 elements drawn in 3 calls: ")
    assert "(a standard deviation that is 4 % off would be seen)" in message


def test_too_few_elements_for_a_normal_sum_tell_nothing() -> None:
    verdict, message = judge_pooled([("X.0", Drawn((Sums("square", 10, 10, 90, 20, 80),)))])
    assert verdict is Verdict.PASS
    assert message == (
        "random: 10 elements drawn in 1 call: too few elements to judge the variance over the"
        " expected one (10)"
    )


@pytest.mark.parametrize("name", ["normal", "uniform", "dropout", "bernoulli", "permutation"])
def test_the_same_draws_in_two_calls_are_an_error(name: str) -> None:
    verdict, message = judged(lambda r: HONEST[name](r, 500), [3, 5, 3])
    assert verdict is Verdict.ERROR
    assert message.startswith("random: ")
    assert "the draws of X.3, X.3 are the same" in message


def test_the_same_mask_is_seen_in_calls_of_other_shapes() -> None:
    verdict, message = judge_pooled(
        [
            ("X.0", gathered(dropped(rng(4), 2000, 0.1, 0.1))),
            ("X.1", gathered([*dropped(rng(5), 2000, 0.1, 0.1)])),
            ("X.2", gathered(dropped_from(rng(4), 2000, 3000))),
        ]
    )
    assert verdict is Verdict.ERROR
    assert "the draws of X.0, X.2 are the same" in message


def dropped_from(generator: Rng, count: int, longer: int) -> list[StatisticalTest]:
    """Dropout of a longer tensor, whose first elements are dropped as those of a shorter one."""
    generator.normal(size=count)
    first = generator.random(count) >= 0.1
    kept = np.concatenate([first, rng(9).random(longer - count) >= 0.1])
    x = held(np.ones(longer))
    out = held(np.where(kept, x.data / 0.9, 0.0))
    return dropout_tests(mask_of(x, out, dropout(0.1)), dropout(0.1))


def test_the_same_draws_of_a_captured_program_are_told_and_no_error() -> None:
    calls = [(f"X.{i}", gathered(wide(rng(7), 1.0), is_captured=True)) for i in range(4)]
    verdict, message = judge_pooled(calls)
    assert verdict is Verdict.PASS
    assert "the draws of X.0, X.1 and 2 more are the same: the program may have set" in message


def test_a_call_that_was_computed_again_counts_once() -> None:
    calls = [(f"X.{i}", gathered(wide(rng(i % 2), 1.0), is_captured=True)) for i in range(10)]
    assert judge_pooled(calls)[1].startswith("random: 8,192 elements drawn in 10 calls: ")


def test_captured_draws_that_are_too_few_to_be_told_apart_are_left_out_and_said_so() -> None:
    few = [
        (f"X.{i}", gathered(laws.normal(drawn(rng(i).normal(size=9)), 0.0, 1.0), is_captured=True))
        for i in range(3)
    ]
    left_out = "captured draws so few may be the same ones again, and are left out"
    assert judge_pooled(few) == (
        Verdict.SKIP,
        f"random: 0 elements drawn in 3 calls: 3 calls: {left_out}",
    )
    many = [("X.9", gathered(wide(rng(9), 1.0), is_captured=True))]
    verdict, message = judge_pooled([*few[:1], *many])
    assert verdict is Verdict.PASS
    assert message.startswith("random: 4,096 elements drawn in 2 calls: the mean")
    assert message.endswith(f"; 1 call: {left_out}")


def test_calls_of_few_draws_say_that_two_may_have_drawn_the_same() -> None:
    calls = [(f"X.{i}", gathered(dropped(rng(i), 16, 0.1, 0.1))) for i in range(2)]
    verdict, message = judge_pooled(calls)
    assert verdict is Verdict.PASS
    assert message.endswith("; a call has too few draws to tell whether two drew the same")


@pytest.mark.parametrize(
    ("values", "most_common", "shows"),
    [
        (np.zeros(5000), None, False),
        (np.arange(30) % 2 == 0, 0.5, False),
        (np.arange(64) % 2 == 0, 0.5, True),
        (np.arange(5000) % 2 == 0, 0.999, False),
        (np.arange(70_000) % 2 == 0, 0.999, True),
    ],
)
def test_only_draws_of_64_bits_have_a_pattern(
    values: np.ndarray, most_common: float | None, shows: bool
) -> None:
    assert bool(pattern_of(values, most_common)) is shows


def test_what_a_call_drew_is_read_back_from_its_message() -> None:
    drew = Drawn((Sums("mean", 7, 0.0, -0.125, 7.0, 0.0, 1e-9),), "0123456789abcdef", True)
    assert read_drawn(f"random: a; {drawn_text(drew)}") == drew
    assert read_drawn("random: sums: of nothing; b") is None
    assert drawn_text(Drawn(())) == ""
    assert drawn_text(Drawn((Sums("mean", 7, 0.0, float("nan"), 7.0, 0.0),))) == ""
