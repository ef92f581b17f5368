"""The memory of a tensor on the CPU, as numpy sees it.

Comes in: a tensor. Goes out: a read-only array of the same memory. Called by what looks at values.

`Tensor.numpy` would do the same, but it forbids the program to resize the tensor's storage from then on
(`tensor_to_numpy` in torch/csrc/utils/tensor_numpy.cpp), and FSDP frees parameters in this way.
"""

from typing import Any

import numpy as np
import torch

_TYPES = {
    getattr(torch, name): np.dtype(name).str
    for name in """bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64
        complex64 complex128""".split()
    if hasattr(torch, name)
}


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
    if kind is None or not place or tensor.is_conj() or tensor.is_neg():
        return tensor.numpy()  # one without memory, or a mistake
    return np.asarray(_Memory(tensor, place, kind))
