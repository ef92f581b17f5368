"""The regions of a program that `ms.jit` compiles, in which replaced functions must not be met.

Comes in: patches, and who wants to know of the regions. Goes out: nothing; while a region is compiled and
run, everything is as it was. Used by the hooks of a captured step, and by those of loss scalers.

A compiler that reads the program's source must find the functions themselves.
"""

import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, TypeAlias

from ray_precheck import private_parts
from ray_precheck.capture.mindspore.patches import Patches

# Gets the function, the frame of its caller, its arguments and its result.
OnRegion: TypeAlias = Callable[[Any, FrameType, tuple[Any, ...], dict[str, Any], Any], None]


def tracing() -> Callable[[], bool]:
    """Return what says whether a function runs that is traced (`capture_mode="trace"`)."""
    found: Callable[[], bool] | None = private_parts.find(private_parts.MINDSPORE_JIT_TRACE)
    return found or bool


def keep_out_of_compilers(patches: Patches, on_region: OnRegion = lambda *_: None) -> None:
    """Take patches away while `ms.jit` compiles a region and runs it; `on_region` is told of it."""
    executor = private_parts.find(private_parts.MINDSPORE_JIT)
    if executor is not None:
        patches.put(executor, "__call__", _region(executor.__call__, patches, on_region))
    bytecode = private_parts.find(private_parts.MINDSPORE_JIT_BYTECODE)
    if bytecode is not None:
        _keep_out_of_bytecode(bytecode, patches, on_region)


def _region(
    original: Callable[..., Any], patches: Patches, on_region: OnRegion
) -> Callable[..., Any]:
    @functools.wraps(original)
    def region(executor: Any, *args: Any, **kwargs: Any) -> Any:
        with patches.suspended():
            result = original(executor, *args, **kwargs)
        # A method gets its Cell as the first argument.
        own = args[1:] if args and hasattr(args[0], executor.fn.__name__) else args
        on_region(executor.fn, sys._getframe(1), own, kwargs, result)
        return result

    return region


def _keep_out_of_bytecode(context: Any, patches: Patches, on_region: OnRegion) -> None:
    """Do the same where `ms.jit` looks at bytecode, which it does between an entry and an exit."""
    enter, leave = context.__enter__, context.__exit__
    open_regions: list[ExitStack] = []

    def entered(region: Any) -> Any:
        stack = ExitStack()
        stack.enter_context(patches.suspended())
        open_regions.append(stack)
        on_region(region.fn, sys._getframe(1), (), {}, ())
        return enter(region)

    def left(region: Any, *reason: Any) -> Any:
        try:
            return leave(region, *reason)
        finally:
            open_regions.pop().close()

    patches.put(context, "__enter__", entered)
    patches.put(context, "__exit__", left)
