"""Whether this thread's arithmetic flushes denormal numbers to zero, without torch.

Called where MindSpore computes and no native torch may be loaded; `torch_denormals` says why it is
needed. Through the C library's fenv.h: the flags that it saves and sets hold the processor's switch.
"""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

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
