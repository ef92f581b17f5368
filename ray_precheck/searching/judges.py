"""What trials say of sets of switches: whether one is wrong, and which switch makes it so.

Comes in: `Answers` to ask. Goes out: decisions. Called by `searching.strategy` and `searching.minimal_sets`.

Two judges have the same face. For `ExactJudge` one trial decides, and the switch is found by halving. For
`NoisyJudge` equal trials may disagree: a set is decided by Wald's sequential test (1945), and the switch is
found as in the search of Burnashev and Zigangirov (1974): each trial moves the weights of all switches, the
next one divides the weight.

A trial without an answer is replaced by another division of the same switches. Where none of them has an
answer, the set is taken as not wrong: what is found is then a set with which it is wrong, of which some
members may be needed only to have an answer at all.
"""

import math
import operator
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ray_precheck.searching.bisection import Answers, Limits, Rung, Trial, TrialAnswer
from ray_precheck.searching.dependencies import NONE_ON, Dependencies
from ray_precheck.searching.evidence import Known, Tally, information
from ray_precheck.searching.line import SwitchLine

PASS, FAIL, UNRESOLVED = TrialAnswer.PASS, TrialAnswer.FAIL, TrialAnswer.UNRESOLVED
# How many divisions of the same switches are tried where trials give no answer: with 30 % of them silent, all
# of so many are once in 1,400 times.
_DIVISIONS = 6
# A switch that did nothing by the log is suspected so much less than one that did.
_WEIGHT_WITHOUT_HITS = 0.02
# A set has no answer at all where the trials without one would else be luck with so small a chance.
_SILENT_BY_LUCK = 1e-3
# Trials that one decision, or one search for a switch, may take where verdicts are noisy.
_MOST_REPEATS = 300
# How often the search for a switch begins again that ended at a place which is not the right one.
_ATTEMPTS = 8
# How sure the search for a switch must be; the set that it leads to is decided for itself afterwards.
_CONFIDENCE_OF_PLACE = 0.9


class DisagreementError(Exception):
    """Equal trials have disagreed."""


class UndecidedError(Exception):
    """So many trials did not decide a question."""


class SetJudge(Protocol):
    """Decides by trials. `suspects` are switches among which one is that makes the result wrong."""

    suspects: frozenset[str]

    @property
    def error_rate(self) -> float:
        """The chance that a verdict is wrong, as far as it is known."""

    def decide(self, enabled: frozenset[str], chance: float = 0.5) -> TrialAnswer:
        """Return whether a set is wrong; `chance` is how likely that seems."""

    def holds(self, enabled: frozenset[str], answer: TrialAnswer) -> bool:
        """Return whether a set that had this answer still has it when it is looked at again.

        Raises:
            DisagreementError: it has not, which nobody expected.
        """

    def boundary(self, kept: frozenset[str], pool: Sequence[str]) -> tuple[str, frozenset[str]]:
        """Return the switch with which it becomes wrong, and what was on before it.

        It is wrong with `kept` and all of the pool on, not wrong with `kept` alone.
        """

    def first_wrong(self, order: Sequence[str]) -> tuple[int, int]:
        """Return how many first switches of an order are right, and how many more are wrong: more than one
        more where those between have no answer."""


@dataclass(slots=True)
class _Asking:
    """What both judges have: the rung, and the trial that stands for none of its switches being on."""

    rung: Rung
    foot: Trial
    answers: Answers
    limits: Limits
    dependencies: Dependencies
    suspects: frozenset[str] = field(init=False, default=NONE_ON)
    _random: random.Random = field(init=False)
    _weight: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"{self.limits.seed}.{self.rung.name}")
        some_hit = any(each.hits for each in self.rung.switches)
        self._weight = {
            each.name: _WEIGHT_WITHOUT_HITS if some_hit and each.hits == 0 else 1.0
            for each in self.rung.switches
        }

    def _key(self, enabled: frozenset[str]) -> tuple[str, frozenset[str]]:
        return (self.rung.name, enabled) if enabled else (self.foot.rung, self.foot.enabled)

    def _so_far(self, enabled: frozenset[str]) -> Sequence[TrialAnswer]:
        return self.answers.so_far(*self._key(enabled))

    def _again(self, enabled: frozenset[str], chance: float) -> TrialAnswer:
        return self.answers.again(*self._key(enabled), chance)


