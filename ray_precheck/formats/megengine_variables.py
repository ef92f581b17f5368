"""The files of MegEngine's variables, and what their titles say.

Comes in: an open file of a folder of `--bin-io-dump`. Goes out: its values and its title, and the variables
that a title describes. Called by `megengine`, which says what such a file is, and by the tools of that name.
"""

import math
import re
from collections.abc import Iterator, Sequence
from io import BufferedReader
from itertools import islice
from typing import NamedTuple

import numpy as np

from ray_precheck.schema.dtypes import Array

# megdnn/dtype.h, `DTypeEnum`; quantised ones are compared as the whole numbers that they are stored as, as
# MegEngine's own tools do. Types with less than 8 bits have no values here.
_CODES: dict[int, str] = {
    0: "float32", 1: "uint8", 2: "int8", 3: "int16", 4: "int32", 9: "float16", 11: "bfloat16", 12: "bool",
    13: "uint16", 100000: "uint8", 100001: "int32", 100002: "int8", 100005: "int16",
}  # fmt: skip
_NAMES = {
    "quantized8asymm": "uint8",
    "quantizeds32": "int32",
    "quantizeds8": "int8",
    "quantizeds16": "int16",
}
_SMALL = {5: "intb1", 6: "intb2", 7: "intb4", 8: "byte", 10: "uintb4", 100003: "quint4", 100004: "qint4",
          100006: "qint1"}  # fmt: skip
# Longer titles and more dimensions than any network's: 7 dimensions is megdnn's own limit.
_LONGEST_TITLE, MOST_DIMENSIONS = 1 << 20, 16
LARGEST_COUNT = 1 << 48
_HEAD = np.dtype("<u4")
_NUMBER = re.compile(r":?([0-9]{1,18})")
_SIZES = re.compile(r"([0-9]{1,18})\(-?[0-9]+\)")
# What operators without inputs give is what the run was given.
_GIVEN = {"Host2DeviceCopy": "argument", "ImmutableTensor": "parameter"}
_SHARED = ("SharedDeviceTensor", "MultipleDeviceTensor", "VolatileSharedDeviceTensor")


class TornError(Exception):
    """A file of a variable, or a line, is not what it should be; the text says how."""


class Variable(NamedTuple):
    """A variable of the graph: its number, name, dtype, and shape (None for unknown), and the operator that
    gave it: its name and type, and which of its outputs it is."""

    number: int
    name: str
    dtype: str
    shape: tuple[int, ...] | None
    owner: str
    kind: str
    slot: int = 0


class Stored(NamedTuple):
    """A file of a variable. `values` is None for types with less than 8 bits an element."""

    title: str
    dtype: str
    shape: tuple[int, ...]
    values: Array | None


def read_variable(file: BufferedReader) -> Stored:
    """Return what a file of a variable holds.

    Raises:
        TornError: it is none, or was cut.
        OSError: it cannot be read.
    """
    size = bytes_in(file)
    title, code, shape = head_of_variable(file, size)
    left = size - file.tell()
    count = math.prod(shape)
    if code in _SMALL:
        return Stored(title, _SMALL[code], shape, None)
    name = _CODES.get(code)
    if name is None:
        raise TornError(f"the code of its dtype is {code}, which is none of MegEngine's")
    carrier = np.dtype("uint16" if name == "bfloat16" else name).newbyteorder("<")
    if not count or left == 0:
        # Zeros at the end of a shape are lost: of what has no bytes one of the sizes is 0.
        count, shape = 0, shape if not count else (*shape, 0)
        if known_elements(shape) > LARGEST_COUNT:
            raise TornError(f"shape {list(shape)} is none of a tensor")
    if left != count * carrier.itemsize:
        raise TornError(f"{left} bytes follow its title, and shape {list(shape)} of {name} has"
                        f" {count * carrier.itemsize}")  # fmt: skip
    raw = np.fromfile(file, carrier, count)
    if len(raw) != count:
        raise TornError("it was cut while it was read")
    if name == "bfloat16":
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    return Stored(
        title, name, shape, raw.astype(raw.dtype.newbyteorder("="), copy=False).reshape(shape)
    )


def bytes_in(file: BufferedReader) -> int:
    """Return how many bytes a file has, and go to its begin."""
    size = file.seek(0, 2)
    file.seek(0)
    return size


def head_of_variable(file: BufferedReader, size: int) -> tuple[str, int, tuple[int, ...]]:
    """Return the title of a file, the code of its dtype and its shape."""
    length, code, dimensions = (int(each) for each in _words(file, 3))
    if dimensions > MOST_DIMENSIONS or length > min(_LONGEST_TITLE, size):
        raise TornError(f"a title of {length} bytes and {dimensions} dimensions is no variable's")
    shape = [int(each) for each in _words(file, dimensions)]
    while shape and shape[-1] == 0:
        shape.pop()
    title = file.read(length)
    if len(title) < length:
        raise TornError("it ends within its title")
    return title.decode("utf-8", errors="backslashreplace"), code, tuple(shape)


def _words(file: BufferedReader, count: int) -> Array:
    raw = file.read(4 * count)
    if len(raw) < 4 * count:
        raise TornError("it ends within its head")
    return np.frombuffer(raw, _HEAD)


def variables_in(text: str) -> Iterator[Variable]:
    """Yield the variables that a title describes, `{id:11, layout:{1(4),4(1) Float32}, Float32,
    owner:conv(a,b)[10]{ConvolutionForward}, name:c1, slot:0, ...}`; older MegEngines write `id::11`."""
    at = text.find("{id:")
    while at >= 0:
        end = text.find(", slot:", at)
        if end < 0:
            return
        number = _NUMBER.match(text, at + 4)
        layout, is_owned, rest = text[at:end].partition(", owner:")
        owner, is_named, name = rest.partition(", name:")
        if number and is_owned and is_named:
            slot = _NUMBER.match(text, end + len(", slot"))
            sizes, _, dtype = layout.rpartition(", ")
            owner, _, kind = owner.rpartition("{")
            yield Variable(
                int(number[1]), name, dtype_in_title(dtype), shape_in(sizes), owner, kind.rstrip("}"),
                int(slot[1]) if slot else 0,
            )  # fmt: skip
        at = text.find("{id:", end)


def dtype_in_title(text: str) -> str:
    """Return the dtype of a name in a title, `Float32`; quantised types are whole numbers."""
    return _NAMES.get(text.lower(), text.lower())


def shape_in(text: str) -> tuple[int, ...] | None:
    """Return the sizes in a layout, `layout:{1(256),4(64) Float32}`, or a shape, `shape:{4}`."""
    if "layout" in text:
        sizes = islice(_SIZES.finditer(text), MOST_DIMENSIONS)
        return tuple(int(each[1]) for each in sizes)
    found = re.search(r"shape:\{([0-9, ]{1,400})\}", text)
    return tuple(int(each) for each in re.findall(r"[0-9]{1,18}", found[1])) if found else None


def known_elements(shape: Sequence[int]) -> int:
    """Return how many elements a shape has, but for sizes of 0."""
    return math.prod(size for size in shape if size)


def facts_of(variable: Variable) -> dict[str, str]:
    """Return the fields that tell a variable: its number is its identity in the run."""
    facts = {"variable": str(variable.number), "name": variable.name}
    role = "parameter" if variable.kind.startswith(_SHARED) else _GIVEN.get(variable.kind)
    return facts | ({role: variable.name} if role else {})
