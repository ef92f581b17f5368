"""The updates of optimizers in a captured step, and the steps that gradient scalers make.

Comes in: each `optimizer.step()`, through torch's global hooks of optimizers. Goes out: one record of it,
`Optimizer.{class}.{n}.forward`, with parameters, gradients, states and hyperparameters before the step and
parameters and states after it. Made by the probe for a captured step; `frameworks.pytorch.optimizers`
has the form of a record and reads it again.

    input_args    a dict for each group: its hyperparameters, `group` (its number), `param_dtype`, `names`,
                  `params`, `grads`, `state` (a list for each state; no field where there is none)
    input_kwargs  `optimizer` (the full name of the class), `without_gradient` (how many parameters have
                  none: they are left out), and only where it is so: `sparse` (the names of parameters with
                  a sparse gradient), `sharded`, `options` (of the optimizer itself), `grad_scale`,
                  `closure`, `part` and `parts`
    output        a dict for each group: `params` and `state`

Parameters of one group that differ in dtype, or in the states that they have, stand in several dicts. The
record of a large optimizer is parted, so that a check fits into memory: n counts records. A step that a
gradient scaler skips has no record, and neither has one that raises.

`ScalerSteps` tells of each call of `torch.amp.GradScaler.step`, which calls the step of an optimizer, or
skips it where a gradient is infinite or NaN: torch's hooks of optimizers do not see a step that is skipped.
"""

import functools
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch.optim import Optimizer

from ray_precheck.capture.pytorch.calls import EXCHANGED, CallMode, detour
from ray_precheck.capture.pytorch.recorder import TorchRecorder

# What one record may hold: to check 8.4 million elements of Adam in float32 takes 2.4 GB of memory, and
# 500 parameters of Adam are 1 MB of JSON.
MOST_ELEMENTS, MOST_PARAMETERS = 1 << 23, 500
_RESERVED = frozenset({"param_dtype", "names", "group", "params", "param_names", "grads", "state"})
NameOf = Callable[[torch.Tensor], str]
# What the message of a fault names.
_NAME = "Optimizer.step"
# Where torch calls the hooks.
_FILE_OF_TORCH = sys.modules[Optimizer.__module__].__file__
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
# Gets the scaler, its optimizer, and the function that makes the step, whose result it returns.
Around: TypeAlias = Callable[[Any, Any, Callable[[], Any]], Any]


@dataclass(frozen=True)
class Member:
    """A parameter with a gradient, and its name."""

    name: str
    parameter: torch.Tensor
    states: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """Parameters of one group that have the same dtype and the same states."""

    number: int
    options: dict[str, Any]
    members: list[Member]


@dataclass
class _Step:
    """A step that runs: the frame in which torch calls the hooks, and the records it has begun, each with its
    key, its entries, and the fields of its inputs."""

    optimizer: Optimizer
    frame: FrameType
    was_paused: bool
    depth: int = 1
    records: list[tuple[str, list[Entry], str]] = field(default_factory=list)
    is_read: bool = False


