"""How the smallest wrong sets of a ladder are searched; pure.

Comes in: rungs, limits, and `Answers` to ask. Goes out: a finding for each rung that was looked at: the first
one that is wrong ends the ladder. Used as the strategy of a `bisection.Search`.

A rung is wrong if all of it on fails and all of it off passes; both are tried twice. If these trials agree,
each set is decided by one trial (`judges.ExactJudge`), and what is found is tried twice. As soon as equal
trials disagree, their rates of FAIL are told apart by a Bayes factor, or it is said that they are not, and
the search begins anew with `judges.NoisyJudge`, which uses all answers that there are.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ray_precheck.searching.bisection import (
    Answers,
    BudgetSpent,
    Limits,
    Rung,
    RungFinding,
    RungSwitch,
    SearchEnd,
    Strategy,
    Trial,
    TrialAnswer,
)
from ray_precheck.searching.dependencies import NONE_ON, Dependencies
from ray_precheck.searching.evidence import Known, Tally
from ray_precheck.searching.judges import (
    FAIL,
    PASS,
    UNRESOLVED,
    DisagreementError,
    ExactJudge,
    NoisyJudge,
    SetJudge,
    UndecidedError,
)
from ray_precheck.searching.minimal_sets import MinimalSets

# By how much two rates must be likelier than one before they are searched for, and before they are reported.
_BEGIN, _REPORT = math.log(4), math.log(300)
# By how much one rate must be likelier than two before it is called noise: for rates near 1/2 that many
# trials of each end do not tell more.
_NOISE, _LEAST_ENDS, _MOST_ENDS = -math.log(20), 30, 80


def ladder(rungs: Sequence[Rung], limits: Limits) -> Strategy:
    """Return the strategy that climbs these rungs and searches the first one that is wrong."""

    def strategy(answers: Answers) -> list[RungFinding]:
        tops: dict[str, Trial] = {}
        findings: list[RungFinding] = []
        for rung in rungs:
            foot = tops.get(rung.over, Trial(rung.name, NONE_ON))
            findings.append(_RungSearch(rung, foot, limits, answers).finding())
            if findings[-1].kind not in (SearchEnd.CLEAN, SearchEnd.UNRESOLVED):
                break
            if findings[-1].kind is SearchEnd.UNRESOLVED and not rung.over:
                break  # Nothing is known to be right that the next rung could be held against.
            tops[rung.name] = Trial(rung.name, frozenset(rung.members))
        return findings

    return strategy


def smallest_set(names: Sequence[str], holds: Callable[[frozenset[str]], bool]) -> frozenset[str]:
    """Return the smallest set of names for which `holds` is true, as it is for all of them and not for none.

    No name of it can be left out; of several sets of one size it is the first in the order of the names. No
    set is tried twice.
    """
    known = {frozenset[str](): False, frozenset(names): True}
    rung = Rung("", tuple(RungSwitch(name) for name in names))

    def oracle(trial: Trial) -> TrialAnswer:
        held = known[trial.enabled] if trial.enabled in known else holds(trial.enabled)
        return FAIL if held else PASS

    search = _RungSearch(rung, Trial("", NONE_ON), Limits(repeats=1), Answers({}, oracle=oracle))
    first = search.sets.one_set(names)
    if len(first) == 1:
        return first
    search.sets.search()
    return min(search.sets.found, key=lambda each: (len(each), sorted(map(names.index, each))))


@dataclass(slots=True)
class _RungSearch:
    """The search of one rung. `foot` is the trial of which all of its switches are off."""

    rung: Rung
    foot: Trial
    limits: Limits
    answers: Answers
    top: Trial = field(init=False)
    dependencies: Dependencies = field(init=False)
    sets: MinimalSets = field(init=False)

    def __post_init__(self) -> None:
        self.top = Trial(self.rung.name, frozenset(self.rung.members))
        self.dependencies = Dependencies.of(self.rung)
        self._begin(ExactJudge(self.rung, self.foot, self.answers, self.limits, self.dependencies))

    def _begin(self, judge: SetJudge) -> None:
        members = self.dependencies.in_order(self.rung.members)
        numbers = random.Random(f"{self.limits.seed}.{self.rung.name}")
        self.sets = MinimalSets(judge, self.dependencies, members, numbers)

    def finding(self) -> RungFinding:
        """Search; whatever ends the search, what is known by then is in the finding."""
        try:
            try:
                ended = self._ends()
                return RungFinding(self.rung, ended) if ended is not None else self._search()
            except DisagreementError:
                return self._search_noisy()
        except (BudgetSpent, UndecidedError):
            return self._unfinished()

    def _search_noisy(self) -> RungFinding:
        """Search again with a judge that expects equal trials to disagree."""
        noise = RungFinding(self.rung, SearchEnd.NOISE, is_complete=False)
        known = Known(Tally.of(self._so_far(self.top)), Tally.of(self._so_far(self.foot)))
        judge = NoisyJudge(
            self.rung, self.foot, self.answers, self.limits, self.dependencies, known
        )
        self._begin(judge)
        if not self.top.enabled or not self._tells_apart(judge, _BEGIN):
            return noise
        try:
            found = self._search()
        except UndecidedError:
            found = self._unfinished()
        return found if self._tells_apart(judge, _REPORT) else noise

    def _unfinished(self) -> RungFinding:
        """Return what is known before the end of a search."""
        sets, judge = self.sets, self.sets.judge
        if isinstance(judge, NoisyJudge) and judge.known.log_evidence_of_two <= _REPORT:
            return RungFinding(self.rung, SearchEnd.BUDGET, is_complete=False)
        return RungFinding(
            self.rung,
            SearchEnd.BUDGET,
            tuple(sets.found),
            suspects=judge.suspects,
            error_rate=judge.error_rate,
            is_complete=False,
        )

    def _search(self) -> RungFinding:
        if self.rung.is_ordered:
            return self._search_ordered()
        sets, judge = self.sets, self.sets.judge
        if self.limits.one_by_one:
            self._one_by_one()
        sets.search()
        alone = [self.dependencies.closed(each) for each in sets.found]
        wrong = [each for each in alone if judge.decide(each, 0.95) is FAIL]
        right = [] if sets.without is None else [sets.without]
        return self._found(
            RungFinding(
                self.rung,
                SearchEnd.FOUND,
                tuple(sets.found),
                sets.cure or NONE_ON,
                grouped=tuple(sets.silent),
                is_complete=sets.is_complete,
            ),
            wrong,
            right,
        )

    def _search_ordered(self) -> RungFinding:
        """Find the first switch with which the result is wrong."""
        order = self.rung.members
        right, wrong = self.sets.judge.first_wrong(order)
        found = frozenset(order[right:wrong])
        return self._found(
            RungFinding(
                self.rung,
                SearchEnd.FOUND,
                (found,),
                found,
                grouped=(found,) if len(found) > 1 else (),
            ),
            [frozenset(order[:wrong])],
            [frozenset(order[:right])],
        )

    def _found(
        self, finding: RungFinding, wrong: Sequence[frozenset[str]], right: Sequence[frozenset[str]]
    ) -> RungFinding:
        """Return a finding with its proofs: sets that are wrong, and those that are right.

        Raises:
            DisagreementError: one of them does not hold.
        """
        judge = self.sets.judge
        for answer, sets in ((FAIL, wrong), (PASS, right)):
            for each in sets:
                judge.holds(each, answer)
        if isinstance(judge, ExactJudge) and self.limits.repeats > 1:
            # By luck alone equal rates of FAIL give two answers like these in one of 16 rungs at most, and
            # three in one of 64. In an ordered rung a single wrong verdict misleads to a place whose one
            # proof is true.
            self._end(self.foot, 3, 0.05)
            self._end(self.top, 3, 0.95)
            for answer, sets in ((FAIL, wrong), (PASS, right)):
                for each in sets if self.rung.is_ordered else ():
                    self._end(self._trial(each), 4, 0.95 if answer is FAIL else 0.05)
        return replace(
            finding,
            sufficient=tuple(self._proof(each, FAIL) for each in wrong),
            necessary=tuple(self._proof(each, PASS) for each in right),
            error_rate=judge.error_rate,
        )

    def _trial(self, enabled: frozenset[str]) -> Trial:
        return replace(self.top, enabled=enabled) if enabled else self.foot

    def _proof(self, enabled: frozenset[str], answer: TrialAnswer) -> Trial:
        trial = self._trial(enabled)
        answers = self._so_far(trial)
        return replace(trial, repeat=1 + (answers.index(answer) if answer in answers else 0))

    def _one_by_one(self) -> None:
        """Switch those with hits off one by one, until the result is right without one that is wrong
        alone."""
        sets, judge = self.sets, self.sets.judge
        for switch in self.rung.switches:
            if switch.stays or not switch.hits:
                continue
            single = frozenset((switch.name,))
            if judge.decide(self.dependencies.without(sets.members, single), 0.2) is PASS:
                if judge.decide(self.dependencies.closed(single), 0.8) is FAIL:
                    sets.found.append(single)
                return

    # The foot and the top.

    def _ends(self) -> SearchEnd | None:
        """Try the foot and the top; return how the rung ends if there is nothing to search.

        Raises:
            DisagreementError: equal ones differ.
        """
        few, many = min(2, self.limits.repeats), self.limits.repeats
        foot = self._end(self.foot, few if self.top.enabled else many, 0.05)
        top = self._end(self.top, few, 0.7) if self.top.enabled else foot
        if foot is FAIL:
            self._end(self.foot, many, 0.95)
            return SearchEnd.WRONG_AT_FOOT
        if top is PASS and foot is PASS:
            self._end(self.top, many, 0.05)
            return SearchEnd.CLEAN
        if UNRESOLVED in (foot, top):
            return SearchEnd.UNRESOLVED
        self.sets.judge.suspects = self.top.enabled
        return None

    def _end(self, trial: Trial, repeats: int, chance: float) -> TrialAnswer:
        """Return the answer that this many trials agree upon; what has none is tried `limits.repeats` times.

        Raises:
            DisagreementError: they do not agree.
        """
        key = trial.rung, trial.enabled
        while True:
            answers = self.answers.so_far(*key)
            tally = Tally.of(answers)
            if tally.fails and tally.passes:
                raise DisagreementError
            if tally.total >= repeats or len(answers) - tally.total >= self.limits.repeats:
                break
            self.answers.again(*key, chance)
        if not tally.total:
            return UNRESOLVED
        return FAIL if tally.fails else PASS

    def _tells_apart(self, judge: NoisyJudge, limit: float) -> bool:
        """Try the foot and the top until their rates of FAIL are told apart, if that many trials tell."""
        while (evidence := judge.known.log_evidence_of_two) <= limit:
            counts = judge.known.bad.total, judge.known.good.total
            tried = len(self._so_far(self.foot)) + len(self._so_far(self.top))
            if (min(counts) >= _LEAST_ENDS and evidence < _NOISE) or tried >= 2 * _MOST_ENDS:
                return False
            judge.ask_end(is_top=counts[0] <= counts[1])
        return True

    def _so_far(self, trial: Trial) -> Sequence[TrialAnswer]:
        return self.answers.so_far(trial.rung, trial.enabled)
