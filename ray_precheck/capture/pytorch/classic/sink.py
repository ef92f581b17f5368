"""Where the calls go that a registered hook looks at.

Comes in: each call of an operator. Goes out: the call and its gradients, to the hook. Made by
`register_hook`.
"""

import os
import weakref
from types import FrameType
from typing import Any

import torch
from torch.nn import Module

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.calls import CallMode
from ray_precheck.capture.pytorch.classic.kinds import Kind, Place
from ray_precheck.capture.pytorch.classic.steps import StepSchedule
from ray_precheck.capture.pytorch.gradients import (
    Edge,
    PassedGradients,
    Places,
    edges_of,
    watch_border,
)
from ray_precheck.capture.pytorch.names import FunctionNames
from ray_precheck.capture.pytorch.tensors.nested import tensors_in
from ray_precheck.capture.pytorch.twice import input_places
from ray_precheck.capture.recording.dark import modules_around
from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.capture.recording.stacks import Stacks

# The method of torch in which each call of a module runs.
_CALL = "_call_impl"


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
