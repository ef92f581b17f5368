"""A kernel that is wrong is found, and the message says where."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from records import altered, call, ms_tensor, replace_kernel, rows, tensor
from versions import require_kernel

from ray_precheck.accuracy.standards.base import ROUNDING
from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import Outcome, TaskResult, Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = pytest.mark.frameworks

Edit = Callable[[Any], Any]


def _at(value: Any, index: tuple[int, ...], change: Callable[[Any], Any]) -> Any:
    """Return a copy of a torch or MindSpore tensor with one element changed."""
    if torch.is_tensor(value):
        copy = value.clone()
        copy[index] = change(copy[index])
        return copy
    import mindspore as ms

    data = value.asnumpy().copy()
    data[index] = change(data[index])
    return ms.Tensor(data)


def _negated_gradient(value: Any) -> Any:
    if torch.is_tensor(value):
        return 2 * value.detach() - value
    import mindspore as ms

    return 2 * ms.ops.stop_gradient(value) - value


def _first(edit: Edit) -> Edit:
    return lambda outputs: (edit(outputs[0]), *outputs[1:])


def _second(edit: Edit) -> Edit:
    return lambda outputs: (outputs[0], edit(outputs[1]), *outputs[2:])


TORCH = {
    "mul": call("Torch.mul", tensor(3, 4), tensor(3, 4)),
    "split": call("Torch.split", tensor(6, 4), 2),
    "max": call("Torch.max", tensor(3, 4), 1),
    "argmax": call("Torch.argmax", tensor(3, 4), 1),
    "ge": call("Torch.ge", tensor(3, 4), 0.0),
    "int": call("Torch.mul", *[tensor(3, 4, dtype="int64", low=0, high=9)] * 2),
    "dim": call("Tensor.dim", tensor(3, 4)),
}
MINDSPORE = {
    "mul": call("Mint.mul", ms_tensor(3, 4), ms_tensor(3, 4)),
    "split": call("Mint.split", ms_tensor(6, 4), 2),
    "max": call("Mint.max", ms_tensor(3, 4), 1),
    "argmax": call("Tensor.argmax", ms_tensor(3, 4), 1),
    "ge": call("Mint.greater_equal", ms_tensor(3, 4), 0.0),
    "int": call("Mint.mul", *[ms_tensor(3, 4, dtype="Int64", low=0, high=9)] * 2),
    "dim": call("Tensor.dim", ms_tensor(3, 4)),
}
FRAMEWORKS = {"pytorch": TORCH, "mindspore": MINDSPORE}

# call, what its result becomes, and what the message must say ("..." stands for anything)
EDITS: dict[str, tuple[str, Edit, str]] = {
    "one element": (
        "mul",
        lambda out: _at(out, (1, 2), lambda x: x + 0.01),
        "forward.output.0: ... at index [1, 2] is not below 0.0001",
    ),
    "one element, by little more than the limit": (
        "mul",
        lambda out: _at(out, (2, 3), lambda x: x + 1.1e-4),
        "at index [2, 3] is not below 0.0001",
    ),
    "the sign": ("mul", lambda out: -out, "forward.output.0: cosine -1 is not above 0.99"),
    "the size": ("mul", lambda out: out * 1.01, "MaxAbsErr"),
    "a NaN": (
        "mul",
        lambda out: _at(out, (1, 2), lambda x: x * float("nan")),
        "forward.output.0: at index [1, 2] it is nan where the bench has ",
    ),
    "an infinity": (
        "mul",
        lambda out: _at(out, (0, 0), lambda x: -abs(x) / 0.0 if torch.is_tensor(x) else -np.inf),
        "forward.output.0: at index [0, 0] it is -inf where the bench has ",
    ),
    "the shape": (
        "mul",
        lambda out: out.reshape((1, 3, 4)),
        "forward.output.0: shape [1, 3, 4] where the bench has [3, 4]",
    ),
    "a transposed shape": (
        "mul",
        lambda out: out.reshape((4, 3)),
        "forward.output.0: shape [4, 3] where the bench has [3, 4]",
    ),
    "fewer outputs": ("split", lambda outs: outs[:2], "2 outputs where the bench has 3"),
    "more outputs": ("split", lambda outs: (*outs, outs[0]), "4 outputs where the bench has 3"),
    "outputs in another order": (
        "split",
        lambda outs: outs[::-1],
        "forward.output.0: cosine",
    ),
    "the second output": (
        "split",
        _second(lambda out: _at(out, (1, 3), lambda x: x + 0.5)),
        "forward.output.1: ... at index [1, 3] is not below 0.0001",
    ),
    "an index beside values": (
        "max",
        _second(lambda out: _at(out, (2,), lambda x: x + 1)),
        "forward.output.1: ... at index [2] is not below 0.0001",
    ),
    "a value beside indices": (
        "max",
        _first(lambda out: _at(out, (1,), lambda x: x + 1)),
        "forward.output.0: ... at index [1] is not below 0.0001",
    ),
    "an index": (
        "argmax",
        lambda out: _at(out, (1,), lambda x: x + 1),
        "forward.output.0: ... at index [1] is not below 0.0001",
    ),
    "a truth value": (
        "ge",
        lambda out: _at(out, (2, 1), lambda x: ~x),
        "forward.output.0: ... at index [2, 1] is not below 0.0001",
    ),
    "an integer": (
        "int",
        lambda out: _at(out, (0, 3), lambda x: x - 2),
        "forward.output.0: ... at index [0, 3] is not below 0.0001",
    ),
    "a number": ("dim", lambda out: out + 1, "forward.output.0: 3 where the bench has 2"),
    "the type of a number": ("dim", float, "forward.output.0: 2.0 where the bench has 2"),
}


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def checker(framework: str, torch_checker: Checker, mindspore_checker: Checker) -> Checker:
    return {"pytorch": torch_checker, "mindspore": mindspore_checker}[framework]


def _check_altered(
    checker: Checker, payload: TaskPayload, edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> TaskResult:
    right = checker.check(payload)
    if payload.name.startswith("Mint."):
        require_kernel(right)
    assert right.forward is Verdict.PASS
    replace_kernel(monkeypatch, checker.device(), altered(edit))
    return checker.check(payload)


@pytest.mark.parametrize("wrong", EDITS)
def test_a_wrong_output_is_an_error_that_names_the_place(
    checker: Checker, framework: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, edit, part = EDITS[wrong]
    result = _check_altered(checker, FRAMEWORKS[framework][name], edit, monkeypatch)
    assert (result.forward, result.outcome) == (Verdict.ERROR, Outcome.COMPLETED)
    pattern = ".*".join(re.escape(piece) for piece in part.split("..."))
    assert re.search(pattern, result.message), result.message
    assert [check.verdict for check in result.checks].count(Verdict.ERROR) <= 2
    assert ROUNDING not in result.message


GRADIENTS = {
    "pytorch": call(
        "Torch.mul", tensor(3, 4, grad=True), tensor(3, 4, grad=True), grads=[tensor(3, 4)]
    ),
    "mindspore": call("Mint.mul", ms_tensor(3, 4), ms_tensor(3, 4), grads=[ms_tensor(3, 4)]),
}


def test_a_gradient_of_the_wrong_sign_is_an_error_of_backward_alone(
    checker: Checker, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = GRADIENTS[framework]
    result = _check_altered(checker, payload, _negated_gradient, monkeypatch)
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.ERROR)
    for position, check in enumerate(rows(result, "backward")):
        assert check.verdict is Verdict.ERROR
        assert f"backward.output.{position}: cosine -1 is not above 0.99" in result.message


def test_one_wrong_gradient_leaves_the_other_one_passing(
    checker: Checker, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda left, right: function(left, _negated_gradient(right))

    replace_kernel(monkeypatch, checker.device(), change)
    result = checker.check(GRADIENTS[framework])
    verdicts = [check.verdict for check in rows(result, "backward")]
    assert verdicts == [Verdict.PASS, Verdict.ERROR]
    assert result.forward is Verdict.PASS


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_correctly_rounded_half_precision_product_has_no_error(
    torch_checker: Checker, dtype: str
) -> None:
    halves = [tensor(64, 8, dtype=dtype, grad=True), tensor(64, 8, dtype=dtype, grad=True)]
    payload = call("Torch.mul", *halves, grads=[tensor(64, 8, dtype=dtype)])
    _assert_exact(torch_checker.check(payload))


@pytest.mark.parametrize("dtype", ["Float16", "BFloat16"])
def test_a_correctly_rounded_half_precision_product_of_mindspore_has_no_error(
    mindspore_checker: Checker, dtype: str
) -> None:
    halves = [ms_tensor(64, 8, dtype=dtype), ms_tensor(64, 8, dtype=dtype)]
    payload = call("Mint.mul", *halves, grads=[ms_tensor(64, 8, dtype=dtype)])
    result = mindspore_checker.check(payload)
    require_kernel(result)
    _assert_exact(result)


def _assert_exact(result: TaskResult) -> None:
    assert len(result.checks) == 3
    for check in result.checks:
        assert check.metrics is not None
        assert (check.metrics.max_abs_err, check.metrics.max_rel_err) == (0.0, 0.0)
        assert check.metrics.bench_largest > 0.5
        assert check.verdict is Verdict.PASS
