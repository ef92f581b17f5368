"""Trials of torch.compile, in the interpreter that has torch.

Comes in: settings (`open_target`), and requests: {"kind": "check"}, {"kind": "look"} or {"kind": "run"}. Goes out:
answers of plain values; outputs travel as .npz files. Loaded by path by `bisect/inside/serve.py`: only the
standard library, numpy and torch are here.

The program is a function that returns (callable, inputs), or a script whose calls of torch.compile are taken over.
It runs from its beginning in each trial, with the same seeds, so that no trial sees what another one left. What a
trial compiles is decided where torch asks `CompilerBisector.disable_subsystem` before each decomposition, graph
pass and lowering; the bisector's own command, which deletes the user's caches, is never called.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import random
import runpy
import sys
from collections import Counter
from pathlib import Path

import numpy as np

# Caches would hand a trial what another one compiled; they are read when torch is imported.
os.environ.update(
    TORCHINDUCTOR_FX_GRAPH_CACHE="0",
    TORCHINDUCTOR_AUTOGRAD_CACHE="0",
    TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE="0",
    TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE="0",
)
import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import torch._inductor.config  # noqa: E402
from torch._inductor.compiler_bisector import CompilerBisector  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

_COMPILE = torch.compile
# Rungs that are backends; every other rung is compiled by inductor. OFF compiles nothing.
OFF = "off"
_BACKENDS = {
    "eager": "eager",
    "aot_eager": "aot_eager",
    "aot_eager_decomp_partition": "aot_eager_decomp_partition",
    "decompositions": "aot_eager_decomp_partition",
}
# What is set while a switch is off.
_CONFIGS = {
    "setting layout_optimization": {"layout_optimization": False},
    "setting comprehensive_padding": {"comprehensive_padding": False},
    "setting rounding between fused casts": {"emulate_precision_casts": True},
    "code fusion": {"max_fusion_size": 1, "epilogue_fusion": False},
    "code reused buffers": {"allow_buffer_reuse": False, "inplace_buffers": False},
    "code vector instructions": {"cpp.simdlen": 1},
}
# Outputs of so many calls of compiled functions of a script are compared.
_MOST_CALLS = 4


class ProgramError(Exception):
    """The program cannot be run; the message is for the user."""


def open_target(settings):
    """Return what answers requests. `settings`: program, args (words for a script), backward, cache (a folder)."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = settings["cache"]
    # One process compiles: a pool of them is started anew for each trial process, and outlives its kill.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch._inductor.config.compile_threads = int(os.environ["TORCHINDUCTOR_COMPILE_THREADS"])
    return Bench(settings)


class Bench:
    """Runs the program as a request says."""

    def __init__(self, settings):
        self.settings = settings
        self.program = None
        CompilerBisector.disable_subsystem = classmethod(_disabled)
        # The files in which torch's own bisector keeps its state are none of ours.
        CompilerBisector.get_backend = classmethod(lambda cls: None)
        CompilerBisector.get_subsystem = classmethod(lambda cls: None)

    def answer(self, request):
        """Return {"problem": text} of a check, the outputs of a run, or what a look found."""
        if request["kind"] == "check":
            return self._checked()
        if self.program is None:
            self.program = _open_program(self.settings)
        if request["kind"] == "look":
            return self._looked(request["out"])
        outputs, dtypes = self.outputs(request["rung"], request["on"], request["off"])
        np.savez(request["out"], **outputs)
        return {"outputs": request["out"], "dtypes": dtypes}

    def _checked(self):
        try:
            self.program = _open_program(self.settings)
            self.outputs(OFF, (), ())
        except ProgramError as error:
            return {"problem": str(error)}
        return {"problem": "", "torch": torch.__version__, "cwd": os.getcwd()}

    def outputs(self, rung, on, off):
        """Run the program; return its outputs as arrays, and the dtypes that numpy does not have, by name."""
        _STATE.decide = Decisions(on, off)
        patches = {"fallback_random": True}  # Else dropout draws other numbers than the golden run.
        for name in off:
            patches.update(_CONFIGS.get(name, {}))
        _reset()
        with torch._inductor.config.patch(patches), _taken_over(rung) as calls:
            found = self.program.run(calls)
        return _arrays(found)

    def _looked(self, out):
        spec = importlib.util.spec_from_file_location("looking", Path(__file__).with_name("looking.py"))
        looking = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(looking)
        return looking.look(self, _STATE, self.settings["floors"], out)


