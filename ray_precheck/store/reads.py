"""The files that a run reads beside its dump.json, as they were when its rows were made.

Comes in: files and folders by what they are to the run. Goes out: their stamps, which the settings of the run
keep, and a sentence about the first file that has changed since. Called where the files of a run are opened.

A size and a time tell nearly always, and cost no look into the file. A copy of a dump has other times with
the same bytes, so the stamps of a small dump have a digest, too; of a large one it would take longer than the
run, and a copy of it is taken for another.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ray_precheck.foreign import open_file

# Reading so much takes a fifth of a second; a run that reads the files itself takes longer.
_DIGESTED_BYTES, _DIGESTED_FILES = 256 << 20, 4096
_CHUNK_BYTES = 1 << 20
# What is read beside a dump, if it is there.
_BESIDE = ("sketches.npy", "construct.json", "stack.json")
TENSOR_FOLDER = "dump_tensor_data"

# Files and folders by what they are to the run: "target/sketches.npy".
Reads = Mapping[str, Path]


class FileStamp(NamedTuple):
    """The size of a file in bytes, its time in nanoseconds, and the digest of its content, "" for none."""

    size: int
    time_ns: int
    digest: str = ""


Stamps = Mapping[str, FileStamp]


def reads_of_dumps(
    labelled: Iterable[tuple[str, Sequence[Path]]], *, tensors: bool = True
) -> dict[str, Path]:
    """Return what a run may read of dumps besides their records: the files of tensors, or, where no digest
    tells the records from others, the dumps themselves."""
    return {
        f"{label}/{number}/{name}" if number else f"{label}/{name}": dump.parent / name
        for label, dumps in labelled
        for number, dump in enumerate(dumps)
        for name in (*_BESIDE, TENSOR_FOLDER if tensors else dump.name)
    }


def stamps_of(reads: Reads, known: Stamps | None = None) -> dict[str, FileStamp]:
    """Return the stamps of all files, those in folders by the names that they have there.

    With the stamps of an earlier part of the run, `known`, a file is read only where it has another time and
    its digest is known.
    """
    there = {
        name: (path, found)
        for name, path, found in _files({name: str(path) for name, path in reads.items()})
    }
    is_small = (
        known is None
        and len(there) <= _DIGESTED_FILES
        and sum(found.st_size for _, found in there.values()) <= _DIGESTED_BYTES
    )
    made: dict[str, FileStamp] = {}
    for name, (path, found) in there.items():
        before = (known or {}).get(name, FileStamp(-1, -1))
        same = before[:2] == (found.st_size, found.st_mtime_ns)
        is_read = is_small or (before.digest and not same)
        digest = before.digest if same else _digest(path) if is_read else ""
        made[name] = FileStamp(found.st_size, found.st_mtime_ns, digest)
    return made


def stamps_from_json(found: object) -> dict[str, FileStamp]:
    """Return the stamps that a JSON has, as far as they are stamps."""
    if not isinstance(found, dict):
        return {}
    kinds = [int, int, str]
    return {
        name: FileStamp(*values)
        for name, values in found.items()
        if isinstance(values, list) and [type(value) for value in values] == kinds
    }


def changed_since(known: Stamps, now: Stamps, reads: Reads) -> str:
    """Return a sentence about the first file that is not as it was, "" where all are; new ones are fine."""
    for name, before in sorted(known.items()):
        found = now.get(name)
        if found is None:
            return f"{_path_of(name, reads)} is no longer there"
        if found.size != before.size:
            return f"{_path_of(name, reads)} has {found.size} bytes, and had {before.size}"
        if found.time_ns != before.time_ns and not (
            before.digest and found.digest == before.digest
        ):
            what = "other content than it had" if before.digest else "been written again"
            return f"{_path_of(name, reads)} has {what}"
    return ""


def _path_of(name: str, reads: Reads) -> Path:
    label = max((each for each in reads if name == each or name.startswith(f"{each}/")), key=len)
    return Path(f"{reads[label]}{name[len(label) :]}")


def _files(reads: Mapping[str, str]) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield the regular files, and those in folders, by name; what is not there is left out."""
    for name, path in reads.items():
        with suppress(OSError, ValueError):
            found = os.stat(path)
            if stat.S_ISDIR(found.st_mode):
                yield from _files_below(name, path)
            elif stat.S_ISREG(found.st_mode):
                yield name, path, found


def _files_below(name: str, folder: str) -> Iterator[tuple[str, str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(f"{name}/{entry.name}", entry.path)
            elif entry.is_file():
                with suppress(FileNotFoundError):  # removed at this moment
                    yield f"{name}/{entry.name}", entry.path, entry.stat()


def _digest(path: str) -> str:
    state = hashlib.sha256()
    try:
        with open_file(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                state.update(chunk)
    except OSError:
        return ""
    return state.hexdigest()[:16]
