"""The two sides of a call and what became of each, with a side that is no framework."""

from collections.abc import Callable
from typing import Any

import pytest

from ray_precheck.check.attempt import (
    Attempt,
    attempt,
    attempt_forward,
    attempt_gradients,
    describe,
    is_out_of_memory,
)
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import CallPlan, Leaf
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor

pytestmark = pytest.mark.unit

NAME = ApiName("Torch", "add", 0)
CALL = HostCall((1,), {})
WITH_GRADIENTS = CallPlan(differentiable=(0,), in_place=True)


class Run:
    """An execution that has outputs and, where it is told so, fails at its gradients."""

    def __init__(self, error: Exception | None = None) -> None:
        self.outputs: list[Leaf] = [1]
        self.error = error

    def gradients(self, cotangents: list[HostTensor | None]) -> list[HostTensor]:
        if self.error is not None:
            raise self.error
        return []


class FakeSide:
    """A side that raises, or not, with gradients and without them."""

    def __init__(
        self, with_gradients: Exception | None = None, plain: Exception | None = None
    ) -> None:
        self.errors = {True: with_gradients, False: plain}
        self.plans: list[CallPlan] = []

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        if name.prefix != "Torch":
            raise NotCheckable("not here")
        return print

    def forward(self, function: Callable[..., Any], call: HostCall, plan: CallPlan) -> Run:
        self.plans.append(plan)
        error = self.errors[bool(plan.differentiable)]
        if error is not None:
            raise error
        return Run()


def test_what_counts_the_calls_before_is_no_reason() -> None:
    said = "Unsupported op [T] on CPU, or refer to 'm'. node: @pynative_kernel_graph{0}:CNode_{0}{{[0]: V"
    texts = {describe(RuntimeError(said.format(number))) for number in (4, 17)}
    assert texts == {"RuntimeError: Unsupported op [T] on CPU, or refer to 'm'."}


def test_a_side_that_runs_is_run_once() -> None:
    side = FakeSide()
    found = attempt_forward(side, NAME, CALL, WITH_GRADIENTS)
    assert found.execution is not None
    assert (found.error, found.gradient_error) == (None, None)
    assert side.plans == [WITH_GRADIENTS]


def test_a_side_that_fails_with_gradients_is_run_without_them() -> None:
    error = RuntimeError("no autograd")
    side = FakeSide(with_gradients=error)
    found = attempt_forward(side, NAME, CALL, WITH_GRADIENTS)
    assert found.execution is not None
    assert found.error is None
    assert found.gradient_error is error
    assert side.plans == [WITH_GRADIENTS, CallPlan((), in_place=True)]


def test_a_side_that_fails_in_any_case_says_why_it_fails_without_gradients() -> None:
    first, second = RuntimeError("first"), RuntimeError("second")
    found = attempt_forward(FakeSide(first, second), NAME, CALL, WITH_GRADIENTS)
    assert found == Attempt(None, second, first)


def test_a_forward_call_that_fails_is_not_run_again() -> None:
    error = ValueError("bad")
    side = FakeSide(plain=error)
    assert attempt_forward(side, NAME, CALL, CallPlan()) == Attempt(None, error)
    assert len(side.plans) == 1


def test_an_api_that_a_side_lacks_is_not_checkable() -> None:
    with pytest.raises(NotCheckable, match="not here"):
        attempt_forward(FakeSide(), ApiName("Mint", "add", 0), CALL, CallPlan())


def test_not_checkable_is_no_failure_of_the_api() -> None:
    with pytest.raises(NotCheckable, match="why"):
        attempt_forward(FakeSide(plain=NotCheckable("why")), NAME, CALL, CallPlan())


def test_gradients_come_from_an_execution_or_are_its_error() -> None:
    assert attempt_gradients(Attempt(Run()), [None]) == ([], None)
    error = RuntimeError("backward")
    assert attempt_gradients(Attempt(Run(error)), [None]) == (None, error)


def test_without_an_execution_gradients_are_what_it_raised() -> None:
    first, second = RuntimeError("first"), RuntimeError("second")
    assert attempt_gradients(Attempt(None, first), []) == (None, first)
    assert attempt_gradients(Attempt(Run(), None, second), []) == (None, second)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_an_interrupt_goes_through(error: BaseException) -> None:
    def interrupted() -> None:
        raise error

    with pytest.raises(type(error)):
        attempt(interrupted)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, "unknown error"),
        (ValueError(), "ValueError"),
        (ValueError("a\n  b\tc"), "ValueError: a b c"),
        (RuntimeError("bad shape\n---------\n- C++ stack"), "RuntimeError: bad shape"),
        (
            RuntimeError(
                "\n----\n- Kernel select failed:\n----\nUnsupported op [Einsum] on CPU\n\n----\n- C++"
            ),
            "RuntimeError: Kernel select failed: Unsupported op [Einsum] on CPU",
        ),
        (RuntimeError("\n----\n- C++ Call Stack:"), "RuntimeError: - C++ Call Stack:"),
    ],
)
def test_an_error_is_described_in_one_line(error: Exception | None, text: str) -> None:
    assert describe(error) == text


def test_a_long_error_is_cut() -> None:
    line = describe(ValueError("x" * 1000))
    assert len(line) == 300
    assert line.endswith("...")


@pytest.mark.parametrize(
    "text",
    [
        "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity)",
        "malloc physical memory failed",
        "#umsg#Framework Error Message:#umsg#Out of Memory!!! Request memory size: 9B",
        "#umsg#Memory not enough:#umsg#Device(id:0) memory isn't enough and alloc failed, kernel",
        "Malloc device memory failed, size[1073741824], ret[207001]",
        "Allocate memory failed for size: 1073741824",
        "Allocate workspace memory failed",
        "EL0004: Failed to allocate memory requested by GE module.",
        "std::bad_alloc",
    ],
)
def test_the_words_of_every_allocator_mean_that_no_memory_is_left(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))


def test_other_words_about_memory_are_the_operators_own() -> None:
    for text in ("Memory copy fails during data enqueuing.", "unsupported memory format option"):
        assert not is_out_of_memory(RuntimeError(text))
    assert is_out_of_memory(MemoryError())