class Decisions:
    """What is off in a trial. A name that was not seen before, since what is off changes what comes after it, is
    as the last one asked of its kind that was."""

    def __init__(self, on, off):
        self.on, self.off = frozenset(on), frozenset(off)
        self.counts = Counter()
        self.seen = {}
        self.last = {}

    def is_off(self, kind, name):
        """Return whether the next occurrence of a name is off; `kind`: decomposition, pass, lowering."""
        plain = f"{kind} {name}"
        self.counts[plain] += 1
        full = plain if self.counts[plain] == 1 else f"{plain} #{self.counts[plain]}"
        self.seen[full] = kind
        if full in self.off or full in self.on:
            self.last[kind] = full in self.off
            return full, self.last[kind]
        return full, self.last.get(kind, False)


class _State:
    """What the place where torch asks needs to know: a process has one torch."""

    decide = Decisions((), ())
    # A function that is told (kind, name, line, node) of each place asked; None in trials.
    told = None
    all_passes_off = False


_STATE = _State()


def _disabled(cls, backend, subsystem, debug_info=None):
    if _STATE.all_passes_off:
        return subsystem.endswith("passes")
    info = debug_info() if debug_info is not None else subsystem
    node = None
    if subsystem == "lowerings":
        node = V.get_current_node()
        kind, name = "lowering", f"{node.target} {node.name}"
    elif subsystem == "decomposition":
        kind, name = "decomposition", info.partition("op='")[2].partition("'")[0]
        name = f"{name}.{info.partition(chr(39) + ', overload=' + chr(39))[2].partition(chr(39))[0]}"
    else:
        kind, name = "pass", f"{subsystem} {info}"
    full, is_off = _STATE.decide.is_off(kind, name)
    if _STATE.told is not None:
        _STATE.told(kind, full, node)
    return is_off


def _reset():
    torch._dynamo.reset()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


# Programs.


def _open_program(settings):
    text = settings["program"]
    path, colon, name = text.rpartition(":")
    if colon and not Path(text).is_file():
        return FunctionProgram(_function(path, name), text, settings["backward"])
    if not Path(text).is_file():
        raise ProgramError(f"{text}: there is no such script; give a file, or module:function")
    return ScriptProgram(text, settings["args"])


def _function(module_name, name):
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # Naming a module of this folder is asking for it.
    try:
        if module_name.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(module_name).stem, module_name)
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        raise ProgramError(f"{module_name}: cannot import it: {_said(error)}") from None
    found = getattr(module, name, None)
    if not callable(found):
        names = ", ".join(sorted(n for n, v in vars(module).items() if callable(v) and n[0] != "_")[:8])
        raise ProgramError(f"{module_name} has no function {name}; it has {names or 'none'}")
    return found


class FunctionProgram:
    """A function without arguments that returns (callable, inputs): a tuple of arguments, or a dict of them."""

    def __init__(self, function, name, backward):
        self.function, self.name, self.backward = function, name, backward

    def run(self, calls):
        try:
            model, inputs = self.function()
        except (TypeError, ValueError) as error:
            said = "return (callable, inputs) from a function without arguments"
            raise ProgramError(f"{self.name}: {_said(error)}; {said}") from None
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            raise ProgramError(f"{self.name} raises {_said(error)}") from None
        if not callable(model) or not isinstance(inputs, (tuple, list, dict)):
            kinds = f"{type(model).__name__}, {type(inputs).__name__}"
            raise ProgramError(f"{self.name} returns ({kinds}); return (callable, tuple or dict of inputs)")
        compiled = torch.compile(model)
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else (tuple(inputs), {})
        try:
            output = compiled(*args, **kwargs)
        except Exception as error:
            if calls is not None:
                raise
            raise ProgramError(f"{self.name}: its callable raises without torch.compile: {_said(error)}") from None
        found = {"output": output}
        if self.backward:
            found.update(_gradients(model, inputs, output, self.name))
        return found


