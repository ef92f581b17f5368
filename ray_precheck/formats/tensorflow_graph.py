"""The graph of TensorFlow that stands beside a capture: `.meta` of a checkpoint, and `.pb`.

Comes in: the bytes of a file, `MetaGraphDef` (whose field 2 is the `GraphDef`) or `GraphDef` in protobuf's
binary form. Goes out: a `Graph`. Called by `precision_tool`. The few fields that are needed are read from the
wire form itself, so that TensorFlow is not.
"""

import struct
from collections.abc import Iterator
from typing import Any

from ray_precheck.formats.ge_graph import LONGEST_TEXT, BrokenGraph, Graph, GraphNode, gathered

# The wire form (protobuf.dev/programming-guides/encoding): kinds of values by the last 3 bits of a tag.
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT = 10


def read_tensorflow_graph(data: bytes, *, is_meta: bool) -> Graph:
    """Return the graph in the bytes of a file."""
    return gathered(_nodes(memoryview(data), is_meta=is_meta))


def _nodes(data: memoryview, *, is_meta: bool) -> Iterator[GraphNode]:
    """Yield the nodes of a `MetaGraphDef` or `GraphDef` (tensorflow/core/protobuf/meta_graph.proto,
    framework/graph.proto)."""
    graphs = _of_field(data, 2) if is_meta else iter([data])
    for graph in graphs:
        for node in _of_field(graph, 1):
            yield _node(node)


def _node(data: memoryview) -> GraphNode:
    """Return a node (framework/node_def.proto): its name 1, operator 2, inputs 3, attributes 5."""
    texts: dict[int, list[str]] = {1: [], 2: [], 3: []}
    attributes: dict[str, Any] = {}
    for number, value in _wire_fields(data):
        if number in texts and isinstance(value, memoryview):
            texts[number].append(_wire_text(value))
        elif number == 5 and isinstance(value, memoryview):
            key, content = next(_of_field(value, 1), None), next(_of_field(value, 2), None)
            if key is not None and content is not None:
                attributes |= {_wire_text(key): each for each in _wire_attribute(content)}
    inputs = [each for each in texts[3] if not each.startswith("^")]
    return GraphNode(
        next(iter(texts[1]), ""),
        next(iter(texts[2]), ""),
        "",
        tuple(each if ":" in each else f"{each}:0" for each in inputs),
        attributes=attributes,
    )


def _wire_attribute(data: memoryview) -> Iterator[Any]:
    """Yield the value of an attribute (framework/attr_value.proto) where it is plain: a text 2, a whole
    number 3, a number 4, a truth value 5."""
    for number, value in _wire_fields(data):
        if number == 2 and isinstance(value, memoryview):
            yield _wire_text(value)
        elif number == 3 and isinstance(value, int):
            yield value - (1 << 64) if value >= 1 << 63 else value
        elif number == 4 and isinstance(value, bytes):
            yield float(struct.unpack("<f", value)[0])
        elif number == 5 and isinstance(value, int):
            yield bool(value)


def _wire_text(value: memoryview) -> str:
    return bytes(value[:LONGEST_TEXT]).decode(errors="replace")


def _of_field(data: memoryview, number: int) -> Iterator[memoryview]:
    for found, value in _wire_fields(data):
        if found == number and isinstance(value, memoryview):
            yield value


def _wire_fields(data: memoryview) -> Iterator[tuple[int, int | bytes | memoryview]]:
    """Yield number and value of each field of a message: an int, the bytes of a fixed number, or a view."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        kind = tag & 7
        value: int | bytes | memoryview
        if kind == _VARINT:
            value, place = _varint(data, place)
        elif kind == _BYTES:
            length, place = _varint(data, place)
            value, place = data[place : place + length], place + length
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
            value, place = bytes(data[place : place + length]), place + length
        else:
            raise BrokenGraph(f"a field has the wire type {kind}, which is none")
        if place > len(data):
            raise BrokenGraph("it ends in the middle of a field")
        yield tag >> 3, value


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    found = 0
    for shift in range(_LONGEST_VARINT):
        if place + shift >= len(data):
            raise BrokenGraph("it ends in the middle of a number")
        byte = data[place + shift]
        found |= (byte & 127) << (7 * shift)
        if byte < 128:
            return found, place + shift + 1
    raise BrokenGraph("a number has more bytes than one takes")
