"""PyTorch, as the session of a capture sees it.

Comes in: when a step begins and ends. Goes out: the hooks of a captured step, the records of modules among
them, and the ends of steps. Made by `capturing.find_probe`.

`torch.nn.Module.__call__` takes a detour for the time of a step: it sees keyword arguments and exceptions,
which torch's global hooks do not.
"""

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.overrides
import torch.utils.data
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import TorchFunctionMode

from ray_precheck.capture.probe import HookedStep, StepProbe
from ray_precheck.capture.pytorch.calls import (
    CallMode,
    Sink,
    detour,
    is_compiling,
    modes_on,
    sweep_modes,
)
from ray_precheck.capture.pytorch.collectives import Collectives
from ray_precheck.capture.pytorch.darkness import Darkness, TorchOrigins
from ray_precheck.capture.pytorch.data_parallel import DataParallel
from ray_precheck.capture.pytorch.detours import backward_passes_seen, regions_told_apart
from ray_precheck.capture.pytorch.measuring import TorchMeasures
from ray_precheck.capture.pytorch.messages import Messages
from ray_precheck.capture.pytorch.names import FunctionNames, call_name
from ray_precheck.capture.pytorch.recorder import TorchRecorder
from ray_precheck.capture.pytorch.sharded import Sharded
from ray_precheck.capture.pytorch.updates import (
    Arguments,
    OptimizerSteps,
    ScalerSteps,
    is_skipped,
)
from ray_precheck.capture.recording.modules import AFTER, BEFORE, ModuleCalls, ModuleNames
from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.capture.recording.stacks import Stacks
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.writing.shared_writer import SharedWriter, start_writer

# Frames of these files are no part of the program that is looked at.
_OWN = (str(Path(__file__).parents[1]), torch.overrides.__file__)
_RECOMPUTES = "torch/utils/checkpoint.py"
# A watch goes on with another optimizer when that has stepped so often since the first one did: that phase of
# the training is over. Adversaries step 5 times for one of the other; the first WGANs' critics 100 times, but
# these step first.
_NEXT_PHASE = 50


