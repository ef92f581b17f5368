"""How values go to MSAdapter's functions and come back: its tensors are MindSpore's.

Comes in: values of a `HostCall`. Goes out: values that MSAdapter takes, and the other way round.
Called by `mindtorch_device` in the process in which MSAdapter is `torch`.

While MindSpore computes, denormal numbers are flushed (`pytorch.denormals` says why). No native torch may be
loaded here, so that is done through the C library's fenv.h: the flags that it saves and sets hold the
processor's switch.
"""

import ctypes
import importlib
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Leaf
from ray_precheck.frameworks.mindspore.run import MindSporeFace
from ray_precheck.schema.dtypes import DTYPES, canonical_dtype
from ray_precheck.schema.values import HostTensor, Symbol

torch: Any = importlib.import_module("torch")
_DEVICE_TEXT = re.compile(r"(cpu|cuda|npu|gpu)(:\d+)?")
_PLAIN = (bool, int, float, complex, str, type(None))


def mindtorch_face(device: str) -> MindSporeFace:
    """Return the face of MSAdapter on a device of its ("cpu", "npu:0")."""
    return MindSporeFace(_to_device, partial(_constant, device), _plain, flushed_denormals)


def with_tuples(value: Any) -> Any:
    """Return arguments with tuples for lists of whole numbers.

    A dump writes both alike. torch takes either, but for an index; MindSpore's primitives below
    MSAdapter take shapes, paddings and dims as tuples alone.
    """
    if isinstance(value, dict):
        return {key: with_tuples(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(with_tuples(item) for item in value)
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return tuple(value)
    return [with_tuples(item) for item in value] if isinstance(value, list) else value


def _to_device(tensor: HostTensor) -> Any:
    dtype = getattr(torch, tensor.dtype, None)
    if dtype is None:
        raise NotCheckable(f"MSAdapter has no dtype {tensor.dtype}")
    made = torch.from_numpy(np.ascontiguousarray(tensor.data).reshape(tensor.data.shape))
    if DTYPES[tensor.dtype].carrier != tensor.dtype:
        made = made.to(dtype)
    # msadapter 0.1.0 calls float32 bfloat16: what is computed there is not what was recorded.
    if canonical_dtype(str(made.dtype)) not in (tensor.dtype, None):
        raise NotCheckable(
            f"MSAdapter's torch {getattr(torch, '__version__', '')} makes {made.dtype} of {tensor.dtype}"
        )
    return made


def _constant(device: str, value: Any) -> Any:
    """Return a symbol, or a text that names a device, as MSAdapter's own object."""
    if isinstance(value, str) and _DEVICE_TEXT.fullmatch(value):
        return device
    if not isinstance(value, Symbol):
        return value
    if value.kind == "device":
        return device
    found = getattr(torch, value.value, None)
    if found is None:
        raise NotCheckable(f"MSAdapter has no {value.kind} {value.value}")
    return found


def _plain(leaf: Any) -> Leaf:
    """Return a leaf that is no tensor as a Python value: nothing of MSAdapter leaves its process."""
    if isinstance(leaf, np.generic):
        return leaf.item()
    if isinstance(leaf, list | tuple):
        return [_plain(item) for item in leaf]
    if type(leaf) in _PLAIN:
        return leaf
    raise NotCheckable(f"an output of type {type(leaf).__name__} cannot be compared")


_BUFFER_BYTES = 64
_LIBRARY = ctypes.CDLL(None)
# processor -> (offset of its control word in glibc's fenv_t, the bits that flush)
_SWITCHES = {
    # MXCSR: flush to zero (15) and denormals are zero (6); Intel SDM volume 1, section 10.2.3.
    "x86_64": (28, 1 << 15 | 1 << 6),
    # FPCR: FZ (24); Arm ARM, C5.2.8.
    "aarch64": (0, 1 << 24),
}


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Flush denormal numbers inside of the block, and not after it, on processors that can."""
    _set_flush(on=True)
    try:
        yield
    finally:
        _set_flush(on=False)


def _set_flush(*, on: bool) -> None:
    switch = _SWITCHES.get(platform.machine())
    if switch is None or not hasattr(_LIBRARY, "fegetenv"):
        return
    offset, bits = switch
    environment = (ctypes.c_uint8 * _BUFFER_BYTES)()
    _LIBRARY.fegetenv(environment)
    word = ctypes.c_uint32.from_buffer(environment, offset)
    word.value = word.value | bits if on else word.value & ~bits
    _LIBRARY.fesetenv(environment)
