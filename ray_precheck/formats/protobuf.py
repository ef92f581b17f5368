"""Messages of protobuf, tensors of TensorFlow in them, and files of records, read without protobuf.

Comes in: bytes that may be torn or made up. Goes out: the fields of a message, NumPy arrays, the records of a
file. Called by the readers of TensorFlow's and Ascend's files, which so need neither package. Only what
these files hold is read: a message is looked at field by field, and a field that nobody asks for is passed
over (https://protobuf.dev/programming-guides/encoding).
"""

import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ray_precheck.errors import DumpError
from ray_precheck.foreign import open_file
from ray_precheck.schema.dtypes import Array

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
# Values that a tensor repeats instead of holding them (constants) may take so much memory altogether.
MOST_REPEATED_BYTES = 1 << 28
_MOST_DIMENSIONS = 254  # tensor_shape.h of TensorFlow
# A record of a file of TensorFlow: its length, a checksum of the length, the bytes, their checksum.
_HEAD, _TAIL = struct.Struct("<QI"), 4


class Field(NamedTuple):
    """A field of a message: its number, its kind (`VARINT`, ...), and its value as bytes or as a number."""

    number: int
    kind: int
    value: int
    data: bytes | memoryview


class TornMessage(ValueError):
    """The bytes are no message, or end within one."""


def fields_of(message: bytes | memoryview) -> Iterator[Field]:
    """Yield the fields of a message in their order.

    Raises:
        TornMessage: the bytes end within a field, or are no message.
    """
    place, end = 0, len(message)
    while place < end:
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, place = _varint(message, place)
            yield Field(number, kind, value, b"")
            continue
        if kind == BYTES:
            length, place = _varint(message, place)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise TornMessage(f"a field of kind {kind} at byte {place}")
        if not number or length > end - place:
            raise TornMessage(f"a field of {length} bytes at byte {place} of {end}")
        data = message[place : place + length]
        place += length
        yield Field(number, kind, 0 if kind == BYTES else int.from_bytes(data, "little"), data)


def _varint(message: bytes | memoryview, place: int) -> tuple[int, int]:
    """Return a number of up to 64 bits, and the place behind it."""
    found = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        if place >= len(message):
            break
        byte = message[place]
        place += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found & (1 << 64) - 1, place
    raise TornMessage(f"a number without an end at byte {place}")


def text_of(field: Field) -> str:
    """Return the text of a field."""
    return bytes(field.data).decode("utf-8", "replace")


def integers_of(field: Field) -> list[int]:
    """Return the signed whole numbers of a repeated field: one, or several that are packed.

    Raises:
        TornMessage: the bytes end within a number.
    """
    if field.kind != BYTES:
        return [_signed(field.value)]
    found, place = [], 0
    while place < len(field.data):
        value, place = _varint(field.data, place)
        found.append(_signed(value))
    return found


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def double_of(field: Field) -> float:
    """Return the number of a field of type double; 0 where it is none."""
    return float(struct.unpack("<d", field.data)[0]) if field.kind == FIXED64 else 0.0


@contextmanager
def bytes_of_file(path: Path) -> Iterator[memoryview]:
    """Give the bytes of a file, which are read when they are looked at.

    Raises:
        OSError: the file cannot be read, or is no file.
    """
    with open_file(path) as file:
        if not file.seek(0, 2):
            yield memoryview(b"")
            return
        # Closed with the last slice of it, which an exception may still hold.
        yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def tfrecords_in(data: memoryview, name: str) -> Iterator[bytes]:
    """Yield the records of a file of TensorFlow (TFRecord), each a copy.

    The checksums are not computed, which takes longer than all else here; a length is believed as far as the
    file goes.

    Raises:
        DumpError: the file ends within a record, as of a process that was killed.
    """
    place = 0
    while place < len(data):
        if len(data) - place < _HEAD.size:
            raise _torn(name, place)
        length, _ = _HEAD.unpack_from(data, place)
        begin = place + _HEAD.size
        if length > len(data) - begin - _TAIL:
            raise _torn(name, place)
        yield bytes(data[begin : begin + length])
        place = begin + length + _TAIL


def _torn(name: str, place: int) -> DumpError:
    return DumpError(
        f"{name} ends within the record at byte {place}; the run may have been killed, or the file not"
        " copied to its end: what stands before is read"
    )


