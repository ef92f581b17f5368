"""Captures of TensorFlow's debuggers, read without TensorFlow.

Comes in: a folder of `tf.debugging.experimental.enable_dump_debug_info` (tfdbg2), or one of
`DumpingDebugWrapperSession` and of `DebugDumpDir`'s (v1), or a run within it. Goes out: records for every
operation that has run: of graphs, functions and eager ones. Called through `conversion`.

tfdbg2 has events in six files (debug_event.proto): which operations a graph has, and from where
(`GraphOpCreation`), what each gave when it ran (`GraphExecutionTrace`), and what ran outside of graphs
(`Execution`, a whole function among them). v1 has a file for each tensor, and the graph that ran.
"""

import heapq
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from ray_precheck.errors import DumpError
from ray_precheck.formats.conversion import CaptureWriter, Format
from ray_precheck.formats.graph_run import UPDATES, Operation, Tensors, write_run
from ray_precheck.formats.protobuf import (
    Field,
    bytes_of_file,
    double_of,
    fields_of,
    integers_of,
    text_of,
    tfrecords_in,
)

TITLE = "TensorFlow's debug dump"
_EVENTS = re.compile(r"(?P<set>tfdbg_events\..*)\.metadata")
_RUN, _DEVICE = re.compile(r"run_\d+_\d+"), "_tfdbg_device_"
_GRAPH_FILE = "_tfdbg_graph_"
_DEBUG_FILE = re.compile(r"(?P<node>.+)_(?P<slot>\d+)_DebugIdentity_(?P<time>\d+)(?:-\d+)?")
# debug_event.proto: fields of DebugEvent, and of the messages in it.
_WALL_TIME, _SOURCE, _FRAME, _CREATION, _GRAPH, _EXECUTION, _TRACE = 1, 4, 6, 7, 8, 9, 10
_NO_TENSOR, _CURT, _CONCISE, _FULL_HEALTH, _SHAPE, _FULL_TENSOR = 1, 2, 3, 4, 5, 7
_MODES = {
    _NO_TENSOR: "NO_TENSOR", _CURT: "CURT_HEALTH", _CONCISE: "CONCISE_HEALTH",
    _FULL_HEALTH: "FULL_HEALTH", _SHAPE: "SHAPE",
}  # fmt: skip
_MOST_LINES = 64
# Innermost in each stack of lines, since they take it.
_DEBUGGER = (
    "/debug/lib/dumping_callback.py,", "/framework/op_callbacks.py,", "/capture/tensorflow/dumping.py,"
)  # fmt: skip


def _is_here(path: Path, names: Sequence[str]) -> bool:
    return any(
        _EVENTS.fullmatch(name)
        or name.startswith(_DEVICE)
        or (_RUN.fullmatch(name) and _is_run(path / name))
        for name in names
    )


def _is_run(path: Path) -> bool:
    try:
        return any(each.name.startswith(_DEVICE) for each in islice(path.iterdir(), 64))
    except OSError:
        return False


def _read(path: Path, writer: CaptureWriter) -> None:
    """Read a folder of either debugger.

    Raises:
        DumpError: nothing in it can be read.
    """
    writer.framework = "tensorflow"
    tensors = Tensors(writer)
    write_run(_operations_in(path, tensors, writer), tensors, writer)


FORMAT = Format(TITLE, _is_here, _read)


class SeenTensor(NamedTuple):
    """A tensor that was seen: its name (`LeNet/conv1:0`), when, and the file of its values. `run` is the
    number of the run of its graph, None outside of graphs."""

    name: str
    run: int | None
    time_us: int
    values: Path


def seen_tensors(path: Path, writer: CaptureWriter) -> Iterator[SeenTensor]:
    """Yield the tensors in a folder of either debugger; their files lie in the folder of the writer.

    Raises:
        DumpError: nothing in it can be read.
    """
    tensors = Tensors(writer)
    counts: Counter[str] = Counter()
    for operation in _operations_in(path, tensors, writer):
        name = operation.name
        if operation.run is None:
            name = f"{operation.kind}_{counts[operation.kind]}"
            counts[operation.kind] += 1
        for place, identity in enumerate(operation.outputs):
            element = tensors.elements.get(identity, {})
            if "data_name" in element:
                slot = identity.rpartition(":")[2] if operation.run is not None else place
                time_us = tensors.times_us.get(identity, 0)
                yield SeenTensor(f"{name}:{slot}", operation.run, time_us, tensors.file(element))


