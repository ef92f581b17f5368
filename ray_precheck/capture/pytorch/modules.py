"""The records of modules.

Comes in: the calls of modules in a captured step, and their names. Goes out: a record of each call with its
arguments, parameters and output, one of its backward pass, and one of the gradients of its parameters.
Put on by `step` at the levels L0 and mix.

`torch.nn.Module.__call__` takes a detour for the time of a step: it sees keyword arguments and exceptions,
which torch's global hooks do not.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ray_precheck.capture.pytorch.calls import is_compiling
from ray_precheck.capture.pytorch.gradients import edges_of
from ray_precheck.capture.pytorch.recorder import TorchRecorder
from ray_precheck.capture.pytorch.tensors.nested import tensors_in


class ModuleNames:
    """The names of modules: those of the models that are given, else of those that are called first."""

    def __init__(self, models: Any) -> None:
        self._names: dict[int, str] = {}
        self._roots: list[Any] = []
        self._parameters: dict[int, str] = {}
        several = isinstance(models, list | tuple)
        for index, model in enumerate(models if several else [models]):
            if model is not None:
                self.add(model, f"{index}." if several else "")

    def add_model(self, model: torch.nn.Module) -> None:
        """Name the modules of a model that is called, where they have no names yet."""
        if id(model) not in self._names:
            self.add(model, f"{type(model).__name__}." if self._roots else "")

    def add(self, model: torch.nn.Module, prefix: str = "") -> None:
        """Name the modules of a model; the model itself has no record, as with msprobe."""
        self._roots.append(model)  # so that no other object gets its identity
        self._names.setdefault(id(model), "")
        for name, module in model.named_modules():
            if module is not model:
                kind = type(module).__name__
                self._names.setdefault(id(module), f"Module.{prefix}{name}.{kind}")

    def of_parameter(self, parameter: torch.Tensor) -> str:
        """Return the name of a parameter in its model, "" where the model is not known."""
        name = self._parameters.get(id(parameter))
        if name is None:
            for root in self._roots:
                for each, found in root.named_parameters():
                    self._parameters.setdefault(id(found), each)
            name = self._parameters.setdefault(id(parameter), "")
        return name

    def shown(self, modules: list[Any]) -> str:
        """Return the place in its model of the first of nested modules, of which the last is the
        model; "" for that itself."""
        if not modules:
            return ""
        self.add_model(modules[-1])
        return self._names.get(id(modules[0]), type(modules[0]).__name__).removeprefix("Module.")

    def of(self, module: torch.nn.Module) -> str:
        """Return the name of a module, "" for a model itself; an unknown one is a model of its own."""
        self.add_model(module)
        return self._names[id(module)]


class ModuleCalls:
    """Records the calls of modules."""

    def __init__(self, names: ModuleNames, recorder: TorchRecorder) -> None:
        self._names = names
        self._recorder = recorder
        self._watched: dict[tuple[str, str], Any] = {}
        self._gradients: dict[str, dict[str, str]] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See each call of a module, for the time of a captured step."""
        original = torch.nn.Module.__call__
        mine = self

        def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # torch.export tries the module on tensors without values
                return original(self, *args, **kwargs)
            name = mine._names.of(self)
            if not name or mine._recorder.stopped:
                return original(self, *args, **kwargs)
            return mine._call(name, self, args, kwargs, original)

        torch.nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.nn.Module.__call__ = original  # type: ignore[method-assign]

    def finish(self) -> None:
        """Write the gradients of the parameters, and wait for no further ones."""
        for handle in self._watched.values():
            handle.remove()
        self._write_gradients()

    def _call(
        self,
        name: str,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        original: Callable[..., Any],
    ) -> Any:
        recorder = self._recorder
        number = recorder.number(name)
        key = f"{name}.forward.{number}"
        parent = recorder.parent
        if not recorder.scope.enter(key):
            with recorder.inside(key):
                return original(module, *args, **kwargs)
        frame = sys._getframe(1)
        before = recorder.guarded(key, lambda: recorder.before(key, args, kwargs, frame)) or ""
        edges = edges_of(tensors_in((args, kwargs))) if torch.is_grad_enabled() else []
        try:
            with recorder.inside(key):
                result = original(module, *args, **kwargs)
        finally:
            recorder.scope.leave(key)
        if not recorder.stopped:
            stack = recorder.stack_here()
            recorder.guarded(
                key, lambda: self._called(name, key, module, before, edges, result, stack, parent)
            )
        return result

    def _called(
        self,
        name: str,
        key: str,
        module: torch.nn.Module,
        before: str,
        edges: list[Any],
        result: Any,
        stack: int | None,
        parent: str | None,
    ) -> None:
        """Write the record of a module that has ended, and wait for its gradients."""
        recorder = self._recorder
        own = dict(module.named_parameters(recurse=False))
        fields = before + recorder.after(key, result) + recorder.parameters(key, own)
        self._watch_parameters(name, own)
        recorder.write(key, fields, stack, parent)
        outputs = tensors_in(result)
        needs_gradient = any(each.grad_fn is not None for each in outputs)
        if needs_gradient and recorder.settings.wants("backward"):
            backward = parent and parent.replace(".forward.", ".backward.")
            recorder.watch(key.replace(".forward.", ".backward."), edges, outputs, None, backward)

    def _watch_parameters(self, name: str, own: dict[str, torch.nn.Parameter]) -> None:
        """Take note of the gradient of each parameter when it has been accumulated."""
        if not self._recorder.settings.wants("backward"):
            return
        for parameter_name, parameter in own.items():
            # Of a parameter that two modules share each has a record, as with msprobe.
            place = (name, parameter_name)
            if parameter.requires_grad and place not in self._watched:
                self._watched[place] = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._noting(name, parameter_name)
                )

    def _noting(self, name: str, parameter_name: str) -> Callable[[torch.Tensor], None]:
        count = 0

        def note(parameter: torch.Tensor) -> None:
            nonlocal count
            if parameter.grad is None or self._recorder.stopped:
                return
            key = f"{name}.parameters_grad.{count}"
            count += 1
            gradient, recorder = parameter.grad, self._recorder
            text = recorder.guarded(
                key, lambda: recorder.gradient_of_parameter(key, parameter_name, gradient)
            )
            self._gradients.setdefault(key, {})[parameter_name] = text or ""

        return note

    def _write_gradients(self) -> None:
        """Write the gradients of the parameters, those of a module together."""
        for key, fields in self._gradients.items():
            self._recorder.write(key, ", ".join(filter(None, fields.values())), None, None)
        self._gradients.clear()