@dataclass(slots=True)
class ExactJudge(_Asking):
    """One trial decides. With `limits.repeats` other than 1 what was found is looked at twice."""

    @property
    def error_rate(self) -> float:
        """0: no verdict is known to be wrong."""
        return 0.0

    def decide(self, enabled: frozenset[str], chance: float = 0.5) -> TrialAnswer:
        """Return the first answer of a set."""
        return self.answers.of(*self._key(enabled), chance)

    def holds(self, enabled: frozenset[str], answer: TrialAnswer) -> bool:
        """Return True after a second trial, unless it is known that equal trials agree."""
        while self.limits.repeats > 1 and len(self._so_far(enabled)) < 2:
            self._again(enabled, 0.95 if answer is FAIL else 0.05)
        if not {answer, UNRESOLVED}.issuperset(self._so_far(enabled)):
            raise DisagreementError
        return True

    def boundary(self, kept: frozenset[str], pool: Sequence[str]) -> tuple[str, frozenset[str]]:
        """Find the switch by halving: log2 of the length of the pool, rounded up, trials."""
        on, left = self.dependencies.closed(kept), list(pool)
        passed, failed = on if kept else NONE_ON, on.union(left)
        while len(left) > 1:
            self.suspects = kept | (failed - passed)
            answer = UNRESOLVED
            for part in self._divisions(on, left):
                answer = self.decide(on | part)
                if answer is not UNRESOLVED:
                    break
            else:
                part = frozenset(self._part(left, 0.5))
            if answer is FAIL:
                failed, left = on | part, [name for name in left if name in part]
            else:
                on, left = on | part, [name for name in left if name not in part]
                passed = on if answer is PASS else passed
        self.suspects = kept | (failed - passed)
        return left[0], on

    def _divisions(self, on: frozenset[str], left: list[str]) -> Iterator[frozenset[str]]:
        """Yield parts of these switches, each different: the first half, then halves of other orders, then
        smaller and larger parts."""
        seen: set[frozenset[str]] = set()
        order, share = left, 0.5
        for attempt in range(4 * _DIVISIONS):
            part = self.dependencies.closed(on.union(self._part(order, share))) - on
            if part not in seen and len(part) < len(left):
                seen.add(part)
                yield part
            if len(seen) >= _DIVISIONS:
                return
            order = self._random.sample(left, len(left)) if attempt else left[::-1]
            order = self.dependencies.in_order(order)
            share = (0.5, 0.5, 0.25, 0.75)[attempt % 4]

    def _part(self, order: Sequence[str], share: float) -> Sequence[str]:
        """Return the first switches that have about this share of the weight; neither none nor all."""
        if len(set(map(self._weight.__getitem__, order))) == 1:
            return order[: min(max(1, round(share * len(order))), len(order) - 1)]
        total, weight = sum(self._weight[name] for name in order), 0.0
        for count, name in enumerate(order):
            if count and weight + self._weight[name] / 2 > share * total:
                return order[:count]
            weight += self._weight[name]
        return order[:-1]

    def first_wrong(self, order: Sequence[str]) -> tuple[int, int]:
        """Find it by halving; what has no answer is passed by."""
        right, wrong = 0, len(order)
        silent: set[int] = set()
        while places := [each for each in range(right + 1, wrong) if each not in silent]:
            self.suspects = frozenset(order[right:wrong])
            middle = min(places, key=lambda each: abs(2 * each - right - wrong))
            answer = self.decide(frozenset(order[:middle]))
            if answer is UNRESOLVED:
                silent.add(middle)
            elif answer is FAIL:
                wrong = middle
            else:
                right = middle
        return right, wrong


