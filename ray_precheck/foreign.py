"""What others wrote: calls of foreign code, which may raise anything, and files that a user names.

Comes in: an action, or a path. Goes out: its result, or its exception as a value; an open file. `caught` and
the edge of the command line (`cli.command_line`) are the only places that catch every exception: foreign
code may raise any class, and its text goes into the row of a record or into a sentence for the user.

Values of a dump as messages show them: on one line, printable and short. A dump is untrusted data: a value
can be a text of 10,000,000 characters, a list nested a thousand times, or a sequence that a terminal obeys.
"""

import errno
import json
import os
import stat
from collections.abc import Callable
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
# They are another file in each process, so that a worker would read something else.
_OF_THIS_PROCESS = ("/dev/stdin", "/dev/fd/", "/proc/self/", "/proc/thread-self/")


def caught(action: Callable[[], T], *through: type[Exception]) -> tuple[T | None, Exception | None]:
    """Return the result of an action and None, or None and its exception.

    Exceptions of the classes `through`, and those that are no `Exception`, are not caught.
    """
    try:
        return action(), None
    except through:
        raise
    except Exception as error:
        return None, error


def caught_with(action: Callable[..., T], *args: Any) -> tuple[T | None, Exception | None]:
    """Return what `caught` does, of an action with arguments: for actions of which there are many, to whom a
    function of their own for each would cost as much as they do."""
    try:
        return action(*args), None
    except Exception as error:
        return None, error


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, "" where it says nothing."""
    return str(error).strip().split("\n", maxsplit=1)[0]


def open_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file to read its bytes; all files that a user names are opened here.

    A pipe would be waited for, and a device may never end.

    Raises:
        OSError: it cannot be opened, or is no regular file; `strerror` says what it is.
    """
    try:
        return open(path, "rb", opener=regular_file)
    except ValueError as error:  # a null byte in the path
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from None


def regular_file(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Return the descriptor of a regular file, as `os.open` does; see `open_file`."""
    path = os.fspath(path)
    if path.startswith(_OF_THIS_PROCESS):
        raise OSError(errno.EINVAL, "name a file on a disk, which other processes see, too", path)
    try:
        file = os.open(path, flags | os.O_NONBLOCK, mode)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a socket, or a pipe without a reader
            raise
        found = os.stat(path).st_mode
    else:
        found = os.fstat(file).st_mode
        if stat.S_ISREG(found):
            return file
        os.close(file)
    if stat.S_ISDIR(found):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    kind = _KINDS.get(stat.S_IFMT(found), "something else")
    raise OSError(errno.EINVAL, f"it is {kind}, no regular file; name a file on a disk", path)


def open_text(path: Path) -> TextIOWrapper:
    """Open a regular file as the text of a CSV, whatever its bytes are; see `open_file`."""
    return TextIOWrapper(open_file(path), encoding="utf-8-sig", newline="", errors="replace")


def read_file(path: Path) -> bytes:
    """Return the content of a regular file; see `open_file`."""
    with open_file(path) as file:
        return file.read()


def from_json(text: str | bytes) -> Any:
    """Return what a JSON says.

    Raises:
        ValueError: it is no JSON, or nested so deeply that Python cannot read it.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


LONGEST = 60
# What a terminal obeys: control characters but tabs and the ends of lines, and marks that turn text round.
_CONTROL_CODES = ((0, 9), (11, 13), (14, 32), (127, 160))
_TURNING_CODES = ((0x200E, 0x2010), (0x2028, 0x202F), (0x2066, 0x206A))
_CONTROLS = {
    code: f"\\u{code:04x}" for codes in (*_CONTROL_CODES, *_TURNING_CODES) for code in range(*codes)
}


def without_controls(text: str) -> str:
    r"""Return a text with `\u001b` in the place of the characters that a terminal obeys; lines stay lines."""
    return text.translate(_CONTROLS)


def printable(line: str) -> str:
    """Return a line of names and messages without control sequences, and without what has no encoding."""
    return line if line.isprintable() else ascii(line)[1:-1]


def shown(value: Any) -> str:
    """Return a value as Python writes it, cut to 60 characters."""
    if isinstance(value, str):
        value = value[: LONGEST + 1]
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # ValueError: an int of more digits than Python writes
        text = f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
