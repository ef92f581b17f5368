"""The layer that makes a call.

Comes in: models, and the calls of their modules while they run. Goes out: the name of the module that runs.
Asked for each call.
"""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn import Module
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)


class Layers:
    """The names of modules, and which of them run.

    Nothing is attached to a model, so that it can be copied and saved as before.
    """

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Module], str]] = {}
        self._running = threading.local()

    def add(self, model: Module) -> None:
        """Name the modules of a model."""
        for name, module in model.named_modules():
            kind = type(module).__name__
            reference = weakref.ref(module, self._forget(id(module)))
            self._names[id(module)] = (reference, f"{name} ({kind})" if name else kind)

    def _forget(self, key: int) -> Any:
        names = self._names
        return lambda _: names.pop(key, None)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See each call of a module."""
        before = register_module_forward_pre_hook(lambda module, args: self._stack.append(module))
        # Also after a call that raised, or the layers below it would be taken for it from then on.
        after = register_module_forward_hook(
            lambda module, args, output: self._left(module), always_call=True
        )
        try:
            yield
        finally:
            before.remove()
            after.remove()

    @property
    def _stack(self) -> list[Module]:
        stack: list[Module] | None = getattr(self._running, "stack", None)
        if stack is None:
            stack = self._running.stack = []
        return stack

    def _left(self, module: Module) -> None:
        """Take a module off the stack, with all that an exception has left above it."""
        stack = self._stack
        for place in reversed(range(len(stack))):
            if stack[place] is module:
                del stack[place:]
                return

    def now(self) -> tuple[str, bool]:
        """Return the name of the module that runs, and whether a registered model runs.

        A module of no registered model has the name of its class; without a module the name is "".
        """
        stack = self._stack
        known = [self._name_of(module) for module in stack]
        if not stack:
            return "", False
        return known[-1] or type(stack[-1]).__name__, any(known)

    def _name_of(self, module: Module) -> str:
        reference, name = self._names.get(id(module), (None, ""))
        return name if reference is not None and reference() is module else ""
