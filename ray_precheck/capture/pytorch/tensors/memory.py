"""What the memory of a tensor holds, and what was computed of tensors that were seen before in this step.

Comes in: a tensor. Goes out: its memory as a read-only array of numpy, a few of its bytes at a glance, and
what is known of its values, as text. Called for each tensor of each call that is not known by its bytes
(`many`): most are the output of one call and the input of the next, or a view of one, and are looked at once.

A tensor holds the values of an earlier one if memory, version and layout are the same, if the tensor
object that was looked at is still alive and has this memory, which so cannot have been given to another
one meanwhile (FSDP takes the memory of parameters away that live on), and if a glimpse of the memory
shows the same. Calls that are known to change memory make `SeenTensors` `forget` it; after the step of an
optimizer, which may change any, it is made to `forget_all`.

A version says nothing of what writes into memory past autograd: a gradient scaler that unscales, a fused
kernel, an extension, numpy, a receive, `.data`. So up to 16 KB are compared as a whole; of larger tensors 32
pieces of 64 bytes, which any change of the whole (a scale, a sum over ranks) and of 3 % in one piece reaches;
and all of it, as a sum, where numpy or a file has the same memory. It takes 0.3 to 1 us.

On an accelerator kernels of Triton and of extensions write past autograd all the time (into `empty_like`,
into a buffer that torch.compile uses again). To read the memory there is to wait for it: where the capture
waits for each tensor anyway all of it is summed there, and elsewhere nothing counts as seen before.

`array_of` keeps the tensor alive. `borrowed_array` does not, and takes a tenth of the time. `Tensor.numpy`
would do the same, but it forbids the program to resize the tensor's storage from then on (`tensor_to_numpy`
in torch/csrc/utils/tensor_numpy.cpp), and FSDP frees parameters in this way.
"""

import ctypes
import functools
import operator
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import numpy as np
import torch

_TYPES = {
    getattr(torch, name): np.dtype(name).str
    for name in """bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64
        complex64 complex128""".split()
    if hasattr(torch, name)
}
# The memory of the process as one buffer, of which an array can be any piece; nothing is read here. It begins
# behind address 0, which numpy takes for no buffer.
FIRST_BYTE = 64
ALL_MEMORY: Any = (ctypes.c_char * (1 << 62)).from_address(FIRST_BYTE)
_FREED = "the memory of a tensor was taken away"
_FLOAT, _BYTE = np.dtype(np.float32), np.dtype(np.uint8)
_Reader: TypeAlias = Callable[[torch.Tensor], Any]
# What reads the bytes of a tensor, and what it has read.
Glimpse: TypeAlias = tuple[_Reader, Any]
_WHOLE = 1 << 14
_PIECE, _PIECES = np.dtype("V64"), 32
# Elements that are read of a view with gaps, by the number of its dimensions: 64 or less in all.
_OF_EACH = (1, 64, 8, 4, 2, 2, 2)
_ITEMS = {size: np.dtype(f"V{size}") for size in (1, 2, 4, 8, 16)}
_WORD = np.dtype(np.uint64)
_WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NOTHING: Glimpse = (lambda _: b"", b"")
_is_on_host = operator.attrgetter("is_cpu")
Look: TypeAlias = Callable[[torch.Tensor], str]


class _Memory:
    """What numpy asks for the place of the values; keeps the tensor alive with the array."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: torch.Tensor, place: int, kind: str) -> None:
        self.tensor = tensor
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (place, True),
            "typestr": kind,
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
        }


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the values of a detached strided tensor on the CPU, which must not be a lazy conjugate or
    negative; raises as `Tensor.numpy` for others."""
    kind = _TYPES.get(tensor.dtype)
    place = tensor.data_ptr() if kind is not None and tensor.is_cpu else 0
    if tensor.is_cpu and is_freed(tensor):
        raise RuntimeError(_FREED)  # numpy would read from address 0
    if kind is None or not place or tensor.is_conj() or tensor.is_neg():
        return tensor.numpy()  # one without memory, or a mistake
    return np.asarray(_Memory(tensor, place, kind))


