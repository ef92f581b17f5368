"""The nouns of the walk: a golden run, a record with its partner, and what the walk knows of the run so far:
which values are weights, and what lies around a value that no captured record gave.

Used by all of this room.

Also here: where a difference between two runs, or an error of one, begins.

What is known of a record and of its values, whatever it was measured with. Files of tensors give measured
differences, contents and own errors by replay (`commands.locate.replay`); statistics and sketches give
estimates (`estimate`).
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple, Protocol

from ray_precheck.commands.locate.options import SearchOptions
from ray_precheck.commands.locate.walk.naming import Exchanges
from ray_precheck.numerics.arrays import epsilon_of
from ray_precheck.numerics.statistics import MAX
from ray_precheck.trace.difference.measuring import Pair
from ray_precheck.trace.flow import Flow, FlowRecord, Meeting, Producer
from ray_precheck.trace.items import (
    INPUT,
    PARAMETERS,
    Item,
    parameter_names,
    parameter_place,
)

INFINITE = float("inf")
_GOLDEN = "golden "


class RootKind(Enum):
    """What a root is; the value is the cell of the column Verdict."""

    NON_FINITE = "non-finite"
    INPUT = "other input"
    WEIGHT = "other weight"
    MASK = "other random mask"
    CONFIGURATION = "other configuration"
    CALL = "other call"
    OPERATOR = "own error"
    ESTIMATE = "own error (estimate)"
    COLLECTIVE = "wrong collective"
    GAP = "not captured"

    @property
    def differs_from_start(self) -> bool:
        """Whether the runs were not given the same; no operator is to blame then."""
        return self in (RootKind.INPUT, RootKind.WEIGHT, RootKind.MASK, RootKind.CONFIGURATION)


# The Verdict of records that are no root.
INHERITED, UNCHECKED = "inherited", "not checked"


@dataclass(frozen=True, slots=True)
class Root:
    """A record at which something begins, or the reader of what a record gave that is not in the capture.

    `own` and `inherited` are in units of what rounding explains; None where they say nothing. `item` is the
    path of the value that shows it, `index` the place in it, `place` the record's place in the run. `before`
    is, of a gap, the record on its other side, "" if none is known. `reached` counts the records further
    down that the error reached. `is_golden`: `key` is of the golden run, which alone has that call.
    """

    kind: RootKind
    key: str
    direction: str
    place: int
    item: str = ""
    own: float | None = None
    inherited: float | None = None
    index: str = ""
    cause: str = ""
    message: str = ""
    before: str = ""
    reached: int = 0
    is_golden: bool = False

    @property
    def name(self) -> str:
        """The key as the reports look it up; that of a call of the golden run is none of the target."""
        return f"{_GOLDEN}{self.key}" if self.is_golden else self.key


@dataclass(frozen=True, slots=True)
class Passed:
    """A record that is no root: it passes an error on, or could not be judged (`verdict`)."""

    verdict: str
    key: str
    direction: str
    place: int
    own: float | None = None
    inherited: float | None = None
    message: str = ""


class SharedRecord(NamedTuple):
    """A record of a collective that got or gave what differs.

    `got` and `gave` are relative differences from the golden run, `got_norm` and `gave_norm` the norms of
    these values, 0 where they are not known; `floor` is the difference that rounding makes. It `arrives`
    where the rank's own values do not explain what it gave; else the rank brought what differs. `item`
    is the path of the value that it gave.
    """

    key: str
    direction: str
    place: int
    meeting: Meeting
    arrives: bool
    got: float
    got_norm: float
    gave: float
    gave_norm: float
    floor: float
    item: str = ""

    @property
    def got_size(self) -> float:
        """The absolute difference of what it got, as a norm."""
        size = self.got * self.got_norm
        return size if not math.isnan(size) else 0.0

    @property
    def strength(self) -> float:
        """How many times what it gave differs by more than its own rank explains."""
        return self.gave / max(self.got, self.floor) if self.floor else math.inf


@dataclass(slots=True)
class Located:
    """What was found in one dump, in the order of the run. `judged` counts the records whose own error is
    known, `compared` those with a partner; `edges` are the links between affected records, by their keys.
    `shared` are the records of collectives that differ, `left_out` counts the records that only pass an
    error on and are not in `passed`, `shared_left_out` those of collectives. `silent` are collectives and
    updates that one run alone has, and behind which nothing in this dump differs: what they did may show on
    other ranks or in later steps; and weights of a later step, which differ since an earlier one.
    """

    roots: list[Root] = field(default_factory=list)
    silent: list[Root] = field(default_factory=list)
    passed: list[Passed] = field(default_factory=list)
    records: int = 0
    judged: int = 0
    compared: int = 0
    edges: list[tuple[str, str]] = field(default_factory=list)
    shared: list[SharedRecord] = field(default_factory=list)
    left_out: int = 0
    shared_left_out: int = 0


class ValueEvidence(NamedTuple):
    """How a value of the target differs from that of the golden run.

    `difference` is the relative L2 distance, or the largest relative difference of the statistics; infinite
    where NaN, infinities or shapes differ, NaN where it is not known. `order` says that both hold the same
    values in another order, "" that they do not, or that it is not known. `slack` is how much of the
    difference one element that was rounded to its neighbour explains, where Max and Min tell of it.
    """

    difference: float = math.nan
    order: str = ""
    slack: float = 0.0


@dataclass(frozen=True, slots=True)
class OwnError:
    """What a record errs on the inputs that it got, and what its inputs bring with them.

    Both are in units of what rounding explains: the error of the worst honest implementation of this call
    that `auto` knows. `verdict` is a cell of the precheck: pass, error or SKIP. `own` is |run(x) - f64(x)|,
    `inherited` |f64(x) - f64(x_golden)|, None where there is no golden call, and `golden` the own error of
    the golden run's call. `index` is the place of the largest error in `output`. `is_estimate`:
    nothing was replayed, the difference from the golden run was weighed (`estimate`).
    """

    verdict: str
    own: float = math.nan
    inherited: float | None = None
    golden: float | None = None
    golden_verdict: str = ""
    output: str = ""
    index: str = ""
    cause: str = ""
    message: str = ""
    is_estimate: bool = False

    @property
    def is_guilty(self) -> bool:
        """Whether rounding does not explain the error."""
        return self.verdict == "error"


class Evidence(Protocol):
    """Where the facts about records come from; keys are those of the target's records."""

    @property
    def estimates(self) -> bool:
        """Whether own errors are estimates, because no inputs were captured."""

    @property
    def sees_elements(self) -> bool:
        """Whether differences are those of elements; else those of statistics stand for them."""

    def value(self, key: str, target: Item, golden: Item) -> ValueEvidence:
        """Return how a value of a record differs from its partner."""

    def own(self, key: str) -> OwnError | None:
        """Return the own error of a record; None where it was not replayed."""


