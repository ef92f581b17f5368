"""A capture of another tool as a dump of ours, which every command can read.

Comes in: a path that a user names. Goes out: the path of a dump. Called by the commands that compare and
look. What is a dump already stays where it is. Anything else is read once by the module of its format, into
a folder of the user's cache that is named by the files of the capture; the next command finds it there. The
files of the capture are never written, moved or renamed, and nothing in them is run.
"""

import atexit
import contextlib
import functools
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ray_precheck.dump.folders import DUMP_FILE, FoundDumps, find_dumps, find_existing_dumps
from ray_precheck.errors import DumpError
from ray_precheck.foreign import printable
from ray_precheck.numerics.statistics import summary_of
from ray_precheck.schema.dtypes import Array

# Raised whenever a reader writes something else than before of the same files.
_VERSION = 1
# What the tool knows beyond records: see `formats/README.md`.
TOOL_FILE = "tool.json"
TENSORS, _STACKS, _MODULES = "dump_tensor_data", "stack.json", "construct.json"
# A folder is known by its first entries: a capture may have a million files.
_MOST_LOOKED_AT = 4096
_FEW_PLACES = 16
_UNUSED_S = 30 * 24 * 3600.0
# The modules of this room that have a `FORMAT`, the most telling first.
_FORMATS: tuple[str, ...] = (
    "tensorflow",
    "precision_tool",
    "megengine",
    "hook_files",
    "plain_folders",
)
Element = dict[str, Any]


def _itself(path: Path) -> Sequence[Path]:
    return (path,)


@dataclass(frozen=True, slots=True)
class Format:
    """A format: what people call it, how to know it, and how to read it.

    `is_here` gets the path of a folder or a file, and the names of the first entries of the folder, none
    for a file. `read` gets the same path, and what to write to; it raises `DumpError`, with one sentence,
    where the capture cannot be read. `depends_on` are the paths that are read for it, by whose changes it is
    read again.
    """

    title: str
    is_here: Callable[[Path, Sequence[str]], bool]
    read: "Callable[[Path, CaptureWriter], None]"
    depends_on: Callable[[Path], Sequence[Path]] = _itself


@dataclass(slots=True)
class CaptureWriter:
    """Writes a dump: its records in the order of the run, their tensors, stacks and modules.

    `framework` is the name that the header has; `data_folder` is where files that elements name are, where
    that is not the dump's own folder. `notes` are sentences for the user about what was left out.
    """

    folder: Path
    framework: str = ""
    data_folder: Path | None = None
    notes: list[str] = field(default_factory=list)
    _file: TextIO | None = None
    _records: int = 0
    _tensors: int = 0
    _stacks: dict[str, list[str]] = field(default_factory=dict)
    _modules: dict[str, str] = field(default_factory=dict)

    def record(
        self, key: str, value: Mapping[str, Any], *, module: str = "", stack: Sequence[str] = ()
    ) -> None:
        """Write a record under a key such as `Tensorflow.MatMul.3.forward`.

        `value` is `{"input_args": [...], "input_kwargs": {...}, "output": [...]}` with elements that `kept`
        and `described` make, or `{"type": "int", "value": 3}`. `module` is the key of the module that it
        ran in.
        """
        if self._file is None:
            self._file = (self.folder / DUMP_FILE).open("w", encoding="utf-8")
            data = self.data_folder or self.folder / TENSORS
            head = {"task": "tensor", "level": "L1", "framework": self.framework}
            self._file.write(json.dumps({**head, "dump_data_dir": str(data)})[:-1] + ', "data": {')
        self._file.write(f"{',' if self._records else ''}\n{json.dumps(key)}: {json.dumps(value)}")
        self._records += 1
        if module:
            self._modules[key] = module
        if stack:
            self._stacks[key] = list(stack)

    def kept(self, values: Array, **facts: str) -> Element:
        """Write values into a file of the dump, and return their element; see `described`."""
        folder = self.folder / TENSORS
        folder.mkdir(exist_ok=True)
        name = f"{self._tensors}.npy"
        self._tensors += 1
        np.save(folder / name, values, allow_pickle=False)
        return described(values, name, **facts)

    def finish(self) -> None:
        """Write what stands beside the records.

        Raises:
            DumpError: there was no record.
        """
        if self._file is None:
            raise DumpError("it holds no record")
        self._file.write("\n}}\n")
        self._file.close()
        stacks = {
            str(number): [[key], lines] for number, (key, lines) in enumerate(self._stacks.items())
        }
        for name, content in ((_STACKS, stacks), (_MODULES, self._modules)):
            if content:
                (self.folder / name).write_text(json.dumps(content))


