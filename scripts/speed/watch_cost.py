"""What `capture --watch` costs in a step.

    python -m scripts.speed.bench watch [--steps N]

Comes in: the decoder of `capture_cost`, whose plain step took 110 to 135 ms when limits were set. Goes out:
the processor time within the watch's own hooks (of `backward`, of the clipping of gradients, of the
optimizer, of the end of a step with its row), beside one pass of `torch._foreach_norm` over the same
parameters and as many gradients, which runs in each step, too.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ray_precheck.capture import Capture
from ray_precheck.capture.pytorch.measuring import TorchMeasures
from ray_precheck.capture.watching.watch import Watch
from scripts.speed.capture_cost import training

# One hundredth of a step of 135 ms.
LIMIT_MS = 1.35
_HOOKS = (
    (TorchMeasures, "_take_loss"),
    (TorchMeasures, "_before_clipping"),
    (TorchMeasures, "before_update"),
    (TorchMeasures, "after_update"),
    (Watch, "begin_step"),
    (Watch, "end_clock"),
    (Watch, "end_step"),
    (Watch, "wants"),
)


class _Clock:
    """Processor time within functions, of which those that another one calls are not counted again."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time is counted."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            begin = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.thread_time() - begin

        return timed


def report_watch_cost(steps: int) -> bool:
    """Measure steps, print a line, and return whether the hooks are within their limit."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, step = training()
    clock, originals = _Clock(), [(owner, name, getattr(owner, name)) for owner, name in _HOOKS]
    plain, hooks, passes = [], [], []
    for owner, name, function in originals:
        setattr(owner, name, clock.around(function))
    try:
        with (
            tempfile.TemporaryDirectory(prefix="watch_cost_") as folder,
            Capture(
                Path(folder), model=model, watch=True, triggers="grad_norm > 10 * median"
            ) as capture,
        ):
            parameters: list[torch.Tensor] = list(model.parameters())
            gradients = [torch.randn_like(each) for each in parameters]
            for _ in range(steps + 3):
                clock.seconds = 0.0
                begin = time.thread_time()
                step()
                whole = time.thread_time() - begin
                hooks.append(clock.seconds)
                plain.append(whole - clock.seconds)
                begin = time.thread_time()
                with torch.no_grad():
                    torch._foreach_norm(gradients)
                    torch._foreach_norm(parameters)
                passes.append(time.thread_time() - begin)
            assert not capture.captured
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)
    beyond = [hook - one for hook, one in zip(hooks[3:], passes[3:], strict=True)]
    values = sum(each.numel() for each in parameters)
    print(
        f"torch {torch.__version__}, {len(parameters)} tensors of {values:,} values, {steps:,} steps"
    )
    mean = sum(beyond) / len(beyond) * 1e3
    print(
        f"a step {_median(plain)} ms, one pass {_median(passes)} ms, hooks {_median(hooks)} ms; beyond the"
        f" pass {_median(beyond)} ms in the median, {mean:.3f} in the mean; limit {LIMIT_MS} ms"
    )
    return mean <= LIMIT_MS


def _median(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.3f}"
