"""The timeline of a run: the APIs that each device and bench worker ran, when and for how long.

Comes in: a `Span` for every API that was run somewhere. Goes out: a file in the JSON Array Format
of Chrome's "Trace Event Format", which chrome://tracing and Perfetto show with a row for each
worker. Called by the driver's process as results come in, and again by a resumed run, which goes on
in the same file.

One event stands on each line, and the comma before it. If the run was killed, the file lacks its
closing bracket, which the format allows.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from ray_precheck.errors import PrecheckError, ResumeError, StoppedError
from ray_precheck.foreign import regular_file
from ray_precheck.schema.task import Done

_BEGIN = b"["
_END = b"\n]\n"
_PROCESS_NAME, _THREAD_NAME = "process_name", "thread_name"
_LONGEST_NAME = 300
_LONGEST_LINE_BYTES = 1 << 16
# Begin and length of a span come from two clocks, so the next may seem to begin this much too soon.
_JITTER_US = 50


# The stage of a span without a length: the moment at which a call was seen to have broken its worker.
CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of work: the machine, its row (a device or a bench worker) and the call.

    `stage` is check, device or bench, or `CRASH`. `began_s` counts from the epoch, `elapsed_s` is its length.
    """

    machine: str
    row: str
    name: str
    stage: str
    began_s: float
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Track:
    """The pieces that a worker ran in one stage, one after the other: of each its name, its `began_s` and its
    `elapsed_s`."""

    machine: str
    row: str
    stage: str
    pieces: Sequence[Done | Span]

    def spans(self) -> Iterator[Span]:
        """Yield a span for each piece."""
        for piece in self.pieces:
            yield Span(
                self.machine, self.row, piece.name, self.stage, piece.began_s, piece.elapsed_s
            )


@dataclass(slots=True)
class _Lane:
    """One line of a viewer: its thread, and when the last span in it ended."""

    tid: int
    end_us: int = 0


