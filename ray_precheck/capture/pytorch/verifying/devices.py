"""The accelerators of this process, for the states of their random generators.

Comes in: nothing. Goes out: torch's module of them, and their numbers. Called for digests and saved states.
"""

from typing import Any

import torch

from ray_precheck.foreign import caught


def device_module() -> Any:
    """Return torch.cuda, torch.npu or the like; torch.cuda where there is none."""
    cuda: Any = torch.cuda
    module, _ = caught(getattr(torch, "get_device_module", lambda: cuda))
    return module if hasattr(module, "get_rng_state") else cuda


def devices_in_use() -> list[int]:
    """Return the numbers of the devices of this process, none where it has used none so far."""
    module = device_module()
    is_used = getattr(module, "is_initialized", lambda: True)
    return list(range(module.device_count())) if is_used() else []
