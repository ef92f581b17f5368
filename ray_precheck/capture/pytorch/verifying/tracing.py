"""Traces of a step: what a run of it came to, with a capture or without.

Comes in: when a step begins and ends, as for any capture. Goes out: its `StepTrace`. Made for a step that is
verified, in the place of the probe that only captures.

A plain run has hooks where a step begins and ends alone: at the optimizer, at the model, and where the
backward pass begins. The operators run as they do without this package.
"""

import functools
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
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
from ray_precheck.capture.pytorch.updates.optimizers import Arguments
from ray_precheck.capture.pytorch.verifying.digests import digest_of, random_digests
from ray_precheck.capture.pytorch.verifying.held import HeldValues
from ray_precheck.capture.pytorch.verifying.operators import OperatorDigests
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.verifying.step import TracedStepProbe, settings_of_run
from ray_precheck.capture.verifying.trace import NOTHING, StepTrace, TracedRun
from ray_precheck.capture.writing.log import TENSORS


class TracingProbe(TorchProbe):
    """PyTorch in this process, with a trace of each step; `trace` is that of the last one."""

    def __init__(self, run: TracedRun) -> None:
        super().__init__()
        self.trace: StepTrace | None = None
        self._run = run
        self._traced: TracedStep | None = None
        self._operators: OperatorDigests | None = None
        self._held: HeldValues | None = None
        self._folder = Path()

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
        if self._traced is not None and self._model is not None and self._model() is module:
            self._traced.gave(module, output)

    def _before_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        changed = super()._before_update(optimizer, args, kwargs)
        if self._traced is not None:
            self._traced.updates(optimizer)
        return changed

    def begin(  # type: ignore[override]
        self,
        settings: CaptureSettings,
        folder: Path,
        models: Any,
        on_failure: Callable[[str], None],
    ) -> "TracedStep":
        """Begin a step, and its capture where the run has one."""
        captured: StepProbe | None = None
        if self._run is not TracedRun.PLAIN:
            chosen, self._folder = settings_of_run(self._run, settings), folder
            captured = super().begin(chosen, folder, models, on_failure)
        self._traced = TracedStep(captured, models, self._trace_ended)
        return self._traced

    def sink_around(self, recorder: TorchRecorder) -> Sink | None:
        """Return what takes digests around each call, in a watched run."""
        if self._run is TracedRun.CAPTURED:
            self._held = HeldValues(recorder, self._folder / TENSORS)
        if not self._run.is_watched:
            return None
        self._operators = OperatorDigests(recorder if recorder.settings.calls else None)
        return self._operators

    def _trace_ended(self, trace: StepTrace) -> None:
        if self._operators is not None:
            trace.sights = list(self._operators.sights)
        if self._held is not None:
            trace.held, trace.wrong = self._held.count, self._held.differences()
        self.trace, self._traced, self._held = trace, None, None


class TracedStep(TracedStepProbe):
    """One step of torch, with hooks at the model and where backward passes begin."""

    def __init__(
        self, captured: StepProbe | None, models: Any, ended: Callable[[StepTrace], None]
    ) -> None:
        super().__init__(captured, ended, digest_of)
        self._parameters: dict[str, weakref.ref[torch.Tensor]] = {}
        self._names: dict[int, str] = {}
        self._optimizers: list[int] = []
        self._passes = 0
        self._hooks = ExitStack()
        given = models if isinstance(models, list | tuple) else [models]
        for number, model in enumerate(given):
            if model is not None:
                self._add(f"{number}." if len(given) > 1 else "", model.named_parameters())
        for name in ("backward", "grad"):
            self._hooks.enter_context(detour(torch.autograd, name, self._beginning(name)))

    def collect(self, trace: StepTrace) -> None:
        """Take what the step came to, and the hooks away."""
        self._hooks.close()
        for name, parameter in self._alive():
            # An optimizer with a closure has them at its end only.
            label = f"the gradient of {name}"
            trace.gradients[label] = trace.gradients.get(label) or _gradient(parameter)
            trace.weights[f"{name} after the step"] = digest_of(parameter)
        trace.random = random_digests()

    def abandon(self) -> None:
        """Take nothing, and the hooks away."""
        self._hooks.close()
        super().abandon()

    def gave(self, model: torch.nn.Module, output: Any) -> None:
        """Take what the model gave."""
        self._add("", model.named_parameters())
        outputs = self._trace.outputs
        outputs[f"output {len(outputs)} of the model"] = digest_of(output)

    def updates(self, optimizer: Optimizer) -> None:
        """Take the gradients with which an optimizer steps."""
        if id(optimizer) not in self._optimizers:
            self._optimizers.append(id(optimizer))
        number = self._optimizers.index(id(optimizer))
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        label = f"parameter {{}} of optimizer {number}"
        self._add("", ((label.format(place), each) for place, each in enumerate(parameters)))
        for parameter in parameters:
            name = self._names.get(id(parameter))
            if name is not None:
                self._trace.gradients[f"the gradient of {name}"] = _gradient(parameter)

    def _add(self, prefix: str, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, parameter in named:
            known = self._names.get(id(parameter))
            if known is None or self._parameters[known]() is not parameter:
                self._names[id(parameter)] = f"{prefix}{name}"
                self._parameters[f"{prefix}{name}"] = weakref.ref(parameter)

    def _alive(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, reference in self._parameters.items():
            parameter = reference()
            if parameter is not None:
                yield name, parameter

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
                losses[f"loss {len(losses)}"] = digest_of(started)
            self._passes += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._passes -= 1

        return begin


def _gradient(parameter: torch.Tensor) -> str:
    gradient = parameter.grad
    return NOTHING if gradient is None else digest_of(gradient)
