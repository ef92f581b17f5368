"""What stands beside the files of a `precision_data` folder: graphs, flags of overflow, fusions.

Comes in: a `DataPlace`. Goes out: a `GraphIndex`, flags of overflow with the operators that had them, and the
file `tool.json` of the dump, which the shell and `overflow_check` read. Called by `precision_tool`.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray_precheck.errors import DumpError
from ray_precheck.foreign import open_file, read_file
from ray_precheck.formats.ascend_flags import Fusion, OverflowFlag, read_fusions, read_overflow
from ray_precheck.formats.conversion import TOOL_FILE, CaptureWriter
from ray_precheck.formats.ge_graph import Graph, GraphNode, file_form, read_ge_graph
from ray_precheck.formats.precision_folders import (
    OPDEBUG,
    OVERFLOW,
    TENSORFLOW,
    DataPlace,
    NamedFile,
    decode_files,
    files_below,
    files_in,
    newest_run,
)
from ray_precheck.formats.tensorflow_graph import read_tensorflow_graph

# ge_proto_00000179_PreRunAfterBuild.txt, its number and its stage; atc's JSON may have any name.
_GRAPH = re.compile(r"ge_proto_(\d{1,18})_(?:[\w-]*_)?([A-Za-z0-9-]+)\.txt(?:\.json)?")
_LARGEST_GRAPH_BYTES, _LARGEST_FUSIONS_BYTES, _LARGEST_FLAG_BYTES = 2 << 30, 32 << 20, 1 << 20
_MOST_FLAGS = 10_000
_BUILD = "Build"


class GraphIndex:
    """The operators of graphs by their names."""

    def __init__(self, nodes: Sequence[GraphNode]) -> None:
        self.nodes = nodes
        self._by_name: dict[str, list[GraphNode]] = {}
        for node in nodes:
            self._by_name.setdefault(file_form(node.name), []).append(node)

    def of(self, file: NamedFile) -> GraphNode | None:
        """Return the operator that a file is of: of several in as many graphs, that of the graph whose name
        is in the path, else the last one."""
        found = self._by_name.get(file_form(file.name), [])
        if file.type:
            found = [each for each in found if file_form(each.type) == file.type]
        if len(found) > 1:
            within = set(file.folder.parts)
            found = [each for each in found if each.graph in within] or found
        return found[-1] if found else None


def graphs_of(place: DataPlace, notes: list[str]) -> GraphIndex:
    """Return the operators of the graphs beside the files; each that cannot be read is a note."""
    nodes: list[GraphNode] = []
    for file in _tensorflow_graphs(place) if place.side == TENSORFLOW else _built_graphs(place):
        try:
            with open_file(file) as opened:
                # Memory is taken for as much as is asked for, not for what is there.
                size = os.fstat(opened.fileno()).st_size
                data = opened.read(min(_LARGEST_GRAPH_BYTES, size))
        except OSError as error:
            notes.append(f"the graph {file} cannot be read: {error.strerror}")
            continue
        graph = _graph(data, file)
        if graph.note:
            notes.append(f"the graph {file} is read up to where it is broken: {graph.note}")
        nodes += graph.nodes
    return GraphIndex(nodes)


def _graph(data: bytes, file: Path) -> Graph:
    if file.suffix in (".meta", ".pb"):
        return read_tensorflow_graph(data, is_meta=file.suffix == ".meta")
    return read_ge_graph(data, is_json=file.suffix == ".json")


def _tensorflow_graphs(place: DataPlace) -> list[Path]:
    """Return the newest `.meta`, else the newest `.pb`, as the tool does."""
    every = [each for folder in place.graphs for each in files_below(folder)]
    for suffix in (".meta", ".pb"):
        found = [each for each in every if each.suffix == suffix]
        if found:
            return [max(found, key=lambda each: (_changed_s(each), each.name))]
    return []


def _changed_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _built_graphs(place: DataPlace) -> list[Path]:
    """Return the graphs as they were built: `ge_proto_*_Build.txt`, `.._PreRunAfterBuild.txt` of older
    versions, else the last one. Where both forms of a graph are there the text is read."""
    found: dict[str, tuple[str, int, Path]] = {}
    for folder in place.graphs:
        for each in files_below(folder):
            match = _GRAPH.fullmatch(each.name)
            is_other = each.suffix == ".json" and folder != place.root
            stem = each.name.removesuffix(".json").removesuffix(".txt")
            if match is not None and (stem not in found or each.suffix == ".txt"):
                found[stem] = match[2], int(match[1]), each
            elif match is None and is_other:
                found.setdefault(stem, (_BUILD, 0, each))
    kinds = {kind for kind, _, _ in found.values()}
    wanted = {_BUILD} & kinds or {each for each in kinds if each.endswith(_BUILD)}
    if wanted:
        return [each for kind, _, each in found.values() if kind in wanted]
    return [max(found.values(), key=lambda each: each[1])[2]] if found else []


def flags_of(
    place: DataPlace,
    out: CaptureWriter,
    files: Sequence[NamedFile],
    graph: GraphIndex,
    keys: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    """Yield the overflows that the device has seen, with the operators that had them.

    An operator is found by its task and stream among the files of the run that was searched for overflows.
    """
    folders = [newest_run(each, []) for each in place.overflow]
    every = files_in((*place.flags, *folders), OVERFLOW, out.notes)
    debug = [each for each in every if each.type == OPDEBUG]
    seen = sorted((each for each in debug if each.part), key=_time)
    if debug and not seen:
        seen = sorted(_decoded_flags(debug, out), key=_time)
    others = [each for each in every if each.type != OPDEBUG] or files
    operators = _by_task(sorted(others, key=_time))
    by_name: dict[tuple[str, str], str] = {}
    for each in sorted(files, key=_time):
        if each.stem in keys:
            by_name.setdefault(_label(each), keys[each.stem])
    for file in seen[:_MOST_FLAGS]:
        try:
            if (file.folder / file.file).stat().st_size > _LARGEST_FLAG_BYTES:
                raise ValueError("it is too large")
            found = read_overflow(read_file(file.folder / file.file))
        except (OSError, ValueError) as error:
            out.notes.append(f"{file.file} is not read: {error}")
            continue
        for flag in found:
            operator = _flagged(flag, file, operators)
            yield _flag(flag, file, operator, graph, by_name)


def _decoded_flags(raw: Sequence[NamedFile], out: CaptureWriter) -> list[NamedFile]:
    folder = out.folder / "flags"
    try:
        decode_files(sorted({each.folder for each in raw}), len(raw), folder)
    except DumpError as error:
        out.notes.append(f"overflows of {len(raw)} files are not known: {error}")
        return []
    return [each for each in files_in([folder], OVERFLOW, out.notes) if each.type == OPDEBUG]


def _time(file: NamedFile) -> tuple[int, str]:
    return file.timestamp, file.stem


def _label(file: NamedFile) -> tuple[str, str]:
    return file.type, file.name


def _by_task(operators: Sequence[NamedFile]) -> dict[tuple[int, int], NamedFile]:
    """Return the first operator of each task and stream, and of each task whatever its stream (-1)."""
    found: dict[tuple[int, int], NamedFile] = {}
    for each in operators:
        found.setdefault((each.task, each.stream), each)
        found.setdefault((each.task, -1), each)
    return found


def _flagged(
    flag: OverflowFlag, file: NamedFile, operators: Mapping[tuple[int, int], NamedFile]
) -> NamedFile | None:
    task = flag.task if flag.task >= 0 else file.task
    stream = flag.stream if flag.stream >= 0 else file.stream
    found = operators.get((task, stream))
    # Names of older versions do not have the stream.
    any_stream = operators.get((task, -1))
    return found or (any_stream if any_stream is not None and any_stream.stream < 0 else None)


def _flag(
    flag: OverflowFlag,
    file: NamedFile,
    operator: NamedFile | None,
    graph: GraphIndex,
    keys: Mapping[tuple[str, str], str],
) -> dict[str, Any]:
    node = graph.of(operator) if operator is not None else None
    name = node.name if node else operator.name if operator else f"task {flag.task}"
    return {
        "name": name,
        "type": operator.type if operator else "",
        **asdict(flag),
        "timestamp": file.timestamp,
        "file": file.file,
        "record": keys.get(_label(operator), "") if operator else "",
    }


def write_facts(
    place: DataPlace,
    source: Path,
    title: str,
    out: CaptureWriter,
    flags: Sequence[Mapping[str, Any]],
) -> None:
    """Write `tool.json`: the format, where it was, its overflows, and the passes that fused operators."""
    fusions: list[Fusion] = []
    for folder in (place.root / "fusion", place.root):
        file = folder / "fusion_result.json"
        try:
            with open_file(file) as opened:
                text = opened.read(_LARGEST_FUSIONS_BYTES).decode(errors="replace")
            fusions.extend(read_fusions(text))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            out.notes.append(f"{file} is read up to where it is broken: {error}")
        break
    content = {
        "format": title,
        "source": str(source),
        "overflow": list(flags),
        "fusions": [asdict(each) for each in fusions],
    }
    (out.folder / TOOL_FILE).write_text(json.dumps(content))
