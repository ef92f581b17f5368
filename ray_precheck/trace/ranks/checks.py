"""All checks of ranks against each other, and what follows from what.

Comes in: the summaries of all dumps, a layout or none, and the dumps themselves for what summaries do not
tell. Goes out: a `RanksOutcome`. Called by the command `ranks`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.difference.rows import ERROR, WARNING
from ray_precheck.trace.ranks.activations import ActivationChecks
from ray_precheck.trace.ranks.agreement import ranks_have, shown_group, shown_ranks
from ray_precheck.trace.ranks.dumps import OpenDumps
from ray_precheck.trace.ranks.exchanges import MOST_RANKS, exchange_findings, too_many_to_recompute
from ray_precheck.trace.ranks.layout import (
    CONTEXT,
    DATA,
    EXPERT,
    PIPELINE,
    TENSOR,
    UNKNOWN,
    GroupEvidence,
    Ranks,
    evidence_of,
    infer_layout,
    layout_of_axes,
)
from ray_precheck.trace.ranks.linked import option_findings, tied_findings
from ray_precheck.trace.ranks.modules import exchanges_by_module
from ray_precheck.trace.ranks.nouns import (
    RankFault,
    RankFinding,
    RankGroup,
    RankLayout,
    RanksOutcome,
    RankTrace,
    RestsOn,
)
from ray_precheck.trace.ranks.replicas import Replicas, members_of, replicas_of
from ray_precheck.trace.ranks.scales import scale_findings
from ray_precheck.trace.ranks.shards import shard_findings
from ray_precheck.trace.ranks.state import StateChecks

# Of one kind in one step there are so many rows at most; a sentence counts the others.
_MOST_ALIKE = 10
_NAMED = 4
# What stands at one place of the run is in this order.
_ORDER = list(RankFault)
# Rows of these kinds may each be a fault of its own beside others of the kind in the step.
_EACH_ITS_OWN = (
    RankFault.PARAMETER, RankFault.GRADIENT, RankFault.COLLECTIVE, RankFault.CONFIGURATION,
    RankFault.SAMPLE,
)  # fmt: skip
# Ranks that have copies of parameters and samples of their own.
_DATA_LIKE = (DATA, EXPERT, CONTEXT)


def check_rank_traces(
    summaries: Iterable[RankTrace], axes: Sequence[tuple[str, int]], dumps: OpenDumps
) -> RanksOutcome:
    """Check the ranks of all steps against each other.

    Raises:
        UsageError: the axes do not fit the ranks.
    """
    by_step: dict[int, dict[int, RankTrace]] = {}
    for each in summaries:
        by_step.setdefault(each.step, {})[each.rank] = each
    left_out = list(chain.from_iterable(map(_without_others, by_step.values())))
    steps = [by_step[step] for step in sorted(by_step)]
    there = {rank for ranks in steps for rank in ranks}
    evidence = evidence_of(steps)
    layout = layout_of_axes(axes, there) if axes else infer_layout(steps, evidence)
    replicas = [replicas_of(steps, each, evidence.get(each.ranks)) for each in layout.groups]
    found: list[RankFinding] = []
    for of_group in replicas:
        found += _of_group(steps, of_group, layout, evidence, dumps)
    for ranks in steps:
        found += exchange_findings(ranks)
        found += option_findings(ranks, layout.groups)
        found += shard_findings(ranks)
        found += _by_module(ranks, layout, dumps)
    linked = _linked_ranks(layout)
    ordered = causes_first(found, linked)
    return RanksOutcome(
        tuple(_with_places(ordered, by_step, dumps)),
        layout,
        tuple(_checked(steps, replicas)),
        (*left_out, *_not_checked(steps, replicas, layout)),
    )


def _without_others(ranks: dict[int, RankTrace]) -> Iterator[str]:
    """Take ranks away that tell other things of values than most do, with a sentence on each: a checksum of
    statistics is none of a sketch."""
    counts = Counter(each.rests_on for each in ranks.values())
    common = max(counts, key=lambda each: counts[each], default=RestsOn.STATISTICS)
    for rank in [rank for rank, each in ranks.items() if each.rests_on is not common]:
        own = ranks.pop(rank)
        yield (
            f"rank {rank} in step {own.step} is not compared: its dump tells values by {own.rests_on.value},"
            f" those of other ranks by {common.value}; capture all ranks alike, and copy dumps with all"
            " files beside them"
        )


def _of_group(
    steps: Sequence[Ranks],
    replicas: Replicas,
    layout: RankLayout,
    evidence: Mapping[tuple[int, ...], GroupEvidence],
    dumps: OpenDumps,
) -> Iterator[RankFinding]:
    group = replicas.group
    own = evidence.get(group.ranks)
    if group.kind == PIPELINE:
        yield from tied_findings(steps, group, own)
        return
    others = {
        name: other
        for other in layout.groups
        if other.ranks != group.ranks and other.kind not in _DATA_LIKE
        for name in evidence.get(other.ranks, GroupEvidence()).reduced
        if own is None or name not in own.reduced
    }
    found = [
        *StateChecks(steps, replicas, others).findings(),
        *scale_findings(steps, replicas),
    ]
    if group.is_loose:
        for ranks in steps:
            members = members_of(ranks, group)
            if len(members) > 1:
                found += ActivationChecks(members, replicas, own, dumps).findings()
        yield from (each._replace(verdict=WARNING) for each in found)
        return
    yield from found
    for ranks in steps:
        members = members_of(ranks, group)
        if len(members) < 2:
            continue
        flow = ActivationChecks(members, replicas, own, dumps)
        yield from flow.findings()
        step = members[0].step
        if any(
            each.kind is RankFault.GRADIENT and each.step == step and each.verdict == ERROR
            for each in found
        ):
            cause = flow.gradient_cause()
            if cause is not None:
                yield cause


def _by_module(ranks: Ranks, layout: RankLayout, dumps: OpenDumps) -> Iterator[RankFinding]:
    """Yield what modules say of their collectives, once for ranks that make the same calls."""
    seen: set[tuple[str, ...]] = set()
    for _, summary in sorted(ranks.items()):
        if summary.exchanges and summary.keys not in seen:
            seen.add(summary.keys)
            yield from exchanges_by_module(summary, layout.groups, dumps.modules(summary))


def _linked_ranks(layout: RankLayout) -> dict[int, int]:
    """Return for each rank the smallest rank that groups link it to."""
    found: dict[int, int] = {}
    for group in layout.groups:
        first = min([*(found.get(rank, rank) for rank in group.ranks), *group.ranks])
        joined = {found.get(rank, rank) for rank in group.ranks}
        for rank, least in list(found.items()):
            if least in joined:
                found[rank] = first
        found.update(dict.fromkeys(group.ranks, first))
    return found


def causes_first(findings: Iterable[RankFinding], linked: Mapping[int, int]) -> list[RankFinding]:
    """Return findings with the likeliest cause first, the earliest, and without what follows from another
    one: of ranks that are linked nothing that is later counts, unless it may be a fault of its own."""
    ordered = sorted(
        findings,
        key=lambda each: (each.verdict != ERROR, each.step, each.place, _ORDER.index(each.kind)),
    )
    kept: list[RankFinding] = []
    follow: Counter[int] = Counter()
    alike: Counter[int] = Counter()
    roots: dict[int, int] = {}
    for each in ordered:
        first = int(each.ranks.replace("-", ",").split(",")[0] or 0)
        part = linked.get(first, first)
        same = next(
            (
                place
                for place, other in enumerate(kept)
                if (other.kind, other.name) == (each.kind, each.name)
            ),
            None,
        )
        if same is not None:
            other = kept[same]
            if other.step == each.step and other.ranks != each.ranks and other.group != each.group:
                kept[same] = _joined(other, each)
            continue
        root = roots.get(part)
        if root is not None and not _is_own(each, kept[root]):
            follow[root] += 1
            continue
        count = sum(other.kind is each.kind and other.step == each.step for other in kept)
        if count >= _MOST_ALIKE:
            alike[next(i for i, o in enumerate(kept) if o.kind is each.kind)] += 1
            continue
        if each.verdict == ERROR and (root is None or _explains_nothing(kept[root])):
            roots[part] = len(kept)
        kept.append(each)
    return [
        each._replace(message=each.message + _counted(follow[place], alike[place]))
        for place, each in enumerate(kept)
    ]


def _joined(one: RankFinding, other: RankFinding) -> RankFinding:
    """Return a row with the ranks of another group, in which the same is wrong."""
    ranks = ranges_of(
        number
        for text in (one.ranks, other.ranks)
        for part in text.split(",")
        for number in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)
    )
    groups = f"{one.group}; {other.group}" if other.group not in one.group else one.group
    return one._replace(ranks=ranks, group=groups)


def _counted(follow: int, alike: int) -> str:
    said = ""
    if alike:
        said += f"; {alike} more are wrong in the same way"
    if follow:
        said += f"; {follow} more finding{'' if follow == 1 else 's'} follow{'s' * (follow == 1)} from it"
    return said


def _explains_nothing(root: RankFinding) -> bool:
    """Return whether a fault changes nothing of what ranks have to have alike: the same samples twice."""
    return root.kind is RankFault.SAMPLE and root.group.split()[0] in _DATA_LIKE


def _is_own(each: RankFinding, root: RankFinding) -> bool:
    """Return whether a finding may be a fault of its own beside an earlier one of linked ranks."""
    if _explains_nothing(root) or each.verdict != ERROR:
        return each.step == root.step or _explains_nothing(root)
    if each.step != root.step:
        return False
    return each.kind is root.kind and each.kind in _EACH_ITS_OWN


def _with_places(
    findings: Iterable[RankFinding],
    by_step: Mapping[int, Mapping[int, RankTrace]],
    dumps: OpenDumps,
) -> Iterator[RankFinding]:
    """Yield findings with the module and the line of the program that their records have."""
    for each in findings:
        summary = next(
            (one for one in by_step.get(each.step, {}).values() if one.name == each.dump), None
        )
        if summary is None or not each.key:
            yield each
            continue
        module = dumps.modules(summary).of(each.key)
        yield each._replace(module=module, source=dumps.source(summary, each.key))


def _checked(steps: Sequence[Ranks], replicas: Sequence[Replicas]) -> Iterator[str]:
    for each in replicas:
        parts = f"{len(each.copies)} copies and {len(each.parts)} parts of parameters"
        yield f"{shown_group(each.group)} ({each.group.basis}): {parts}"
    summaries = [summary for ranks in steps for summary in ranks.values()]
    count = sum(len(summary.exchanges) for summary in summaries)
    if count:
        many = "record" if count == 1 else "records"
        yield f"{count} {many} of collectives, recomputed from what their ranks brought"
    for rests in RestsOn:
        ranks = {each.rank for each in summaries if each.rests_on is rests}
        if ranks:
            others = (
                f" where they have a name, else on {RestsOn.STATISTICS.value}"
                if rests is RestsOn.TENSORS
                else ""
            )
            yield f"equalities of {shown_ranks(sorted(ranks))} rest on {rests.value}{others}"


def _not_checked(
    steps: Sequence[Ranks], replicas: Sequence[Replicas], layout: RankLayout
) -> Iterator[str]:
    summaries = [summary for ranks in steps for summary in ranks.values()]
    there = {each.rank for each in summaries}
    if len(there) < 2:
        yield "there is one rank alone, which has no other to agree with"
        return
    in_groups = {rank for group in layout.groups for rank in group.ranks}
    if alone := sorted(there - in_groups):
        yield f"{ranks_have(alone)} no group: no collective and no parameters tell of one"
    if lacking := sorted(in_groups - there):
        yield f"{ranks_have(lacking)} no dump, so that nothing of it is compared"
    for group in layout.groups:
        if group.is_loose:
            yield (
                f"whether {shown_ranks(group.ranks)} train one model is not known ({group.basis}), so that"
                " what differs between them is a warning: use --layout"
            )
        if group.kind == UNKNOWN:
            yield (
                f"what the group {ranges_of(group.ranks)} does is not known ({group.basis}), so that nothing"
                " says whether its samples and masks must agree: use --layout"
            )
    if without := sorted({each.rank for each in summaries if not each.updates}):
        yield (
            f"gradients and updates of {shown_ranks(without)}: there is no record of an optimizer in at least"
            " one step"
        )
    for each in replicas:
        if each.untold:
            names = sorted(each.untold)
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            yield (
                f"whether {', '.join(names[:_NAMED])}{more} are copies in {shown_group(each.group)} cannot be"
                " told: they are constant at first, or stand beside parts, and no reduction tells"
            )
    yield from _lacking_facts(summaries, layout.groups)


def _has_read(summary: RankTrace) -> bool:
    return summary.rests_on is RestsOn.TENSORS


def _lacking_facts(summaries: Sequence[RankTrace], groups: Sequence[RankGroup]) -> Iterator[str]:
    if not any(each.inputs for each in summaries):
        yield "samples: no input of the model is marked in this capture"
    kinds = {group.kind for group in groups}
    # Most ranks share the keys of one.
    of_all = {id(each.keys): each.keys for each in summaries}.values()
    drops = any("dropout" in key for keys in of_all for key in keys)
    if drops and kinds & {TENSOR, CONTEXT} and not any(each.masks for each in summaries):
        yield "masks of dropouts in divided regions: the capture has no random states"
    if count := sum(map(too_many_to_recompute, summaries)):
        yield (
            f"collectives of more than {MOST_RANKS} ranks to which each brings many tensors are not"
            f" recomputed ({count} of them): their calls and outputs alone are compared"
        )
    if any(each.has_tensors for each in summaries):
        of_names = "of tensors without a name" if any(map(_has_read, summaries)) else "of tensors"
        yield (
            f"the files {of_names} are not read here: equalities rest on what dump.json says of them, and"
            " locate recomputes collectives element by element"
        )
    if any(each.values_rest_on is RestsOn.STATISTICS for each in summaries):
        of_calls = " in what calls get and give" if all(map(_has_read, summaries)) else ""
        yield (
            f"differences{of_calls} that leave Max, Min, Mean and Norm as they are, such as another order:"
            " capture with --sketch"
        )
    for each in summaries:
        if each.note:
            yield each.note
