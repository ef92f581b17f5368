"""The logs that killed processes have left become dumps.

Comes in: the folder of a capture, of a step, of a rank, or a log in it. Goes out: what was done in each
folder that had a log. Called by `ray-precheck capture --finish`. No framework is loaded.

The files are those that `StepLog.finish` would have written for the same records, byte for byte. A kill
at any point leaves either the log, or the dump beside the log, and the next call goes on from there.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ray_precheck.capture.writing.log import (
    DUMP,
    LOG,
    STACK_LOG,
    open_locked,
    remove_log,
    write_dump,
)
from ray_precheck.dump.folders import FIELD, KILLED, dumps_below, standing_for
from ray_precheck.dump.log import (
    DATA,
    LARGEST_HEADER_BYTES,
    as_dump,
    reason_of,
    records_text,
    scan_log,
)
from ray_precheck.dump.scan import loose_json, silent
from ray_precheck.errors import DumpError
from ray_precheck.foreign import open_file, shown

_MOST_DIGITS = 18
# After a kill the process that writes tensors holds the log until all that it was given is there.
_PATIENCE_S = 5.0
_LEVELS_WITH_MODULES = ("L0", "mix")


@dataclass(frozen=True, slots=True)
class FinishedLog:
    """A folder that had a log: how many records its dump.json has now, and why no more; or the sentence that
    says why the log is still there."""

    folder: Path
    records: int = 0
    problem: str = ""
    cut_short: str = ""


def finish_folder(path: Path) -> list[FinishedLog]:
    """Turn each log in or below a folder into dump.json, stack.json and construct.json.

    Folders without a log are not touched. A log that another process still writes stays, as does one
    that cannot be read; the others are finished nevertheless.

    Raises:
        DumpError: there is no such folder, or neither a log nor a dump in it.
    """
    path = standing_for(path)
    if not path.is_dir() and (path.name not in (LOG, DUMP) or not path.exists()):
        problem = "is no folder" if path.exists() else "does not exist"
        raise DumpError(f"{path} {problem}; name the folder of a capture, of a step or of a rank")
    folders = [found.path.parent for found in dumps_below(path).dumps]
    return [done for folder in folders if (done := _finished(folder)) is not None]


def _finished(folder: Path) -> FinishedLog | None:
    """Finish the log of one folder; None where there is none, or none any more."""
    if not (folder / LOG).exists():
        return None
    try:
        with os.fdopen(open_locked(folder / LOG, os.O_RDONLY, _PATIENCE_S), "rb") as file:
            return _finish(folder, file)
    except BlockingIOError:
        problem = f"{folder / LOG} is still being written by another process; end that first"
    except OSError as error:
        if isinstance(error, FileNotFoundError) and (folder / DUMP).exists():
            return None  # the process that wrote it has finished it
        problem = f"{folder} cannot be finished: {error.strerror or error}; its log stays"
    except DumpError as error:
        problem = str(error)
    return FinishedLog(folder, problem=problem)


def _finish(folder: Path, file: BinaryIO) -> FinishedLog:
    contents = _read(folder / LOG, file)
    dump = as_dump(contents.header, contents.kept_lines(file), contents.cut_short)
    if (folder / DUMP).exists():
        # Only the removal of the log is missing, if it is the same capture.
        if not _holds(folder / DUMP, records_text(contents.kept_lines(file))):
            raise DumpError(
                f"{folder} has a {DUMP} of another capture than its {LOG}; move one of the two to"
                " another folder"
            )
        remove_log(folder)
    else:
        write_dump(
            folder,
            dump,
            contents.keys,
            {number: contents.stacks.get(number, []) for number in contents.keys},
            contents.parents if contents.has_modules else {},
            is_durable=True,
        )
    return FinishedLog(folder, len(contents.parents), cut_short=contents.cut_short)


@dataclass(slots=True)
class _Contents:
    """What a log holds: the module of each record, the records of each stack, the lines of each stack.

    `repeated` are the numbers of the lines with a key that an earlier line has, which are left out.
    """

    header: bytes
    has_modules: bool = False
    count: int = 0
    parents: dict[str, str | None] = field(default_factory=dict)
    keys: dict[int, list[str]] = field(default_factory=dict)
    stacks: dict[int, list[str]] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)
    cut_short: str = KILLED

    def take(self, key: str, record: dict[str, Any]) -> None:
        """Note the record on the next line."""
        if key in self.parents:
            self.repeated.add(self.count)
        else:
            stack, parent = record.get("stack"), record.get("parent")
            self.parents[key] = parent if isinstance(parent, str) else None
            if isinstance(stack, str) and stack.isdecimal() and len(stack) <= _MOST_DIGITS:
                self.keys.setdefault(int(stack), []).append(key)
        self.count += 1

    def kept_lines(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the lines of the records that are kept."""
        file.seek(len(self.header))
        for number in range(self.count):
            line = file.readline()
            if number not in self.repeated:
                yield line


def _read(path: Path, file: BinaryIO) -> _Contents:
    """Read a log up to its last whole line.

    Raises:
        DumpError: a line is broken, or the header is not whole.
    """
    log, _ = scan_log(file, str(path), silent)
    header = _json(log.header, 1, path)
    contents = _Contents(log.header, header.get("level") in _LEVELS_WITH_MODULES)
    file.seek(len(log.header))
    for number, line in enumerate(_whole(file), 2):
        members = list(_json(line, number, path).items())
        if len(members) != 1 or not isinstance(members[0][1], dict):
            raise _broken(line, number, path)
        if members[0][0] == FIELD:
            contents.cut_short = reason_of(line)
            break
        contents.take(*members[0])
    stack_path = path.with_name(STACK_LOG)
    if stack_path.exists():
        with open_file(stack_path) as stacks:
            for number, line in enumerate(_whole(stacks), 1):
                for name, lines in _json(line, number, stack_path).items():
                    contents.stacks[int(name)] = lines
    return contents


def _whole(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines up to the one that was being written when the process was killed."""
    return (line for line in lines if line.endswith(b"\n"))


def _json(line: bytes, number: int, path: Path) -> dict[str, Any]:
    """Return the object on a line.

    Raises:
        DumpError: there is none.
    """
    try:
        value = loose_json(line)
    except (ValueError, RecursionError):
        raise _broken(line, number, path) from None
    if not isinstance(value, dict):
        raise _broken(line, number, path)
    return value


def _broken(line: bytes, number: int, path: Path) -> DumpError:
    return DumpError(
        f"line {number} of {path} is {shown(line[:60])}, expected is a JSON object as a capture writes"
        " it; the log is left as it is"
    )


def _holds(path: Path, pieces: Iterable[bytes]) -> bool:
    """Return whether a dump has these bytes of records; its header may say more than that of a log."""
    with open_file(path) as file:
        begin = file.read(LARGEST_HEADER_BYTES)
        if DATA not in begin:
            return False
        file.seek(begin.index(DATA) + len(DATA))
        return all(file.read(len(piece)) == piece for piece in pieces)
