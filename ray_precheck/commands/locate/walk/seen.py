"""The nouns of the walk: a golden run, a record with its partner, and what the walk knows of the run so far.

Used by `walk` and `given`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ray_precheck.commands.locate.options import SearchOptions
from ray_precheck.commands.locate.walk.evidence import Evidence, OwnError, ValueEvidence
from ray_precheck.commands.locate.walk.gaps import Surroundings
from ray_precheck.commands.locate.walk.weights import Weights
from ray_precheck.trace.difference.pairing import Pair
from ray_precheck.trace.flow.flow import Flow, FlowRecord, Producer
from ray_precheck.trace.flow.meetings import Meeting


@dataclass(frozen=True, slots=True)
class GoldenRun:
    """The golden side of a walk: its records by key, its data flow, which is asked for where it is needed,
    and the partner of each record of the target that has one.

    `alone` are the calls without a partner of the target and of the golden run, `renamed` those of the target
    whose partner is another operator. `module_of` has the record of the module around one, "" for none.
    `tells_gradients`: both sides say of each tensor whether it requires a gradient, and have gradients.
    """

    records: Mapping[str, FlowRecord]
    flow: Callable[[], Flow]
    partners: Mapping[str, str]
    same_framework: bool = True
    alone: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    renamed: frozenset[str] = frozenset()
    module_of: Callable[[str], str] = lambda key: ""
    tells_gradients: bool = False

    def target_of(self, key: str) -> str:
        """Return the target's record of a golden one, "" where it has none."""
        return next((mine for mine, theirs in self.partners.items() if theirs == key), "")


@dataclass(slots=True)
class SeenRecord:
    """One record on the walk: its pairs of values, and how its inputs and outputs differ.

    `carried` has the largest difference on the way to each input whose norm is that of a mask.
    `is_partly_unset`: it got what stood in memory, which nothing had written.
    """

    record: FlowRecord
    place: int
    pairs: Sequence[Pair] = ()
    golden: FlowRecord | None = None
    values: dict[str, ValueEvidence] = field(default_factory=dict)
    own: OwnError | None = None
    carried: Mapping[str, float] = field(default_factory=dict)
    is_partly_unset: bool = False

    def difference(self, path: str) -> float:
        """Return how a value differs, NaN where it is not known."""
        found = self.values.get(path)
        return math.nan if found is None else found.difference

    def worst(self, *parts: str) -> float:
        """Return the largest known difference of its values in some parts, NaN where none is known."""
        worst = math.nan
        for item in self.record.items:
            if item.part in parts:
                found = self.values.get(item.path)
                if (
                    found is not None
                    and not found.difference <= worst
                    and found.difference == found.difference
                ):
                    worst = found.difference
        return worst


@dataclass(slots=True)
class WalkState:
    """What the walk knows: the data flow, the evidence, the golden run, and what lies behind it.

    `draws` tells whether a call may draw random numbers, `meaningless` names the values of a record that
    are whatever stood in memory. `is_first_step`: weights are those that the run began with. `has_modules`:
    the capture is one of level mix; `module_of` has the record of the module around one. `meetings` has the
    collectives of the run by the keys of their records. `outputs` has the differences of values that were
    given, by key and path. `records` and `places` are those of the run, by key.
    """

    flow: Flow
    evidence: Evidence
    golden: GoldenRun | None = None
    is_first_step: bool = True
    draws: Callable[[str], bool] = lambda call: False
    meaningless: Callable[[FlowRecord], Sequence[str]] = lambda record: ()
    meetings: Mapping[str, Meeting] = field(default_factory=dict)
    weights: Weights = field(default_factory=Weights)
    around: Surroundings = field(default_factory=Surroundings)
    has_modules: bool = False
    module_of: Callable[[str], str] = lambda key: ""
    options: SearchOptions = field(default_factory=SearchOptions)
    outputs: dict[tuple[str, str], float] = field(default_factory=dict)
    records: dict[str, FlowRecord] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)

    def giver(self, seen: SeenRecord, path: str) -> Producer | None:
        """Return who gave a value to a record; None where no record did."""
        return self.flow.producer(seen.record.entry.key, path)
