"""Run a training as it is, and plant jumps in it from one step on, each of which is undone before the next.

    ray-precheck capture --watch -o out -- python scripts/watch/planted.py planted.tsv 300 train.py --lr 1e-3

Comes in: a file to write, the update behind which the first jump is planted, and the training's own command.
Goes out: a line for each jump, when it began (seconds of the epoch) and its name, and one when it was undone,
which `scripts.watch.asked` reads beside the rows of the watch. After the last jump the process ends.

Each jump lasts for four updates of each optimizer, after which parameters, buffers and the states of the
optimizers are those from before it. A batch of NaN is what it would leave behind the first layer.
"""

import copy
import gc
import math
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

ZEROED, SCALED, RATE, NAN = JUMPS = (
    "a layer is zeroed",
    "gradients are 30 times too large",
    "the learning rate is 100 times too large",
    "a batch is NaN",
)
UNDONE = "undone"
# The updates of each optimizer that a jump lasts: rules have its step and three behind it to find it.
_UPDATES = 4
# Rows have their time in milliseconds, by which they are told to be before or behind what is planted.
_APART_S = 0.003


class Planter:
    """Counts updates, and plants the jumps behind update `at`; what happens when goes to `path`."""

    def __init__(self, path: Path, at: int) -> None:
        self._lines, self._at = path.open("w", buffering=1), at
        self._updates = self._left = 0
        self._jump, self._waits = "", False
        self._to_come = list(JUMPS)
        self._optimizers: list[Optimizer] = []
        self._restore: Callable[[], None] = lambda: None

    def watch(self) -> None:
        """Put on the hooks that plant."""
        backward = torch.Tensor.backward

        def scaled(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            backward(tensor, *args, **kwargs)  # type: ignore[no-untyped-call]
            if self._jump == SCALED and self._waits:
                self._waits = False
                for each in self._parameters():
                    if each.grad is not None:
                        each.grad.mul_(30)

        torch.Tensor.backward = scaled  # type: ignore[method-assign, assignment]
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)
        register_module_forward_hook(self._called)

    def _parameters(self) -> list[torch.Tensor]:
        groups = [group for each in self._optimizers for group in each.param_groups]
        return [each for group in groups for each in group["params"]]

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if all(each is not optimizer for each in self._optimizers):
            self._optimizers.append(optimizer)
        self._multiply_rate(optimizer, 100)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._multiply_rate(optimizer, 0.01)
        self._updates += 1
        if self._updates < self._at:
            return
        if self._jump:
            self._left -= 1
            if self._left:
                return
            self._tell(UNDONE)
            self._restore()
        else:
            self._restore = self._state()
        self._begin()

    def _multiply_rate(self, optimizer: Optimizer, factor: float) -> None:
        if self._jump == RATE:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor

    def _begin(self) -> None:
        if not self._to_come:
            os._exit(0)  # the rows are in the file, and the training's own end would take long
        self._jump, self._waits = self._to_come.pop(0), True
        self._tell(self._jump)
        self._left = _UPDATES * len(self._optimizers)
        if self._jump == ZEROED:
            layers = [each for each in self._parameters() if each.dim() > 1]
            with torch.no_grad():
                layers[len(layers) // 2].zero_()

    def _tell(self, what: str) -> None:
        time.sleep(_APART_S)
        self._lines.write(f"{time.time():.6f}\t{what}\n")
        time.sleep(_APART_S)

    def _called(self, module: torch.nn.Module, args: Any, found: Any) -> Any:
        is_asked = self._jump == NAN and module.training
        if is_asked and isinstance(found, torch.Tensor) and found.requires_grad:
            return found * math.nan
        return None

    def _state(self) -> Callable[[], None]:
        """Return what puts all parameters, buffers and states of optimizers back as they are now."""
        modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
        held = [each for module in modules for each in (*module.parameters(), *module.buffers())]
        values = {id(each): (each, each.detach().clone()) for each in (*held, *self._parameters())}
        states = [(each, copy.deepcopy(each.state_dict())) for each in self._optimizers]

        def restore() -> None:
            with torch.no_grad():
                for tensor, value in values.values():
                    tensor.copy_(value)
            for optimizer, state in states:
                optimizer.load_state_dict(copy.deepcopy(state))

        return restore


def main() -> None:
    """Run the training of the command line."""
    path, at, script, *words = sys.argv[1:]
    Planter(Path(path).absolute(), int(at)).watch()
    sys.argv = [script, *words]
    sys.path[0] = str(Path(script).absolute().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
