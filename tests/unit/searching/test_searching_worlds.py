"""The short form of `python -m scripts.bisect_worlds`, and worlds that other people have thought of."""

import importlib
import random
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.searching.bisection import (
    Limits,
    Rung,
    RungFinding,
    RungSwitch,
    SearchEnd,
    TrialAnswer,
    solve,
)
from ray_precheck.searching.strategy import ladder
from scripts.bisect_worlds import finding_of, make_world

pytestmark = pytest.mark.unit
EXACT = Limits(repeats=1)
PASS, FAIL, UNRESOLVED = TrialAnswer.PASS, TrialAnswer.FAIL, TrialAnswer.UNRESOLVED


def test_without_wrong_verdicts_all_sets_are_found() -> None:
    assert sum(world.is_right(finding_of(world)) for world in map(make_world, range(300))) >= 297


def test_through_wrong_verdicts_nearly_all_sets_are_found() -> None:
    worlds = [make_world(seed, noise=random.Random(seed).uniform(0, 0.3)) for seed in range(100)]
    assert sum(world.is_right(finding_of(world)) for world in worlds) >= 92


@pytest.mark.parametrize("noise", [(0.3, 0.3), (0.1, 0.1), (0.0, 0.5)])
def test_a_culprit_of_many_is_found_in_300_trials(noise: tuple[float, float]) -> None:
    right = 0
    for seed in range(60):
        count = random.Random(seed).randint(10, 500)
        world = make_world(seed, culprits=1, count=count, is_plain=True)
        world.noise = noise
        right += world.is_right(finding_of(world, Limits(most_trials=300)))
    assert right >= 55


def test_noise_alone_accuses_nothing() -> None:
    accused = 0
    for seed in range(200):
        world = make_world(seed, is_plain=True)
        world.fails = random.Random(seed).random()
        accused += bool(finding_of(world).sets)
    assert accused <= 3


def searched_by(answer: Callable[[frozenset[str]], TrialAnswer], found: Rung) -> RungFinding:
    """Search and check what is claimed, by the answers alone: sets fail, none of their members can go, and
    the proofs are what they are said to be."""
    (finding,), _ = solve(ladder([found], EXACT), lambda trial: answer(trial.enabled))
    assert finding.kind is SearchEnd.FOUND
    needs = {each.name: each.needs for each in found.switches}

    def closed(names: frozenset[str]) -> frozenset[str]:
        more = names.union(*(needs[name] for name in names))
        return names if more == names else closed(more)

    for each in finding.sets:
        assert answer(closed(each)) is FAIL
        for name in each:
            less = closed(each - {name})
            assert name in less or not less or answer(less) is not FAIL
    assert all(answer(trial.enabled) is FAIL for trial in finding.sufficient)
    assert all(answer(trial.enabled) is PASS for trial in finding.necessary)
    return finding


def test_the_three_changes_of_the_paper_on_delta_debugging() -> None:
    """Zeller and Hildebrandt (2002), section 3: 1, 7 and 8 of eight are wrong together."""
    finding = searched_by(
        lambda on: FAIL if on >= {"1", "7", "8"} else PASS,
        Rung("r", tuple(map(RungSwitch, "12345678"))),
    )
    assert finding.sets == (frozenset("178"),)


@pytest.mark.parametrize("seed", range(30))
def test_a_tree_whose_parents_are_needed_but_not_declared(seed: int) -> None:
    """Misherghi and Su, HDD (2006): what is below a node that is gone has no meaning."""
    rng = random.Random(seed)
    parent = {n: (n - 1) // 2 for n in range(1, 31)}
    guilty = rng.sample(range(31), rng.randint(1, 3))

    def path(node: int) -> set[str]:
        return {f"n{node}"} | (path(parent[node]) if node else set())

    def answer(on: frozenset[str]) -> TrialAnswer:
        if any(f"n{child}" in on and f"n{above}" not in on for child, above in parent.items()):
            return UNRESOLVED
        return FAIL if all(f"n{node}" in on for node in guilty) else PASS

    finding = searched_by(answer, Rung("r", tuple(RungSwitch(f"n{node}") for node in range(31))))
    assert finding.sets == (frozenset().union(*map(path, guilty)),)


@pytest.mark.parametrize("seed", range(60))
def test_claims_are_true_where_no_set_follows_from_another(seed: int) -> None:
    """Random answers rest on nothing: more switches may hide a fault, as a fusion does."""
    share = random.Random(seed).uniform(0.1, 0.7)
    members = [f"s{n}" for n in range(random.Random(seed).randint(2, 30))]

    def answer(on: frozenset[str]) -> TrialAnswer:
        if not on or len(on) == len(members):
            return FAIL if on else PASS
        luck = random.Random(f"{seed} {sorted(on)}").random()
        return FAIL if luck < share else UNRESOLVED if luck > 0.9 else PASS

    # Each of its claims is held against the answers in `searched_by`.
    finding = searched_by(answer, Rung("r", tuple(map(RungSwitch, members))))
    assert finding.kind is SearchEnd.FOUND
    assert finding.sets


def test_a_switch_that_hides_what_another_does() -> None:
    found = Rung("r", tuple(map(RungSwitch, "abcdefgh")))
    finding = searched_by(
        lambda on: FAIL if "c" in on and ("f" not in on or "g" in on) else PASS, found
    )
    assert frozenset("c") in finding.sets


@pytest.fixture(scope="module")
def picire() -> ModuleType:
    """The delta debugging of Renata Hodovan and Akos Kiss."""
    with pytest.MonkeyPatch.context() as patch:
        # picire 21.8 asks pkg_resources for its own version; setuptools 82 has it no more.
        version = SimpleNamespace(version="21.8")
        patch.setitem(
            sys.modules, "pkg_resources", SimpleNamespace(get_distribution=lambda _: version)
        )
        return importlib.import_module("picire")


@settings(max_examples=150, deadline=None)
@given(
    st.integers(4, 40).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.lists(
                st.sets(st.integers(0, count - 1), min_size=1, max_size=4), min_size=1, max_size=4
            ),
        )
    )
)
def test_what_ddmin_leaves_is_one_of_the_sets(
    picire: ModuleType, drawn: tuple[int, list[set[int]]]
) -> None:
    count, groups = drawn
    tried = 0

    def test(config: list[int], _: object) -> object:
        nonlocal tried
        tried += 1
        is_wrong = any(group <= set(config) for group in groups)
        return picire.Outcome.FAIL if is_wrong else picire.Outcome.PASS

    left = frozenset(f"s{n}" for n in picire.DD(test)(list(range(count))))
    names = [frozenset(f"s{n}" for n in group) for group in groups]
    finding = searched_by(
        lambda on: FAIL if any(group <= on for group in names) else PASS,
        Rung("r", tuple(RungSwitch(f"s{n}") for n in range(count))),
    )
    smallest = {one for one in names if not any(other < one for other in names)}
    assert left in finding.sets
    assert set(finding.sets) == smallest
