"""The graphs of Ascend's graph engine (GE) that stand beside a capture.

Comes in: the bytes of a file. Goes out: a `Graph`, its operators in the order of the file. Called by
`precision_tool`; `tensorflow_graph` reads TensorFlow's graphs as the same. Two forms are read, without the
library of their makers:

- `ge_proto_*.txt`, protobuf's text form of `ge.proto.ModelDef` or `GraphDef`
  (metadef, proto/ge_ir.proto: https://gitee.com/ascend/metadef);
- the JSON that `atc --mode=5` makes of it, with the same names of fields.

A file is read operator by operator, so that memory holds the file and one operator beside what is kept of
each. A file that ends in the middle, or holds something else, gives the operators before that place and a
sentence.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from ray_precheck.formats.protobuf import TornMessage

# Fields of an operator: a list of numbers, a text, or messages of fields.
Message = dict[str, Any]
# Deeper nests, longer texts and more fields than any operator has; what goes beyond is a broken file.
_DEEPEST, LONGEST_TEXT, _MOST_FIELDS = 100, 4096, 1 << 20
# An operator of atc's JSON that is larger (a constant with its values) is left out.
_LARGEST_OPERATOR_BYTES = 16 << 20
_ORIGIN_NAME, _ORIGIN_INDEX = "_datadump_origin_name", "_datadump_origin_output_index"
_ORIGINAL_NAMES = "_datadump_original_op_names"
# The part of `name:index` that says that an edge carries no tensor.
_CONTROL = "-1"


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output as the graph describes it.

    `layout` is that on the device (`NC1HWC0`); `origin_layout` and `origin_shape` are those of the model.
    `origin` is the tensor of the model that it holds, `LeNet/conv1/Relu:0`, "" where the graph does not say.
    """

    dtype: str = ""
    shape: tuple[int, ...] = ()
    layout: str = ""
    origin: str = ""
    origin_layout: str = ""
    origin_shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphNode:
    """An operator. `inputs` are `name:index` of the tensors that it gets, without control edges; `originals`
    the names of the model's operators that were fused into it."""

    name: str
    type: str
    graph: str = ""
    inputs: tuple[str, ...] = ()
    input_tensors: tuple[GraphTensor, ...] = ()
    output_tensors: tuple[GraphTensor, ...] = ()
    originals: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def origins(self) -> tuple[str, ...]:
        """The names of the model's operators that it stands for, those that outputs name first."""
        named = [each.origin.rpartition(":")[0] for each in self.output_tensors if each.origin]
        return tuple(dict.fromkeys([*named, *self.originals]))


@dataclass(slots=True)
class Graph:
    """The operators of a file; `note` says where it could not be read further, "" where it could."""

    nodes: list[GraphNode] = field(default_factory=list)
    note: str = ""


_FILE_FORM = str.maketrans(dict.fromkeys("/.\\: ", "_"))


def file_form(name: str) -> str:
    """Return the name of an operator as the names of files have it: LeNet_conv1_Conv2D."""
    return name.translate(_FILE_FORM)


def read_ge_graph(data: bytes, *, is_json: bool) -> Graph:
    """Return the graph in the bytes of a file."""
    messages = _json_operators(data) if is_json else _text_operators(data)
    return gathered(_ge_node(graph, message) for graph, message in messages)


class BrokenGraph(Exception):
    """The file cannot be read further; the text says where and why."""


def gathered(nodes: Iterator[GraphNode]) -> Graph:
    """Return a graph of the operators up to where the file is broken."""
    found = Graph()
    try:
        found.nodes.extend(nodes)
    except (BrokenGraph, TornMessage) as error:
        found.note = str(error)
    if not (found.nodes or found.note):
        found.note = "it holds no operator"
    return found


