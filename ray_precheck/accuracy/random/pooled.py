"""The statistics of all random calls of one operator in a run.

Comes in: for each call the `Sums` of its draws and the pattern that they form, as text that stands in its
detail row. Goes out: the verdict on the operator, with a sentence. Made by the tests of
`accuracy.random`, read back and judged by `commands.precheck.distribution`.

A call is standardised by its own parameters, so that calls with different arguments add up: of each
statistic the sum of its deviations from the expectation, and the variance and third central moment of
that sum. Over many draws the sum is normal; Cornish and Fisher, Moments and cumulants in the
specification of distributions (1937), give its quantiles with the skewness s: z + s (z^2 - 1) / 6.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from statistics import NormalDist

import numpy as np

from ray_precheck.accuracy.random.bounds import FALSE_ALARM_RATE, largest_gap
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Verdict

# The chance that an operator with a correct generator is judged an error by all its calls, divided evenly
# among its statistics. Models have some three random operators: a false alarm in 30,000 dumps.
OPERATOR_FALSE_ALARM_RATE = 1e-5
# "Would be seen" means: in so many of 100 runs.
_SEEN = NormalDist().inv_cdf(0.95)
# With more skewness the sum has too few draws, or too rare hits, to be taken for normal.
_MOST_SKEWNESS = 0.2
# Two calls that agree in draws with this much information are no coincidence: of a million calls two
# do so with a chance of 3e-8.
PATTERN_BITS = 64.0
# Patterns are those of so many draws, so that calls of different shapes can be compared.
_PATTERN_LENGTHS = (1 << 10, 1 << 16)
# Variance and third central moment of w^2, where w is uniform over -1 to 1.
SQUARE_MOMENTS = 4 / 45, 16 / 945

_SUMS = "sums:"
_CAPTURED_FEW = "captured few"
_TEXT = re.compile(rf"(?:^|; ){_SUMS} ([^;]*)$")
_PLACE = "a mean that is {} of the range off"


@dataclass(frozen=True, slots=True)
class Sums:
    """One statistic of the draws of one call, or of several calls.

    `count` draws are expected to sum to `expected` and sum to `off` more than that; `off` has this
    `variance`, the third central moment `third`, and rounding may have moved it by `slack`.
    """

    name: str
    count: int
    expected: float
    off: float
    variance: float
    third: float
    slack: float = 0.0

    def __add__(self, other: "Sums") -> "Sums":
        pairs = zip(astuple(self)[1:], astuple(other)[1:], strict=True)
        return Sums(self.name, *(one + another for one, another in pairs))

    @property
    def is_finite(self) -> bool:
        """Whether all its numbers are, and it has drawn at all."""
        return self.variance > 0 and all(map(math.isfinite, astuple(self)[1:]))


@dataclass(frozen=True, slots=True)
class Gauge:
    """How a statistic is told: its name, what would be seen, and in which unit.

    `over`: it is told over the expected value, else by draw. An error of the statistic is `power` times
    that of what would be seen, which is told in percent of the expected value if `in_percent`.
    """

    statistic: str
    seen: str
    over: bool = False
    power: int = 1
    in_percent: bool = True


GAUGES: Mapping[str, Gauge] = {
    "dropped": Gauge("the share of dropped elements", "a probability that is {} off"),
    "ones": Gauge("the share of ones", "a probability that is {} off"),
    "mean": Gauge(
        "the mean, in standard deviations from the expected one,",
        "a mean that is {} standard deviations off",
        in_percent=False,
    ),
    "square": Gauge(
        "the variance over the expected one", "a standard deviation that is {} off", True, 2
    ),
    "place": Gauge("the mean, as a part of the range,", _PLACE, in_percent=False),
    "width": Gauge(
        "the mean square over that of a half range",
        "a range that is {} too wide or narrow",
        power=2,
    ),
    "ratio": Gauge("the mean over the expected one", "a mean that is {} off", over=True),
    "below": Gauge("the share of draws below the median", "a share that is {} off"),
    "lowest": Gauge("the share of the lowest number", "a share that is {} off"),
    "highest": Gauge("the share of the highest number", "a share that is {} off"),
    "within": Gauge("the share of draws within the scale", "a share that is {} off"),
    "rising": Gauge("the share of pairs of neighbours that ascend", "a share that is {} off"),
    "size": Gauge("the size over that without dropout", "a size that is {} off", over=True),
    "spread": Gauge("the spread over the expected one", "a spread that is {} off", over=True),
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a call drew. `pattern` is a digest of its first draws, "" where they hold too little
    information. The draws of a call that `is_captured` were seeded by the program, those of others by
    the run."""

    sums: tuple[Sums, ...]
    pattern: str = ""
    is_captured: bool = False

    def with_sums_of(self, other: "Drawn") -> "Drawn":
        """Return the call with the sums of its further draws."""
        return replace(self, sums=tuple(_added([*self.sums, *other.sums])))


