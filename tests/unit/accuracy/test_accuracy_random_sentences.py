"""What each test of random outputs says of honest and of faulty draws, word for word.

`expected_texts` says how numbers are compared, and how the sentences are written anew.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from draws import Rng, drawn, held, rng
from expected_texts import assert_expected
from test_accuracy_random import FAULTS, HONEST, with_parameters

from ray_precheck.accuracy.random import dropout as drops
from ray_precheck.accuracy.random import laws
from ray_precheck.accuracy.random.dropout import attention_tests
from ray_precheck.accuracy.random.statistics import StatisticalTest
from ray_precheck.schema.values import HostTensor

pytestmark = pytest.mark.unit


def attention(
    generator: Rng, *, groups: int, p: float, scale: float | None
) -> list[StatisticalTest]:
    """Attention with a mask, with fewer heads of keys than of queries."""
    query = generator.normal(size=(2, 4, 6, 8))
    key, value = (generator.normal(size=(2, 4 // groups, 5, 8)) for _ in range(2))
    bias = np.where(generator.random((6, 5)) < 0.2, -np.inf, 0.0)
    out = generator.normal(size=query.shape)
    return attention_tests(query, key, value, out, bias, p, scale, 2.0**-8)


def dropping_tests(
    generator: Rng, rule: drops.Dropping, dtype: str, off: float
) -> list[StatisticalTest]:
    """Statistical tests of dropout with a few wrong elements, and at its gradient."""
    data = generator.normal(size=(20, 30, 4))
    data[0, 0], data[1] = (0.0, np.inf, np.nan, 1e-300), 0.0
    x = held(data, dtype)
    places = data.shape if rule.unit_dims is None else (20, 30, 1)
    kept = generator.random(places) >= rule.probability + off
    whole = x.data.astype(np.float64) * rule.scale + rule.shift
    values = np.where(kept, whole, rule.dropped)
    values[2, 3, :2] += off
    out = held(values, dtype)
    mask = drops.mask_of(x, out, rule)
    arrived = held(generator.normal(size=data.shape), dtype)
    grad = held(np.where(kept, arrived.data.astype(np.float64) * rule.scale, 0.0) + off / 9, dtype)
    recorded = HostTensor("bool", np.broadcast_to(kept, data.shape) ^ (np.abs(data) > 3 - off))
    return [
        *drops.dropout_tests(mask, rule),
        *drops.dropout_gradient_tests(mask, rule, arrived, grad),
        *drops.dropout_gradient_tests(mask, rule, None, grad),
        *drops.recorded_mask_tests(mask, recorded),
    ]


def slope_tests(generator: Rng, dtype: str, off: float) -> list[StatisticalTest]:
    """Statistical tests of rrelu with slopes that reach beyond their range, and at its gradient."""
    x = held(generator.normal(size=3000), dtype)
    wide = x.data.astype(np.float64)
    slopes = np.where(wide < 0, generator.uniform(0.1, 0.3 + off, 3000), 1.0 + off / 1e3)
    out, arrived = held(wide * slopes, dtype), held(generator.normal(size=3000), dtype)
    grad = held(arrived.data.astype(np.float64) * slopes * (1 + off / 1e3), dtype)
    return [
        *drops.rrelu_tests(x, out, 0.1, 0.3),
        *drops.rrelu_gradient_tests(x, out, arrived, grad),
        *drops.rrelu_gradient_tests(x, out, None, grad),
    ]


def observed(name: str, tests: list[StatisticalTest]) -> Iterator[str]:
    for chance in (1e-6, 0.3):
        for number, test in enumerate(tests):
            seen = test(chance)
            said = "passed" if seen.passed else "FAILED"
            yield f"{name} | {chance} | {number} | {said} | {seen.telling} | {seen.text}"


def everything() -> Iterator[str]:
    for name, draw in HONEST.items():
        for count in (1, 3, 300):
            yield from observed(f"{name} of {count}", draw(rng(3), count))
    for name, (tests, _) in FAULTS.items():
        yield from observed(name, tests())
    for rate in (3.0, 200.0, 400.0):  # in bfloat16 steps are 1 from 128 on, 2 from 256 on
        coarse = drawn(rng(8).poisson(rate, 900), "bfloat16")
        yield from observed(f"poisson {rate}", laws.poisson(coarse, rate, rng(9)))
    for number, tests in enumerate(with_parameters(rng(4))):
        yield from observed(f"parameters {number}", tests)
    for groups, p, scale in ((1, 0.1, None), (2, 0.5, 0.3), (4, 0.9, None), (1, 1.0, None)):
        yield from observed(
            f"attention {groups} {p}", attention(rng(5), groups=groups, p=p, scale=scale)
        )
    rules = (
        drops.dropout(0.4),
        drops.alpha_dropout(0.3),
        drops.dropout(0.4, 2),
        drops.alpha_dropout(0.3, 2),
        drops.dropout(1.0),
    )
    for number, rule in enumerate(rules):
        for dtype in ("float32", "bfloat16"):
            for off in (0.0, 0.2):
                name = f"{number} {dtype} {off}"
                tests = dropping_tests(rng(6), rule, dtype, off)
                yield from observed(f"dropping {name}", tests)
                if not number:
                    yield from observed(f"slopes {name}", slope_tests(rng(7), dtype, off))


def test_looks_say_what_is_expected() -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        found = list(everything())
    assert_expected(found, "random_tests.txt", tolerance=1e-5)
