"""Verifying that a capture of MindSpore changes nothing: traces of a step, and the state that it starts from.

Comes in: when a step begins and ends, as for any capture. Goes out: its `StepTrace`. Made for a step that is
verified, in the place of the probe that only captures.

A plain run has the watch of steps alone, which sees the calls of Cells and of loss scalers. The operators
run as they do without this package.

A kernel that belongs to one Cell (that of `nn.Dropout`) keeps a random state that nobody can read or write,
and without `mindspore.set_seed` so does each: a step that draws from one does not repeat itself, which its
verification says.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import mindspore as ms
from mindspore import mint, nn, ops

from ray_precheck import private_parts
from ray_precheck.capture.mindspore.calls import CallSink
from ray_precheck.capture.mindspore.elements import values_on_host
from ray_precheck.capture.mindspore.gradients import node_of
from ray_precheck.capture.mindspore.probe import MindSporeProbe
from ray_precheck.capture.mindspore.recorder import MindSporeRecorder, tensors_within
from ray_precheck.capture.mindspore.steps import OPTIMIZERS, StepWatch, is_optimizer
from ray_precheck.capture.probe import StepProbe
from ray_precheck.capture.recording.measures import raw_bytes
from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.capture.verifying.step import (
    Digests,
    OperatorDigests,
    Restore,
    TracedStep,
    TracingProbe,
    other_random_states,
)
from ray_precheck.foreign import caught


def saved_mindspore_state(
    models: Sequence[nn.Cell], optimizers: Sequence[nn.Cell]
) -> list[Restore]:
    """Return what puts the state back as it is now; it may be called several times.

    It is of parameters and buffers, the mode of Cells (training or not), the optimizers' states and
    hyperparameters, and the random generators of MindSpore, numpy and Python.
    """
    cells = [*models, *optimizers]
    groups = [group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ())]
    return [
        *(_tensor(each) for each in _tensors(cells, groups)),
        *(
            partial(setattr, cell, "training", cell.training)
            for top in cells
            for _, cell in top.cells_and_names()
        ),
        *(_group(group) for group in groups),
        *_random_states(),
        *other_random_states(),
    ]


def _random_states() -> Iterator[Restore]:
    """Yield what puts back the generator and the seeds that the next kernels get."""
    state = ms.get_rng_state()
    yield lambda: ms.set_rng_state(state)
    seeds: dict[Any, int] | None = private_parts.find(private_parts.MINDSPORE_SEEDS)
    if seeds is not None:
        kept = dict(seeds)

        def restore() -> None:
            seeds.clear()
            seeds.update(kept)

        yield restore


def _tensors(cells: Iterable[nn.Cell], groups: Iterable[dict[str, Any]]) -> Iterable[ms.Tensor]:
    """Return the tensors of Cells and of the groups of optimizers, each once."""
    buffers = getattr(nn.Cell, "buffers", lambda _: ())  # MindSpore 2.7 has none
    found: dict[int, ms.Tensor] = {}
    for each in (
        *(tensor for cell in cells for tensor in (*cell.get_parameters(), *buffers(cell))),
        *(value for group in groups for value in group.values()),
    ):
        if isinstance(each, ms.Tensor):
            found.setdefault(id(each), each)
    return found.values()


def _tensor(tensor: ms.Tensor) -> Restore:
    """Save the values of a tensor, which are written into it again."""
    found = values_on_host(tensor)
    values = None if found is None else found.copy()

    def restore() -> None:
        if values is not None:
            # Into the tensor's own memory: with `set_data` it gets other memory, and an optimizer that was
            # compiled goes on with what it had. MindSpore's tensor may have the memory of the array.
            ops.assign(tensor, ms.Tensor(values.copy(), dtype=tensor.dtype))

    return restore


def _group(group: dict[str, Any]) -> Restore:
    """Save the hyperparameters of a group; those that are tensors are saved as such."""
    plain = {
        name: copy.deepcopy(value)
        for name, value in group.items()
        if name != "params" and not isinstance(value, ms.Tensor)
    }

    def restore() -> None:
        group.update(copy.deepcopy(plain))

    return restore


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
        return _TracedWatch(self, on_step, on_forward)

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
        sink = _WatchedCalls(recorder if recorder.settings.calls else None)
        self.operators = sink.operators
        return sink


class _WatchedCalls:
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


class _TracedWatch(StepWatch):
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