def pattern_of(values: Array, most_common: float | None = None) -> str:
    """Return a digest of the first draws; "" where they hold less than 64 bits.

    `most_common` is the probability of the most common value; without it, a bound by the draws.
    """
    count = len(values)
    for length in (*_PATTERN_LENGTHS, count):
        if 1 < length <= count:
            first = np.ascontiguousarray(values[:length])
            q = most_common
            if q is None:
                seen = np.unique(first, return_counts=True)[1].max() / length
                q = float(seen) + 2 * largest_gap(length, FALSE_ALARM_RATE)
            if 0 < q < 1 and -length * math.log2(q) >= PATTERN_BITS:
                return digest_of_draws(first)
    return ""


def pattern_of_unequal(values: Array, chances: Array) -> str:
    """Return the pattern of draws that have distributions of their own: of those that have a chance of at
    most 1/2, or 19/20, to be drawn again. `chances` are bounds, `(N,)`."""
    found = (pattern_of(values[chances <= q], q) for q in (0.5, 0.95))
    return next(filter(None, found), "")


def digest_of_draws(values: Array) -> str:
    """Return a digest of contiguous values."""
    data = f"{len(values)} {values.dtype}".encode() + values.tobytes()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def drawn_text(drawn: Drawn) -> str:
    """Return what a call drew as the last part of a Message, "" where nothing is known. Captured draws
    so few that they may be those of another call unseen have no sums: they would count twice."""
    parts = [
        " ".join([each.name, str(each.count), *(f"{n:.9g}" for n in astuple(each)[2:])])
        for each in drawn.sums
        if each.is_finite
    ]
    if not parts:
        return ""
    if drawn.is_captured and not drawn.pattern:
        parts = [_CAPTURED_FEW]
    if drawn.pattern:
        parts.append(f"{'captured ' * drawn.is_captured}pattern {drawn.pattern}")
    return f"{_SUMS} {', '.join(parts)}"


def read_drawn(message: str) -> Drawn | None:
    """Return what `drawn_text` has put at the end of a Message; None where it has put nothing there."""
    found = _TEXT.search(message)
    if found is None:
        return None
    if found.group(1) == _CAPTURED_FEW:
        return Drawn((), is_captured=True)
    sums, pattern, is_captured = [], "", False
    for part in found.group(1).split(", "):
        name, *words = part.split(" ")
        if name in ("captured", "pattern"):
            is_captured, pattern = name == "captured", words[-1]
        elif name in GAUGES:
            sums.append(Sums(name, int(words[0]), *map(float, words[1:])))
    return Drawn(tuple(sums), pattern, is_captured)


