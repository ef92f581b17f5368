"""Calls that a backward pass makes in Python: recomputed regions and the backward of own functions.

Comes in: the mode of a captured step. Goes out: the same mode, on while such Python code runs. Put on by
`probe` for each captured step.

Autograd takes all function modes off while it runs. Python code runs in it where an own
`torch.autograd.Function` has a backward (checkpoints with `use_reentrant=True` are such functions), and
where a checkpoint computes its region again. The backward of a compiled function is such a function too,
and stays as dark as its forward: between the few products that it calls by name, its own kernels write
into the same buffers unseen, and at its first call torch compiles it there.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch.autograd.function
import torch.utils.checkpoint

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.calls import CallMode, detour

# In the name of the module whose functions run what torch.compile has made. Since torch 2.13 autograd calls
# their backward without `apply`.
_AOT = "aot_autograd"


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
