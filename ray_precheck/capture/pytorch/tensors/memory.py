"""The memory of a tensor on the CPU, as numpy sees it.

Comes in: a tensor. Goes out: a read-only array of the same memory. Called by what looks at values.

`array_of` keeps the tensor alive. `borrowed_array` does not, and takes a tenth of the time.

`Tensor.numpy` would do the same, but it forbids the program to resize the tensor's storage from then on
(`tensor_to_numpy` in torch/csrc/utils/tensor_numpy.cpp), and FSDP frees parameters in this way.
"""

import ctypes
from typing import Any

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
_FIRST = 64
_ALL_MEMORY: Any = (ctypes.c_char * (1 << 62)).from_address(_FIRST)
_FREED = "the memory of a tensor was taken away"
_FLOAT, _BYTE = np.dtype(np.float32), np.dtype(np.uint8)


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
    return np.ndarray((flat.numel(),), _FLOAT, _ALL_MEMORY, _place_of(flat))


def borrowed(
    place: int, shape: tuple[int, ...], dtype: "np.dtype[Any]", strides: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """Return memory of a tensor from an address, as `borrowed_array` does; strides are in bytes."""
    return np.ndarray(shape, dtype, _ALL_MEMORY, place - _FIRST, strides)


def held_bytes(place: int, size: int) -> bytes:
    """Return a copy of some memory of a tensor, which the caller holds."""
    found: bytes = _ALL_MEMORY[place - _FIRST : place - _FIRST + size]
    return found


def borrowed_bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the bytes of a contiguous tensor on the CPU that has elements, as `borrowed_array` does."""
    size = tensor.numel() * tensor.element_size()
    return np.ndarray((size,), _BYTE, _ALL_MEMORY, _place_of(tensor))


def _place_of(tensor: torch.Tensor) -> int:
    place = tensor.data_ptr()
    if not place:
        raise RuntimeError(_FREED)
    return place - _FIRST
