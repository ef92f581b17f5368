"""What lies on the way to a record, as far as its estimate needs that: rounding, masks, its forward pass.

Comes in: the records of a run, one by one, as the walk sees them. Goes out: their own errors, estimated where
nothing else tells of them. Called by `walk`.
"""

import math

from ray_precheck.commands.locate.walk.estimate import Differences, estimated_error
from ray_precheck.commands.locate.walk.noise import floor_of, has_half_digits, is_masked, suspicious
from ray_precheck.commands.locate.walk.seen import SeenRecord, WalkState
from ray_precheck.trace.flow.flow import FlowRecord
from ray_precheck.trace.flow.meetings import is_collective
from ray_precheck.trace.items import INPUT, OUTPUT
from ray_precheck.trace.side import BACKWARD, FORWARD

# A weight that differs by so much was moved by an optimizer that makes whole steps of rounding (`unsteady`).
# Statistics do not show how far it has moved what is computed with it: an estimate is one of guilt from the
# loss of half of the digits on, 2^-4 of bfloat16.
_STEPPED, _BY_OTHER_WEIGHTS = 1e-4, 2.0**-4 / suspicious("float32")


class WayOfRounding:
    """What the walk has passed: forward records by their calls, the largest difference on the way to each
    record, and the relative rounding of half types, where statistics alone tell of it."""

    def __init__(self, state: WalkState) -> None:
        self._state = state
        self._by_statistics = state.evidence.estimates and not state.evidence.sees_elements
        self._forwards: dict[str, Differences] = {}
        self._way: dict[str, float] = {}
        self._floors: dict[str, float] = {}
        self._coarsest = 0.0
        self._has_other_weights = False

    def estimate(self, seen: SeenRecord) -> None:
        """Estimate the own error of a record that nothing else tells of, and keep what its gradient needs."""
        record = seen.record
        own = Differences(record, seen.values, seen.carried, self._floor(seen))
        if record.entry.direction == FORWARD:
            # Also of one that was replayed: its gradient may be one that was not.
            self._forwards[record.entry.call] = own
        if not self._needs_estimate(seen):
            return
        is_gradient = record.entry.direction == BACKWARD
        forward = self._forwards.get(record.entry.call) if is_gradient else None
        estimate = estimated_error(own, forward)
        if estimate is not None and (estimate.is_guilty or not self._is_another_operator(seen)):
            seen.own = estimate
        if self._by_statistics and any(has_half_digits(item.dtype) for item in record.outputs):
            worst = seen.worst(OUTPUT)
            if math.isfinite(worst):
                self._floors[record.entry.key] = max(own.floor, worst)

    def least_in_gaps(self) -> float:
        """Return how far a value that no captured record gave may differ, whatever is known of those before
        it: where statistics alone tell, the rounding of half types that the run has passed."""
        return self._coarsest

    def _floor(self, seen: SeenRecord) -> float:
        """Return the relative rounding of half types on the way to a record. Statistics of single precision
        show less of it than its elements have, and the next operator may bring it out."""
        if not self._by_statistics:
            return 0.0
        entry = seen.record.entry
        self._has_other_weights = self._has_other_weights or any(
            seen.difference(item.path) > _STEPPED and self._state.weights.holds(seen.record, item)
            for item in seen.record.inputs
        )
        floor = _BY_OTHER_WEIGHTS if self._has_other_weights else 0.0
        for item in seen.record.inputs:
            if has_half_digits(item.dtype) and seen.difference(item.path) > 0.0:
                floor = max(floor, floor_of(item.dtype))
        self._coarsest = max(self._coarsest, floor)
        if self._floors:  # Most runs of single precision have none.
            givers = {f"{entry.call}.{FORWARD}"} if entry.direction == BACKWARD else set()
            for item in seen.record.inputs:
                giver = self._state.flow.producer(entry.key, item.path)
                if giver is not None:
                    givers.add(giver.key)
            floor = max([floor, *(self._floors.get(key, 0.0) for key in givers)])
        if floor:
            self._floors[entry.key] = floor
        return floor

    def carried_to(self, record: FlowRecord) -> dict[str, float]:
        """Return the largest difference on the way to each input whose norm is that of a mask."""
        found = {}
        for item in record.inputs:
            if not is_masked(item):
                continue
            giver = self._state.flow.producer(record.entry.key, item.path)
            if giver is not None:
                found[item.path] = self._way.get(giver.key, 0.0)
        return found

    def _needs_estimate(self, seen: SeenRecord) -> bool:
        """Return whether nothing but the golden run tells of a record: what draws random numbers has a replay
        that looks at its statistics alone."""
        record, own = seen.record, seen.own
        if is_collective(record.entry.call):
            return False  # `collectives` looks at those of all ranks at once.
        if seen.is_partly_unset:
            return False  # What it did not write over is nobody's error.
        if own is None or self._state.evidence.estimates:
            return self._state.evidence.estimates
        if self._is_another_operator(seen):
            return not own.is_guilty
        return not own.is_guilty and (own.verdict == "SKIP" or self._state.draws(record.entry.call))

    def _is_another_operator(self, seen: SeenRecord) -> bool:
        """Return whether the golden run has another operator in the place of one that was replayed, which may
        be right by itself and wrong here."""
        golden = self._state.golden
        is_replayed = seen.own is not None and not self._state.evidence.estimates
        return is_replayed and golden is not None and seen.record.entry.call in golden.renamed

    def note(self, seen: SeenRecord) -> None:
        """Keep the largest difference on the way to a record, its own outputs included."""
        on_the_way = [seen.worst(OUTPUT), *seen.carried.values()]
        if any(is_masked(item) for item in seen.record.outputs):
            on_the_way.append(seen.worst(INPUT))
        self._way[seen.record.entry.key] = max(
            (each for each in on_the_way if each == each), default=0.0
        )
