"""The tests of a random output: facts that hold for every draw, and statistics.

Comes in: draws of one output, and the known parameters of their distribution. Goes out: `StatisticalTest`s,
each of which becomes an `Observation` once it is told its share of the false-alarm rate; and the detail row
of the output, without metrics, whose Message has each statistic with its value and its limits. The tests are
made by `accuracy.random.laws` and `dropout`; `check.random.judge` has an output judged by them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ray_precheck.accuracy.outputs import nothing_compared
from ray_precheck.accuracy.random.bounds import (
    FALSE_ALARM_RATE,
    Limits,
    largest_gap,
    mean_limit,
    share_limits,
)
from ray_precheck.accuracy.random.pooled import Drawn, Sums, pattern_of
from ray_precheck.descriptors.descriptor import framework_dtype
from ray_precheck.numerics.arrays import machine_epsilon, spacing, unit_roundoff
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.result import OutputCheck, Verdict
from ray_precheck.schema.values import HostTensor, TensorSpec

# Of a distribution: one number, or `(N,)` float64 where each draw has its own.
Parameter = float | Array
# Statistics see this many elements at most, spread evenly over the tensor; facts at all.
SAMPLE_ELEMENTS = 1 << 21
# Where repeated stretches are looked for: this many elements from the first one on.
_STRETCH_ELEMENTS = 1 << 18
RANDOM = "random:"


@dataclass(frozen=True, slots=True)
class Observation:
    """The finding of a test: a sentence with number and limits, and whether they hold.

    `telling` is False if there were too few elements for any outcome to be an error.
    """

    text: str
    passed: bool = True
    telling: bool = True


# A test takes its share of the false-alarm rate; a fact does not need it.
StatisticalTest = Callable[[float], Observation]


@dataclass(frozen=True, slots=True)
class SummedTest:
    """A test, and what the statistics over all calls of the operator need of its draws."""

    test: StatisticalTest
    sums: tuple[Sums, ...] = ()
    pattern: str = ""

    def __call__(self, chance: float) -> Observation:
        """Test the draws."""
        return self.test(chance)


@dataclass(frozen=True, slots=True)
class Draws:
    """Draws in float64, `(N,)`, with the largest rounding error of each (`step`, `(N,)`), the resolution
    of their generator as a probability (`grain`), and the largest number of their dtype."""

    values: Array
    step: Array
    grain: float
    largest: float

    def __len__(self) -> int:
        return len(self.values)


def sampled(count: int) -> slice:
    """Return which of so many elements statistics see: all, or each k-th one."""
    return slice(None, None, max(1, -(-count // SAMPLE_ELEMENTS)))


def draws_of(tensor: HostTensor) -> Draws:
    """Return the elements of a tensor that statistics see."""
    flat = tensor.data.reshape(-1)[sampled(tensor.data.size)].astype(np.float64)
    info = DTYPES[tensor.dtype]
    if info.kind != "float":
        return Draws(flat, np.zeros(len(flat)), machine_epsilon("float32"), math.inf)
    return Draws(flat, spacing(flat, tensor.dtype), grain_of(tensor.dtype), info.largest)


def grain_of(dtype: str) -> float:
    """Return how far apart the uniform numbers are of which a generator makes draws of a float dtype.

    In most generators they have the 24 bits of float32, or as many as the dtype has, where these are fewer.
    """
    return max(unit_roundoff(dtype), unit_roundoff("float32"))


def fact(what: str, wrong: Array, otherwise: str = "", noun: str = "elements") -> StatisticalTest:
    """Test for elements that no draw may have. `wrong` is True for each element that breaks the
    fact; `otherwise` is the sentence if none does."""
    count = int(np.count_nonzero(wrong))

    def test(_: float) -> Observation:
        if not count:
            return Observation(otherwise or f"none {what}")
        index = [int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape)]
        return Observation(f"{count} of {wrong.size} {noun} {what}, the first at {index}", False)

    return test


def within(
    what: str, value: float, limits: Limits, possible: Limits = (-math.inf, math.inf)
) -> Observation:
    """Judge a statistic by its limits; a statistic that cannot leave its limits tells nothing. NaN
    fails."""
    low, high = limits
    text = f"{what} is {value:.6g}, limits {low:.6g} to {high:.6g}"
    if low <= possible[0] and possible[1] <= high:
        return Observation(f"too few elements to judge {what} ({value:.6g})", telling=False)
    return Observation(text, low <= value <= high)


def share_test(
    what: str,
    hits: Array,
    expected: float,
    key: str = "",
    moments: tuple[float, float] | None = None,
) -> StatisticalTest:
    """Test a share of independent hits, `(N,)` bool or in [0, 1], by an exact binomial bound.

    With a `key` it is gathered over calls under this name; `moments` are the variance and the third
    central moment of a hit that is no bool.
    """
    count = hits.size

    def test(chance: float) -> Observation:
        found = float(np.mean(hits)) if count else expected
        return within(what, found, share_limits(expected, count, chance), (0.0, 1.0))

    if not key:
        return test
    spread = expected * (1 - expected)
    variance, third = moments or (spread, spread * (1 - 2 * expected))
    off = float(np.sum(hits)) - count * expected
    return SummedTest(
        test, (Sums(key, count, count * expected, off, count * variance, count * third),)
    )


def average(
    what: str,
    values: Array,
    expected: float,
    variance: float,
    slack: float,
    key: str,
    bias: float | None = None,
) -> StatisticalTest:
    """Test the mean of independent values, `(N,)` and not empty, distributed evenly around it, of
    which rounding may have moved the mean by `slack`.

    It is gathered over calls as `key`; `bias` is how far rounding moves a mean of many values, by default
    `slack`.
    """

    def test(chance: float) -> Observation:
        limit = mean_limit(variance, len(values), chance) + slack
        return within(what, float(np.mean(values)), (expected - limit, expected + limit))

    count = len(values)
    off, moved = float(np.sum(values - expected)), slack if bias is None else bias
    sums = Sums(key, count, count * expected, off, count * variance, 0.0, count * moved)
    return SummedTest(test, (sums,))


def distribution(name: str, lowest: Array, highest: Array) -> StatisticalTest:
    """Test the largest gap between the draws and their distribution (Kolmogorov and Smirnov).

    `lowest` and `highest`, `(N,)`, bound the probability of at most each draw, as rounding and the
    generator's resolution have blurred it; the draws may have different parameters. The gap is the
    smallest that any values between the two could have.
    """
    count = len(lowest)

    def test(chance: float) -> Observation:
        ranks = np.arange(count + 1) / max(count, 1)
        above = ranks[1:] - np.sort(highest)
        below = np.sort(lowest) - ranks[:-1]
        gap = max(0.0, float(np.max(above, initial=0.0)), float(np.max(below, initial=0.0)))
        what = f"the largest gap to {name}"
        return within(what, gap, (0.0, largest_gap(count, chance)), (0.0, 1.0))

    return test


def neighbours(below_median: Array, expected: float = 0.5) -> StatisticalTest:
    """Test whether neighbours depend on each other: pairs (0, 1), (2, 3), ... that are alike.

    `below_median` is `(N,)` bool, True with the probability `expected`.
    """
    even = below_median[: len(below_median) // 2 * 2]
    alike = even[0::2] == even[1::2]
    return share_test(
        "the share of neighbours that are alike", alike, expected**2 + (1 - expected) ** 2
    )


def no_repeats(values: Array, most_common: float | None = None) -> StatisticalTest:
    """Test for a stretch of elements that occurs twice, as if each row, block or thread had the same
    seed. `values` are independent draws of one distribution; `most_common` is the probability of
    their most common value, by default estimated from the draws.

    At any two places w elements agree by chance with at most q^w, where q is the probability of the
    most common value; there are fewer than n^2/2 pairs of places.
    """
    values = np.ascontiguousarray(values[:_STRETCH_ELEMENTS])
    count = len(values)

    def test(chance: float) -> Observation:
        if count < 2:
            return Observation("too few elements to look for repeated stretches", telling=False)
        q, left = most_common, chance
        if q is None:
            # Half of the chance is for the bound on q: no value is more common than the gap allows.
            seen = np.unique(values, return_counts=True)[1].max() / count
            q, left = float(seen) + 2 * largest_gap(count, chance / 2), chance / 2
        if not 0.0 < q < 1.0:
            return Observation("too few elements to look for repeated stretches", telling=False)
        width = math.ceil(math.log(count**2 / 2 / left) / -math.log(q))
        if width * 2 > count:
            return Observation("too few elements to look for repeated stretches", telling=False)
        found = _repeated(values, width)
        if found is None:
            return Observation(f"no stretch of {width} elements occurs twice")
        first, second = found
        return Observation(
            f"the {width} elements from {second} on repeat those from {first} on", False
        )

    return SummedTest(test, pattern=pattern_of(values, most_common))


def _repeated(values: Array, width: int) -> tuple[int, int] | None:
    """Return the first two places where the same `width` values begin, None where there are none."""
    codes = np.unique(values, return_inverse=True)[1].astype(np.uint64)
    hashes = _stretch_hashes(codes, width)
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    for place in same[np.argsort(order[same + 1], kind="stable")][:64]:
        first, second = int(order[place]), int(order[place + 1])
        if np.array_equal(codes[first : first + width], codes[second : second + width]):
            return first, second
    return None


def _stretch_hashes(codes: Array, width: int) -> Array:
    """Return a polynomial hash modulo 2^64 of the `width` codes from each place on, by doubling."""
    multiplier = 0x9E3779B97F4A7C15
    # Mixed first: a polynomial modulo 2^64 is weak in the low bits of small numbers.
    block = (codes + np.uint64(1)) * np.uint64(multiplier)
    block ^= block >> np.uint64(29)
    block *= np.uint64(0xBF58476D1CE4E5B9)
    total = np.zeros(len(codes) + 1, np.uint64)
    covered, length, power = 0, 1, multiplier
    modulus = 1 << 64
    while length <= width:
        if width & length:
            places = len(codes) - covered - length + 1
            total = total[:places] * np.uint64(power) + block[covered : covered + places]
            covered += length
        reach = len(block) - length
        block = block[:reach] * np.uint64(power) + block[length : length + reach]
        length, power = length * 2, power * power % modulus
    return total


def check_random_output(
    name: str,
    tested: Any,
    tests: Sequence[StatisticalTest],
    framework: str,
    *,
    chance: float = FALSE_ALARM_RATE,
    recorded: object = None,
    repeatable: bool = True,
) -> OutputCheck:
    """Judge an output. `chance` is its share of the call's false-alarm rate, and `recorded` its spec in
    the dump. An output without an element, or without a known property, is SKIP, and its Message
    says so. If its draws are not `repeatable`, the numbers of a pass are left out of the Message, so
    that two runs write the same files."""
    findings = [*_as_recorded(tested, recorded)]
    findings += [test(chance / max(len(tests), 1)) for test in tests]
    wrong = [finding for finding in findings if not finding.passed]
    told = [finding.text for finding in wrong or findings]
    if not wrong and not repeatable:
        told = [
            "every fact and statistic is within its limits; the operator cannot be seeded, so the"
            " values differ from run to run and are left out, and its calls are not judged together"
        ]
    if wrong:
        told.append(f"an honest generator does so with a chance of at most {FALSE_ALARM_RATE:g}")
    is_tensor = isinstance(tested, HostTensor)
    reason = ""
    if not wrong:
        reason = nothing_compared(tested) if is_tensor else ""
        reason = reason or (
            "" if findings else "no property of this output is known that could be judged"
        )
    verdict = Verdict.SKIP if reason else Verdict.PASS
    return OutputCheck(
        name=name,
        bench_dtype="",
        tested_dtype=framework_dtype(tested.dtype, framework)
        if is_tensor
        else type(tested).__name__,
        shape=str(tested.shape) if is_tensor else "",
        metrics=None,
        verdict=Verdict.ERROR if wrong else verdict,
        message=reason or f"{RANDOM} {'; '.join(told)}",
    )


def drawn_of(tests: Sequence[StatisticalTest], is_captured: bool) -> Drawn:
    """Return what the statistics over all calls of an operator need of the draws of one."""
    gathered = [test for test in tests if isinstance(test, SummedTest)]
    pattern = next((test.pattern for test in gathered if test.pattern), "")
    return Drawn(tuple(each for test in gathered for each in test.sums), pattern, is_captured)


def _as_recorded(tested: Any, recorded: object) -> list[Observation]:
    """Compare dtype and shape with those of the captured output, where the dump has one."""
    if not isinstance(recorded, TensorSpec):
        return []
    if not isinstance(tested, HostTensor):
        return [Observation("it is no tensor, which it was when it was captured", False)]
    found = []
    if tested.dtype != recorded.dtype:
        found.append(
            Observation(f"dtype {tested.dtype} where the dump has {recorded.dtype}", False)
        )
    if tested.shape != recorded.shape:
        text = f"shape {list(tested.shape)} where the dump has {list(recorded.shape)}"
        found.append(Observation(text, False))
    return found
