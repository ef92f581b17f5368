"""Where in the program a call is made: its stack, its line, the modules around it.

Comes in: the frame of a call. Goes out: the number of its stack, whose lines stand in stack.json; each
different stack has one. Called for each call: frames are told apart by their code and the place in it, and
are turned into text the first time only.
"""

import concurrent.futures
import linecache
import os
import sys
import threading
from collections.abc import Hashable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ray_precheck.numerics.one_pass import COMPILED

# Python's own files that run what a program hands to a thread.
_THREADS = (threading.__file__, os.path.dirname(concurrent.futures.__file__))


class Stack(NamedTuple):
    """A stack's number, and what was found in it: the part below a frame of a marked file.

    `inner` tells calls in one recomputed region apart; 0 for a call outside of any. `again` says that the
    region is computed again, where a function says so.
    """

    number: int
    inner: int
    again: bool = False


class Stacks:
    """Numbers the stacks of calls, and has the lines of each.

    Frames of files whose name begins with one of `left_out` have no line. `mark` is the end of the name
    of a file that recomputes calls, `again` are the names of its functions that compute a region once more.
    """

    def __init__(
        self, left_out: Sequence[str] = (), mark: str = "", again: Sequence[str] = ()
    ) -> None:
        self._again = again
        self._left_out = tuple(left_out)
        self._mark = mark
        self._numbers: dict[Hashable, Stack] = {}
        self._inner: dict[tuple[int, ...], int] = {}
        self._lines: list[list[str]] = []
        self._kept_alive: dict[int, CodeType] = {}

    def lines(self, number: int) -> list[str]:
        """Return the lines of a stack, the call first."""
        return self._lines[number]

    def of(self, frame: FrameType | None) -> Stack:
        """Return the stack that ends with a frame."""
        key = _key_of(frame)
        stack = self._numbers.get(key)
        if stack is None:
            stack = self._numbers[key] = self._new(frame)
        return stack

    def _new(self, frame: FrameType | None) -> Stack:
        lines: list[str] = []
        below: list[int] = []
        inner, again = 0, False
        while frame is not None:
            code = frame.f_code
            self._kept_alive[id(code)] = code
            if self._mark and code.co_filename.endswith(self._mark):
                inner = inner or self._inner.setdefault(tuple(below), len(self._inner) + 1)
                again = again or code.co_name in self._again
            below += (id(code), frame.f_lasti)
            if not code.co_filename.startswith(self._left_out):
                line = line_of(code, frame.f_lineno)
                lines += [line] if line else []
            frame = frame.f_back
        self._lines.append(lines)
        return Stack(len(self._lines) - 1, inner, again)


def _key_of(frame: FrameType | None) -> Hashable:
    """Return what tells a stack from others: a frame's code is the same object in each call, so that its
    identity is enough."""
    if COMPILED is not None and frame is not None:
        key: bytes | None = COMPILED.stack_key(frame)
        if key is not None:
            return key
    places: list[int] = []
    while frame is not None:
        places += (id(frame.f_code), frame.f_lasti)
        frame = frame.f_back
    return tuple(places)


def frames_named(frame: FrameType | None, name: str) -> list[FrameType]:
    """Return the frames from one on, the innermost first, that run a function of a name."""
    if COMPILED is not None and frame is not None:
        found: list[FrameType] = COMPILED.frames_named(frame, name)
        return found
    frames: list[FrameType] = []
    while frame is not None:
        if frame.f_code.co_name == name:
            frames.append(frame)
        frame = frame.f_back
    return frames


def function_source(code: CodeType) -> str:
    """Return the lines of a function, "" where there is no source."""
    lines = [line for _, _, line in code.co_lines() if line]
    return "".join(
        linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : max(lines, default=0)]
    )


def line_of(code: CodeType, number: int) -> str:
    """Return a line of a stack as msprobe writes it; "" where there is no source."""
    source = linecache.getline(code.co_filename, number).strip()
    if not source:
        return ""
    return f"File {code.co_filename}, line {number}, in {code.co_name}, \n {source}"


def modules_around(frame: FrameType | None, entry: str) -> list[Any]:
    """Return the modules that a frame runs in, the innermost first: `self` of the method `entry` through
    which the framework calls modules."""
    return [
        each.f_locals.get("self")
        for each in frames_named(frame, entry)
        if "self" in each.f_code.co_varnames
    ]


def program_frame(frame: FrameType | None, left_out: Sequence[str]) -> FrameType | None:
    """Return the innermost frame whose file begins with none of `left_out` (the framework, this package), and
    is no module of Python's for threads; else the first one."""
    first = frame
    while frame is not None and frame.f_code.co_filename.startswith((*left_out, *_THREADS)):
        frame = frame.f_back
    return frame or first


def place_of(frame: FrameType | None, left_out: Sequence[str]) -> str:
    """Return the line of the program that a frame belongs to, as `file:line`."""
    frame = program_frame(frame, left_out)
    return "" if frame is None else f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def _shown(path: str) -> str:
    """Return a path as seen from the folder of the process, where it lies in that."""
    here = os.path.join(_folder(), "")
    return path.removeprefix(here)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return sys.prefix
