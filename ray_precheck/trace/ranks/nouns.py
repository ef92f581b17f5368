"""The nouns of a check of ranks against each other.

Comes in, goes out: nothing but data. `summary` makes a `RankTrace` of a dump, `layout` groups of ranks,
`checks` the findings. Used by the command `ranks` and by those that run it as a part.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_precheck.trace.flow import Meeting


class RankFault(Enum):
    """What is wrong between ranks; the value stands in the column Kind."""

    PARAMETER = "parameter"  # a replicated parameter differs at the start of a step
    BUFFER = "buffer"  # so does a buffer
    SAMPLE = "sample"  # ranks have the same samples, or others, where they must not
    CONFIGURATION = "configuration"  # numbers among the arguments, or options, differ
    MASK = "mask"  # random masks agree where they must not, or differ where they must agree
    ACTIVATION = "activation"  # a value that is the same on all ranks is not
    COLLECTIVE = "collective"  # an exchange gave what its inputs do not say, or is none
    GRADIENT = "gradient"  # the gradient of a replicated parameter differs at the update
    UPDATE = "update"  # equal parameters with equal gradients became different ones
    CALLS = "calls"  # a rank makes other calls
    UNPAIRED = "unpaired"  # a send without its receive


class RestsOn(Enum):
    """What an equality rests on, the surest first."""

    TENSORS = "tensors"
    DIGESTS = "digests"
    SKETCHES = "sketches"
    STATISTICS = "four statistics"


class RankFinding(NamedTuple):
    """One thing that is wrong between ranks: a row of `ranks_{timestamp}.csv`, place 1 first.

    `name` is a parameter or the key of a record, `ranks` those that are suspected (or all that differ, where
    none is more likely than another) as ranges, `group` the group in which they are compared: `dp 0-1`.
    `verdict` is error or warning. `dump` is the label of the dump in which the record `key` stands, which is
    `name` or the record that uses the parameter `name`; `place` is where that is in the run.
    """

    step: int
    verdict: str
    kind: RankFault
    name: str
    ranks: str
    group: str
    expected: str
    found: str
    rests_on: str
    message: str
    module: str = ""
    source: str = ""
    dump: str = ""
    key: str = ""
    place: int = 0


class RankGroup(NamedTuple):
    """Ranks that do something together: `kind` is dp, tp, pp, cp, ep, unknown, or the name of an axis that a
    user gave; `basis` says in words from what that is known. `is_loose`: only that they began alike says
    so, and they exchange too little to train together."""

    kind: str
    ranks: tuple[int, ...]
    basis: str
    is_loose: bool = False


@dataclass(frozen=True, slots=True)
class RankLayout:
    """How the ranks of a run are laid out: the groups, and the axes where the user gave them."""

    groups: tuple[RankGroup, ...] = ()
    axes: tuple[tuple[str, int], ...] = ()


class TensorFact(NamedTuple):
    """What a record says of a tensor.

    `statistics` are Max, Min, Mean and Norm, NaN where they are missing. `checksum` is of everything that
    the dump says of its values, a digest or sketch included, `content` of the elements in its file, -1 where
    that was not read. `sketch` are its 64 buckets, of the dump or of the file, None without.
    `placements` are those of a distributed tensor on its `mesh`: Shard, Replicate, Partial. `zeros` counts
    elements that are 0, -1 where that is not known.
    """

    dtype: str
    shape: tuple[int, ...]
    statistics: tuple[float, float, float, float]
    checksum: int
    sketch: NDArray[np.float32] | None = None
    placements: tuple[str, ...] = ()
    mesh: str = ""
    zeros: int = -1
    content: int = -1

    @property
    def is_constant(self) -> bool:
        """Whether all elements are the same, or nothing is known of them: an equality says nothing."""
        highest, lowest, *_ = self.statistics
        return not highest > lowest and not (self.size == 1 and highest not in (0.0, 1.0))

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def is_vague(self) -> bool:
        """Whether a range alone is known of it: of whole numbers there is no Mean and no Norm."""
        return self.sketch is None and math.isnan(self.statistics[3])

    def is_same(self, other: "TensorFact") -> bool:
        """Whether everything that two dumps say of the values is the same, and their files, where they were
        read."""
        is_read = self.content >= 0 and other.content >= 0
        return self.checksum == other.checksum and (not is_read or self.content == other.content)


class ExchangeFact(NamedTuple):
    """A record of a collective: `raw` is its JSON, in which the number of a `sketch` is a row of the
    `sketches` of its summary; `place` is where it stands among the records."""

    key: str
    place: int
    meeting: Meeting
    raw: bytes


class UpdateFact(NamedTuple):
    """What an optimizer did to a parameter: before, its gradient (None: it had none), after, and its state
    before, as checksums by name; `options` is the index of its group's options."""

    before: TensorFact | None
    gradient: TensorFact | None
    after: TensorFact | None
    state: tuple[tuple[str, int], ...]
    options: int


@dataclass(slots=True)
class RankTrace:
    """One dump, as the ranks are compared: `step` and `rank` are its numbers, `name` its label.

    `keys` are its records in the order of the run, `got` and `gave` `(N,)` checksums of the values that each
    of them got and gave. `parameters` and `buffers` are values at their first use, `gradients` those that
    the backward pass left (`reduced` names those that are known to be after the reduction), `updates` what
    the optimizers did, by names; `inputs` the inputs of the model; `masks` the random states that calls began
    with, by key. `uses` are the records that parameters, buffers and inputs are used in first, `losses` the
    gradients from which loss functions start, by key; `call_meshes` and `own_meshes` are the meshes of
    distributed tensors, of those that calls got and of parameters. `has_tensors`: it has their files.
    """

    step: int
    rank: int
    name: str
    keys: tuple[str, ...] = ()
    got: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    gave: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    settings: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    parameters: Mapping[str, TensorFact] = field(default_factory=dict)
    buffers: Mapping[str, TensorFact] = field(default_factory=dict)
    gradients: Mapping[str, TensorFact] = field(default_factory=dict)
    reduced: frozenset[str] = frozenset()
    updates: Mapping[str, UpdateFact] = field(default_factory=dict)
    options: tuple[Mapping[str, object], ...] = ()
    inputs: Mapping[str, TensorFact] = field(default_factory=dict)
    uses: Mapping[str, str] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    call_meshes: tuple[str, ...] = ()
    own_meshes: tuple[str, ...] = ()
    masks: Mapping[str, str] = field(default_factory=dict)
    exchanges: tuple[ExchangeFact, ...] = ()
    marks: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    sketches: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 64), np.float32))
    rests_on: RestsOn = RestsOn.STATISTICS
    has_tensors: bool = False
    note: str = ""

    @property
    def values_rest_on(self) -> RestsOn:
        """What equalities of values that have no name rest on: their files are not read."""
        return RestsOn.STATISTICS if self.rests_on is RestsOn.TENSORS else self.rests_on


@dataclass(frozen=True, slots=True)
class RanksOutcome:
    """What a check found: place 1 first. `not_checked` are sentences on what could not be checked, `checked`
    on what was, with that on which an equality rests."""

    findings: tuple[RankFinding, ...]
    layout: RankLayout
    checked: tuple[str, ...]
    not_checked: tuple[str, ...]
