"""What `capture --watch` measures of a training of PyTorch in each step.

Comes in: calls of `backward`, of torch's functions that clip gradients, and of optimizers. Goes out: the
numbers of a row: loss, norms of gradients and parameters, in all and by module, counts of NaN and infinity.
Made by `pytorch.probe` for a session that watches.

The tensors are looked at once a step, by one `_foreach_norm` of all gradients and one of all
parameters of an optimizer, before its update; where the script clips its gradients by torch's functions,
before these, because what is clipped never jumps. A norm is finite exactly where all values are (but for sums
of squares beyond float32), so values are counted only where a norm is not. Norms of half types are float32.

On the CPU the numbers are there at once. On an accelerator they are copied in one piece a step into pinned
memory, without waiting, and read at the end of the next step: the row comes one step later, and where a norm
is not finite it counts gradients instead of values. This was not run on an accelerator: the tests drive the
same code with tensors on the CPU.
"""

import functools
import math
import operator
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.utils
from torch.optim import Optimizer

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.calls import Aside, detour, is_compiling
from ray_precheck.capture.pytorch.norms import (
    MOST_GROUPS,
    is_late,
    mean_of,
    module_groups,
    norms_of,
    readable,
    together,
)
from ray_precheck.foreign import caught, first_line
from ray_precheck.schema.dtypes import Array

# The last norms of an optimizer count in the totals until it has not stepped for so many steps: a generator
# that steps after every fifth step of its critic is a part of each row, one of an earlier phase is not.
_MOST_AGE = 50
_CLIPPING = ("clip_grad_norm_", "clip_grad_value_")
_Numbers = dict[str, float | int | None]
_NameOf = Callable[[torch.Tensor], str]


@dataclass(slots=True)
class _Layout:
    """The parameters of an optimizer, the numbers of their groups, and the squares of their last norms."""

    parameters: list[torch.Tensor]
    groups: Array
    gradient_squares: Array
    parameter_squares: Array
    last_step: int = 0


@dataclass(slots=True)
class _Reading:
    """Norms, those of the gradients first, then those of all parameters, then, with `is_scaled`, the scale of
    the gradients and whether one is infinite. `numbers` are the places of the gradients in the layout."""

    layout: _Layout
    numbers: list[int]
    norms: torch.Tensor
    is_scaled: bool


@dataclass(slots=True)
class _Step:
    """What was seen in one step so far."""

    losses: list[Any] = field(default_factory=list)
    scale: float = 1.0
    nan: int = 0
    inf: int = 0
    is_skipped: bool = False
    has_updates: bool = False
    # By parameter: its gradient and the version that clipping has left, and the norm that it had before.
    clipped: dict[int, tuple[int, int, torch.Tensor]] = field(default_factory=dict)
    measured: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)
    readings: list[_Reading] = field(default_factory=list)
    sent: torch.Tensor | None = None
    event: Any = None


