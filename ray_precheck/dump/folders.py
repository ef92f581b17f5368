"""The dumps below a folder: of one rank, of the ranks of a step, or of all steps.

Comes in: a path that `-api_info` names. Goes out: one `FoundDump` for each dump.json. Called by the
session before anything is opened. msprobe writes `step0/rank0/dump.json`, `step0/rank/dump.json` or
`step0/proc4711/dump.json`; a step without ranks is taken, too. Where a capture was cut off there is its
log, dump.jsonl, in the place of dump.json.

Captures that were cut short, which is said before anything is read of them. Opened dumps have the same
sentence as their `note`.

What is said stands behind the records of a dump.json, in the field `cut_short` that msprobe ignores, and on
the last line of a log, "" where the step came to its end; a log without that line is of a process that was
killed. Dumps of other tools have neither, and nothing is said of them.
"""

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ray_precheck.errors import DumpError, UsageError
from ray_precheck.foreign import open_file

FIELD = "cut_short"
KILLED = "the process was ended in the middle of the step"
_END_BYTES = 1 << 14
_LONGEST_REASON = 1000
_IN_DUMP = re.compile(rb'\n\}, "cut_short": ("(?:[^"\\]|\\.)*")\}\s*\Z')
_IN_LOG = re.compile(rb'\n\{"cut_short": \{"reason": ("(?:[^"\\]|\\.)*")\}\}\n\Z')


def end_of_dump(cut_short: str) -> bytes:
    """Return what stands behind the last record of a dump.json."""
    said = f', "{FIELD}": {json.dumps(cut_short[:_LONGEST_REASON])}' if cut_short else ""
    return f"{said}}}\n".encode()


def end_of_log(cut_short: str) -> str:
    """Return the last line of a log that ends because its capture has stopped."""
    return f'{{"{FIELD}": {{"reason": {json.dumps(cut_short[:_LONGEST_REASON])}}}}}\n'


def cut_note(path: Path) -> str:
    """Return the sentence about the dump or the log at a path; "" for what is whole, or cannot be read."""
    is_log = path.suffix == ".jsonl"
    try:
        with open_file(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _END_BYTES))
            found = (_IN_LOG if is_log else _IN_DUMP).search(file.read())
            is_open = is_log and is_being_written(file)
    except OSError:
        return ""
    if found is None and not is_log:
        return ""
    reason = KILLED if found is None else str(json.loads(found[1]))
    what = "is still being written" if is_open else f"was cut short: {reason}"
    lacks = "what it lacks is not looked at, and nothing in error does not mean that all is well"
    return f"{path} {what}; {lacks}" if reason else ""


