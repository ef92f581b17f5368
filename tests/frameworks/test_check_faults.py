"""Whose fault a failure is: the device's, the bench's, the record's, or ours."""

from typing import Any

import pytest
from records import call, ms_tensor, raising, replace_kernel, rows, tensor

from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import Outcome, TaskResult, Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = pytest.mark.frameworks

ADD = call("Torch.add", tensor(3, grad=True), tensor(3, grad=True))
ADD_BACKWARD = call("Torch.add", tensor(3, grad=True), tensor(3, grad=True), grads=[tensor(3)])
MINT_ADD = call("Mint.add", ms_tensor(3), ms_tensor(3))
MINT_ADD_BACKWARD = call("Mint.add", ms_tensor(3), ms_tensor(3), grads=[ms_tensor(3)])
PAYLOADS = [ADD, ADD_BACKWARD, MINT_ADD, MINT_ADD_BACKWARD]
BROKEN = raising(RuntimeError("the driver says no"))


@pytest.fixture(params=PAYLOADS, ids=lambda payload: f"{payload.name}-{bool(payload.backward)}")
def payload(request: pytest.FixtureRequest) -> TaskPayload:
    found: TaskPayload = request.param
    return found


@pytest.fixture
def checker(payload: TaskPayload, torch_checker: Checker, mindspore_checker: Checker) -> Checker:
    return mindspore_checker if payload.name.startswith("Mint") else torch_checker


def _skip_or_none(payload: TaskPayload) -> Verdict:
    return Verdict.NONE if payload.backward is None else Verdict.SKIP


def _assert_skipped(result: TaskResult, payload: TaskPayload) -> None:
    assert (result.forward, result.backward) == (Verdict.SKIP, _skip_or_none(payload))
    assert (result.outcome, result.checks) == (Outcome.SKIPPED, ())


def test_an_api_that_raises_on_the_device_only_is_an_error(
    checker: Checker, payload: TaskPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_kernel(monkeypatch, checker.device(), BROKEN)
    result = checker.check(payload)
    assert (result.forward, result.backward) == (Verdict.ERROR, _skip_or_none(payload))
    assert result.outcome is Outcome.RAISED
    assert "the device raised where the bench is fine" in result.message
    assert "RuntimeError: the driver says no" in result.message


def test_an_api_that_raises_on_both_sides_is_skipped_with_both_messages(
    checker: Checker, payload: TaskPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_kernel(monkeypatch, checker.device(), BROKEN)
    replace_kernel(monkeypatch, checker.bench, raising(ValueError("bad arguments")))
    result = checker.check(payload)
    _assert_skipped(result, payload)
    assert "device: RuntimeError: the driver says no" in result.message
    assert "bench: ValueError: bad arguments" in result.message


def test_an_api_that_raises_on_the_bench_only_is_skipped(
    checker: Checker, payload: TaskPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_kernel(monkeypatch, checker.bench, raising(ValueError("bad arguments")))
    result = checker.check(payload)
    _assert_skipped(result, payload)
    assert result.message == "the bench raised: ValueError: bad arguments"


def test_wrong_arguments_are_no_error_of_the_device(torch_checker: Checker) -> None:
    payload = call("Torch.matmul", tensor(2, 3), tensor(4, 5))
    result = torch_checker.check(payload)
    _assert_skipped(result, payload)
    assert "device and bench raised" in result.message


def _break_gradients(monkeypatch: pytest.MonkeyPatch, side: Any) -> None:
    forward = side.forward

    def broken(*args: Any) -> Any:
        execution = forward(*args)
        monkeypatch.setattr(type(execution), "gradients", raising(RuntimeError("no gradient"))(len))
        return execution

    monkeypatch.setattr(side, "forward", broken)


def test_gradients_that_raise_on_the_device_only_are_an_error_of_backward_alone(
    mindspore_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break_gradients(monkeypatch, mindspore_checker.device())
    result = mindspore_checker.check(MINT_ADD_BACKWARD)
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.ERROR)
    assert result.outcome is Outcome.RAISED
    assert "backward: the device raised where the bench is fine: RuntimeError" in result.message


def test_gradients_that_raise_on_the_bench_only_are_a_skip_of_backward_alone(
    mindspore_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break_gradients(monkeypatch, mindspore_checker.bench)
    result = mindspore_checker.check(MINT_ADD_BACKWARD)
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.SKIP)
    assert result.outcome is Outcome.COMPLETED
    assert "backward: the bench raised: RuntimeError: no gradient" in result.message


def test_gradients_that_raise_on_both_sides_are_a_skip_with_both_messages(
    torch_checker: Checker,
) -> None:
    payload = call("Torch.sum", tensor(3, grad=True), grads=[tensor()])
    with pytest.MonkeyPatch.context() as patch:
        _break_gradients(patch, torch_checker.device())  # both sides are of one class
        result = torch_checker.check(payload)
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.SKIP)
    assert result.message.count("no gradient") == 2


def test_an_output_that_depends_on_no_input_is_a_skip_of_backward_alone(
    torch_checker: Checker,
) -> None:
    payload = call("Torch.zeros_like", tensor(3, grad=True), grads=[tensor(3)])
    result = torch_checker.check(payload)
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.SKIP)
    assert "no output depends on an input that requires a gradient" in result.message


@pytest.mark.parametrize(
    "place",
    [
        "ray_precheck.check.inputs.build_call",
        "ray_precheck.inputs.generate.value_range",
        "ray_precheck.check.decode.decode_record",
        "ray_precheck.check.judge.check_output",
    ],
)
def test_a_fault_of_ours_is_a_skip_that_blames_ray_precheck(
    checker: Checker, payload: TaskPayload, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(place, fail)
    result = checker.check(payload)
    _assert_skipped(result, payload)
    assert result.message.startswith("ray_precheck failed on this record: ZeroDivisionError")
    monkeypatch.undo()
    assert checker.check(payload).forward is Verdict.PASS


@pytest.mark.parametrize(
    ("forward", "part"),
    [
        (b"{", "broken forward record"),
        (b"[]", "an object is expected"),
        (b'{"input_args": [{}]}', "no description of this value"),
        (b'{"input_args": [{"type": "ProcessGroup", "group_ranks": [0]}]}', "ProcessGroup"),
        (None, "no forward record"),
    ],
)
def test_a_record_that_cannot_be_built_is_skipped_with_the_reason(
    torch_checker: Checker, forward: bytes | None, part: str
) -> None:
    payload = TaskPayload(7, "Torch.add.0", forward, None)
    result = torch_checker.check(payload)
    _assert_skipped(result, payload)
    assert (result.index, result.name) == (7, "Torch.add.0")
    assert part in result.message
    assert "ray_precheck failed" not in result.message


def test_gradients_are_compared_after_a_forward_error(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_kernel(
        monkeypatch, torch_checker.device(), lambda function: lambda *args: function(*args) + 1.0
    )
    result = torch_checker.check(ADD_BACKWARD)
    assert (result.forward, result.backward) == (Verdict.ERROR, Verdict.PASS)
    assert len(rows(result, "backward")) == 2
