"""What one rank was asked to exchange: collectives of another group, reduction or source, and those that only
one of both runs has.

Comes in: a record of a collective with its partner of the golden run, or the calls without one. Goes out:
roots. Called by `walk`.
"""

import math
from collections.abc import Iterable, Iterator

from ray_precheck.commands.locate.walk.naming import (
    Exchanges,
    factor_between,
    factor_in_words,
    listed_names,
)
from ray_precheck.commands.locate.walk.nouns import GoldenRun, Root, RootKind, SeenRecord, WalkState
from ray_precheck.trace.flow import is_collective, operation_of
from ray_precheck.trace.items import OUTPUT, bare_name
from ray_precheck.trace.side import FORWARD
from ray_precheck.trace.terms import CallTerms, call_terms, differing_terms, group_in_words

_OPTIMIZER = "Optimizer."
_ONE_SIDED = ("missing collective", "extra collective")


def asked_otherwise(state: WalkState, seen: SeenRecord) -> Iterator[Root]:
    """Yield a root for a collective that ran in another group, with another reduction or from another rank
    than that of the golden run."""
    entry, golden = seen.record.entry, state.golden
    if not is_collective(entry.call) or golden is None or seen.golden is None:
        return
    other = seen.golden.entry
    if operation_of(entry.call) != operation_of(other.call):
        return
    mine = _terms(entry.call, entry.key, state.exchanges)
    theirs = _terms(other.call, other.key, golden.exchanges)
    what = state.exchanges.in_words(entry.key)
    for cause, said in differing_terms(mine, theirs):
        times = factor_in_words(_factor(seen))
        more = f"; it gives {times[1:]} times what the golden run's gives" if times else ""
        yield seen.root(
            RootKind.CONFIGURATION, cause=" ".join(filter(None, [cause, times])),
            message=f"{what} {said}{more}",
        )  # fmt: skip
    operation = operation_of(entry.call)
    lost = set(_bucket(golden.exchanges, other.key)) - set(
        state.exchanges.carried.get(operation, ())
    )
    if lost:
        names = listed_names(
            [each for each in _bucket(golden.exchanges, other.key) if each in lost]
        )
        told = "its gradient is" if len(lost) == 1 else "their gradients are"
        is_sum = "reduce" in operation
        yield seen.root(
            RootKind.CONFIGURATION, cause="not reduced" if is_sum else "left out",
            message=f"{names} {'is' if len(lost) == 1 else 'are'} in no {operation} of the target, and in"
            f" {other.key} of the golden run{f': {told} not reduced' if is_sum else ''}",
        )  # fmt: skip


def _terms(call: str, key: str, exchanges: Exchanges) -> CallTerms:
    return call_terms(call, exchanges.raw(key), exchanges.meetings.get(key))


def _bucket(exchanges: Exchanges, key: str) -> list[str]:
    """Return the parameters that a collective carries, as its record says."""
    names = exchanges.raw(key).get("parameters")
    return [bare_name(str(each)) for each in names] if isinstance(names, list) else []


def _factor(seen: SeenRecord) -> float | None:
    """Return the factor that all tensors which a collective gave have, None where they have no one."""
    found = {
        factor
        for target, golden in seen.pairs
        if target is not None and golden is not None and target.part == OUTPUT and target.is_tensor
        and (factor := factor_between(target, golden)) is not None
    }  # fmt: skip
    first = min(found, default=None)
    is_one = first is not None and all(math.isclose(each, first, rel_tol=1e-3) for each in found)
    return first if is_one else None


def in_one_run_alone(state: WalkState, named: Iterable[Root]) -> Iterator[Root]:
    """Yield a root for each collective and each update that only one of both runs has, where none of those
    that were `named` tells of it."""
    golden = state.golden
    if golden is None or not any(map(_counts, (*golden.alone[0], *golden.alone[1]))):
        return
    roots = [root for root in named if root.kind is RootKind.CALL]
    said = " ".join([*(root.name for root in roots), *(root.message for root in roots), ""])
    # Where one of several alike is missing, an alignment may have left out another one of them.
    told = {_alike(state, root) for root in roots if root.cause in _ONE_SIDED}
    for root in (*_extra(state, golden), *_missing(state, golden)):
        call = root.key.removesuffix(f".{FORWARD}")
        if (
            f"{call} " not in said
            and f"{root.name} " not in said
            and _alike(state, root) not in told
        ):
            yield root


def _extra(state: WalkState, golden: GoldenRun) -> Iterator[Root]:
    for key, record in state.records.items():
        if record.entry.call in golden.alone[0] and _counts(key):
            said = f"{state.exchanges.in_words(key)} runs only in the target; the golden run has none here"
            yield Root(
                RootKind.CALL, key, FORWARD, state.places[key], cause=_cause(key, "extra"), message=said
            )  # fmt: skip


def _missing(state: WalkState, golden: GoldenRun) -> Iterator[Root]:
    mine = {theirs: own for own, theirs in golden.partners.items()}
    place = 0
    for key, record in golden.records.items():
        place = state.places.get(mine.get(key, ""), place)
        if record.entry.call in golden.alone[1] and _counts(key):
            yield Root(
                RootKind.CALL, key, FORWARD, place, cause=_cause(key, "missing"),
                message=lacking(golden, key), is_golden=True,
            )  # fmt: skip


def _alike(state: WalkState, root: Root) -> tuple[str, str, bool]:
    """Return what collectives that may be taken for each other have in common."""
    golden = state.golden
    exchanges = golden.exchanges if root.is_golden and golden is not None else state.exchanges
    meeting = exchanges.meetings.get(root.key)
    group = group_in_words(meeting) or root.name
    return operation_of(root.key.removesuffix(f".{FORWARD}")), group, root.is_golden


def lacking(golden: GoldenRun, key: str) -> str:
    """Return the sentence about a collective or an update that the target does not make."""
    return f"the golden run has {golden.exchanges.in_words(key)} here; the target has none"


def _counts(key: str) -> bool:
    return key.startswith(_OPTIMIZER) or is_collective(key)


def _cause(key: str, word: str) -> str:
    return f"{word} {'update' if key.startswith(_OPTIMIZER) else 'collective'}"