# tensor.proto and types.proto of TensorFlow: what each dtype is in NumPy, and the number of the field that
# has its values where they are not raw bytes. Quantized integers are their integers.
_DTYPES: dict[int, tuple[str, int]] = {
    1: ("float32", 5), 2: ("float64", 6), 3: ("int32", 7), 4: ("uint8", 7), 5: ("int16", 7),
    6: ("int8", 7), 8: ("complex64", 9), 9: ("int64", 10), 10: ("bool", 11), 11: ("int8", 7),
    12: ("uint8", 7), 13: ("int32", 7), 14: ("bfloat16", 13), 15: ("int16", 7), 16: ("uint16", 7),
    17: ("uint16", 7), 18: ("complex128", 12), 19: ("float16", 13), 22: ("uint32", 16),
    23: ("uint64", 17), 24: ("float8_e5m2", 18), 25: ("float8_e4m3fn", 18),
}  # fmt: skip
_FIXED = {5: "<f4", 6: "<f8", 9: "<f4", 12: "<f8"}
_HALVES = ("bfloat16", "float16")


@dataclass(slots=True)
class Budget:
    """The bytes that may still be made of values which a file does not hold."""

    left: int = MOST_REPEATED_BYTES


class Tensor(NamedTuple):
    """A tensor: TensorFlow's name of its dtype, and its values, float32 in the place of narrower floats that
    NumPy lacks. They are None, with the reason, where they cannot be read."""

    dtype: str
    values: Array | None
    problem: str = ""


def dtype_named(code: int) -> str:
    """Return the name of a dtype of types.proto; "" for strings, handles and what is not known."""
    return _DTYPES[code][0] if code in _DTYPES else ""


def tensor_of(message: bytes | memoryview, budget: Budget) -> Tensor:
    """Return the tensor of a `TensorProto`.

    Raises:
        TornMessage: the bytes are no such message.
    """
    code, content = 0, b""
    shape: tuple[int, ...] = ()
    listed: list[Field] = []
    for field in fields_of(message):
        if field.number == 1:
            code = field.value
        elif field.number == 2:
            shape = _shape_of(field.data)
        elif field.number == 4:
            content = bytes(field.data)
        else:
            listed.append(field)
    if code not in _DTYPES:
        return Tensor("", None, "it holds no numbers")
    name, number = _DTYPES[code]
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    count = math.prod(shape)
    if min(shape, default=0) < 0 or len(shape) > _MOST_DIMENSIONS:
        return Tensor(name, None, f"its shape is {str(shape)[:80]}")
    if content:
        if len(content) != count * dtype.itemsize:
            return Tensor(
                name, None, f"it has {len(content)} bytes for {count} values of {dtype.itemsize}"
            )
        return Tensor(name, _seen(np.frombuffer(content, dtype).reshape(shape)))
    found = _listed(listed, number, dtype)
    missing = (count - len(found)) * dtype.itemsize
    if len(found) > count or missing > budget.left:
        return Tensor(name, None, f"it has {len(found)} values for a shape of {count}")
    budget.left -= max(0, missing)
    if missing:  # The last value stands for all that follow; without one they are 0.
        last = found[-1:] if len(found) else np.zeros(1, dtype)
        found = np.concatenate([found, np.broadcast_to(last, count - len(found))])
    return Tensor(name, _seen(found.reshape(shape)))


def _seen(values: Array) -> Array:
    """Return values in a dtype that a file of NumPy holds."""
    return values if values.dtype.isbuiltin == 1 else values.astype(np.float32)


def _shape_of(message: bytes | memoryview) -> tuple[int, ...]:
    """Return the sizes of a `TensorShapeProto`."""
    return tuple(
        next((_signed(each.value) for each in fields_of(field.data) if each.number == 1), 0)
        for field in fields_of(message)
        if field.number == 2
    )


def _listed(fields: list[Field], number: int, dtype: np.dtype) -> Array:  # type: ignore[type-arg]
    """Return the values that stand in a repeated field."""
    own = [field for field in fields if field.number == number]
    if number == 18:  # The bytes of the narrowest floats stand as text.
        return np.frombuffer(b"".join(bytes(each.data) for each in own), dtype)
    if number in _FIXED:
        wide = np.frombuffer(b"".join(bytes(each.data) for each in own), _FIXED[number])
        if dtype.kind == "c":
            wide = wide[: len(wide) // 2 * 2].view(dtype)
        return wide.astype(dtype)
    numbers = [value for each in own for value in integers_of(each)]
    if dtype.name in _HALVES:
        bits = np.array([value & 0xFFFF for value in numbers], np.uint16)
        return bits.view(dtype)
    unsigned = np.array([value & (1 << 64) - 1 for value in numbers], np.uint64)
    return unsigned.astype(dtype)