def _operations_in(path: Path, tensors: Tensors, writer: CaptureWriter) -> list[Operation]:
    """Return the operations that a folder of either debugger has; of both that of v1, which was asked for by
    the script.

    Raises:
        DumpError: nothing in it can be read.
    """
    names = sorted(each.name for each in path.iterdir())
    runs = [name for name in names if _RUN.fullmatch(name) and _is_run(path / name)]
    runs.sort(key=lambda name: [int(part) for part in name.split("_")[1:]][::-1])
    if not runs and any(name.startswith(_DEVICE) for name in names):
        runs = [""]
    found: list[Operation] = []
    for number, run in enumerate(runs):
        found += _operations_of_run(path / run, number, tensors, writer)
    sets = [] if runs else [match["set"] for each in names if (match := _EVENTS.fullmatch(each))]
    for number, name in enumerate(sets):
        prefix = f"{number}." if number else ""
        found += _EventSet(path, name, prefix, tensors, writer).read()
    if not found:
        raise DumpError("it holds no operation that has run; was the script killed at its start?")
    return found


class _Event(NamedTuple):
    """An event: when it was written, and its one message by the numbers of its fields."""

    time_s: float
    what: int
    fields: dict[int, list[Field]]

    def text(self, number: int) -> str:
        """Return the text of a field, "" where it is missing."""
        found = self.fields.get(number)
        return text_of(found[-1]) if found else ""

    def number(self, number: int) -> int:
        """Return the number of a field, 0 where it is missing."""
        found = self.fields.get(number)
        return found[-1].value if found else 0

    def numbers(self, number: int) -> list[int]:
        """Return the numbers of a repeated field."""
        return [value for each in self.fields.get(number, ()) for value in integers_of(each)]

    def texts(self, number: int) -> list[str]:
        """Return the texts of a repeated field."""
        return [text_of(each) for each in self.fields.get(number, ())]


def _parts(message: bytes | memoryview) -> dict[int, list[Field]]:
    found: dict[int, list[Field]] = {}
    for field_ in fields_of(message):
        found.setdefault(field_.number, []).append(field_)
    return found


class _Creation(NamedTuple):
    """An operation of a graph, and its place among those of the graph."""

    type: str
    inputs: list[str]
    frames: list[str]
    place: int


@dataclass(slots=True)
class _Graph:
    name: str = ""
    creations: dict[str, _Creation] = field(default_factory=dict)
    # How often each of its tensors was seen, by name.
    seen: Counter[str] = field(default_factory=Counter)
    # Its runs that were seen: the operations of each by name.
    runs: list[dict[str, Operation]] = field(default_factory=list)


