"""A stand-in for MSAdapter in tests: a thin face of torch over `mindspore.mint`, far from complete.

Put the folder above this one first in PYTHONPATH, as users do with MSAdapter's `build/lib`. What
MindSpore's CPU lacks and the captures need is composed here. What is broken, at the end and in
`special`, is planted: no capture calls it.
"""

import os
import time
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint
from mindspore import bool_ as bool  # noqa: F401
from mindspore.common.dtype import (  # noqa: F401
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)  # fmt: skip

import torch.nn.functional
import torch.special  # noqa: F401

# Not `import *`: in 2.10.0 mint names more than it has.
_taken = [name for name in dir(mint) if name.islower() and name not in ("nn", "special")]
globals().update({name: getattr(mint, name) for name in _taken})
__version__ = "2.1.0 (stand-in)"


def from_numpy(array: Any) -> Tensor:
    return Tensor(array)


def tensor(value: Any) -> Tensor:
    return Tensor(np.asarray(value, dtype=np.float32))


def manual_seed(seed: int) -> None:
    ms.manual_seed(seed)


def mv(matrix: Tensor, vector: Tensor) -> Tensor:
    return ms.ops.mv(matrix, vector)


def rand(size: tuple[int, ...]) -> Tensor:
    return ms.ops.rand(*size)


def _filled(self: Tensor, value: Tensor) -> Tensor:
    """Write a value into a tensor, as an in-place operator does."""
    return self.copy_(value)


Tensor.lerp_ = lambda self, end, weight: _filled(self, self + (end - self) * weight)
Tensor.addcmul_ = lambda self, a, b, value=1: _filled(self, self + value * a * b)
Tensor.addcdiv_ = lambda self, a, b, value=1: _filled(self, self + value * a / b)


# What is wrong here on purpose, by the kind of fault.
def sinc(x: Tensor) -> Tensor:
    """One part in a hundred too large."""
    return mint.sinc(x) * 1.01


def expm1(x: Tensor) -> Tensor:
    """Right, with a gradient that is half of what it should be."""
    half = x * 0.5
    return mint.expm1(half + ms.ops.stop_gradient(x - half))


def hypot(x: Tensor, y: Tensor) -> Tensor:
    raise NotImplementedError("hypot is left out of this stand-in")


def trunc(x: Tensor) -> Tensor:
    raise RuntimeError("No implementation for function: trunc on cpu.")


def frac(x: Tensor) -> Tensor:
    raise MemoryError


def cov(x: Tensor) -> Tensor:
    """Take 1 GiB, and give it back."""
    return x * float(np.ones(1 << 27)[0])


def numel(x: Tensor) -> Any:
    """A value of a type that native torch does not have."""
    return np.int64(x.size)


def is_same_size(x: Tensor, y: Tensor) -> Any:
    return object()


def floor(x: Tensor) -> Tensor:
    """Ends its process with an exit code."""
    os._exit(7)


def ceil(x: Tensor) -> Tensor:
    """Does not come back."""
    time.sleep(1e6)
    return x
