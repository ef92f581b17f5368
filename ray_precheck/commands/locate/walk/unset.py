"""Values of a run that stood in memory which nothing had written: they hold anything, and are nobody's error.

Comes in: the records of a run, and what is known of them. Goes out: their values without these. Called by
`walk`.
"""

from collections.abc import Iterable
from typing import Any

from ray_precheck.commands.locate.walk.estimate import is_view
from ray_precheck.commands.locate.walk.nouns import SeenRecord, WalkState
from ray_precheck.trace.flow import FlowRecord, mark_of, writes_in_place
from ray_precheck.trace.items import INPUT, Item

# The tensors that a call writes into, by its keyword.
_WRITTEN = f"{INPUT}.out"


class UnsetMemory:
    """The values of a run that stood in memory, by key and path, and what their statistics are."""

    def __init__(self, state: WalkState) -> None:
        self._state = state
        self._values: set[tuple[str, str]] = set()
        self._marks: set[tuple[Any, ...]] = set()

    def look_ahead(self, records: Iterable[FlowRecord]) -> None:
        """Take note of the tensors that a later record only writes into (`out`), and of views of these:
        buffers whose memory was given back, as those of FSDP between two gathers, hold anything."""
        for record in records:
            key = record.entry.key
            for item in record.inputs:
                if not item.path.startswith(_WRITTEN):
                    continue
                self._values.add((key, item.path))
                giver = self._state.flow.producer(key, item.path)
                while giver is not None and is_view(self._state.records[giver.key].entry.call):
                    view = self._state.records[giver.key]
                    first = view.inputs[0].path if view.inputs else ""
                    self._values |= {(giver.key, giver.path), (giver.key, first)}
                    giver = self._state.flow.producer(giver.key, first)

    def leave_out(self, seen: SeenRecord) -> None:
        """Leave out the values that are whatever stood in memory, and those of the record that gets them."""
        record = seen.record
        key = record.entry.key
        self._values |= {(key, path) for path in self._state.meaningless(record)}
        if not self._values:
            return
        for path in [path for path in seen.values if (key, path) in self._values]:
            del seen.values[path]
        self._marks |= {
            mark_of(item) for item in record.outputs if (key, item.path) in self._values
        }
        for item in record.inputs:
            if self._is_unset(seen, item):
                seen.values.pop(item.path, None)
                seen.is_partly_unset = True

    def gives_nothing(self, seen: SeenRecord) -> bool:
        """Return whether all that a record gives is memory that nothing has written: what is written there
        has the shape, too."""
        given = [item for item in seen.record.outputs if item.is_tensor]
        key = seen.record.entry.key
        return bool(given) and all((key, item.path) in self._values for item in given)

    def _is_unset(self, seen: SeenRecord, item: Item) -> bool:
        """Return whether a value is what stood in memory. What is written into may hold, by chance, what
        another record gave, so that its statistics count and not its giver."""
        giver = self._state.flow.producer(seen.record.entry.key, item.path)
        if giver is not None and (giver.key, giver.path) in self._values:
            return True
        is_written = item is seen.record.inputs[0] and writes_in_place(seen.record.entry.call)
        return is_written and item.is_tensor and mark_of(item) in self._marks
