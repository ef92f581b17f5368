"""What was found, counted by kinds of faults and by ways to look.

Comes in: judged cases. Goes out: tables in Markdown, and the same as JSON. Called by `main`.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from scripts.locate_faults.cases import (
    COLLECTIVE,
    DATA,
    EPSILON,
    HIDDEN,
    HONEST,
    MASK,
    OWN,
    SETUPS,
    WEIGHT,
    FaultCase,
    Judged,
)
from scripts.measuring import markdown_table

REPLAY, ONE = "replay", "one capture"
# Verdicts of `locate`.
_GAP = "not captured"
_VERDICTS = {
    WEIGHT: ("other weight",),
    MASK: ("other random mask",),
    DATA: ("other input",),
    EPSILON: ("other configuration",),
    COLLECTIVE: ("wrong collective",),
}
_OTHER = (_GAP, *(verdict for verdicts in _VERDICTS.values() for verdict in verdicts))
Named = Sequence[Sequence[Any]]


def is_first(case: FaultCase, named: Named) -> bool:
    """Return whether a culprit is named first, and as what it is.

    Of a call that was not captured that is a gap between its neighbours, of a fault outside of operators
    another weight, mask, input or configuration.
    """
    if not named:
        return False
    key, _, message, verdict = named[0]
    if case.family in SETUPS:
        words = f"{key} {message}".lower()
        is_meant = case.family != WEIGHT or any(word.lower() in words for word in case.names)
        return verdict in _VERDICTS[case.family] and is_meant
    if case.family == HIDDEN:
        neighbours = key in case.culprits or any(each in message for each in case.producers)
        return verdict == _GAP and neighbours
    return key in case.culprits and verdict not in _OTHER


def is_named(case: FaultCase, named: Named) -> bool:
    """Return whether a culprit is named at all."""
    return any(is_first(case, [each]) for each in named)


def is_alone(case: FaultCase, named: Named) -> bool:
    """Return whether no other call is named."""
    calls = {key.rpartition(".")[0] for key in case.culprits}
    return bool(named) and all(each[0].rpartition(".")[0] in calls for each in named)


def kinds_of(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Return the cases that count by their kind: operators by the fault, in the order of families."""
    found: dict[str, list[Judged]] = defaultdict(list)
    for family in (*OWN, HIDDEN, *SETUPS):
        for each in judged:
            if each.case.family == family and each.case.counts:
                found[f"{family}: {each.case.fault}"].append(each)
    return found


def ways_in(judged: Sequence[Judged]) -> list[str]:
    """Return the ways to look, in the order in which they were met."""
    return list(dict.fromkeys(way for each in judged for way in each.ways))


def _of(judged: Sequence[Judged], way: str, test: Callable[[FaultCase, Named], bool]) -> str:
    tried = [each for each in judged if way in each.ways and _can_see(way, each.case)]
    if not tried:
        return ""
    return f"{sum(test(each.case, each.ways[way]) for each in tried)} of {len(tried)}"


def table_of_faults(judged: Sequence[Judged]) -> str:
    """Return the table of what is named first, by kind of fault and way."""
    ways = ways_in(judged)
    kinds = kinds_of(judged)
    own = [each for cases in kinds.values() for each in cases if each.case.family in OWN]
    groups = {**kinds, "all of captured operators": own}
    for family in (HIDDEN, *SETUPS):
        groups[family] = [e for e in judged if e.case.family == family and e.case.counts]
    rows = [
        [kind, len(cases), *(_of(cases, way, is_first) for way in ways)]
        for kind, cases in groups.items()
        if cases or kind not in (HIDDEN, *SETUPS)
    ]
    return markdown_table(["fault", "faults", *ways], rows)


def table_of_replay(judged: Sequence[Judged]) -> str:
    """Return the table of the baseline: the culprit among the errors, alone, and at rank 1."""
    kinds = {kind: of for kind, of in kinds_of(judged).items() if of[0].case.family in OWN}
    kinds["all"] = [each for cases in kinds.values() for each in cases]
    tests = (is_named, is_alone, is_first)
    rows = [
        [kind, len(of), *(_of(of, REPLAY, test) for test in tests)] for kind, of in kinds.items()
    ]
    return markdown_table(["fault", "faults", "among the errors", "alone", "rank 1"], rows)


def table_of_honest(judged: Sequence[Judged]) -> str:
    """Return how many honest captures and pairs were accused, by way."""
    rows = []
    for way in ways_in(judged):
        tried = [each for each in judged if each.case.family == HONEST and way in each.ways]
        if tried:
            rows.append([way, len(tried), sum(bool(each.ways[way]) for each in tried)])
    return markdown_table(["honest", "captures or pairs", "accused"], rows)


def misses(judged: Sequence[Judged]) -> list[str]:
    """Return a line for each fault that is not named first, and for each honest run that is accused."""
    lines = []
    for each in judged:
        for way, named in each.ways.items():
            case = each.case
            says = "; ".join(_said(each) for each in named[:2])
            if case.family == HONEST and named:
                lines.append(f"{way} accuses {case.title}: {says}")
            elif case.counts and not is_first(case, named) and _can_see(way, case):
                lines.append(f"{way} misses {case.title}: {says or 'nothing'}")
    return lines


def _said(named: Sequence[Any]) -> str:
    key, number, message, verdict = named
    return f"{key} {verdict} {number:.3g}: {message[:120]}"


def _can_see(way: str, case: FaultCase) -> bool:
    """Return whether a way is one that can see a fault at all: replay sees captured operators alone."""
    return way not in (REPLAY, ONE) or case.family in OWN
