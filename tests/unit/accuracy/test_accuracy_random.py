"""Random outputs: honest generators pass, broken ones do not."""

from collections.abc import Callable

import numpy as np
import pytest
from draws import MANY, Rng, alarms, drawn, held, judged, rng, whole

from ray_precheck.accuracy.random import laws
from ray_precheck.accuracy.random.bounds import (
    FALSE_ALARM_RATE,
    share_limits,
)
from ray_precheck.accuracy.random.dropout import (
    attention_tests,
    dropout,
    dropout_tests,
    mask_of,
)
from ray_precheck.accuracy.random.statistics import (
    StatisticalTest,
    check_random_output,
    draws_of,
    neighbours,
    no_repeats,
)
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.values import HostTensor, TensorSpec

pytestmark = pytest.mark.unit


def dropped(x: HostTensor, p: float, generator: Rng, dtype: str = "float32") -> HostTensor:
    kept = generator.random(x.shape) >= p
    return held(np.where(kept, x.data.astype(np.float64) / (1 - p), 0.0), dtype)


def dropout_honest(generator: Rng, count: int, dtype: str) -> list[StatisticalTest]:
    x = held(generator.normal(size=count), dtype)
    return dropout_tests(mask_of(x, dropped(x, 0.3, generator, dtype), dropout(0.3)), dropout(0.3))


def multinomial(generator: Rng, count: int, shift: float = 0.0) -> list[StatisticalTest]:
    weights = np.array([0.0, 0.1, 0.2, 0.3, 0.4])
    taken = weights + shift * np.array([0, 1, -1, 0, 0])
    chosen = generator.choice(5, size=count, p=taken)
    upto = np.cumsum(weights)
    below = np.concatenate([[0.0], upto[:-1]])
    return laws.categories(chosen, below[chosen], upto[chosen], 2.0**-24, generator)


def attention(
    generator: Rng, rows: int, p: float, drops: float, scale: float
) -> list[StatisticalTest]:
    """Attention of 4 heads that drops with `drops` and scales what is left by `scale`."""
    query, key, value = (generator.normal(size=(4, n, 8)) for n in (rows, 32, 32))
    weights = np.exp(query @ key.swapaxes(-1, -2) / 8**0.5)
    weights /= weights.sum(-1, keepdims=True)
    out = (weights * (generator.random(weights.shape) >= drops) * scale) @ value
    return attention_tests(query, key, value, out, None, p, None, 2.0**-23)


