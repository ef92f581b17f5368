"""Files of safetensors, read and written without its package.

Comes in: an open file. Goes out: where each tensor stands in it, and what it is. Called by `dump.tensors` and
`dump.mapped` for a captured tensor, by `formats.plain_folders` for files of many, and by a capture.

A file is 8 bytes with the length of its header (little endian), the header, a JSON object, and the data:

    {"weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {"format": "pt"}}

The offsets are counted from the end of the header (github.com/huggingface/safetensors, README, "Format"). The
file is untrusted: it has no code in it, and what it says of sizes is believed where the file has the bytes.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import orjson

from ray_precheck.schema.dtypes import DTYPES, Array

SUFFIX = ".safetensors"
# The canonical dtypes by their names in a file; a file may have others, which NumPy has none for.
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}
NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# A tensor has some 150 bytes of header, and 16 MiB of JSON decode to 600 MiB at most. The format itself
# allows 100 MB.
_LARGEST_HEADER = 16 << 20
_LENGTH_BYTES, _ALIGNMENT = 8, 8
_METADATA = "__metadata__"
# The name of the tensor of a capture's file.
ONLY = "tensor"
_LONGEST_SHAPE = 64


class StoredTensor(NamedTuple):
    """A tensor in a file: its canonical dtype, and from which byte of the file its elements stand."""

    dtype: str
    shape: tuple[int, ...]
    begin: int


def element_of(dtype: str) -> "np.dtype[Any]":
    """Return the dtype of elements as they stand in a file: of a dtype that NumPy lacks their bits."""
    kind = DTYPES[dtype]
    name = kind.name if kind.carrier == kind.name else f"uint{kind.bits}"
    return np.dtype(name).newbyteorder("<")


def stored_tensors(opened: BufferedReader) -> dict[str, StoredTensor]:
    """Return what an open file holds, in the order of its header.

    Raises:
        ValueError: it is no such file, or it is cut; the text says what was expected.
        OSError: it cannot be read.
    """
    size = os.fstat(opened.fileno()).st_size
    opened.seek(0)
    length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
    start = _LENGTH_BYTES + length
    if size < _LENGTH_BYTES or not 2 <= length <= size - _LENGTH_BYTES:
        raise ValueError(f"a header of {length} bytes does not fit into its {size} bytes")
    if length > _LARGEST_HEADER:
        raise ValueError(
            f"its header has {length} bytes, more than the {_LARGEST_HEADER} that are read"
        )
    header = orjson.loads(opened.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    return {
        name: _stored(name, entry, start, size - start)
        for name, entry in header.items()
        if name != _METADATA
    }


def _stored(name: str, entry: Any, start: int, there: int) -> StoredTensor:
    where = f"tensor {name[:80]!r}"
    dtype, shape, offsets = (
        entry.get(field) if isinstance(entry, dict) else None
        for field in ("dtype", "shape", "data_offsets")
    )
    if not (_are_counts(shape) and _are_counts(offsets) and len(offsets) == 2):
        raise ValueError(f"{where} has no shape and offsets: {str(entry)[:80]}")
    found = _DTYPES.get(dtype) if isinstance(dtype, str) else None
    if found is None:
        raise ValueError(
            f"{where} has the dtype {str(dtype)[:20]!r}; read are {', '.join(_DTYPES)}"
        )
    begin, end = offsets
    wanted = prod(shape) * DTYPES[found].bits // 8
    if end - begin != wanted or end > there:
        raise ValueError(
            f"{where} of shape {shape} takes {wanted} bytes, and has those from {begin} to {end} of {there}"
        )
    return StoredTensor(found, tuple(shape), start + begin)


def _are_counts(numbers: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(numbers, list)
        and len(numbers) <= _LONGEST_SHAPE
        and all(type(each) is int and 0 <= each < 1 << 63 for each in numbers)
    )


def only_tensor(opened: BufferedReader) -> StoredTensor:
    """Return the one tensor of a file, as a capture writes them; raises as `stored_tensors`."""
    found = stored_tensors(opened)
    if len(found) != 1:
        raise ValueError(f"it holds {len(found)} tensors, a single one is expected")
    return next(iter(found.values()))


def widening(dtype: str) -> Callable[[Array], Array] | None:
    """Return what makes carriers of elements as they stand in a file; None where they are some already."""
    if dtype == "bfloat16":
        return from_bfloat16
    if DTYPES[dtype].carrier == dtype:
        return None
    import ml_dtypes

    numbers = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, dtype)).astype(np.float32)
    return lambda some: numbers[some]


def from_bfloat16(some: Array) -> Array:
    """Return bits of bfloat16, uint16, as float32."""
    wide = some.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def head_of(dtype: str, shape: Sequence[int]) -> bytes:
    """Return what stands before the bytes of the one tensor of a file, of a dtype that is in `NAMES`."""
    size = prod(shape) * DTYPES[dtype].bits // 8
    entry = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [0, size]}
    return _head({ONLY: entry})


def written(tensors: Mapping[str, tuple[str, Array]]) -> bytes:
    """Return the bytes of a file of tensors: their canonical dtypes, and their elements as they stand there,
    those of dtypes that NumPy lacks as whole numbers."""
    header, pieces, begin = {}, [], 0
    for name, (dtype, elements) in tensors.items():
        raw = np.ascontiguousarray(elements).astype(elements.dtype.newbyteorder("<")).tobytes()
        offsets = [begin, begin + len(raw)]
        header[name] = {
            "dtype": NAMES[dtype],
            "shape": list(elements.shape),
            "data_offsets": offsets,
        }
        pieces.append(raw)
        begin += len(raw)
    return b"".join([_head(header), *pieces])


def _head(header: Mapping[str, Any]) -> bytes:
    # Blanks behind it, so that the elements are aligned.
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def save_values(path: Path, dtype: str, values: Array) -> None:
    """Write a tensor, of a dtype that is in `NAMES`, whose values are given as carriers, to a file.

    Raises:
        OSError: it cannot be written.
    """
    raw = np.ascontiguousarray(values)
    if DTYPES[dtype].carrier != dtype:
        import ml_dtypes

        raw = raw.astype(getattr(ml_dtypes, dtype))
    with path.open("wb") as file:
        file.write(head_of(dtype, values.shape))
        file.write(raw.view(np.uint8).data if raw.size and raw.ndim else raw.tobytes())