class TorchProbe:
    """PyTorch in this process."""

    framework = "pytorch"
    why_unseen = ""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._scalers = ScalerSteps(self._scaled_update)
        # What steps first: the optimizer, and what a gradient scaler is given for it, which may be another.
        self._optimizer: int | None = None
        self._scaled: int | None = None
        # Whether the first one is still there, and how often others have stepped since it did.
        self._alive: weakref.ref[Optimizer] | None = None
        self._others: dict[int, int] = {}
        self._updates = self._ended = 0
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._stacks = Stacks(_OWN, _RECOMPUTES)
        self._names: FunctionNames | None = None
        self._modules: TorchModuleNames | None = None
        # What was on when the capture began: it stays below.
        self._below: tuple[TorchFunctionMode, ...] = ()
        self._step: TorchStep | None = None
        self._on_step: Callable[[], None] | None = None
        self._in_hook = False
        self._origins = TorchOrigins()
        self._messages = Messages()
        self._measures: TorchMeasures | None = None
        # What writes tensors, from the first step on that has some; None where there can be no process.
        self._writers: list[SharedWriter | None] = []

    def rank(self) -> int | None:
        """Return the rank in torch.distributed, None where it is not initialised."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank()
        return None

    def ranks(self) -> int:
        """Return how many ranks there are in torch.distributed, 1 where it is not initialised."""
        return 1 if self.rank() is None else torch.distributed.get_world_size()

    def measure(self, models: Any) -> TorchMeasures:
        """Begin to measure each step."""
        self._modules = TorchModuleNames(models)
        self._measures = TorchMeasures(self._parameter_name)
        return self._measures

    def _parameter_name(self, parameter: torch.Tensor) -> str:
        """Return the name of a parameter in the model, "" where it is in none."""
        model = self._model and self._model()
        if self._modules is None:
            return ""
        if model is not None and not self._modules.has_models:
            self._modules.of(model)
        return self._modules.of_parameter(parameter)

    def is_loader(self) -> bool:
        """Return whether this process is a worker of a DataLoader."""
        return torch.utils.data.get_worker_info() is not None

    def watch_steps(self, on_step: Callable[[], None], on_forward: Callable[[], None]) -> None:
        """Tell of the steps of the optimizer that steps first, and of calls of the model.

        Only the first optimizer ends steps: a generator and a discriminator take one step together. A step
        that a gradient scaler skips is one, too. The model is the module with parameters that is called
        first.
        """
        self._on_step = on_step
        self._below = modes_on()

        def called(module: torch.nn.Module, _: Any) -> None:
            if is_compiling():  # torch.compile reads the hook as a part of the module
                return
            sweep_modes()
            if self._on_step is None:  # an optimizer's hook has ended the last step
                self._remove_hooks()
                return
            model = self._model and self._model()
            if model is None and next(module.parameters(), None) is not None:
                model, self._model = module, weakref.ref(module)
            if model is module:
                on_forward()

        self._remove_hooks()
        self._handles = [
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
            register_module_forward_pre_hook(called),
        ]
        self._scalers.watch()
        self._messages.watch()

    def _before_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        if self._measures is not None:
            self._measures.before_update(optimizer, args, kwargs)
        updates = None if self._step is None else self._step.updates
        if updates is None:
            return None
        with self._inside_hook():
            return updates.before(optimizer, args, kwargs)

    def _after_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        with self._inside_hook():
            self._updates += 1
            if self._measures is not None:
                self._measures.after_update(optimizer)
            if self._step is not None:
                if self._step.updates is not None:
                    self._step.updates.after(optimizer, args, kwargs)
                else:
                    self._step.forget_all()
                self._step.note("update_skipped", lambda: is_skipped(optimizer) or None)
            if self._optimizer is None or self._is_next_phase(optimizer):
                self._optimizer, self._alive = id(optimizer), weakref.ref(optimizer)
            if self._optimizer == id(optimizer):
                self._end_step()

    def _is_next_phase(self, optimizer: Optimizer) -> bool:
        """Return whether a watch, which is to see the whole training, goes on with another optimizer."""
        if self._measures is None:
            return False
        if self._optimizer == id(optimizer):
            self._others.clear()
            return False
        count = self._others[id(optimizer)] = self._others.get(id(optimizer), 0) + 1
        is_gone = self._alive is not None and self._alive() is None
        if not is_gone and count < _NEXT_PHASE:
            return False
        self._others.clear()
        return True

    def _end_step(self) -> None:
        self._ended += 1
        if self._on_step is not None:
            self._on_step()

    def _scaled_update(self, scaler: Any, optimizer: Any, run: Callable[[], Any]) -> Any:
        """Let a gradient scaler make a step, or skip it, which ends the step of the training, too.

        The scale is asked for before the step, because torch's hook after it ends the captured one.
        """
        updates, ended = self._updates, self._ended
        if self._step is not None:
            self._step.note("loss_scale", scaler.get_scale)
        if self._measures is not None:
            self._measures.scaled(scaler.get_scale())
        result = run()
        if self._ended > ended:
            self._scaled = id(optimizer)
            return result
        if self._optimizer is None and self._on_step is not None:
            self._optimizer = id(optimizer)
        if self._updates == updates:
            if self._measures is not None:
                self._measures.skipped()
            if self._step is not None:
                self._step.note("update_skipped", lambda: True)
        if id(optimizer) in (self._optimizer, self._scaled):
            self._end_step()
        return result

    @contextmanager
    def _inside_hook(self) -> Iterator[None]:
        """Remember that torch walks through the hooks of optimizers: then none may be taken away."""
        before, self._in_hook = self._in_hook, True
        try:
            yield
        finally:
            self._in_hook = before

    def unwatch_steps(self) -> None:
        """Take the hooks away; if one of an optimizer has asked for it, at the next call of a module."""
        self._on_step = None
        self._scalers.remove()
        self._messages.remove()
        for writer in filter(None, self._writers):
            writer.close()
        self._writers.clear()
        if not self._in_hook:
            self._remove_hooks()

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def begin(
        self,
        settings: CaptureSettings,
        folder: Path,
        models: Any,
        on_failure: Callable[[str], None],
    ) -> StepProbe:
        """Begin to capture a step into a folder."""
        if self._names is None:
            self._names = FunctionNames(settings.custom_op_namespaces)
        if self._modules is None:
            self._modules = TorchModuleNames(models)
        called = self._model() if self._model is not None else None
        if models is None and called is not None:
            # Its call has begun the step, so that the detour of module calls sees those within it alone.
            self._modules.of(called)
        self._scalers.watch()
        if settings.saves_tensors and not self._writers:
            self._writers.append(start_writer())
        writer = self._writers[0] if settings.saves_tensors else None
        recorder = TorchRecorder(settings, folder, self._stacks, on_failure, writer)
        recorder.module_shown = self._modules.shown
        sink = self.sink_around(recorder)
        self._step = TorchStep(
            recorder,
            self._names,
            self._modules,
            sink,
            self._below,
            self._origins,
            self._messages,
        )
        return self._step

    def sink_around(self, recorder: TorchRecorder) -> Sink | None:
        """Return what takes each call in the recorder's place, at every level; None for the recorder."""
        return None