HONEST: dict[str, Callable[[Rng, int], list[StatisticalTest]]] = {
    "normal": lambda r, n: laws.normal(drawn(r.normal(3, 2, n)), 3.0, 2.0),
    "normal bf16": lambda r, n: laws.normal(drawn(r.normal(3, 2, n), "bfloat16"), 3.0, 2.0),
    "uniform": lambda r, n: laws.uniform(drawn(r.uniform(-1, 2, n)), -1.0, 2.0),
    "uniform fp16": lambda r, n: laws.uniform(drawn(r.uniform(0, 1, n), "float16"), 0.0, 1.0),
    "exponential": lambda r, n: laws.exponential(drawn(r.exponential(0.5, n)), 2.0),
    "gamma": lambda r, n: laws.gamma(drawn(r.gamma(3, 0.5, n)), 3.0, 2.0),
    "cauchy": lambda r, n: laws.cauchy(drawn(1 + 2 * r.standard_cauchy(n)), 1.0, 2.0),
    "laplace": lambda r, n: laws.laplace(drawn(r.laplace(1, 2, n)), 1.0, 2.0),
    "log-normal": lambda r, n: laws.log_normal(drawn(r.lognormal(1, 2, n)), 1.0, 2.0),
    "whole numbers": lambda r, n: laws.uniform_whole_numbers(whole(r.integers(-3, 7, n)), -3, 7),
    "whole bf16": lambda r, n: laws.uniform_whole_numbers(
        drawn(r.integers(0, 1000, n), "bfloat16"), 0, 1000
    ),
    "bernoulli": lambda r, n: laws.bernoulli(drawn(r.random(n) < 0.2), 0.2),
    "poisson": lambda r, n: laws.poisson(drawn(r.poisson(3.0, n)), 3.0, r),
    "geometric": lambda r, n: laws.geometric(drawn(r.geometric(0.3, n)), 0.3, r),
    "binomial": lambda r, n: laws.binomial(drawn(r.binomial(9, 0.3, n)), 9.0, 0.3),
    "multinomial": multinomial,
    "permutation": lambda r, n: laws.permutation(r.permutation(n).astype(np.float64)),
    "dropout": lambda r, n: dropout_honest(r, n, "float32"),
    "dropout bf16": lambda r, n: dropout_honest(r, n, "bfloat16"),
    "attention": lambda r, n: attention(r, n // 10 + 1, 0.2, 0.2, 1.25),
}
DRAWS = 2_000


def test_two_thousand_honest_draws_raise_no_alarm() -> None:
    names = list(HONEST)
    found = []
    for seed in range(DRAWS):
        name = names[seed % len(names)]
        # Few elements and many: a bound that only holds for many of them would fail on few.
        if alarms(HONEST[name](rng(seed), (3, 30, 300, 1000)[seed // len(names) % 4])):
            found.append((name, seed))
    assert found == []


@pytest.mark.parametrize("chance", [0.3, 0.05])
def test_no_more_honest_calls_alarm_than_the_false_alarm_rate_says(chance: float) -> None:
    names = list(HONEST)
    count = 1_000
    found = sum(
        alarms(HONEST[names[seed % len(names)]](rng(seed), 300), chance) for seed in range(count)
    )
    assert found / count <= share_limits(chance, count, FALSE_ALARM_RATE)[1]
    # The bounds are no wider than they need be by orders of magnitude.
    assert found > 0 or chance < 0.1


def with_parameters(generator: Rng) -> list[list[StatisticalTest]]:
    mean, std = generator.normal(size=1000), generator.uniform(0.5, 2, 1000)
    p = generator.random(1000)
    rate = generator.uniform(0, 20, 1000)
    return [
        laws.normal(drawn(generator.normal(mean, std)), mean, std),
        laws.uniform(drawn(generator.uniform(mean, mean + std)), mean, mean + std),
        laws.bernoulli(drawn(generator.random(1000) < p), p),
        laws.poisson(drawn(generator.poisson(rate)), rate, generator),
        laws.binomial(drawn(generator.binomial(5, p)), 5.0, p),
    ]


def test_draws_may_have_parameters_of_their_own() -> None:
    assert not any(alarms(tests) for seed in range(50) for tests in with_parameters(rng(seed)))


def wrong(draw: Callable[[Rng], list[StatisticalTest]]) -> Callable[[], list[StatisticalTest]]:
    return lambda: draw(rng(7))


def bad_dropout(
    out_of: Callable[[HostTensor, Rng], Array], p: float = 0.5, dtype: str = "float32"
) -> list[StatisticalTest]:
    generator = rng(7)
    x = held(generator.normal(size=(100, MANY // 100)), dtype)
    return dropout_tests(mask_of(x, held(out_of(x, generator), dtype), dropout(p)), dropout(p))


def same_mask_per_row(x: HostTensor, generator: Rng) -> Array:
    return np.where(generator.random(x.shape[1]) < 0.5, 2.0 * x.data, 0.0)


FAULTS: dict[str, tuple[Callable[[], list[StatisticalTest]], str]] = {
    "p off by 0.02": (
        lambda: bad_dropout(lambda x, r: np.where(r.random(x.shape) < 0.52, 0, 2 * x.data)),
        "the share of dropped elements is 0.5",
    ),
    "small p off by 0.02": (
        lambda: bad_dropout(lambda x, r: np.where(r.random(x.shape) < 0.08, 0, x.data / 0.9), 0.1),
        "the share of dropped elements",
    ),
    "never zero": (lambda: bad_dropout(lambda x, r: 2 * x.data), "the share of dropped elements"),
    "all zero": (lambda: bad_dropout(lambda x, r: 0 * x.data), "the share of dropped elements"),
    "not scaled": (
        lambda: bad_dropout(lambda x, r: np.where(r.random(x.shape) < 0.5, 0, x.data)),
        "elements are not 0 or x * 2",
    ),
    "scale off by a thousandth": (
        lambda: bad_dropout(lambda x, r: np.where(r.random(x.shape) < 0.5, 0, 2.002 * x.data)),
        "elements are not 0 or x * 2",
    ),
    "one survivor wrong": (
        lambda: bad_dropout(
            lambda x, r: np.where(np.arange(x.data.size).reshape(x.shape) == 7, 9.0, 2 * x.data)
        ),
        "1 of 100000 elements are not 0 or x * 2, the first at [0, 7]",
    ),
    "same seed per row": (lambda: bad_dropout(same_mask_per_row), "repeat those from"),
    "neighbours dropped in pairs": (
        lambda: bad_dropout(
            lambda x, r: np.where(np.repeat(r.random((100, 500)) < 0.5, 2, axis=1), 0, 2 * x.data)
        ),
        "neighbours that are alike",
    ),
    "bf16 not scaled": (
        lambda: bad_dropout(
            lambda x, r: np.where(r.random(x.shape) < 0.1, 0, x.data), 0.1, "bfloat16"
        ),
        "elements are not 0 or x *",
    ),
    "variance 5 % off": (
        wrong(lambda r: laws.normal(drawn(r.normal(0, 1.05**0.5, MANY)), 0.0, 1.0)),
        "the variance over the expected one is 1.04",
    ),
    "variance 5 % off in bf16": (
        wrong(lambda r: laws.normal(drawn(r.normal(0, 1.05**0.5, MANY), "bfloat16"), 0.0, 1.0)),
        "the variance over the expected one is 1.04",
    ),
    "mean off by 0.03": (
        wrong(lambda r: laws.normal(drawn(r.normal(0.03, 1, MANY)), 0.0, 1.0)),
        "the mean, in standard deviations",
    ),
    "uniform, not normal, of the same moments": (
        wrong(lambda r: laws.normal(drawn(r.uniform(-(3**0.5), 3**0.5, MANY)), 0.0, 1.0)),
        "the largest gap to the normal distribution",
    ),
    "all rows with one seed": (
        wrong(lambda r: laws.normal(drawn(np.tile(r.normal(size=100), 1000)), 0.0, 1.0)),
        "repeat those from",
    ),
    "one NaN": (
        wrong(lambda r: laws.normal(drawn(np.append(r.normal(size=100), np.nan)), 0.0, 1.0)),
        "1 of 101 elements are not finite, the first at [100]",
    ),
    "uniform over [0, 0.98)": (
        wrong(lambda r: laws.uniform(drawn(r.uniform(0, 0.98, MANY)), 0.0, 1.0)),
        "the largest gap to the uniform distribution",
    ),
    "uniform beyond its range": (
        wrong(lambda r: laws.uniform(drawn(r.uniform(0, 1.001, MANY)), 0.0, 1.0)),
        "outside of their range",
    ),
    "range one too high": (
        wrong(lambda r: laws.uniform_whole_numbers(whole(r.integers(0, 11, MANY)), 0, 10)),
        "are outside of 0 to 9",
    ),
    "range one too low": (
        wrong(lambda r: laws.uniform_whole_numbers(whole(r.integers(0, 9, MANY)), 0, 10)),
        "the share of 9 is 0",
    ),
    "the first never drawn, of a thousand": (
        wrong(lambda r: laws.uniform_whole_numbers(whole(r.integers(1, 1000, MANY)), 0, 1000)),
        "the share of 0 is 0",
    ),
    "no whole numbers": (
        wrong(lambda r: laws.uniform_whole_numbers(drawn(r.uniform(0, 9, 100)), 0, 10)),
        "are no whole numbers",
    ),
    "bernoulli p off by 0.02": (
        wrong(lambda r: laws.bernoulli(drawn(r.random(MANY) < 0.22), 0.2)),
        "the share of ones",
    ),
    "bernoulli with the complement of its probabilities": (
        wrong(lambda r: (lambda p: laws.bernoulli(drawn(r.random(MANY) > p), p))(r.random(MANY))),
        "the share of ones where the probability is",
    ),
    "exponential of twice the rate": (
        wrong(lambda r: laws.exponential(drawn(r.exponential(0.25, 1000)), 2.0)),
        "the mean over the expected one",
    ),
    "poisson rounded from a normal": (
        wrong(
            lambda r: laws.poisson(drawn(np.maximum(np.rint(r.normal(3, 3**0.5, MANY)), 0)), 3.0, r)
        ),
        "the largest gap to the Poisson distribution",
    ),
    "geometric that begins at 0": (
        wrong(lambda r: laws.geometric(drawn(r.geometric(0.3, 1000) - 1), 0.3, r)),
        "are no whole numbers of 1 or more",
    ),
    "weights off by 0.02": (wrong(lambda r: multinomial(r, MANY, 0.02)), "to the given weights"),
    "a permutation with one twice": (
        lambda: laws.permutation(np.array([3.0, 1.0, 1.0, 0.0])),
        "missing or there twice",
    ),
    "the identity": (
        lambda: laws.permutation(np.arange(100.0)),
        "the number of elements at their own place is 100",
    ),
    "attention that never drops": (
        wrong(lambda r: attention(r, 50, 0.2, 0.0, 1.0)),
        "the spread over the expected one is",
    ),
    "attention that does not scale": (
        wrong(lambda r: attention(r, 2000, 0.2, 0.2, 1.0)),
        "the size over that without dropout is 0.79",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(fault: str) -> None:
    tests, says = FAULTS[fault]
    check = judged(tests())
    assert check.verdict is Verdict.ERROR
    assert says in check.message
    assert "with a chance of at most 1e-06" in check.message


def test_the_message_of_a_pass_has_each_statistic_with_its_value_and_limits() -> None:
    check = judged(laws.normal(drawn(rng().normal(size=MANY)), 0.0, 1.0))
    assert check.verdict is Verdict.PASS
    assert check.metrics is None
    for part in ("random: none are not finite", "largest gap to the normal distribution is 0.00"):
        assert part in check.message
    assert "the variance over the expected one is 1.00" in check.message
    assert "limits 0.97" in check.message


def test_a_pass_that_cannot_be_repeated_has_no_values() -> None:
    tensor = held(rng().normal(size=100))
    tests = laws.normal(draws_of(tensor), 0.0, 1.0)
    check = check_random_output("X", tensor, tests, "pytorch", repeatable=False)
    assert not any(character.isdigit() for character in check.message)


def test_too_few_elements_pass_and_say_what_was_looked_at() -> None:
    x = held([1.0, 2.0, 3.0, 4.0])
    mask = mask_of(x, held([2.0, 0.0, 6.0, 0.0]), dropout(0.5))
    check = judged(dropout_tests(mask, dropout(0.5)))
    assert check.verdict is Verdict.PASS
    assert "all are 0 or x * 2; too few elements to judge the share" in check.message


@pytest.mark.parametrize(
    ("recorded", "says"),
    [
        (TensorSpec("float16", (4,)), "dtype float32 where the dump has float16"),
        (TensorSpec("float32", (2, 2)), "shape [4] where the dump has [2, 2]"),
    ],
)
def test_dtype_and_shape_are_those_of_the_dump(recorded: TensorSpec, says: str) -> None:
    check = check_random_output("X", held(np.zeros(4)), [], "pytorch", recorded=recorded)
    assert (check.verdict, says in check.message) == (Verdict.ERROR, True)


class TestIndependence:
    def test_a_block_that_is_seeded_like_another_is_found(self) -> None:
        values = rng().random(10_000)
        values[7000:7040] = values[123:163]
        finding = no_repeats(values)(1e-7)
        assert not finding.passed
        assert "from 7000 on repeat those from 123 on" in finding.text

    def test_neighbours_that_repeat_each_other_are_found(self) -> None:
        assert not neighbours(np.repeat(rng().random(500) < 0.5, 2))(1e-6).passed

    @pytest.mark.parametrize("count", [0, 1, 5])
    def test_too_few_elements_tell_nothing(self, count: int) -> None:
        tests = [no_repeats(np.ones(count)), neighbours(np.ones(count, bool))]
        assert [(f.passed, f.telling) for f in (test(1e-6) for test in tests)] == [
            (True, False)
        ] * 2


def test_a_random_output_without_an_element_is_no_pass() -> None:
    empty = HostTensor("float32", np.empty((0, 3), np.float32))
    row = check_random_output("Torch.rand.0.forward.output.0", empty, [], "pytorch")
    assert (row.verdict, row.message) == (
        Verdict.SKIP,
        "no element to compare: the output is empty",
    )
