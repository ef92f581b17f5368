"""Starting and ending the hooks, and where the calls go that one looks at.

Comes in: a model, one of the three hooks, and its arguments. Goes out: nothing; from then on the calls of
operators in this thread, with their gradients, go to the hook. Called by training scripts, under the names
of `ray_precheck.hooks`.
"""

import os
import random
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import Module

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.calls import CallMode
from ray_precheck.capture.pytorch.classic import lines
from ray_precheck.capture.pytorch.classic.kinds import (
    FEWEST,
    AccuracyLines,
    AsyncArrays,
    Kind,
    OverflowCheck,
    Place,
)
from ray_precheck.capture.pytorch.classic.lines import (
    DUMP_FILE,
    HookUsageError,
    Schedule,
    StepSchedule,
    step_schedule,
)
from ray_precheck.capture.pytorch.detours import backward_passes_seen
from ray_precheck.capture.pytorch.gradients import (
    Edge,
    PassedGradients,
    Places,
    edges_of,
    input_places,
    watch_border,
)
from ray_precheck.capture.pytorch.names import FunctionNames
from ray_precheck.capture.pytorch.tensors.text import tensors_in
from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.capture.recording.stacks import Stacks, modules_around

# The method of torch in which each call of a module runs.
_CALL = "_call_impl"
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
    step_schedule.set_schedule(lines.schedule() if schedule is None else schedule)
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


class Layers:
    """The names of modules. Nothing is attached to a model, so that it can be copied and saved as before."""

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[Module, str] = weakref.WeakKeyDictionary()

    def add(self, model: Module) -> None:
        """Name the modules of a model."""
        for name, module in model.named_modules():
            kind = type(module).__name__
            self._names[module] = f"{name} ({kind})" if name else kind

    def at(self, frame: FrameType) -> tuple[str, bool]:
        """Return the name of the module that runs in a frame, and whether a registered model runs.

        A module of no registered model has the name of its class; without a module the name is "".
        """
        running = modules_around(frame, _CALL)
        known = [self._names.get(module, "") for module in running]
        if not running:
            return "", False
        return known[0] or type(running[0]).__name__, any(known)


class HookSink:
    """Hands calls and gradients to the hook that was registered last, in the process that registered it."""

    def __init__(self, kind: Kind, layers: Layers, steps: StepSchedule) -> None:
        self.kind = kind
        self.mode = CallMode(FunctionNames(), self.call)
        self._layers = layers
        self._steps = steps
        self._stacks = Stacks(left_out=(os.path.dirname(torch.__file__),))
        self._process = os.getpid()
        self._stopped = False
        self._engine = private_parts.find(private_parts.AUTOGRAD_ENGINE)

    def call(self, call: SeenCall) -> Any:
        """Make a call and hand it over."""
        name, frame, args, kwargs, run = call
        # Tensors that were given by name are numbered after the others.
        given = (*args, *(each for key, each in kwargs.items() if key != "out"))
        kind = self.kind
        if not self._is_on() or not kind.wants(name, bool(tensors_in(given))):
            return run()
        layer, in_model = self._layers.at(frame)
        api, stack = f"{name.prefix}_{name.name}", self._stacks.of(frame).number
        place = Place(f"{api}_forward", False, layer, lambda: self._stacks.lines(stack))
        if not kind.ready(place, in_model):
            return run()
        taken = kind.before(given)
        # Asked before the call, because one in place gives its argument another node.
        edges = edges_of(tensors_in(given)) if torch.is_grad_enabled() else []
        result = run()
        output = args[0] if name.returns_nothing else result
        kind.after(place, taken, given, output)
        if any(edges):
            backward = Place(f"{api}_backward", True, layer, place.stack)
            outputs = tensors_in(output)
            places = input_places(run, edges, outputs)
            self._watch(backward, kind, edges, outputs, places)
        return result

    def stop(self) -> None:
        """Look at nothing any more, also not at gradients of calls that were made before."""
        self._stopped = True
        self.kind.close()

    def _is_on(self) -> bool:
        return self._steps.is_step_enable() and os.getpid() == self._process

    def _watch(
        self,
        place: Place,
        kind: Kind,
        edges: list[Edge | None],
        outputs: list[torch.Tensor],
        places: Places | None,
    ) -> None:
        """Hand over the gradients of a call when they have passed through it."""

        def done(seen: PassedGradients) -> None:
            now = self.kind
            if self._stopped or type(now) is not type(kind) or os.getpid() != self._process:
                return
            args, output = tuple(seen.passed_on), tuple(seen.from_outside())
            if now.ready(place, False):
                now.after(place, now.before(args), args, output)

        border = watch_border(edges, outputs, done, places)
        if border is None or self._engine is None:
            return
        # Of a call whose outputs are not all used (an LSTM's last state) some gradients never arrive; those
        # that do are handed over when the backward pass ends.
        close, engine = border.close, self._engine
        for node in dict.fromkeys(each.grad_fn for each in outputs):
            if node is not None:
                node.register_prehook(lambda _: engine.queue_callback(close))


_hooks = _Hooks()
