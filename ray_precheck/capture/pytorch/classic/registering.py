"""Starting and ending the hooks.

Comes in: a model, one of the three hooks, and its arguments. Goes out: nothing; from then on the calls of
operators in this thread go to the hook. Called by training scripts, under the names of `ray_precheck.hooks`.
"""

import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np
import torch

from ray_precheck.capture.pytorch.backward_passes import backward_passes_seen
from ray_precheck.capture.pytorch.classic import steps
from ray_precheck.capture.pytorch.classic.arrays import FEWEST, AsyncArrays
from ray_precheck.capture.pytorch.classic.errors import HookUsageError
from ray_precheck.capture.pytorch.classic.kinds import Kind, Place
from ray_precheck.capture.pytorch.classic.lines import DUMP_FILE
from ray_precheck.capture.pytorch.classic.overflow import OverflowCheck
from ray_precheck.capture.pytorch.classic.sink import HookSink, Layers
from ray_precheck.capture.pytorch.classic.steps import Schedule, step_schedule
from ray_precheck.capture.pytorch.classic.values import AccuracyLines

ModuleHook: TypeAlias = Callable[[torch.nn.Module, Any, Any], None]
SEED = 1234
_SEEDS = 2**32  # numpy's generator takes no larger ones


def wrap_acc_cmp_hook(name: str, *, sample: bool = True, **_: Any) -> ModuleHook:
    """Return a hook of a module that writes what it got and gave as lines named after `name`.

    Given to `register_hook` it is called for each operator.
    """
    return _module_hook(AccuracyLines(sample), name)


def wrap_checkoverflow_hook(name: str, **_: Any) -> ModuleHook:
    """Return a hook of a module that raises an error if the module gave NaN or infinity."""
    return _module_hook(OverflowCheck(), name)


def wrap_async_datadump_hook(
    name: str, *, path: str = "./", capacity: int = FEWEST, **_: Any
) -> ModuleHook:
    """Return a hook of a module that writes what it got and gave as arrays into a folder."""
    return _module_hook(AsyncArrays(path, capacity), name)


def _module_hook(kind: Kind, name: str) -> ModuleHook:
    process = os.getpid()

    def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
        place = Place(name, name.endswith("_backward"), type(module).__name__)
        on = step_schedule.is_step_enable() and os.getpid() == process
        if on and kind.ready(place, True):
            kind.after(place, kind.before(args), args, output)

    return hook


def register_hook(
    model: torch.nn.Module,
    hook: Callable[..., ModuleHook],
    *,
    sample: bool = True,
    path: str = "./",
    schedule: Schedule | None = None,
    seed: int | None = SEED,
    capacity: int | None = None,
) -> None:
    """Hand the calls of operators to a hook from now on: those of this thread, in the model and outside.

    A further call names the layers of a further model and replaces the hook. `sample` belongs to
    `wrap_acc_cmp_hook`; `path` (a folder, made if missing) and `capacity` (how many calls may wait for the
    writing thread, 3 to 2048) to `wrap_async_datadump_hook`. Without a `schedule` all steps are looked at.
    Random states are set by `seed_all(seed)`, as torch_npu.hooks did; `seed=None` leaves them alone.

    Raises:
        HookUsageError: an argument is wrong.
    """
    if not isinstance(model, torch.nn.Module):
        raise HookUsageError(f"the model is a {type(model).__name__}; expected a torch.nn.Module")
    make = _KINDS.get(hook) if callable(hook) else None
    if make is None:
        known = ", ".join(each.__name__ for each in _KINDS)
        shown = getattr(hook, "__name__", repr(hook))
        raise HookUsageError(f"the hook is {shown}; expected one of {known}")
    step_schedule.set_schedule(steps.schedule() if schedule is None else schedule)
    kind = make(sample=sample, path=path, capacity=FEWEST if capacity is None else capacity)
    if seed is not None:
        seed_all(seed)
    _hooks.use(kind, model)


def unregister_hook() -> None:
    """Look at no calls any more, and finish the files. torch_npu.hooks had no such name."""
    _hooks.stop()


def seed_all(seed: int = SEED) -> None:
    """Set the random states of Python, numpy and torch, and that of hashing in child processes.

    Raises:
        HookUsageError: it is no number from 0 to 2**32 - 1.
    """
    if type(seed) is not int or not 0 <= seed < _SEEDS:
        raise HookUsageError(
            f"the seed is {seed!r}; expected a whole number from 0 to {_SEEDS - 1}"
        )
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


_KINDS: dict[Callable[..., ModuleHook], Callable[..., Kind]] = {
    wrap_acc_cmp_hook: lambda sample, path, capacity: AccuracyLines(sample),
    wrap_checkoverflow_hook: lambda sample, path, capacity: OverflowCheck(),
    wrap_async_datadump_hook: lambda sample, path, capacity: AsyncArrays(path, capacity),
}


class _Hooks:
    """What is registered in this process."""

    def __init__(self) -> None:
        self._sink: HookSink | None = None
        self._layers = Layers()
        self._entered = ExitStack()

    def use(self, kind: Kind, model: torch.nn.Module) -> None:
        """Hand calls to a hook, in place of the one before."""
        self._layers.add(model)
        if self._sink is not None:
            self._sink.kind.close()
            self._sink.kind = kind
            return
        self._sink = HookSink(kind, self._layers, step_schedule)
        self._entered.enter_context(backward_passes_seen(self._sink.mode))
        self._entered.enter_context(self._sink.mode.operators_named())
        self._entered.enter_context(self._sink.mode)

    def stop(self) -> None:
        """Look at no calls any more."""
        self._entered.close()
        if self._sink is not None:
            self._sink.stop()
        DUMP_FILE.close()
        self._sink = None
        self._layers = Layers()


_hooks = _Hooks()
