"""Gradients of MindSpore where `mindspore.vjp` runs a function twice, as before 2.10."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from records import call, ms_tensor

from ray_precheck import private_parts
from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.frameworks
ms = pytest.importorskip("mindspore")
WIDE = ms_tensor(64, 200)
DROPOUT = call("Functional.dropout", WIDE, 0.1, grads=[WIDE])
PASS, SKIP = Verdict.PASS, Verdict.SKIP


@pytest.fixture(autouse=True)
def _old_vjp(monkeypatch: pytest.MonkeyPatch, mindspore_checker: Checker) -> Iterator[None]:
    """`mindspore.vjp` as in 2.7: a run for the outputs, another one for the gradients."""
    from ray_precheck.frameworks.mindspore import run

    def twice(function: Callable[..., Any], *inputs: Any) -> tuple[Any, Callable[..., Any]]:
        grad = ms.ops.GradOperation(get_all=True, sens_param=True)
        return function(*inputs), lambda cotangents: grad(function)(*inputs, cotangents)

    mindspore_checker.device()
    monkeypatch.setattr(ms, "vjp", twice)
    run._runs_once.cache_clear()
    yield
    run._runs_once.cache_clear()


def test_a_function_runs_once_for_its_outputs_and_its_gradients() -> None:
    from ray_precheck.frameworks.mindspore.run import vjp

    runs = []

    def both(a: Any, b: Any) -> Any:
        runs.append(None)
        return a * b, a + b

    def of(value: float) -> Any:
        return ms.Tensor(np.full(3, value, np.float32))

    outputs, pull_back = vjp(both, of(2.0), of(5.0))
    grads = pull_back((of(1.0), of(10.0)))
    assert len(runs) == 1
    assert [each.asnumpy()[0] for each in (*outputs, *grads)] == [10.0, 7.0, 15.0, 12.0]


def test_gradients_of_random_functions_are_those_of_their_outputs(
    mindspore_checker: Checker,
) -> None:
    result = mindspore_checker.check(DROPOUT)
    assert (result.forward, result.backward) == (PASS, PASS), result.message


def test_outputs_whose_gradients_nobody_asks_for_disturb_no_later_call(
    mindspore_checker: Checker,
) -> None:
    from ray_precheck.frameworks.mindspore.run import vjp

    vjp(lambda x: (x * x,), ms.Tensor(np.ones(3, np.float32)))
    fails = call("Functional.matmul", ms_tensor(3, 4), ms_tensor(3, 4), grads=[ms_tensor(3, 4)])
    assert mindspore_checker.check(fails).forward is not PASS
    for payload in (DROPOUT, call("Functional.sin", WIDE, grads=[WIDE])):
        result = mindspore_checker.check(payload)
        assert (result.forward, result.backward) == (PASS, PASS), result.message


def test_without_the_executor_gradients_of_other_random_numbers_are_not_judged(
    mindspore_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_parts, "find", lambda part: None)
    result = mindspore_checker.check(DROPOUT)
    assert (result.forward, result.backward) == (PASS, SKIP)
    assert (
        "runs a function anew for its gradients, and it gave other outputs then" in result.message
    )
    result = mindspore_checker.check(call("Functional.sin", WIDE, grads=[WIDE]))
    assert (result.forward, result.backward) == (PASS, PASS), result.message
