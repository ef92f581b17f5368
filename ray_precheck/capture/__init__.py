"""Captures: what every operator of a training step got and gave, as a dump.

Comes in: a script, or a model that runs in this process. Goes out: a folder for each step and rank with
dump.json, stack.json, construct.json and tensors, as msprobe writes them. Called by the command
`capture`, and by users: `from ray_precheck.capture import Capture`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_precheck.capture.capturing import Capture, step
    from ray_precheck.capture.debugger import PrecisionDebugger
    from ray_precheck.capture.verifying.runs import verify

__all__ = ["Capture", "PrecisionDebugger", "step", "verify"]
_HOMES = {
    "Capture": "capturing",
    "PrecisionDebugger": "debugger",
    "step": "capturing",
    "verify": "verifying.runs",
}


def __getattr__(name: str) -> Any:
    """Load the part that is asked for: the process that runs a script must start quickly."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