def is_freed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor with memory of its own has elements and no memory: FSDP takes it away."""
    return not tensor.data_ptr() and tensor.numel() > 0


def borrowed_array(flat: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the values of a contiguous float32 tensor on the CPU that has elements, `(N,)` float32.

    The array is valid as long as the caller holds the tensor, and must not be written to.

    Raises:
        RuntimeError: the tensor's memory was taken away.
    """
    return np.ndarray((flat.numel(),), _FLOAT, ALL_MEMORY, first_address(flat) - FIRST_BYTE)


def borrowed(
    place: int, shape: tuple[int, ...], dtype: "np.dtype[Any]", strides: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """Return memory of a tensor from an address, as `borrowed_array` does; strides are in bytes."""
    return np.ndarray(shape, dtype, ALL_MEMORY, place - FIRST_BYTE, strides)


def borrowed_bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the bytes of a contiguous tensor on the CPU that has elements, as `borrowed_array` does."""
    size = tensor.numel() * tensor.element_size()
    return np.ndarray((size,), _BYTE, ALL_MEMORY, first_address(tensor) - FIRST_BYTE)


def first_address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's first element.

    Raises:
        RuntimeError: the tensor's memory was taken away.
    """
    place = tensor.data_ptr()
    if not place:
        raise RuntimeError(_FREED)
    return place


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
        grid = borrowed(place, *_grid(tensor.shape, tensor.stride(), tensor.element_size()))
        return lambda _: grid.tobytes(), grid.tobytes()
    size = tensor.nbytes
    if size <= _WHOLE:
        return _whole, _whole(tensor)
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


def _whole(tensor: torch.Tensor) -> bytes:
    """Return all bytes of a tensor; one with the same memory has the same place and size."""
    place = tensor.data_ptr() - FIRST_BYTE
    found: bytes = ALL_MEMORY[place : place + tensor.nbytes]
    return found


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
        # By a memory and a layout: the tensor that was looked at, its version, its glimpse, what was said.
        self._by_memory: dict[
            int, dict[Hashable, tuple[weakref.ref[torch.Tensor], int, Glimpse, str]]
        ] = {}

    def of(self, tensor: torch.Tensor) -> str:
        """Return what is known of a dense tensor with memory, and look at it if nothing is."""
        try:
            memory, version = tensor.untyped_storage().data_ptr(), tensor._version
        except RuntimeError:  # an inference tensor has no version
            return self._look(tensor)
        key = self._layout(tensor)
        known_here = self._by_memory.get(memory)
        if known_here is None:
            known_here = self._by_memory[memory] = {}
        else:
            known = known_here.get(key)
            if known is not None and known[1] == version:
                held, _, (read, seen), text = known
                holder = held()
                if (
                    holder is not None
                    and holder.untyped_storage().data_ptr() == memory
                    and read(tensor) == seen
                ):
                    return text
        glimpse = self._glimpse(tensor)
        text = self._look(tensor)
        known_here[key] = weakref.ref(tensor), version, glimpse, text
        return text

    def _layout(self, tensor: torch.Tensor) -> Hashable:
        """Return which values of its memory a tensor has, in which order where that counts, and what is made
        of them: a lazy conjugate or negative has the memory of another tensor."""
        offset, dtype = tensor.storage_offset(), tensor.dtype
        places: Hashable
        if self._ordered or not (
            tensor.is_contiguous() or covers_memory(tensor.shape, tensor.stride())
        ):
            places = offset, dtype, tensor.shape, tensor.stride()
        else:
            # The statistics of a tensor without dimensions are others than those of one element.
            places = offset, dtype, tensor.numel() if tensor.dim() else 0
        if tensor.is_neg() or tensor.is_conj():
            return places, tensor.is_neg(), tensor.is_conj()
        return places

    def forget(self, tensor: torch.Tensor) -> None:
        """Forget all that shares the memory of a tensor, because a call changes it."""
        try:
            self._by_memory.pop(tensor.untyped_storage().data_ptr(), None)
        except (RuntimeError, NotImplementedError):  # it has no memory of its own
            return

    def forget_all(self) -> None:
        """Forget everything: at the end of a step, and after each step of an optimizer."""
        self._by_memory.clear()
