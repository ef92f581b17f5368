"""How strongly answers speak for one explanation against another, where equal trials may disagree; pure.

Comes in: counts of answers. Goes out: logarithms of likelihoods. Called by `searching.judges` and
`searching.line`.

How often a wrong set fails, and how often a right one does, is not known beforehand. Each explanation says which
trials were of wrong sets; its likelihood is that of their answers, averaged over all rates. Either verdicts of
both kinds are wrong at one rate, or each kind has a rate of its own; a rate has the prior of Jeffreys, the Beta
distribution B(1/2, 1/2). So the answers that tell where the culprit is tell the rates, too: with both rates
given a culprit of 500 took 80 trials at 30 % wrong verdicts, so 100, with two rates of their own alone 134 (100
worlds, 12 trials of each end before).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ray_precheck.searching.bisection import Answer

# How likely it is beforehand that right and wrong sets have wrong verdicts at one rate.
_ONE_RATE = 0.9


@dataclass(frozen=True, slots=True)
class Tally:
    """How many trials failed, and how many passed; those without an answer are not counted."""

    fails: int = 0
    passes: int = 0

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> "Tally":
        """Return the counts of answers."""
        return cls(answers.count(Answer.FAIL), answers.count(Answer.PASS))

    def plus(self, other: "Tally") -> "Tally":
        """Return the counts of both together."""
        return Tally(self.fails + other.fails, self.passes + other.passes)

    def less(self, other: "Tally") -> "Tally":
        """Return the counts without those of the other one, which are among them."""
        return Tally(self.fails - other.fails, self.passes - other.passes)

    @property
    def count(self) -> int:
        """How many trials have an answer."""
        return self.fails + self.passes

    @property
    def rate(self) -> float:
        """The mean of the rate of FAIL, given these counts."""
        return (self.fails + 0.5) / (self.count + 1)


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
    def _errors(self) -> Tally:
        return Tally(
            self.bad.passes + self.good.fails,
            self.bad.fails + self.good.passes,
        )

    @property
    def log_likelihood(self) -> float:
        """The logarithm of how likely these answers are."""
        one, two = self._logs()
        return max(one, two) + math.log1p(math.exp(-abs(one - two)))

    def _logs(self) -> tuple[float, float]:
        """Return the logarithms of the shares that one rate, and two rates, have in the likelihood."""
        two = _log_beta(self.bad) + _log_beta(self.good)
        return math.log(_ONE_RATE) + _log_beta(self._errors), math.log(1 - _ONE_RATE) + two

    @property
    def rates(self) -> tuple[float, float]:
        """The chances that a wrong set fails, and that another one does."""
        one, two = self._logs()
        share = 1 / (1 + math.exp(max(-700.0, min(700.0, two - one))))
        error = self._errors.rate
        return (
            share * (1 - error) + (1 - share) * self.bad.rate,
            share * error + (1 - share) * self.good.rate,
        )

    @property
    def log_evidence_of_two(self) -> float:
        """The logarithm of the Bayes factor of two rates of FAIL, that of wrong sets the larger one, against one
        rate, whichever set it is.

        That it is the larger one has the prior probability 1/2; its posterior probability is taken from a
        normal approximation of both rates.
        """
        good, bad = self.good, self.bad
        two = _log_beta(good) + _log_beta(bad)
        variance = sum(each.rate * (1 - each.rate) / (each.count + 2) for each in (good, bad))
        larger = 0.5 * math.erfc((good.rate - bad.rate) / math.sqrt(2 * variance))
        return two - _log_beta(good.plus(bad)) + math.log(max(2 * larger, 1e-12))


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


def _log_beta(seen: Tally) -> float:
    """Return the logarithm of how likely answers are in an order, whatever their rate of FAIL."""
    return (
        math.lgamma(seen.fails + 0.5)
        + math.lgamma(seen.passes + 0.5)
        - math.lgamma(seen.count + 1)
        - math.log(math.pi)  # B(1/2, 1/2)
    )
