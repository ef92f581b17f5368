"""What the device's half of a check leaves for the bench, whatever the device does."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.bench.run import References
from ray_precheck.check import device as device_module
from ray_precheck.check.attempt import Failure, Measured, OutOfMemory
from ray_precheck.check.decode import decoded_record
from ray_precheck.check.device import Device, DeviceNeeded, PhaseClock
from ray_precheck.check.inputs import Inputs, make_inputs
from ray_precheck.check.options import CheckOptions
from ray_precheck.check.settings import CheckSettings
from ray_precheck.check.tested import UnderTest, measured_elsewhere
from ray_precheck.errors import BackendMissingError, NotCheckable
from ray_precheck.frameworks.base import CallPlan, Leaf
from ray_precheck.inputs.generate import GeneratedTensors
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.task import BENCH, Phase, TaskPayload
from ray_precheck.schema.values import Constant, HostCall, HostTensor, TensorSpec, ValueSpec

pytestmark = pytest.mark.unit

SPEC = TensorSpec("float32", (2,), 0.0, 1.0)


def tensor(*values: float) -> HostTensor:
    return HostTensor("float32", np.array(values, np.float32))


@dataclass
class Ran:
    """A call that has run: its outputs, and what its gradients are or raise."""

    outputs: list[Leaf]
    gradient_error: Exception | None = None

    def gradients(self, cotangents: list[HostTensor | None]) -> list[HostTensor]:
        if self.gradient_error is not None:
            raise self.gradient_error
        (cotangent,) = cotangents
        assert cotangent is not None
        return [HostTensor("float32", 2 * cotangent.data)]


@dataclass
class Backend:
    """A framework that doubles, or raises: forward, or only where gradients are wanted of it."""

    outputs: list[Leaf] = field(default_factory=lambda: [tensor(2.0, 4.0)])
    error: Exception | None = None
    grad_error: Exception | None = None
    gradient_error: Exception | None = None
    lacks: bool = False
    caveat: str = ""
    framework: str = "mindspore"
    seeds: list[int] = field(default_factory=list)

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        return lambda: None

    def forward(self, function: Callable[..., Any], call: HostCall, plan: CallPlan) -> Ran:
        if self.error is not None:
            raise self.error
        if self.grad_error is not None and plan.differentiable:
            raise self.grad_error
        return Ran(self.outputs, self.gradient_error)

    def lacks_kernel(self, error: Exception) -> bool:
        return self.lacks

    def prove(self) -> None:
        raise ZeroDivisionError("no sum")

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)


Grads = tuple[ValueSpec, ...] | None
Open = Callable[..., Device]


@pytest.fixture
def device_of(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Return what opens a device whose framework is a backend of these tests."""

    def opened(backend: Backend, clock: PhaseClock | None = None, **options: Any) -> Device:
        monkeypatch.setattr(device_module, "open_backend", lambda *_: backend)
        settings = CheckSettings("mindspore", "statistics", Path(), **options)
        return Device(settings, "npu", References("mindspore"), clock or PhaseClock())

    return opened


def inputs(api: str = "add", incoming: Grads = (SPEC,), captured: Grads = ()) -> Inputs:
    name = ApiName("Mint", api, 0)
    grads_out = None if incoming is None else captured
    record = ApiRecord(name, (SPEC,), (), (), grads_in=incoming, grads_out=grads_out)
    payload = TaskPayload(0, str(name), b"{}", None)
    return make_inputs(decoded_record(payload, record), GeneratedTensors(0, str(name)))


def measured_by(device: Device, of: Inputs | None = None) -> Measured:
    measured = device.run(of or inputs()).measured
    assert measured is not None
    return measured


def test_outputs_and_gradients_are_measured(device_of: Open) -> None:
    device = device_of(Backend())
    tested = device.run(inputs())
    found, incoming = tested.measured, tested.cotangents
    assert found is not None
    assert found.gradients is not None
    assert incoming is not None
    assert tested.outputs is found.outputs
    assert np.array_equal(found.gradients[0].data, 2 * incoming[0].data)  # type: ignore[union-attr]
    assert (found.error, found.gradient_error, found.no_gradients) == (None, None, "")
    assert not device.has_raised


def test_without_a_backward_record_no_gradients_are_asked_for(device_of: Open) -> None:
    device = device_of(Backend(gradient_error=ValueError()))
    found = measured_by(device, inputs(incoming=None))
    assert found.outputs is not None
    assert (found.gradients, found.gradient_error, found.no_gradients) == (None, None, "")


@pytest.mark.parametrize("lacks", [False, True])
def test_what_forward_raises_is_kept_as_text(device_of: Open, lacks: bool) -> None:
    device = device_of(Backend(error=ValueError("odd shape\nand more"), lacks=lacks))
    found = measured_by(device)
    assert found == Measured(None, Failure("ValueError: odd shape and more", lacks))
    assert device.has_raised


def test_what_backward_raises_leaves_the_outputs(device_of: Open) -> None:
    device = device_of(Backend(gradient_error=RuntimeError("no gradient")))
    found = measured_by(device)
    assert found.outputs is not None
    assert found.gradients is None
    assert found.gradient_error == Failure("RuntimeError: no gradient")
    assert device.has_raised


def test_so_does_forward_that_raises_only_where_gradients_are_wanted(device_of: Open) -> None:
    found = measured_by(device_of(Backend(grad_error=RuntimeError("not differentiable"))))
    assert found.outputs is not None
    assert found.gradient_error == Failure("RuntimeError: not differentiable")


