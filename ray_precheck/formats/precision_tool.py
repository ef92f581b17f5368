"""precision_tool's captures of TensorFlow on Ascend: the folder `precision_data`, one side of it at a time.

Comes in: a path, as `precision_folders` explains it. Goes out: a dump, with a record for each operator that
ran, `Tensorflow.LeNet_conv1_Conv2D.0.forward` on both sides, and `tool.json`. Called by `conversion`.

The number in a key counts the runs of an operator of one name. The graphs beside the files tell what names
do not: which tensor an operator got from which one, and which operators of the model one of the NPU stands
for (`operator.origins`, and `origin` in the element of each tensor), by which both sides are aligned. Values
in a layout of the device are brought into the model's where the graph has both; then the tensors are copied
into the dump, which else names the files of the capture.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray_precheck.dump.mapped import map_npy
from ray_precheck.dump.tensors import FolderFiles
from ray_precheck.errors import DumpError, NotCheckable
from ray_precheck.formats.conversion import CaptureWriter, Element, Format, described
from ray_precheck.formats.device_layouts import in_layout_of_the_model, is_of_the_device
from ray_precheck.formats.ge_graph import GraphNode, GraphTensor, file_form
from ray_precheck.formats.precision_facts import GraphIndex, flags_of, graphs_of, write_facts
from ray_precheck.formats.precision_folders import (
    OPDEBUG,
    OVERFLOW,
    TENSORFLOW,
    DataPlace,
    NamedFile,
    data_place,
    decode_files,
    files_in,
    newest_run,
)
from ray_precheck.schema.dtypes import canonical_dtype

_TITLE = "precision_tool"
# More inputs or outputs than an operator has: the number is in the name of a file.
_MOST_TENSORS = 1024
_LONGEST_ATTRIBUTE, _MOST_ATTRIBUTES = 200, 64
_SHOWN = 3
# Where msaccucmp's files are until their values are copied.
_DECODED = "decoded"


def _is_here(path: Path, names: Sequence[str]) -> bool:
    return bool(names) and data_place(path) is not None


def _read(path: Path, out: CaptureWriter) -> None:
    """Write a side of a capture as a dump.

    Raises:
        DumpError: nothing of it can be read.
    """
    place = data_place(path)
    if place is None:
        raise DumpError("it holds neither files of operators nor graphs")
    out.framework = "tensorflow"
    graph = graphs_of(place, out.notes)
    if place.side == TENSORFLOW:
        files = files_in(place.data, TENSORFLOW, out.notes)
        _TensorWriter(place, out, is_copied=_is_outside(place, files)).write_tensorflow(
            files, graph
        )
        write_facts(place, path, _TITLE, out, [])
        return
    files = _npu_files(place, out)
    is_copied = _is_outside(place, files) or any(
        _may_convert(graph.of(each), each) for each in files
    )
    keys = _TensorWriter(place, out, is_copied=is_copied).write_npu(files, graph)
    flags = list(flags_of(place, out, files, graph, keys))
    shutil.rmtree(out.folder / _DECODED, ignore_errors=True)
    if not keys:
        _write_without_values(place, out, graph, flags)
    write_facts(place, path, _TITLE, out, flags)


def _depends_on(path: Path) -> Sequence[Path]:
    """Return the whole `precision_data` folder: graphs and decoded files stand beside what is named."""
    place = data_place(path)
    return (path,) if place is None else (place.root,)


FORMAT = Format(_TITLE, _is_here, _read, _depends_on)


def _npu_files(place: DataPlace, out: CaptureWriter) -> list[NamedFile]:
    """Return the decoded files of the newest run; what is not decoded is given to `msaccucmp`.

    Raises:
        DumpError: nothing is decoded, and cannot be here.
    """
    folders = [newest_run(each, out.notes) for each in place.data]
    every = files_in((*place.decoded, *folders), place.side, out.notes)
    raw = [
        each
        for each in every
        if not each.part and each.type != OPDEBUG and _is_below(each, folders)
    ]
    decoded = [each for each in every if each.part and each.type != OPDEBUG]
    stems = {each.stem for each in raw}
    own = [each for each in decoded if each.stem in stems]
    there = {each.stem for each in own}
    missing = [each for each in raw if each.stem not in there]
    if not missing:
        return own or decoded
    try:
        decode_files(sorted({each.folder for each in missing}), len(missing), out.folder / _DECODED)
    except DumpError as error:
        if not decoded and place.side != OVERFLOW:
            raise
        out.notes.append(
            f"another run was decoded than the newest one; {error}"
            if decoded and not own
            else str(error)
        )
        return own or decoded
    again = files_in([out.folder / _DECODED], place.side, out.notes)
    stems -= there
    return own + [each for each in again if each.stem in stems and each.part]


def _is_below(file: NamedFile, folders: Iterable[Path]) -> bool:
    return any(file.folder.is_relative_to(each) for each in folders)


def _is_outside(place: DataPlace, files: Iterable[NamedFile]) -> bool:
    """Return whether files are elsewhere than in the folder of the capture, to which names lead alone."""
    root = place.root.resolve()
    return any(
        not folder.resolve().is_relative_to(root) for folder in {each.folder for each in files}
    )


@dataclass
class _TensorWriter:
    """Writes the records of a side. `is_copied`: the tensors are copied into the dump."""

    place: DataPlace
    out: CaptureWriter
    is_copied: bool
    _unread: list[str] = field(default_factory=list)
    _runs: Counter[str] = field(default_factory=Counter)
    _folders: dict[Path, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.is_copied:
            self.out.data_folder = self.place.root.resolve()

    def write_npu(self, files: Sequence[NamedFile], graph: GraphIndex) -> dict[str, str]:
        """Write the operators of the NPU in the order in which they ran; returns the first key of each stem
        of a file."""
        runs: dict[str, list[NamedFile]] = {}
        for each in files:
            runs.setdefault(each.stem, []).append(each)
        ordered = sorted(
            runs.values(), key=lambda run: (run[0].timestamp, run[0].task, run[0].stem)
        )
        nodes = [graph.of(run[0]) for run in ordered]
        dumped = {(node.graph, node.name): node for node in nodes if node is not None}
        keys: dict[str, str] = {}
        for run, node in zip(ordered, nodes, strict=True):
            key = self._key(run[0].name)
            value = {
                "input_args": self._tensors(run, "input", node, dumped),
                "input_kwargs": {},
                "output": self._tensors(run, "output", node, dumped),
                "operator": _operator(run[0], node)
                | {"task": run[0].task, "stream": run[0].stream, "timestamp": run[0].timestamp},
            }
            self.out.record(key, value)
            keys[run[0].stem] = key
        self._note_unread()
        return keys

    def write_tensorflow(self, files: Sequence[NamedFile], graph: GraphIndex) -> None:
        """Write the operators of the CPU side: their outputs have files, their inputs are outputs of others
        as the graph says."""
        runs: dict[tuple[str, int], list[NamedFile]] = {}
        counts: Counter[tuple[str, int]] = Counter()
        for each in sorted(files, key=lambda each: (each.timestamp, each.stem)):
            place = each.name, each.index
            runs.setdefault((each.name, counts[place]), []).append(each)
            counts[place] += 1
        given: dict[tuple[str, int], dict[int, Element | None]] = {}
        for (name, number), run in runs.items():
            node = graph.of(run[0])
            given[name, number] = {
                each.index: self._element(
                    each, None, variable=f"{name}:{each.index}", origin=f"{name}:{each.index}"
                )
                for each in run
            }
            value = {
                "input_args": [_given(given, each, number) for each in node.inputs] if node else [],
                "input_kwargs": {},
                "output": _listed(given[name, number]),
                "operator": _operator(run[0], node),
            }
            self.out.record(self._key(name), value)
        self._note_unread()

    def _tensors(
        self,
        run: Sequence[NamedFile],
        part: str,
        node: GraphNode | None,
        dumped: Mapping[tuple[str, str], GraphNode],
    ) -> list[Element | None]:
        found: dict[int, Element | None] = {}
        for each in run:
            if each.part == part:
                tensor, facts = _facts(each, node, dumped)
                found[each.index] = self._element(each, tensor, **facts)
        return _listed(found)

    def _element(self, file: NamedFile, tensor: GraphTensor | None, **facts: str) -> Element | None:
        """Return the element of a file, None for one that cannot be read."""
        try:
            with FolderFiles(file.folder).open(file.file) as opened:
                values = map_npy(opened, file.file)
            if canonical_dtype(str(values.dtype)) is None:
                raise NotCheckable(f"{file.file} holds {values.dtype}, which is no number")
            if file.index >= _MOST_TENSORS:
                raise NotCheckable(f"{file.file} has a larger number than operators have tensors")
            values = in_layout_of_the_model(values, tensor)
            return (
                self.out.kept(values, **facts)
                if self.is_copied
                else described(values, self._name_below_root(file), **facts)
            )
        except (NotCheckable, OSError) as reason:
            self._unread.append(str(reason))
            return None

    def _name_below_root(self, file: NamedFile) -> str:
        folder = self._folders.get(file.folder)
        if folder is None:
            folder = str(file.folder.resolve().relative_to(self.place.root.resolve()))
            self._folders[file.folder] = folder
        return file.file if folder == "." else f"{folder}/{file.file}"

    def _key(self, name: str) -> str:
        number = self._runs[name]
        self._runs[name] += 1
        return f"Tensorflow.{name}.{number}.forward"

    def _note_unread(self) -> None:
        if self._unread:
            shown = "; ".join(self._unread[:_SHOWN])
            more = "; ..." if len(self._unread) > _SHOWN else ""
            self.out.notes.append(f"{len(self._unread)} files are left out: {shown}{more}")


def _listed(found: Mapping[int, Element | None]) -> list[Element | None]:
    known = [each for each in found if each < _MOST_TENSORS]
    return [found.get(place) for place in range(max(known, default=-1) + 1)]


def _given(
    given: Mapping[tuple[str, int], Mapping[int, Element | None]], tensor: str, number: int
) -> Element | None:
    """Return the output of another operator that an operator gets, in the same run."""
    name, _, index = tensor.rpartition(":")
    outputs = given.get((file_form(name), number), {})
    return outputs.get(int(index)) if index.isdecimal() and len(index) < 5 else None


def _facts(
    file: NamedFile, node: GraphNode | None, dumped: Mapping[tuple[str, str], GraphNode]
) -> tuple[GraphTensor | None, dict[str, str]]:
    """Return what the graph says of a file's tensor, and what its element says: its identity in the run
    where its producer has files, too, and the tensor of the model that it is."""
    if node is None:
        return None, {"origin": f"{file.name}:{file.index}"} if file.part == "output" else {}
    if file.part == "output":
        tensor = _at(node.output_tensors, file.index)
        facts = {"variable": f"{node.graph}/{node.name}:{file.index}"}
        return tensor, facts | _origin(node, file.index)
    tensor = _at(node.input_tensors, file.index)
    name, _, index = (_at(node.inputs, file.index) or "").rpartition(":")
    producer = dumped.get((node.graph, name))
    if producer is None or not index.isdecimal() or len(index) > 4:
        return tensor, {}
    facts = {"variable": f"{node.graph}/{name}:{int(index)}"}
    return tensor, facts | _origin(producer, int(index))


def _at(values: Sequence[Any], place: int) -> Any:
    return values[place] if place < len(values) else None


def _origin(node: GraphNode, index: int) -> dict[str, str]:
    tensor = _at(node.output_tensors, index)
    origin = tensor.origin if tensor is not None else ""
    if not origin and not node.origins:
        origin = f"{node.name}:{index}"
    name, _, number = origin.rpartition(":")
    return {"origin": f"{file_form(name)}:{number}"} if origin else {}


def _operator(file: NamedFile, node: GraphNode | None) -> dict[str, Any]:
    if node is None:
        return {"type": file.type, "name": file.name, "origins": [file.name], "graph": ""}
    shown = list(node.attributes.items())[:_MOST_ATTRIBUTES]
    return {
        "type": node.type,
        "name": node.name,
        "origins": list(node.origins or (node.name,)),
        "graph": node.graph,
        "attributes": {key: _shortened(value) for key, value in shown},
        "inputs": list(node.inputs),
    }


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_LONGEST_ATTRIBUTE]
    return value[:_LONGEST_ATTRIBUTE] if isinstance(value, list) else value


def _may_convert(node: GraphNode | None, file: NamedFile) -> bool:
    if node is None or not file.part:
        return False
    tensors = node.output_tensors if file.part == "output" else node.input_tensors
    return is_of_the_device(_at(tensors, file.index))


def _write_without_values(
    place: DataPlace, out: CaptureWriter, graph: GraphIndex, flags: Sequence[dict[str, Any]]
) -> None:
    """Write records without tensors where there are no files of any: of what overflowed, or of the graph."""
    runs: Counter[str] = Counter()
    nodes = [] if place.side == OVERFLOW else graph.nodes
    operators = [
        {"type": each.type, "name": each.name, "origins": list(each.origins or (each.name,))}
        | {"graph": each.graph, "inputs": list(each.inputs)}
        for each in nodes
    ] or [{"type": each["type"], "name": each["name"], "origins": []} for each in flags]
    for operator in operators:
        name = file_form(str(operator["name"])) or "unnamed"
        key = f"Tensorflow.{name}.{runs[name]}.forward"
        runs[name] += 1
        empty: dict[str, Any] = {"input_args": [], "input_kwargs": {}, "output": []}
        out.record(key, empty | {"operator": operator})
    for flag in flags:
        flag["record"] = f"Tensorflow.{file_form(flag['name'])}.0.forward"