class _EventSet:
    """The event files of one process. `prefix` tells its tensors from those of another process."""

    def __init__(
        self, folder: Path, name: str, prefix: str, tensors: Tensors, writer: CaptureWriter
    ) -> None:
        self._folder, self._name, self._prefix = folder, name, prefix
        self._tensors, self._writer = tensors, writer
        self._graphs: dict[str, _Graph] = {}
        self._sources: list[str] = []
        self._frames: dict[str, str] = {}
        self._modes: Counter[int] = Counter()

    def read(self) -> list[Operation]:
        """Return the operations in the order in which they ran."""
        ran = (self._events("graph_execution_traces"), self._events("execution"))
        events = chain(
            self._events("source_files"),
            self._events("stack_frames"),
            self._events("graphs"),
            heapq.merge(*ran, key=lambda each: each.time_s),
        )
        found: list[Operation] = []
        broken = 0
        for event in events:
            try:
                found += self._learn(event)
            except ValueError:
                broken += 1
        if broken:
            self._writer.notes.append(f"{broken} events of {self._name} are torn")
        for graph in self._graphs.values():
            self._connect(graph)
        self._tell_modes()
        return self._with_updates(found)

    def _learn(self, event: _Event) -> list[Operation]:
        """Take note of an event; return the operation that it tells of, if that is new.

        Raises:
            ValueError: a message in it is torn.
        """
        if event.what == _TRACE:
            return self._traced(event)
        if event.what == _EXECUTION:
            return [self._executed(event)]
        if event.what == _SOURCE:
            self._sources.append(event.text(1))
        elif event.what == _FRAME:
            self._learn_frame(event)
        else:
            self._learn_graph(event)
        return []

    def _events(self, kind: str) -> Iterator[_Event]:
        """Yield the events of a file; what is torn is told and left out."""
        path = self._folder / f"{self._name}.{kind}"
        broken = 0
        try:
            with bytes_of_file(path) as data:
                for record in tfrecords_in(data, path.name):
                    try:
                        yield from _events_in(record)
                    except ValueError:
                        broken += 1
        except OSError as error:
            self._writer.notes.append(f"{path.name} cannot be read: {error.strerror}")
        except DumpError as error:
            self._writer.notes.append(str(error))
        if broken:
            self._writer.notes.append(f"{broken} events of {path.name} are no messages of tfdbg2")

    def _learn_frame(self, event: _Event) -> None:
        place = _parts(event.fields[2][-1].data) if 2 in event.fields else {}
        frame = _Event(0.0, 0, place)
        at = frame.number(1)
        source = self._sources[at] if at < len(self._sources) else "?"
        line = f"File {source}, line {frame.number(2)}, in {frame.text(4)}, \n {frame.text(5)}"
        self._frames[event.text(1)] = line

    def _learn_graph(self, event: _Event) -> None:
        if event.what == _GRAPH:
            self._graph(event.text(1)).name = event.text(2)
        elif event.what == _CREATION:
            creations = self._graph(event.text(4)).creations
            frames = (
                _Event(0.0, 0, _parts(event.fields[8][-1].data)).texts(2)
                if 8 in event.fields
                else []
            )
            creations[event.text(2)] = _Creation(
                event.text(1), event.texts(6), frames, len(creations)
            )

    def _graph(self, identity: str) -> _Graph:
        return self._graphs.setdefault(identity, _Graph())

    def _stack(self, frames: Sequence[str]) -> list[str]:
        """Return the lines of the program, the innermost first, without those of the debugger itself."""
        lines = [self._frames[each] for each in reversed(frames) if each in self._frames]
        own = [at for at, line in enumerate(lines) if any(each in line for each in _DEBUGGER)]
        return lines[own[-1] + 1 :][:_MOST_LINES] if own else lines[:_MOST_LINES]

    def _traced(self, event: _Event) -> list[Operation]:
        """Take note of a tensor that an operation of a graph gave; return the operation if it is new."""
        identity, name, slot = event.text(1), event.text(2), event.number(3)
        graph = self._graph(identity)
        tensor = f"{name}:{slot}"
        run = graph.seen[tensor]
        graph.seen[tensor] += 1
        if run >= len(graph.runs):
            graph.runs.append({})
        known = graph.runs[run].get(name)
        creation = graph.creations.get(name)
        found = known or Operation(
            creation.type if creation else "",
            name,
            graph.name,
            [self._of_graph(identity, run, each) for each in creation.inputs] if creation else [],
            stack=self._stack(creation.frames) if creation else (),
            run=run,
        )
        graph.runs[run][name] = found
        found.outputs.append(self._of_graph(identity, run, tensor))
        if 5 in event.fields:
            self._keep(found.outputs[-1], event, event.number(4), event.fields[5][-1])
        return [] if known else [found]

    def _of_graph(self, graph: str, run: int, tensor: str) -> str:
        return f"{self._prefix}{graph}/{run}/{tensor}"

    def _executed(self, event: _Event) -> Operation:
        """Return an operation outside of graphs, or a function as a whole."""
        frames = (
            _Event(0.0, 0, _parts(event.fields[8][-1].data)).texts(2) if 8 in event.fields else []
        )
        outputs = [f"{self._prefix}e{each}" for each in event.numbers(5)]
        kept = event.fields.get(7, [])
        # Variants and handles have no value here: where some are among the outputs, it is not told which.
        if len(kept) == len(outputs):
            for identity, each in zip(outputs, kept, strict=True):
                self._keep(identity, event, event.number(6), each)
        name = event.text(1)
        is_function = bool(event.text(3)) or name.startswith("__")
        return Operation(
            "Function" if is_function else name,
            name if is_function else "",
            "",
            [f"{self._prefix}e{each}" for each in event.numbers(4)],
            outputs,
            self._stack(frames),
        )

    def _keep(self, identity: str, event: _Event, mode: int, message: Field) -> None:
        self._modes[mode] += 1
        if mode == _FULL_TENSOR:
            time_us = int(event.time_s * 1e6) if math.isfinite(event.time_s) else 0
            self._tensors.add(identity, message.data, time_us)
        elif mode in (_CURT, _CONCISE, _FULL_HEALTH, _SHAPE):
            self._tensors.add_summary(identity, mode, message.data)

    def _connect(self, graph: _Graph) -> None:
        """Let operations know what they get: through identities, which have no value of their own, and from
        an earlier run of the graph, as a loop of v1 does."""
        for run, operations in enumerate(graph.runs):
            for operation in operations.values():
                operation.inputs = [self._source(graph, run, each) for each in operation.inputs]

    def _source(self, graph: _Graph, run: int, identity: str) -> str:
        head, _, tensor = identity.removeprefix(self._prefix).split("/", 2)
        for _ in range(_MOST_LINES):
            creation = graph.creations.get(tensor.rpartition(":")[0])
            if graph.seen[tensor] or creation is None or creation.type != "Identity":
                break
            tensor = next(iter(creation.inputs), "")
        last = max(0, min(run, graph.seen[tensor] - 1))
        return self._of_graph(head, last, tensor)

    def _with_updates(self, found: list[Operation]) -> list[Operation]:
        """Return the operations with the updates of variables in graphs, which give nothing, and so were not
        seen: each behind the one that was made before it."""
        behind: dict[int, list[Operation]] = {}
        for identity, graph in self._graphs.items():
            updates = [each for each in graph.creations.items() if each[1].type in UPDATES]
            for run, operations in enumerate(graph.runs if updates else ()):
                places = sorted(
                    (graph.creations[name].place, id(each))
                    for name, each in operations.items()
                    if name in graph.creations
                )
                for name, creation in updates:
                    inputs = [
                        self._source(graph, run, self._of_graph(identity, run, each))
                        for each in creation.inputs
                    ]
                    at = bisect_left(places, (creation.place, 0)) - 1
                    if at >= 0 and all(each in self._tensors.elements for each in inputs[1:]):
                        update = Operation(
                            creation.type,
                            name,
                            graph.name,
                            inputs,
                            [],
                            self._stack(creation.frames),
                        )
                        behind.setdefault(places[at][1], []).append(update)
        return [each for one in found for each in (one, *behind.get(id(one), ()))]

    def _tell_modes(self) -> None:
        """Say what a capture without values is good for."""
        for mode, count in sorted(self._modes.items()):
            if mode in _MODES:
                self._writer.notes.append(
                    f"{count} tensors have no values, because tensor_debug_mode was {_MODES[mode]}"
                    f"{_GOOD_FOR.get(mode, '')}; FULL_TENSOR keeps them"
                )


