"""Writes what TensorFlow's debugger writes: messages of protobuf, and files of records."""

import struct
import tarfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

ARCHIVE = Path(__file__).parents[2] / "data" / "tensorflow" / "dumps.tar.xz"
CODES = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "complex64": 8,
    "int64": 9, "bool": 10, "bfloat16": 14, "uint16": 17, "complex128": 18, "float16": 19,
    "uint32": 22, "uint64": 23,
}  # fmt: skip
FULL_TENSOR, FULL_HEALTH = 7, 4


def unpacked(folder: Path) -> Path:
    """Unpack the real dumps into a folder, and return it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def part(field: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(data)) + data


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def shape_of(sizes: tuple[int, ...]) -> bytes:
    return part(2, b"".join(part(2, number(1, size)) for size in sizes))


def tensor(values: np.ndarray[Any, Any]) -> bytes:
    """Return a TensorProto whose values are raw bytes."""
    code = CODES[values.dtype.name]
    return number(1, code) + shape_of(values.shape) + part(4, values.tobytes())


def listed(values: np.ndarray[Any, Any], shape: tuple[int, ...]) -> bytes:
    """Return a TensorProto whose values stand in the field of their dtype, the last ones left out where
    they are equal, as make_tensor_proto does."""
    name = values.dtype.name
    head = number(1, CODES[name]) + shape_of(shape)
    fields = {
        "float32": 5, "float64": 6, "complex64": 9, "complex128": 12, "int64": 10, "bool": 11,
        "float16": 13, "bfloat16": 13, "uint32": 16, "uint64": 17,
    }  # fmt: skip
    if name in ("float32", "float64", "complex64", "complex128"):
        return head + part(fields[name], values.tobytes())
    if name in ("float16", "bfloat16"):
        values = values.view(np.uint16)
    return head + part(
        fields.get(name, 7), b"".join(varint(int(each)) for each in values.reshape(-1))
    )


def record(event: bytes) -> bytes:
    return struct.pack("<QI", len(event), 0) + event + b"\0\0\0\0"


def creation(graph: str, kind: str, name: str, inputs: list[str]) -> bytes:
    content = part(1, kind) + part(2, name) + part(4, graph) + b"".join(part(6, i) for i in inputs)
    return record(double(1, 1.0) + part(7, content))


def trace(time: float, graph: str, name: str, proto: bytes, mode: int = FULL_TENSOR) -> bytes:
    content = part(1, graph) + part(2, name) + number(3, 0) + number(4, mode) + part(5, proto)
    return record(double(1, time) + part(10, content))


def execution(time: float, kind: str, gets: list[int], gives: list[int], *protos: bytes) -> bytes:
    content = part(1, kind) + number(2, len(gives))
    content += part(4, b"".join(map(varint, gets))) + part(5, b"".join(map(varint, gives)))
    content += number(6, FULL_TENSOR) + b"".join(part(7, each) for each in protos)
    return record(double(1, time) + part(9, content))


def event_set(folder: Path, graphs: bytes = b"", traces: bytes = b"", ran: bytes = b"") -> Path:
    """Write the files of a process, and return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "metadata": record(part(3, part(1, "2.21.0"))),
        "source_files": b"",
        "stack_frames": b"",
        "graphs": graphs,
        "graph_execution_traces": traces,
        "execution": ran,
    }
    for kind, content in files.items():
        (folder / f"tfdbg_events.1.host.{kind}").write_bytes(content)
    return folder


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
