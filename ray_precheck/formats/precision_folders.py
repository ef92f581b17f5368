"""Where the files of a `precision_data` folder are, in both of its layouts, and what their names say.

Comes in: a path that a user names. Goes out: its `DataPlace`, and files of a folder as `NamedFile`. Called by
`precision_tool`, which reads them. The layouts are that of the guide, and that of precision_tool v0.1.11
(lib/config/config.py), which came with v0.1.5:

    graph/{all,json,cpu}  dump/{npu,decode,cpu,overflow}  dump/temp/{decode,overflow_decode}  fusion
    npu/debug_0/{dump,graph}  tf/{dump,graph,checkpoints}  overflow/dump  temp/decode/{dump_decode,..}  fusion

Files whose names are too long for the file system stand under another name, which the `mapping.csv` beside
them explains. Nothing is renamed. Files that are not decoded are given to Ascend's own `msaccucmp`.
"""

import csv
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ray_precheck.errors import DumpError
from ray_precheck.foreign import open_file

NPU, TENSORFLOW, OVERFLOW = "npu", "tensorflow", "overflow"
_NUMBERS = r"(?:\.\d{1,20})"
# op_type.op_name.task[.stream].timestamp[...].input.0[.layout].npy
_DECODED = re.compile(
    rf"(?P<stem>(?P<type>[^./]+)\.(?P<name>[^./]+)(?P<numbers>{_NUMBERS}{{2,9}}))"
    r"\.(?P<part>input|output)\.(?P<index>\d{1,4})(?:\.(?P<layout>\w+))?\.npy"
)
_RAW = re.compile(rf"(?P<stem>(?P<type>[^./]+)\.(?P<name>[^./]+)(?P<numbers>{_NUMBERS}{{2,9}}))")
# name[.index[.more]].timestamp.npy
_OF_TENSORFLOW = re.compile(rf"(?P<stem>(?P<name>[^./]+)(?P<numbers>{_NUMBERS}{{1,3}}))\.npy")
_FLAGS = re.compile(
    rf"(?P<stem>(?P<type>Opdebug)\.(?P<name>Node_OpDebug)(?P<numbers>{_NUMBERS}{{2,9}}))"
    r"\.(?P<part>output)\.(?P<index>\d{1,4})\.json"
)
OPDEBUG = "Opdebug"
# Outside of a precision_data folder a name alone has to tell: microseconds since 1970 have 16 digits.
_FEWEST_DIGITS = 10
_MAPPING, _LARGEST_MAPPING_BYTES = "mapping.csv", 64 << 20
_MOST_LOOKED_AT, _MOST_ABOVE = 4096, 8
_OF_OUR_DUMPS = "dump_tensor_data"
# A folder of a run is named for its time, 20210510101133.
_TIME = re.compile(r"\d{8,20}")
_MARKS = {
    "npu": re.compile(r"debug_\d+"),
    "tf": re.compile("tf_debug|dump"),
    "overflow": re.compile("dump"),
    "temp": re.compile("decode"),
    "dump": re.compile("npu|cpu|decode|overflow|overflow_decode|cpu_debug|temp"),
    "graph": re.compile("all|json|cpu|last"),
}
# What TensorFlow's debugger wrote, of which the files of the CPU side were made.
_OF_THE_DEBUGGER = (("tf", "tf_debug"), ("dump", "cpu_debug"))
# Set by those who know it; the tool has it in its config.py.
_ROOT_OF_COMMANDS, _DEFAULT_ROOT = "CMD_ROOT_PATH", "/usr/local/Ascend"
_DEBUG = "debug_0"


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file, and what its name says: `folder` and `file` are where it is, the rest is as it is meant.

    `numbers` are task, perhaps stream, and timestamp; of TensorFlow's, perhaps an index, and timestamp.
    """

    folder: Path
    file: str
    stem: str
    type: str
    name: str
    numbers: tuple[int, ...]
    part: str = ""
    index: int = 0
    layout: str = ""

    @property
    def task(self) -> int:
        """The task of an operator on the NPU."""
        return self.numbers[0]

    @property
    def stream(self) -> int:
        """The stream of an operator on the NPU, -1 where older names do not have it."""
        return self.numbers[1] if len(self.numbers) > 2 else -1

    @property
    def timestamp(self) -> int:
        """When it was written, in microseconds."""
        return self.numbers[min(2, len(self.numbers) - 1)]


@dataclass(frozen=True, slots=True)
class DataPlace:
    """One side of a capture: `root` is the `precision_data` folder, or the folder of files that is named.

    `data` are folders with its files, `decoded` those with what was decoded of them, `graphs` with graphs,
    and `flags` with the JSONs of overflow, which belong to `overflow`.
    """

    side: str
    root: Path
    data: tuple[Path, ...]
    decoded: tuple[Path, ...] = ()
    graphs: tuple[Path, ...] = ()
    overflow: tuple[Path, ...] = ()
    flags: tuple[Path, ...] = ()


def data_place(path: Path) -> DataPlace | None:
    """Return the side of a capture that a path names, None where it is no capture of this kind.

    `precision_data` itself is its NPU side, else the one that is there. `tf`, `tf/dump` and `dump/cpu` are
    that of TensorFlow, `overflow` and `dump/overflow` that of the search for overflows, whatever else is
    below `precision_data` is of the NPU. Any other folder is what the names of its files say.
    """
    path = path.absolute()
    root = next((each for each in (path, *path.parents[:_MOST_ABOVE]) if _is_root(each)), None)
    parts = path.relative_to(root).parts if root is not None else ()
    if root is not None and _is_part(parts):
        sides = [_side_of(parts)] if parts else [NPU, TENSORFLOW, OVERFLOW]
        places = [_place(side, root, path, parts) for side in sides]
        for place in places:
            if any(_holds_files(each, place.side) for each in (*place.data, *place.decoded)):
                return place
        if places[0].side == NPU and _has_graph(places[0].graphs):
            return places[0]
    for side in (NPU, TENSORFLOW):
        if _holds_files(path, side, _FEWEST_DIGITS):
            return DataPlace(side, path, (path,), (path,), (path,), (path,), (path,))
    return None


def _is_root(folder: Path) -> bool:
    return any(
        mark.fullmatch(each) for name, mark in _MARKS.items() for each in _folders(folder / name)
    )


def _is_part(parts: Sequence[str]) -> bool:
    """Return whether a path below a root is one of the layouts: others may stand beside it by chance."""
    if not parts:
        return True
    if parts[:2] in _OF_THE_DEBUGGER:
        return False
    return parts[0] in _MARKS and (len(parts) == 1 or bool(_MARKS[parts[0]].fullmatch(parts[1])))


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [each.name for each in islice(entries, _MOST_LOOKED_AT) if each.is_dir()]
    except OSError:
        return []


def _side_of(parts: Sequence[str]) -> str:
    if parts[0] == "tf" or parts[:2] in (("dump", "cpu"), ("graph", "cpu")):
        return TENSORFLOW
    below = parts[1:] if parts[0] in ("dump", "temp") else parts
    return OVERFLOW if any(each.startswith("overflow") for each in below[:2]) else NPU


def _place(side: str, root: Path, path: Path, parts: Sequence[str]) -> DataPlace:
    """Return where the files of a side are in both layouts; a path within a folder of files is that alone."""
    debug = next((each for each in parts if _MARKS["npu"].fullmatch(each)), _DEBUG)
    flagged = root / "overflow" / "dump", root / "dump" / "overflow"
    flags = (
        root / "temp" / "decode" / "overflow_decode",
        root / "dump" / "overflow_decode",
        root / "dump" / "temp" / "overflow_decode",
    )
    if side is TENSORFLOW:
        data: tuple[Path, ...] = (root / "tf" / "dump", root / "dump" / "cpu")
        graphs = root / "tf" / "graph", root / "tf" / "checkpoints", root / "graph" / "cpu"
        return DataPlace(side, root, _within(data, path), (), graphs)
    graphs = root / "npu" / debug / "graph", root / "graph" / "all", root / "graph" / "json"
    if side is OVERFLOW:
        return DataPlace(side, root, _within(flagged, path), flags, graphs, flagged, flags)
    data = root / "npu" / debug / "dump", root / "dump" / "npu" / "all", root / "dump" / "npu"
    decodings = root / "temp" / "decode" / "dump_decode"
    has_sides = any(_MARKS["npu"].fullmatch(each) for each in _folders(decodings))
    decoded = (
        decodings / debug if has_sides else decodings,
        root / "dump" / "decode",
        root / "dump" / "temp" / "decode",
    )
    return DataPlace(
        side, root, _within(data, path), _within(decoded, path), graphs, flagged, flags
    )


def _within(folders: Sequence[Path], path: Path) -> tuple[Path, ...]:
    """Return the folders that are there; the path alone where it is one of them, or below one."""
    if any(path.is_relative_to(each) for each in folders):
        return (path,)
    return tuple(each for each in folders if os.path.isdir(each))


def _holds_files(folder: Path, side: str, fewest_digits: int = 1) -> bool:
    """Return whether one of the first files below a folder has such a name."""
    for name in _first_names(folder):
        found = named_file(folder, name, side)
        if found is None:
            continue
        # The name of a decoded file is plain enough; libfoo.so.1.2 is none of a raw one.
        if (found.part and side != TENSORFLOW) or len(str(found.timestamp)) >= fewest_digits:
            return True
    return False


def _first_names(folder: Path) -> Iterator[str]:
    """Yield the names of the first files below a folder: one may have a million."""
    waiting, left = [folder], _MOST_LOOKED_AT
    while waiting and left > 0:
        where = waiting.pop()
        try:
            with os.scandir(where) as entries:
                for entry in islice(entries, left):
                    left -= 1
                    if not entry.is_dir(follow_symlinks=False):
                        yield entry.name
                    elif entry.name != _OF_OUR_DUMPS:
                        waiting.append(Path(entry.path))
        except OSError:
            continue


def _has_graph(folders: Iterable[Path]) -> bool:
    names = (name for folder in folders for name in _first_names(folder))
    return any(name.startswith("ge_proto") for name in names)


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder by their names; folders that are links are not followed."""
    for where, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(where, name) for name in sorted(names))


