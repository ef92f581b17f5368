"""The errors of the hooks, which scripts written for torch_npu.hooks catch under the types it raised.

Raised by the modules of this folder.
"""

from ray_precheck.errors import PrecheckError, UsageError


class HookUsageError(UsageError, RuntimeError):
    """A path, a schedule, a model or a hook is wrong; torch_npu.hooks raised a `RuntimeError`."""


class OverflowFoundError(PrecheckError, ValueError):
    """A call gave NaN or infinity; torch_npu.hooks raised a `ValueError`."""
