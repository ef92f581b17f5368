"""Verifying that a capture of PyTorch changes nothing: traces of a step, and the state that it starts from.

Comes in: when a step begins and ends, as for any capture. Goes out: its `StepTrace`. Made for a step that is
verified, in the place of the probe that only captures.

A plain run has hooks where a step begins and ends alone: at the optimizer, at the model, and where the
backward pass begins. The operators run as they do without this package. Digests move no random state, pass
through no mode and have no gradient. In the captured run each tensor is compared with its record when that
is written, and with its file when the step has ended.

Values are written back into the tensors that were there, because optimizers and the script hold these.
What else a step changes (attributes of modules, a place in a list of batches) is not known here: such a
step does not repeat itself, which its verification says.
"""

import copy
import functools
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
import torch.autograd
import torch.distributed
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import Optimizer

from ray_precheck import private_parts
from ray_precheck.capture.probe import StepProbe
from ray_precheck.capture.pytorch.calls import Sink, detour, is_compiling
from ray_precheck.capture.pytorch.elements import Elements
from ray_precheck.capture.pytorch.probe import TorchProbe
from ray_precheck.capture.pytorch.recorder import TorchRecorder
from ray_precheck.capture.pytorch.tensors.files import saved_tensor
from ray_precheck.capture.pytorch.tensors.text import TensorTexts, tensors_in
from ray_precheck.capture.pytorch.tensors.values import MARK, WITHOUT_VALUES, bytes_of, sliced
from ray_precheck.capture.pytorch.updates import Arguments
from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.capture.verifying.step import (
    Digests,
    OperatorDigests,
    Restore,
    TracedStep,
    TracingProbe,
    other_random_states,
)
from ray_precheck.capture.verifying.verdict import StepTrace, TracedRun
from ray_precheck.capture.writing.log import TENSORS
from ray_precheck.foreign import caught
from ray_precheck.numerics.statistics import MAX, MEAN, MIN, NORM

_dense_of = TensorTexts(lambda _: "").dense
# Sums of float32 are this exact, as shares of the root mean square and of the norm.
_OF_MEAN, _OF_NORM, _OF_SIZES = 1e-4, 1e-4, 1e-6


def unseen() -> AbstractContextManager[Any]:
    """Return a context in which calls pass through no function mode."""
    found = private_parts.find(private_parts.NO_FUNCTION_MODE)
    return nullcontext() if found is None else found()


class TorchDigests(Digests):
    """Takes digests of the values of a PyTorch program."""

    tensor = torch.Tensor

    def of(self, value: Any) -> str:
        """Return the digest of the tensors and plain values in a nested value."""
        with unseen():
            return super().of(value)

    def raw(self, tensor: torch.Tensor) -> Any:
        """Return the bytes of a tensor, None for one without memory here (meta, fake, not yet arrived)."""
        # A tensor that a transform has wrapped may refuse to be read.
        found, _ = caught(lambda: _bytes(tensor))
        return found

    def states(self) -> dict[str, Any]:
        """Return the states of the generators of torch and its devices."""
        states: dict[str, Any] = {"the random state of torch": torch.get_rng_state()}
        for number in devices_in_use():
            states[f"the random state of device {number}"] = device_module().get_rng_state(number)
        return states


def _bytes(tensor: torch.Tensor) -> Any:
    dense = _dense_of(tensor)
    if dense is None or not dense.numel():
        return None
    if dense.is_quantized:
        dense = dense.int_repr()
    return bytes_of(dense).data


def device_module() -> Any:
    """Return torch.cuda, torch.npu or the like; torch.cuda where there is none."""
    cuda: Any = torch.cuda
    module, _ = caught(getattr(torch, "get_device_module", lambda: cuda))
    return module if hasattr(module, "get_rng_state") else cuda


def devices_in_use() -> list[int]:
    """Return the numbers of the devices of this process, none where it has used none so far."""
    module = device_module()
    is_used = getattr(module, "is_initialized", lambda: True)
    return list(range(module.device_count())) if is_used() else []


def saved_state(
    models: Sequence[torch.nn.Module], optimizers: Sequence[Optimizer]
) -> list[Restore]:
    """Return what puts the state back as it is now; it may be called several times.

    It is of parameters with their gradients, buffers, the mode of modules (training or not), the
    optimizers' states and hyperparameters, and the random generators of torch, its devices, numpy and
    Python.
    """
    module = device_module()
    return [
        *(_module(each) for model in models for each in model.modules()),
        *(_group(group) for optimizer in optimizers for group in optimizer.param_groups),
        *(_optimizer(optimizer) for optimizer in optimizers),
        partial(torch.set_rng_state, torch.get_rng_state()),
        *(partial(module.set_rng_state, module.get_rng_state(n), n) for n in devices_in_use()),
        *other_random_states(),
    ]


