"""Attributes of foreign modules and classes that are replaced for a while, but not for a compiler.

Comes in: owners, names and replacements. Goes out: nothing; afterwards everything is as before, to the very
object. Used by the hooks of a captured step and by those of loss scalers, because MindSpore has no place to
hook in for all operators.

A compiler that reads the program's source must find the functions themselves: while `ms.jit` compiles a
region and runs it, everything is as it was.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType, ModuleType
from typing import Any, NamedTuple, TypeAlias

from ray_precheck import private_parts

_ABSENT = object()
# The insides of these packages are not looked through for functions imported by name, but for the parts of
# MindSpore that call operators as a program does.
_LEFT_ALONE = frozenset({"mindspore", "ray_precheck", "numpy", "ray"})
_LOOKED_THROUGH = ("mindspore.nn", "mindspore.mint.", "mindspore.train", "mindspore.experimental")
# Gets the function, the frame of its caller, its arguments and its result.
OnRegion: TypeAlias = Callable[[Any, FrameType, tuple[Any, ...], dict[str, Any], Any], None]


def _is_left_alone(module: str) -> bool:
    return module.partition(".")[0] in _LEFT_ALONE and not module.startswith(_LOOKED_THROUGH)


class _Patch(NamedTuple):
    owner: Any
    name: str
    before: Any
    after: Any

    def put(self) -> None:
        setattr(self.owner, self.name, self.after)

    def take_away(self) -> None:
        if self.before is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)


class Patches:
    """The replacements that are in place."""

    def __init__(self) -> None:
        self._patches: list[_Patch] = []
        self._suspended = 0

    def put(self, owner: Any, name: str, after: Any) -> None:
        """Replace an attribute; one that a class has from its base is put onto the class itself."""
        patch = _Patch(owner, name, vars(owner).get(name, _ABSENT), after)
        patch.put()
        self._patches.append(patch)

    def put_where_imported(self, replacements: Mapping[int, tuple[Any, Any]]) -> None:
        """Replace functions in the modules that imported them by name (`from mindspore.mint import matmul`).

        `replacements` has by the identity of a function itself and its replacement.
        """
        for name, module in list(sys.modules.items()):
            if not isinstance(module, ModuleType) or _is_left_alone(name):
                continue
            for attribute, value in list(vars(module).items()):
                found = replacements.get(id(value))
                if found is not None and found[0] is value:
                    self.put(module, attribute, found[1])

    def take_away(self) -> None:
        """Put everything back, the last replacement first."""
        patches, self._patches = self._patches, []
        if not self._suspended:
            for patch in reversed(patches):
                patch.take_away()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Have everything as it was for a while; a compiler must not see the replacements."""
        self._suspended += 1
        if self._suspended == 1:
            for patch in reversed(self._patches):
                patch.take_away()
        try:
            yield
        finally:
            self._suspended -= 1
            if not self._suspended:
                for patch in self._patches:
                    patch.put()


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
