"""What the hooks tell: errors, which scripts written for torch_npu.hooks catch under the types it raised, and
sentences that are no errors.

Raised and called by the modules of this folder.
"""

import sys

from ray_precheck.errors import PrecheckError, UsageError


class HookUsageError(UsageError, RuntimeError):
    """A path, a schedule, a model or a hook is wrong; torch_npu.hooks raised a `RuntimeError`."""


class OverflowFoundError(PrecheckError, ValueError):
    """A call gave NaN or infinity; torch_npu.hooks raised a `ValueError`."""


def tell_user(text: str) -> None:
    """Print a sentence on stderr."""
    print(f"ray-precheck hooks: {text}", file=sys.stderr, flush=True)
