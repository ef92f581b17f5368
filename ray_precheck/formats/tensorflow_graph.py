"""The graph of TensorFlow that stands beside a capture: `.meta` of a checkpoint, and `.pb`.

Comes in: the bytes of a file, `MetaGraphDef` (whose field 2 is the `GraphDef`) or `GraphDef` in protobuf's
binary form. Goes out: a `Graph`. Called by `precision_tool`. The few fields that are needed are read from the
wire form itself, so that TensorFlow is not.
"""

import struct
from collections.abc import Iterator
from typing import Any

from ray_precheck.formats.ge_graph import LONGEST_TEXT, Graph, GraphNode, gathered
from ray_precheck.formats.protobuf import (
    BYTES,
    FIXED32,
    VARINT,
    Field,
    fields_of,
    integers_of,
)


def read_tensorflow_graph(data: bytes, *, is_meta: bool) -> Graph:
    """Return the graph in the bytes of a file."""
    return gathered(_nodes(memoryview(data), is_meta=is_meta))


def _nodes(data: memoryview, *, is_meta: bool) -> Iterator[GraphNode]:
    """Yield the nodes of a `MetaGraphDef` or `GraphDef` (tensorflow/core/protobuf/meta_graph.proto,
    framework/graph.proto)."""
    graphs = _messages(data, 2) if is_meta else iter([data])
    for graph in graphs:
        for node in _messages(graph, 1):
            yield _node(node)


def _node(data: bytes | memoryview) -> GraphNode:
    """Return a node (framework/node_def.proto): its name 1, operator 2, inputs 3, attributes 5."""
    texts: dict[int, list[str]] = {1: [], 2: [], 3: []}
    attributes: dict[str, Any] = {}
    for field in fields_of(data):
        if field.kind != BYTES:
            continue
        if field.number in texts:
            texts[field.number].append(_short_text(field.data))
        elif field.number == 5:
            key, content = (
                next(_messages(field.data, 1), None),
                next(_messages(field.data, 2), None),
            )
            if key is not None and content is not None:
                attributes |= {
                    _short_text(key): each
                    for each in map(_plain_value, fields_of(content))
                    if each is not None
                }
    inputs = [each for each in texts[3] if not each.startswith("^")]
    return GraphNode(
        next(iter(texts[1]), ""),
        next(iter(texts[2]), ""),
        "",
        tuple(each if ":" in each else f"{each}:0" for each in inputs),
        attributes=attributes,
    )


def _plain_value(field: Field) -> str | int | float | bool | None:
    """Return the value of an attribute (framework/attr_value.proto) where it is plain: a text 2, a whole
    number 3, a number 4, a truth value 5."""
    match field.number, field.kind:
        case 2, kind if kind == BYTES:
            return _short_text(field.data)
        case 3, kind if kind == VARINT:
            return integers_of(field)[0]
        case 4, kind if kind == FIXED32:
            return float(struct.unpack("<f", field.data)[0])
        case 5, kind if kind == VARINT:
            return bool(field.value)
    return None


def _short_text(data: bytes | memoryview) -> str:
    return bytes(data[:LONGEST_TEXT]).decode(errors="replace")


def _messages(data: bytes | memoryview, number: int) -> Iterator[bytes | memoryview]:
    return (
        field.data for field in fields_of(data) if field.number == number and field.kind == BYTES
    )
