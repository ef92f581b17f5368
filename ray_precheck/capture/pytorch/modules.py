"""The modules of PyTorch.

Comes in: the calls of modules in a captured step, and their names. Goes out: what `capture.recording.modules`
asks of a framework. Put on by `probe` at the levels L0 and mix.

`torch.nn.Module.__call__` takes a detour for the time of a step: it sees keyword arguments and exceptions,
which torch's global hooks do not.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ray_precheck.capture.pytorch.calls import detour, is_compiling
from ray_precheck.capture.recording.modules import ModuleCalls, ModuleNames


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
    """Records the calls of modules."""

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
        """Let `note` have the gradient of a parameter when it has been accumulated."""
        return parameter.register_post_accumulate_grad_hook(lambda found: note(found.grad))
