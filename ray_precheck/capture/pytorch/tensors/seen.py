"""What was computed of tensors that were seen before in this step.

Comes in: a tensor. Goes out: what is known of its values, as text. Called for each tensor of each call:
most are the output of one call and the input of the next, or a view of one, and are looked at once.

A tensor holds the values of an earlier one if memory, version and layout are the same, if the tensor
object that was looked at is still alive and has this memory, which so cannot have been given to another
one meanwhile (FSDP takes the memory of parameters away that live on), and if a `glimpse` of the memory
shows the same. Calls that are known to change memory make the cache `forget` it; after the step of an
optimizer, which may change any, it is made to `forget_all`.
"""

import weakref
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeAlias

import torch

from ray_precheck.capture.pytorch.tensors.glimpse import Glimpse, covers_memory, glimpse_of

Look: TypeAlias = Callable[[torch.Tensor], str]


class _Known(NamedTuple):
    tensor: "weakref.ref[torch.Tensor]"
    version: int
    glimpse: Glimpse
    text: str


class SeenTensors:
    """Remembers what `look` said of each tensor, and holds no tensor itself.

    What does not depend on the order of the values (`ordered=False`: largest, mean) is known of every
    view that covers the same memory, transposed or reshaped.
    """

    def __init__(
        self,
        look: Look,
        *,
        ordered: bool,
        glimpse: Callable[[torch.Tensor], Glimpse] = glimpse_of,
    ) -> None:
        self._look = look
        self._glimpse = glimpse
        self._ordered = ordered
        self._by_memory: dict[int, dict[Hashable, _Known]] = {}
        self.asked = self.looked = 0

    def of(self, tensor: torch.Tensor) -> str:
        """Return what is known of a dense tensor with memory, and look at it if nothing is."""
        self.asked += 1
        try:
            memory, version = tensor.untyped_storage().data_ptr(), tensor._version
        except RuntimeError:  # an inference tensor has no version
            self.looked += 1
            return self._look(tensor)
        key = self._layout(tensor)
        known_here = self._by_memory.get(memory)
        if known_here is None:
            known_here = self._by_memory[memory] = {}
        else:
            known = known_here.get(key)
            if known is not None and known.version == version:
                holder = known.tensor()
                if (
                    holder is not None
                    and holder.untyped_storage().data_ptr() == memory
                    and known.glimpse[0](tensor) == known.glimpse[1]
                ):
                    return known.text
        self.looked += 1
        glimpse = self._glimpse(tensor)
        text = self._look(tensor)
        known_here[key] = _Known(weakref.ref(tensor), version, glimpse, text)
        return text

    def _layout(self, tensor: torch.Tensor) -> Hashable:
        """Return which values of its memory a tensor has, in which order where that counts, and what is made
        of them: a lazy conjugate or negative has the memory of another tensor."""
        if tensor.is_neg() or tensor.is_conj():
            return self._places(tensor), tensor.is_neg(), tensor.is_conj()
        return self._places(tensor)

    def _places(self, tensor: torch.Tensor) -> Hashable:
        offset, dtype = tensor.storage_offset(), tensor.dtype
        if self._ordered:
            return offset, dtype, tensor.shape, tensor.stride()
        if tensor.is_contiguous() or covers_memory(tensor.shape, tensor.stride()):
            # The statistics of a tensor without dimensions are others than those of one element.
            return offset, dtype, tensor.numel() if tensor.dim() else 0
        return offset, dtype, tensor.shape, tensor.stride()

    def forget(self, tensor: torch.Tensor) -> None:
        """Forget all that shares the memory of a tensor, because a call changes it."""
        try:
            self._by_memory.pop(tensor.untyped_storage().data_ptr(), None)
        except (RuntimeError, NotImplementedError):  # it has no memory of its own
            return

    def forget_all(self) -> None:
        """Forget everything: at the end of a step, and after each step of an optimizer."""
        self._by_memory.clear()
