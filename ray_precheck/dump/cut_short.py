"""Captures that were cut short, which is said before anything is read of them.

Comes in: the paths of the dumps that a command names, from `dump.folders`. Goes out: a sentence for each that
is not whole, to the command line, which prints it first and ends with 4 where all else is clean; kept in
run.json beside the results. Opened dumps have the same sentence as their `note`.

What is said stands behind the records of a dump.json, in the field `cut_short` that msprobe ignores, and on
the last line of a log, "" where the step came to its end; a log without that line is of a process that was
killed. Dumps of other tools have neither, and nothing is said of them.
"""

import fcntl
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

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
