"""The bench: float64, from the device's own inputs, and the same whatever ran before."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from records import call, dtypes, ms_tensor, payloads_of, replace_kernel, tensor, timeless
from versions import require_kernel

from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = pytest.mark.frameworks

WIDE = {"float32": "float64", "float16": "float64", "bfloat16": "float64", "int64": "int64"}
WIDE["complex64"] = "complex128"
INTEGERS = {"dtype": "int64", "low": 0, "high": 1000}


def _bits(value: Any) -> Any:
    """Return the values of a framework's tensor in float64, where every narrower one is exact."""
    if hasattr(value, "asnumpy"):
        wide = value.float() if "BFloat16" in str(value.dtype) else value
        return np.asarray(wide.asnumpy(), np.float64)
    return value.detach().double().numpy()


def _arguments_of_both(
    checker: Checker, payload: TaskPayload, monkeypatch: pytest.MonkeyPatch
) -> tuple[TaskResult, list[list[Any]]]:
    """Return the result, and the positional arguments that the device and the bench were given."""
    seen: list[list[Any]] = []

    def change(function: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            seen.append([_bits(value) for value in args])
            return function(*args, **kwargs)

        return kernel

    replace_kernel(monkeypatch, checker.device(), change)
    replace_kernel(monkeypatch, checker.bench, change)
    return checker.check(payload), seen


@pytest.mark.parametrize("dtype", WIDE)
def test_the_bench_of_torch_is_in_float64_and_integers_stay(
    torch_checker: Checker, dtype: str
) -> None:
    options: dict[str, Any] = INTEGERS if dtype == "int64" else {"dtype": dtype}
    result = torch_checker.check(call("Torch.mul", tensor(9, **options), tensor(9, **options)))
    assert result.forward is Verdict.PASS
    assert dtypes(result) == [(f"torch.{WIDE[dtype]}", f"torch.{dtype}")]


@pytest.mark.parametrize(
    ("dtype", "bench"),
    [
        ("Float32", "Float64"),
        ("Float16", "Float64"),
        ("BFloat16", "Float64"),
        ("Int64", "Int64"),
        ("Int32", "Int32"),
        ("Complex64", "Complex128"),
    ],
)
def test_the_bench_of_mindspore_is_in_float64_and_integers_stay(
    mindspore_checker: Checker, dtype: str, bench: str
) -> None:
    span = {"low": 0, "high": 1000} if dtype.startswith("Int") else {}
    numbers = [ms_tensor(9, dtype=dtype, **span), ms_tensor(9, dtype=dtype, **span)]
    result = mindspore_checker.check(call("Functional.mul", *numbers))
    require_kernel(result)
    assert result.forward is Verdict.PASS
    assert dtypes(result) == [(bench, dtype)]


def test_the_bench_computes_in_float64_and_does_not_only_say_so(
    torch_checker: Checker, mindspore_checker: Checker
) -> None:
    """A bench in float32 would be torch's own kernel a second time, without any error."""
    matrix, ms_matrix = tensor(64, 64), ms_tensor(64, 64)
    results = [
        torch_checker.check(call("Torch.matmul", matrix, matrix)),
        mindspore_checker.check(call("Mint.matmul", ms_matrix, ms_matrix)),
    ]
    for result in results:
        metrics = result.checks[0].metrics
        assert metrics is not None
        assert 0 < metrics.max_abs_err < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_device_and_bench_of_torch_get_the_same_values(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    payload = call("Torch.mul", tensor(64, dtype=dtype), tensor(64, dtype=dtype))
    result, seen = _arguments_of_both(torch_checker, payload, monkeypatch)
    assert result.forward is Verdict.PASS
    _assert_same_and_various(seen)


@pytest.mark.parametrize("dtype", ["Float32", "Float16", "BFloat16"])
def test_device_and_bench_of_mindspore_get_the_same_values(
    mindspore_checker: Checker, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    payload = call("Mint.mul", ms_tensor(64, dtype=dtype), ms_tensor(64, dtype=dtype))
    result, seen = _arguments_of_both(mindspore_checker, payload, monkeypatch)
    require_kernel(result)
    assert result.forward is Verdict.PASS
    _assert_same_and_various(seen)


def _assert_same_and_various(seen: list[list[Any]]) -> None:
    assert len(seen) == 2
    device_args, bench_args = seen
    for device_arg, bench_arg in zip(device_args, bench_args, strict=True):
        np.testing.assert_array_equal(device_arg, bench_arg)
        assert len(np.unique(device_arg)) > 32
    # No two arguments are copies of each other, nor multiples.
    ratio = device_args[0] / device_args[1]
    assert len(np.unique(ratio)) > 32


@pytest.mark.parametrize("capture", ["mindspore_llm", "torch_llm"])
def test_results_do_not_depend_on_the_order_of_the_calls(
    mindspore_checker: Checker, torch_checker: Checker, capture: str
) -> None:
    checker = torch_checker if capture.startswith("torch") else mindspore_checker
    payloads = payloads_of(capture)
    runs = []
    for seed in (1, 2):
        random.Random(seed).shuffle(payloads)
        runs.append({payload.name: timeless(checker.check(payload)) for payload in payloads})
    assert len(runs[0]) == len(payloads)
    assert [name for name in runs[0] if runs[0][name] != runs[1][name]] == []


@pytest.mark.parametrize(
    # Sizes that no other test uses: MindSpore tries out its threads at first for each of them.
    ("shape", "low"),
    [((4, 67), -110.0), ((33, 13), -110.0), ((5, 61), -110.0), ((4, 59), -10000.0)],
)
def test_a_softmax_with_denormal_results_is_the_same_each_time(
    mindspore_checker: Checker, shape: tuple[int, int], low: float
) -> None:
    """MindSpore flushes denormals in some of its threads, and chooses the thread by history."""
    inputs = ms_tensor(*shape, low=low, high=0.1)
    payload = call("MintFunctional.softmax", inputs, -1, grads=[ms_tensor(*shape)])
    results = {timeless(mindspore_checker.check(payload)) for _ in range(30)}
    assert len(results) == 1


def test_the_calling_thread_keeps_denormals_after_a_check(mindspore_checker: Checker) -> None:
    # MindSpore's norm of a matrix leaves the thread flushing when it is called by itself.
    norm = mindspore_checker.check(call("Tensor.norm", ms_tensor(4, 4), 2))
    assert norm.forward is Verdict.PASS, norm.message
    assert np.float32(1e-38) * np.float32(0.5) > 0
    mindspore_checker.check(call("Mint.add", ms_tensor(3), ms_tensor(3), grads=[ms_tensor(3)]))
    assert np.float32(1e-38) * np.float32(0.5) > 0


def test_inputs_of_two_calls_of_one_api_differ(torch_checker: Checker) -> None:
    first = call("Torch.exp", tensor(9))
    second = TaskPayload(1, "Torch.exp.1", first.forward, None)
    worst = []
    for payload in (first, second):
        metrics = torch_checker.check(payload).checks[0].metrics
        assert metrics is not None
        worst.append(metrics.bench_at_worst)
    assert worst[0] != worst[1]