def named_file(folder: Path, name: str, side: str, file: str = "") -> NamedFile | None:
    """Return what the name of a file says, None for another file; `file` is its own name where that is
    another one."""
    patterns = (_OF_TENSORFLOW,) if side == TENSORFLOW else (_DECODED, _FLAGS, _RAW)
    match = next((found for each in patterns if (found := each.fullmatch(name))), None)
    if match is None:
        return None
    groups = match.groupdict()
    numbers = tuple(int(each) for each in groups["numbers"].split(".")[1:])
    index = groups.get("index") or (numbers[0] if len(numbers) > 1 else 0)
    part = groups.get("part") or ("output" if side == TENSORFLOW else "")
    named = groups["stem"], groups.get("type") or "", groups["name"], numbers
    return NamedFile(folder, file or name, *named, part, int(index), groups.get("layout") or "")


def files_in(folders: Iterable[Path], side: str, notes: list[str]) -> list[NamedFile]:
    """Return the files below folders whose names are those of a side, each once."""
    found: dict[tuple[str, str, int], NamedFile] = {}
    for folder in folders:
        for where, inner, names in os.walk(folder):
            inner.sort()
            meant = _mapped_names(Path(where), names, notes)
            for name in sorted(names):
                each = named_file(Path(where), meant.get(name, name), side, name)
                if each is not None and not (
                    each.layout and (each.stem, each.part, each.index) in found
                ):
                    found.setdefault((each.stem, each.part, each.index), each)
    return list(found.values())


