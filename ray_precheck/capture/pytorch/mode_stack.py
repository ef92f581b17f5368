"""Where a function mode stands among those of a thread.

Comes in: the mode of a captured step. Goes out: the mode on the stack of this thread, and off again.
Called by `calls` when a step begins and ends, and when a model is called.

torch takes off what lies uppermost, and each thread has a stack of its own. A step may end where the mode
is not uppermost (the script has put on one of its own), not in this thread, or not there for the moment:
torch takes a mode off while it handles a call, such as `backward`, in which an optimizer may step. Then the
mode is left where it is, does nothing any more, and is swept away later.
"""

from collections.abc import Callable, Iterable, Sequence

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
