"""Mutated dumps for `fuzz.py`: real captures, a few calls of each, changed by a seeded generator.

Comes in: captures and a case's generator. Goes out: the bytes of one dump.json. A mutation of
structure changes a `Document`, whose values may also be `Raw` (text that is no JSON of Python's)
and `Pairs` (an object with duplicate keys); a mutation of `byte_mutations` changes its bytes.
"""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from scripts.fuzz.byte_mutations import BYTE_KINDS

FOLDER = "dump_tensor_data"
HOSTILE_NAMES = """Torch.load Torch.save Torch.hub.load Torch.compile Torch.from_file
    Torch.ops.load_library Torch.set_default_device Tensor.__reduce_ex__ Tensor.numpy.__globals__
    Mint.__builtins__ Torch.os.system Torch.ops.aten.add Torch.classes.load_library Torch.onnx.export
    Torch._dynamo.x Torch.__loader__.get_data VF.load Functional.torch.load Tensor.__class__
    Tensor.const_data_ptr Tensor.data.__get__ Torch.autocast Torch.add Torch.tensor Torch.zeros
    Tensor.__getitem__ Tensor.__setitem__ Tensor.to Functional.interpolate Functional.pad
    Functional.triplet_margin_with_distance_loss Torch.einsum Torch.arange Torch.full Tensor.repeat
    Mint.add Mint.nn.functional.relu Mint.os.system Mint.__builtins__.clear MintFunctional.silu
    Functional.function.x NPU.fusion Aten.add Distributed.all_reduce Module.fc.Linear Cell.net""".split()
ODD_PARTS = (
    "=1+1", "+1", "-1", "@SUM(1)", "'quoted", '"', ",", "a,b", "\n", "\r\n", "\t", "\x00", "\x1b[31m",
    "\ud800", "\u2028", "\uff1d1", "", " ", "..", "/", "\\", "\\u0041", "%s", "{}", "\U0001f600",
)  # fmt: skip
HOSTILE_FILES = (
    "../secret.npy", "../../secret.npy", "/etc/passwd", "/etc/passwd.npy", "out.npy", "up/secret.npy",
    "pickle.npy", "pickle.pt", "object.npy", "huge.npy", "expanded.pt", "loop.npy", "folder.npy",
    "\x00.npy", "\ud800.npy", "a" * 300 + ".npy", ".npy", "..", "", "a\nb.npy", "./ok.npy", "pipe.npy",
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    [-1], [2, -3], [2.0], [1.5, 2], [10**6, 10**6], [0, 10**18, 10**18], [2**63], [2**70, 0],
    [10**30], [1] * 33, [1] * 64, [1] * 65, [0] * 40, [[2]], ["2"], [True], [None], "2", 5, {}, [10**4299],
    [3, 2**31], [65536, 65536], [2**62, 4],
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2**31, -(2**63), 2**63, 2**64, 10**400, -(10**400), 1e308, -1e308, 5e-324, -0.0, 0.5,
    True, False, "nan", "-inf", "Infinity", "1_000", "0x10", "٣", "", [], {}, None, "1e999", "much",
)  # fmt: skip
BARE = ("NaN", "-Infinity", "Infinity", "nan", "1e999", "-0", "01", "1.", "9" * 5000, "tru", "'a'")
DTYPES = """torch.float16 torch.bfloat16 torch.float64 torch.float8_e4m3fn torch.float8_e5m2 torch.int8
    torch.uint8 torch.int64 torch.uint64 torch.bool torch.complex64 torch.complex128 torch.quint8
    torch.load Float16 BFloat16 Int32 UInt64 Bool object O float256 __class__""".split()
TYPES = """torch.Tensor torch.nn.parameter.Parameter mindspore.Tensor int float bool str complex NoneType
    slice ellipsis torch.Size torch.dtype mindspore.dtype torch.device torch.memory_format numpy.bool_
    numpy.int64 numpy.float16 ProcessGroup function os.system""".split()
WORDS = ("load", "torch.load", "os", "channels_last", "contiguous_format", "cpu", "cuda:0", "meta",
         "npu:99", "float32", "sum", "same", "bilinear", "ij,jk->ik", "__class__", "../x", "")  # fmt: skip


@dataclass(frozen=True)
class Raw:
    """Text that is written as it stands."""

    text: str


@dataclass(frozen=True)
class Pairs:
    """An object whose keys may occur twice."""

    items: list[tuple[str, Any]]


@dataclass
class Document:
    """A dump in pieces: header fields and records in order, keys may occur twice."""

    header: list[tuple[str, Any]]
    records: list[tuple[str, Any]]

    def encode(self) -> bytes:
        """Return the document as JSON."""
        members = [*self.header, ("data", Pairs(self.records))]
        return _written(Pairs(members)).encode("utf-8", errors="surrogatepass")