def _gradients(model, inputs, output, name):
    """Run backward from a weighted sum of the outputs; return the gradients of parameters and inputs."""
    tensors = [each for _, each in _tensors("", output) if each.requires_grad]
    if not tensors:
        raise ProgramError(f"--backward: no output of {name} needs a gradient")
    generator = torch.Generator().manual_seed(0)
    torch.autograd.backward(
        [(each.float() * torch.rand(each.shape, generator=generator).to(each.device)).sum() for each in tensors]
    )
    leaves = [*_tensors("gradient of input", inputs)]
    if isinstance(model, torch.nn.Module):
        leaves += [(f"gradient of {key}", each) for key, each in model.named_parameters()]
    return {key: each.grad for key, each in leaves if each.grad is not None}


class ScriptProgram:
    """A script, run as __main__; the outputs are those of its first calls of compiled functions, the first
    gradients of compiled modules, and its exit code."""

    def __init__(self, path, args):
        self.path, self.args = path, list(args)

    def run(self, calls):
        argv, sys.argv = sys.argv, [self.path, *self.args]
        first = sys.path[0]
        sys.path[0] = str(Path(self.path).absolute().parent)
        code = 0
        try:
            runpy.run_path(self.path, run_name="__main__")
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except Exception as error:
            if _STATE.recorded.is_compiling:
                raise
            raise ProgramError(f"{self.path} raises without torch.compile: {_said(error)}") from None
        finally:
            sys.argv, sys.path[0] = argv, first
        recorded = _STATE.recorded
        if not recorded.count:
            raise ProgramError(f"{self.path} compiles nothing that it calls; it has to call torch.compile")
        if code and not recorded.is_compiling:
            raise ProgramError(f"{self.path} ends with exit code {code} without torch.compile")
        return {**recorded.outputs, "exit code": code}


@dataclasses.dataclass
class Recorded:
    """What compiled functions of a script returned."""

    is_compiling: bool
    outputs: dict = dataclasses.field(default_factory=dict)
    count: int = 0

    def wrapped(self, function):
        """Return a function that also records what comes out."""

        def recording(*args, **kwargs):
            found = function(*args, **kwargs)
            if not torch.compiler.is_compiling():
                self.count += 1
                if self.count <= _MOST_CALLS:
                    # Copied at once: training changes in place what it returned.
                    for name, each in _tensors(f"call {self.count}", found):
                        self.outputs[name] = each.detach().clone()
            return found

        return recording

    def watch(self, module):
        """Record the first gradient of each parameter of a module."""
        number = self.count

        def hook_of(name):
            def hook(parameter):
                if name not in self.outputs and not torch.compiler.is_compiling():
                    self.outputs[name] = parameter.grad.detach().clone()

            return hook

        for name, parameter in module.named_parameters():
            if parameter.requires_grad and parameter.is_leaf:
                parameter.register_post_accumulate_grad_hook(hook_of(f"module {number} gradient of {name}"))


@contextlib.contextmanager
def _taken_over(rung):
    """Let torch.compile compile with the backend of a rung."""
    _STATE.recorded = recorded = Recorded(rung != OFF)

    def compile(model=None, **options):  # noqa: A001 - it stands for torch.compile
        if model is None:
            return lambda each: compile(each, **options)
        if rung == OFF:
            made = model
        else:
            backend = _BACKENDS.get(rung, options.get("backend") or "inductor")
            if backend != "inductor":
                options = {k: v for k, v in options.items() if k not in ("mode", "options")}
            made = _COMPILE(model, **{**options, "backend": backend})
        if isinstance(model, torch.nn.Module):
            recorded.watch(model)
            made.forward = recorded.wrapped(made.forward)
            return made
        return recorded.wrapped(made)

    torch.compile = compile
    try:
        yield None if rung == OFF else recorded
    finally:
        torch.compile = _COMPILE


# Outputs.


def _tensors(name, value):
    """Yield the tensors within a value, each with its name."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type) and not isinstance(value, dict):
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


def _arrays(found):
    outputs, dtypes = {}, {}
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


def _said(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
