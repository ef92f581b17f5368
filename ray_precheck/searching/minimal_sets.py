"""All smallest sets of switches that are wrong alone, and the smallest set without which nothing is wrong.

Comes in: a judge, and members that are wrong together. Goes out: sets. Called by `searching.strategy`.

- **One set** (`_one_set`): the last switch in their order without which the earlier ones are not wrong is
  found; it is kept on, and the search goes on among the earlier ones, until those that are kept are wrong
  alone. A set of k among N takes k (log2 N + 1) trials.
- **All sets** (`search`): a set that is wrong alone need not be all. Where the result is still wrong without
  one of its members, there is another set among the rest. These deletions are a tree (Reiter, A Theory of
  Diagnosis from First Principles, 1987, section 4), whose shortest way to a right result is the cure.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from ray_precheck.searching.bisection import Answer
from ray_precheck.searching.judges import (
    FAIL,
    NONE_ON,
    PASS,
    UNRESOLVED,
    Dependencies,
    DisagreementError,
    Judge,
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
    is what was on then; `silent` are sets of which a part has no answer."""

    judge: Judge
    dependencies: Dependencies
    members: Sequence[str]
    random: random.Random
    found: list[frozenset[str]] = field(default_factory=list)
    silent: list[frozenset[str]] = field(default_factory=list)
    cure: frozenset[str] | None = None
    without: frozenset[str] | None = None

    def search(self) -> bool:
        """Find all sets; return whether all deletions were looked at."""
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
                    return False
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
        return True

    def _set_without(self, deleted: frozenset[str]) -> frozenset[str] | None:
        """Return a set that is wrong without these switches; None where there is none."""
        rest = self.dependencies.without(self.members, deleted)
        if deleted:
            failed, passed = self._wrong_part(rest)
            if failed is None:
                if self.cure is None:
                    self.cure, self.without = deleted, passed
                return None
            rest = failed
        found = self._one_set([name for name in self.members if name in rest])
        if found not in self.found:
            self.found.append(found)
        return found

    def _wrong_part(
        self, rest: frozenset[str]
    ) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        """Return a wrong part of some switches, or the largest part that is right.

        That is all of them, unless there is no answer with all of them.
        """
        answer = self.judge.decide(rest, 0.3)
        if answer is not UNRESOLVED:
            return (rest, None) if answer is FAIL else (None, rest)
        gone, passed = self._least_gone(rest)
        if gone is None:
            return passed, None
        # What is gone may be what was wrong: other switches of as many are taken away.
        for _ in range(_OTHERS):
            left = sorted(rest - gone)
            other = frozenset(self.random.sample(left, min(len(gone), len(left))))
            part = self.dependencies.without(rest, other)
            answer = self.judge.decide(part, 0.2)
            if answer is FAIL:
                return part, None
            if answer is PASS:
                break
        return None, passed

    def _least_gone(
        self, rest: frozenset[str]
    ) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        """Return the fewest switches without which some are right, and these; None and a wrong part where
        there is one."""
        order = sorted(rest)
        gone, size = NONE_ON, 1
        for attempt in range(4 * _OTHERS):
            gone = frozenset(self.random.sample(order, min(size, len(order))))
            part = self.dependencies.without(rest, gone)
            answer = self.judge.decide(part, 0.2)
            if answer is FAIL:
                return None, part
            if answer is PASS:
                break
            size = min(len(order), size * 2 if attempt % 2 else size)
        else:
            return NONE_ON, None
        passed = part
        while len(gone) > 1:
            names = self.random.sample(sorted(gone), len(gone))
            for half in (names[: len(names) // 2], names[len(names) // 2 :]):
                part = self.dependencies.without(rest, frozenset(half))
                answer = self.judge.decide(part, 0.2)
                if answer is FAIL:
                    return None, part
                if answer is PASS:
                    gone, passed = frozenset(half), part
                    break
            else:
                break
        return gone, passed

    def _one_set(self, members: Sequence[str]) -> frozenset[str]:
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
        """Return a wrong set without the members that it can do without."""
        is_silent = True
        while len(kept) > 1:
            answers = {}
            for name in sorted(kept, key=self.members.index):
                less = self.dependencies.without(kept, frozenset((name,)))
                answers[less] = self._alone(less)
                if answers[less] is FAIL:
                    kept = less
                    break
            else:
                is_silent = UNRESOLVED in answers.values()
                smaller = self._smaller(kept) if is_silent else None
                if smaller is None:
                    break
                kept = smaller
        if len(kept) > 1 and is_silent:
            self.silent.append(kept)
        return kept

    def _smaller(self, kept: frozenset[str]) -> frozenset[str] | None:
        """Return a single member, or a pair, that is wrong alone; its neighbours may have no answer."""
        order = sorted(kept, key=self.members.index)
        for size in (1, 2):
            for names in combinations(order, size):
                if size < len(kept) and self._alone(frozenset(names)) is FAIL:
                    return frozenset(names)
        return None

    def _alone(self, names: frozenset[str]) -> Answer:
        return self.judge.decide(self.dependencies.closed(names), 0.3) if names else PASS