_GOOD_FOR = {
    _CURT: " (it does not tell NaN from infinity)",
    _CONCISE: " (NaN and infinities are counted)",
    _FULL_HEALTH: " (NaN and infinities are counted)",
}


def _events_in(record: bytes) -> Iterator[_Event]:
    """Yield the event of a record, if it is of a kind that is read.

    Raises:
        ValueError: it is no event.
    """
    time_s = 0.0
    for each in fields_of(record):
        if each.number == _WALL_TIME:
            time_s = double_of(each)
        elif each.number in _READ:
            yield _Event(time_s, each.number, _parts(each.data))


_READ = frozenset({_SOURCE, _FRAME, _CREATION, _GRAPH, _EXECUTION, _TRACE})


def _operations_of_run(
    folder: Path, number: int, tensors: Tensors, writer: CaptureWriter
) -> list[Operation]:
    """Return the operations of a run of a session of v1, in an order in which they may have run."""
    found: list[Operation] = []
    for device in sorted(folder.iterdir()):
        if device.name.startswith(_DEVICE) and device.is_dir():
            nodes = _nodes_of(device, writer)
            seen = _seen_tensors(device)
            for name, slots in seen.items():
                for slot, (time_us, path) in sorted(slots.items()):
                    identity = f"{number}/{device.name}/{name}:{slot}"
                    _keep_event(identity, path, time_us, tensors, writer)
            found += _of_device(device.name, number, nodes, seen)
    return found


