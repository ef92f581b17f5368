"""The smallest sets of switches that make a result wrong, by trials: answers in, trials out; pure.

Comes in: rungs (a ladder of settings, each with its switches), and the answers of trials. Goes out: the next
trials, as many as there are workers, and in the end a `RungFinding` for each rung that was looked at. Called
by `commands.bisect`, which runs the trials, and by `commands.naive`.

A strategy (`searching.strategy`) is sequential code that asks for one answer after the other. `Search` runs
it again from its beginning with the answers that there are: the first answer that it misses is the next
trial. For more trials at once it is run with assumed answers, the likelier assumptions first, so that
workers speculate on both answers; what is found does not depend on how many there are.
"""

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import TypeAlias

# How many assumed runs of a strategy are tried for each worker before it stays idle.
_TRIES_A_WORKER = 6


class TrialAnswer(Enum):
    """What a trial said: the result is right, wrong, or there is none."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNRESOLVED = "UNRESOLVED"


@dataclass(frozen=True, slots=True)
class RungSwitch:
    """Something that can be on or off.

    It can be on only where all that it `needs` is on. `stays`: it is structural, on in every trial. `hits`
    is how often it did something, None where that is not known: what had no hit is suspected last. `lines`
    switch it off in the user's code: pairs of a language and a line.
    """

    name: str
    needs: tuple[str, ...] = ()
    stays: bool = False
    hits: int | None = None
    lines: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Rung:
    """A step of the ladder: switches that are all off at its foot and all on at its top.

    Its foot is the top of the rung `over`; "" for a foot of its own. With `is_ordered` only the first
    switches in their order can be on without the later ones (commits, the operators of a cropped model).
    `title` says what it is in a sentence ("oneDNN kernels"), `lines` switch all of it off.
    """

    name: str
    switches: tuple[RungSwitch, ...] = ()
    over: str = ""
    is_ordered: bool = False
    title: str = ""
    lines: tuple[tuple[str, str], ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the switches that can be off."""
        return tuple(each.name for each in self.switches if not each.stays)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run: these members of a rung are on, for the `repeat`-th time, counted from 1."""

    rung: str
    enabled: frozenset[str]
    repeat: int = 1


class SearchEnd(Enum):
    """How the search of a rung ended."""

    CLEAN = "right with all of it on"
    FOUND = "the smallest sets are known"
    WRONG_AT_FOOT = "wrong with all of it off"
    NOISE = "wrong as often with all of it off as on"
    UNRESOLVED = "no answer with all of it on, or off"
    BUDGET = "the trials or the time were used up"


@dataclass(frozen=True, slots=True)
class RungFinding:
    """What is known of a rung.

    `sets` are the smallest sets that are wrong alone: several are alternatives. `cure` is the smallest set
    without which the result is right. `sufficient` are trials that failed with one of the sets alone,
    `necessary` those that passed without the cure; both are empty where there is no such trial. `suspects`
    is the smallest set known to hold a culprit where the search could not end. `grouped` are sets of which
    parts could not be told apart, since these trials gave no answer. `error_rate` is the chance that a
    verdict is wrong, where verdicts differ between equal trials.
    """

    rung: Rung
    kind: SearchEnd
    sets: tuple[frozenset[str], ...] = ()
    cure: frozenset[str] = frozenset()
    sufficient: tuple[Trial, ...] = ()
    necessary: tuple[Trial, ...] = ()
    suspects: frozenset[str] = frozenset()
    grouped: tuple[frozenset[str], ...] = ()
    error_rate: float = 0.0
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """How a search is done.

    `repeats` is how often the foot and the top of a rung are tried before it is said that it is right with
    all of it on, or wrong with all of it off; 1 where it is known that equal trials agree: then nothing is
    tried twice. `most_trials` 0 is no limit. `one_by_one`: first of all each switch that had hits is
    switched off alone. `confidence` is that of each decision where verdicts are noisy.
    """

    repeats: int = 6
    most_trials: int = 0
    one_by_one: bool = False
    confidence: float = 0.995
    seed: int = 0


class MissingAnswer(Exception):
    """A strategy asked for an answer that there is not yet; `chance` is that of FAIL as it sees it."""

    def __init__(self, trial: Trial, chance: float) -> None:
        super().__init__(trial)
        self.trial = trial
        self.chance = chance


class BudgetSpent(Exception):
    """The answers that the limits allow are used up."""


Known: TypeAlias = Mapping[Trial, TrialAnswer]
Strategy: TypeAlias = Callable[["Answers"], list[RungFinding]]


@dataclass(slots=True)
class Answers:
    """What a strategy asks: by what is known, or by an `oracle` that is asked for what is missing.

    `asked` are the trials whose answers were used, in their order. `most` is how many there may be, 0 for no
    limit.
    """

    known: Known
    most: int = 0
    oracle: Callable[[Trial], TrialAnswer] | None = None
    asked: dict[Trial, TrialAnswer] = field(default_factory=dict)
    _of_set: dict[str, dict[frozenset[str], list[TrialAnswer]]] = field(default_factory=dict)

    def so_far(self, rung: str, enabled: frozenset[str]) -> Sequence[TrialAnswer]:
        """Return the answers of equal trials that were used already."""
        return self._of_set.get(rung, {}).get(enabled, ())

    def sets_of(self, rung: str) -> Collection[frozenset[str]]:
        """Return the sets of a rung of which there are answers that were used already."""
        return self._of_set.get(rung, {})

    def of(self, rung: str, enabled: frozenset[str], chance: float = 0.5) -> TrialAnswer:
        """Return the first answer of a trial."""
        found = self.so_far(rung, enabled)
        return found[0] if found else self.again(rung, enabled, chance)

    def again(self, rung: str, enabled: frozenset[str], chance: float = 0.5) -> TrialAnswer:
        """Return one answer more of a trial that may differ from run to run."""
        trial = Trial(rung, enabled, 1 + len(self.so_far(rung, enabled)))
        if self.most and len(self.asked) >= self.most:
            raise BudgetSpent
        found = self.known.get(trial)
        if found is None:
            if self.oracle is None:
                raise MissingAnswer(trial, chance)
            found = self.oracle(trial)
        self.asked[trial] = found
        self._of_set.setdefault(rung, {}).setdefault(enabled, []).append(found)
        return found


class Search:
    """A search whose trials are run elsewhere; `answers` are those of an earlier run."""

    def __init__(self, strategy: Strategy, answers: Known | None = None, most: int = 0) -> None:
        self._strategy = strategy
        self._known: dict[Trial, TrialAnswer] = dict(answers or {})
        self._most = most
        self._running: set[Trial] = set()
        self.findings: list[RungFinding] | None = None

    @property
    def known(self) -> Known:
        """All answers that there are."""
        return self._known

    def answer(self, trial: Trial, answer: TrialAnswer) -> None:
        """Take the answer of a trial."""
        self._running.discard(trial)
        self._known[trial] = answer

    def end(self) -> list[RungFinding]:
        """End with what is known now: the time is used up."""
        self.findings = self._strategy(Answers(self._known, self._most, _no_time))
        return self.findings

    def wanted(self, workers: int) -> list[Trial]:
        """Return the trials to begin where so many workers have nothing to do; `findings` are there once no
        answer is missing."""
        found: list[Trial] = []
        numbers = count()
        paths: list[tuple[float, int, dict[Trial, TrialAnswer]]] = [(-1.0, next(numbers), {})]
        for _ in range(_TRIES_A_WORKER * (workers + len(self._running)) + 1):
            if not paths or len(found) >= workers:
                break
            likelihood, _, assumed = heapq.heappop(paths)
            try:
                findings = self._strategy(Answers({**self._known, **assumed}, self._most))
            except MissingAnswer as missing:
                trial, chance = missing.trial, min(max(missing.chance, 0.02), 0.98)
                if trial not in self._running and trial not in found:
                    found.append(trial)
                for answer, share in ((TrialAnswer.FAIL, chance), (TrialAnswer.PASS, 1 - chance)):
                    path = {**assumed, trial: answer}
                    heapq.heappush(paths, (likelihood * share, next(numbers), path))
            else:
                if not assumed:
                    self.findings = findings
                    return []
        self._running.update(found)
        return found


def _no_time(trial: Trial) -> TrialAnswer:
    raise BudgetSpent


def solve(
    strategy: Strategy, oracle: Callable[[Trial], TrialAnswer], most: int = 0
) -> tuple[list[RungFinding], Sequence[Trial]]:
    """Search with an oracle that answers at once; return the findings and the trials in their order."""
    answers = Answers({}, most, oracle)
    findings = strategy(answers)
    return findings, list(answers.asked)
