"""Folders and files of arrays that no tool has described: `.npy`, `.pt`, `.safetensors`.

Comes in: a folder of them, or one file, such as a checkpoint. Goes out: a record for each tensor, named for
its file and its name in there, so that two folders are compared name by name. Called by
`formats.conversion`, for what no other format has claimed. Files of one tensor stay where they are; those
of several are copied.

What a name says is used: `layers.0.out.npy` is the output of `layers.0.out`, `conv_input0.npy` and
`conv_output0.npy` are of one record, and so are the files of msprobe's or our own captures whose dump.json is
lost (`Torch.add.0.forward.input.0.pt`). Records stand in the natural order of their names (2 before 10).
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ray_precheck.dump.folders import DUMP_FILE, LOG_FILE
from ray_precheck.dump.mapped import tensors_of_file
from ray_precheck.dump.safetensors import ONLY
from ray_precheck.dump.safetensors import SUFFIX as SAFETENSORS
from ray_precheck.dump.scan import LONGEST_NAME, split_key
from ray_precheck.dump.tensors import FolderFiles
from ray_precheck.errors import DumpError, NotCheckable
from ray_precheck.formats.conversion import CaptureWriter, Element, Format, described, listed

_READ_IN_PLACE = (".npy", ".pt", SAFETENSORS)
_SUFFIXES = (*_READ_IN_PLACE, ".pth", ".bin")
_OURS = re.compile(r"(?:step\d+|rank\d*|proc\d*)")
# Records of captures: what stands behind the key, and where in the record.
_OF_CALL = re.compile(
    r"(?P<key>.+\.\d+\.(?:forward|backward))\.(?P<part>input|output)\.(?P<place>\d{1,4})(?:\..*)?"
)
_OF_PART = re.compile(r"(?P<stem>.+?)[._-](?P<part>input|output)s?(?:[._-]?(?P<place>\d{1,4}))?")
_DIGITS = re.compile(r"(\d+)")
_MOST_LOOKED_AT = 4096
_DEEPEST = 16
_SHOWN_GAPS = 3


@dataclass(slots=True)
class _Record:
    """The tensors of a record by part and place."""

    inputs: dict[int, Element] = field(default_factory=dict)
    outputs: dict[int, Element] = field(default_factory=dict)


def _is_here(path: Path, names: Sequence[str]) -> bool:
    if not names:
        return path.suffix in _SUFFIXES and path.is_file()
    if any(_OURS.fullmatch(name) or name in (DUMP_FILE, LOG_FILE) for name in names):
        return False
    return any(name.endswith(_SUFFIXES) for name in names) or any(
        name.endswith(_SUFFIXES) for name in _first_files(path)
    )


def _first_files(path: Path) -> Iterator[str]:
    """Yield names of files below a folder; nothing where one of the folders is one of a capture."""
    left = _MOST_LOOKED_AT
    for _, folders, names in os.walk(path):
        if any(map(_OURS.fullmatch, folders)) or left <= 0:
            return
        left -= len(names) + len(folders)
        yield from names


def _read(path: Path, out: CaptureWriter) -> None:
    """Read all files; what cannot be read is a gap, which is noted.

    Raises:
        DumpError: none of them can be read.
    """
    folder = path if path.is_dir() else path.parent
    out.data_folder, out.framework = folder.resolve(), "arrays"
    gaps: list[str] = []
    records: dict[str, _Record] = {}
    for file in _files(path):
        try:
            for inner, element in _elements(folder, file, out):
                _place(records, _name(path, file, inner), element)
        except NotCheckable as reason:
            gaps.append(str(reason))
    for key, record in records.items():
        out.record(key, _fields(key, record))
    if gaps:
        more = f" and {len(gaps) - _SHOWN_GAPS} more" if len(gaps) > _SHOWN_GAPS else ""
        said = f"{len(gaps)} files could not be read: {'; '.join(gaps[:_SHOWN_GAPS])}{more}"
        if not records:
            raise DumpError(said)
        out.notes.append(said)


def _files(path: Path) -> list[Path]:
    """Return the files of arrays, in the natural order of their names; no link to a folder is followed."""
    if path.is_file():
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        if folder.count(os.sep) - str(path).count(os.sep) >= _DEEPEST:
            folders.clear()
        found += [Path(folder, name) for name in names if name.endswith(_SUFFIXES)]
    return sorted(found, key=lambda file: _natural(str(file)))


def _natural(name: str) -> list[tuple[int, str]]:
    """Return what sorts names with their numbers as numbers."""
    parts = enumerate(_DIGITS.split(name))
    return [
        (len(part.lstrip("0")), part.lstrip("0")) if odd % 2 else (0, part) for odd, part in parts
    ]


def _name(path: Path, file: Path, inner: str) -> str:
    """Return the name of a tensor; of the tensors of a file that was named itself the file's says nothing."""
    if file == path:
        return inner or "tensor"
    stem = str(file.relative_to(path).with_suffix("")).replace(os.sep, ".")
    return f"{stem}.{inner}" if inner else stem


def _elements(folder: Path, file: Path, out: CaptureWriter) -> Iterator[tuple[str, Element]]:
    """Yield the elements of a file's tensors by their names in it.

    Raises:
        NotCheckable: it cannot be read.
    """
    relative = str(file.relative_to(folder))
    opened = FolderFiles(folder).open(relative)
    with opened:
        tensors = tensors_of_file(opened, file.name)
        # Only a file of one tensor can be named by an element.
        begin = list(islice(tensors, 2))
        is_alone = len(begin) == 1 and file.suffix in _READ_IN_PLACE
        for inner, tensor in chain(begin, tensors):
            values = tensor.carrier(tensor.raw).reshape(tensor.shape)
            if is_alone:
                yield (
                    "" if inner == ONLY else inner,
                    described(values, relative, dtype=tensor.dtype),
                )
            else:
                yield inner, out.kept(values, dtype=tensor.dtype)


def _place(records: dict[str, _Record], name: str, element: Element) -> None:
    """Put a tensor into its record."""
    call = _OF_CALL.fullmatch(name)
    if call is not None and split_key(call["key"]) is not None:
        key, part, place = call["key"], call["part"], int(call["place"])
    else:
        match = _OF_PART.fullmatch(name)
        stem = match["stem"] if match else name
        part = match["part"] if match else "output"
        place = int(match["place"] or 0) if match else 0
        key = _key(stem, 0)
    for number in range(1, len(records) + 2):
        values = _part(records.setdefault(key, _Record()), part)
        if place not in values:
            values[place] = element
            return
        key = _key(name, number)  # x.npy and x.pt


def _part(record: _Record, part: str) -> dict[int, Element]:
    return record.inputs if part == "input" else record.outputs


def _key(stem: str, number: int) -> str:
    parts = [part or "_" for part in stem.split(".")]
    return f"Tensor.{'.'.join(parts)[: LONGEST_NAME - 40]}.{number}.forward"


def _fields(key: str, record: _Record) -> dict[str, Any]:
    inputs, outputs = (listed(each) for each in (record.inputs, record.outputs))
    if key.endswith(".backward"):
        return {"input": inputs, "output": outputs}
    return {"input_args": inputs, "input_kwargs": {}, "output": outputs}


FORMAT = Format("a folder of arrays", _is_here, _read)
