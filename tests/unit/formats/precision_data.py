"""Writes a `precision_data` folder from a description, in either layout: what precision_tool leaves behind.

No NPU runs here. Names of files and folders, graphs and flags are as precision_tool 0.1.11 reads them, and as
its guide shows them (github.com/Ascend/tools, precision_tool).
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.schema.dtypes import Array

GUIDE, V0_1_11 = "guide", "v0.1.11"
STARTED = 1_619_494_134_000_000
RUN = "20210510101133"


@dataclass
class NpuOperator:
    """An operator of the NPU: its values, where its inputs are from (`name:index`), the tensor of the model
    that each output is, and the operators of the model that were fused into it."""

    type: str
    name: str
    inputs: Sequence[Array] = ()
    outputs: Sequence[Array] = ()
    sources: Sequence[str] = ()
    origins: Sequence[str] = ()
    originals: Sequence[str] = ()
    output_tensors: Sequence[Mapping[str, Any]] = ()
    task: int = 3
    stream: int | None = None

    def stem(self, number: int) -> str:
        """The name of its raw file; `number` is its place in the run."""
        stream = [] if self.stream is None else [self.stream]
        parts = [self.type, in_files(self.name), self.task, *stream, STARTED + number]
        return ".".join(map(str, parts))


@dataclass
class Capture:
    """What is in the folder. `tensors` are those of TensorFlow by name: `LeNet/conv1/Relu:0`."""

    layout: str = GUIDE
    operators: Sequence[NpuOperator] = ()
    tensors: Mapping[str, Array] = field(default_factory=dict)
    nodes: Sequence[tuple[str, str, Sequence[str]]] = ()
    has_graph: bool = True
    is_json: bool = False
    is_raw: bool = False
    flags: Sequence[tuple[Any, NpuOperator]] = ()
    fusions: str = ""
    has_streams: bool = False

    def write(self, root: Path) -> Path:
        """Write everything below a folder, and return it."""
        folders = _FOLDERS[self.layout]
        for number, operator in enumerate(self.operators):
            stem = operator.stem(number)
            if self.is_raw:
                _file(root / folders["npu"] / RUN / "0" / "ge_default_1" / "1" / "0" / stem, b"raw")
            for part, values in (("input", operator.inputs), ("output", operator.outputs)):
                for index, value in enumerate(values):
                    save(root / folders["decode"] / f"{stem}.{part}.{index}.npy", value)
        for number, (name, value) in enumerate(self.tensors.items()):
            file = f"{in_files(name.partition(':')[0])}.{name.rpartition(':')[2]}.{STARTED + number}.npy"
            save(root / folders["cpu"] / file, value)
        if self.has_graph and self.operators:
            text = (json_graph if self.is_json else text_graph)("ge_default_1", self.operators)
            name = "ge_proto_00000179_PreRunAfterBuild.txt" + (".json" if self.is_json else "")
            _file(root / folders["graph"] / name, text.encode())
        if self.nodes:
            _file(root / folders["meta"] / "ckpt.meta", meta_graph(self.nodes))
        for number, (flag, operator) in enumerate(self.flags):
            _file(root / folders["overflow"] / RUN / "0" / operator.stem(number), b"raw")
            name = f"Opdebug.Node_OpDebug.{9 + number}.0.{STARTED + number}.output.0.json"
            _file(root / folders["flags"] / name, json.dumps(flag).encode())
        if self.fusions:
            _file(root / "fusion" / "fusion_result.json", self.fusions.encode())
        return root


_FOLDERS = {
    GUIDE: {
        "npu": "dump/npu",
        "decode": "dump/decode",
        "cpu": "dump/cpu",
        "graph": "graph/all",
        "meta": "graph/cpu",
        "overflow": "dump/overflow",
        "flags": "dump/overflow_decode",
    },
    V0_1_11: {
        "npu": "npu/debug_0/dump",
        "decode": "temp/decode/dump_decode/debug_0",
        "cpu": "tf/dump",
        "graph": "npu/debug_0/graph",
        "meta": "tf/checkpoints",
        "overflow": "overflow/dump",
        "flags": "temp/decode/overflow_decode",
    },
}


def in_files(name: str) -> str:
    """Return the name of an operator as the names of files have it."""
    return name.replace("/", "_").replace(".", "_")


def save(path: Path, values: Array) -> None:
    """Write an `.npy` file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values, allow_pickle=False)