def _mapped_names(folder: Path, names: Sequence[str], notes: list[str]) -> dict[str, str]:
    """Return the names that files of a folder are meant to have, by their own."""
    if _MAPPING not in names:
        return {}
    there, found = set(names), {}
    try:
        with open_file(folder / _MAPPING) as opened:
            content = opened.read(_LARGEST_MAPPING_BYTES).decode("utf-8-sig", errors="replace")
        for row in csv.reader(content.splitlines()):
            if len(row) > 1 and row[0] in there:
                found[row[0]] = row[1]
    except (OSError, csv.Error) as error:
        notes.append(f"{folder / _MAPPING} cannot be read: {error}")
    return found


def newest_run(folder: Path, notes: list[str]) -> Path:
    """Return the folder of the newest run in a folder, and of its first device; the folder itself where
    there is none. The tool takes the newest, too."""
    runs = [each for each in _folders(folder) if _TIME.fullmatch(each)]
    if not runs:
        return folder
    run = folder / max(runs)
    devices = sorted((each for each in _folders(run) if each.isdigit()), key=int)
    if len(devices) < 2:
        return run
    notes.append(
        f"{run} has files of the devices {', '.join(devices)}: those of {devices[0]} are read; name the"
        " folder of another one"
    )
    return run / devices[0]


def decode_files(folders: Iterable[Path], count: int, out: Path) -> None:
    """Have `msaccucmp` decode the files of folders into another folder.

    Raises:
        DumpError: it is not there, or fails.
    """
    root = Path(os.environ.get(_ROOT_OF_COMMANDS) or _DEFAULT_ROOT)
    program = next((each for each in files_below(root) if _is_msaccucmp(each.name)), None)
    for folder in folders:
        words = ["convert", "-d", str(folder), "-out"]
        if program is None:
            raise DumpError(
                f"{count} of its files are not decoded, and there is no msaccucmp.py below {root}"
                f" ({_ROOT_OF_COMMANDS}); decode them where CANN is installed:"
                f" python3 msaccucmp.py {' '.join(words)} DECODED, and name DECODED"
            )
        print(f"{program} decodes {count} files of {folder}", file=sys.stderr)
        out.mkdir(exist_ok=True)
        command = [sys.executable, str(program), *words, str(out)]
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if ended.returncode and not any(out.iterdir()):
            said = (ended.stderr or ended.stdout).strip().splitlines()
            raise DumpError(f"{program} failed with {ended.returncode}: {said[-1] if said else ''}")


def _is_msaccucmp(name: str) -> bool:
    return name in ("msaccucmp.py", "msaccucmp.pyc")
