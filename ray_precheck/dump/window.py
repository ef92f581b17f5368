"""Reading of many small records of a large file, without a system call for each.

Comes in: a file and spans, mostly one beside the other, upwards or downwards. Goes out: raw JSON.
Called by the planner, which has one window for the forward records, that stand in the order of the
calls, and one for the backward records, which msprobe writes in reverse order.
"""

import os

from ray_precheck.dump.scan import ByteRange, value_of

_WINDOW_BYTES = 1 << 16


class RecordWindow:
    """A piece of a file in memory, which moves to where the next record is."""

    def __init__(self, file_descriptor: int) -> None:
        self._fd = file_descriptor
        self._start = self._end = 0
        self._data = b""

    def raw(self, span: ByteRange | None) -> bytes | None:
        """Return the raw JSON of one record; None for a record that the dump does not have."""
        if span is None:
            return None
        start, end = span
        if end - start > _WINDOW_BYTES:  # so that no window keeps 64 MiB
            return value_of(os.pread(self._fd, end - start, start))
        if start < self._start or end > self._end:
            self._move(start, end)
        return value_of(self._data[start - self._start : end - self._start])

    def _move(self, start: int, end: int) -> None:
        """Read the record and what lies ahead of it, on the side that the window moves to."""
        if start < self._start:
            start = max(0, end - _WINDOW_BYTES)
        else:
            end = start + _WINDOW_BYTES
        self._start, self._end = start, end
        self._data = os.pread(self._fd, end - start, start)
