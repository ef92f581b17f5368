"""The least errors of float32 products are no larger than those of the implementation that they spare."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ray_precheck.accuracy.metrics import metrics_of, rounded_bench  # noqa: E402
from ray_precheck.accuracy.standards.auto import Auto  # noqa: E402
from ray_precheck.accuracy.standards.base import Comparison  # noqa: E402
from ray_precheck.accuracy.standards.honest import distance  # noqa: E402
from ray_precheck.bench.least_errors import errors_by_norms  # noqa: E402
from ray_precheck.check.bench import COMPOSED, Implementations  # noqa: E402
from ray_precheck.frameworks.base import CallPlan  # noqa: E402
from ray_precheck.schema.dtypes import Array  # noqa: E402
from ray_precheck.schema.result import Verdict  # noqa: E402
from ray_precheck.schema.values import HostCall, HostTensor  # noqa: E402

pytestmark = pytest.mark.frameworks


def drawn(rows: int, columns: int, kind: str, seed: int) -> Array:
    draw = np.random.default_rng(seed)
    values = draw.standard_normal((rows, columns))
    if kind == "of one sign":
        values = np.abs(values)
    if kind == "of unequal rows":
        values *= 10.0 ** draw.uniform(-6, 0, (rows, 1))
    if kind == "of unequal columns":
        values *= 10.0 ** draw.uniform(-6, 0, columns)
    if kind == "mostly zeros":
        values *= draw.random((rows, columns)) < 0.02
    if kind == "one row":
        values[1:] *= 1e-20
    if kind == "tails":
        values = draw.standard_t(1.5, (rows, columns))
    if kind == "ones":
        values = np.ones((rows, columns))
    return values.astype(np.float32)


KINDS = (
    "normal", "of one sign", "of unequal rows", "of unequal columns", "mostly zeros", "one row",
    "tails", "ones",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
@pytest.mark.parametrize("terms", [64, 300])
def test_the_bounds_are_below_the_errors_of_the_composed_implementation(
    kind: str, other: str, terms: int
) -> None:
    left, right = drawn(128, terms, kind, 1), drawn(160, terms, other, 2)
    call = HostCall((HostTensor("float32", left), HostTensor("float32", right)), {})
    bench = left.astype(np.float64) @ right.astype(np.float64).T
    ways = Implementations(
        torch.nn.functional.linear, call, CallPlan(), lambda run, _: run.outputs
    ).of(0, HostTensor("float32", bench.astype(np.float32)))
    least = ways.least_errors(bench)
    found = distance(ways[0], bench, "float32")
    assert least is not None
    assert least[0] <= found.rmse
    assert least[1] <= found.largest
    if kind == other == "normal":
        assert found.rmse <= 1.6 * least[0]
        assert found.largest <= 3.0 * least[1]


def test_the_bounds_of_a_product_with_a_bias_are_those_of_the_product() -> None:
    left, right = drawn(128, 300, "normal", 1), drawn(160, 300, "normal", 2)
    bias = drawn(1, 160, "normal", 3)[0]
    call = HostCall(tuple(HostTensor("float32", each) for each in (left, right, bias)), {})
    product = left.astype(np.float64) @ right.astype(np.float64).T
    ways = Implementations(
        torch.nn.functional.linear, call, CallPlan(), lambda run, _: run.outputs
    ).of(0, HostTensor("float32", product.astype(np.float32)))
    least = ways.least_errors(product + bias)
    found = distance(ways[0], product + bias, "float32")
    assert least == pytest.approx(errors_by_norms([left, right], product), rel=1e-9)
    assert least is not None
    assert least[0] <= found.rmse
    assert least[1] <= found.largest


@pytest.mark.parametrize("shape", [(128, 160), (4, 32, 160)])
def test_gradients_of_a_product_are_products_of_the_given_tensors(shape: tuple[int, ...]) -> None:
    x, grad = drawn(128, 192, "normal", 1), drawn(128, 160, "normal", 2)
    weight = drawn(160, 192, "normal", 3)
    given = x.reshape(*shape[:-1], 192), weight, grad.reshape(shape)
    wide = [each.astype(np.float64) for each in (x, weight, grad)]
    assert errors_by_norms(given, (wide[0] @ wide[1].T).reshape(shape)) is not None
    assert errors_by_norms(given, (wide[2] @ wide[1]).reshape(*shape[:-1], 192)) is not None
    assert errors_by_norms(given, wide[2].T @ wide[0]) is not None


def test_stacks_of_products_have_the_bounds_of_their_matrices() -> None:
    left = np.stack([drawn(96, 80, kind, 1) for kind in ("normal", "of unequal rows", "tails")])
    right = np.stack([drawn(112, 80, "normal", seed) for seed in (4, 5, 6)])
    call = HostCall((HostTensor("float32", left), HostTensor("float32", right)), {})
    bench = left.astype(np.float64) @ right.astype(np.float64).swapaxes(1, 2)
    ways = Implementations(
        lambda x, y: x @ y.transpose(1, 2), call, CallPlan(), lambda run, _: run.outputs
    ).of(0, HostTensor("float32", bench.astype(np.float32)))
    least = ways.least_errors(bench)
    found = distance(ways[0], bench, "float32")
    assert least is not None
    assert found.rmse / 1.6 <= least[0] <= found.rmse
    assert least[1] <= found.largest
    assert errors_by_norms([left, right[:1]], bench) is None


def test_what_is_no_product_of_the_given_tensors_has_no_bounds() -> None:
    left, right = drawn(128, 192, "normal", 1), drawn(192, 160, "normal", 2)
    bench = left.astype(np.float64) @ right.astype(np.float64)
    assert errors_by_norms([left, right], bench) is not None
    assert errors_by_norms([left, right], bench * (1 + 1e-9)) is None
    assert errors_by_norms([left, right], bench.astype(np.float32).astype(np.float64)) is None
    assert errors_by_norms([left], bench) is None
    assert errors_by_norms([left, right], bench[:64, :64]) is None
    other = bench.copy()
    other[7, 7] = np.nan
    assert errors_by_norms([left, right], other) is None


def comparison(tested: Array, bench: Array, ways: Any) -> Comparison:
    metrics = metrics_of(tested, rounded_bench(bench, "float32"), 2.0**-126)
    return Comparison(
        "Functional.linear", "forward", "float32", tested, bench, metrics, lambda: ways
    )


def test_a_product_that_is_clearly_right_needs_no_other_implementation() -> None:
    left, right = drawn(128, 512, "normal", 1), drawn(160, 512, "normal", 2)
    call = HostCall((HostTensor("float32", left), HostTensor("float32", right)), {})
    bench = left.astype(np.float64) @ right.astype(np.float64).T
    tested = np.zeros((128, 160), np.float32)
    for at in range(512):
        tested += left[:, at, None] * right[:, at]
    implementations = Implementations(
        torch.nn.functional.linear, call, CallPlan(), lambda run, _: run.outputs
    )
    ways = implementations.of(0, HostTensor("float32", tested))
    found = Auto().judge(comparison(tested, bench, ways))
    assert found.verdict is Verdict.PASS
    assert not implementations._runs
    assert dict(found.columns)["HonestBy"] == "operand norms"
    assert float(dict(found.columns)["HonestRMSE"]) <= distance(ways[0], bench, "float32").rmse
    implementations._runs.clear()
    tested[3, 5] += 0.05 * np.sqrt(np.mean(bench**2))
    ways = implementations.of(0, HostTensor("float32", tested))
    assert Auto().judge(comparison(tested, bench, ways)).verdict is Verdict.ERROR
    assert any(way == COMPOSED for way, _ in implementations._runs)
