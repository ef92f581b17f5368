"""Where along a line of switches a result becomes wrong, as far as noisy answers tell; pure.

Comes in: the answers of trials with the first 1, 2, ... switches on. Goes out: how likely each part of the
line is, and the trial that divides the likelihood. Called by `searching.judges.NoisyJudge`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate, pairwise

from ray_precheck.searching.bisection import TrialAnswer
from ray_precheck.searching.evidence import Known, Tally

# By which factor an explanation is less likely that contradicts a set of which it is known whether it is
# wrong.
_CONTRADICTION = math.log(1000)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Switches from number `begin` to `end`, without that one.

    `share` is how likely it is one of them that makes the result wrong; `rates` are then the chances that a
    wrong set fails, and that another one does.
    """

    begin: int
    end: int
    share: float
    rates: tuple[float, float]

    @property
    def density(self) -> float:
        """How likely each of its switches is."""
        return self.share / (self.end - self.begin)


@dataclass(slots=True)
class SwitchLine:
    """A line of switches with these weights. `answers` has the answers of the first n switches by n; `fixed`
    those of which it is known."""

    weights: Sequence[float]
    answers: dict[int, Tally] = field(default_factory=dict)
    fixed: dict[int, TrialAnswer] = field(default_factory=dict)
    _summed: Sequence[float] = field(init=False)

    def __post_init__(self) -> None:
        self._summed = list(accumulate(self.weights, initial=0.0))

    def fix(self, count: int, answer: TrialAnswer) -> None:
        """Note what is known of the first switches."""
        self.answers.pop(count, None)
        self.fixed[count] = answer

    def parts(self, known: Known) -> list[Stretch]:
        """Return how likely each part between two trials is; `known` are answers of other sets.

        If the first wrong switch is number i, counted from 0, the first n are wrong where n > i.
        """
        cuts = sorted({0, len(self.weights), *self.answers, *self.fixed})
        right, wrong = Tally(), reduce(Tally.plus, self.answers.values(), Tally())
        against = sum(answer is not TrialAnswer.FAIL for answer in self.fixed.values())
        logs, rates = [], []
        for begin, end in pairwise(cuts):
            seen = self.answers.get(begin)
            if seen is not None:
                right, wrong = right.plus(seen), wrong.less(seen)
            if begin in self.fixed:
                against += 1 if self.fixed[begin] is TrialAnswer.FAIL else -1
            likelihood, then = known.plus(wrong, right).weighed()
            weight = math.log(self._summed[end] - self._summed[begin])
            logs.append(weight + likelihood - against * _CONTRADICTION)
            rates.append(then)
        most = max(logs)
        shares = [math.exp(each - most) for each in logs]
        total = sum(shares)
        return [
            Stretch(*ends, share / total, then)
            for ends, share, then in zip(pairwise(cuts), shares, rates, strict=True)
        ]

    def middle(self, parts: Sequence[Stretch]) -> int:
        """Return the number of first switches that comes nearest to half of the likelihood; neither none nor
        all."""
        below = 0.0
        part = parts[0]
        for part in parts:
            if below + part.share >= 0.5:
                break
            below += part.share
        if part.end - part.begin == 1:
            nearest = part.end if below + part.share - 0.5 < 0.5 - below else part.begin
            return min(max(nearest, 1), len(self.weights) - 1)
        begin, end = self._summed[part.begin], self._summed[part.end]
        wanted = begin + (0.5 - below) / part.share * (end - begin)
        inside = range(max(1, part.begin), min(part.end, len(self.weights) - 1) + 1)
        return min(inside, key=lambda count: abs(self._summed[count] - wanted))

    def chances(self, parts: Sequence[Stretch], count: int) -> list[float]:
        """Return by each part how likely the first switches fail."""
        found = []
        for part in parts:
            inside = min(max(count, part.begin), part.end)
            weight = self._summed[inside] - self._summed[part.begin]
            share = weight / (self._summed[part.end] - self._summed[part.begin])
            found.append(share * part.rates[0] + (1 - share) * part.rates[1])
        return found

    def likely(self, parts: Sequence[Stretch], confidence: float) -> tuple[int, int]:
        """Return the begin and the end of the shortest row of parts that is so likely together."""
        best = 0, len(self.weights)
        for first in range(len(parts)):
            share = 0.0
            for part in parts[first:]:
                share += part.share
                if share >= confidence:
                    ends = parts[first].begin, part.end
                    best = min(best, ends, key=lambda ends: ends[1] - ends[0])
                    break
        return best
