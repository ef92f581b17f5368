"""What a capture computes is no part of what the script looks at.

Comes in: nothing. Goes out: a context in which the script's transforms (`torch.func`), its modes of dispatch
(a counter of operations, a selective checkpoint, `make_fx`) and its tracer (`torch.jit.trace`) are off.
Entered by the recorder around all that it does.
"""

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from ray_precheck import private_parts

_NOTHING: AbstractContextManager[Any] = nullcontext()


class Aside:
    """Steps aside where something of the script would look on."""

    def __init__(self) -> None:
        find = private_parts.find
        self._modes = find(private_parts.DISPATCH_MODES)
        self._without_modes = find(private_parts.NO_DISPATCH_MODES)
        self._transform = find(private_parts.TRANSFORM)
        self._without_transforms = find(private_parts.NO_TRANSFORMS)
        self._trace = find(private_parts.TRACE)
        self._set_trace = find(private_parts.SET_TRACE)

    def __call__(self) -> AbstractContextManager[Any]:
        """Return the context, which costs next to nothing where nothing looks on."""
        transformed = self._transform is not None and self._transform() is not None
        watched = self._modes is not None and self._modes() > 0
        traced = self._trace is not None and self._trace() is not None
        if not (transformed or watched or traced):
            return _NOTHING
        hidden = ExitStack()
        if traced and self._set_trace is not None:
            hidden.callback(self._set_trace, self._trace())  # type: ignore[misc]
            self._set_trace(None)
        if watched and self._without_modes is not None:
            hidden.enter_context(self._without_modes())
        if transformed and self._without_transforms is not None:
            hidden.enter_context(self._without_transforms())
        return hidden
