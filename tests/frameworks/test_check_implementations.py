"""What implementations make of a call: a composition that rounds each step, moved benches, torch's kernel."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ray_precheck.accuracy.standards.base import kernel_of  # noqa: E402
from ray_precheck.bench.rounded import rounded_arithmetic  # noqa: E402
from ray_precheck.bench.rounded_steps import is_tiled, tiled  # noqa: E402
from ray_precheck.check.bench import Implementations, ImplementationsOfLeaf  # noqa: E402
from ray_precheck.frameworks.base import CallPlan  # noqa: E402
from ray_precheck.frameworks.pytorch.run import TorchExecution, TorchPlace  # noqa: E402
from ray_precheck.numerics.arrays import round_to_dtype  # noqa: E402
from ray_precheck.schema.values import HostCall, HostTensor  # noqa: E402

pytestmark = pytest.mark.frameworks

Function = Callable[..., Any]


def host(values: Any, dtype: str) -> HostTensor:
    return HostTensor(dtype, round_to_dtype(np.asarray(values, np.float64), dtype))


def drawn(*shape: int, dtype: str = "float32", seed: int = 0) -> HostTensor:
    return host(np.random.default_rng(seed).uniform(-2.0, 2.0, shape), dtype)


def forward_implementations(
    function: Function, *args: Any, dtype: str, shape: tuple[int, ...]
) -> ImplementationsOfLeaf:
    call = HostCall(args, {})
    implementations = Implementations(function, call, CallPlan(), lambda run, _: run.outputs)
    carrier = "float32" if dtype == "bfloat16" else dtype
    return implementations.of(0, HostTensor(dtype, np.zeros(shape, carrier)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torchs_own_kernel_in_the_recorded_dtype_stands_beside_the_implementations(
    dtype: str,
) -> None:
    left, right = drawn(16, 64, dtype=dtype), drawn(64, 8, dtype=dtype, seed=1)
    call = HostCall((left, right), {})
    expected = TorchExecution(torch.matmul, call, CallPlan(), TorchPlace()).outputs[0]
    implementations = forward_implementations(torch.matmul, left, right, dtype=dtype, shape=(16, 8))
    assert np.array_equal(kernel_of(implementations), expected.data)
    # Both round their sum once to 16 bits, which hides that they sum up in another order.
    same = [np.array_equal(implementation, expected.data) for implementation in implementations]
    assert same == [dtype != "float32"]


def test_a_kernel_that_is_tested_is_not_run() -> None:
    runs: list[Any] = []

    def counted(x: Any) -> Any:
        runs.append(x.dtype)
        return torch.exp(x)

    tested = host(np.zeros(4), "float32")
    call = HostCall((drawn(4),), {})
    implementations = Implementations(
        counted, call, CallPlan(), lambda run, _: run.outputs, kernel_is_tested=True
    )
    found = implementations.of(0, tested)
    assert kernel_of(found) is None
    assert (len(found), len(found.moved)) == (1, 4)
    assert set(runs) == {torch.float64}


def test_the_implementation_rounds_after_each_step_of_a_composed_softmax() -> None:
    x = drawn(8, 32, dtype="bfloat16")
    softmax = torch.nn.functional.softmax
    found = forward_implementations(softmax, x, -1, dtype="bfloat16", shape=(8, 32))[0]

    def rounded(value: Any) -> Any:
        return value.to(torch.bfloat16).to(torch.float64)

    wide = torch.tensor(x.data).double()
    powers = rounded(torch.exp(rounded(wide - wide.amax(-1, keepdim=True))))
    expected = rounded(powers / rounded(powers.sum(-1, keepdim=True)))
    assert np.array_equal(found, expected.numpy())
    once = rounded(torch.softmax(wide, -1)).numpy()
    assert not np.array_equal(found, once)


def test_nothing_is_run_before_it_is_read_and_nothing_twice() -> None:
    runs = []

    def counted(x: Any) -> Any:
        runs.append(x.dtype)
        return torch.exp(x)

    implementations = forward_implementations(counted, drawn(4), dtype="float32", shape=(4,))
    assert runs == []
    implementations[0], implementations[0]
    assert runs == [torch.float64]
    assert len(implementations) == 1
    assert next(iter(implementations)) is implementations[0]
    assert kernel_of(implementations) is not None
    assert kernel_of(implementations) is not None
    assert runs == [torch.float64, torch.float32]
    assert len(implementations.moved) == 4
    assert len(implementations.moved) == 4
    assert len(runs) == 6


def test_all_leaves_of_a_call_share_its_runs() -> None:
    runs = []

    def counted(x: Any) -> Any:
        runs.append(x.dtype)
        return torch.exp(x), torch.sin(x)

    implementations = Implementations(
        counted, HostCall((drawn(4),), {}), CallPlan(), lambda run, _: run.outputs
    )
    tested = host(np.zeros(4), "float32")
    first, second = implementations.of(0, tested)[0], implementations.of(1, tested)[0]
    assert len(runs) == 1
    assert kernel_of(implementations.of(0, tested)) is not None
    assert len(runs) == 2
    assert not np.array_equal(first, second)


def test_what_cannot_be_run_is_left_out() -> None:
    def only_wide(x: Any) -> Any:
        if x.dtype != torch.float64:
            raise RuntimeError("not implemented for this dtype")
        return torch.exp(x)

    def never(x: Any) -> Any:
        raise RuntimeError("not implemented")

    implementations = forward_implementations(only_wide, drawn(4), dtype="float16", shape=(4,))
    assert len(implementations) == 1
    assert kernel_of(implementations) is None
    assert len(forward_implementations(never, drawn(4), dtype="float16", shape=(4,))) == 0


def test_a_result_of_another_shape_is_no_implementation() -> None:
    assert len(forward_implementations(torch.exp, drawn(4), dtype="float32", shape=(5,))) == 0


def test_gradients_have_implementations_with_the_same_cotangents() -> None:
    x, cotangent = drawn(8, 32), drawn(8, 32, seed=1)
    implementations = Implementations(
        torch.tanh,
        HostCall((x,), {}),
        CallPlan(differentiable=(0,)),
        lambda run, incoming: run.gradients(incoming),
        (cotangent,),
    ).of(0, host(np.zeros((8, 32)), "float32"))
    bench = cotangent.data * (1 - np.tanh(x.data.astype(np.float64)) ** 2)
    assert len(implementations) == 1
    for implementation in (*implementations, kernel_of(implementations)):
        assert 0 < np.abs(implementation - bench).max() < 1e-6


def test_moved_benches_part_equal_numbers_both_ways() -> None:
    x = host(np.ones((64, 2)), "float16")
    moved = forward_implementations(torch.argmax, x, -1, dtype="int64", shape=(64,)).moved
    ahead, back, least_ahead, least_back = moved
    assert set(ahead.tolist()) == {0, 1}
    assert np.array_equal(ahead, 1 - back)
    assert np.array_equal(least_ahead, ahead)
    assert np.array_equal(least_back, back)


def test_a_half_type_that_is_widened_is_moved_by_units_of_the_wider_one() -> None:
    x = host(np.linspace(1.0, 1.99, 64), "float16")
    widened = forward_implementations(lambda t: t * 1.0, x, dtype="float32", shape=(64,)).moved[0]
    assert 0 < np.abs(widened - x.data).max() <= 0.5 * 2.0**-23
    kept = forward_implementations(lambda t: t * 1.0, x, dtype="float16", shape=(64,)).moved[0]
    assert 2.0**-13 < np.abs(kept - x.data).max() <= 0.5 * 2.0**-10


def test_moved_benches_are_the_same_again() -> None:
    x = drawn(16)
    first = [
        list(forward_implementations(torch.exp, x, dtype="float64", shape=(16,)).moved)
        for _ in "ab"
    ]
    assert np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0][0], first[0][1])


class TestRoundedArithmetic:
    def run(self, function: Function, *args: Any, dtype: str = "bfloat16") -> Any:
        with rounded_arithmetic(dtype):
            return function(*args)

    def test_a_single_step_is_exact_but_for_one_rounding(self) -> None:
        x = torch.rand(64, dtype=torch.float64)
        expected = torch.exp(x).to(torch.bfloat16).double()
        assert torch.equal(self.run(torch.exp, x), expected)

    def test_sums_are_made_in_float32_one_term_after_the_other(self) -> None:
        # 8 lanes: the first one sums 2**24, and each 1 after it is lost in float32
        terms = torch.ones(8 * 100, dtype=torch.float64)
        terms[0] = 2.0**24
        exact = float(terms.sum())
        total = float(self.run(torch.sum, terms, dtype="float32"))
        assert total == exact - 99
        assert float(self.run(torch.sum, terms, dtype="float64")) == exact
        for dim in ((), (0,)):
            mean = float(self.run(torch.mean, terms, *dim, dtype="float32"))
            assert mean == np.float32(total / 800)

    def test_sums_over_dimensions_have_the_shapes_of_torch(self) -> None:
        x = torch.rand(3, 5, 70, dtype=torch.float64)
        for dim in (0, 1, -1, (0, 2), (1, 2)):
            for keep in (False, True):
                for name in ("sum", "mean"):
                    function = getattr(torch, name)
                    found = self.run(lambda f=function: f(x, dim, keep), dtype="float32")  # noqa: B023
                    assert torch.allclose(found, function(x, dim, keep), rtol=1e-6)
                    assert found.shape == function(x, dim, keep).shape

    def test_views_and_changes_in_place_stay_what_they_are(self) -> None:
        def change(x: Any) -> Any:
            rows = x.view(2, 3)
            rows[0].add_(1 / 3)
            return x

        x = torch.zeros(6, dtype=torch.float64)
        found = self.run(change, x)
        assert found is x
        third = torch.tensor(1 / 3, dtype=torch.bfloat16).double()
        assert torch.equal(x, torch.cat([third.expand(3), torch.zeros(3).double()]))

    def test_complex_steps_round_both_parts(self) -> None:
        x = torch.rand(8, dtype=torch.complex128)
        expected = (x * x).to(torch.complex64).to(torch.complex128)
        assert torch.equal(self.run(torch.mul, x, x, dtype="complex64"), expected)

    def test_nothing_is_rounded_afterwards(self) -> None:
        self.run(torch.exp, torch.rand(4, dtype=torch.float64))
        third = torch.ones(1, dtype=torch.float64) / 3
        assert float(third) == 1 / 3


@pytest.mark.parametrize(("size", "padding"), [(3, 1), (3, 0), (5, 2)])
@pytest.mark.filterwarnings("ignore:TF32")
def test_an_implementation_of_a_convolution_computes_it_by_tiles(size: int, padding: int) -> None:
    x, weight = drawn(16, 3, 17, 11), drawn(4, 3, size, size, seed=1)

    def convolution(x: Any, weight: Any) -> Any:
        return torch.nn.functional.conv2d(x, weight, padding=padding)

    exact = convolution(*(torch.tensor(each.data).double() for each in (x, weight))).numpy()
    composed, tiled = forward_implementations(
        convolution, x, weight, dtype="float32", shape=exact.shape
    )  # fmt: skip
    errors = [
        np.sqrt(np.mean((implementation - exact) ** 2)) for implementation in (composed, tiled)
    ]
    assert 3 < errors[1] / errors[0] < 100
    with torch.backends.mkldnn.flags(enabled=False):  # then NNPACK, for filters of 3 by 3
        found = convolution(*(torch.tensor(each.data) for each in (x, weight))).double().numpy()
    if size == 3 and torch.backends.nnpack.is_available():
        assert 0.5 < np.sqrt(np.mean((found - exact) ** 2)) / errors[1] < 2


def test_gradients_of_a_convolution_by_tiles_are_its_gradients() -> None:
    convolution = torch.ops.aten.convolution_backward.default
    cases = ((3, 1, (16, 16), 1), (3, 2, (13, 9), 2), (5, 0, (8, 31), 6))
    for size, padding, extent, groups in cases:
        x = torch.randn(2, 6, *extent).double()
        weight = torch.randn(12, 6 // groups, size, size).double()
        found = torch.nn.functional.conv2d(x, weight, padding=padding, groups=groups)
        how = ([1, 1], [padding] * 2, [1, 1], False, [0, 0], groups)
        forward = (x, weight, None, *how)
        (one,) = (tiled(torch.ops.aten.convolution.default, forward, found),)
        assert torch.allclose(one, found, rtol=0, atol=1e-4 * float(found.abs().max()))
        args = (torch.randn_like(found), x, weight, [12], *how, [True] * 3)
        assert is_tiled(convolution, args)
        exact = convolution(*args)
        for one, other in zip(tiled(convolution, args, exact), exact, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-4 * float(other.abs().max()))
        assert not is_tiled(convolution, (*args[:4], [2, 2], *args[5:]))


def test_other_calls_have_no_implementation_by_tiles() -> None:
    left, right = drawn(16, 64), drawn(64, 8, seed=1)
    assert (
        len(forward_implementations(torch.matmul, left, right, dtype="float32", shape=(16, 8))) == 1
    )
