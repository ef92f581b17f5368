"""Whether looking at a step changed it.

Comes in: a function that runs the step from the same state, in one of four ways, and returns the traces of
the run: digests of what each process computed. Goes out: a verdict with its sentence. Called for scripts and
for functions; it knows neither.

The step runs twice without capture, to see whether it repeats itself, and once with it. Only if these
differ it runs three times more, with digests at each operator, which name the first one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

NOTHING = ""  # the digest of a gradient that is not there
_SHOWN = 3


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


Runs: TypeAlias = Callable[[TracedRun], Traces]


class Looking(Enum):
    """What looking did to a step; UNKNOWN where nothing can be said."""

    CHANGED_NOTHING = 0
    CHANGED_SOMETHING = 1
    UNKNOWN = 2


@dataclass(frozen=True, slots=True)
class LookingVerdict:
    """What looking did, as one sentence; `operator` is the key of the first one at which it changed
    something, "" where none is known."""

    looking: Looking
    sentence: str
    operator: str = ""

    @property
    def changed_nothing(self) -> bool:
        """Whether loss, gradients and all others were bit-equal."""
        return self.looking is Looking.CHANGED_NOTHING

    def __str__(self) -> str:
        return self.sentence


def verify_runs(run: Runs) -> LookingVerdict:
    """Compare a step with and without capture, bit by bit.

    Raises:
        UsageError: `run` does, for a step that did not come to its end.
    """
    first, second = run(TracedRun.PLAIN), run(TracedRun.PLAIN)
    unrepeated = _differences(first, second)
    if unrepeated:
        return _not_repeatable(unrepeated, run(TracedRun.WATCHED), run(TracedRun.WATCHED))
    if not any(trace.is_telling for trace in first.values()):
        return _unknown(
            "the step had no loss, no gradient and no output of a model that could be compared"
        )
    captured = run(TracedRun.CAPTURED)
    if not any(trace.records or trace.raised for trace in captured.values()):
        return _unknown("the capture has no record of the step; give it other calls to record")
    changed = _differences(first, captured, _moved(first, second))
    wrong = [place for trace in captured.values() for place in trace.wrong]
    if not changed and wrong:
        sentence = f"the dump holds other values than the tensors held: {_listed(wrong)}"
        return LookingVerdict(Looking.CHANGED_SOMETHING, sentence)
    if not changed:
        return LookingVerdict(Looking.CHANGED_NOTHING, _equal(first, captured))
    return _changed(changed, first, run)


def _changed(changed: Sequence[str], plain: Traces, run: Runs) -> LookingVerdict:
    """Run the step again with digests at each operator, and name the first one that differs."""
    told = f"looking changed something: {_listed(changed)} differ{'s' * (len(changed) == 1)}"
    watched, again = run(TracedRun.WATCHED), run(TracedRun.WATCHED)
    unrepeated = _differences(watched, again)
    if unrepeated:
        return _not_repeatable(unrepeated, watched, again)
    moved = _moved(watched, again)
    if _differences(plain, watched, moved):
        return LookingVerdict(
            Looking.CHANGED_SOMETHING,
            f"{told}; the hooks do it by themselves, before a record of an operator is made",
        )
    captured = run(TracedRun.WATCHED_CAPTURE)
    if not _differences(watched, captured, moved):
        return _unknown(
            f"{_listed(changed)} differed in one run with capture and not in another; the step does not"
            " repeat itself reliably, so that nothing can be said"
        )
    for name, trace in watched.items():
        found = first_difference(trace, captured.get(name, StepTrace()), again[name])
        if found is not None:
            where = f"{name}: " if name else ""
            sentence = f"{told}; {where}the first operator is {_at(found)}"
            return LookingVerdict(Looking.CHANGED_SOMETHING, sentence, found.key)
    return LookingVerdict(
        Looking.CHANGED_SOMETHING,
        f"{told}; what each operator got and gave is the same, so that it was changed after them",
    )


def _not_repeatable(names: Sequence[str], one: Traces, other: Traces) -> LookingVerdict:
    found = next(
        (
            sight
            for name, trace in one.items()
            if (sight := first_difference(trace, other.get(name, StepTrace()))) is not None
        ),
        None,
    )
    where = (
        "no operator differed in two runs more"
        if found is None
        else f"the first operator is {_at(found)}"
    )
    differ = f"differ{'s' * (len(names) == 1)}"
    return LookingVerdict(
        Looking.UNKNOWN,
        f"nothing can be said: the step does not repeat itself, {_listed(names)} {differ} between"
        f" two runs without capture; {where}; fix the seeds and the order of the data, and use"
        " deterministic algorithms",
        "" if found is None else found.key,
    )


def _unknown(sentence: str) -> LookingVerdict:
    return LookingVerdict(Looking.UNKNOWN, f"nothing can be said: {sentence}")


def _differences(
    one: Traces, other: Traces, moved: Iterable[tuple[str, str]] | None = None
) -> list[str]:
    """Return what differs between two runs, with the process where there are several.

    Random states count if `moved` is given, but for those in it.
    """
    found = []
    for process in {**one, **other}:
        mine, yours = one.get(process), other.get(process)
        if mine is None or yours is None:
            found.append(f"{process} (in one run only)")
            continue
        if mine.raised != yours.raised:
            raised = yours.raised or mine.raised
            found.append(f"how the step ends ({raised}{f', in {process}' if process else ''})")
            continue
        names = differing(mine.values, yours.values)
        if moved is not None:
            left_out = {name for where, name in moved if where == process}
            states = differing(mine.random, yours.random)
            names += [name for name in states if name not in left_out]
        found += [f"{name} of {process}" if process else name for name in names]
    return found


def _moved(one: Traces, other: Traces) -> set[tuple[str, str]]:
    """Return the random states that differ between two runs that are alike: those of unseeded generators
    that the step does not use."""
    return {
        (process, name)
        for process, trace in one.items()
        for name in differing(trace.random, other[process].random)
    }


def _at(sight: Sight) -> str:
    """Return the operator, and at which moment it differed."""
    if sight.moment == Moment.RANDOM.value:
        return f"{sight.key}, behind which the random states differ"
    if sight.moment == Moment.GOT.value:
        return (
            f"{sight.key}, which got something else, although what was called before it got and gave"
            " the same"
        )
    return f"{sight.key}, which gave something else or changed what it got"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    rest = len(names) - _SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown


def _equal(plain: Traces, captured: Traces) -> str:
    records = sum(trace.records for trace in captured.values())
    parts = []
    for kind, one, several in (
        ("losses", "loss", "losses"),
        ("outputs", "output of the model", "outputs of the model"),
        ("returned", "returned value", "returned values"),
        ("gradients", "gradient", "gradients"),
        ("weights", "parameter after the step", "parameters after the step"),
    ):
        count = sum(_there(getattr(trace, kind)) for trace in plain.values())
        if count:
            parts.append(f"{count:,} {one if count == 1 else several}")
    ranks = f" in {len(plain)} processes" if len(plain) > 1 else ""
    held = sum(trace.held for trace in captured.values())
    told = f"; the dump holds what {held:,} tensors held" if held else ""
    return (
        f"looking changed nothing: with {records:,} records and without, {', '.join(parts)} and the"
        f" random states are bit-equal{ranks}{told}"
    )


def _there(digests: Mapping[str, str]) -> int:
    return sum(digest != NOTHING for digest in digests.values())