def test_gradients_that_fit_no_output_are_a_reason_and_no_failure(device_of: Open) -> None:
    device = device_of(Backend(outputs=[3]))
    found = measured_by(device)
    assert found.outputs == [3]
    assert found.no_gradients.startswith("no output fits the incoming gradients")
    assert found.gradient_error is None
    assert not device.has_raised


def test_that_a_device_has_raised_is_kept_until_somebody_clears_it(device_of: Open) -> None:
    backend = Backend(error=ValueError("odd"))
    device = device_of(backend)
    device.run(inputs())
    backend.error = None
    device.run(inputs())
    assert device.has_raised


@pytest.mark.parametrize(
    "backend", [Backend(error=MemoryError()), Backend(gradient_error=MemoryError())]
)
def test_an_allocation_that_fails_is_not_put_down_to_the_api(
    device_of: Open, backend: Backend
) -> None:
    with pytest.raises(OutOfMemory):
        device_of(backend).run(inputs())


def test_an_api_that_the_device_does_not_have_is_not_checkable(device_of: Open) -> None:
    with pytest.raises(NotCheckable, match="unknown"):
        device_of(Backend(error=NotCheckable("unknown"))).run(inputs())


def test_its_bytes_are_those_of_all_tensors() -> None:
    found = Measured([tensor(1.0, 2.0), 3, None], gradients=[tensor(1.0)])
    assert found.nbytes == 12
    assert Measured(None, Failure("odd")).nbytes == 0


def test_it_survives_the_way_to_another_process(device_of: Open) -> None:
    found = measured_by(device_of(Backend(error=ValueError("odd"))))
    assert pickle.loads(pickle.dumps(found)) == Measured(None, Failure("ValueError: odd"))


def test_a_device_is_not_open_before_it_runs_and_says_when_it_does(device_of: Open) -> None:
    told: list[Phase] = []
    device = device_of(Backend(caveat="rounds to TF32"), PhaseClock(told.append))
    device.prove()  # Nothing is open that could fail to prove itself.
    assert device.caveat == ""
    assert measured_by(device).caveat == device.caveat == "rounds to TF32"
    assert told == [Phase.DEVICE, Phase.INPUTS]
    with pytest.raises(ZeroDivisionError):
        device.prove()


def test_only_calls_that_draw_seed_the_device_the_same_each_time(device_of: Open) -> None:
    backend = Backend()
    device = device_of(backend)
    device.run(inputs(incoming=None))
    assert backend.seeds == []
    for _ in range(2):
        device.run(inputs("randn", None))
    # A small call draws three times.
    once, again = backend.seeds[:3], backend.seeds[3:]
    assert once == again
    assert len(set(once)) == 3
    assert (
        device_of(backend, options=CheckOptions(seed=1)).run(inputs("randn", None)).outputs
        is not None
    )
    assert not set(backend.seeds[6:]) & set(once)


def test_a_process_without_a_device_says_that_it_needs_one() -> None:
    settings = CheckSettings("mindspore", "statistics", Path())
    device = Device(settings, BENCH, References("mindspore"), PhaseClock())
    with pytest.raises(DeviceNeeded):
        device.run(inputs())


def test_a_framework_that_is_missing_is_a_reason_only_where_captured_results_are_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: Any) -> Any:
        raise BackendMissingError("MindSpore is not installed")

    monkeypatch.setattr(device_module, "open_backend", missing)
    for tests_dump, error in ((False, BackendMissingError), (True, NotCheckable)):
        settings = CheckSettings("mindspore", "tensor", Path(), tests_dump=tests_dump)
        with pytest.raises(error, match="MindSpore is not installed"):
            Device(settings, "npu", References("mindspore"), PhaseClock()).run(inputs())


class TestGradients:
    """Which gradients are tested: the dump's, the device's, or the device's in place of the dump's."""

    def test_what_was_measured_elsewhere_does_not_touch_the_device(self, device_of: Open) -> None:
        tested = measured_elsewhere(inputs(), Measured([tensor(1.0)]), "")
        assert device_of(Backend(error=ValueError())).run_gradients(tested) is tested

    def test_captured_ones_do_not_either(self, device_of: Open) -> None:
        tested = UnderTest(inputs(captured=(SPEC,)), [tensor(1.0)], is_captured=True)
        device = device_of(Backend(error=ValueError()), tests_dump=True)
        assert device.run_gradients(tested) is tested

    def test_where_the_dump_holds_none_the_device_stands_in(self, device_of: Open) -> None:
        outputs: list[Leaf] = [tensor(1.0)]
        tested = UnderTest(inputs(), outputs, is_captured=True)
        found = device_of(Backend(), tests_dump=True).run_gradients(tested)
        assert found.outputs is outputs
        assert found.measured is not None
        assert found.measured.gradients is not None
        assert found.note == (
            "the dump holds no gradients of this call, so this machine's npu was tested"
        )

    def test_unless_it_may_not(self, device_of: Open) -> None:
        device = device_of(Backend(), tests_dump=True, options=CheckOptions(tested="dump"))
        with pytest.raises(NotCheckable, match="--tested device checks them"):
            device.run_gradients(UnderTest(inputs(), [tensor(1.0)], is_captured=True))

    def test_of_whole_numbers_there_are_none(self, device_of: Open) -> None:
        record = ApiRecord(ApiName("Mint", "add", 0), (Constant(1),), (), (), (SPEC,), ())
        payload = TaskPayload(0, "Mint.add.0", b"{}", None)
        whole = make_inputs(decoded_record(payload, record), GeneratedTensors(0, "Mint.add.0"))
        with pytest.raises(NotCheckable, match="no floating tensor among the inputs"):
            device_of(Backend()).run_gradients(UnderTest(whole, [1]))
