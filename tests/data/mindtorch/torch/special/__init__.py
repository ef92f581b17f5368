"""torch.special of the stand-in: what breaks its process."""

import ctypes
import os

from mindspore import Tensor


def erfcx(x: Tensor) -> Tensor:
    """Kill the process, after a last word."""
    os.write(2, b"the driver: no such stream\n")
    ctypes.string_at(0)
    return x
