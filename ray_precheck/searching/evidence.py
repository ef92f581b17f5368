"""How strongly answers speak for one explanation against another, where equal trials may disagree; pure.

Comes in: counts of answers. Goes out: logarithms of likelihoods. Called by `searching.judges`.

How often a wrong set fails, and how often a right one does, is not known beforehand: each rate has a prior, the
Beta distribution of Jeffreys, B(1/2, 1/2), and the answers of sets that are known. So the likelihood of new
answers is the ratio of two Beta functions, in which what is not yet known of the rates is accounted for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ray_precheck.searching.bisection import Answer


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


def log_likelihood(seen: Tally, known: Tally) -> float:
    """Return the logarithm of the likelihood of answers in an order, of a set that fails at a known rate.

    The rate is known by the counts of other trials that share it.
    """
    return _log_beta(known.fails + seen.fails, known.passes + seen.passes) - _log_beta(
        known.fails, known.passes
    )


def log_evidence_of_two(good: Tally, bad: Tally) -> float:
    """Return the logarithm of the Bayes factor of two rates, that of `bad` the larger one, against one rate.

    That it is the larger one has the prior probability 1/2; its posterior probability is taken from a normal
    approximation of both rates.
    """
    none = Tally()
    two = log_likelihood(good, none) + log_likelihood(bad, none)
    one = log_likelihood(good.plus(bad), none)
    variance = sum(each.rate * (1 - each.rate) / (each.count + 2) for each in (good, bad))
    larger = 0.5 * math.erfc((good.rate - bad.rate) / math.sqrt(2 * variance))
    return two - one + math.log(max(2 * larger, 1e-12))


def _log_beta(fails: int, passes: int) -> float:
    return math.lgamma(fails + 0.5) + math.lgamma(passes + 0.5) - math.lgamma(fails + passes + 1)