def _module(module: torch.nn.Module) -> Restore:
    """Save the own parameters and buffers of a module."""
    tables: list[dict[str, Any]] = [module.__dict__["_parameters"], module.__dict__["_buffers"]]
    parts = [
        (table, name, tensor, _tensor(tensor))
        for table in tables
        for name, tensor in table.items()
        if tensor is not None
    ]
    training = module.training

    def restore() -> None:
        module.training = training
        for table, name, tensor, put_back in parts:
            put_back()
            table[name] = tensor

    return restore


def _group(group: dict[str, Any]) -> Restore:
    """Save the hyperparameters of a group, and its parameters, which may be of no model that is known."""
    parts = [_tensor(parameter) for parameter in group["params"]]
    others = _copied({name: value for name, value in group.items() if name != "params"})

    def restore() -> None:
        for put_back in parts:
            put_back()
        group.update(_copied(others))

    return restore


def _optimizer(optimizer: Optimizer) -> Restore:
    saved = {parameter: _copied(state) for parameter, state in optimizer.state.items()}

    def restore() -> None:
        optimizer.state.clear()
        optimizer.state.update({parameter: _copied(state) for parameter, state in saved.items()})

    return restore


def _tensor(tensor: torch.Tensor) -> Restore:
    """Save the values of a tensor, and its gradient."""
    values = tensor.detach().clone()
    gradient = tensor.grad
    gradient_values = None if gradient is None else gradient.detach().clone()

    def restore() -> None:
        with torch.no_grad():
            tensor.copy_(values)
            if gradient is not None and gradient_values is not None:
                gradient.copy_(gradient_values)
        tensor.grad = gradient

    return restore


def _copied(value: Any) -> Any:
    """Return a copy of nested states, with tensors of their own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(each) for each in value)
    return copy.deepcopy(value)


class HeldValues:
    """Compares what is written with what the tensors hold; `count` is the number of tensors."""

    def __init__(self, recorder: TorchRecorder, digests: Digests) -> None:
        self.count = 0
        self._recorder = recorder
        self._of = digests.of
        self._files = recorder.folder / TENSORS
        self._differences: list[str] = []
        self._digests: dict[str, tuple[str, str]] = {}
        self._write = recorder.elements.of_tensor
        recorder.elements = Elements(self._told)

    def differences(self) -> list[str]:
        """Return the places that say something else, after the step."""
        for name, (place, digest) in self._digests.items():
            saved, error = caught(partial(saved_tensor, self._files / name))
            if error is not None or self._of(saved) != digest:
                self._differences.append(f"the file of {place}")
        self._digests.clear()
        return self._differences

    def _told(self, tensor: torch.Tensor, place: str) -> str:
        text = self._write(tensor, place)
        if self._recorder.settings.slices:
            tensor = sliced(tensor, self._recorder.settings.slices)
        dense = _dense_of(tensor)
        if dense is None or MARK in text or not dense.numel() or dense.dtype in WITHOUT_VALUES:
            return text
        self.count += 1
        values = dense.detach().clone().resolve_conj().resolve_neg().cpu()
        element = json.loads(text)
        where = f"{self._recorder.place} {place}"
        wrong = [name for name, is_same in _compared(element, values) if not is_same]
        if wrong:
            self._differences.append(f"{' and '.join(wrong)} of {where}")
        if "data_name" in element:
            self._digests[element["data_name"]] = where, self._of(values)
        return text


def _compared(element: dict[str, Any], values: torch.Tensor) -> Iterator[tuple[str, bool]]:
    """Yield the name of each statistic that an element has, and whether it is that of the values."""
    slack = 0.0
    if values.is_complex():
        values, slack = values.to(torch.complex128).abs(), _OF_SIZES
    wide = values.to(torch.float64)
    norm = float(torch.linalg.vector_norm(wide))
    told = norm if wide.dim() else float(wide)  # a single number is all of its statistics
    expected = {
        MAX: (float(wide.max()), slack * norm),
        MIN: (float(wide.min()), slack * norm),
        MEAN: (float(wide.mean()), _OF_MEAN * norm / math.sqrt(wide.numel())),
        NORM: (told, _OF_NORM * norm),
    }
    for name, (value, room) in expected.items():
        found = element.get(name)
        if isinstance(found, bool | int | float | str):
            yield name, _is_same(float(found), value, room)


def _is_same(found: float, expected: float, slack: float) -> bool:
    if not (math.isfinite(found) and math.isfinite(expected)):
        return found == expected or (math.isnan(found) and math.isnan(expected))
    # The room is no number where the norm is infinite.
    return found == expected or abs(found - expected) <= slack


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