class OptimizerSteps:
    """Records the updates of optimizers until `close`.

    The probe calls `before` and `after` from its hooks of torch's optimizers: torch does not allow hooks to
    come and go while it walks through them. `mode` is paused inside of a step, but not inside of its closure,
    which runs the model. `name_of` names a parameter, "" where it does not know it; such parameters have the
    number that they have in the optimizer's `state_dict`. Without `are_recorded` the mode is paused, and
    nothing is written.
    """

    def __init__(
        self,
        sink: TorchRecorder,
        mode: CallMode,
        name_of: NameOf,
        *,
        are_recorded: bool,
    ) -> None:
        self._sink = sink
        self._mode = mode
        self._name_of = name_of
        self._are_recorded = are_recorded
        self._running: dict[int, _Step] = {}

    def close(self) -> None:
        """Record the steps whose `step` has done its work, and drop others."""
        for step in list(self._running.values()):
            is_done = _is_on_stack(step.frame)
            self._sink.guarded(_NAME, functools.partial(self._end, step, is_done=is_done))

    def before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        """Read what a step gets; torch's hook before it.

        A step with a closure has its gradients when the closure has run for the first time.
        """
        frame = _frame_of_step()
        return self._sink.guarded(_NAME, lambda: self._begin(optimizer, args, kwargs, frame))

    def _begin(
        self,
        optimizer: Optimizer,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: FrameType,
    ) -> Arguments | None:
        if self._sink.stopped:
            return None
        step = self._running.get(id(optimizer))
        if step is not None and _is_on_stack(step.frame):
            step.depth += 1  # the class calls the step of its base
            return None
        if step is not None:
            self._end(step, is_done=False)  # it has raised
        step = _Step(optimizer, frame, self._mode.pause(True))
        self._running[id(optimizer)] = step
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._read(step)
            return None
        watched = self._watched(closure, step)
        if len(args) > 1:
            return (args[0], watched, *args[2:]), kwargs
        return args, {**kwargs, "closure": watched}

    def after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read what a step has made, and write its records; torch's hook after it."""
        step = self._running.get(id(optimizer))
        if step is None:
            return
        step.depth -= 1
        if not step.depth:
            self._sink.guarded(_NAME, lambda: self._end(step, is_done=True))

    def _end(self, step: _Step, *, is_done: bool) -> None:
        self._running.pop(id(step.optimizer), None)
        # A fused kernel keeps the versions of what it changes, and so does FSDP, which fills the
        # memory of whole parameters again.
        self._sink.forget_all()
        try:
            if is_done:
                self._write(step)
        finally:
            self._mode.pause(step.was_paused)

    def _watched(self, closure: Callable[[], Any], step: _Step) -> Callable[[], Any]:
        def run() -> Any:
            paused = self._mode.pause(step.was_paused)
            try:
                result = closure()
            finally:
                self._mode.pause(paused)
            if not step.is_read and id(step.optimizer) in self._running:
                self._sink.guarded(_NAME, lambda: self._read(step, has_closure=True))
            return result

        return run

    def _read(self, step: _Step, *, has_closure: bool = False) -> None:
        """Write what the optimizer gets, before it changes its tensors."""
        step.is_read = True
        optimizer = step.optimizer
        if not self._are_recorded or is_skipped(optimizer):
            return
        entries, without_gradient = entries_of(optimizer, self._name_of)
        parts = list(parted(entries))
        told = _told_of(optimizer, without_gradient)
        if has_closure:
            told["closure"] = True
        name = f"Optimizer.{type(optimizer).__name__}"
        for number, part in enumerate(parts):
            key = f"{name}.{self._sink.number(name)}.forward"
            if not self._sink.scope.wants(key):
                continue
            if len(parts) > 1:
                told |= {"part": number, "parts": len(parts)}
            groups = tuple(given(entry, optimizer) for entry in part)
            fields = self._sink.before(key, groups, told | sparse(part))
            fields += EXCHANGED if _has_partial(part) else ""
            step.records.append((key, part, fields))

    def _write(self, step: _Step) -> None:
        caller = step.frame.f_back or step.frame
        for key, entries, before in () if self._sink.stopped else step.records:
            output = [made(entry, step.optimizer) for entry in entries]
            fields = before + self._sink.after(key, output)
            self._sink.write(key, fields, self._sink.stack_of(caller), self._sink.parent)


def _has_partial(entries: list[Entry]) -> bool:
    """Return whether a gradient is this rank's part of a sum, which the step adds up with other ranks."""
    gradients = (each.parameter.grad for entry in entries for each in entry.members)
    return any(
        place.is_partial() for each in gradients for place in getattr(each, "placements", ())
    )


def entries_of(optimizer: Optimizer, name_of: NameOf) -> tuple[list[Entry], int]:
    """Return the parameters with a gradient, and how many have none."""
    numbers = itertools.count()
    without_gradient, found = 0, []
    for number, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or []
        alike: dict[tuple[Any, ...], list[Member]] = defaultdict(list)
        for place, parameter in enumerate(group["params"]):
            index = next(numbers)
            if parameter.grad is None:
                without_gradient += 1
                continue
            own = str(names[place]) if place < len(names) else ""
            states = tuple(_states(optimizer, parameter))
            member = Member(own or name_of(parameter) or str(index), parameter, states)
            alike[parameter.dtype, states].append(member)
        options = {str(key): value for key, value in group.items() if key not in _RESERVED}
        found += [Entry(number, options, members) for members in alike.values()]
    return found, without_gradient