def judge_pooled(calls: Sequence[tuple[str, Drawn]]) -> tuple[Verdict, str]:
    """Judge all calls of one operator, each with its name; returns the verdict and the Message.

    Draws that occur twice count once.
    """
    once = {drawn.pattern or call: drawn for call, drawn in reversed(calls)}
    sums = _added(each for drawn in reversed(once.values()) for each in drawn.sums)
    findings = [_judged(each, OPERATOR_FALSE_ALARM_RATE / len(sums)) for each in sums]
    findings += _repeated_patterns([(call, drawn) for call, drawn in calls if drawn.sums])
    few = sum(not drawn.sums for _, drawn in calls)
    if few:
        left_out = "captured draws so few may be the same ones again, and are left out"
        findings.append((True, f"{few} call{'s' * (few > 1)}: {left_out}"))
    wrong = [text for passed, text in findings if not passed]
    told = wrong or [text for _, text in findings]
    count = max((each.count for each in sums), default=0)
    drew = f"{count:,} elements drawn in {len(calls)} call{'s' * (len(calls) > 1)}"
    if wrong:
        chance = (
            f"an honest generator does so with a chance of at most {OPERATOR_FALSE_ALARM_RATE:g}"
        )
        return Verdict.ERROR, f"random: {drew}: {'; '.join([*told, chance])}"
    verdict = Verdict.PASS if sums else Verdict.SKIP
    return verdict, f"random: {drew}: {'; '.join(told)}"


def _added(sums: Iterable[Sums]) -> list[Sums]:
    """Return one `Sums` for each statistic, in the order of their first occurrence."""
    found: dict[str, Sums] = {}
    for each in sums:
        found[each.name] = found[each.name] + each if each.name in found else each
    return list(found.values())


def _judged(sums: Sums, chance: float) -> tuple[bool, str]:
    """Return whether a statistic is within its limits, and the sentence about it."""
    gauge = GAUGES[sums.name]
    deviation = math.sqrt(sums.variance)
    skewness = sums.third / deviation**3
    over = sums.expected if gauge.over else sums.count
    found = (sums.expected + sums.off) / over
    if abs(skewness) > _MOST_SKEWNESS:
        return True, f"too few elements to judge {gauge.statistic} ({found:.6g})"
    z = NormalDist().inv_cdf(1 - chance / 2)
    bend = skewness * (z**2 - 1) / 6
    low, high = (bend - z) * deviation - sums.slack, (bend + z) * deviation + sums.slack
    limits = f"{(sums.expected + low) / over:.6g} to {(sums.expected + high) / over:.6g}"
    text = f"{gauge.statistic} is {found:.6g}, limits {limits}"
    least = (max(high, -low) + _SEEN * deviation) / gauge.power
    percent = f"{100 * least / sums.expected:.2g} %" if gauge.in_percent else ""
    size = percent or f"{least / sums.count:.2g}"
    passed = low <= sums.off <= high
    return passed, f"{text} ({gauge.seen.format(size)} would be seen)" if passed else text


def _repeated_patterns(calls: Sequence[tuple[str, Drawn]]) -> list[tuple[bool, str]]:
    """Return the sentences about calls that drew the same.

    The draws of a run are seeded by the name of the call: two calls with the same draws are an error. A
    program may have set the seed again before it was captured, or computed a call twice: that is said,
    and no error.
    """
    found: dict[tuple[bool, str], list[str]] = {}
    for call, drawn in calls:
        if drawn.pattern:
            found.setdefault((drawn.is_captured, drawn.pattern), []).append(call)
    if sum(map(len, found.values())) < 2:
        few = "a call has too few draws to tell whether two drew the same"
        return [(True, few)] if len(calls) > 1 else []
    told = []
    for (is_captured, _), names in found.items():
        if len(names) < 2:
            continue
        others = f" and {len(names) - 2} more" if len(names) > 2 else ""
        text = f"the draws of {names[0]}, {names[1]}{others} are the same"
        if is_captured:
            text += (
                ": the program may have set the seed again or computed a call twice, or the generator"
                " repeats itself"
            )
        told.append((is_captured, text))
    return told or [(True, "no two calls drew the same")]
