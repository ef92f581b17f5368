"""What one run of a step came to, as digests of bytes.

Comes in: digests, from the process that ran the step. Goes out: traces, also as JSON, and where two of them
differ. Made by the framework's tracing, read by `verdict`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, NamedTuple

NOTHING = ""  # the digest of a gradient that is not there


class TracedRun(Enum):
    """How a step is run.

    PLAIN has no hook at operators, CAPTURED is the capture that is verified. The two others tell which
    operator it was: WATCHED has the hooks, which take a digest of what each operator gets and gives, and
    no record; WATCHED_CAPTURE has both.
    """

    PLAIN = "plain"
    CAPTURED = "captured"
    WATCHED = "watched"
    WATCHED_CAPTURE = "watched capture"

    @property
    def is_watched(self) -> bool:
        """Whether operators are told apart."""
        return self in (TracedRun.WATCHED, TracedRun.WATCHED_CAPTURE)

    @property
    def has_records(self) -> bool:
        """Whether the capture looks at operators."""
        return self in (TracedRun.CAPTURED, TracedRun.WATCHED_CAPTURE)


class Moment(Enum):
    """What a digest at an operator is of: what it got; what it got and gave, when it had ended; the random
    states behind it."""

    GOT = "got"
    GAVE = "gave"
    RANDOM = "random"


class Sight(NamedTuple):
    """A digest at an operator, by the key of its record, in the order of the step."""

    key: str
    moment: str
    digest: str


@dataclass(slots=True)
class StepTrace:
    """What a run came to: digests by name.

    `losses` are what backward passes began with, `outputs` those of the model, `returned` what a step that is
    a function gave, `gradients` those with which
    the optimizer stepped, `weights` the parameters after the step, `random` the states of the generators
    then. `sights` are of watched runs, `records` of captured ones, with
    the number of tensors whose values were compared with the dump (`held`) and the places in which it holds
    others (`wrong`). `raised` says how a step
    ended that did not come to its end, whose digests are those until then.
    """

    losses: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    returned: dict[str, str] = field(default_factory=dict)
    gradients: dict[str, str] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    random: dict[str, str] = field(default_factory=dict)
    sights: list[Sight] = field(default_factory=list)
    records: int = 0
    held: int = 0
    wrong: list[str] = field(default_factory=list)
    raised: str = ""

    @property
    def values(self) -> dict[str, str]:
        """The digests of what the step computed, in the order in which it came."""
        computed = {**self.outputs, **self.losses, **self.returned}
        return {**computed, **self.gradients, **self.weights}

    @property
    def is_telling(self) -> bool:
        """Whether the step computed something besides its parameters."""
        return bool(self.outputs or self.losses or self.returned or any(self.gradients.values()))

    def to_json(self) -> dict[str, Any]:
        """Return the trace as values of JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "StepTrace":
        """Return the trace that `to_json` has written."""
        sights = [Sight(*each) for each in found["sights"]]
        return cls(**{**found, "sights": sights})


Traces = Mapping[str, StepTrace]  # by the name of the process, "" where there is one


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names whose digests differ, or that one of the two lacks."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def first_difference(one: StepTrace, other: StepTrace, *more: StepTrace) -> Sight | None:
    """Return the first sight of `one` that `other` has with another digest.

    `more` are runs like `one`: a sight in which these differ tells nothing. Operators that only one of the
    runs called are left out, because the numbers of later ones are shifted.
    """
    known = dict(_numbered(other))
    like = [dict(_numbered(each)) for each in more]
    for place, digest in _numbered(one):
        repeats = all(each.get(place) == digest for each in like)
        if repeats and known.get(place, digest) != digest:
            return Sight(place[0], place[1], digest)
    return None


def _numbered(trace: StepTrace) -> Iterator[tuple[tuple[str, str, int], str]]:
    """Yield the digests by key, moment and the count of those with the same ones."""
    counts: dict[tuple[str, str], int] = {}
    for key, moment, digest in trace.sights:
        count = counts[key, moment] = counts.get((key, moment), -1) + 1
        yield (key, moment, count), digest
