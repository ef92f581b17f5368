"""Traces of a step of MindSpore: what a run of it came to, with a capture or without.

Comes in: when a step begins and ends, as for any capture. Goes out: its `StepTrace`. Made for a step that is
verified, in the place of the probe that only captures.

A plain run has the watch of steps alone, which sees the calls of Cells and of loss scalers. The operators
run as they do without this package.
"""

import functools
from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import mint, nn

from ray_precheck import private_parts
from ray_precheck.capture.measures.checksums import raw_bytes
from ray_precheck.capture.mindspore.calls import CallSink
from ray_precheck.capture.mindspore.detour import OPTIMIZERS, StepWatch, is_optimizer
from ray_precheck.capture.mindspore.gradients import node_of
from ray_precheck.capture.mindspore.probe import MindSporeProbe
from ray_precheck.capture.mindspore.recorder import MindSporeRecorder, tensors_within
from ray_precheck.capture.mindspore.tensors import values_on_host
from ray_precheck.capture.mindspore.verifying.state import saved_mindspore_state
from ray_precheck.capture.probe import StepProbe
from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.capture.verifying.digests import Digests, OperatorDigests
from ray_precheck.capture.verifying.step import TracedStep, TracingProbe
from ray_precheck.foreign import caught


class MindSporeDigests(Digests):
    """Takes digests of the values of a MindSpore program, read on the host, so that no operator runs.

    The states within random kernels cannot be read: what they draw is.
    """

    tensor = ms.Tensor

    def raw(self, tensor: ms.Tensor) -> Any:
        """Return the bytes of a tensor, None for one not yet initialised, or of a failed operator."""
        values, _ = caught(lambda: values_on_host(tensor))
        return None if values is None else raw_bytes(values).data

    def states(self) -> dict[str, Any]:
        """Return the state of MindSpore's generator, with the seeds that the next kernels get."""
        seeds: dict[Any, int] = private_parts.find(private_parts.MINDSPORE_SEEDS) or {}
        state = [ms.get_rng_state(), *map(str, sorted(seeds.items(), key=str))]
        return {"the random state of MindSpore": state}


class TracedMindSporeStep(TracedStep):
    """One step of MindSpore."""

    digests = MindSporeDigests()


class MindSporeTracingProbe(TracingProbe, MindSporeProbe):
    """MindSpore in this process, with a trace of each step."""

    models = (nn.Cell,), "mindspore.nn.Cell"
    optimizers = OPTIMIZERS, "mindspore.nn.Optimizer or one of mint.optim"
    saved_state = staticmethod(saved_mindspore_state)

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

    def traced_step(self, captured: StepProbe | None, models: Any) -> TracedStep:
        """Return a step of MindSpore."""
        return TracedMindSporeStep(captured, self.trace_ended)

    def sink_around(self, recorder: MindSporeRecorder) -> CallSink | None:
        """Return what takes digests around each call, in a watched run."""
        if not self.run.is_watched:
            return None
        sink = WatchedCalls(recorder if recorder.settings.calls else None)
        self.operators = sink.operators
        return sink


class WatchedCalls:
    """Takes digests around each call; `recorder` makes its record, or none."""

    def __init__(self, recorder: MindSporeRecorder | None) -> None:
        self._recorder = recorder
        self.operators = OperatorDigests(
            TracedMindSporeStep.digests,
            lambda output: [node_of(tensor) for tensor in tensors_within(output)],
        )

    def call(self, call: SeenCall) -> Any:
        """Take digests of what a call gets and gives; a collective may still be underway."""
        recorder = self._recorder
        make = call.run if recorder is None else functools.partial(recorder.call, call)
        return self.operators.around(call, make, is_under_way=call.name.collective)

    def compiled(self, call: SeenCall, result: Any) -> None:
        """Take a digest of what a compiled function got and gave."""
        self.operators.region(call, result)
        if self._recorder is not None:
            self._recorder.compiled(call, result)


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
                given = args[0] if isinstance(args[0], list | tuple) else [args[0]]
                self._probe.traced.updates(cell, list(cell.parameters), given)
            result = make()
            # Not in the middle of an optimizer's call: the watch ends the step behind it.
            traced = self._probe.traced  # which the call may have begun
            is_model = self._first.get("model") is cell
            if traced is not None and is_model:
                traced.gave(cell.parameters_and_names(), result)
            return result

        return super().call(cell, args, seen)
