"""Traces of a step of MindSpore: what a run of it came to, with a capture or without.

Comes in: when a step begins and ends, as for any capture. Goes out: its `StepTrace`. Made for a step that is
verified, in the place of the probe that only captures.

A plain run has the watch of steps alone, which sees the calls of Cells and of loss scalers. The operators
run as they do without this package.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import mint, nn

from ray_precheck.capture.mindspore.calls import CallSink
from ray_precheck.capture.mindspore.detour import StepWatch, is_optimizer
from ray_precheck.capture.mindspore.probe import MindSporeProbe
from ray_precheck.capture.mindspore.recorder import MindSporeRecorder
from ray_precheck.capture.mindspore.verifying.digests import (
    mindspore_digest_of,
    mindspore_random_digests,
)
from ray_precheck.capture.mindspore.verifying.operators import MindSporeOperatorDigests
from ray_precheck.capture.probe import StepProbe
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.verifying.step import TracedStepProbe, settings_of_run
from ray_precheck.capture.verifying.trace import StepTrace, TracedRun
from ray_precheck.foreign import caught


class MindSporeTracingProbe(MindSporeProbe):
    """MindSpore in this process, with a trace of each step; `trace` is that of the last one."""

    def __init__(self, run: TracedRun) -> None:
        super().__init__()
        self.trace: StepTrace | None = None
        self.traced: TracedMindSporeStep | None = None
        self._run = run
        self._operators: MindSporeOperatorDigests | None = None

    def step_watch(self, on_step: Callable[[], None], on_forward: Callable[[], None]) -> StepWatch:
        """Return what sees the steps, and takes what the model gives and the optimizer gets."""
        return TracedWatch(self, on_step, on_forward)

    def ranks_here(self) -> int:
        """Return how many ranks run on this machine and wait for each other."""
        if not (ms.communication.GlobalComm.INITED or mint.distributed.is_initialized()):
            return 1
        ranks = int(ms.communication.get_group_size())
        here, _ = caught(lambda: int(ms.communication.get_local_rank_size()))
        return min(ranks, here or ranks)

    def begin(  # type: ignore[override]
        self,
        settings: CaptureSettings,
        folder: Path,
        models: Any,
        on_failure: Callable[[str], None],
    ) -> "TracedMindSporeStep":
        """Begin a step, and its capture where the run has one."""
        captured: StepProbe | None = None
        if self._run is not TracedRun.PLAIN:
            chosen = settings_of_run(self._run, settings)
            captured = super().begin(chosen, folder, models, on_failure)
        self.traced = TracedMindSporeStep(captured, self._trace_ended)
        return self.traced

    def sink_around(self, recorder: MindSporeRecorder) -> CallSink | None:
        """Return what takes digests around each call, in a watched run."""
        if not self._run.is_watched:
            return None
        self._operators = MindSporeOperatorDigests(recorder if recorder.settings.calls else None)
        return self._operators

    def _trace_ended(self, trace: StepTrace) -> None:
        if self._operators is not None:
            trace.sights = list(self._operators.sights)
        self.trace, self.traced = trace, None


class TracedWatch(StepWatch):
    """Takes what the model gives, and the gradients with which optimizers step."""

    def __init__(
        self,
        probe: MindSporeTracingProbe,
        on_step: Callable[[], None],
        on_forward: Callable[[], None],
    ) -> None:
        super().__init__(on_step, on_forward, probe.scaled)
        self._probe = probe

    def call(self, cell: nn.Cell, args: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Make a call of a Cell."""

        def seen() -> Any:
            if self._probe.traced is not None and is_optimizer(cell) and args:
                self._probe.traced.updates(cell, args[0])
            result = make()
            # Not in the middle of an optimizer's call: the watch ends the step behind it.
            if self._probe.traced is not None and self._first.get("model") is cell:
                self._probe.traced.gave(cell, result)
            return result

        return super().call(cell, args, seen)


class TracedMindSporeStep(TracedStepProbe):
    """One step of MindSpore."""

    def __init__(self, captured: StepProbe | None, ended: Callable[[StepTrace], None]) -> None:
        super().__init__(captured, ended, mindspore_digest_of)
        self._parameters: dict[str, ms.Parameter] = {}
        self._names: dict[int, str] = {}
        self._optimizers: list[int] = []

    def gave(self, model: nn.Cell, output: Any) -> None:
        """Take what the model gave."""
        self._add(model.parameters_and_names())
        outputs = self._trace.outputs
        outputs[f"output {len(outputs)} of the model"] = mindspore_digest_of(output)

    def updates(self, optimizer: nn.Cell, gradients: Any) -> None:
        """Take the gradients with which an optimizer steps, in the order of its parameters."""
        if id(optimizer) not in self._optimizers:
            self._optimizers.append(id(optimizer))
        number = self._optimizers.index(id(optimizer))
        label = f"parameter {{}} of optimizer {number}"
        self._add((label.format(place), each) for place, each in enumerate(optimizer.parameters))
        given = gradients if isinstance(gradients, list | tuple) else [gradients]
        for parameter, gradient in zip(optimizer.parameters, given, strict=False):
            name = self._names[id(parameter)]
            self._trace.gradients[f"the gradient of {name}"] = mindspore_digest_of(gradient)

    def _add(self, named: Iterable[tuple[str, ms.Parameter]]) -> None:
        for name, parameter in named:
            if id(parameter) not in self._names:
                self._names[id(parameter)] = name
                self._parameters[name] = parameter

    def collect(self, trace: StepTrace) -> None:
        """Take the parameters behind the step, and the random states."""
        for name, parameter in self._parameters.items():
            trace.weights[f"{name} after the step"] = mindspore_digest_of(parameter)
        trace.random = mindspore_random_digests()
