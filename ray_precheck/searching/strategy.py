"""How the smallest wrong sets of a ladder are searched; pure.

Comes in: rungs, limits, and `Answers` to ask. Goes out: a finding for each rung that was looked at: the first
one that is wrong ends the ladder. Used as the strategy of a `bisection.Search`.

The three parts of a search:

- **One set** (`_one_set`): among switches that are wrong together, the last one in their order without which
  the earlier ones are right is found by halving; it is kept on, and the search goes on among the earlier
  ones, until those that are kept are wrong alone. A set of k among N takes k (log2 N + 1) trials.
- **All sets** (`_all_sets`): a set that is wrong alone need not be all. Where the result is still wrong
  without one of its members, there is another set among the rest. These deletions are a tree (Reiter, A
  Theory of Diagnosis from First Principles, 1987, section 4), whose shortest way to a right result is the
  cure.
- **Noise** (`_Rates`, `_last_by_weight`): where equal trials disagree, first the rates of FAIL at the foot
  and at the top of the rung are told apart by a Bayes factor, or it is said that they are not. Halving
  becomes the search of Burnashev and Zigangirov (1974): each trial moves the weights of all switches, and the
  next one divides the weight. Single sets are decided by Wald's sequential test (1945).

A trial without an answer is replaced by another division of the same switches: by other halves, then by
smaller and larger parts, and then with other switches around them.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ray_precheck.searching.bisection import (
    Answer,
    Answers,
    BudgetSpent,
    Finding,
    Kind,
    Limits,
    Rung,
    Strategy,
    Trial,
)

PASS, FAIL, UNRESOLVED = Answer.PASS, Answer.FAIL, Answer.UNRESOLVED
_EMPTY: frozenset[str] = frozenset()
# How many divisions of the same switches are tried where trials give no answer, before they are one group.
_DIVISIONS = 24
# Sets and deletions of a rung that are looked at, at most: five singles that are wrong alone take 11.
_MOST_DELETIONS = 64
# A switch that did nothing by the log is suspected so much less than one that did.
_WEIGHT_WITHOUT_HITS = 0.02
# Trials of the foot and of the top that may be spent on telling their rates apart.
_MOST_PAIRS = 80
# By how much the evidence for two rates must outweigh that for one, and the other way round.
_EVIDENCE, _COUNTER_EVIDENCE = 150.0, 30.0
# How often the search of a set begins again, where noise has led it to one that is not wrong alone.
_NOISY_ATTEMPTS = 4
# Trials that one decision may take, at most.
_MOST_REPEATS = 200


def ladder(rungs: Sequence[Rung], limits: Limits) -> Strategy:
    """Return the strategy that climbs these rungs and searches the first one that is wrong."""

    def strategy(answers: Answers) -> list[Finding]:
        tops: dict[str, tuple[str, frozenset[str]]] = {}
        findings: list[Finding] = []
        for rung in rungs:
            foot = tops.get(rung.over, (rung.name, _EMPTY))
            search = _RungSearch(rung, foot, limits, answers)
            findings.append(search.finding())
            if findings[-1].kind not in (Kind.CLEAN, Kind.UNRESOLVED):
                break
            if findings[-1].kind is Kind.UNRESOLVED and not rung.over:
                break  # Nothing is known to be right that the next rung could be held against.
            tops[rung.name] = rung.name, frozenset(rung.members)
        return findings

    return strategy


class _NoisyError(Exception):
    """Equal trials have disagreed, or a proof contradicts what was found."""


class _OneNoiseError(Exception):
    """The foot is wrong as often as the top."""


@dataclass(slots=True)
class _Rates:
    """How often a trial fails that should (`bad`), and one that should not (`good`)."""

    bad: float = 1.0
    good: float = 0.0

    def likelihoods(self, answer: Answer) -> tuple[float, float]:
        """Return how likely an answer is where the set is bad, and where it is good."""
        if answer is FAIL:
            return self.bad, self.good
        return 1 - self.bad, 1 - self.good


@dataclass(slots=True)
class _RungSearch:
    """The search of one rung. `foot` is the trial of which all of its switches are off."""

    rung: Rung
    foot: tuple[str, frozenset[str]]
    limits: Limits
    answers: Answers
    rates: _Rates | None = None
    found: list[frozenset[str]] = field(default_factory=list)
    suspects: frozenset[str] = _EMPTY
    grouped: list[frozenset[str]] = field(default_factory=list)
    _random: random.Random = field(init=False)
    _weight: dict[str, float] = field(init=False)
    _needs: dict[str, frozenset[str]] = field(init=False)

    def __post_init__(self) -> None:
        members = set(self.rung.members)
        self._random = random.Random(f"{self.limits.seed}.{self.rung.name}")
        self._needs = {
            each.name: frozenset(name for name in each.needs if name in members)
            for each in self.rung.switches
        }
        some_hit = any(each.hits for each in self.rung.switches)
        self._weight = {
            each.name: _WEIGHT_WITHOUT_HITS if some_hit and each.hits == 0 else 1.0
            for each in self.rung.switches
        }

    def finding(self) -> Finding:
        """Search; whatever ends the search, what is known by then is in the finding."""
        try:
            ended = self._ends()
            if ended is not None:
                return self._of(ended)
            try:
                return self._search()
            except _NoisyError:
                self._measure_rates()
                return self._search()
        except _OneNoiseError:
            return self._of(Kind.NOISE)
        except BudgetSpent:
            return self._of(Kind.BUDGET)

    def _of(self, kind: Kind) -> Finding:
        sets = tuple(self.found)
        suspects = _EMPTY if sets else self.suspects
        return Finding(
            self.rung,
            kind,
            sets,
            suspects=suspects,
            grouped=tuple(self.grouped),
            is_complete=kind is not Kind.BUDGET,
            error_rate=self._error_rate(),
        )

    def _error_rate(self) -> float:
        return 0.0 if self.rates is None else max(1 - self.rates.bad, self.rates.good)

    # The foot and the top.

    def _ends(self) -> Kind | None:
        """Try the foot and the top; return how the rung ends if there is nothing to search."""
        members = frozenset(self.rung.members)
        if not members:
            return self._only_foot()
        foot = [self._at_foot() for _ in range(self.limits.repeats)]
        top = [self.answers.again(self.rung.name, members, 0.7) for _ in foot]
        answered = [[each for each in found if each is not UNRESOLVED] for found in (foot, top)]
        if not all(answered):
            return Kind.UNRESOLVED
        foot, top = answered
        if set(foot) == {FAIL}:
            return Kind.WRONG_AT_FOOT
        if set(foot) == {PASS} and set(top) == {PASS}:
            return Kind.CLEAN
        if len(set(foot)) > 1 or len(set(top)) > 1:
            self._measure_rates()
        self.suspects = members
        return None

    def _only_foot(self) -> Kind:
        found = [self._at_foot() for _ in range(self.limits.repeats)]
        if FAIL in found:
            return Kind.WRONG_AT_FOOT if PASS not in found else Kind.NOISE
        return Kind.CLEAN if PASS in found else Kind.UNRESOLVED

    def _at_foot(self) -> Answer:
        return self.answers.again(*self.foot, 0.05)

    def _measure_rates(self) -> None:
        """Try the foot and the top until their rates of FAIL are told apart.

        Raises:
            _OneNoiseError: they are the same, as far as that many trials tell.
        """
        if self.rates is not None:
            return
        top = frozenset(self.rung.members)
        fails, trials = [0, 0], [0, 0]
        asked = [list(self._asked(*self.foot)), list(self._asked(self.rung.name, top))]
        for each, answers in enumerate(asked):
            fails[each] += answers.count(FAIL)
            trials[each] += len(answers) - answers.count(UNRESOLVED)
        while True:
            evidence = _evidence_of_two(fails, trials)
            if evidence > _EVIDENCE:
                break
            if (min(trials) >= 10 and evidence < 1 / _COUNTER_EVIDENCE) or max(
                trials
            ) >= _MOST_PAIRS:
                raise _OneNoiseError
            each = 0 if trials[0] <= trials[1] else 1
            answer = self._at_foot() if each == 0 else self._again(top, 0.6)
            if answer is not UNRESOLVED:
                fails[each] += answer is FAIL
                trials[each] += 1
        # The mean of a rate whose prior is uniform (Laplace's rule of succession).
        good, bad = ((fails[each] + 1) / (trials[each] + 2) for each in (0, 1))
        self.rates = _Rates(min(bad, 0.995), max(good, 0.005))
        self.found.clear()
        self.grouped.clear()

    def _asked(self, rung: str, enabled: frozenset[str]) -> Iterator[Answer]:
        """Yield the answers of a trial that were used already."""
        for trial, answer in self.answers.asked.items():
            if trial.rung == rung and trial.enabled == enabled:
                yield answer

    # One decision.

    def _again(self, enabled: frozenset[str], chance: float = 0.5) -> Answer:
        return self.answers.again(self.rung.name, enabled, chance)

    def _decide(self, enabled: frozenset[str], chance: float = 0.5) -> Answer:
        """Return whether a set is wrong; of noisy verdicts as many as the sequential test needs."""
        if not enabled and self.foot != (self.rung.name, _EMPTY):
            return PASS
        if self.rates is None:
            return self.answers.of(self.rung.name, enabled, chance)
        limit = math.log(self.limits.confidence / (1 - self.limits.confidence)) + math.log(2)
        evidence, unanswered = 0.0, 0
        for _ in range(_MOST_REPEATS):
            share = 1 / (1 + math.exp(-max(-20.0, min(20.0, evidence))))
            likely = share * self.rates.bad + (1 - share) * self.rates.good
            answer = self._again(enabled, likely if evidence else chance)
            if answer is UNRESOLVED:
                unanswered += 1
                if unanswered >= 8 and evidence == 0.0:
                    return UNRESOLVED
                continue
            bad, good = self.rates.likelihoods(answer)
            evidence += math.log(bad / good)
            if abs(evidence) >= limit:
                break
        return FAIL if evidence > 0 else PASS

    # All sets.

    def _search(self) -> Finding:
        if self.rung.is_ordered:
            return self._search_ordered()
        members = list(self.rung.members)
        if self.limits.one_by_one:
            single = self._one_by_one(members)
            if single is not None:
                self.found.append(single)
        cure, necessary, is_complete = self._all_sets(members)
        sufficient = [Trial(self.rung.name, self._closed(each)) for each in self.found]
        proven = tuple(each for each in sufficient if self._decide(each.enabled, 0.95) is FAIL)
        self._prove_again(proven, FAIL)
        self._prove_again(necessary, PASS)
        return Finding(
            self.rung,
            Kind.FOUND,
            tuple(self.found),
            cure,
            proven,
            necessary,
            _EMPTY,
            tuple(self.grouped),
            self._error_rate(),
            is_complete,
        )

    def _prove_again(self, proofs: Sequence[Trial], expected: Answer) -> None:
        """Repeat the proofs where it is not known that equal trials agree.

        Raises:
            _NoisyError: one of them does not hold.
        """
        if self.rates is not None or self.limits.repeats == 1:
            return
        for proof in proofs:
            for _ in range(2):
                if self.answers.again(
                    proof.rung, proof.enabled, 0.5 + 0.4 * (expected is FAIL)
                ) not in (
                    expected,
                    UNRESOLVED,
                ):
                    raise _NoisyError

    def _one_by_one(self, members: Sequence[str]) -> frozenset[str] | None:
        """Switch those with hits off one by one; return the first without which the result is right, where
        it is wrong alone."""
        hit = [each.name for each in self.rung.switches if each.hits and not each.stays]
        for name in hit:
            rest = self._without(members, frozenset((name,)))
            if self._decide(rest, 0.8) is PASS:
                alone = self._closed(frozenset((name,)))
                return frozenset((name,)) if self._decide(alone, 0.8) is FAIL else None
        return None

    def _all_sets(self, members: Sequence[str]) -> tuple[frozenset[str], tuple[Trial, ...], bool]:
        """Find all sets that are wrong alone; return the cure, the trial that passed without it, and whether
        all deletions were looked at."""
        cure: frozenset[str] | None = None
        necessary: tuple[Trial, ...] = ()
        queue: list[frozenset[str]] = [_EMPTY]
        seen = {_EMPTY}
        cures: list[frozenset[str]] = []
        looked = 0
        while queue:
            deleted = queue.pop(0)
            if any(each <= deleted for each in cures):
                continue
            label = next((each for each in self.found if not each & deleted), None)
            if label is None:
                looked += 1
                if looked > _MOST_DELETIONS:
                    return cure or _EMPTY, necessary, False
                label = self._label_of(members, deleted)
                if label is None:
                    cures.append(deleted)
                    if cure is None:
                        cure = deleted
                        rest = self._without(members, deleted)
                        answer = self._decide(rest, 0.1)
                        necessary = (Trial(self.rung.name, rest),) if answer is PASS else ()
                    continue
            for name in sorted(label, key=members.index):
                deeper = deleted | {name}
                if deeper not in seen:
                    seen.add(deeper)
                    queue.append(deeper)
        return cure or _EMPTY, necessary, True

    def _label_of(self, members: Sequence[str], deleted: frozenset[str]) -> frozenset[str] | None:
        """Return a set that is wrong without these switches; None where nothing is, or nothing is known."""
        rest = self._without(members, deleted)
        if deleted:
            answer = self._decide(rest, 0.1)
            if answer is UNRESOLVED:
                rest, answer = self._resolved_rest(rest)
            if answer is not FAIL:
                return None
        label = self._one_set([name for name in members if name in rest])
        self.found.append(label)
        return label

    def _resolved_rest(self, rest: frozenset[str]) -> tuple[frozenset[str], Answer]:
        """Return the largest part of a set without an answer that has one."""
        ordered = [name for name in self.rung.members if name in rest]
        for attempt in range(_DIVISIONS):
            less = set(self._random.sample(ordered, min(len(ordered), 1 + attempt // 4)))
            part = self._without(ordered, frozenset(less))
            answer = self._decide(part, 0.2)
            if answer is not UNRESOLVED:
                return part, answer
        return rest, UNRESOLVED

    def _without(self, members: Iterable[str], deleted: frozenset[str]) -> frozenset[str]:
        """Return the members without these, and without what needs one that is gone."""
        gone, left = set(deleted), [name for name in members if name not in deleted]
        while True:
            stays = [name for name in left if not self._needs[name] & gone]
            if len(stays) == len(left):
                return frozenset(left)
            gone.update(set(left) - set(stays))
            left = stays

    def _closed(self, names: frozenset[str]) -> frozenset[str]:
        """Return the switches with all that they need."""
        while True:
            more = names.union(*(self._needs[name] for name in names)) if names else names
            if more == names:
                return names
            names = more

    # One set.

    def _one_set(self, members: Sequence[str]) -> frozenset[str]:
        """Return a smallest set that is wrong alone, of members that are wrong together."""
        for _ in range(1 if self.rates is None else _NOISY_ATTEMPTS):
            kept: frozenset[str] = _EMPTY
            pool = list(members)
            is_wrong = False
            while pool and not is_wrong:
                unit, around = self._last_needed(kept, pool)
                kept |= unit
                pool = [name for name in pool if name in around and name not in self._closed(kept)]
                is_wrong = self._decide(self._closed(kept), 0.8) is FAIL
            if is_wrong or self.rates is None:
                return self._minimal(kept)
        raise _OneNoiseError

    def _minimal(self, kept: frozenset[str]) -> frozenset[str]:
        """Return a wrong set without the members that it can do without."""
        if self._decide(self._closed(kept), 0.95) is not FAIL:
            if self.rates is None and self._decide(self._closed(kept)) is PASS:
                raise _NoisyError
            return kept
        for name in sorted(kept, key=self.rung.members.index):
            if len(kept) == 1:
                break
            rest = self._without(kept, frozenset((name,)))
            if self._decide(self._closed(rest), 0.1) is FAIL:
                kept = rest
        return kept

    def _last_needed(
        self, kept: frozenset[str], pool: Sequence[str]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Return the switch without which what is on before it is right, and what was on then.

        `kept` with all of the pool is wrong, and `kept` alone is right. Where trials give no answer, more
        than one switch may be returned.
        """
        if self.rates is not None:
            return self._last_by_weight(kept, pool)
        on, left = self._closed(kept), [n for n in pool if n not in self._closed(kept)]
        while len(left) > 1:
            self.suspects = kept | frozenset(left)
            for half in self._divisions(on, left):
                answer = self.answers.of(self.rung.name, on | half)
                if answer is FAIL:
                    left = [name for name in left if name in half]
                    break
                if answer is PASS:
                    on |= half
                    left = [name for name in left if name not in half]
                    break
            else:
                less = self._with_less_around(kept, on, left)
                if less is None:
                    self.grouped.append(frozenset(left))
                    break
                on = less
        return frozenset(left), on

    def _divisions(self, on: frozenset[str], left: Sequence[str]) -> Iterator[frozenset[str]]:
        """Yield parts of these switches, each different: halves in their order first, then others."""
        seen: set[frozenset[str]] = set()
        for attempt in range(4 * _DIVISIONS):
            part = self._part(on, left, attempt)
            if 0 < len(part) < len(left) and part not in seen:
                seen.add(part)
                yield part
            if len(seen) >= _DIVISIONS:
                return

    def _part(self, on: frozenset[str], left: Sequence[str], attempt: int) -> frozenset[str]:
        order = list(left)
        share = (0.5, 0.5, 0.5, 0.5, 0.25, 0.75, 0.125, 0.875)[attempt % 8]
        if attempt == 1:
            order.reverse()
        elif attempt == 4 or attempt == 5:
            pass
        elif attempt:
            self._shuffle(order, attempt)
        total = sum(self._weight[name] for name in order)
        part: set[str] = set()
        weight = 0.0
        within = set(left)
        for name in order:
            if part and weight + self._weight[name] / 2 > share * total:
                break
            more = self._closed(frozenset((name,))) & within
            if len(part | more) < len(left):
                weight += sum(self._weight[each] for each in more - part)
                part |= more
        return frozenset(part)

    def _shuffle(self, order: list[str], attempt: int) -> None:
        """Shuffle in the same way wherever the same switches are divided, whatever was asked before."""
        random.Random(f"{self.limits.seed}.{attempt}.{len(order)}.{order[0]}").shuffle(order)

    def _with_less_around(
        self, kept: frozenset[str], on: frozenset[str], left: Sequence[str]
    ) -> frozenset[str] | None:
        """Return less of what is on, with which these switches are still wrong together."""
        loose = sorted(on - self._closed(kept))
        for attempt in range(_DIVISIONS):
            if not loose:
                return None
            gone = self._random.sample(loose, min(len(loose), 1 + attempt // 3))
            less = self._without([*on, *left], frozenset(gone))
            if less >= frozenset(left) and self.answers.of(self.rung.name, less, 0.9) is FAIL:
                return less - frozenset(left)
        return None

    def _last_by_weight(
        self, kept: frozenset[str], pool: Sequence[str]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """The same where verdicts are noisy: each trial moves the weights of all switches of the pool."""
        assert self.rates is not None
        base = self._closed(kept)
        order = [name for name in pool if name not in base]
        total = sum(self._weight[name] for name in order)
        weights = [self._weight[name] / total for name in order]
        prefixes = self._prefixes(base, order)
        unanswered = 0
        while max(weights) < self.limits.confidence and unanswered < _MOST_REPEATS:
            position = _half(weights)
            if unanswered:  # Trials around the middle may have answers where that one has none.
                spread = 1 + unanswered // 2
                position = min(
                    max(position + self._random.randint(-spread, spread), 1), len(order) - 1
                )
            below = sum(weights[:position])
            chance = below * self.rates.bad + (1 - below) * self.rates.good
            answer = self._again(prefixes[position], chance)
            if answer is UNRESOLVED:
                unanswered += 1
                continue
            unanswered = 0
            bad, good = self.rates.likelihoods(answer)
            moved = [w * (bad if i < position else good) for i, w in enumerate(weights)]
            scale = sum(moved)
            weights = [each / scale for each in moved]
        best = max(range(len(order)), key=weights.__getitem__)
        self.suspects = kept | {order[best]}
        return frozenset((order[best],)), prefixes[best]

    def _prefixes(self, base: frozenset[str], order: Sequence[str]) -> list[frozenset[str]]:
        """Return what is on with the first 0, 1, ... switches of an order."""
        found = [base]
        for name in order:
            found.append(found[-1] | self._closed(frozenset((name,))))
        return found

    # Switches that are on in their order alone.

    def _search_ordered(self) -> Finding:
        """Find the first switch with which the result is wrong."""
        order = list(self.rung.members)
        if self.rates is not None:
            found, before = self._last_by_weight(_EMPTY, order)
        else:
            found, before = self._first_wrong(order)
        ahead = before | found
        necessary = (Trial(self.rung.name, before) if before else Trial(*self.foot),)
        sufficient = (Trial(self.rung.name, ahead),)
        if len(found) > 1:
            self.grouped.append(found)
        return Finding(
            self.rung,
            Kind.FOUND,
            (found,),
            found,
            sufficient,
            necessary,
            grouped=tuple(self.grouped),
            error_rate=self._error_rate(),
        )

    def _first_wrong(self, order: Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
        low, high = 0, len(order)
        silent: set[int] = set()
        while True:
            self.suspects = frozenset(order[low:high])
            open_ = [each for each in range(low + 1, high) if each not in silent]
            if not open_:
                return frozenset(order[low:high]), frozenset(order[:low])
            middle = min(open_, key=lambda each: abs(2 * each - low - high))
            answer = self.answers.of(self.rung.name, frozenset(order[:middle]))
            if answer is UNRESOLVED:
                silent.add(middle)
            elif answer is FAIL:
                high = middle
            else:
                low = middle


def _half(weights: Sequence[float]) -> int:
    """Return how many of the first weights come nearest to half of all; at least 1, and not all."""
    below, best, nearest = 0.0, 1, math.inf
    for position, weight in enumerate(weights[:-1], 1):
        below += weight
        if abs(below - 0.5) < nearest:
            best, nearest = position, abs(below - 0.5)
    return best


def _evidence_of_two(fails: Sequence[int], trials: Sequence[int]) -> float:
    """Return the Bayes factor of two rates, the second one larger, against one rate; all priors uniform.

    The marginal likelihood of f of n is the Beta function B(f + 1, n - f + 1). That the second rate is the
    larger one has the prior 1/2; its posterior is 1 where the counts say so clearly, and is taken from a
    normal approximation of the two posteriors.
    """
    one = _log_beta(sum(fails), sum(trials))
    two = sum(_log_beta(f, n) for f, n in zip(fails, trials, strict=True))
    means = [(f + 1) / (n + 2) for f, n in zip(fails, trials, strict=True)]
    variance = sum(m * (1 - m) / (n + 3) for m, n in zip(means, trials, strict=True))
    larger = 0.5 * math.erfc((means[0] - means[1]) / math.sqrt(2 * variance))
    return math.exp(min(700.0, two - one)) * larger / 0.5


def _log_beta(fails: int, trials: int) -> float:
    return math.lgamma(fails + 1) + math.lgamma(trials - fails + 1) - math.lgamma(trials + 2)
