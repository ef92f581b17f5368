"""The names of torch_npu.hooks, for training scripts that were written for it.

Comes in: a model and a hook. Goes out: dumps in that tool's formats. A script changes its import line to
`from ray_precheck.hooks import register_hook, wrap_acc_cmp_hook, ...`; README.md has the rest.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_precheck.capture.pytorch.classic.lines import (
        HookUsageError,
        OverflowFoundError,
        schedule,
        set_dump_path,
        step_schedule,
    )
    from ray_precheck.capture.pytorch.classic.registering import (
        register_hook,
        seed_all,
        unregister_hook,
        wrap_acc_cmp_hook,
        wrap_async_datadump_hook,
        wrap_checkoverflow_hook,
    )

__all__ = [
    "HookUsageError",
    "OverflowFoundError",
    "register_hook",
    "schedule",
    "seed_all",
    "set_dump_path",
    "step_schedule",
    "unregister_hook",
    "wrap_acc_cmp_hook",
    "wrap_async_datadump_hook",
    "wrap_checkoverflow_hook",
]
# The names that need no torch.
_LIGHT = ("HookUsageError", "OverflowFoundError", "schedule", "set_dump_path", "step_schedule")


def __getattr__(name: str) -> Any:
    """Load torch only when a name is asked for that needs it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "lines" if name in _LIGHT else "registering"
    return getattr(importlib.import_module(f"ray_precheck.capture.pytorch.classic.{home}"), name)