def _file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _messages(operator: NpuOperator) -> dict[str, Any]:
    """Return an operator with the fields of `ge.proto.OpDef`."""
    descriptions = []
    for index, values in enumerate(operator.outputs):
        told = dict(operator.output_tensors[index]) if index < len(operator.output_tensors) else {}
        attributes = [
            {"key": "origin_format", "value": {"s": told.get("origin_format", "NHWC")}},
            {
                "key": "origin_shape",
                "value": {"list": {"i": list(told.get("origin_shape", values.shape))}},
            },
        ]
        if index < len(operator.origins) and operator.origins[index]:
            name, _, number = operator.origins[index].rpartition(":")
            attributes.append({"key": "_datadump_origin_name", "value": {"s": name}})
            attributes.append({"key": "_datadump_origin_output_index", "value": {"i": int(number)}})
        layout = told.get("layout", "ND")
        description = {"dtype": "DT_FLOAT", "shape": {"dim": list(values.shape)}, "layout": layout}
        descriptions.append(description | {"attr": attributes})
    attributes = [
        {"key": "is_fixpipe", "value": {"b": True}},
        {"key": "alpha", "value": {"f": 0.5}},
    ]
    if operator.originals:
        names = {"list": {"s": list(operator.originals)}}
        attributes.append({"key": "_datadump_original_op_names", "value": names})
    return {
        "name": operator.name,
        "type": operator.type,
        "input": [*operator.sources, "atomic_addr_clean0_21:-1"],
        "attr": attributes,
        "input_desc": [{"dtype": "DT_FLOAT", "layout": "ND"} for _ in operator.sources],
        "output_desc": descriptions,
    }


def json_graph(name: str, operators: Sequence[NpuOperator]) -> str:
    """Return a graph as `atc --mode=5` writes it."""
    graph = {"name": name, "op": [_messages(each) for each in operators]}
    return json.dumps({"name": "model", "graph": [graph]}, indent=2)


def text_graph(name: str, operators: Sequence[NpuOperator]) -> str:
    """Return a graph in protobuf's text form."""
    lines = ['name: "model"', "version: 1", "graph {", f'  name: "{name}"']
    for each in operators:
        lines.append("  op {")
        lines += _lines(_messages(each), "    ")
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _lines(message: Mapping[str, Any], indent: str) -> list[str]:
    lines = []
    for name, value in message.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                lines += [f"{indent}{name} {{", *_lines(each, f"{indent}  "), f"{indent}}}"]
            elif isinstance(each, bool):
                lines.append(f"{indent}{name}: {str(each).lower()}")
            elif isinstance(each, str):
                lines.append(f'{indent}{name}: "{escaped(each)}"')
            else:
                lines.append(f"{indent}{name}: {each}")
    return lines


def escaped(text: str) -> str:
    """Return a text as protobuf writes it: all but plain characters as octal numbers of their bytes."""
    plain = [
        chr(byte) if 32 <= byte < 127 and byte not in b"\\\"'" else f"\\{byte:03o}"
        for byte in text.encode()
    ]
    return "".join(plain)


def meta_graph(nodes: Sequence[tuple[str, str, Sequence[str]]]) -> bytes:
    """Return a `MetaGraphDef` in the wire form, of (name, operator, inputs)."""
    graph = b"".join(_bytes(1, _node(*each)) for each in nodes)
    return _bytes(1, _bytes(5, b"2.0")) + _bytes(2, graph)


def _node(name: str, operator: str, inputs: Sequence[str]) -> bytes:
    found = _bytes(1, name.encode()) + _bytes(2, operator.encode())
    found += b"".join(_bytes(3, each.encode()) for each in inputs)
    shape = _bytes(1, b"dim") + _bytes(2, _number(3, 2**64 - 1))
    scale = _bytes(1, b"scale") + _bytes(2, b"\x25" + struct.pack("<f", 0.5))
    return found + _bytes(5, shape) + _bytes(5, scale)


def _bytes(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    """Return a whole number in protobuf's wire form."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
