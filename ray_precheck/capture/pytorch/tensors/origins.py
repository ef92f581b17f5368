"""Where the tensors of a PyTorch program come from.

A tensor is known by its storage, so a view or a detached tensor is known with its base.
"""

import functools
import weakref
from typing import Any, ClassVar

import torch

from ray_precheck.capture.origins import Origins

_DEEPEST = 6


class TorchOrigins(Origins):
    """Which storages are known."""

    tensor: ClassVar[type] = torch.Tensor

    def anchor(self, tensor: torch.Tensor) -> Any:
        """Return the storage object of a tensor, of a wrapped one that within; None where there is none."""
        for _ in range(_DEEPEST):
            try:
                return tensor.untyped_storage()
            except (RuntimeError, NotImplementedError):
                if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                    return None
                tensor = torch._C._functorch.get_unwrapped(tensor)
        return None

    @functools.cached_property
    def is_able(self) -> bool:
        """Whether torch has one object for a storage as long as the storage is there (since 2.1)."""
        try:
            tensor = torch.empty(1)
            found = weakref.ref(tensor.untyped_storage())
            return found() is not None and found() is tensor.untyped_storage()
        except (RuntimeError, TypeError, AttributeError):
            return False
