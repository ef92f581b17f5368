"""What no function mode sees by itself: Python in backward passes, and compiled regions.

Comes in: the mode and the recorder of a captured step. Goes out: records of what runs there. Each detour is
put on by `probe` for the time of a captured step.

Autograd takes all function modes off while it runs. Python code runs in it where an own
`torch.autograd.Function` has a backward (checkpoints with `use_reentrant=True` are such functions), and
where a checkpoint computes its region again. The backward of a compiled function is such a function too,
and stays as dark as its forward: between the few products that it calls by name, its own kernels write
into the same buffers unseen, and at its first call torch compiles it there.

torch.compile cannot trace through a function mode, so the mode is off while compiled code runs. Where that
code is entered and left is seen at `set_eval_frame`, which has no contract; on a torch without it a compiled
function ends the capture with a sentence, as a CUDA graph that is recorded does.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.autograd.function
import torch.utils.checkpoint

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.calls import CallMode, detour
from ray_precheck.capture.pytorch.recorder import TorchRecorder

# In the name of the module whose functions run what torch.compile has made. Since torch 2.13 autograd calls
# their backward without `apply`.
_AOT = "aot_autograd"
_COMPILER = "torch." + "_dynamo"  # its package is looked for, and never imported from here
_SWITCH = "TORCH_COMPILE_DISABLE=1"


@contextmanager
def backward_passes_seen(mode: CallMode) -> Iterator[None]:
    """Have the mode on in the Python code of backward passes, for the time of a captured step."""
    own_function = torch.autograd.function.BackwardCFunction
    run_backward = own_function.apply

    def backward(self: Any, *gradients: Any) -> Any:
        if _AOT in self._forward_cls.__module__:
            return run_backward(self, *gradients)  # type: ignore[no-untyped-call]
        with mode.on():
            return run_backward(self, *gradients)  # type: ignore[no-untyped-call]

    with ExitStack() as detours:
        detours.enter_context(detour(own_function, "apply", backward))
        recomputation = private_parts.find(private_parts.RECOMPUTATION)
        if recomputation is not None:
            name = "_recomputation_hook"
            told = _with_mode(recomputation, mode)
            detours.enter_context(detour(torch.utils.checkpoint, name, told))
        yield


def _with_mode(
    recomputation: Callable[..., AbstractContextManager[Any]], mode: CallMode
) -> Callable[..., AbstractContextManager[Any]]:
    """Return what makes the context of a recomputation, with the mode on in it."""

    @contextmanager
    def both(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with recomputation(*args, **kwargs) as entered, mode.on():
            yield entered

    return both


@contextmanager
def regions_told_apart(mode: CallMode, recorder: TorchRecorder) -> Iterator[None]:
    """Keep out of compiled code, and out of CUDA graphs, for the time of a captured step."""
    with ExitStack() as hooks:
        hooks.enter_context(detour(torch, "compile", _told(hooks, mode, recorder)))
        if _COMPILER in sys.modules:
            _keep_out(hooks, mode, recorder)
        hooks.enter_context(_no_cuda_graphs(recorder))
        yield


def _told(hooks: ExitStack, mode: CallMode, recorder: TorchRecorder) -> Callable[..., Any]:
    """Return a `torch.compile` that takes note of its first use."""
    original = torch.compile

    def compile_told(*args: Any, **kwargs: Any) -> Any:
        compiled = original(*args, **kwargs)
        if not recorder.knows_compiled:
            _keep_out(hooks, mode, recorder)
        return compiled

    return compile_told


def _keep_out(hooks: ExitStack, mode: CallMode, recorder: TorchRecorder) -> None:
    recorder.knows_compiled = True
    set_eval_frame = private_parts.find(private_parts.EVAL_FRAME)
    module = sys.modules.get(f"{_COMPILER}.eval_frame")
    if set_eval_frame is None or module is None:
        recorder.fail(
            "the script compiles functions with torch.compile, and their calls cannot be seen with"
            f" torch {torch.__version__}; run it with {_SWITCH} in the environment to capture them"
        )
        return
    entered: dict[int, str] = {}

    def set_told(callback: Any) -> Any:
        """Take the mode off where compiled code is entered, and put it on again behind it.

        A call of a compiled function sets None, the compiler, None and what was set before, in this order.
        """
        frame = sys._getframe(1)
        if frame.f_code.co_name == "_maybe_set_eval_frame" and frame.f_back is not None:
            frame = frame.f_back
        if frame.f_code.co_name == "compile_wrapper":
            state = entered.pop(id(frame), "")
            if not state:
                entered[id(frame)] = "begun"
            elif state == "begun":
                entered[id(frame)] = "eager"
                if callback is not None and mode.leave():
                    entered[id(frame)] = "compiled"
                    recorder.compiled(frame)
            elif state != "ended":
                if state == "compiled":
                    mode.enter_again()
                entered[id(frame)] = "ended"
        return set_eval_frame(callback)

    for name, function in list(vars(module).items()):
        if function is set_eval_frame or name == "_maybe_set_eval_frame":
            hooks.enter_context(detour(module, name, set_told))


@contextmanager
def _no_cuda_graphs(recorder: TorchRecorder) -> Iterator[None]:
    """End the capture where the script records a CUDA graph, whose calls run without Python later."""
    original = torch.cuda.CUDAGraph.capture_begin

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.fail(
            "the script records a CUDA graph (torch.cuda.CUDAGraph), whose calls cannot be seen when it"
            " is replayed; switch CUDA graphs off in the script to capture it"
        )
        return original(self, *args, **kwargs)

    with detour(torch.cuda.CUDAGraph, "capture_begin", refuse):
        yield
