"""Is the right set found in simulated worlds, in how many trials?

    python -m scripts.bisect_worlds [--worlds 10000] [--seed 0]

Comes in: nothing. Goes out: the table of scripts/README, and exit code 1 where a bound is not met. A world has
switches, some of which are wrong alone, in pairs, or in alternatives; dependencies, declared or not; trials
without an answer; verdicts that are wrong now and then.
"""

import argparse
import math
import random
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

from ray_precheck.searching.bisection import (
    Answer,
    Finding,
    Kind,
    Limits,
    Rung,
    Search,
    Switch,
    Trial,
    solve,
)
from ray_precheck.searching.strategy import ladder


@dataclass
class World:
    """What the search does not know. `unresolved` is the share of sets, or with noise of trials, that give no
    answer; `noise` the share of wrong verdicts; with `fails` verdicts are FAIL at that rate whatever is on."""

    rung: Rung
    groups: frozenset[frozenset[str]]
    hidden: dict[str, str]
    unresolved: float
    noise: float
    seed: int
    fails: float | None = None
    asked: int = 0
    answers: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.answers = random.Random(f"answers {self.seed}")

    def __call__(self, trial: Trial) -> Answer:
        self.asked += 1
        on = trial.enabled
        if self.fails is not None:
            return Answer.FAIL if self.answers.random() < self.fails else Answer.PASS
        ends = not on or len(on) == len(self.rung.members)
        for switch in self.rung.switches:
            if switch.name in on and not on.issuperset(switch.needs):
                raise AssertionError(f"{switch.name} is on without {switch.needs}")
        if any(name in on and needed not in on for name, needed in self.hidden.items()):
            return Answer.UNRESOLVED
        key = random.Random(f"{self.seed} {sorted(on)}") if not self.noise else self.answers
        proof = any(on == self.closed(group) for group in self.groups)
        if not ends and not proof and key.random() < self.unresolved:
            return Answer.UNRESOLVED
        is_wrong = any(group <= on for group in self.groups)
        if self.answers.random() < self.noise:
            is_wrong = not is_wrong
        return Answer.FAIL if is_wrong else Answer.PASS

    def closed(self, names: frozenset[str]) -> frozenset[str]:
        needs = {each.name: each.needs for each in self.rung.switches}
        while True:
            more = names.union(*(needs[name] for name in names))
            more |= {self.hidden[name] for name in more if name in self.hidden}
            if more == names:
                return names
            names = more

    def possible(self) -> float:
        """Return log2 of the number of answers that are possible with so many culprits or fewer."""
        count = len(self.rung.members)
        most = len(frozenset().union(*self.groups)) if self.groups else 1
        return math.log2(sum(math.comb(count, k) * _PARTITIONS[k] for k in range(1, most + 1)))


# In how many ways k culprits are divided into singles and pairs (involutions).
_PARTITIONS = {1: 1, 2: 2, 3: 4, 4: 10, 5: 26}


def make_world(
    seed: int, *, noise: float = 0.0, culprits: int = 0, count: int = 0, plain: bool = False
) -> World:
    rng = random.Random(seed)
    count = count or int(10 * 50 ** rng.random())
    names = [f"s{number}" for number in range(count)]
    k = culprits or rng.randint(1, 5)
    chosen = rng.sample(names, min(k, count // 2))
    groups = []
    while chosen:
        size = 2 if len(chosen) > 1 and rng.random() < 0.4 else 1
        groups.append(frozenset(chosen[:size]))
        chosen = chosen[size:]
    needs: dict[str, tuple[str, ...]] = defaultdict(tuple)
    hidden: dict[str, str] = {}
    if not plain:
        for name in rng.sample(names, rng.randint(0, count // 5)):
            other = rng.choice(names)
            if other < name:  # without a circle
                needs[name] = (other,)
        for _ in range(rng.choice((0, 0, 1, 2, 3))):
            name, other = rng.sample(names, 2)
            if other < name:
                hidden[name] = other
    rung = Rung("r", tuple(Switch(name, needs[name]) for name in names))
    unresolved = 0.0 if plain or rng.random() < 0.4 else rng.uniform(0, 0.3)
    return World(rung, frozenset(groups), hidden, unresolved, noise, seed)


def is_right(world: World, finding: Finding) -> bool:
    if finding.kind is not Kind.FOUND:
        return False
    return frozenset(finding.sets) == world.groups


def search(world: World, limits: Limits = Limits()) -> tuple[Finding, int]:
    findings, _ = solve(ladder([world.rung], limits), world, limits.most_trials)
    return findings[-1], world.asked


def rounds(world: World, workers: int, limits: Limits = Limits()) -> tuple[Finding, int]:
    """Search with so many trials at once; return the finding and the rounds."""
    asked = Search(ladder([world.rung], limits))
    number = 0
    while trials := asked.wanted(workers):
        number += 1
        for trial in trials:
            asked.answer(trial, world(trial))
    assert asked.findings is not None
    return asked.findings[-1], number


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    begin, count = given.seed * 1_000_000, given.worlds
    right, over, trials = 0, 0, []
    for seed in range(begin, begin + count):
        world = make_world(seed)
        finding, asked = search(world)
        right += is_right(world, finding)
        bound = 4 * world.possible() / (1 - world.unresolved)
        over += asked > bound
        trials.append(asked / bound)
    print(
        f"without noise: {right} of {count} right; {over} over the bound; median share of it {median(trials):.2f}"
    )
    few = max(20, count // 20)
    right, over, trials = 0, 0, []
    for seed in range(begin, begin + few):
        world = make_world(seed, noise=random.Random(seed).uniform(0.02, 0.3))
        finding, asked = search(world)
        right += is_right(world, finding)
        entropy = -sum(p * math.log2(p) for p in (world.noise, 1 - world.noise))
        bound = 4 * world.possible() / ((1 - world.unresolved) * (1 - entropy))
        over += asked > bound
        trials.append(asked / bound)
    print(
        f"noise: {right} of {few} right; {over} over the bound; median share of it {median(trials):.2f}"
    )
    right, trials = 0, []
    for seed in range(begin, begin + few):
        world = make_world(seed, noise=0.3, culprits=1, count=500, plain=True)
        finding, asked = search(world, Limits(most_trials=300))
        right += is_right(world, finding)
        trials.append(asked)
    print(
        f"one of 500, 30 % wrong verdicts: {right} of {few} within 300 trials; median {median(trials)}"
    )
    accused = 0
    for seed in range(begin, begin + count):
        world = make_world(seed, plain=True)
        world.fails = random.Random(seed).random()
        finding, _ = search(world)
        accused += finding.kind is Kind.FOUND
    print(f"noise alone: {accused} of {count} accused")
    for size in (100, 200, 276, 500):
        shares = []
        for seed in range(begin, begin + 40):
            one = rounds(make_world(seed, culprits=1, count=size, plain=True), 1)
            eight = rounds(make_world(seed, culprits=1, count=size, plain=True), 8)
            assert one[0].sets == eight[0].sets
            shares.append(eight[1] / one[1])
        print(
            f"one of {size}: 8 workers take {median(shares):.2f} of the rounds, at most {max(shares):.2f}"
        )
    most = max(
        search(make_world(seed, culprits=1, count=276, plain=True), Limits(repeats=1))[1]
        for seed in range(begin, begin + 276)
    )
    print(f"one of 276: at most {most} trials with two baselines and two proofs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