class Timeline:
    """Appends spans to the file. Make one with `open`; one process at a time writes it.

    Machines are numbered as processes and rows as threads, all from one count, so that no number
    stands for two things. A viewer draws only spans that lie apart or within each other in a row,
    so a span that overlaps with the last one of its row goes to a second row, `cpu:0 (2)`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._machines: dict[str, int] = {}
        self._threads: dict[tuple[int, str], int] = {}
        self._lanes: dict[tuple[str, str], list[_Lane]] = {}
        self._count = 0
        self._has_events = False
        self._fd = regular_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            self._go_on()
        except (OSError, PrecheckError):
            self._close_file()
            raise

    @classmethod
    def open(cls, path: Path) -> "Timeline":
        """Open a new timeline, or resume an old one, which is cut behind its last whole event.

        Raises:
            ResumeError: there is another file of this name; it is left as it is.
            StoppedError: it cannot be read or written.
        """
        try:
            return cls(path)
        except OSError as error:
            raise _cannot_write(error, path) from None

    def add(self, spans: Iterable[Span]) -> None:
        """Append an event for every span, and hand them to the system before this returns.

        Raises:
            StoppedError: the disk is full, or the file cannot be written; it is as it was.
        """
        events: list[dict[str, Any]] = []
        for span in spans:
            self._add_span(span, events)
        if events:
            text = b",\n".join(map(_line, events))
            self._write((b",\n" if self._has_events else b"\n") + text)
            self._has_events = True

    def close(self) -> None:
        """Close the array, so that the file is JSON for every reader; safe to call twice.

        Raises:
            StoppedError: the disk is full; viewers read the file nevertheless.
        """
        if self._fd >= 0:
            try:
                self._write(_END)
            finally:
                self._close_file()

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _go_on(self) -> None:
        """Cut the file behind its last whole event, and learn which numbers are taken."""
        with os.fdopen(os.dup(self._fd), "rb") as file:
            first = file.readline(_LONGEST_LINE_BYTES)
            if first not in (b"", _BEGIN, _BEGIN + b"\n"):
                raise ResumeError(
                    f"{self.path} is no timeline of ray_precheck: its first line must be '[' alone;"
                    " move it away, and a new one is written"
                )
            end, at = min(len(first), len(_BEGIN)), len(first)
            for line in iter(partial(file.readline, _LONGEST_LINE_BYTES), b""):
                event = _event(line)
                if event is None:
                    break
                self._learn(event)
                end, at = at + len(line.rstrip(b",\n")), at + len(line)
                if not line.endswith(b",\n"):
                    break
        self._has_events = end > len(_BEGIN)
        if os.fstat(self._fd).st_size != end:
            os.ftruncate(self._fd, end)
        if end == 0:
            self._write(_BEGIN)

    def _learn(self, event: dict[str, Any]) -> None:
        pid, tid = event["pid"], event["tid"]
        self._count = max(self._count, pid, tid)
        if event.get("ph") == "M":
            label = str(event.get("args", {}).get("name"))
            if event.get("name") == _PROCESS_NAME:
                self._machines[label] = pid
            else:
                self._threads[pid, label] = tid

    def _add_span(self, span: Span, events: list[dict[str, Any]]) -> None:
        begin_us = round(span.began_s * 1e6)
        end_us = max(begin_us, round((span.began_s + span.elapsed_s) * 1e6))
        pid = self._process(_text(span.machine), events)
        lane = self._lane(pid, span, begin_us, end_us, events)
        begin_us, lane.end_us = max(begin_us, lane.end_us), end_us
        events.append(
            {
                "name": _text(span.name),
                "cat": span.stage,
                "ph": "X",
                "ts": begin_us,
                "dur": end_us - begin_us,
                "pid": pid,
                "tid": lane.tid,
            }
        )

    def _process(self, machine: str, events: list[dict[str, Any]]) -> int:
        if machine not in self._machines:
            self._count += 1
            self._machines[machine] = self._count
            events.append(_naming(_PROCESS_NAME, machine, self._count, self._count))
        return self._machines[machine]

    def _lane(
        self, pid: int, span: Span, begin_us: int, end_us: int, events: list[dict[str, Any]]
    ) -> _Lane:
        """Return the first lane of a row that is free by then; a new one where there is none."""
        lanes = self._lanes.setdefault((span.machine, span.row), [])
        for lane in lanes:
            if lane.end_us <= min(begin_us + _JITTER_US, end_us):
                return lane
        label = _text(span.row) + (f" ({len(lanes) + 1})" if lanes else "")
        if (pid, label) not in self._threads:
            self._count += 1
            self._threads[pid, label] = self._count
            events.append(_naming(_THREAD_NAME, label, pid, self._count))
        lanes.append(_Lane(self._threads[pid, label]))
        return lanes[-1]

    def _write(self, data: bytes) -> None:
        end = -1
        try:
            end = os.fstat(self._fd).st_size
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            if end >= 0:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, end)
            raise _cannot_write(error, self.path) from None


def _event(line: bytes) -> dict[str, Any] | None:
    """Return the event on a line; None for a torn line and for the closing bracket."""
    try:
        event = orjson.loads(line.rstrip(b",\n"))
    except ValueError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("args", {}), dict):
        return None
    numbers = (event.get("pid"), event.get("tid"))
    return event if all(type(number) is int for number in numbers) else None


def _naming(kind: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _line(event: dict[str, Any]) -> bytes:
    """Return an event as JSON in printable ASCII; orjson, which does not escape other characters, is
    ten times as fast."""
    line = orjson.dumps(event)
    return (
        line
        if line.isascii() and b"\x7f" not in line
        else json.dumps(event, separators=(",", ":")).encode()
    )


def _text(name: str) -> str:
    """Return a name that every reader of JSON takes: not too long, and without lone surrogates."""
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 3]}..."
    if name.isascii():
        return name
    return name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _cannot_write(error: OSError, path: Path) -> StoppedError:
    return StoppedError(
        f"cannot write the timeline {path}: {error.strerror or error};"
        " all acknowledged rows are on disk"
    )