@dataclass(frozen=True)
class Capture:
    """A capture to take calls from; `calls` are the records of each API call, forward first."""

    header: list[tuple[str, Any]]
    calls: list[list[tuple[str, str]]]


def read_capture(path: Path) -> Capture:
    """Read a dump.json as msprobe wrote it."""
    data = json.loads(path.read_bytes())
    calls: dict[str, list[tuple[str, str]]] = {}
    for key, record in data.pop("data").items():
        calls.setdefault(key.rpartition(".")[0], []).append((key, json.dumps(record)))
    return Capture(list(data.items()), list(calls.values()))


def mutated_dump(captures: Sequence[Capture], random: Random, kind: str) -> bytes:
    """Return a dump of a few captured calls with one to three mutations of one kind."""
    mutate = KINDS[kind]
    document = _excerpt(random.choice(captures), random)
    for _ in range(random.choice((1, 1, 2, 3))):
        mutate(document, random)
    raw = document.encode()
    if kind in BYTE_KINDS:
        for _ in range(random.choice((1, 1, 2, 8))):
            raw = BYTE_KINDS[kind](raw, random)
    return raw


def _excerpt(capture: Capture, random: Random) -> Document:
    calls = random.sample(capture.calls, random.choice((1, 1, 2, 4)))
    records = [(key, json.loads(text)) for call in calls for key, text in call]
    return Document(list(capture.header), records)


def _written(value: Any) -> str:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        value = Pairs(list(value.items()))
    if isinstance(value, Pairs):
        members = (f"{json.dumps(key)}: {_written(item)}" for key, item in value.items)
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:d}" if abs(value) < 10**4000 else "1" + "0" * 4299
    return json.dumps(value)


# Places: a container and the key or index of one of its values.
Place = tuple[Any, Any]


def _places(value: Any) -> Iterator[Place]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


def _all_places(document: Document) -> list[Place]:
    found = (_places(record) for _, record in document.records if isinstance(record, dict | list))
    return [place for places in found for place in places]


def _elements(document: Document, key: str) -> list[dict[str, Any]]:
    """Return the elements that have a field."""
    values = (container[at] for container, at in _all_places(document))
    return [value for value in values if isinstance(value, dict) and key in value]


def _set(random: Random, elements: Sequence[dict[str, Any]], field: str, value: Any) -> None:
    if elements:
        random.choice(elements)[field] = value


def _shapes(document: Document, random: Random) -> None:
    extents = [random.choice((0, 1, 2, 3, 7, 64, 2**16)) for _ in range(random.randrange(7))]
    shape = copy.deepcopy(random.choice([*SHAPES, extents, extents]))
    if random.random() < 0.01:
        shape = [random.choice((1, 10**18))] * 100_000
    _set(random, _elements(document, "shape"), "shape", shape)


def _dtypes(document: Document, random: Random) -> None:
    value = _anything(random) if random.random() < 0.3 else random.choice(DTYPES)
    _set(random, _elements(document, "dtype"), "dtype", value)


def _bounds(document: Document, random: Random) -> None:
    value = copy.deepcopy(random.choice([*NUMBERS, *map(Raw, BARE)]))
    field = random.choice(("Max", "Min", "Mean", "Norm", "requires_grad"))
    _set(random, _elements(document, "Max"), field, value)


def _names(document: Document, random: Random) -> None:
    at = random.randrange(len(document.records))
    key, record = document.records[at]
    parts = key.split(".")
    choice = random.randrange(5)
    if choice == 0:
        parts[:-2] = random.choice(HOSTILE_NAMES).split(".")
    elif choice == 1:
        parts[random.randrange(len(parts))] = random.choice(ODD_PARTS)
    elif choice == 2:
        parts.insert(random.randrange(len(parts) + 1), random.choice(ODD_PARTS))
    elif choice == 3:
        parts = [random.choice(ODD_PARTS) + key]
    else:
        parts[-2] = random.choice(("00", "1" * 18, "9" * 5000, "-1", "٣", "1e3", "0x1", " 1"))
    document.records[at] = (".".join(parts), record)


def _files(document: Document, random: Random) -> None:
    value = random.choice([*HOSTILE_FILES, *HOSTILE_FILES, _anything(random)])
    named = _elements(document, "data_name") or _elements(document, "shape")
    _set(random, named, "data_name", value)
    if random.random() < 0.9:
        document.header = [(k, "tensor" if k == "task" else v) for k, v in document.header]


def _types(document: Document, random: Random) -> None:
    _set(random, _elements(document, "type"), "type", random.choice(TYPES))


def _values(document: Document, random: Random) -> None:
    value = random.choice([_anything(random), _anything(random), random.choice(WORDS)])
    kind = random.choice(TYPES)
    element = {"type": kind, "value": value}
    if kind == "torch.memory_format":
        element = {"type": kind, "format": random.choice(WORDS)}
    places = _all_places(document)
    if places:
        container, at = random.choice(places)
        container[at] = element


