"""The layer that makes a call.

Comes in: models, and the frame of a call. Goes out: the name of the module that runs there. Asked for each
call.
"""

import weakref
from types import FrameType

from torch.nn import Module

from ray_precheck.capture.dark import modules_around

# The method of torch in which each call of a module runs.
_CALL = "_call_impl"


class Layers:
    """The names of modules. Nothing is attached to a model, so that it can be copied and saved as before."""

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[Module, str] = weakref.WeakKeyDictionary()

    def add(self, model: Module) -> None:
        """Name the modules of a model."""
        for name, module in model.named_modules():
            kind = type(module).__name__
            self._names[module] = f"{name} ({kind})" if name else kind

    def at(self, frame: FrameType) -> tuple[str, bool]:
        """Return the name of the module that runs in a frame, and whether a registered model runs.

        A module of no registered model has the name of its class; without a module the name is "".
        """
        running = modules_around(frame, _CALL)
        known = [self._names.get(module, "") for module in running]
        if not running:
            return "", False
        return known[0] or type(running[0]).__name__, any(known)
