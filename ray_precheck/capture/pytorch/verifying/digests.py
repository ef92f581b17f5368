"""Digests of the bytes of tensors, and of the states of random generators.

Comes in: values as operators get and give them. Goes out: texts that are equal where every bit is. Called by
the tracing of a step. Nothing here moves a random state, passes through a mode or has a gradient.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.tensors.text import TensorTexts
from ray_precheck.capture.pytorch.tensors.values import bytes_of
from ray_precheck.capture.verifying.digests import Digests
from ray_precheck.foreign import caught

dense_of = TensorTexts(lambda _: "").dense


def unseen() -> AbstractContextManager[Any]:
    """Return a context in which calls pass through no function mode."""
    found = private_parts.find(private_parts.NO_FUNCTION_MODE)
    return nullcontext() if found is None else found()


class TorchDigests(Digests):
    """Takes digests of the values of a PyTorch program."""

    tensor = torch.Tensor

    def of(self, value: Any) -> str:
        """Return the digest of the tensors and plain values in a nested value."""
        with unseen():
            return super().of(value)

    def raw(self, tensor: torch.Tensor) -> Any:
        """Return the bytes of a tensor, None for one without memory here (meta, fake, not yet arrived)."""
        # A tensor that a transform has wrapped may refuse to be read.
        found, _ = caught(lambda: _bytes(tensor))
        return found

    def states(self) -> dict[str, Any]:
        """Return the states of the generators of torch and its devices."""
        states: dict[str, Any] = {"the random state of torch": torch.get_rng_state()}
        for number in devices_in_use():
            states[f"the random state of device {number}"] = device_module().get_rng_state(number)
        return states


def _bytes(tensor: torch.Tensor) -> Any:
    dense = dense_of(tensor)
    if dense is None or not dense.numel():
        return None
    if dense.is_quantized:
        dense = dense.int_repr()
    return bytes_of(dense).data


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
