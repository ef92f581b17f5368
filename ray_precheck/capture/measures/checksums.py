"""What `summary_mode` md5 and xor say of a tensor's bytes.

Comes in: the bytes of a tensor's values, in the order of its elements. Goes out: the value of its field
`md5`, as JSON. Called by the tensors of each framework.

As msprobe 26.2 has it: `md5` is the CRC-32 of the bytes; `xor` the exclusive or of the bytes read as 64-bit
words (zeros fill the last one), or the value itself of a tensor without dimensions.
"""

import zlib
from typing import Any

import numpy as np

from ray_precheck.capture.writing.text import scalar

_WORD_BYTES = 8
_WORD = (1 << 64) - 1
Raw = np.ndarray[Any, np.dtype[np.uint8]]


def raw_bytes(values: np.ndarray[Any, Any]) -> Raw:
    """Return the bytes of an array, `(n,)` uint8, in the order of its elements."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def crc32_text(raw: Raw) -> str:
    """Return the CRC-32 of bytes, as 8 hexadecimal digits."""
    return f'"{zlib.crc32(raw.data):08x}"'


def xor_text(raw: Raw, single: object = None) -> str:
    """Return the exclusive or of the 64-bit words in bytes, 16 hexadecimal digits; null where there are none.

    `single` is the value of a tensor without dimensions, which stands for itself; a whole number does it as
    digits.
    """
    if isinstance(single, bool | float):
        return scalar(single)
    if isinstance(single, int):
        return f'"0x{single & _WORD:016x}"'
    if not raw.size:
        return "null"
    words = np.zeros(-(-raw.size // _WORD_BYTES), np.uint64)
    words.view(np.uint8)[: raw.size] = raw
    return f'"0x{int(np.bitwise_xor.reduce(words)):016x}"'
