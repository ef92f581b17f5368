"""The mode of a capture beside what the script has put on: where it stands, and how to step aside.

Comes in: the mode of a captured step. Goes out: the mode on the stack of this thread, and off again; a
context in which what looks on is off. Called by `calls` when a step begins and ends, and when a model is
called, and by the recorder around all that it does.

torch takes off what lies uppermost, and each thread has a stack of its own. A step may end where the mode
is not uppermost (the script has put on one of its own), not in this thread, or not there for the moment:
torch takes a mode off while it handles a call, such as `backward`, in which an optimizer may step. Then the
mode is left where it is, does nothing any more, and is swept away later.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from torch.overrides import TorchFunctionMode

from ray_precheck import private_parts


def modes_on() -> tuple[TorchFunctionMode, ...]:
    """Return the modes on this thread's stack, the lowest first."""
    modes = _taken()
    _put(modes)
    return tuple(modes)


def put_mode_on(mode: TorchFunctionMode, below: Sequence[TorchFunctionMode] = ()) -> None:
    """Put a mode on this thread's stack, beneath those of the script, which then may be taken off first.

    Above it are neither the modes `below`, which were on before the capture began, nor the device that the
    script has set as its default, which is a mode that has to be the lowest.
    """
    modes = _taken()
    default = getattr(private_parts.find(private_parts.DEFAULT_DEVICE), "device_context", None)
    lower = {id(each) for each in (*below, default)}
    place = next((at for at, each in enumerate(modes) if id(each) not in lower), len(modes))
    _put([*modes[:place], mode, *modes[place:]])


def take_modes_off(is_meant: Callable[[TorchFunctionMode], bool]) -> bool:
    """Take modes off the stack of this thread wherever they stand, and return whether there was one."""
    modes = _taken()
    kept = [mode for mode in modes if not is_meant(mode)]
    _put(kept)
    return len(kept) < len(modes)


def _taken() -> list[TorchFunctionMode]:
    """Take all modes off the stack of this thread; returns them, the lowest first."""
    current = private_parts.find(private_parts.FUNCTION_MODE)
    taken: list[TorchFunctionMode] = []
    while current is not None and (mode := current()) is not None:
        TorchFunctionMode.__exit__(mode, None, None, None)  # type: ignore[no-untyped-call]
        taken.append(mode)
    return taken[::-1]


def _put(modes: Iterable[TorchFunctionMode]) -> None:
    for mode in modes:
        TorchFunctionMode.__enter__(mode)  # type: ignore[no-untyped-call]


_NOTHING: AbstractContextManager[Any] = nullcontext()


class Aside:
    """Steps aside where something of the script would look on: what a capture computes is no part of that.

    These are the script's transforms (`torch.func`), its modes of dispatch (a counter of operations, a
    selective checkpoint, `make_fx`) and its tracer (`torch.jit.trace`).
    """

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