def _wrong_types(document: Document, random: Random) -> None:
    places = _all_places(document)
    if not places or random.random() < 0.1:
        at = random.randrange(len(document.records))
        document.records[at] = (document.records[at][0], _anything(random))
        return
    container, at = random.choice(places)
    container[at] = _anything(random)


def _nesting(document: Document, random: Random) -> None:
    depth = random.choice((10, 63, 64, 65, 200, 990, 1100, 5000, 100_000))
    opening, closing = random.choice((("[", "]"), ('{"a": ', "}"), ('[{"type": ', "}]")))
    nested = Raw(opening * depth + "1" + closing * depth)
    places = _all_places(document)
    if not places or random.random() < 0.2:
        document.header.append((random.choice(("task", "framework", "x")), nested))
        return
    container, at = random.choice(places)
    container[at] = nested


def _duplicates(document: Document, random: Random) -> None:
    choice = random.randrange(3)
    if choice == 0:
        key, record = random.choice(document.records)
        again = copy.deepcopy(random.choice([record, _anything(random)]))
        document.records.insert(random.randrange(len(document.records) + 1), (key, again))
    elif choice == 1:
        field = random.choice(("task", "framework", "data", "dump_data_dir"))
        value = random.choice([_anything(random), {}, "tensor", "pytorch"])
        document.header.insert(random.randrange(len(document.header) + 1), (field, value))
    else:
        places = [p for p in _all_places(document) if isinstance(p[0][p[1]], dict)]
        if places:
            container, at = random.choice(places)
            items = list(container[at].items())
            container[at] = Pairs([*items, *((key, _anything(random)) for key, _ in items)])


def _strings(document: Document, random: Random) -> None:
    length = 10**7 if random.random() < 0.01 else random.choice((1000, 5000, 200_000))
    text = random.choice(("a", ".", "=", "\\", '"', "\x00", "[", "1", "\u00e9")) * length
    choice = random.randrange(4)
    if choice == 0:
        at = random.randrange(len(document.records))
        document.records[at] = (text + document.records[at][0], document.records[at][1])
    elif choice == 1:
        document.header.append((random.choice(("task", "framework", "dump_data_dir", text)), text))
    else:
        places = _all_places(document)
        if places:
            container, at = random.choice(places)
            if choice == 2 or isinstance(container, list):
                container[at] = text
            else:
                container[text] = container.pop(at)


def _swap(document: Document, random: Random) -> None:
    choice = random.randrange(4)
    first, second = (random.randrange(len(document.records)) for _ in range(2))
    (key, record), (other_key, other) = document.records[first], document.records[second]
    if choice == 0:
        document.records[first], document.records[second] = (key, other), (other_key, record)
    elif choice == 1:
        turned = {"forward": "backward", "backward": "forward"}
        stem, _, direction = key.rpartition(".")
        document.records[first] = (f"{stem}.{turned.get(direction, direction)}", record)
    elif isinstance(record, dict) and isinstance(other, dict) and record and other:
        fields = "input_args input_kwargs output input".split()
        mine, theirs = random.choice(fields), random.choice(fields)
        record[mine] = json.loads(_written(other.get(theirs, [])).replace("NaN", "null"))
        if choice == 2:
            record.pop(random.choice(list(record)))


def _headers(document: Document, random: Random) -> None:
    field = random.choice(
        ("task", "framework", "level", "dump_data_dir", "data", "\ud800", "x\x1b")
    )
    words = "tensor statistics md5 mindspore pytorch mindtorch /etc ../.. \x00".split()
    value = random.choice([_anything(random), random.choice(words), random.choice(words)])
    document.header = [(k, v) for k, v in document.header if k != field]
    if random.random() < 0.8:
        document.header.append((field, value))


def _anything(random: Random) -> Any:
    """Return a value of any kind that a field may not expect."""
    # A copy: mutations that follow change what is in the document, and only that.
    simple = copy.deepcopy(random.choice([*NUMBERS, *map(Raw, BARE), *WORDS, *SHAPES]))
    return random.choice((simple, [simple], {"type": simple}, {"a": [simple, {}]}, {}, []))


def _nothing(document: Document, random: Random) -> None:
    """Leave the document to a mutation of its bytes."""


KINDS: dict[str, Callable[[Document, Random], None]] = {
    **dict.fromkeys(BYTE_KINDS, _nothing),
    "shapes": _shapes,
    "dtypes": _dtypes,
    "Min and Max": _bounds,
    "names": _names,
    "data_name": _files,
    "element types": _types,
    "values": _values,
    "wrong types": _wrong_types,
    "nesting": _nesting,
    "duplicates": _duplicates,
    "huge strings": _strings,
    "swapped records": _swap,
    "header": _headers,
}
