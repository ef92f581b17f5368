"""What linked ranks must have alike though they have other parameters: options of optimizers, and parameters
that two stages of a pipeline share.

Comes in: the dumps of a step, the groups. Goes out: findings. Called by `checks`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.difference.rows import ERROR, WARNING
from ray_precheck.trace.ranks.agreement import (
    differ_by_rounding,
    shown_fact,
    shown_group,
    shown_ranks,
)
from ray_precheck.trace.ranks.checksums import OPTIMIZER
from ray_precheck.trace.ranks.layout import PIPELINE, UNKNOWN, GroupEvidence, Ranks
from ray_precheck.trace.ranks.nouns import (
    RankFault,
    RankFinding,
    RankGroup,
    RankTrace,
)
from ray_precheck.trace.ranks.replicas import members_of, role_of
from ray_precheck.trace.ranks.summary import named_tensors

_RATES = {"lr": "learning rate"}


def option_findings(ranks: Ranks, groups: Sequence[RankGroup]) -> Iterator[RankFinding]:
    """Yield options of optimizers that linked ranks have otherwise: learning rate, weight decay, ...

    Stages of a pipeline may have rates of their own, and so may ranks of which nothing says that they train
    together: of these it is a warning."""
    loose = {rank for each in groups if each.is_loose for rank in each.ranks}
    for linked, kinds in _linked(groups):
        members = [ranks[rank] for rank in sorted(linked) if rank in ranks and ranks[rank].options]
        if len(members) < 2:
            continue
        first = members[0]
        values: dict[str, dict[int, str]] = defaultdict(dict)
        for each in members:
            for number, at in _option_pairs(first, each):
                ours, theirs = first.options[at], each.options[number]
                for option in ours.keys() & theirs.keys():
                    if ours[option] != theirs[option] or each is first:
                        values[option][each.rank] = _plain(theirs[option])
        for option, by_rank in sorted(values.items()):
            if len(set(by_rank.values())) > 1:
                found = _option(option, by_rank, members, kinds)
                may_differ = PIPELINE in kinds or kinds == {UNKNOWN} or linked <= loose
                yield found._replace(verdict=WARNING) if may_differ else found


def _option(
    option: str, by_rank: Mapping[int, str], members: Sequence[RankTrace], kinds: set[str]
) -> RankFinding:
    own: dict[str, list[int]] = defaultdict(list)
    usual = by_rank[members[0].rank]
    for each in members:
        own[by_rank.get(each.rank, usual)].append(each.rank)
    by_count = sorted(own.items(), key=lambda item: (-len(item[1]), item[1]))
    shown = ", ".join(f"{value} on {shown_ranks(ranks)}" for value, ranks in by_count)
    odd = [rank for _, ranks in by_count[1:] for rank in ranks]
    summary = next(each for each in members if each.rank == odd[0])
    words = f"the {_RATES[option]} ({option})" if option in _RATES else f"the option {option}"
    key = next((each for each in summary.keys if each.startswith(OPTIMIZER)), "")
    return RankFinding(
        summary.step, ERROR, RankFault.CONFIGURATION, option,
        ranges_of(odd), f"{'/'.join(sorted(kinds))} {ranges_of(each.rank for each in members)}",
        by_count[0][0], by_count[1][0], "the options of the optimizer",
        f"{words} of the optimizer differs between the ranks: {shown}",
        dump=summary.name, key=key, place=len(summary.keys),
    )  # fmt: skip


def _linked(groups: Sequence[RankGroup]) -> list[tuple[set[int], set[str]]]:
    """Return the ranks that groups link to each other, with the kinds of these groups."""
    found: list[tuple[set[int], set[str]]] = []
    for group in groups:
        ranks, kinds = set(group.ranks), {group.kind}
        for each in [each for each in found if each[0] & ranks]:
            found.remove(each)
            ranks, kinds = ranks | each[0], kinds | each[1]
        found.append((ranks, kinds))
    return found


def tied_findings(
    steps: Sequence[Ranks], group: RankGroup, evidence: GroupEvidence | None
) -> Iterator[RankFinding]:
    """Yield what is wrong with parameters of two stages of a pipeline that are one, such as the embedding and
    the head: they begin alike, or their gradients are reduced together."""
    reduced = set(evidence.reduced) if evidence is not None else set()
    known: set[tuple[str, str]] = set()
    copied: dict[tuple[int, int], list[tuple[str, str]]] = defaultdict(list)
    for ranks in steps:
        members = members_of(ranks, group)
        for place, ours in enumerate(members):
            for theirs in members[place + 1 :]:
                for one, other in _tied(ours, theirs, reduced):
                    if role_of(one) == role_of(other):
                        copied[ours.rank, theirs.rank].append((one, other))
                        continue
                    is_sure = one in reduced and other in reduced
                    found = _untied(ours, one, theirs, other, group)
                    if found is not None and (one, other) not in known:
                        known.add((one, other))
                        yield found if is_sure else found._replace(verdict=WARNING)
        for (rank, other_rank), pairs in copied.items():
            if ranks is steps[0]:
                yield _same_stages(ranks[rank], ranks[other_rank], pairs, group)


def _same_stages(
    ours: RankTrace, theirs: RankTrace, pairs: Sequence[tuple[str, str]], group: RankGroup
) -> RankFinding:
    """Return the row of stages that begin alike, as one seed on all of them makes them: a warning."""
    one, other = pairs[0]
    rest = f" (and {len(pairs) - 1} more parameters)" if len(pairs) > 1 else ""
    message = (
        f"{other}{rest}: rank {theirs.rank} has the values of {one} of rank {ours.rank}, another part of the"
        " model: the wrong part of a checkpoint, or one seed for the first weights of all stages"
    )
    return RankFinding(
        theirs.step, WARNING, RankFault.PARAMETER, other, str(theirs.rank), shown_group(group), "",
        shown_fact(dict(named_tensors(theirs)).get(other)), theirs.rests_on.value, message,
        dump=theirs.name, key=theirs.uses.get(other, ""),
    )  # fmt: skip


def _tied(ours: RankTrace, theirs: RankTrace, reduced: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the names that two stages have for one parameter."""
    others = dict(named_tensors(theirs))
    mine = dict(named_tensors(ours))
    for name, fact in mine.items():
        for other, their_fact in others.items():
            if name in others or other in mine or fact.shape != their_fact.shape:
                continue
            is_same = not fact.is_constant and fact.is_same(their_fact)
            if is_same or (name in reduced and other in reduced):
                yield name, other


