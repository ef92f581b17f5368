"""All smallest sets of switches that are wrong alone, and the smallest set without which nothing is wrong.

Comes in: a judge, and members that are wrong together. Goes out: sets. Called by `searching.strategy`.

- **One set** (`one_set`): the last switch in their order without which the earlier ones are not wrong is
  found; it is kept on, and the search goes on among the earlier ones, until those that are kept are wrong
  alone. A set of k among N takes k (log2 N + 1) trials.
- **All sets** (`search`): a set that is wrong alone need not be all. Where the result is still wrong without
  one of its members, there is another set among the rest. These deletions are a tree (Reiter, A Theory of
  Diagnosis from First Principles, 1987, section 4), whose shortest way to a right result is the cure.
"""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations

from ray_precheck.searching.bisection import TrialAnswer
from ray_precheck.searching.dependencies import NONE_ON, Dependencies
from ray_precheck.searching.judges import (
    FAIL,
    PASS,
    UNRESOLVED,
    DisagreementError,
    SetJudge,
    UndecidedError,
)

# Deletions that are looked at, at most: five singles that are wrong alone take 5, five pairs 62.
_MOST_DELETIONS = 64
# How often a search that ended at no wrong set begins again with what its trials have told.
_ATTEMPTS = 8
# How many other sets are tried where trials give no answer.
_OTHERS = 4


@dataclass(slots=True)
class MinimalSets:
    """The search, and what it has found. `cure` is None until a deletion has made the result right, `without`
    is what was on then; `silent` are sets of which a part has no answer. Not `is_complete`: there may be more
    sets."""

    judge: SetJudge
    dependencies: Dependencies
    members: Sequence[str]
    random: random.Random
    found: list[frozenset[str]] = field(default_factory=list)
    silent: list[frozenset[str]] = field(default_factory=list)
    cure: frozenset[str] | None = None
    without: frozenset[str] | None = None
    is_complete: bool = True

    def search(self) -> None:
        """Find all sets."""
        queue = deque([NONE_ON])
        seen, cures, looked = {NONE_ON}, list[frozenset[str]](), 0
        while queue:
            deleted = queue.popleft()
            if any(each <= deleted for each in cures):
                continue
            found = next((each for each in self.found if not each & deleted), None)
            if found is None:
                looked += 1
                if looked > _MOST_DELETIONS:
                    self.is_complete = False
                    break
                found = self._set_without(deleted)
            if found is None:
                cures.append(deleted)
                continue
            for name in sorted(found, key=self.members.index):
                deeper = deleted | {name}
                if deeper not in seen:
                    seen.add(deeper)
                    queue.append(deeper)
        self.found = [one for one in self.found if not any(other < one for other in self.found)]

    def _set_without(self, deleted: frozenset[str]) -> frozenset[str] | None:
        """Return a set that is wrong without these switches; None where there is none."""
        rest = self.dependencies.without(self.members, deleted)
        if deleted:
            failed, passed = self._wrong_part(rest)
            if failed is None:
                if passed is not None:
                    self.judge.holds(passed, PASS)
                if self.cure is None:
                    self.cure, self.without = deleted, passed
                return None
            rest = failed
        found = self.one_set([name for name in self.members if name in rest])
        if found not in self.found:
            self.found.append(found)
        return found

    def _wrong_part(
        self, rest: frozenset[str]
    ) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        """Return a wrong part of some switches, or a part that is right, as large as can be.

        That is all of them, unless there is no answer with all of them: then more and more of them are taken
        away until there is one, and put back as long as there is.
        """
        order, gone, answer = sorted(rest), NONE_ON, self.judge.decide(rest, 0.3)
        for size in _sizes(len(order)):
            if answer is not UNRESOLVED:
                break
            gone = frozenset(self.random.sample(order, size))
            answer = self._answer_without(rest, gone)
        pieces = deque([gone] if gone and answer is PASS else [])
        while pieces:
            piece = pieces.popleft()
            # Another switch beside them may have to go: then the piece is not wrong, and stays away.
            for others in range(1 + (_OTHERS if len(piece) == 1 else 0)):
                more = self.random.sample(order, min(others, 1))
                answer = self._answer_without(rest, (gone - piece).union(more))
                if answer is not UNRESOLVED:
                    break
            if answer is FAIL:
                return self.dependencies.without(rest, (gone - piece).union(more)), None
            if answer is PASS and not more:
                gone -= piece
            elif len(piece) > 1:
                names = sorted(piece)
                half = len(names) // 2
                pieces.extend((frozenset(names[:half]), frozenset(names[half:])))
            answer = PASS
        self.is_complete &= answer is not UNRESOLVED
        part = self.dependencies.without(rest, gone)
        return (part, None) if answer is FAIL else (None, part if answer is PASS else None)

    def _answer_without(self, rest: frozenset[str], gone: frozenset[str]) -> TrialAnswer:
        part = self.dependencies.without(rest, gone)
        return self.judge.decide(part, 0.2) if part else PASS

    def one_set(self, members: Sequence[str]) -> frozenset[str]:
        """Return a smallest set that is wrong alone, of members that are wrong together.

        Raises:
            DisagreementError: the answers cannot be all true.
            UndecidedError: so many attempts found none.
        """
        kept, pool = NONE_ON, list(members)
        attempts = 0
        while attempts < _ATTEMPTS:
            unit, around = self.judge.boundary(kept, pool)
            wider = kept | {unit}
            alone = self.dependencies.closed(wider)
            if self.judge.decide(alone, 0.8) is FAIL:
                return self._minimal(wider)
            rest = [name for name in pool if name in around and name not in alone]
            if not self.judge.holds(alone | around, FAIL):
                attempts += 1
                kept, pool = NONE_ON, list(members)
                continue
            if not rest:
                raise DisagreementError
            kept, pool = wider, rest
        raise UndecidedError

    def _minimal(self, kept: frozenset[str]) -> frozenset[str]:
        """Return a wrong set without the members that it can do without, and without those that others
        need."""
        whole = self.dependencies.closed(kept)
        while smaller := self._smaller(whole):
            whole = smaller
        parts = [self.dependencies.without(whole, frozenset((name,))) for name in sorted(whole)]
        answers = {part: self.judge.decide(part, 0.1) for part in parts if part}
        for part, answer in answers.items():
            if answer is PASS:
                self.judge.holds(part, PASS)
        needed = frozenset().union(*(self.dependencies.needs.get(name, ()) for name in whole))
        found = whole - needed or whole
        if len(found) > 1 and UNRESOLVED in answers.values():
            self.silent.append(found)
        return found

    def _smaller(self, whole: frozenset[str]) -> frozenset[str] | None:
        """Return a smaller set that is wrong: without a member, or, where there is no answer without one, a
        member or two alone."""
        order = [name for name in reversed(self.members) if name in whole]
        parts = [self.dependencies.without(whole, frozenset((name,))) for name in order]
        answers = [self.judge.decide(part, 0.1) if part else PASS for part in parts]
        if FAIL in answers:
            return parts[answers.index(FAIL)]
        if UNRESOLVED in answers:
            for names in chain(combinations(order, 1), combinations(order, 2)):
                part = self.dependencies.closed(frozenset(names))
                if part < whole and self.judge.decide(part, 0.1) is FAIL:
                    return part
        return None


def _sizes(count: int) -> Iterator[int]:
    """Yield how many of some switches are taken away: twice as many each time, at last one half."""
    size = 1
    while 2 * size < count:
        yield size
        size *= 2
    yield from [max(1, count // 2)] * 2 * _OTHERS
