"""Values that are whatever stood in memory, which nothing had written: nobody's error.

Comes in: the records of a run, one by one, as the walk sees them. Goes out: the same, without the differences
of such values. Called by `walk`.
"""

from typing import Any

from ray_precheck.commands.locate.walk.seen import SeenRecord, WalkState
from ray_precheck.trace.flow.flow import mark_of, writes_in_place
from ray_precheck.trace.items import Item


class UnsetMemory:
    """The values of a run that stood in memory, by key and path, and what their statistics are."""

    def __init__(self, state: WalkState) -> None:
        self._state = state
        self._values: set[tuple[str, str]] = set()
        self._marks: set[tuple[Any, ...]] = set()

    def leave_out(self, seen: SeenRecord) -> None:
        """Leave out the values that are whatever stood in memory, and those of the record that gets them."""
        record = seen.record
        key = record.entry.key
        for path in self._state.meaningless(record):
            seen.values.pop(path, None)
            self._values.add((key, path))
        if not self._values:
            return
        self._marks |= {
            mark_of(item) for item in record.outputs if (key, item.path) in self._values
        }
        for item in record.inputs:
            if self._is_unset(seen, item):
                seen.values.pop(item.path, None)
                seen.is_partly_unset = True

    def _is_unset(self, seen: SeenRecord, item: Item) -> bool:
        """Return whether a value is what stood in memory. What is written into may hold, by chance, what
        another record gave, so that its statistics count and not its giver."""
        giver = self._state.flow.producer(seen.record.entry.key, item.path)
        if giver is not None and (giver.key, giver.path) in self._values:
            return True
        is_written = item is seen.record.inputs[0] and writes_in_place(seen.record.entry.call)
        return is_written and item.is_tensor and mark_of(item) in self._marks
