"""A check that is cut in two, the device's half and the bench's, says what a whole one says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from records import call, ms_tensor, raising, tensor

from ray_precheck.check.attempt import Measured
from ray_precheck.check.checker import Checker
from ray_precheck.check.device import DeviceNeeded
from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.decode import decode_record
from ray_precheck.dump.parse import open_dump
from ray_precheck.inputs import RECORDED
from ray_precheck.inputs.generate import GeneratedTensors, build_call, generated_tensors
from ray_precheck.runtime.workers.messages import seal
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import BENCH, Task, TaskPayload

pytestmark = pytest.mark.frameworks
DATA = Path(__file__).resolve().parent.parent / "data"


@pytest.fixture(scope="module")
def torch_bench() -> Checker:
    """Return a checker without a device."""
    return Checker(CheckSettings("pytorch", "statistics", Path(), knows_layouts=True), BENCH)


@pytest.fixture(scope="module")
def mindspore_bench() -> Checker:
    """Return a checker without a device, and without MindSpore."""
    return Checker(CheckSettings("mindspore", "statistics", Path(), knows_layouts=True), BENCH)


def timeless(result: TaskResult) -> TaskResult:
    return replace(result, inputs_s=0.0, device_s=0.0, bench_s=0.0)


def in_halves(
    device: Checker, bench: Checker, payload: TaskPayload, *, is_near: bool = False
) -> TaskResult:
    """Check a call on both, with what goes from one to the other sealed as between processes."""
    measured = device.measure(payload, with_inputs=is_near)
    if isinstance(measured, TaskResult):
        return measured
    return bench.check(payload, measured=seal(measured).open())


@pytest.mark.parametrize("is_near", [False, True])
@pytest.mark.parametrize("capture", ["torch_cnn", "torch_llm_bf16", "mindspore_llm_fp16"])
def test_every_call_of_a_capture(
    capture: str,
    is_near: bool,
    torch_checker: Checker,
    mindspore_checker: Checker,
    torch_bench: Checker,
    mindspore_bench: Checker,
) -> None:
    is_torch = capture.startswith("torch")
    device = torch_checker if is_torch else mindspore_checker
    bench = torch_bench if is_torch else mindspore_bench
    with open_dump(DATA / capture / "dump.json") as dump:
        seen: set[Any] = set()
        for index, each in enumerate(dump.calls):
            payload = dump.payload(Task(index, each.name, 0.0))
            whole = device.check(payload)
            halves = in_halves(device, bench, payload, is_near=is_near)
            assert timeless(halves) == timeless(whole), each.name
            seen.add((whole.forward, whole.backward))
    assert (Verdict.PASS, Verdict.PASS) in seen


@pytest.mark.parametrize("is_near", [False, True])
@pytest.mark.parametrize(
    "payload",
    [
        call("Torch.add", tensor(3, grad=True), tensor(4, grad=True), grads=[tensor(3)]),
        call("Torch.argmax", tensor(3, grad=True), grads=[tensor()]),
        call("Torch.neg", tensor(3, grad=True), grads=[1.0]),
        call("Torch.nothing_of_that_name", tensor(3)),
        call("Torch.svd_lowrank", tensor(4, 4)),
    ],
    ids=["both raise", "no gradient", "no cotangent fits", "unknown", "random"],
)
def test_calls_that_cannot_be_checked(
    payload: TaskPayload, is_near: bool, torch_checker: Checker, torch_bench: Checker
) -> None:
    whole = torch_checker.check(payload)
    assert Verdict.SKIP in (whole.forward, whole.backward)
    halves = in_halves(torch_checker, torch_bench, payload, is_near=is_near)
    assert timeless(halves) == timeless(whole)


@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_device_that_raises(
    with_gradients: bool,
    torch_checker: Checker,
    torch_bench: Checker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gradients = [tensor(3)] if with_gradients else None
    payload = call("Torch.add", tensor(3, grad=True), tensor(3, grad=True), grads=gradients)
    broken = raising(RuntimeError("the driver says no"))
    monkeypatch.setattr(torch_checker.device(), "forward", broken)
    whole = torch_checker.check(payload)
    assert whole.forward is Verdict.ERROR
    assert "the device raised where the bench is fine" in whole.message
    assert timeless(in_halves(torch_checker, torch_bench, payload)) == timeless(whole)


def test_the_half_of_the_device_does_not_run_the_bench(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_checker.bench, "forward", raising(AssertionError("the bench ran")))
    measured = torch_checker.measure(call("Torch.add", tensor(3), tensor(3)))
    assert isinstance(measured, Measured)
    assert measured.nbytes == 12


def test_a_bench_that_is_given_the_inputs_draws_none(
    torch_checker: Checker, torch_bench: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = call("Torch.mul", tensor(3, grad=True), tensor(3, grad=True), grads=[tensor(3)])
    whole = torch_checker.check(payload)
    measured = torch_checker.measure(payload, with_inputs=True)
    assert isinstance(measured, Measured)
    assert sorted(measured.inputs) == ["backward input.0", "input_args.0", "input_args.1"]
    assert measured.nbytes == 6 * 12
    monkeypatch.setattr(GeneratedTensors, "_draw", raising(AssertionError("drawn again")))
    halves = torch_bench.check(payload, measured=measured)
    assert timeless(halves) == timeless(whole)
    assert (halves.forward, halves.backward) == (Verdict.PASS, Verdict.PASS)


def test_inputs_stay_where_the_bench_is_elsewhere(torch_checker: Checker) -> None:
    measured = torch_checker.measure(call("Torch.mul", tensor(3), tensor(3)))
    assert isinstance(measured, Measured)
    assert measured.inputs == {}


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("torch", "Tensor.add_"),
        ("torch", "Tensor.relu_"),
        ("torch", "Tensor.mul_"),
        ("mindspore", "Tensor.add_"),
        ("mindspore", "Tensor.mul_"),
    ],
)
@pytest.mark.parametrize("grads", [False, True])
def test_a_device_that_changes_its_input_in_place_does_not_change_what_it_hands_on(
    framework: str, name: str, grads: bool, request: pytest.FixtureRequest
) -> None:
    make = ms_tensor if framework == "mindspore" else tensor
    device: Checker = request.getfixturevalue(f"{framework}_checker")
    bench: Checker = request.getfixturevalue(f"{framework}_bench")
    others = [] if name == "Tensor.relu_" else [make(4, 5)]
    payload = call(name, make(4, 5), *others, grads=[make(4, 5)] if grads else None)
    before = device.measure(payload, with_inputs=True)
    assert isinstance(before, Measured), before.message
    assert before.error is None
    record = decode_record(payload.name, payload.forward, payload.backward)
    drawn = build_call(record, generated_tensors(0, record, RECORDED)).args[0]
    assert before.inputs["input_args.0"].data.tobytes() == drawn.data.tobytes()
    assert before.outputs is not None
    assert before.outputs[0].data.tobytes() != drawn.data.tobytes()  # type: ignore[union-attr]
    whole = device.check(payload)
    assert timeless(in_halves(device, bench, payload, is_near=True)) == timeless(whole)


def test_without_a_device_a_whole_check_says_that_it_needs_one(mindspore_bench: Checker) -> None:
    with pytest.raises(DeviceNeeded):
        mindspore_bench.check(call("Mint.add", ms_tensor(3), ms_tensor(3)))


def test_the_bench_computes_with_its_threads_and_the_device_with_one(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, int] = {}
    for name, side in (("device", torch_checker.device()), ("bench", torch_checker.bench)):
        forward = side.forward

        def counted(*args: Any, _name: str = name, _forward: Any = forward) -> Any:
            seen[_name] = torch.get_num_threads()
            return _forward(*args)

        monkeypatch.setattr(side, "forward", counted)
    before = torch.get_num_threads()
    torch_checker.check(call("Torch.add", tensor(3), tensor(3)), bench_threads=3)
    assert seen == {"device": 1, "bench": 3}
    assert torch.get_num_threads() == before
