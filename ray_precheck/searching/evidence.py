"""How strongly answers speak for one explanation against another, where equal trials may disagree; pure.

Comes in: counts of answers. Goes out: logarithms of likelihoods. Called by `searching.judges` and
`searching.line`.

How often a wrong set fails, and how often a right one does, is not known beforehand. Each explanation says
which trials were of wrong sets; its likelihood is that of their answers, averaged over all rates, by three
models: verdicts of both kinds are wrong at one rate; each kind has a rate of its own; right sets seldom
fail, and wrong ones now and then. So the answers that tell where the culprit is tell the rates, too. At 30 %
wrong verdicts the place of a culprit of 500 took 80 trials with the rates given, 115 so, 150 with two rates
of their own alone; at 2 % and 50 % (a fault that shows now and then) 115, and 200 with one rate alone (150
worlds each).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from ray_precheck.searching.bisection import TrialAnswer

# How likely each model is beforehand: one rate, two rates, right sets that seldom fail.
_ONE, _TWO, _SELDOM = math.log(0.8), math.log(0.1), math.log(0.1)
# Beta priors of rates: of wrong verdicts, which are fewer than half, else nobody would ask; of FAIL, that of
# Jeffreys where nothing is known; of FAIL of right sets that seldom do.
_WRONG, _ANY, _RARE = (1.5, 5.0), (0.5, 0.5), (0.5, 20.0)


class Tally(NamedTuple):
    """How many trials failed, and how many passed; those without an answer are not counted."""

    fails: int = 0
    passes: int = 0

    @classmethod
    def of(cls, answers: Sequence[TrialAnswer]) -> "Tally":
        """Return the counts of answers."""
        return cls(answers.count(TrialAnswer.FAIL), answers.count(TrialAnswer.PASS))

    def plus(self, other: "Tally") -> "Tally":
        """Return the counts of both together."""
        return Tally(self.fails + other.fails, self.passes + other.passes)

    def less(self, other: "Tally") -> "Tally":
        """Return the counts without those of the other one, which are among them."""
        return Tally(self.fails - other.fails, self.passes - other.passes)

    @property
    def total(self) -> int:
        """How many trials have an answer."""
        return self.fails + self.passes


_NONE = Tally()


@dataclass(frozen=True, slots=True)
class Known:
    """The answers of sets that are wrong, `bad`, and of others, `good`, by one explanation."""

    bad: Tally = _NONE
    good: Tally = _NONE

    def plus(self, bad: Tally, good: Tally) -> "Known":
        """Return it with more answers."""
        return Known(self.bad.plus(bad), self.good.plus(good))

    @property
    def log_likelihood(self) -> float:
        """The logarithm of how likely these answers are."""
        return self.weighed()[0]

    @property
    def rates(self) -> tuple[float, float]:
        """The chances that a wrong set fails, and that another one does."""
        return self.weighed()[1]

    def weighed(self) -> tuple[float, tuple[float, float]]:
        """Return `log_likelihood` and `rates`."""
        errors = Tally(self.bad.passes + self.good.fails, self.bad.fails + self.good.passes)
        any_bad = _log_beta(self.bad, _ANY)
        logs = (
            _ONE + _log_beta(errors, _WRONG),
            _TWO + any_bad + _log_beta(self.good, _ANY),
            _SELDOM + any_bad + _log_beta(self.good, _RARE),
        )
        most = max(logs)
        one, two, seldom = (math.exp(each - most) for each in logs)
        total = one + two + seldom
        error = _mean(errors, _WRONG)
        bad = one * (1 - error) + (two + seldom) * _mean(self.bad, _ANY)
        good = one * error + two * _mean(self.good, _ANY) + seldom * _mean(self.good, _RARE)
        return most + math.log(total), (bad / total, good / total)

    @property
    def log_evidence_of_two(self) -> float:
        """The logarithm of the Bayes factor of two rates of FAIL, that of wrong sets the larger one, against
        one rate, whichever set it is.

        That it is the larger one has the prior probability 1/2; its posterior probability is taken from a
        normal approximation of both rates.
        """
        good, bad = self.good, self.bad
        rates = _mean(good, _ANY), _mean(bad, _ANY)
        two = _log_beta(good, _ANY) + _log_beta(bad, _ANY)
        counts = good.total + 2, bad.total + 2
        variance = sum(rate * (1 - rate) / count for rate, count in zip(rates, counts, strict=True))
        larger = 0.5 * math.erfc((rates[0] - rates[1]) / math.sqrt(2 * variance))
        return two - _log_beta(good.plus(bad), _ANY) + math.log(max(2 * larger, 1e-12))


def information(shares: Sequence[float], chances: Sequence[float]) -> float:
    """Return how many bits a trial is expected to tell of which explanation is true.

    `shares` are how likely the explanations are, `chances` that of FAIL by each. It is the mutual information
    of explanation and answer.
    """
    weighted = [share * chance for share, chance in zip(shares, chances, strict=True)]
    rest = zip(shares, chances, strict=True)
    return entropy(sum(weighted)) - sum(share * entropy(chance) for share, chance in rest)


def entropy(chance: float) -> float:
    """Return how many bits an answer tells that has this chance."""
    if not 0 < chance < 1:
        return 0.0
    return -chance * math.log2(chance) - (1 - chance) * math.log2(1 - chance)


def _log_beta(seen: Tally, prior: tuple[float, float]) -> float:
    """Return the logarithm of how likely answers are in an order, if the rate of FAIL has this Beta prior."""
    fails, passes = prior
    return (
        _log_rising(seen.fails, fails)
        + _log_rising(seen.passes, passes)
        - _log_rising(seen.fails + seen.passes, fails + passes)
    )


@cache
def _log_rising(count: int, begin: float) -> float:
    """Return the logarithm of begin (begin + 1) ..., so many factors."""
    return math.lgamma(count + begin) - math.lgamma(begin)


def _mean(seen: Tally, prior: tuple[float, float]) -> float:
    fails, passes = prior
    return (seen.fails + fails) / (seen.fails + seen.passes + fails + passes)