def _of_device(
    device: str, number: int, nodes: dict[str, tuple[str, list[str]]], seen: "_Seen"
) -> list[Operation]:
    """Return the operations that gave a tensor: in the order of the graph, which a sort by what they get and
    wait for makes one of the run."""
    found = []
    prefix = f"{number}/{device}/"
    for name in [*nodes, *sorted(set(seen) - set(nodes))]:
        type_name, inputs = nodes.get(name, ("", []))
        if type_name in _DEBUG_TYPES:
            continue
        gives = [f"{prefix}{name}:{slot}" for slot in sorted(seen.get(name, ()))]
        if not gives and type_name not in UPDATES:
            continue
        gets = [f"{prefix}{each}" for each in map(partial(_tensor_name, nodes), inputs) if each]
        found.append(Operation(type_name, name, "", gets, gives, run=number))
    return found


def _tensor_name(nodes: dict[str, tuple[str, list[str]]], text: str) -> str:
    """Return `name:slot` of an input of a node, behind the debugger's own nodes; "" for one that is only
    waited for (`^name`)."""
    for _ in range(_MOST_LINES):
        if text.startswith("^"):
            return ""
        name, _, slot = text.rpartition(":")
        if not (name and slot.isdigit()):
            name, text = text, f"{text}:0"
        type_name, inputs = nodes.get(name, ("", []))
        if type_name not in _DEBUG_TYPES or not inputs:
            return text
        text = inputs[0]
    return ""


# What the debuggers put into a graph: copies that are watched, and what watches them.
_DEBUG_TYPES = (
    "Copy", "CopyHost", "DebugIdentity", "DebugIdentityV2", "DebugIdentityV3", "DebugNumericSummaryV2",
)  # fmt: skip


def _nodes_of(device: Path, writer: CaptureWriter) -> dict[str, tuple[str, list[str]]]:
    """Return the nodes of the graph that ran on a device: types and inputs by name."""
    found: dict[str, tuple[str, list[str]]] = {}
    for path in sorted(device.glob(f"{_GRAPH_FILE}*")):
        try:
            with bytes_of_file(path) as data:
                graph = _only(data, 4)
            for each in fields_of(graph):
                if each.number == 1:
                    node = _Event(0.0, 0, _parts(each.data))
                    found[node.text(1)] = (node.text(2), node.texts(3))
        except OSError as error:
            writer.notes.append(f"{path.name} cannot be read: {error.strerror}")
        except ValueError as error:
            writer.notes.append(f"{path.name} is no graph of TensorFlow's debugger: {error}")
    return found


# By the name of an operation and the number of its output: when, in microseconds, and the file.
_Seen = dict[str, dict[int, tuple[int, Path]]]


def _seen_tensors(device: Path) -> _Seen:
    """Return the files of a device by the name of the operation and the number of its output; the last one
    where an operation ran several times."""
    found: _Seen = {}
    for path in sorted(device.rglob("*_DebugIdentity_*")):
        match = _DEBUG_FILE.fullmatch(path.relative_to(device).as_posix())
        if match is not None and path.is_file() and not path.is_symlink():
            slots = found.setdefault(match["node"], {})
            slot, time = int(match["slot"]), int(match["time"])
            if slot not in slots or slots[slot][0] < time:
                slots[slot] = (time, path)
    return found


def _keep_event(
    identity: str, path: Path, time_us: int, tensors: Tensors, writer: CaptureWriter
) -> None:
    """Keep the tensor of an `Event` (event.proto), which is that of its summary."""
    try:
        with bytes_of_file(path) as data:
            summary = _only(data, 5)
            tensor = _only(_only(summary, 1), 8)
    except OSError as error:
        writer.notes.append(f"{path.name} cannot be read: {error.strerror}")
    except ValueError:
        tensors.unread["their files are torn"] += 1
    else:
        tensors.add(identity, tensor, time_us)


def _only(message: bytes | memoryview, number: int) -> bytes:
    """Return a copy of the bytes of the first field of a number, b"" where there is none."""
    return next((bytes(each.data) for each in fields_of(message) if each.number == number), b"")