@dataclass(slots=True)
class NoisyJudge(_Asking):
    """Equal trials may disagree; `known` are the answers of the foot and of the top, and of decided sets."""

    known: Known
    _decided: dict[frozenset[str], tuple[TrialAnswer, Tally]] = field(default_factory=dict)
    _silent: int = 0
    _line: dict[frozenset[str], bool] = field(default_factory=dict)

    @property
    def error_rate(self) -> float:
        """The larger one of the chances that a wrong set passes, and that a right one fails."""
        bad, good = self.known.rates
        return max(1 - bad, good)

    def decide(self, enabled: frozenset[str], chance: float = 0.5) -> TrialAnswer:
        """Try a set until it is known whether it is wrong, with the confidence of the limits.

        A decision is made again if the rates of FAIL turn out to be others.

        Raises:
            UndecidedError: that many trials do not tell.
        """
        if not enabled:
            return PASS
        self._forget(enabled)
        others = self._of_line(enabled)
        limit = _log_odds(self.limits.confidence)
        for _ in range(_MOST_REPEATS):
            tally = Tally.of(self._so_far(enabled))
            known = self.known.plus(others.bad, others.good)
            bad, good = known.plus(tally, Tally()), known.plus(Tally(), tally)
            evidence = bad.log_likelihood - good.log_likelihood
            if abs(evidence) >= limit:
                return self._learn(enabled, FAIL if evidence > 0 else PASS, tally)
            if self._is_silent(enabled):
                return UNRESOLVED
            share = 1 / (1 + math.exp(-evidence))
            chances = [bad.rates[0], good.rates[1]]
            ends = [(bad.rates[end], good.rates[end]) for end in (0, 1)]
            fails = share * chances[0] + (1 - share) * chances[1]
            self._ask((share, 1 - share), enabled, chances, ends, fails)
        raise UndecidedError

    def holds(self, enabled: frozenset[str], answer: TrialAnswer) -> bool:
        """Decide the set, if it is not decided yet."""
        return self.decide(enabled) is answer

    def _learn(self, enabled: frozenset[str], answer: TrialAnswer, tally: Tally) -> TrialAnswer:
        self._decided[enabled] = answer, tally
        none = Tally()
        self.known = self.known.plus(*((tally, none) if answer is FAIL else (none, tally)))
        return answer

    def _of_line(self, enabled: frozenset[str]) -> Known:
        """Return the answers of the last search for a switch, by what it found, but for those of a set."""
        found = Known()
        for each, is_wrong in self._line.items():
            if each != enabled and each not in self._decided:
                seen = Tally.of(self._so_far(each))
                found = found.plus(*((seen, Tally()) if is_wrong else (Tally(), seen)))
        return found

    def _forget(self, enabled: frozenset[str]) -> None:
        """Take the answers of a set from those that are known: they do not vouch for themselves."""
        if enabled in self._decided:
            answer, tally = self._decided.pop(enabled)
            if answer is FAIL:
                self.known = Known(self.known.bad.less(tally), self.known.good)
            else:
                self.known = Known(self.known.bad, self.known.good.less(tally))

    def _ask(
        self,
        shares: Sequence[float],
        enabled: frozenset[str],
        chances: Sequence[float],
        ends: Sequence[Sequence[float]],
        chance: float,
    ) -> None:
        """Try a set, or the top or the foot of the rung, whichever is expected to tell most.

        For each explanation there are its share and the chances that the set, and the ends, fail.
        """
        told = [information(shares, each) for each in (chances, *ends)]
        if told[0] >= max(told[1:]):
            self._silent += self._again(enabled, chance) is UNRESOLVED
        else:
            self.ask_end(is_top=told[1] > told[2])

    def ask_end(self, *, is_top: bool) -> None:
        """Try the top of the rung, or its foot."""
        rates, none = self.known.rates, Tally()
        answer = self._again(frozenset(self.rung.members) if is_top else NONE_ON, rates[not is_top])
        seen = Tally.of([answer])
        self.known = self.known.plus(*((seen, none) if is_top else (none, seen)))

    def _is_silent(self, enabled: frozenset[str]) -> bool:
        """Return whether a set has no answer at all, other than by luck."""
        answers = self._so_far(enabled)
        if not answers or set(answers) != {UNRESOLVED}:
            return False
        # Of the trials of other sets; one answer and one silent trial are assumed.
        silent = self._silent - len(answers) + 1
        rate = silent / (len(self.answers.asked) - len(answers) + 2)
        return rate ** len(answers) < _SILENT_BY_LUCK

    def boundary(self, kept: frozenset[str], pool: Sequence[str]) -> tuple[str, frozenset[str]]:
        """Find the switch by trials that divide the weight."""
        on = self.dependencies.closed(kept)
        place = self._place(on, pool)
        return pool[place], on.union(pool[:place])

    def first_wrong(self, order: Sequence[str]) -> tuple[int, int]:
        """Find it in the same way, and decide the sets of both sides."""
        for _ in range(_ATTEMPTS):
            right = self._place(NONE_ON, order)
            wrong = right + 1
            while right and self._is_silent(frozenset(order[:right])):
                right -= 1
            is_wrong = self.decide(frozenset(order[:wrong]), 0.8) is FAIL
            if is_wrong and self.decide(frozenset(order[:right]), 0.2) is PASS:
                return right, wrong
        raise UndecidedError

    def _place(self, on: frozenset[str], pool: Sequence[str]) -> int:
        """Return the number of the switch in the pool with which it becomes wrong."""
        if len(pool) == 1:
            return 0
        self._line = {}
        line = self._begun(on, pool)
        for _ in range(_MOST_REPEATS):
            parts = line.parts(self.known)
            shares = [part.share for part in parts]
            best = max(parts, key=lambda part: part.density)
            begin, end = line.likely(parts, self.limits.confidence)
            self.suspects = frozenset(pool[begin:end])
            if best.end - best.begin == 1 and best.share >= _CONFIDENCE_OF_PLACE:
                for count in line.answers:
                    self._line[on.union(pool[:count])] = count > best.begin
                return best.begin
            count = line.middle(parts)
            if count in line.fixed:  # Other answers contradict it.
                if best.end - best.begin == 1:
                    return best.begin
                count = (best.begin + best.end) // 2
            enabled, chances = on.union(pool[:count]), line.chances(parts, count)
            ends = [[part.rates[end] for part in parts] for end in (0, 1)]
            chance = sum(map(operator.mul, shares, chances))
            self._ask(shares, enabled, chances, ends, chance)
            self._note(line, count, enabled)
        raise UndecidedError

    def _begun(self, on: frozenset[str], pool: Sequence[str]) -> SwitchLine:
        """Return what earlier trials say of the first switches of the pool."""
        line = SwitchLine([self._weight[name] for name in pool])
        for each in self.answers.sets_of(self.rung.name):
            size = len(each) - len(on)
            if 0 < size < len(pool) and each == on.union(pool[:size]):
                self._note(line, size, each)
        return line

    def _note(self, line: SwitchLine, count: int, enabled: frozenset[str]) -> None:
        if enabled in self._decided:
            line.fix(count, self._decided[enabled][0])
        elif self._is_silent(enabled):
            line.fix(count, PASS)  # A set that has no answer at all is taken as not wrong.
        elif answers := self._so_far(enabled):
            line.answers[count] = Tally.of(answers)


def _log_odds(chance: float) -> float:
    return math.log(chance / (1 - chance))
