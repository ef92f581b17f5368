"""What the search of minimal sets asks, and what it says of a rung."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from ray_precheck.searching.bisection import (
    Limits,
    Rung,
    RungFinding,
    RungSwitch,
    Search,
    SearchEnd,
    Trial,
    TrialAnswer,
    solve,
)
from ray_precheck.searching.strategy import ladder
from scripts.bisect_worlds import SwitchWorld, finding_of, make_world, rounds

pytestmark = pytest.mark.unit
EXACT = Limits(repeats=1)
PASS, FAIL, UNRESOLVED = TrialAnswer.PASS, TrialAnswer.FAIL, TrialAnswer.UNRESOLVED


def rung(names: str, **more: object) -> Rung:
    return Rung("r", tuple(map(RungSwitch, names)), **more)  # type: ignore[arg-type]


def ask(
    found: Rung, is_wrong: Callable[[frozenset[str]], bool], limits: Limits = EXACT
) -> tuple[RungFinding, Sequence[Trial]]:
    """Return the finding of a rung without noise, and the trials."""

    def oracle(trial: Trial) -> TrialAnswer:
        return FAIL if is_wrong(trial.enabled) else PASS

    findings, trials = solve(ladder([found], limits), oracle, limits.most_trials)
    return findings[-1], trials


def names(finding: RungFinding) -> list[str]:
    return sorted("".join(sorted(each)) for each in finding.sets)


def test_a_culprit_of_276_takes_nine_trials_two_baselines_and_two_proofs() -> None:
    for seed in range(40):
        world = make_world(seed, culprits=1, count=276, is_plain=True)
        finding = finding_of(world, EXACT)
        assert finding.sets == tuple(world.groups)
        assert world.asked <= 13
        assert [trial.enabled for trial in finding.sufficient] == list(world.groups)
        members = frozenset(world.rung.members)
        assert [trial.enabled for trial in finding.necessary] == [members - finding.cure]


def test_all_alternatives_are_listed_and_the_cure_holds_one_of_each() -> None:
    finding, _ = ask(rung("abcdefgh"), lambda on: "b" in on or on >= {"c", "g"} or "h" in on)
    assert names(finding) == ["b", "cg", "h"]
    assert len(finding.cure) == 3
    assert finding.cure >= {"b", "h"}
    assert finding.is_complete


def test_what_stays_on_is_never_part_of_a_trial() -> None:
    found = Rung("r", (RungSwitch("a", stays=True), RungSwitch("b", needs=("a",)), RungSwitch("c")))
    finding, trials = ask(found, lambda on: "b" in on)
    assert names(finding) == ["b"]
    assert not any("a" in trial.enabled for trial in trials)


def test_a_switch_is_on_only_with_what_it_needs_and_is_named_alone() -> None:
    found = Rung(
        "r",
        (
            RungSwitch("d", needs=("b",)),
            RungSwitch("a"),
            RungSwitch("b", needs=("a",)),
            RungSwitch("c"),
        ),
    )
    finding, trials = ask(found, lambda on: "d" in on)
    assert names(finding) == ["d"]
    for trial in trials:
        assert all(
            trial.enabled.issuperset(each.needs)
            for each in found.switches
            if each.name in trial.enabled
        )


def test_needs_in_a_circle_go_together() -> None:
    found = Rung(
        "r",
        (
            RungSwitch("a", needs=("b",)),
            RungSwitch("b", needs=("a",)),
            RungSwitch("c"),
            RungSwitch("d"),
        ),
    )
    finding, trials = ask(found, lambda on: "a" in on)
    assert finding.kind is SearchEnd.FOUND
    assert finding.sets[0] <= {"a", "b"}
    assert all(("a" in trial.enabled) == ("b" in trial.enabled) for trial in trials)


def test_what_had_no_hits_is_suspected_last() -> None:
    hits = {"s7": 3, "s100": 1, "s230": 4, "s250": 1}
    found = Rung("r", tuple(RungSwitch(f"s{n}", hits=hits.get(f"s{n}", 0)) for n in range(276)))
    for culprit in hits:
        finding, trials = ask(found, lambda on, culprit=culprit: culprit in on)  # type: ignore[misc]
        assert finding.sets == (frozenset((culprit,)),)
        assert len(trials) < 13
    finding, trials = ask(found, lambda on: "s99" in on)
    assert finding.sets == (frozenset(("s99",)),)
    assert len(trials) < 30


def test_those_with_hits_are_switched_off_one_by_one_first_where_that_is_asked_for() -> None:
    found = Rung(
        "r",
        tuple(RungSwitch(name, hits=hits) for name, hits in zip("abcd", (0, 2, 1, 0), strict=True)),
    )
    finding, trials = ask(found, lambda on: "c" in on, replace(EXACT, one_by_one=True))
    assert names(finding) == ["c"]
    assert [trial.enabled for trial in trials[2:]] == [{"a", "c", "d"}, {"a", "b", "d"}, {"c"}]


def test_an_ordered_rung_tries_only_first_switches() -> None:
    found = rung("abcdefghij", is_ordered=True)
    finding, trials = ask(found, lambda on: "g" in on)
    assert names(finding) == ["g"]
    assert all(
        "".join(sorted(trial.enabled)) in "abcdefghij"[: len(trial.enabled)] for trial in trials
    )
    assert [trial.enabled for trial in finding.necessary] == [frozenset("abcdef")]
    assert [trial.enabled for trial in finding.sufficient] == [frozenset("abcdefg")]


@pytest.mark.parametrize(("silent", "found"), [({4, 5}, "def"), ({2, 9}, "f")])
def test_ordered_switches_between_trials_without_an_answer_are_not_told_apart(
    silent: set[int], found: str
) -> None:
    def oracle(trial: Trial) -> TrialAnswer:
        if len(trial.enabled) in silent:
            return UNRESOLVED
        return FAIL if "f" in trial.enabled else PASS

    findings, _ = solve(ladder([rung("abcdefghij", is_ordered=True)], EXACT), oracle)
    assert names(findings[0]) == [found]
    assert bool(findings[0].grouped) == (len(found) > 1)


def test_the_first_wrong_of_an_ordered_rung_is_found_through_noise() -> None:
    right = 0
    for seed in range(60):
        world = make_world(seed, culprits=1, count=100, is_plain=True)
        world = replace(
            world, rung=replace(world.rung, is_ordered=True), noise=(0.2, 0.2), unresolved=0.1
        )
        right += finding_of(world).sets == tuple(world.groups)
    assert right >= 57


def test_the_first_wrong_rung_is_searched_from_the_top_of_the_one_below() -> None:
    below = Rung("base", (RungSwitch("x"), RungSwitch("y")))
    above = Rung("passes", tuple(map(RungSwitch, "abcd")), over="base")
    never = Rung("later", (RungSwitch("z"),), over="passes")

    def oracle(trial: Trial) -> TrialAnswer:
        return FAIL if trial.rung == "passes" and "c" in trial.enabled else PASS

    findings, trials = solve(ladder([Rung("off"), below, above, never], EXACT), oracle)
    assert [each.kind for each in findings] == [SearchEnd.CLEAN, SearchEnd.CLEAN, SearchEnd.FOUND]
    assert names(findings[-1]) == ["c"]
    assert Trial("passes", frozenset()) not in trials
    assert not any(trial.rung == "later" for trial in trials)


def test_wrong_with_all_of_it_off_ends_the_ladder() -> None:
    findings, _ = solve(ladder([Rung("off"), rung("ab")], Limits()), lambda trial: FAIL)
    assert [each.kind for each in findings] == [SearchEnd.WRONG_AT_FOOT]


def test_a_rung_without_an_answer_is_passed_by_only_if_what_is_below_is_right() -> None:
    def oracle(trial: Trial) -> TrialAnswer:
        return UNRESOLVED if trial.rung == "b" else PASS

    rungs = [
        Rung("a", (RungSwitch("x"),)),
        Rung("b", (RungSwitch("y"),), over="a"),
        Rung("c", (RungSwitch("z"),), over="a"),
    ]
    findings, _ = solve(ladder(rungs, EXACT), oracle)
    assert [each.kind for each in findings] == [
        SearchEnd.CLEAN,
        SearchEnd.UNRESOLVED,
        SearchEnd.CLEAN,
    ]
    findings, _ = solve(ladder([Rung("b"), *rungs], EXACT), oracle)
    assert [each.kind for each in findings] == [SearchEnd.UNRESOLVED]


def test_members_that_have_an_answer_only_together_are_said_to_be_untold() -> None:
    def oracle(trial: Trial) -> TrialAnswer:
        both = trial.enabled & {"b", "f"}
        return UNRESOLVED if len(both) == 1 else FAIL if both else PASS

    findings, _ = solve(ladder([rung("abcdefgh")], EXACT), oracle)
    assert names(findings[0]) == ["bf"]
    assert findings[0].grouped == (frozenset("bf"),)


@pytest.mark.parametrize("trials", [1, 2, 3, 5, 8, 12, 20, 40])
def test_a_spent_budget_names_only_what_is_wrong(trials: int) -> None:
    for seed in range(60):
        world = make_world(seed)
        finding = finding_of(world, Limits(repeats=1, most_trials=trials))
        assert world.asked <= trials
        if finding.kind is not SearchEnd.BUDGET:
            continue
        truth = {world.closed(group) for group in world.groups}
        for each in finding.sets:
            assert any(group <= world.closed(each) for group in truth)
        culprits = frozenset().union(*truth)
        assert not finding.suspects or finding.suspects & culprits


def test_when_the_time_is_up_what_is_known_is_said() -> None:
    world = make_world(5, culprits=1, count=100, is_plain=True)
    search = Search(ladder([world.rung], EXACT))
    for _ in range(6):
        for trial in search.wanted(1):
            search.answer(trial, world(trial))
    (finding,) = search.end()
    assert finding.kind is SearchEnd.BUDGET
    assert len(finding.suspects) <= 7
    assert finding.suspects > next(iter(world.groups))


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_resumed_search_asks_and_finds_the_same(noise: float) -> None:
    for seed in range(12):
        world = make_world(seed, noise=noise)
        findings, trials = solve(ladder([world.rung], Limits()), world)
        known = {trial: world(trial) for trial in trials}
        kept = dict(random.Random(seed).sample(sorted(known.items(), key=str), len(known) // 2))
        search, asked = Search(ladder([world.rung], Limits()), kept), 0
        while wanted := search.wanted(1):
            asked += 1
            search.answer(wanted[0], known[wanted[0]])
        assert search.findings == findings
        assert asked == len(known) - len(kept)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_any_number_of_workers_finds_the_same(noise: float) -> None:
    for seed in range(12):
        found = [rounds(make_world(seed, noise=noise), workers)[0] for workers in (1, 2, 8)]
        assert found[0] == found[1] == found[2]


def test_eight_workers_take_at_most_two_fifths_of_the_rounds() -> None:
    for seed in range(8):
        one, eight = (
            rounds(make_world(seed, culprits=1, count=200, is_plain=True), workers)[1]
            for workers in (1, 8)
        )
        assert eight <= 0.4 * one


def test_what_fails_now_and_then_whatever_is_on_is_noise() -> None:
    world: SwitchWorld = make_world(3, is_plain=True)
    world.fails = 0.5
    assert finding_of(world).kind is SearchEnd.NOISE
