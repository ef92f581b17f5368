"""What the memory of a tensor holds, at a glance.

Comes in: a strided tensor. Goes out: a function that reads a few of its bytes again each time. Called by what
remembers tensors: if these bytes are others, the values are.

A version says nothing of what writes into memory past autograd: a gradient scaler that unscales, a fused
kernel, an extension, numpy, a receive, `.data`. So up to 16 KB are compared as a whole; of larger tensors 32
pieces of 64 bytes, which any change of the whole (a scale, a sum over ranks) and of 3 % in one piece reaches;
and all of it, as a sum, where numpy or a file has the same memory. It takes 0.3 to 1 us.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

from ray_precheck.capture.pytorch.tensors.memory import borrowed

Glimpse: TypeAlias = Callable[[torch.Tensor], Any]

_WHOLE = 1 << 14
_PIECE, _PIECES = np.dtype("V64"), 32
# Elements that are read of a view with gaps, by the number of its dimensions: 64 or less in all.
_OF_EACH = (1, 64, 8, 4, 2, 2, 2)
_ITEMS = {size: np.dtype(f"V{size}") for size in (1, 2, 4, 8, 16)}
_WORD = np.dtype(np.uint64)


def glimpse_of(tensor: torch.Tensor) -> Glimpse:
    """Return what reads some bytes of a tensor with the same memory as this one.

    On an accelerator nothing is read, because the program would have to wait for it.
    """
    if not tensor.is_cpu:
        return _nothing
    size = tensor.numel() * tensor.element_size()
    if not size or not tensor.data_ptr():
        return _nothing
    if not (tensor.is_contiguous() or covers_memory(tensor.shape, tensor.stride())):
        return _with_gaps(tensor)
    if size <= _WHOLE:
        held = borrowed(tensor, (size,), _ITEMS[1], (1,))
        return lambda _: held.tobytes()
    # A multiple of the element's size, and not of the size of rows, which are powers of two.
    step = (size - _PIECE.itemsize) // (_PIECES - 1) // 16 * 16
    step -= 16 * (step % 32 == 0)
    pieces = borrowed(tensor, (_PIECES,), _PIECE, (step,))
    whole = borrowed(tensor, (size // _WORD.itemsize,), _WORD, (_WORD.itemsize,))

    def look(known: torch.Tensor) -> tuple[bytes, int | None]:
        # The program cannot resize what numpy or a file has.
        is_shared = not known.untyped_storage().resizable()
        return pieces.tobytes(), int(np.add.reduce(whole)) if is_shared else None

    return look


def covers_memory(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether a tensor takes each element of one piece of memory once, in any order."""
    expected = 1
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _nothing(_: torch.Tensor) -> bytes:
    return b""


def _with_gaps(tensor: torch.Tensor) -> Glimpse:
    """Return what reads a grid of elements."""
    size = tensor.element_size()
    most = _OF_EACH[min(tensor.dim(), len(_OF_EACH) - 1)]
    counts, strides = [], []
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count = min(length, most) if stride else 1
        counts.append(count)
        strides.append(stride * size * ((length - 1) // (count - 1) if count > 1 else 1))
    grid = borrowed(tensor, tuple(counts), _ITEMS[size], tuple(strides))
    return lambda _: grid.tobytes()