OPTIMIZER = "Optimizer."
_PARAMS = ".params."
# The positional arguments that are weights and running statistics, in torch's signatures, which those of
# mindspore.mint follow, by the name of the operator.
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "linear": ("1", "2"),
    "embedding": ("1",),
    "embedding_bag": ("1",),
    "conv1d": ("1", "2"),
    "conv2d": ("1", "2"),
    "conv3d": ("1", "2"),
    "conv_transpose1d": ("1", "2"),
    "conv_transpose2d": ("1", "2"),
    "conv_transpose3d": ("1", "2"),
    "bilinear": ("2", "3"),
    "layer_norm": ("2", "3"),
    "group_norm": ("2", "3"),
    "rms_norm": ("2",),
    "batch_norm": ("1", "2", "3", "4"),
    "instance_norm": ("1", "2", "3", "4"),
    "prelu": ("1",),
}
_KEYWORDS = frozenset(("weight", "bias", "running_mean", "running_var", "gamma", "beta"))
# The ranks of a run make the same calls.
_KNOWN_CALLS = 1 << 16


@lru_cache(_KNOWN_CALLS)
def weights_among(call: str) -> frozenset[str]:
    """Return the arguments of a call that are weights, by what follows `input.` in their paths."""
    name = call.rpartition(".")[0].rpartition(".")[2]
    return _KEYWORDS.union(_ARGUMENTS.get(name, ()))


