"""Traces of a step: what a run of it came to, with a capture or without.

Comes in: when a step begins and ends, as for any capture. Goes out: its `StepTrace`. Made for a step that is
verified, in the place of the probe that only captures.

A plain run has hooks where a step begins and ends alone: at the optimizer, at the model, and where the
backward pass begins. The operators run as they do without this package.
"""

import functools
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.autograd
import torch.distributed
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import Optimizer

from ray_precheck.capture.probe import StepProbe
from ray_precheck.capture.pytorch.calls import Sink, detour, is_compiling
from ray_precheck.capture.pytorch.probe import TorchProbe
from ray_precheck.capture.pytorch.recorder import TorchRecorder
from ray_precheck.capture.pytorch.tensors.nested import tensors_in
from ray_precheck.capture.pytorch.updates.optimizers import Arguments
from ray_precheck.capture.pytorch.verifying.digests import TorchDigests, unseen
from ray_precheck.capture.pytorch.verifying.held import HeldValues
from ray_precheck.capture.pytorch.verifying.state import saved_state
from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.capture.verifying.digests import OperatorDigests
from ray_precheck.capture.verifying.step import TracedStep, TracingProbe
from ray_precheck.capture.verifying.trace import StepTrace, TracedRun


class TorchTracingProbe(TracingProbe, TorchProbe):
    """PyTorch in this process, with a trace of each step."""

    models = (torch.nn.Module,), "torch.nn.Module"
    optimizers = (Optimizer,), "torch.optim.Optimizer"
    saved_state = staticmethod(saved_state)
    _held: HeldValues | None = None

    def watch_steps(self, on_step: Callable[[], None], on_forward: Callable[[], None]) -> None:
        """Tell of steps and of calls of the model, as for a capture."""
        super().watch_steps(on_step, on_forward)
        self._handles.append(register_module_forward_hook(self._after_forward))

    def ranks_here(self) -> int:
        """Return how many ranks run on this machine and wait for each other."""
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return 1
        ranks = distributed.get_world_size()
        here = os.environ.get("LOCAL_WORLD_SIZE", "")
        return min(ranks, int(here)) if here.isdecimal() else ranks

    def _after_forward(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if is_compiling():
            return
        if self.traced is not None and self._model is not None and self._model() is module:
            self.traced.gave(module.named_parameters(), output)

    def _before_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        changed = super()._before_update(optimizer, args, kwargs)
        if self.traced is not None:
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            self.traced.updates(optimizer, parameters, [each.grad for each in parameters])
        return changed

    def traced_step(self, captured: StepProbe | None, models: Any) -> TracedStep:
        """Return a step of torch."""
        return TracedTorchStep(captured, models, self.trace_ended)

    def sink_around(self, recorder: TorchRecorder) -> Sink | None:
        """Return what takes digests around each call, in a watched run."""
        if self.run is TracedRun.CAPTURED:
            self._held = HeldValues(recorder, TracedTorchStep.digests)
        if not self.run.is_watched:
            return None
        operators = self.operators = OperatorDigests(TracedTorchStep.digests, _nodes_of)
        record = recorder.call if recorder.settings.calls else None

        def watched(call: SeenCall) -> Any:
            make = call.run if record is None else functools.partial(record, call)
            return operators.around(call, make)

        return watched

    def trace_ended(self, trace: StepTrace) -> None:
        """Take the trace of a step that has ended, and whether the dump holds what the tensors held."""
        if self._held is not None:
            trace.held, trace.wrong = self._held.count, self._held.differences()
        self._held = None
        super().trace_ended(trace)


def _nodes_of(output: Any) -> list[Any]:
    with unseen():
        return list(dict.fromkeys(tensor.grad_fn for tensor in tensors_in(output)))


class TracedTorchStep(TracedStep):
    """One step of torch, with hooks at the model and where backward passes begin."""

    digests = TorchDigests()

    def __init__(
        self, captured: StepProbe | None, models: Any, ended: Callable[[StepTrace], None]
    ) -> None:
        super().__init__(captured, ended)
        self._passes = 0
        self._hooks = ExitStack()
        given = models if isinstance(models, list | tuple) else [models]
        for number, model in enumerate(given):
            prefix = f"{number}." if len(given) > 1 else ""
            if model is not None:
                self.add((f"{prefix}{name}", each) for name, each in model.named_parameters())
        for name in ("backward", "grad"):
            self._hooks.enter_context(detour(torch.autograd, name, self._beginning(name)))

    def collect(self, trace: StepTrace) -> None:
        """Take what the step came to, and the hooks away."""
        self._hooks.close()
        for name, parameter in self.alive():
            # An optimizer with a closure has them at its end only.
            label = f"the gradient of {name}"
            trace.gradients[label] = trace.gradients.get(label) or self.digest_if_any(
                parameter.grad
            )
        super().collect(trace)

    def abandon(self) -> None:
        """Take nothing, and the hooks away."""
        self._hooks.close()
        super().abandon()

    def _beginning(self, name: str) -> Callable[..., Any]:
        """Return torch's function that begins a backward pass, which takes the losses first.

        A pass within a pass (of a checkpoint) begins with no loss.
        """
        original = getattr(torch.autograd, name)

        @functools.wraps(original)
        def begin(*args: Any, **kwargs: Any) -> Any:
            if not self._passes:
                losses = self._trace.losses
                started = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
                losses[f"loss {len(losses)}"] = self.digests.of(started)
            self._passes += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._passes -= 1

        return begin
