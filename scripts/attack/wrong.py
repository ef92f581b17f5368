"""Plants a wrong kernel below autograd, around the tested side's calls, and counts where it was wrong.

Comes in: a `WrongKind`. Goes out: hits. The bench, the inputs and what is carried to and from the device
never run under it: it surrounds the tested function and its gradients alone.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ray_precheck.frameworks.base import CallPlan, Execution, Leaf
from ray_precheck.frameworks.pytorch.backend import TorchBackend
from ray_precheck.schema.values import HostCall, HostTensor
from scripts.attack.calls import KernelCall
from scripts.attack.kinds import WrongKind


class WrongKernel(TorchDispatchMode):
    """Torch with kernels that are wrong under a condition; `hits` counts by direction where it was seen.

    `is_on` False: the condition is looked at, and every kernel is right.
    """

    def __init__(self, kind: WrongKind, *, is_on: bool = True) -> None:
        super().__init__()
        self._kind = kind
        self._is_on = is_on
        self.direction = "forward"
        self.hits: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        call = KernelCall(func, args, kwargs or {})
        if call.kernel not in self._kind.kernels or not self._kind.when(call):
            return call.run()
        if not self._is_on:
            self.hits[self.direction] += 1
            return call.run()
        ran = self._kind.wrong(call)
        self.hits[self.direction] += ran.visible
        return ran.result


class _UnderAttack(Execution):
    """A call that has run forward under a mode, and whose gradients do, too."""

    def __init__(self, execution: Execution, mode: WrongKernel) -> None:
        self._execution = execution
        self._mode = mode
        self.outputs: list[Leaf] = execution.outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._execution, name)

    def gradients(self, cotangents: list[HostTensor | None]) -> list[HostTensor | None]:
        """Return the gradients, of which the backward kernels run under the mode."""
        self._mode.direction = "backward"
        try:
            with _gradients_under(self._mode):
                return self._execution.gradients(cotangents)
        finally:
            self._mode.direction = "forward"


@contextmanager
def with_wrong_kernel(mode: WrongKernel) -> Iterator[None]:
    """Let every function that the tested side calls, and its gradients, run under a mode."""
    honest = TorchBackend.forward

    def forward(
        self: TorchBackend, function: Callable[..., Any], call: HostCall, plan: CallPlan
    ) -> Execution:
        return _UnderAttack(honest(self, _under(mode, function), call, plan), mode)

    TorchBackend.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        TorchBackend.forward = honest  # type: ignore[method-assign]


def _under(mode: WrongKernel, function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return function(*args, **kwargs)

    return called


@contextmanager
def _gradients_under(mode: WrongKernel) -> Iterator[None]:
    honest = torch.autograd.grad

    def grad(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return honest(*args, **kwargs)

    torch.autograd.grad = grad
    try:
        yield
    finally:
        torch.autograd.grad = honest