# A field with the bracket, quote or word that its value begins with; or the end of a message. The blanks
# between are counted, so that a file of nothing else is not tried again for each of them.
_FIELD = re.compile(
    rb"[\s,;]*(?:([A-Za-z_][\w.]*|\[[\w./]{1,200}\])\s{0,64}(?::\s{0,64})?([{<\"']|[^\s{}<>\"',;\[\]]+)"
    rb"|([}>]))"
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_BACKSLASH = ord("\\")
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}


def _text_operators(data: bytes) -> Iterator[tuple[str, Message]]:
    """Yield the operators of protobuf's text form, each with the name of its graph."""
    outside: list[str] = []  # The names of the messages that are open around the operator.
    inside: list[Message] = []  # The messages that are open within it.
    graph, place, count = "", 0, 0
    while (match := _FIELD.match(data, place)) is not None:
        place = match.end()
        key, begin, end = match.groups()
        if end:
            if inside:
                message = inside.pop()
                if not inside:
                    yield graph, message
                    count = 0
            elif outside:
                outside.pop()
            else:
                raise BrokenGraph(f"a message ends at byte {place} that did not begin")
            continue
        count += 1
        if count > _MOST_FIELDS or len(inside) + len(outside) > _DEEPEST:
            raise BrokenGraph(f"an operator at byte {place} is too large or nested too deeply")
        name = key.decode(errors="replace")
        if begin in b"{<":
            if inside or (name == "op" and outside in (["graph"], [])):
                opened: Message = {}
                if inside:
                    inside[-1].setdefault(name, []).append(opened)
                inside.append(opened)
            else:
                outside.append(name)
                graph = "" if name == "graph" else graph
            continue
        value, place = _text_value(data, begin, place)
        if inside:
            inside[-1].setdefault(name, []).append(value)
        elif name == "name" and outside in (["graph"], []):
            graph = value
        count -= not inside
    if data[place:].strip():
        raise BrokenGraph(f"expected a field at byte {place}, which is none")
    if inside or outside:
        raise BrokenGraph(f"it ends at byte {place} in the middle of a message")


def _text_value(data: bytes, begin: bytes, place: int) -> tuple[str, int]:
    """Return the text of a value and the place behind it; a long one is cut."""
    if begin not in b"\"'":
        return begin[:LONGEST_TEXT].decode(errors="replace"), place
    end = _end_of_text(data, begin, place)
    raw = data[place : min(end, place + LONGEST_TEXT)]
    if b"\\" in raw:
        raw = _ESCAPE.sub(_unescaped, raw)
    return raw.decode(errors="replace"), end + 1


def _end_of_text(data: bytes, quote: bytes, start: int) -> int:
    """Return the place of the quote that ends a text: it has an even number of backslashes before it."""
    place = start
    while (end := data.find(quote, place)) >= 0:
        slashes = 0
        while end - slashes > start and data[end - slashes - 1] == _BACKSLASH:
            slashes += 1
        if slashes % 2 == 0:
            return end
        place = end + 1
    raise BrokenGraph(f"the text that begins at byte {start} does not end")


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, digits, other = match.groups()
    if octal:
        return bytes([int(octal, 8) & 255])
    if digits:
        return bytes([int(digits, 16)])
    return _ESCAPED.get(other, other)


_JSON_TOKEN = re.compile(rb"[{}\[\]\"]")


def _json_operators(data: bytes) -> Iterator[tuple[str, Message]]:
    """Yield the operators of atc's JSON: `{"graph": [{"name": .., "op": [{..}]}]}`.

    The brackets alone are followed, so that no more than one operator is decoded at a time.
    """
    names: list[str] = []  # The key under which each open bracket stands; "" in a list.
    graph, key, place, start = "", "", 0, -1
    while (match := _JSON_TOKEN.search(data, place)) is not None:
        token, place = match[0], match.end()
        if token == b'"' and start >= 0:
            place = _end_of_text(data, b'"', place) + 1
        elif token == b'"':
            text, place = _text_value(data, b'"', place)
            is_key = data[place : place + 16].lstrip()[:1] == b":"
            if is_key:
                key = text
            elif key == "name" and names in (["", "graph", ""], [""]):
                graph = text
        elif token in b"{[":
            if start < 0 and token == b"{" and names in (["", "graph", "", "op"], ["", "op"]):
                start = match.start()
            names.append(key)
            key = ""
            if len(names) > _DEEPEST:
                raise BrokenGraph(f"it is nested too deeply at byte {place}")
        elif not names:
            raise BrokenGraph(f"a bracket closes at byte {place} that did not open")
        else:
            names.pop()
            key = ""
            if start >= 0 and names in (["", "graph", "", "op"], ["", "op"]):
                yield graph, _decoded(data, start, place)
                start = -1
    if names:
        raise BrokenGraph("it ends in the middle of an object")


