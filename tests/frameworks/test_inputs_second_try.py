"""Where generated inputs make both sides raise, safer ones are tried before the call is a SKIP."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records import altered, call, raising, replace_kernel, statistics_checker, tensor

from ray_precheck.check.attempt import Measured
from ray_precheck.check.checker import Checker
from ray_precheck.check.options import CheckOptions
from ray_precheck.check.settings import CheckSettings
from ray_precheck.runtime.workers.messages import Sealed, seal
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import BENCH, TaskPayload

pytestmark = pytest.mark.frameworks

# An API without a role in the table: its matrix must be invertible, which zeros are not.
PAYLOAD = call(
    "Torch.linalg.tensorinv",
    tensor(4, 4, low=0.0, high=0.0, grad=True),
    1,
    grads=[tensor(4, 4)],
)
NOTE = "checked with safer inputs (floats from 0.5 to 1.5, whole numbers from 0 to 3)"


@pytest.fixture(scope="module")
def bench() -> Checker:
    """Return a checker without a device."""
    return Checker(CheckSettings("pytorch", "statistics", Path()), BENCH)


def timeless(result: TaskResult) -> TaskResult:
    return replace(result, inputs_s=0.0, device_s=0.0, bench_s=0.0)


def test_safer_inputs_are_judged_and_the_message_says_so(torch_checker: Checker) -> None:
    result = torch_checker.check(PAYLOAD)
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.PASS)
    assert result.message.startswith(NOTE)
    assert "device and bench raised; device: _LinAlgError" in result.message


def test_both_halves_use_the_safer_inputs(torch_checker: Checker, bench: Checker) -> None:
    measured = torch_checker.measure(PAYLOAD)
    assert isinstance(measured, Measured)
    sealed = seal(measured)
    halves = bench.check(PAYLOAD, measured=Sealed(sealed.data, sealed.buffers).open())
    assert timeless(halves) == timeless(torch_checker.check(PAYLOAD))
    assert halves.forward is Verdict.PASS


def test_a_call_that_raises_with_safer_inputs_too_is_a_skip_that_says_so(
    torch_checker: Checker, bench: Checker
) -> None:
    payload = call("Torch.add", tensor(3), tensor(4))
    result = torch_checker.check(payload)
    assert result.forward is Verdict.SKIP
    assert "device and bench raised; device: RuntimeError" in result.message
    assert "(also with safer inputs)" in result.message
    measured = torch_checker.measure(payload)
    assert isinstance(measured, Measured)
    assert timeless(bench.check(payload, measured=measured)) == timeless(result)


def test_a_device_that_raises_alone_is_an_error_without_a_second_try(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(torch_checker, monkeypatch, raising(RuntimeError("no")))
    result = torch_checker.check(call("Torch.neg", tensor(3)))
    assert result.forward is Verdict.ERROR
    assert "safer" not in result.message
    assert len(calls) == 1


def test_a_device_that_raises_with_safer_inputs_where_the_bench_does_not_is_an_error(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_kernel(monkeypatch, torch_checker.device(), raising(RuntimeError("no")))
    result = torch_checker.check(PAYLOAD)
    assert result.forward is Verdict.ERROR
    assert "the device raised where the bench is fine" in result.message
    assert NOTE in result.message


def test_a_wrong_result_of_safer_inputs_is_an_error(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_kernel(monkeypatch, torch_checker.device(), altered(lambda out: out * 1.5))
    assert torch_checker.check(PAYLOAD).forward is Verdict.ERROR


def test_the_uniform_distribution_has_no_second_try() -> None:
    result = statistics_checker("pytorch", options=CheckOptions(distribution="uniform")).check(
        PAYLOAD
    )
    assert result.forward is Verdict.SKIP
    assert "safer" not in result.message


def test_a_second_try_gives_the_same_row_again(torch_checker: Checker) -> None:
    assert timeless(torch_checker.check(PAYLOAD)) == timeless(torch_checker.check(PAYLOAD))


def test_saved_tensors_are_not_replaced(torch_checker: Checker) -> None:
    class Zeros:
        def tensor(self, spec: Any, path: str) -> Any:
            from ray_precheck.schema.values import HostTensor

            return HostTensor(spec.dtype, np.zeros(spec.shape, np.float32))

    result = torch_checker.check(PAYLOAD, Zeros())
    assert result.forward is Verdict.SKIP
    assert "safer" not in result.message


def counted(
    checker: Checker,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> list[int]:
    """Change the device's kernels and return a list that grows with each of their calls."""
    calls: list[int] = []

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        changed = change(function)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return changed(*args, **kwargs)

        return kernel

    replace_kernel(monkeypatch, checker.device(), counting)
    return calls


def test_safer_inputs_of_a_payload_are_as_described(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[torch.Tensor]] = []

    def refusing(function: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            seen.append([arg.detach() for arg in args if isinstance(arg, torch.Tensor)])
            raise ValueError("not yet")

        return kernel

    for side in (torch_checker.device(), torch_checker.bench):
        replace_kernel(monkeypatch, side, refusing)
    payload: TaskPayload = call(
        "Torch.where", tensor(3, 4, dtype="bool"), tensor(3, 4), tensor(4, dtype="int64", high=90)
    )
    assert torch_checker.check(payload).forward is Verdict.SKIP
    _, floats, whole = seen[-1]
    assert 0.5 <= floats.min() <= floats.max() <= 1.5
    assert 0 <= whole.min() <= whole.max() <= 2
