"""The walk through a capture that finds where errors begin.

Comes in: the records of the target in the order of its run; perhaps those of a golden run with the partner
of each record; and an `Evidence` of how values differ and what each record errs by itself. Goes out: a
`Located`. Called by the jobs that locate, once for each dump.

A record is a root if it errs on the inputs that it got: by its replay or, with statistics and sketches alone,
by an estimate. With a golden run a value that no captured record gave is one, too, where it differs from its
partner: an input, a weight, a random mask, an argument, or what an operator made that was not captured. What
lies downstream of a root passes the error on. Such a value that lies, or may lie, downstream of a root itself
is no root: its difference needs no other cause.

Also here: what lies on the way to a record, as far as its estimate needs that: rounding, masks, its forward
pass.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from ray_precheck.commands.locate.walk.calls import (
    named_by_calls,
    other_gradient,
    other_operator,
)
from ray_precheck.commands.locate.walk.collectives import shared_record
from ray_precheck.commands.locate.walk.estimate import (
    STEPPED,
    Differences,
    estimated_error,
    floor_of,
    has_half_digits,
    is_masked,
    suspicious,
)
from ray_precheck.commands.locate.walk.exchanged import asked_otherwise, in_one_run_alone
from ray_precheck.commands.locate.walk.nouns import (
    INFINITE,
    INHERITED,
    UNCHECKED,
    Located,
    OwnError,
    Passed,
    Root,
    RootKind,
    SeenRecord,
    WalkState,
)
from ray_precheck.commands.locate.walk.outside import (
    MOST_LATE,
    argument_roots,
    given_roots,
    lacking_parameters,
)
from ray_precheck.commands.locate.walk.places import reached_from
from ray_precheck.commands.locate.walk.screening import Screen
from ray_precheck.commands.locate.walk.unset import UnsetMemory
from ray_precheck.trace.difference.measuring import pair_items
from ray_precheck.trace.flow import FlowRecord, is_collective
from ray_precheck.trace.items import INPUT, OUTPUT, PARAMETERS
from ray_precheck.trace.side import BACKWARD, FORWARD, RecordEntry
from ray_precheck.trace.terms import BY_A_HOOK

# Statistics do not show how far a weight that was moved by whole steps of rounding has moved what is computed
# with it: an estimate is one of guilt from the loss of half of the digits on, 2^-4 of bfloat16.
_BY_OTHER_WEIGHTS = 2.0**-4 / suspicious("float32")


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
        forward = self._forward(record.entry.call, seen.place) if is_gradient else None
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
            seen.difference(item.path) > STEPPED and self._state.weights.holds(seen.record, item)
            for item in seen.record.inputs
        )
        halves = 0.0
        for item in seen.record.inputs:
            if has_half_digits(item.dtype) and seen.difference(item.path) > 0.0:
                halves = max(halves, floor_of(item.dtype))
        givers = (self._state.flow.producer(entry.key, item.path) for item in seen.record.inputs)
        return self._raised(entry, halves, (giver.key for giver in givers if giver is not None))

    def _raised(self, entry: RecordEntry, halves: float, givers: Iterable[str]) -> float:
        """Return and keep the rounding on the way to a record, that of its own half types included."""
        floor = max(halves, _BY_OTHER_WEIGHTS if self._has_other_weights else 0.0)
        self._coarsest = max(self._coarsest, floor)
        if self._floors:  # Most runs of single precision have none.
            floor = max([floor, *(self._floors.get(key, 0.0) for key in givers)])
            if entry.direction == BACKWARD:
                floor = max(floor, self._floors.get(f"{entry.call}.{FORWARD}", 0.0))
        if floor:
            self._floors[entry.key] = floor
        return floor

    def pass_by(self, screen: Screen, place: int) -> None:
        """Take note of a record that is not visited."""
        if not (screen.has_half_types or self._has_other_weights):
            return
        entry, worst = screen.columns.form.entries[place], screen.worst[place]
        floor = self._raised(entry, screen.half_inputs[place], screen.giver_keys[place])
        if screen.has_half_outputs[place] and math.isfinite(worst):
            self._floors[entry.key] = max(floor, worst)

    def _forward(self, call: str, place: int) -> Differences | None:
        """Return the forward record of a call that was passed, visited or not."""
        found, screen = self._forwards.get(call), self._state.screen
        if found is None and screen is not None and (record := screen.forward(call, place)):
            seen = with_partner(self._state, SeenRecord(record, place))
            found = self._forwards[call] = Differences(record, seen.values)
        return found

    def carried_to(self, record: FlowRecord) -> dict[str, float]:
        """Return the largest difference on the way to each input whose norm is that of a mask."""
        found = {}
        for item in record.inputs:
            if not is_masked(item):
                continue
            giver = self._state.flow.producer(record.entry.key, item.path)
            if giver is not None:
                # What gave a mask is always visited (`screening`).
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


def with_partner(state: WalkState, seen: SeenRecord) -> SeenRecord:
    """Return a record with its partner, and how their values differ; the same record where it has none."""
    golden, key = state.golden, seen.record.entry.key
    if golden is None:
        return seen
    seen.golden = golden.records.get(golden.partners.get(key, ""))
    if seen.golden is None:
        return seen
    same = golden.same_framework
    seen.pairs = pair_items(seen.record.items, seen.golden.items, same_framework=same)
    for target, other in seen.pairs:
        if target is not None and other is not None and target.is_tensor:
            seen.values[target.path] = state.evidence.value(key, target, other)
    return seen


# A random mask of another seed changes an output by at least this share of its norm: one element in 400.
_OTHER_MASK = 0.05
# What is downstream of a root differs by up to so many times what estimates of amplification explain.
_UNKNOWN_AMPLIFICATION = 30.0


@dataclass(slots=True)
class RootWalk:
    """The state of a walk: which records are affected by a root, and what was found."""

    state: WalkState
    found: Located = field(default_factory=Located)
    _affected: set[str] = field(default_factory=set)
    _affected_calls: set[str] = field(default_factory=set)
    _rooted: bool = False
    _strength: dict[str, float] = field(default_factory=dict)
    _strongest: float = 0.0
    _unset: UnsetMemory = field(init=False)
    _way: WayOfRounding = field(init=False)

    def __post_init__(self) -> None:
        self._unset = UnsetMemory(self.state)
        self._way = WayOfRounding(self.state)

    def run(self, records: Sequence[FlowRecord]) -> Located:
        """Walk through all records, in the order of the run, and return what was found."""
        self.state.weights.learn(records)
        self.state.records = {record.entry.key: record for record in records}
        self.state.places = {record.entry.key: place for place, record in enumerate(records)}
        self._unset.look_ahead(records)
        for place, record in enumerate(records):
            self._visit(self._seen(record, place))
        return self._end()

    def run_screened(self, screen: Screen, most: int) -> Located:
        """Walk through the records of a run, visiting those that are not cleared, and return what was found.

        Of the records that pass an error on `most` at least have what the walk finds of them; the others,
        which are not visited, are counted.
        """
        self.state.screen, self.state.records, self.state.places = (
            screen,
            screen.records,
            screen.places,
        )
        self._unset.look_ahead(screen.writers)
        for place, is_cleared in enumerate(screen.is_cleared):
            if is_cleared and place in screen.moved and len(self.state.late) < MOST_LATE:
                is_cleared = False
            if not (is_cleared and self._passes_by(screen, place, most)):
                entry = screen.columns.form.entries[place]
                self._visit(self._seen(screen.records[entry.key], place))
        return self._end()

    def _end(self) -> Located:
        alone = in_one_run_alone(self.state, self.found.roots)
        self.found.silent = [*alone, *self.state.late]
        reached = reached_from(self.found.edges)
        self.found.roots = [replace(root, reached=reached(root.name)) for root in self.found.roots]
        return self.found

    def _seen(self, record: FlowRecord, place: int) -> SeenRecord:
        key = record.entry.key
        own = self.state.evidence.own(key)
        seen = SeenRecord(record, place, own=own, carried=self._way.carried_to(record))
        self.found.records += 1
        self.state.around.reach(place)
        if with_partner(self.state, seen).golden is not None:
            self.found.compared += 1
            self._unset.leave_out(seen)
            self._way.estimate(seen)
        if seen.own is not None and seen.own.verdict != "SKIP":
            self.found.judged += 1
        return seen

    def _passes_by(self, screen: Screen, place: int, most: int) -> bool:
        """Pass a record at which nothing begins; returns False, and does nothing, where it has to be visited
        for a row of its own."""
        entry = screen.columns.form.entries[place]
        givers = screen.giver_keys[place] if self._rooted else []
        upstream: list[str] = []
        if givers:
            upstream = [key for key in givers if key in self._affected]
            if len(upstream) > 1:
                upstream = [*dict.fromkeys(upstream)]
        if self._rooted and not upstream and entry.direction == BACKWARD:
            upstream = self._upstream(SeenRecord(screen.records[entry.key], place))
        if upstream and screen.worst[place] != 0.0:
            if len(self.found.passed) < most:
                return False
            self.found.left_out += 1
        self.found.records += 1
        self.found.compared += 1
        self.found.judged += screen.is_judged[place]
        self._way.pass_by(screen, place)
        if upstream or givers:
            self._spread(entry, upstream, self._strength_behind(entry, givers))
        return True

    def _spread(
        self, entry: RecordEntry, upstream: Sequence[str], strength: float, *, begins: bool = False
    ) -> None:
        """Take note of how strong what reaches a record is, and of the links that lead to it; `begins`: an
        error begins or arrives there."""
        if strength:
            self._strength[entry.key] = strength
            self._strongest = max(self._strongest, strength)
        if begins or upstream:
            self._affected.add(entry.key)
            self._affected_calls.add(entry.call)
            self.found.edges += [(key, entry.key) for key in upstream if key]

    def _visit(self, seen: SeenRecord) -> None:
        entry = seen.record.entry
        upstream = self._upstream(seen)
        roots = list(asked_otherwise(self.state, seen))
        roots = roots or list(self._roots(seen, is_affected=bool(upstream)))
        self.found.roots += roots
        # What a hook of the program gives is looked at all the same: nobody knows what it is to give.
        told = [root for root in roots if not root.cause.startswith(BY_A_HOOK)]
        shared = shared_record(self.state, seen, is_affected=bool(told or upstream))
        arrived = []
        if shared is not None:
            self.found.shared.append(shared)
            arrived = [shared.strength] if shared.arrives else []
        if roots or arrived:
            self._rooted = True
        brought = [*(root.own or INFINITE for root in roots), *arrived]
        strength = max([self._strength_above(seen), *brought])
        self._spread(entry, upstream, strength, begins=bool(roots or arrived))
        self.found.edges += [(root.name, entry.key) for root in roots if root.key != entry.key]
        if not roots:
            self._pass_on(seen, bool(upstream))
        self._note_outputs(seen)

    def _upstream(self, seen: SeenRecord) -> list[str]:
        """Return the affected records that gave a value to this one; [""] where only its own forward pass is
        affected, or a value may be whose giver is not in the capture."""
        entry, found = seen.record.entry, []
        unknown = False
        for item in seen.record.inputs:
            giver = self.state.flow.producer(entry.key, item.path)
            if giver is None:
                unknown = unknown or (
                    item.is_tensor and not self.state.weights.holds(seen.record, item)
                )
            elif giver.key in self._affected and giver.key not in found:
                found.append(giver.key)
        if found or entry.direction != BACKWARD:
            return found
        if entry.call in self._affected_calls:
            return [f"{entry.call}.{FORWARD}"]
        return [""] if unknown and self._rooted else []

    def _roots(self, seen: SeenRecord, *, is_affected: bool) -> Iterator[Root]:
        own = seen.own
        is_convincing = (
            own is not None and own.is_guilty and self._is_convincing(seen, own, is_affected)
        )
        if own is not None and is_convincing and not own.is_estimate:
            yield self._own_root(seen, own)
            return
        if seen.golden is not None and not is_affected:
            given = given_roots(self.state, seen, self._way.least_in_gaps())
            found = [*given, *lacking_parameters(seen)]
            # Where a list of parameters lacks one, its other arguments are shifted.
            is_shifted = any(root.kind is RootKind.CONFIGURATION for root in found)
            if not (is_shifted or self._unset.gives_nothing(seen)):
                found += argument_roots(seen)
            found = [root for root in found if not self._may_be_downstream(root)]
            changed = [other_operator(self.state, seen), other_gradient(self.state, seen)]
            found += [root for root in changed[: 1 if found else 2] if root is not None]
            yield from _without_repeats(named_by_calls(self.state, seen, root) for root in found)
            if found:
                return
        if own is not None and is_convincing:
            root = self._own_root(seen, own)
            yield root if is_affected else named_by_calls(self.state, seen, root)
            return
        if seen.golden is None or is_affected:
            return
        entry = seen.record.entry
        if self.state.draws(entry.call) and self._draws_otherwise(seen, own):
            yield self._mask_root(seen)

    def _may_be_downstream(self, root: Root) -> bool:
        """Return whether a gap needs no other cause than the roots before it, to which no link is known."""
        if root.kind is not RootKind.GAP or root.own is None:
            return False
        return root.own <= _UNKNOWN_AMPLIFICATION * self._strongest

    def _draws_otherwise(self, seen: SeenRecord, own: OwnError | None) -> bool:
        """Return whether a record drew other random numbers: it got the same, and gave something else."""
        if seen.worst(INPUT, PARAMETERS) > _OTHER_MASK or not self._is_other_mask(seen):
            return False
        return self.state.evidence.sees_elements or (own is not None and own.is_guilty)

    def _is_convincing(self, seen: SeenRecord, own: OwnError, is_affected: bool) -> bool:
        """Return whether an own error is one: beside replays an estimate counts upstream alone, and a
        difference that another random mask would make is one of the mask."""
        if not own.is_estimate:
            return True
        if self.state.draws(seen.record.entry.call) and self._is_other_mask(seen):
            return False
        if not self.state.evidence.estimates:
            return not is_affected
        # Downstream of a root an estimate must tell of more than an amplification that is not known.
        return own.own > _UNKNOWN_AMPLIFICATION * self._strength_above(seen)

    def _strength_above(self, seen: SeenRecord) -> float:
        """Return the largest error, in its own unit, of the roots upstream of a record."""
        entry = seen.record.entry
        givers = (self.state.flow.producer(entry.key, item.path) for item in seen.record.inputs)
        return self._strength_behind(entry, (giver.key for giver in givers if giver is not None))

    def _strength_behind(self, entry: RecordEntry, givers: Iterable[str]) -> float:
        """Return the same by the records that gave something to it."""
        if entry.direction == BACKWARD and self._rooted:
            return self._strongest
        return max(map(self._strength.get, givers, repeat(0.0)), default=0.0)

    def _is_other_mask(self, seen: SeenRecord) -> bool:
        """Return whether an output differs as by another random mask; statistics cannot tell."""
        return seen.worst(OUTPUT) > (_OTHER_MASK if self.state.evidence.sees_elements else 0.0)

    def _own_root(self, seen: SeenRecord, own: OwnError) -> Root:
        kind = RootKind.ESTIMATE if own.is_estimate else RootKind.OPERATOR
        message = own.message
        if own.is_estimate and self.state.evidence.estimates:
            message += self._doubts(seen)
        if own.own == INFINITE and _gives_non_finite(seen.record):
            kind = RootKind.NON_FINITE
        if own.golden_verdict == "error":
            message += (
                f"; the golden run's call errs, too ({_times(own.golden)}): both may have the fault"
            )
        return seen.root(
            kind,
            own.output,
            own.own,
            own.inherited,
            own.index,
            own.cause,
            message,
        )

    def _doubts(self, seen: SeenRecord) -> str:
        """Return what an estimate may be wrong by, as the end of a sentence."""
        said = ""
        if not self.state.evidence.sees_elements and not seen.worst(INPUT, PARAMETERS) > 0.0:
            said = (
                "; or it got the same values in another order (a shift, a permutation), which statistics do"
                " not tell: capture with --sketch"
            )
        if self._strength_above(seen):
            keys = [root.key for root in self.found.roots] or [self.found.shared[0].key]
            said += f"; doubtful: it stands behind {keys[0]}"
        return said

    def _mask_root(self, seen: SeenRecord) -> Root:
        entry = seen.record.entry
        said = (
            f"the runs drew different random numbers: {entry.key} got the same and gave what differs"
            f" by {seen.worst(OUTPUT):.3g} of its norm; seed both runs alike"
        )
        if not self.state.evidence.sees_elements:
            said += (
                "; or it got the same values in another order, which statistics do not tell: capture with"
                " --sketch"
            )
        return seen.root(RootKind.MASK, message=said)

    def _pass_on(self, seen: SeenRecord, is_affected: bool) -> None:
        entry, own = seen.record.entry, seen.own
        at = entry.key, entry.direction, seen.place
        if own is not None and own.verdict == "SKIP":
            self.found.passed.append(Passed(UNCHECKED, *at, message=own.message))
        elif is_affected and seen.worst(OUTPUT) != 0.0:
            errors = (own.own, own.inherited) if own is not None else ()
            self.found.passed.append(Passed(INHERITED, *at, *errors))

    def _note_outputs(self, seen: SeenRecord) -> None:
        key = seen.record.entry.key
        self._way.note(seen)
        for item in seen.record.outputs:
            if not item.is_tensor:
                continue
            difference = seen.difference(item.path)
            self.state.outputs[key, item.path] = 0.0 if math.isnan(difference) else difference
            is_dangling = not self.state.flow.is_used(key, item.path)
            self.state.around.note(key, item, difference, is_dangling=is_dangling)


def _without_repeats(roots: Iterable[Root]) -> Iterator[Root]:
    """Yield roots; of those that name one call for several values the first."""
    seen = set()
    for root in roots:
        told = root.kind, root.name, root.item
        if told not in seen:
            seen.add(told)
            yield root


def _times(own: float | None) -> str:
    return "" if own is None else f"{own:.3g} times what rounding explains"


def _gives_non_finite(record: FlowRecord) -> bool:
    """Return whether a record gave NaN or infinities for finite values that it got."""
    gave = any(item.is_finite is False for item in record.outputs)
    return gave and not any(item.is_finite is False for item in record.inputs)
