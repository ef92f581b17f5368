"""The steps that a gradient scaler (`torch.amp.GradScaler`) makes.

Comes in: nothing. Goes out: each call of `GradScaler.step`, which calls the step of an optimizer, or skips it
where a gradient is infinite or NaN. Put on by `probe` while it watches for the ends of steps; the hooks of
torch's optimizers do not see a step that is skipped.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeAlias

import torch

from ray_precheck.capture.pytorch.calls import detour

# Gets the scaler, its optimizer, and the function that makes the step, whose result it returns.
Around: TypeAlias = Callable[[Any, Any, Callable[[], Any]], Any]


class ScalerSteps:
    """Hands each step of each gradient scaler to `around`, from `watch` until `remove`.

    A step that a class hands on to its base class is handed over once.
    """

    def __init__(self, around: Around) -> None:
        self._around = around
        self._watched: set[type] = set()
        self._hooks = ExitStack()
        self._inside = False

    def watch(self) -> None:
        """Watch the classes of scalers that there are by now; more may come with the next call."""
        for kind in _scaler_classes():
            if kind not in self._watched:
                self._watched.add(kind)
                self._hooks.enter_context(detour(kind, "step", self._told(vars(kind)["step"])))

    def remove(self) -> None:
        """Watch no class any more."""
        self._watched.clear()
        self._hooks.close()

    def _told(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            def run() -> Any:
                return original(scaler, optimizer, *args, **kwargs)

            if self._inside or not scaler.is_enabled():
                return run()
            self._inside = True
            try:
                return self._around(scaler, optimizer, run)
            finally:
                self._inside = False

        return step


def _scaler_classes() -> Iterator[type]:
    """Yield the classes of gradient scalers that have a `step` of their own, such as torch_npu's."""
    # Before torch 2.3 there is one for CUDA alone.
    base = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    waiting: list[type] = [base]
    while waiting:
        kind = waiting.pop()
        waiting += type.__subclasses__(kind)
        if "step" in vars(kind):
            yield kind