class Weights:
    """The weights of a run."""

    def __init__(self) -> None:
        self._updated: dict[tuple[Any, ...], str] = {}
        self._largest: set[object] = set()

    def learn(self, records: Iterable[FlowRecord]) -> None:
        """Take note of what optimizers update."""
        for record in records:
            if record.entry.key.startswith(OPTIMIZER):
                names = parameter_names(record.items)
                for item in record.inputs:
                    if _PARAMS in item.path and (place := parameter_place(item)) is not None:
                        name = names.get(place, "")
                        # Of constants, as all ones, there are several.
                        known = self._updated.setdefault(item.mark, name)
                        self._updated[item.mark] = name if known == name else ""
                        self._largest.add(item.ends[0])

    @property
    def are_updated(self) -> bool:
        """Whether an optimizer updates any."""
        return bool(self._updated)

    def is_updated(self, item: Item) -> bool:
        """Return whether a value is one that an optimizer updates."""
        return self._may_be_updated(item) and item.mark in self._updated

    def name_of(self, item: Item) -> str:
        """Return the name of a parameter by its values; "" where no update has it, or several are alike."""
        return self._updated.get(item.mark, "") if self._may_be_updated(item) else ""

    def _may_be_updated(self, item: Item) -> bool:
        largest = item.statistic(MAX)
        return type(largest) is not float or largest in self._largest

    def holds(self, record: FlowRecord, item: Item) -> bool:
        """Return whether a value that a record gets is a weight."""
        if item.part == PARAMETERS or item.type_name.endswith("Parameter"):
            return True
        if item.state_name or self.is_updated(item):
            return True
        if item.part != INPUT:
            return False
        return item.path.removeprefix(f"{INPUT}.") in weights_among(record.entry.call)


# Operators that were not captured read what was given shortly before.
RECENT = 64
# A value that nothing captured gets is looked for so many values further back.
_LOOSE = 4


@dataclass(frozen=True, slots=True)
class RecentValue:
    """A value that record `key` gave, of `count` elements; `is_dangling`: no captured record gets it."""

    key: str
    count: int
    difference: float
    is_dangling: bool


@dataclass(slots=True)
class Surroundings:
    """The values that were given last. `has_given_floats`: an operator has given a floating value; `coarsest`
    is the dtype of those with the fewest digits."""

    has_given_floats: bool = False
    coarsest: str = ""
    _recent: deque[RecentValue] = field(default_factory=lambda: deque(maxlen=RECENT))

    def reach(self, place: int) -> None:
        """Take note of the place in the run of the record that is visited next."""

    def learn_dtype(self, dtype: str) -> None:
        """Take note that a value of this dtype was given."""
        if "float" in dtype.lower() or "complex" in dtype.lower():
            self.has_given_floats = True
        if epsilon_of(dtype) > epsilon_of(self.coarsest):
            self.coarsest = dtype

    def note(self, key: str, item: Item, difference: float, *, is_dangling: bool) -> None:
        """Take note of a value that a record gave; `is_dangling`: no captured record gets it."""
        self.learn_dtype(item.dtype)
        if item.is_left_out:
            return  # Nothing is known of it: what differs behind it may have differed before it.
        count = math.prod(item.shape or ())
        self._recent.append(RecentValue(key, count, difference, is_dangling))

    def expected(self, item: Item) -> float:
        """Return the relative difference that a value may have: the largest of those values that nothing
        else gets, which an operator that was not captured got; else the median of all."""
        known = [each for each in self._recent if math.isfinite(each.difference)]
        loose = [each.difference for each in known if each.is_dangling]
        if loose:
            return max(loose)
        return median(each.difference for each in known) if known else 0.0

    def before(self, item: Item) -> str:
        """Return the record that probably lies before a value: of those that gave as many elements, else of
        all, the last one, or one shortly before it whose value nothing captured gets."""
        count = math.prod(item.shape or ())
        alike = [each for each in self._recent if each.count == count]
        found, best = "", math.inf
        for distance, each in enumerate(reversed(alike or self._recent)):
            rank = distance - _LOOSE * each.is_dangling
            if rank < best:
                found, best = each.key, rank
        return found