class TorchModuleNames(ModuleNames):
    """The names of modules and of their parameters."""

    word = "Module"
    kind = torch.nn.Module

    def __init__(self, models: Any) -> None:
        super().__init__(models)
        self._parameters: dict[int, str] = {}

    def named_within(self, model: torch.nn.Module) -> Iterable[tuple[str, torch.nn.Module]]:
        """Return the modules of a model with their names in it."""
        found: Iterable[tuple[str, torch.nn.Module]] = model.named_modules()
        return found

    def of_parameter(self, parameter: torch.Tensor) -> str:
        """Return the name of a parameter in its model, "" where the model is not known."""
        name = self._parameters.get(id(parameter))
        if name is None:
            for root in self._roots:
                for each, found in root.named_parameters():
                    self._parameters.setdefault(id(found), each)
            name = self._parameters.setdefault(id(parameter), "")
        return name


class TorchModuleCalls(ModuleCalls):
    """Records the calls of modules; `reduction_of` tells of each gradient of a parameter whether it is the
    one before or after a reduction."""

    def __init__(
        self,
        names: TorchModuleNames,
        recorder: TorchRecorder,
        reduction_of: Callable[[Any], str],
    ) -> None:
        super().__init__(names, recorder)
        self._reduction_of = reduction_of

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See each call of a module, for the time of a captured step."""
        original, record = torch.nn.Module.__call__, self.recorded

        def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # torch.export tries the module on tensors without values
                return original(self, *args, **kwargs)
            return record(self, args, kwargs, original)

        with detour(torch.nn.Module, "__call__", call):
            yield

    def own_parameters(self, module: torch.nn.Module) -> dict[str, Any]:
        """Return the parameters of a module without those of the modules in it."""
        return dict(module.named_parameters(recurse=False))

    def identity(self, name: str, parameter_name: str, parameter: Any) -> Hashable:
        """Return the name: of a parameter that two modules share each has a record, as with msprobe."""
        return name, parameter_name

    def watch_gradient(self, parameter: Any, note: Callable[[Any], None]) -> Any:
        """Let `note` have the gradient of a parameter when it has been accumulated; of the parts of a flat
        parameter, which the older FSDP shows as parameters, when it has come."""
        if not parameter.is_leaf:
            return parameter.register_hook(note)
        return parameter.register_post_accumulate_grad_hook(lambda found: note(found.grad))

    def reduction_of(self, parameter: Any) -> str:
        """Return whether DDP or FSDP has reduced the gradient that a parameter has now."""
        return self._reduction_of(parameter)


class TorchStep(HookedStep):
    """The hooks of one captured step of PyTorch."""

    def __init__(
        self,
        recorder: TorchRecorder,
        names: FunctionNames,
        module_names: TorchModuleNames,
        sink: Sink | None,
        below: Sequence[TorchFunctionMode],
        origins: TorchOrigins,
        messages: Messages,
    ) -> None:
        super().__init__(recorder, ExitStack())
        self._torch_recorder = recorder
        self.updates: OptimizerSteps | None = None
        settings = recorder.settings
        self._modules: TorchModuleCalls | None = None
        if settings.modules:
            self._modules = TorchModuleCalls(module_names, recorder, self._reduction)
        self._mode: CallMode | None = None
        if settings.calls or sink is not None:
            self._mode = recorder.mode = CallMode(names, sink or recorder.call, below)
        self._updates: OptimizerSteps | None = None
        self._names = names
        self._messages, self._sharded = messages, Sharded(recorder)
        self._data_parallel = DataParallel(recorder, module_names.of_parameter)
        self._darkness: Darkness | None = None
        if self._mode is not None and sink is None:
            self._darkness = Darkness(recorder, origins)
            self._mode.darkness = self._darkness
            if self._darkness.asks_origins:
                recorder.note_origins(self._darkness)
        if self._mode is not None and settings.calls:
            self._updates = OptimizerSteps(
                recorder,
                self._mode,
                module_names.of_parameter,
                are_recorded=settings.updates,
            )
        self.resume()

    def pause(self) -> None:
        """Take the hooks away; gradients of calls that were recorded are still recorded."""
        self.updates = None
        super().pause()

    def put_on(self) -> None:
        """Put the hooks on."""
        if self._modules is not None:
            self._hooks.enter_context(self._modules.watched())
        if self._mode is not None:
            recorder = self._torch_recorder
            self._hooks.enter_context(regions_told_apart(self._mode, recorder))
            self._hooks.enter_context(backward_passes_seen(self._mode))
            collectives = Collectives(recorder, self._messages)
            self._hooks.enter_context(collectives.watched())
            self._hooks.enter_context(self._sharded.watched(collectives.saying))
            self._hooks.enter_context(self._data_parallel.watched())
            self._hooks.enter_context(recorder.resharding.watched())
            self._hooks.enter_context(self._mode.operators_named())
            if self._darkness is not None:
                self._hooks.enter_context(self._darkness.watched(self._names))
            self._hooks.enter_context(self._mode.through_step())
            self.updates = self._updates

    def _reduction(self, parameter: Any) -> str:
        """Return "before" or "after" a reduction by DDP or FSDP, "" where there is none."""
        if self._sharded.is_reducing:
            return AFTER
        is_reduced = self._data_parallel.reduces(parameter) or self._sharded.has_reduced(parameter)
        return BEFORE if is_reduced else ""

    def forget_all(self) -> None:
        """Forget what is known of all tensors, because an update that was not looked at was made."""
        self._torch_recorder.forget_all()

    def custom_call(self, call: SeenCall) -> Any:
        """Record a call of a function of the script; what it calls itself has no record."""
        if self._is_paused or self._mode is None or self._mode.paused:
            return call.run()
        self._mode.paused = True
        try:
            name = call_name(call.name.prefix, call.name.name)
            return self._torch_recorder.call(call._replace(name=name))
        finally:
            self._mode.paused = False

    def finish(self, cut_short: str = "") -> None:
        """Take the hooks away, and write the files of the step."""
        updates, self._updates = self._updates, None
        if updates is not None:
            updates.close()
        self.pause()
        if self._modules is not None:
            self._modules.finish()
        super().finish(cut_short)

    def abandon(self) -> None:
        """Write nothing any more, and close the log as it is."""
        self.updates = None
        if self._mode is not None:
            self._mode.paused = True
        super().abandon()