def _told_of(optimizer: Optimizer, without_gradient: int) -> dict[str, Any]:
    """Return what is to be said of an optimizer besides its groups."""
    kind = type(optimizer)
    about: dict[str, Any] = {
        "optimizer": f"{kind.__module__}.{kind.__qualname__}",
        "without_gradient": without_gradient,
    }
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    if any(hasattr(each, "placements") for each in parameters):
        about["sharded"] = True
    options = {
        name: value
        for name, value in vars(optimizer).items()
        if not name.startswith("_") and type(value) in (bool, int, float, str)
    }
    if options:
        about["options"] = options
    scale = getattr(optimizer, "grad_scale", None)
    if isinstance(scale, torch.Tensor):
        about["grad_scale"] = scale
    return about


def parted(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Yield the entries of each record, in order; one parameter is never parted."""
    part: list[Entry] = []
    elements = count = 0
    for entry in entries:
        taken: list[Member] = []
        for member in entry.members:
            size = member.parameter.numel()
            if count and (elements + size > MOST_ELEMENTS or count >= MOST_PARAMETERS):
                yield [*part, *_some(entry, taken)]
                part, taken, elements, count = [], [], 0, 0
            taken.append(member)
            elements, count = elements + size, count + 1
        part += _some(entry, taken)
    if part:
        yield part


def _some(entry: Entry, members: list[Member]) -> list[Entry]:
    return [Entry(entry.number, entry.options, members)] if members else []


def _states(optimizer: Optimizer, parameter: torch.Tensor) -> dict[str, Any]:
    """Return the states of a parameter that are not None, in the order of their names."""
    found = optimizer.state.get(parameter)
    if not isinstance(found, dict):
        return {}
    return {str(name): found[name] for name in sorted(found, key=str) if found[name] is not None}


def sparse(entries: list[Entry]) -> dict[str, list[str]]:
    """Return the names of parameters whose gradient is sparse, if there are any."""
    names = [
        member.name
        for entry in entries
        for member in entry.members
        if member.parameter.grad is not None and member.parameter.grad.layout is not torch.strided
    ]
    return {"sparse": names} if names else {}


def given(entry: Entry, optimizer: Optimizer) -> dict[str, Any]:
    """Return what a group gets, as the record has it."""
    parameters = [member.parameter for member in entry.members]
    found = {
        **entry.options,
        "group": entry.number,
        "param_dtype": str(parameters[0].dtype),
        "names": [member.name for member in entry.members],
        "params": parameters,
        "grads": [parameter.grad for parameter in parameters],
    }
    return _with_states(found, [_states(optimizer, parameter) for parameter in parameters])


def made(entry: Entry, optimizer: Optimizer) -> dict[str, Any]:
    """Return what a step has made of a group."""
    parameters = [member.parameter for member in entry.members]
    states = [_states(optimizer, parameter) for parameter in parameters]
    return _with_states({"params": parameters}, states)


def _with_states(found: dict[str, Any], states: list[dict[str, Any]]) -> dict[str, Any]:
    names = sorted({name for state in states for name in state})
    if names:
        found["state"] = {name: [state.get(name) for state in states] for name in names}
    return found


def _frame_of_step() -> FrameType:
    """Return the frame in which torch calls the hooks of a step, or that of the caller without one."""
    first = frame = sys._getframe(2)
    while frame.f_code.co_filename != _FILE_OF_TORCH:
        if frame.f_back is None:
            return first
        frame = frame.f_back
    return frame


def _is_on_stack(wanted: FrameType) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return frame is not None


def is_skipped(optimizer: Optimizer) -> bool:
    """Return whether a gradient scaler lets a fused kernel skip the step, as it tells the optimizer."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and bool(found.item())


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