def described(values: Array, data_name: str = "", **facts: str) -> Element:
    """Return the element of a tensor: dtype, shape and statistics of its values, and the name of its file.

    Further `facts` are strings: `variable` is the identity of a tensor in the run, by which the data flow
    knows who made it; `dtype` its dtype, where NumPy has another in its place (bfloat16 as float32).
    """
    summary = summary_of(values)
    fields = {} if summary is None else summary.fields()
    named = {"data_name": data_name} if data_name else {}
    shape = list(values.shape)
    return {
        "type": "Tensor",
        "dtype": str(values.dtype),
        "shape": shape,
        **fields,
        **named,
        **facts,
    }


def listed(values: Mapping[int, Any]) -> list[Any] | dict[str, Any]:
    """Return values by their places as a record has them: a list, with None where nothing is known; where
    that would be nearly empty, because a name says so, by the names of their places.
    """
    most = max(values, default=-1)
    if most < _FEW_PLACES + 2 * len(values):
        return [values.get(place) for place in range(most + 1)]
    return {str(place): values[place] for place in sorted(values)}


def find_captures(path: Path) -> FoundDumps:
    """Return the dumps that a path names, those of another tool's capture too.

    Raises:
        DumpError: there is no capture, or it cannot be read.
    """
    return find_existing_dumps(as_our_dump(path))


def find_dumps_to_run(path: Path) -> FoundDumps:
    """Return the dumps that a path names, of which calls can be run again.

    Raises:
        DumpError: there is none, or it is a capture of another tool.
    """
    try:
        return find_dumps(path)
    except DumpError:
        if (found := format_of(path)) is None:
            raise
    raise DumpError(
        f"{path} is a capture of another tool ({found.title}), whose calls cannot be run again; compare,"
        " locate, overflow_check and inspect read it"
    )


def as_our_dump(path: Path) -> Path:
    """Return the path itself where it is, or may be, a dump of ours or msprobe's; else that of the dump
    which a capture of another tool was read into, now or before.

    Raises:
        DumpError: the capture cannot be read.
    """
    found = format_of(path)
    if found is None:
        return path
    folder = _cache() / _name_of(found, path)
    if not (folder / DUMP_FILE).exists():
        _remove_old(folder.parent)
        _convert(found, path, folder)
    os.utime(folder)
    return folder


def format_of(path: Path) -> Format | None:
    """Return the format of another tool's capture; None for anything else."""
    try:
        names = (
            []
            if path.is_file()
            else [entry.name for entry in islice(os.scandir(path), _MOST_LOOKED_AT)]
        )
    except OSError:
        return None  # Whoever opens it says why it cannot be read.
    if path.suffix in (".json", ".jsonl") or DUMP_FILE in names:
        return None
    for name in _FORMATS:
        module = import_module(f"ray_precheck.formats.{name}")
        if module.FORMAT.is_here(path, names):
            return module.FORMAT  # type: ignore[no-any-return]
    return None


def _convert(found: Format, path: Path, folder: Path) -> None:
    """Read a capture into a folder, which is there when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        writer = CaptureWriter(unfinished)
        try:
            found.read(path, writer)
            writer.finish()
        except (DumpError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise DumpError(printable(f"cannot read {path} as {found.title}: {reason}")) from None
        for note in writer.notes:
            print(printable(f"warning: {path}: {note}"), file=sys.stderr)
        with contextlib.suppress(OSError):  # Another command has read it meanwhile.
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _name_of(found: Format, path: Path) -> str:
    """Return a name that another capture, or this one after a change, does not have."""
    state = hashlib.sha256(repr((_VERSION, found.title, str(path.resolve()))).encode())
    for entry in (file for each in found.depends_on(path) for file in _files_below(each)):
        with contextlib.suppress(OSError):
            facts = entry.stat()
            if stat.S_ISREG(facts.st_mode):
                state.update(repr((str(entry), facts.st_size, facts.st_mtime_ns)).encode())
    return state.hexdigest()[:32]


def _files_below(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        yield from (Path(folder, name) for name in sorted(names))


def _cache() -> Path:
    """Return the folder of captures in the user's cache (XDG Base Directory Specification); where that
    cannot be written, a temporary one that goes with this process."""
    folder = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "ray_precheck"
        / "captures"
    )
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return _temporary()


@functools.cache
def _temporary() -> Path:
    folder = tempfile.mkdtemp(prefix="ray_precheck-captures-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _remove_old(cache: Path) -> None:
    """Remove what was read from captures that nobody has named for a month; reading them again takes no more
    than reading them did."""
    for folder in cache.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _UNUSED_S:
                shutil.rmtree(folder, ignore_errors=True)