class TorchMeasures:
    """Measures each step, from its making until `close`; `name_of` names a parameter, "" where it does not
    know it. `failure` says why nothing is measured any more."""

    def __init__(self, name_of: _NameOf) -> None:
        self.failure = ""
        self._name_of = name_of
        self._now, self._number = _Step(), 0
        self._under_way: deque[_Step] = deque()
        self._layouts: weakref.WeakKeyDictionary[Optimizer, _Layout] = weakref.WeakKeyDictionary()
        self._groups: dict[str, int] = {}
        self._unseen = private_parts.find(private_parts.NO_FUNCTION_MODE) or nullcontext
        self._aside = Aside()
        self._hooks = ExitStack()
        self._is_fsdp_seen = False
        self._hooks.enter_context(detour(torch.autograd, "backward", self._backward_told()))
        for name in _CLIPPING:
            self._see_clipping(name)

    def close(self) -> list[_Numbers]:
        """Take the hooks away, and return the rows that were still on their way."""
        self._hooks.close()
        return self._arrived(wait=True)

    def leave(self) -> None:
        """Measure nothing in this process, which was forked."""
        self.failure = "this process was forked"
        self._hooks.close()

    def before_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Read gradients and parameters; torch's hook before a step. One with a closure has its gradients
        when it has run."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        now = self._now
        if callable(closure):
            now.awaited.add(id(optimizer))
        elif id(optimizer) not in now.measured:  # a class may call the step of its base
            now.measured.add(id(optimizer))
            self._guarded(lambda: self._measure(optimizer))
        if not self._is_fsdp_seen:
            self._see_fsdp()

    def after_update(self, optimizer: Optimizer) -> None:
        """Read gradients and parameters of a step with a closure; torch's hook after it."""
        if id(optimizer) in self._now.awaited:
            self._now.awaited.discard(id(optimizer))
            self._guarded(lambda: self._measure(optimizer))

    def scaled(self, scale: float) -> None:
        """Take note by what a gradient scaler has multiplied the losses of this step."""
        self._now.scale = scale

    def skipped(self) -> None:
        """Take note that a gradient scaler skips the update."""
        self._now.is_skipped = True

    def end_step(self) -> list[_Numbers]:
        """Return the numbers of the steps that have arrived, the oldest one first, by their columns."""
        now, self._now = self._now, _Step()
        now.clipped.clear()
        self._number += 1
        self._guarded(lambda: _send(now))
        self._under_way.append(now)
        return self._arrived(wait=False)

    def _arrived(self, *, wait: bool) -> list[_Numbers]:
        found: list[_Numbers] = []
        while self._under_way:
            if not wait and len(self._under_way) == 1 and self._under_way[0].sent is not None:
                break
            step = self._under_way.popleft()
            numbers = self._guarded(lambda step=step: self._row(step))  # type: ignore[misc]
            found.append(numbers or {})
        return found

    def _guarded(self, action: Callable[[], Any]) -> Any:
        """Run an action where nothing of the script looks on; a fault ends the watch, not the training."""
        if self.failure or is_compiling():
            return None
        with self._unseen(), torch.no_grad():
            found, error = caught(self._aside(action))
        if error is not None:
            self.failure = f"a step cannot be measured, {type(error).__name__}: {first_line(error)}"
        return found

    # ---- what is seen

    def _backward_told(self) -> Callable[..., Any]:
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            original(tensors, *args, **kwargs)
            if not is_compiling():
                self._take_loss(tensors)

        return backward

    def _take_loss(self, tensors: Any) -> None:
        """Take the loss of a backward pass that was made; one that cannot be read (complex) is none."""
        first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        if isinstance(first, torch.Tensor):
            with self._unseen(), torch.no_grad():
                loss, _ = caught(self._aside(lambda: mean_of(first)))
            if loss is not None:
                self._now.losses.append(loss)

    def _see_clipping(self, name: str) -> None:
        """See the calls of a function that clips, under whatever name a module has imported it."""
        original = getattr(torch.nn.utils, name)
        told = self._clipping_told(original)
        for module in list(sys.modules.values()):
            if vars(module).get(name) is original:
                self._hooks.enter_context(detour(module, name, told))

    def _clipping_told(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(parameters, torch.Tensor | list | tuple):
                parameters = list(parameters) or iter(())
            given = [parameters] if isinstance(parameters, torch.Tensor) else parameters
            return self._clipped(given, lambda: original(parameters, *args, **kwargs))

        return clip

    def _see_fsdp(self) -> None:
        """See the method by which the older FSDP clips, once the script has imported it."""
        module = sys.modules.get("torch.distributed.fsdp")
        kind = getattr(module, "FullyShardedDataParallel", None)
        if kind is None:
            return
        self._is_fsdp_seen = True
        original = kind.clip_grad_norm_

        @functools.wraps(original)
        def clip(model: Any, *args: Any, **kwargs: Any) -> Any:
            return self._clipped([*model.parameters()], lambda: original(model, *args, **kwargs))

        self._hooks.enter_context(detour(kind, "clip_grad_norm_", clip))

    def _clipped(self, parameters: Sequence[torch.Tensor], clip: Callable[[], Any]) -> Any:
        """Clip gradients, and remember the norms that they had before."""
        norms = self._guarded(lambda: self._before_clipping(parameters)) or {}
        result = clip()
        clipped = self._now.clipped
        for each in parameters:
            norm = norms.get(id(each))
            if norm is not None and each.grad is not None:
                clipped[id(each)] = (id(each.grad), each.grad._version, norm)
        return result

    def _before_clipping(self, parameters: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        known = {id(each): self._before(each) for each in parameters}
        new = [each for each in parameters if known[id(each)] is None and each.grad is not None]
        grads = [each.grad for each in new if each.grad is not None]
        norms = norms_of(grads)
        # Clipping spreads NaN over all gradients, so it is counted before.
        if norms and not is_late(norms[0]) and not together(norms).isfinite().all():
            self._count(grads, norms)
        found = {identity: norm for identity, norm in known.items() if norm is not None}
        return found | {id(each): norm for each, norm in zip(new, norms, strict=True)}

    def _before(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return the norm of a gradient before it was clipped; None if it was not, or has changed since."""
        clipped, grad = self._now.clipped.get(id(parameter)), parameter.grad
        if clipped is None or grad is None or clipped[:2] != (id(grad), grad._version):
            return None
        return clipped[2]

    # ---- norms

    def _measure(self, optimizer: Optimizer) -> None:
        layout = self._layout_of(optimizer)
        layout.last_step, self._now.has_updates = self._number, True
        clipped = self._now.clipped
        all_grads = [each.grad for each in layout.parameters]
        numbers = [number for number, grad in enumerate(all_grads) if grad is not None]
        known = [self._before(layout.parameters[number]) for number in numbers] if clipped else []
        grads = [
            grad
            for place, number in enumerate(numbers)
            if (grad := all_grads[number]) is not None
            and not (clipped and known[place] is not None)
        ]
        measured = norms_of(grads)
        if clipped:
            rest = iter(measured)
            measured_all = [next(rest) if norm is None else norm for norm in known]
        else:
            measured_all = measured
        norms = measured_all + norms_of(layout.parameters)
        if not norms:
            return
        found_inf, scale = (getattr(optimizer, name, None) for name in ("found_inf", "grad_scale"))
        is_scaled = False
        if isinstance(found_inf, torch.Tensor):
            is_scaled = True  # a fused kernel unscales gradients itself, and skips the update
            scale = scale if isinstance(scale, torch.Tensor) else torch.ones_like(found_inf)
            norms += [scale.reshape(()), found_inf.reshape(())]
        vector = together(norms)
        reading = _Reading(layout, numbers, vector, is_scaled)
        if is_late(vector):
            self._now.readings.append(reading)
            return
        found = vector.numpy()
        if not np.isfinite(found).all():
            self._count(grads, measured)
        self._take(reading, found, self._now)

    def _count(self, grads: Sequence[torch.Tensor], norms: Sequence[torch.Tensor]) -> None:
        """Count NaN and infinity in gradients on the CPU, where a norm is not finite."""
        for grad, norm in zip(grads, norms, strict=True):
            if not math.isfinite(norm.item()):
                values = readable(grad)
                self._now.nan += int(values.isnan().sum())
                self._now.inf += int(values.isinf().sum())

    def _layout_of(self, optimizer: Optimizer) -> _Layout:
        """Return the layout of an optimizer, a new one where its parameters are others than before."""
        layout = self._layouts.get(optimizer)
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if (
            layout is not None
            and len(parameters) == len(layout.parameters)
            and all(map(operator.is_, parameters, layout.parameters))
        ):
            return layout
        modules = self._modules_of(optimizer, parameters)
        for module in modules:
            self._groups.setdefault(module, len(self._groups))
        groups = np.array([self._groups[each] for each in modules], np.int64)
        ours = {id(each) for each in parameters}
        for other in self._layouts.values():  # of an optimizer that this one replaces
            for number, each in enumerate(other.parameters):
                if id(each) in ours:
                    other.gradient_squares[number] = other.parameter_squares[number] = 0
        squares = np.zeros((2, len(parameters)))
        layout = self._layouts[optimizer] = _Layout(parameters, groups, squares[0], squares[1])
        return layout

    def _modules_of(self, optimizer: Optimizer, parameters: Sequence[torch.Tensor]) -> list[str]:
        """Return the module of each parameter, at the depth that the columns allow; those that are in no
        known model have the name of the optimizer."""
        names = [self._name_of(each) for each in parameters]
        most = max(1, MOST_GROUPS - len(self._groups))
        modules = module_groups([name for name in names if name], most)
        return [modules.get(name) or type(optimizer).__name__ for name in names]

    def _take(self, reading: _Reading, found: Array, step: _Step) -> None:
        """Keep the squares of norms that have arrived."""
        layout, count = reading.layout, len(reading.numbers)
        squares = np.square(found, dtype=np.float64)
        if reading.is_scaled:
            squares[:count] /= squares[-2]
            step.is_skipped = step.is_skipped or bool(found[-1])
        layout.gradient_squares[:] = 0
        layout.gradient_squares[reading.numbers] = squares[:count]
        layout.parameter_squares[:] = squares[count : count + len(layout.parameters)]

    def _row(self, step: _Step) -> _Numbers:
        """Return the numbers of a step, all of which have arrived."""
        if step.sent is not None:
            self._receive(step)
        losses = step.losses
        row: _Numbers = dict.fromkeys(("Loss", "Grad Norm", "Param Norm", "NaN", "Inf"))
        if losses:
            row["Loss"] = math.fsum(losses) / len(losses) / step.scale
        row["Skipped"] = int(step.is_skipped)
        if not step.has_updates:
            return row
        row["NaN"], row["Inf"] = step.nan, step.inf
        layouts = [
            each for each in self._layouts.values() if self._number - each.last_step <= _MOST_AGE
        ]
        groups = np.concatenate([each.groups for each in layouts])
        for heading, squares in (
            ("Grad Norm", [each.gradient_squares for each in layouts]),
            ("Param Norm", [each.parameter_squares for each in layouts]),
        ):
            sums = np.bincount(groups, np.concatenate(squares), len(self._groups))
            row[heading] = math.sqrt(sums.sum())
            if len(self._groups) > 1:
                norms = np.sqrt(sums).tolist()
                row.update({f"{heading} {name}": norms[n] for name, n in self._groups.items()})
        if (
            step.is_skipped
        ):  # the last norms of an optimizer that waits are those of its last update
            for each in layouts:
                each.gradient_squares[~np.isfinite(each.gradient_squares)] = 0
        return row

    def _receive(self, step: _Step) -> None:
        """Take what a step has sent from a device."""
        if step.sent is None:
            return
        if step.event is not None:
            step.event.synchronize()
        found, place = step.sent.numpy(), 0
        for reading in step.readings:
            part = found[place : place + reading.norms.numel()]
            place += reading.norms.numel()
            self._take(reading, part, step)
            grads = part[: len(reading.numbers)]
            step.nan += int(np.isnan(grads).sum())
            step.inf += int(np.isinf(grads).sum())
        late = iter(found[place:].tolist())
        step.losses = [
            next(late) if isinstance(each, torch.Tensor) else each for each in step.losses
        ]


def _send(step: _Step) -> None:
    """Let the numbers of a step travel to the host, in one copy."""
    parts = [reading.norms for reading in step.readings]
    parts += [each.reshape(1) for each in step.losses if isinstance(each, torch.Tensor)]
    if not parts:
        return
    device = parts[0].device
    sent = torch.cat([part.to(device, torch.float32) for part in parts])
    if device.type != "cpu":
        target = torch.empty(sent.shape, dtype=sent.dtype, pin_memory=True)
        sent = target.copy_(sent, non_blocking=True)
        step.event = torch.get_device_module(device).Event()
        step.event.record()
    step.sent = sent
