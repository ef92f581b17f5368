"""What the memory of a tensor holds, at a glance.

Comes in: a strided tensor. Goes out: a function that reads a few of its bytes again each time. Called by what
remembers tensors: if these bytes are others, the values are.

A version says nothing of what writes into memory past autograd: a gradient scaler that unscales, a fused
kernel, an extension, numpy, a receive, `.data`. So up to 16 KB are compared as a whole; of larger tensors 32
pieces of 64 bytes, which any change of the whole (a scale, a sum over ranks) and of 3 % in one piece reaches;
and all of it, as a sum, where numpy or a file has the same memory. It takes 0.3 to 1 us.

On an accelerator kernels of Triton and of extensions write past autograd all the time (into `empty_like`,
into a buffer that torch.compile uses again). To read the memory there is to wait for it: where the capture
waits for each tensor anyway all of it is summed there, and elsewhere nothing counts as seen before.
"""

import functools
import operator
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

from ray_precheck.capture.pytorch.tensors.memory import borrowed, held_bytes

Look: TypeAlias = Callable[[torch.Tensor], Any]
# What reads the bytes of a tensor, and what it has read.
Glimpse: TypeAlias = tuple[Look, Any]

_WHOLE = 1 << 14
_PIECE, _PIECES = np.dtype("V64"), 32
# Elements that are read of a view with gaps, by the number of its dimensions: 64 or less in all.
_OF_EACH = (1, 64, 8, 4, 2, 2, 2)
_ITEMS = {size: np.dtype(f"V{size}") for size in (1, 2, 4, 8, 16)}
_WORD = np.dtype(np.uint64)
_WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Glimpses:
    """The glimpse of the tensor that is recorded now, which its text, statistics, sketch and file share.

    `waits`: the capture waits for the values of tensors on an accelerator.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self._waits = waits
        self._last: tuple[weakref.ref[torch.Tensor], Glimpse] | None = None

    def begin(self) -> None:
        """Begin with another tensor, or with the same one later."""
        self._last = None

    def of(self, tensor: torch.Tensor) -> Glimpse:
        """Return the glimpse of a tensor."""
        if self._last is not None and self._last[0]() is tensor:
            return self._last[1]
        found = glimpse_of(tensor, waits=self._waits)
        self._last = weakref.ref(tensor), found
        return found


def glimpse_of(tensor: torch.Tensor, *, waits: bool = False) -> Glimpse:
    """Return what reads some bytes of any tensor with the same memory as this one, and these bytes.

    On an accelerator all is read if one `waits` for it; else each glimpse is another.
    """
    if not _is_on_host(tensor):
        elsewhere = _sum_of_bits if waits else _unlike_any
        return elsewhere, elsewhere(tensor)
    place = tensor.data_ptr()
    if not place:
        return _NOTHING
    if not (tensor.is_contiguous() or covers_memory(tensor.shape, tensor.stride())):
        grid = _with_gaps(tensor, place)
        return grid, grid(tensor)
    size = tensor.nbytes
    if size <= _WHOLE:
        return lambda _: held_bytes(place, size), held_bytes(place, size)
    pieces = borrowed(place, (_PIECES,), _PIECE, _step(size))
    if tensor.untyped_storage().resizable():
        # Numpy may get it later.
        def look_on(known: torch.Tensor) -> bytes | None:
            return pieces.tobytes() if known.untyped_storage().resizable() else None

        return look_on, pieces.tobytes()

    def look(_: torch.Tensor) -> tuple[bytes, int]:
        # The program cannot resize what numpy or a file has.
        words = borrowed(place, (size // _WORD.itemsize,), _WORD, (_WORD.itemsize,))
        return pieces.tobytes(), int(np.add.reduce(words))

    return look, look(tensor)


_NOTHING: Glimpse = (lambda _: b"", b"")
_is_on_host = operator.attrgetter("is_cpu")


def _unlike_any(_: torch.Tensor) -> object:
    return object()


def _sum_of_bits(tensor: torch.Tensor) -> object:
    """Return the sum of a tensor's elements, taken for whole numbers, and 64 or more of them, since a kernel
    may move values to other places; what has no such sum is unlike any other."""
    try:
        values = tensor.detach().resolve_conj().resolve_neg()
        if values.is_complex():
            values = torch.view_as_real(values)
        bits = values.view(_WHOLE_NUMBERS[values.element_size()]).reshape(-1)
        some = bits[:: bits.numel() // 64 or 1]
        return torch.cat([bits.sum().view(1), some.to(torch.int64)]).tolist()
    except (RuntimeError, NotImplementedError, TypeError):
        return object()


@functools.lru_cache(maxsize=4096)
def _step(size: int) -> tuple[int]:
    """Return how many bytes lie between the beginnings of two pieces."""
    # A multiple of the element's size, and not of the size of rows, which are powers of two.
    step = (size - _PIECE.itemsize) // (_PIECES - 1) // 16 * 16
    return (step - 16 * (step % 32 == 0),)


@functools.lru_cache(maxsize=4096)
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


def _with_gaps(tensor: torch.Tensor, place: int) -> Look:
    """Return what reads a grid of elements."""
    size = tensor.element_size()
    grid = borrowed(place, *_grid(tensor.shape, tensor.stride(), size))
    return lambda _: grid.tobytes()


@functools.lru_cache(maxsize=4096)
def _grid(
    sizes: tuple[int, ...], strides: tuple[int, ...], size: int
) -> tuple[tuple[int, ...], "np.dtype[Any]", tuple[int, ...]]:
    """Return the shape, the item and the strides in bytes of a grid in a tensor."""
    most = _OF_EACH[min(len(sizes), len(_OF_EACH) - 1)]
    counts, steps = [], []
    for length, stride in zip(sizes, strides, strict=True):
        count = min(length, most) if stride else 1
        counts.append(count)
        steps.append(stride * size * ((length - 1) // (count - 1) if count > 1 else 1))
    return tuple(counts), _ITEMS[size], tuple(steps)
