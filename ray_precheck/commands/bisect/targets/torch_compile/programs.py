"""The program whose torch.compile is bisected: a function that gives a model, or a script.

Comes in: its name. Goes out: its outputs by name. Used by `trials.py`, in the interpreter that has torch.

It runs from its beginning in each trial, so that no trial sees what another one left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

COMPILE: Any = torch.compile
# Rungs that are backends; every other rung is compiled by inductor. OFF compiles nothing.
# The rung of which torch.compile does nothing.
OFF = "off"
_BACKENDS = {
    "eager": "eager",
    "aot_eager": "aot_eager",
    "aot_eager_decomp_partition": "aot_eager_decomp_partition",
    "decompositions": "aot_eager_decomp_partition",
}
# What is set while a switch is off.
# Outputs of so many calls of compiled functions of a script are compared.
_MOST_CALLS = 4


class ProgramError(Exception):
    """The program cannot be run; the message is for the user."""


def open_program(settings: Mapping[str, Any]) -> FunctionProgram | ScriptProgram:
    """Return the program of the settings.

    Raises:
        ProgramError: there is no such script, module or function.
    """
    text: str = settings["program"]
    path, colon, name = text.rpartition(":")
    if Path(text).is_file():
        return ScriptProgram(text, settings["args"])
    if not colon:
        raise ProgramError(f"{text}: there is no such script; give a file, or module:function")
    return FunctionProgram(_function(path, name), text, settings["backward"])


def _function(module_name: str, name: str) -> Callable[[], Any]:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # Naming a module of this folder is asking for it.

    def load() -> ModuleType:
        is_file = module_name.endswith(".py")
        return _module_of(Path(module_name)) if is_file else importlib.import_module(module_name)

    module, error = attempted(load)
    if error is not None:
        raise ProgramError(f"{module_name}: cannot import it: {said_of(error)}")
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    raise ProgramError(
        f"{module_name} has no function {name}; it has {', '.join(own[:8]) or 'none'}"
    )


def _module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ProgramError(f"{path}: there is no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclasses.dataclass
class FunctionProgram:
    """A function without arguments that returns (callable, inputs), the inputs a tuple or a dict."""

    function: Callable[[], Any]
    name: str
    backward: bool

    def run(self, recorded: Recorded) -> dict[str, Any]:
        """Call the function and what it returns; return the outputs, and gradients where asked for."""
        made, error = attempted(self.function)
        if error is not None:
            raise ProgramError(f"{self.name} raises {said_of(error)}")
        is_pair = isinstance(made, tuple) and len(made) == 2 and callable(made[0])
        if not is_pair or not isinstance(made[1], (tuple, list, dict)):
            kind = (
                ", ".join(type(each).__name__ for each in made) if isinstance(made, tuple) else made
            )
            raise ProgramError(
                f"{self.name} returns {kind}; return (callable, inputs), the inputs a tuple or a dict"
            )
        model, inputs = made
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else (tuple(inputs), {})
        compiled: Any = torch.compile(model)
        output, error = attempted(lambda: compiled(*args, **kwargs))
        if error is not None:
            raise _eager_error(error, recorded, f"the callable of {self.name}")
        found = {"output": output}
        if self.backward:
            _, error = attempted(lambda: found.update(self._gradients(model, inputs, output)))
            if error is not None:
                raise _eager_error(error, recorded, f"backward of {self.name}")
        return found

    def _gradients(self, model: Any, inputs: Any, output: Any) -> dict[str, Any]:
        """Run backward from the outputs, weighted at random; return gradients of inputs and parameters."""
        tensors = [each for _, each in _tensors("", output) if each.requires_grad]
        if not tensors:
            raise ProgramError(f"--backward: no output of {self.name} needs a gradient")
        generator = torch.Generator().manual_seed(0)
        weights = [torch.rand(each.shape, generator=generator) for each in tensors]
        torch.autograd.backward(tensors, [w.to(t) for w, t in zip(weights, tensors)])  # noqa: B905
        leaves = list(_tensors("gradient of input", inputs))
        if isinstance(model, torch.nn.Module):
            leaves += [(f"gradient of {key}", each) for key, each in model.named_parameters()]
        return {key: each.grad for key, each in leaves if each.is_leaf and each.grad is not None}


def _eager_error(error: Exception, recorded: Recorded, what: str) -> Exception:
    """Return what is raised where the program raised: in a trial, the same."""
    if recorded.is_compiling or isinstance(error, ProgramError):
        return error
    return ProgramError(f"{what} raises without torch.compile: {said_of(error)}")


@dataclasses.dataclass
class ScriptProgram:
    """A script, run as __main__; the outputs are those of its first calls of compiled functions, the first
    gradients of compiled modules, and its exit code, which is 1 after an assertion that failed."""

    path: str
    args: Sequence[str]

    def run(self, recorded: Recorded) -> dict[str, Any]:
        """Run the script; return what was recorded, and the exit code."""
        argv, sys.argv = sys.argv, [self.path, *self.args]
        sys.path.insert(0, str(Path(self.path).absolute().parent))
        code, error = 0, None
        try:
            _, error = attempted(lambda: runpy.run_path(self.path, run_name="__main__"))
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        finally:
            sys.argv = argv
            sys.path.pop(0)
        if isinstance(error, AssertionError) and recorded.is_compiling:
            code, error = 1, None
        if error is not None:
            raise _eager_error(error, recorded, self.path)
        if not recorded.count:
            raise ProgramError(f"{self.path} calls nothing that torch.compile gave it; it has to")
        if code and not recorded.is_compiling:
            raise ProgramError(f"{self.path} ends with exit code {code} without torch.compile")
        return {**recorded.outputs, "exit code": code}


@dataclasses.dataclass
class Recorded:
    """What compiled functions of a script returned."""

    is_compiling: bool
    outputs: dict[str, Any] = dataclasses.field(default_factory=dict)
    count: int = 0
    modules: int = 0
    depth: int = 0

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that also records what comes out."""

        def recording(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self.depth:
                return function(*args, **kwargs)
            # One within another one is a call of its own only where nothing is compiled.
            self.depth += 1
            try:
                found = function(*args, **kwargs)
            finally:
                self.depth -= 1
            self.count += 1
            if self.count <= _MOST_CALLS:
                # Copied at once: training changes in place what it returned.
                for name, each in _tensors(f"call {self.count}", found):
                    self.outputs[name] = each.detach().clone()
            return found

        return recording

    def watch(self, module: Any) -> None:
        """Record the first gradient of each parameter of a module."""
        self.modules += 1
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and parameter.is_leaf:
                full = (
                    f"gradient of {name}"
                    if self.modules == 1
                    else f"gradient {self.modules} of {name}"
                )
                parameter.register_post_accumulate_grad_hook(self._hook(full))

    def _hook(self, name: str) -> Callable[[Any], None]:
        def hook(parameter: Any) -> None:
            if name not in self.outputs and parameter.grad is not None:
                self.outputs[name] = parameter.grad.detach().clone()

        return hook


@contextlib.contextmanager
def taken_over(rung: str) -> Iterator[Recorded]:
    """Let torch.compile compile with the backend of a rung, and record what is compiled."""
    recorded = Recorded(rung != OFF)

    def compile_as_told(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda each: compile_as_told(each, **options)
        made = model
        if rung != OFF:
            backend = _BACKENDS.get(rung, options.get("backend") or "inductor")
            if backend in _BACKENDS.values():
                options = {k: v for k, v in options.items() if k not in ("mode", "options")}
            made = COMPILE(model, **{**options, "backend": backend})
        if not isinstance(model, torch.nn.Module):
            return recorded.wrapped(made)
        recorded.watch(model)
        made.forward = recorded.wrapped(made.forward)
        return made

    hooked: Any = torch
    hooked.compile = compile_as_told
    try:
        yield recorded
    finally:
        hooked.compile = COMPILE


# Outputs.


# Outputs.


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors within a value, each with its name."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif dataclasses.is_dataclass(value) and not isinstance(value, (type, dict)):
        for key, each in vars(value).items():
            yield from _tensors(f"{name}.{key}", each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _tensors(f"{name}.{key}" if name else str(key), each)
    elif isinstance(value, (tuple, list)):
        for index, each in enumerate(value):
            yield from _tensors(f"{name}.{index}", each)
    elif isinstance(value, (bool, int, float)):
        yield name, torch.tensor(value)
    else:
        leaves = pytree.tree_leaves(value)
        if len(leaves) != 1 or leaves[0] is not value:
            yield from _tensors(name, leaves)


def arrays_of(found: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return tensors as arrays by name, and the dtypes that numpy does not have: those are float32 then.

    Raises:
        ProgramError: there is none.
    """
    outputs: dict[str, Any] = {}
    dtypes: dict[str, str] = {}
    for name, each in found.items():
        for full, tensor in _tensors(name, each):
            tensor = tensor.detach().cpu().resolve_conj()
            try:
                outputs[full] = tensor.numpy()
            except TypeError:
                dtypes[full] = str(tensor.dtype).replace("torch.", "")
                outputs[full] = tensor.float().numpy()
    if not outputs:
        raise ProgramError("the program returns no tensor; return what is to be compared")
    return outputs, dtypes


def attempted(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return what a function returns and None, or None and what it raised: programs and compilers under test
    raise anything."""
    try:
        return function(), None
    except Exception as error:
        return None, error


def said_of(error: Exception) -> str:
    """Return the kind of an error and its first line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