@dataclass(frozen=True, slots=True)
class GoldenRun:
    """The golden side of a walk: its records by key, its data flow, which is asked for where it is needed,
    and the partner of each record of the target that has one.

    `alone` are the calls without a partner of the target and of the golden run, `renamed` those of the target
    whose partner is another operator. `module_of` has the record of the module around one, "" for none.
    `tells_gradients`: both sides say of each tensor whether it requires a gradient, and have gradients.
    `exchanges` are its collectives.
    """

    records: Mapping[str, FlowRecord]
    flow: Callable[[], Flow]
    partners: Mapping[str, str]
    same_framework: bool = True
    alone: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    renamed: frozenset[str] = frozenset()
    module_of: Callable[[str], str] = lambda key: ""
    tells_gradients: bool = False
    exchanges: Exchanges = field(default_factory=Exchanges)

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

    def root(self, kind: RootKind, *of: Any, **more: Any) -> Root:
        """Return a root at this record; the others are the fields of `Root` from `item` on."""
        entry = self.record.entry
        return Root(kind, entry.key, entry.direction, self.place, *of, **more)

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


class Screened(Protocol):
    """What a screen (`screening`) knows of records that the walk has not visited."""

    def difference(self, key: str, path: str) -> float:
        """Return how a value that a record gave differs, 0 where that is not known."""

    def forward(self, call: str, place: int) -> FlowRecord | None:
        """Return the forward record of a call before a place in the run; None where there is none."""


@dataclass(slots=True)
class WalkState:
    """What the walk knows: the data flow, the evidence, the golden run, and what lies behind it.

    `draws` tells whether a call may draw random numbers, `meaningless` names the values of a record that
    are whatever stood in memory. `is_first_step`: weights are those that the run began with. `has_modules`:
    the capture is one of level mix; `module_of` has the record of the module around one. `meetings` has the
    collectives of the run by the keys of their records, `exchanges` what is known of them. `outputs` has the
    differences of values that were given, by key and path. `records` and `places` are those of the run, by
    key. `late` has weights that differ in a later step than the first. With a `screen` not all records are
    visited.
    """

    flow: Flow
    evidence: Evidence
    golden: GoldenRun | None = None
    is_first_step: bool = True
    draws: Callable[[str], bool] = lambda call: False
    meaningless: Callable[[FlowRecord], Sequence[str]] = lambda record: ()
    meetings: Mapping[str, Meeting] = field(default_factory=dict)
    exchanges: Exchanges = field(default_factory=Exchanges)
    weights: Weights = field(default_factory=Weights)
    around: Surroundings = field(default_factory=Surroundings)
    has_modules: bool = False
    module_of: Callable[[str], str] = lambda key: ""
    options: SearchOptions = field(default_factory=SearchOptions)
    outputs: dict[tuple[str, str], float] = field(default_factory=dict)
    records: Mapping[str, FlowRecord] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)
    late: list[Root] = field(default_factory=list)
    screen: Screened | None = None

    def giver(self, seen: SeenRecord, path: str) -> Producer | None:
        """Return who gave a value to a record; None where no record did."""
        return self.flow.producer(seen.record.entry.key, path)

    def given(self, giver: Producer) -> float:
        """Return how a value that a record gave differs, 0 where that is not known."""
        if self.screen is None:
            return self.outputs.get((giver.key, giver.path), 0.0)
        return self.screen.difference(giver.key, giver.path)
