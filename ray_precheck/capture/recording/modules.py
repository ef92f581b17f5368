"""The records of modules: their names, their calls, and the gradients of their parameters.

Comes in: the calls of modules in a captured step, from the detour of a framework. Goes out: a record of each
call with its arguments, parameters and output, one of its backward pass, and one of the gradients of its
parameters. `capture.pytorch.probe` and `capture.mindspore.probe` derive from it.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, ClassVar

from ray_precheck.capture.recording.recorder import StepRecorder
from ray_precheck.capture.writing.elements import quoted

# Of gradients of parameters that the framework reduces over ranks.
BEFORE, AFTER = "before", "after"
_REDUCTION = "reduction"


class ModuleNames(ABC):
    """The names of modules: those of the models that are given, else of those that are called first."""

    # With which names begin, and the class of modules.
    word: ClassVar[str]
    kind: ClassVar[type]

    def __init__(self, models: Any) -> None:
        self._names: dict[int, str] = {}
        self._roots: list[Any] = []
        several = isinstance(models, list | tuple)
        for index, model in enumerate(models if several else [models]):
            if model is not None:
                self._add(model, f"{index}." if several else "")

    @property
    def has_models(self) -> bool:
        """Whether a model is known."""
        return bool(self._roots)

    @abstractmethod
    def named_within(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Return the modules of a model with their names in it."""

    def _add(self, model: Any, prefix: str) -> None:
        """Name the modules of a model; the model itself has no record, as with msprobe."""
        self._roots.append(model)  # so that no other object gets its identity
        self._names.setdefault(id(model), "")
        for name, module in self.named_within(model):
            if module is not model:
                kind = type(module).__name__
                self._names.setdefault(id(module), f"{self.word}.{prefix}{name}.{kind}")

    def shown(self, modules: list[Any]) -> str:
        """Return the place in its model of the first of nested modules, of which the last is the
        model; "" for that itself."""
        # Whatever else has a method of this name may be around them.
        modules = [each for each in modules if isinstance(each, self.kind)]
        if not modules:
            return ""
        self.of(modules[-1])
        name = self._names.get(id(modules[0]), type(modules[0]).__name__)
        return name.removeprefix(f"{self.word}.")

    def of(self, module: Any) -> str:
        """Return the name of a module, "" for a model itself; an unknown one is a model of its own."""
        name = self._names.get(id(module))
        if name is None:
            self._add(module, f"{type(module).__name__}." if self._roots else "")
            return ""
        return name


class ModuleCalls(ABC):
    """Records the calls of modules."""

    def __init__(self, names: ModuleNames, recorder: StepRecorder) -> None:
        self._names = names
        self._recorder = recorder
        self._watched: dict[Hashable, Any] = {}
        self._gradients: dict[str, dict[str, str]] = {}
        # By the keys of the gradients: their parameters that were not reduced when they came, or `AFTER`.
        self._unreduced: dict[str, Any] = {}

    @abstractmethod
    def own_parameters(self, module: Any) -> dict[str, Any]:
        """Return the parameters of a module without those of the modules in it, by their names there."""

    @abstractmethod
    def identity(self, name: str, parameter_name: str, parameter: Any) -> Hashable:
        """Return what two parameters have in common whose gradients are noted once."""

    @abstractmethod
    def watch_gradient(self, parameter: Any, note: Callable[[Any], None]) -> Any:
        """Let `note` have each gradient of a parameter; returns the handle that ends it."""

    def reduction_of(self, parameter: Any) -> str:
        """Return whether the framework has reduced the gradient that a parameter has now: `BEFORE`, `AFTER`,
        or "" where it reduces none."""
        return ""

    def recorded(
        self,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        original: Callable[..., Any],
    ) -> Any:
        """Make a call of a module, with a record if it has a name."""
        recorder = self._recorder
        name = "" if recorder.stopped or not recorder.settings.modules else self._names.of(module)
        if not name:
            return original(module, *args, **kwargs)
        number = recorder.number(name)
        key = f"{name}.forward.{number}"
        if not recorder.scope.enter(key):
            with recorder.inside(key):
                return original(module, *args, **kwargs)
        parent, frame = recorder.parent, sys._getframe(1)
        recorder.settle()
        before = recorder.guarded(key, lambda: recorder.before(key, args, kwargs, frame)) or ""
        edges = recorder.edges(key, args, kwargs)
        try:
            with recorder.inside(key):
                result = original(module, *args, **kwargs)
                recorder.settle()
        finally:
            recorder.scope.leave(key)

        def record() -> None:
            own = self.own_parameters(module)
            fields = before + recorder.after(key, result) + recorder.parameters(key, own)
            recorder.write(key, fields, recorder.stack_of(frame), parent)
            if recorder.wants_backward:
                self._watch_parameters(name, own)
                recorder.watch(f"{name}.backward.{number}", edges, result, None)

        if not recorder.stopped:
            recorder.guarded(key, record)
        return result

    def _watch_parameters(self, name: str, own: dict[str, Any]) -> None:
        """Take note of the gradient of each parameter when it has come."""
        for parameter_name, parameter in own.items():
            identity = self.identity(name, parameter_name, parameter)
            if parameter.requires_grad and identity not in self._watched:
                note = self._noting(name, parameter_name, parameter)
                self._watched[identity] = self.watch_gradient(parameter, note)

    def _noting(self, name: str, parameter_name: str, parameter: Any) -> Callable[[Any], None]:
        count = 0

        def note(gradient: Any) -> None:
            nonlocal count
            recorder = self._recorder
            if gradient is None or recorder.stopped:
                return
            key = f"{name}.parameters_grad.{count}"
            count += 1
            text = recorder.guarded(
                key, lambda: recorder.gradient_of_parameter(key, parameter_name, gradient)
            )
            self._gradients.setdefault(key, {})[parameter_name] = text or ""
            is_reduced = self.reduction_of(parameter) == AFTER
            self._unreduced[key] = AFTER if is_reduced else parameter

        return note

    def finish(self) -> None:
        """Write the gradients of the parameters, those of a module together, and wait for no others."""
        for handle in self._watched.values():
            handle.remove()
        self._watched.clear()
        for key, fields in () if self._recorder.stopped else self._gradients.items():
            texts = [*filter(None, fields.values()), *self._reduction(key, fields)]
            self._recorder.write(key, ", ".join(texts), None, None)
        self._gradients.clear()
        self._unreduced.clear()

    def _reduction(self, key: str, fields: Collection[str]) -> list[str]:
        """Return the field of a record of gradients that says whether they had been reduced, if they were:
        a gradient that came before its reduction is known for one when that has been made."""
        found = self._unreduced[key]
        said = found if isinstance(found, str) else self.reduction_of(found)
        # A parameter may have this name.
        return (
            [f"{quoted(_REDUCTION)}: {quoted(said)}"] if said and _REDUCTION not in fields else []
        )