def is_being_written(file: BinaryIO) -> bool:
    """Return whether another process holds the lock of a log, which ends with that process.

    False on a file system without locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


class _Heard:
    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.notes: dict[Path, str] = {}


_HEARD: ContextVar[_Heard | None] = ContextVar("heard", default=None)


@contextmanager
def cuts_told(tell: Callable[[str], None]) -> Iterator[dict[Path, str]]:
    """Have the sentence about each cut capture told once, as soon as a dump is looked for; returns them."""
    heard = _Heard(tell)
    token = _HEARD.set(heard)
    try:
        yield heard.notes
    finally:
        _HEARD.reset(token)


def tell_cuts(paths: Iterable[Path]) -> None:
    """Tell of those among these dumps that were cut short, where a command listens."""
    heard = _HEARD.get()
    if heard is None:
        return
    for path in paths:
        if path not in heard.notes and (note := cut_note(path)):
            heard.notes[path] = note
            heard.tell(note)


def heard_cuts(dump: Path | None = None) -> tuple[str, ...]:
    """Return the sentences told so far: that about one dump where it is one of them, else all."""
    heard = _HEARD.get()
    notes = {} if heard is None else heard.notes
    if dump is not None:
        with suppress(OSError):
            if dump.is_file():
                return (notes[dump],) if dump in notes else ()
    return tuple(notes.values())


DUMP_FILE, LOG_FILE = "dump.json", "dump.jsonl"
_STEP = re.compile(r"step(\d+)")
_RANK = re.compile(r"(?:rank|proc)(\d*)")


@dataclass(frozen=True, slots=True)
class FoundDump:
    """A dump.json or dump.jsonl, and the folders that name its step and its rank ("" where there is none)."""

    path: Path
    step: str = ""
    rank: str = ""

    @property
    def place(self) -> Path:
        """The folder of its results below the folder of all results: `step0/rank1`."""
        return Path(self.step, self.rank)

    @property
    def label(self) -> str:
        """Its name in messages: `step0/rank1`."""
        return "/".join(filter(None, (self.step, self.rank))) or DUMP_FILE


@dataclass(frozen=True, slots=True)
class FoundDumps:
    """The dumps that a path names, by step and rank. `is_many`: it is a folder of several ranks or
    steps, whose results get folders of their own. `without` are folders of ranks that have none."""

    dumps: tuple[FoundDump, ...]
    is_many: bool
    without: tuple[Path, ...] = ()


def find_dumps(path: Path) -> FoundDumps:
    """Return the dumps that a path names: itself, where it is no folder. Tells of those that were cut short.

    Raises:
        DumpError: see `dumps_below`.
    """
    found = dumps_below(path)
    tell_cuts(each.path for each in found.dumps)
    return found


def one_dump(path: Path, instead: str = "") -> Path:
    """Return the dump that a path names alone; `instead` is what else the user may do.

    Raises:
        UsageError: there are several below the folder.
        DumpError: see `dumps_below`.
    """
    dumps = find_dumps(path).dumps
    if len(dumps) > 1:
        named = f"name one of them, such as {dumps[0].path}"
        raise UsageError(
            f"{path} is a folder of {len(dumps)} dumps; {', '.join(filter(None, [named, instead]))}"
        )
    return dumps[0].path


def dumps_below(path: Path) -> FoundDumps:
    """Return the dumps that a path names: itself, where it is no folder.

    Raises:
        DumpError: there is no dump in or below the folder, or it cannot be read; names the files
            that were looked for.
    """
    try:
        if not path.is_dir():
            return FoundDumps((FoundDump(standing_for(path)),), is_many=False)
        own = dump_in(path)
        if own.exists():
            return FoundDumps((FoundDump(own),), is_many=False)
        own_step = path.resolve().name
        step = own_step if _STEP.fullmatch(own_step) else ""
        ranks = list(_ranks(path, step))
        if not ranks:
            ranks = [found for folder in _named(path, _STEP) for found in _step(folder)]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DumpError(f"cannot read the dump {str(path)!r}: {reason}") from None
    dumps = tuple(found for found in ranks if found.path.exists())
    without = tuple(found.path.parent for found in ranks if found not in dumps)
    if not dumps:
        raise DumpError(
            f"{path} holds no dump; looked for {DUMP_FILE} and {LOG_FILE} in it, in rank*, proc*, step*,"
            " and in step*/rank* and step*/proc*"
        )
    return FoundDumps(dumps, is_many=True, without=without)


def find_existing_dumps(path: Path) -> FoundDumps:
    """Return the dumps that a path names, which are there.

    Raises:
        DumpError: as `find_dumps`, and where the path is that of a file that is not there.
    """
    found = find_dumps(path)
    if not found.is_many and not found.dumps[0].path.exists():
        raise DumpError(f"cannot read the dump {path}: No such file or directory")
    return found


def dump_in(folder: Path) -> Path:
    """Return the path of the dump in a folder: dump.json, or the log of a capture that was cut off."""
    return standing_for(folder / DUMP_FILE)


def standing_for(path: Path) -> Path:
    """Return the path of a dump or of what stands for it: a dump.json that is not there for the log
    beside it, and a log that was finished since for its dump.json."""
    others = {DUMP_FILE: LOG_FILE, LOG_FILE: DUMP_FILE}
    if path.name in others and not path.exists():
        other = path.with_name(others[path.name])
        return other if other.exists() else path
    return path


def _step(folder: Path) -> Iterator[FoundDump]:
    ranks = list(_ranks(folder, folder.name))
    if ranks:
        yield from ranks
    else:
        yield FoundDump(dump_in(folder), folder.name)


def _ranks(folder: Path, step: str) -> Iterator[FoundDump]:
    for rank in _named(folder, _RANK):
        yield FoundDump(dump_in(rank), step, rank.name)


def _named(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Return the folders in a folder whose names fit, by their numbers."""
    with os.scandir(folder) as entries:
        fitting = [
            (match, Path(folder, entry.name))
            for entry in entries
            if (match := pattern.fullmatch(entry.name)) and entry.is_dir()
        ]
    return [path for match, path in sorted(fitting, key=lambda pair: _order(pair[0]))]


def _order(match: re.Match[str]) -> tuple[int, str]:
    return int(match[1] or -1), match[0]