def _untied(
    ours: RankTrace, one: str, theirs: RankTrace, other: str, group: RankGroup
) -> RankFinding | None:
    said = f"{one} of rank {ours.rank} and {other} of rank {theirs.rank} are one parameter"
    update, their_update = ours.updates.get(one), theirs.updates.get(other)
    pairs = [
        (RankFault.PARAMETER, "their values differ at the start of the step",
         dict(named_tensors(ours)).get(one), dict(named_tensors(theirs)).get(other)),
    ]  # fmt: skip
    if update is not None and their_update is not None:
        pairs.append((
            RankFault.GRADIENT, "their gradients differ at the update: they were not reduced together",
            update.gradient, their_update.gradient,
        ))  # fmt: skip
    for kind, words, fact, their_fact in pairs:
        if fact is None or their_fact is None or fact.is_same(their_fact):
            continue
        verdict = WARNING if differ_by_rounding(fact, their_fact) else ERROR
        return RankFinding(
            theirs.step, verdict, kind, other, ranges_of((ours.rank, theirs.rank)), shown_group(group),
            shown_fact(fact), shown_fact(their_fact), theirs.rests_on.value, f"{said}, and {words}",
            dump=theirs.name, key=theirs.uses.get(other, ""),
            place=len(theirs.keys) if kind is RankFault.GRADIENT else 0,
        )  # fmt: skip
    return None


def _option_pairs(first: RankTrace, other: RankTrace) -> Iterator[tuple[int, int]]:
    """Yield which group of options of one rank is which of another: those of a common parameter, else those
    of the same place where there are as many."""
    pairs = {
        (update.options, first.updates[name].options)
        for name, update in other.updates.items()
        if name in first.updates
    }
    if not pairs and len(first.options) == len(other.options):
        pairs = {(number, number) for number in range(len(first.options))}
    yield from sorted(pairs)


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return str(value.get("value"))
    if isinstance(value, list):
        return f"({', '.join(map(_plain, value))})"
    return str(value)
