"""What the device's half of a check leaves for the bench, whatever the device does."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ray_precheck.check.job import Job
from ray_precheck.check.measured import Failure, Measured, measure
from ray_precheck.check.sides.attempt import OutOfMemory
from ray_precheck.datagen.generate import GeneratedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import CallPlan, Leaf
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.values import HostCall, HostTensor, TensorSpec

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
class Device:
    """A device that doubles, or raises: forward, or only where gradients are wanted of it."""

    outputs: list[Leaf] = field(default_factory=lambda: [tensor(2.0, 4.0)])
    error: Exception | None = None
    grad_error: Exception | None = None
    gradient_error: Exception | None = None

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        return lambda: None

    def forward(self, function: Callable[..., Any], call: HostCall, plan: CallPlan) -> Ran:
        if self.error is not None:
            raise self.error
        if self.grad_error is not None and plan.differentiable:
            raise self.grad_error
        return Ran(self.outputs, self.gradient_error)


@dataclass
class Sides:
    """The sides of a job; notes whether the device was told to have raised."""

    tested: Device
    lacks: bool = False
    raised: bool = False
    is_on_device: bool = False
    caveat: str = ""
    seen: list[bool] = field(default_factory=list)

    def device(self) -> Device:
        self.seen.append(self.is_on_device)
        return self.tested

    def lacks_kernel(self, error: Exception) -> bool:
        return self.lacks

    def note_device_error(self) -> None:
        self.raised = True

    @contextmanager
    def on_device(self) -> Iterator[None]:
        self.is_on_device = True
        yield
        self.is_on_device = False


def job(
    sides: Sides, grads: tuple[TensorSpec, ...] | None = (SPEC,), measured: Measured | None = None
) -> Job:
    record = ApiRecord(ApiName("Mint", "add", 0), (SPEC,), (), (), grads_in=grads, grads_out=grads)
    payload = TaskPayload(0, "Mint.add.0", b"{}", None)
    source = GeneratedTensors(0, "Mint.add.0")
    return Job(payload, record, HostCall((tensor(1.0, 2.0),), {}), source, sides, measured)  # type: ignore[arg-type]


def test_outputs_and_gradients_are_measured() -> None:
    made = job(Sides(Device()))
    found = measure(made)
    assert found.outputs is not None
    assert found.gradients is not None
    assert made.cotangents is not None
    (cotangent,) = made.cotangents
    assert cotangent is not None
    assert np.array_equal(found.gradients[0].data, 2 * cotangent.data)
    assert (found.error, found.gradient_error, found.no_gradients) == (None, None, "")


def test_without_a_backward_record_no_gradients_are_asked_for() -> None:
    found = measure(job(Sides(Device(gradient_error=ValueError())), grads=None))
    assert found.outputs is not None
    assert (found.gradients, found.gradient_error, found.no_gradients) == (None, None, "")


@pytest.mark.parametrize("lacks", [False, True])
def test_what_forward_raises_is_kept_as_text(lacks: bool) -> None:
    sides = Sides(Device(error=ValueError("odd shape\nand more")), lacks)
    found = measure(job(sides))
    assert found == Measured(None, Failure("ValueError: odd shape and more", lacks))
    assert sides.raised


def test_what_backward_raises_leaves_the_outputs() -> None:
    sides = Sides(Device(gradient_error=RuntimeError("no gradient")))
    found = measure(job(sides))
    assert found.outputs is not None
    assert found.gradients is None
    assert found.gradient_error == Failure("RuntimeError: no gradient")
    assert sides.raised


def test_so_does_forward_that_raises_only_where_gradients_are_wanted() -> None:
    found = measure(job(Sides(Device(grad_error=RuntimeError("not differentiable")))))
    assert found.outputs is not None
    assert found.gradient_error == Failure("RuntimeError: not differentiable")


def test_gradients_that_fit_no_output_are_a_reason_and_no_failure() -> None:
    sides = Sides(Device(outputs=[3]))
    found = measure(job(sides))
    assert found.outputs == [3]
    assert found.no_gradients.startswith("no output fits the incoming gradients")
    assert found.gradient_error is None
    assert not sides.raised


@pytest.mark.parametrize(
    "device", [Device(error=MemoryError()), Device(gradient_error=MemoryError())]
)
def test_an_allocation_that_fails_is_not_put_down_to_the_api(device: Device) -> None:
    with pytest.raises(OutOfMemory):
        measure(job(Sides(device)))


def test_an_api_that_the_device_does_not_have_is_not_checkable() -> None:
    with pytest.raises(NotCheckable, match="unknown"):
        measure(job(Sides(Device(error=NotCheckable("unknown")))))


def test_its_bytes_are_those_of_all_tensors() -> None:
    found = Measured([tensor(1.0, 2.0), 3, None], gradients=[tensor(1.0)])
    assert found.nbytes == 12
    assert Measured(None, Failure("odd")).nbytes == 0


def test_it_survives_the_way_to_another_process() -> None:
    found = pickle.loads(pickle.dumps(measure(job(Sides(Device(error=ValueError("odd")))))))
    assert found == Measured(None, Failure("ValueError: odd"))


def test_a_job_that_is_given_what_was_measured_does_not_touch_the_device() -> None:
    sides, given = Sides(Device(error=ValueError())), Measured([tensor(1.0)])
    assert job(sides, measured=given).measured is given
    assert sides.seen == []


def test_a_job_that_measures_itself_says_when_it_is_on_the_device() -> None:
    sides = Sides(Device())
    assert job(sides).measured.outputs is not None
    assert sides.seen == [True]
    assert not sides.is_on_device