def _decoded(data: bytes, start: int, end: int) -> Message:
    if end - start > _LARGEST_OPERATOR_BYTES:
        return {}
    try:
        found = orjson.loads(data[start:end])
    except ValueError as error:
        raise BrokenGraph(f"the operator at byte {start} is no JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def _ge_node(graph: str, message: Message) -> GraphNode:
    """Return an operator of a message in either form: in the text each field is a list."""
    attributes = _attributes(message)
    originals = attributes.pop(_ORIGINAL_NAMES, ())
    inputs = [each for each in _texts(message, "input") if each]
    return GraphNode(
        _text(message, "name"),
        _text(message, "type"),
        graph,
        tuple(each for each in inputs if each.rpartition(":")[2] != _CONTROL),
        tuple(_tensor(each) for each in _messages(message, "input_desc")),
        tuple(_tensor(each) for each in _messages(message, "output_desc")),
        tuple(str(each) for each in originals) if isinstance(originals, list) else (),
        attributes,
    )


def _tensor(message: Message) -> GraphTensor:
    attributes = _attributes(message)
    name, index = attributes.get(_ORIGIN_NAME, ""), attributes.get(_ORIGIN_INDEX, 0)
    shape = attributes.get("origin_shape", ())
    layout = attributes.get("origin_format") or attributes.get("_datadump_origin_format", "")
    shapes = _messages(message, "shape")
    return GraphTensor(
        _text(message, "dtype"),
        _sizes(_values(shapes[0], "dim")) if shapes else (),
        _text(message, "layout"),
        f"{name}:{index}" if name and isinstance(index, int) else "",
        str(layout),
        _sizes(shape if isinstance(shape, list) else ()),
    )


def _attributes(message: Message) -> dict[str, Any]:
    """Return the attributes that are texts, numbers, truth values, or lists of these."""
    found: dict[str, Any] = {}
    entries: Iterable[tuple[str, Any]]
    attributes = message.get("attr")
    if isinstance(attributes, dict):
        entries = attributes.items()
    else:
        named = _messages(message, "attr")
        entries = ((_text(each, "key"), _first(each, "value")) for each in named)
    for key, value in entries:
        if not isinstance(value, dict):
            continue
        held = _messages(value, "list")
        for kind, read in _KINDS.items():
            if kind in value:
                found[key] = read(_first(value, kind))
            elif held and kind in held[0]:
                found[key] = [read(each) for each in _values(held[0], kind)]
    return found


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


def _real(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0


_KINDS: dict[str, Callable[[Any], Any]] = {
    "s": str,
    "i": _whole,
    "f": _real,
    "b": lambda value: value in (True, "true", "True"),
}


def _values(message: Message, name: str) -> Sequence[Any]:
    found = message.get(name, ())
    return found if isinstance(found, list) else [found] if name in message else ()


def _first(message: Message, name: str) -> Any:
    return next(iter(_values(message, name)), None)


def _text(message: Message, name: str) -> str:
    found = _first(message, name)
    return found if isinstance(found, str) else ""


def _texts(message: Message, name: str) -> list[str]:
    return [each for each in _values(message, name) if isinstance(each, str)]


def _messages(message: Message, name: str) -> list[Message]:
    return [each for each in _values(message, name) if isinstance(each, dict)]


def _sizes(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(_whole(each) for each in values)
