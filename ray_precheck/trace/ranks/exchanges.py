"""Collectives of a run: whether all ranks take part, and whether what they got is what all brought.

Comes in: the dumps of all ranks of a step. Goes out: findings. Called by `checks`. The values are recomputed
from sketches, which add up, and from statistics: the mean of a sum is the sum of the means, the Max of what
was gathered the largest Max, the square of its norm the sum of the squares. Tensors are recomputed element by
element elsewhere, by the command `locate`.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ray_precheck.numerics.arrays import epsilon_of
from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.difference.rows import ERROR, WARNING
from ray_precheck.trace.exchange import LARGEST, MEAN, SMALLEST, SUM, Made, RankRecord, made_by
from ray_precheck.trace.items import INPUT, OUTPUT, Item, items_of
from ray_precheck.trace.ranks.agreement import differ_by_rounding, odd_ones, shown_fact, shown_ranks
from ray_precheck.trace.ranks.layout import Ranks, exchanged_fact
from ray_precheck.trace.ranks.nouns import (
    ExchangeFact,
    RankFault,
    RankFinding,
    RankTrace,
    RestsOn,
    TensorFact,
)
from ray_precheck.trace.side import record_from_json

# A sketch has a noise of 1e-7 of its tensor's norm (`numerics.sketch`), a mean in float32 that of its sum;
# ten times that, for each rank.
_NOISE = 1e-6
# Collectives of more ranks are recomputed where each brings a few tensors: else there are a million pairs.
MOST_RANKS, _FEW_TENSORS = 64, 8
# All ranks get the same of these.
_FOR_ALL = ("all_reduce", "ddp_all_reduce", "all_gather", "broadcast", "ddp_broadcast")
_SENDS = "from "


class _Taken(NamedTuple):
    """A rank's record of a collective."""

    summary: RankTrace
    fact: ExchangeFact


def exchange_findings(ranks: Ranks) -> Iterator[RankFinding]:
    """Yield what is wrong with the collectives of a step, in the order of the run."""
    met: dict[tuple[str, str], dict[int, _Taken]] = defaultdict(dict)
    for rank, summary in sorted(ranks.items()):
        for each in summary.exchanges:
            meeting = each.meeting
            met[meeting.name_on(rank), meeting.operation if meeting.peer is None else ""][rank] = (
                _Taken(summary, each)
            )
    yield from _counts(ranks)
    ordered = sorted(
        met.items(), key=lambda item: min(each.fact.place for each in item[1].values())
    )
    for _, taken in ordered:
        first = next(iter(taken.values())).fact.meeting
        wanted = {0, 1} if first.peer is not None else set(first.ranks)
        if first.peer is not None:
            if len(taken) == len(wanted):
                yield from _judged(taken)
        elif wanted and set(taken) == wanted:
            yield from _judged(taken)


def _counts(ranks: Ranks) -> Iterator[RankFinding]:
    """Yield collectives that some ranks of a group made more often than others, and sends that nobody got."""
    counts: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    ends: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    last: dict[tuple[str, str, int], _Taken] = {}
    for rank, summary in ranks.items():
        for each in summary.exchanges:
            meeting = each.meeting
            if meeting.peer is not None:
                is_send = meeting.operation.removeprefix("i").startswith("send")
                pair = (rank, meeting.peer) if is_send else (meeting.peer, rank)
                ends[pair]["sent" if is_send else "got"] += 1
                last["", str(pair), rank] = _Taken(summary, each)
            elif meeting.ranks:
                counts[meeting.operation, meeting.group][rank] += 1
                last[meeting.operation, meeting.group, rank] = _Taken(summary, each)
    for (operation, group), by_rank in counts.items():
        taking = next(t for (o, g, _), t in last.items() if (o, g) == (operation, group))
        there = [rank for rank in taking.fact.meeting.ranks if rank in ranks]
        numbers = {rank: by_rank[rank] for rank in there}
        if len(set(numbers.values())) < 2:
            continue
        usual = Counter(numbers.values()).most_common(1)[0][0]
        most = max(numbers, key=lambda rank: numbers[rank])
        odd = [rank for rank in there if numbers[rank] != usual] or there
        shown = ", ".join(f"{number} on rank {rank}" for rank, number in numbers.items())
        message = (
            f"{operation} in the group {group} was called a different number of times ({shown}): a rank"
            " lacks it, or has one too many"
        )
        yield _row(last[operation, group, most], RankFault.COLLECTIVE, odd, message, group)
    for (sender, receiver), by_end in ends.items():
        if by_end["sent"] != by_end["got"] and sender in ranks and receiver in ranks:
            taken = next(t for (_, name, _), t in last.items() if name == str((sender, receiver)))
            message = (
                f"rank {sender} sent {by_end['sent']} tensors to rank {receiver}, which received"
                f" {by_end['got']} from it: sends and receives of this step are unpaired"
            )
            yield _row(
                taken, RankFault.UNPAIRED, [sender, receiver], message,
                ranges_of((sender, receiver)), verdict=WARNING,
            )  # fmt: skip


def _judged(taken: Mapping[int, _Taken]) -> Iterator[RankFinding]:
    """Yield what is wrong with one collective whose ranks are all there: the first of its outputs."""
    first = next(iter(taken.values()))
    records = [RankRecord(rank, record_from_json(each.fact.raw)) for rank, each in taken.items()]
    items = {each.rank: items_of(each.record) for each in records}
    yield from _unlike(taken, items)
    operation = first.fact.meeting.operation
    facts: dict[tuple[int, str], TensorFact] = {}

    def fact_at(rank: int, item: Item) -> TensorFact:
        if (rank, item.path) not in facts:
            facts[rank, item.path] = exchanged_fact(item, taken[rank].summary)
        return facts[rank, item.path]

    unlike = _outputs_unlike(operation, items, fact_at)
    made = made_by(operation, records) if len(taken) <= MOST_RANKS or _is_one(records) else []
    wrong: dict[int, tuple[Made, str, TensorFact, RestsOn]] = {}
    judged: dict[tuple[int, int], tuple[str, RestsOn] | None] = {}

    for each in made:
        fact = fact_at(each.rank, each.item)
        # What is the same for all ranks is judged once: of 1,000 ranks each brings a part of each sum.
        key = id(each.pieces[0]) if len(each.pieces) == 1 else id(each), fact.checksum
        if key not in judged:
            parts = [[fact_at(part.rank, part.item) for part in piece] for piece in each.pieces]
            judged[key] = _wrong(each, fact, parts)
        found = judged[key]
        if found is not None and each.rank not in wrong:
            wrong[each.rank] = each, found[0], fact, found[1]
    if not wrong and (said := _wrong_total(made, taken, fact_at)):
        message = (
            f"{first.fact.key}: what the ranks got all together is not what they brought ({said}): at least"
            " one of them got something wrong"
        )
        yield _row(first, RankFault.COLLECTIVE, sorted(taken), message, first.fact.meeting.group)
    if wrong:
        rank, (each, said, fact, rests) = next(iter(wrong.items()))
        right = [other for other in taken if other not in wrong]
        where = "" if not right else f", and on {shown_ranks(right)} it is right"
        message = (
            f"{first.fact.key}: what {shown_ranks(list(wrong))} got is not {_shown_operation(each)} of what"
            f" the ranks brought ({said}){where}"
        )
        yield _row(
            taken[rank], RankFault.COLLECTIVE, list(wrong), message, first.fact.meeting.group,
            found=shown_fact(fact), rests=rests.value,
        )  # fmt: skip
    elif unlike is not None:
        most, odd, pair = unlike
        verdict = WARNING if differ_by_rounding(*pair) else ERROR
        message = (
            f"{first.fact.key}: what {shown_ranks(odd)} got is not what {shown_ranks(most)} got,"
            " where all ranks get the same"
        )
        yield _row(
            taken[odd[0]], RankFault.COLLECTIVE, odd, message, first.fact.meeting.group,
            shown_fact(pair[0]), shown_fact(pair[1]), verdict=verdict,
        )  # fmt: skip


def _unlike(
    taken: Mapping[int, _Taken], items: Mapping[int, Sequence[Item]]
) -> Iterator[RankFinding]:
    """Yield where the ranks call one collective with other reductions or dtypes."""
    said: dict[str, list[int]] = defaultdict(list)
    dtypes: dict[str, list[int]] = defaultdict(list)
    for rank, each in items.items():
        said[_op_of(each)].append(rank)
        dtype = next((item.dtype for item in each if item.is_tensor), "")
        dtypes[dtype].append(rank)
    first = next(iter(taken.values()))
    for what, values in (("the reduction", said), ("the dtype", dtypes)):
        if len(values) > 1:
            by_count = sorted(values.items(), key=lambda item: (-len(item[1]), item[1]))
            shown = ", ".join(f"{value or 'SUM'} on {shown_ranks(on)}" for value, on in by_count)
            odd = by_count[1][1]
            message = (
                f"{first.fact.key}: {what} differs between the ranks of the collective: {shown}"
            )
            yield _row(taken[odd[0]], RankFault.COLLECTIVE, odd, message, first.fact.meeting.group)


def _op_of(items: Sequence[Item]) -> str:
    for item in items:
        if "ReduceOp" in item.type_name or item.path.endswith(".op"):
            return str(item.statistic("value")).rpartition(".")[2].upper()
    return ""


def _shown_operation(made: Made) -> str:
    several = any(len(piece) > 1 for piece in made.pieces)
    return f"the {made.operation}" if several else "a copy"


def _outputs_unlike(
    operation: str,
    items: Mapping[int, Sequence[Item]],
    fact_at: Callable[[int, Item], TensorFact],
) -> tuple[list[int], list[int], tuple[TensorFact, TensorFact]] | None:
    """Return the ranks that got the same, those that got something else, and what both got."""
    if not operation.removeprefix("functional.").startswith(_FOR_ALL):
        return None
    outputs: dict[int, list[TensorFact]] = {}
    for rank, each in items.items():
        given = [item for item in each if item.part == OUTPUT and item.is_tensor]
        if "all_gather" in operation and len(given) > 1:
            brought = {
                item.path.partition(".")[2]: item
                for item in each
                if item.part == INPUT and item.is_tensor
            }
            others = [item for item in given if item.path.partition(".")[2] not in brought]
            # A buffer that held something before stands among what was brought, and was changed.
            others += [
                item
                for item in given
                if (before := brought.get(item.path.partition(".")[2])) is not None
                and not fact_at(rank, item).is_same(fact_at(rank, before))
            ]
            given = others or given
        outputs[rank] = [fact_at(rank, item) for item in given]
    if len({len(facts) for facts in outputs.values()}) > 1:
        return None
    for place in range(len(next(iter(outputs.values()), []))):
        facts = {rank: found[place] for rank, found in outputs.items()}
        most, odd = odd_ones(facts)
        if odd:
            return most, odd, (facts[most[0]], facts[odd[0]])
    return None


def _wrong(
    made: Made, got: TensorFact, pieces: Sequence[Sequence[TensorFact]]
) -> tuple[str, RestsOn] | None:
    """Return what is wrong with an output, and on what that rests; None where nothing can be told to be."""
    facts = [fact for piece in pieces for fact in piece]
    if not facts or any(math.isnan(fact.statistics[3]) for fact in (got, *facts)):
        return None
    if not all(math.isfinite(each) for fact in (got, *facts) for each in fact.statistics):
        return None
    parts = [part for piece in made.pieces for part in piece]
    if any(item.statistic("sparse") for item in (made.item, *(part.item for part in parts))):
        return (
            None  # what a sparse tensor stores is no sum of what others store, element by element
        )
    is_whole = all(
        part.start == 0 and part.length == fact.size
        for part, fact in zip(parts, facts, strict=True)
    )
    if not is_whole:
        return None
    if len(made.pieces) == 1 and len(parts) == 1:
        return _wrong_copy(got, facts[0])
    if len(made.pieces) == 1:
        return _wrong_reduction(made.operation, got, facts)
    if all(len(piece) == 1 for piece in pieces):
        return _wrong_gather(got, facts)
    return None


def _is_one(records: Sequence[RankRecord]) -> bool:
    """Return whether each rank brings and gets a few tensors, not one of each other rank."""
    return len(items_of(records[0].record)) <= _FEW_TENSORS


def too_many_to_recompute(summary: RankTrace) -> int:
    """Return how many collectives of a dump are not recomputed because too many ranks bring too much; each is
    counted on the first rank of its group."""
    return sum(
        len(each.meeting.ranks) > MOST_RANKS
        and each.meeting.ranks[0] == summary.rank
        and len(items_of(record_from_json(each.raw))) > _FEW_TENSORS
        for each in summary.exchanges
    )


def _wrong_total(
    made: Sequence[Made],
    taken: Mapping[int, _Taken],
    fact_at: Callable[[int, Item], TensorFact],
) -> str:
    """Return what is wrong with the sum of all that the ranks got of a collective that divides what was
    brought; "" where nothing can be told to be."""
    if not made or len({each.operation for each in made}) > 1 or len(made) < len(taken):
        return ""
    operation, total, brought, norms, count = made[0].operation, 0.0, 0.0, 0.0, 0
    parts = {id(piece) for each in made for piece in each.pieces}
    if operation not in (SUM, MEAN) or len(parts) < len(made):
        return ""  # all get the same, which was judged already
    wholes: dict[tuple[int, str], tuple[TensorFact, int]] = {}
    unit = 0.0
    for each in made:
        fact = fact_at(each.rank, each.item)
        total += fact.statistics[2] * fact.size
        count += fact.size
        unit = max(unit, epsilon_of(fact.dtype) / 2)
        for part in (part for piece in each.pieces for part in piece):
            whole = fact_at(part.rank, part.item)
            _, length = wholes.get((part.rank, part.item.path), (whole, 0))
            wholes[part.rank, part.item.path] = whole, length + part.length
    for fact, length in wholes.values():
        if length != fact.size:
            return ""
        brought += fact.statistics[2] * fact.size
        norms += fact.statistics[3] * math.sqrt(fact.size)
    ranks = len(taken)
    share = 1.0 / ranks if operation == MEAN else 1.0
    allowed = ((ranks + 1) * unit + ranks * _NOISE) * norms * share
    if not unit or not math.isfinite(total + brought + norms):
        return ""
    if abs(total - brought * share) <= allowed:
        return ""
    return f"the sum of {count} elements is {total:.6g} where {brought * share:.6g} is right"


def _wrong_copy(got: TensorFact, one: TensorFact) -> tuple[str, RestsOn] | None:
    if got.dtype != one.dtype or got.size != one.size:
        return None
    names = ("Max", "Min")
    for name, ours, theirs in zip(names, got.statistics, one.statistics, strict=False):
        if ours != theirs:
            return f"{name} is {ours:.6g} where {theirs:.6g} was brought", RestsOn.STATISTICS
    size = max(one.statistics[3], got.statistics[3])
    if abs(got.statistics[3] - one.statistics[3]) > _norm_noise(got) * size:
        return (
            f"Norm is {got.statistics[3]:.6g} where {one.statistics[3]:.6g} was brought",
            RestsOn.STATISTICS,
        )
    if got.sketch is not None and one.sketch is not None:
        apart = float(np.linalg.norm(got.sketch.astype(np.float64) - one.sketch))
        if apart > _NOISE * size:
            return f"the sketches are {apart / size:.2g} apart", RestsOn.SKETCHES
    return None


def _wrong_reduction(
    operation: str, got: TensorFact, facts: Sequence[TensorFact]
) -> tuple[str, RestsOn] | None:
    high, low, mean, norm = got.statistics
    if operation == LARGEST:
        least = max(fact.statistics[0] for fact in facts)
        wrong = high != least
        return (
            (f"Max is {high:.6g} where {least:.6g} is right", RestsOn.STATISTICS) if wrong else None
        )
    if operation == SMALLEST:
        most = min(fact.statistics[1] for fact in facts)
        wrong = low != most
        return (
            (f"Min is {low:.6g} where {most:.6g} is right", RestsOn.STATISTICS) if wrong else None
        )
    if operation not in (SUM, MEAN) or not epsilon_of(got.dtype):
        return None
    share = 1.0 / len(facts) if operation == MEAN else 1.0
    unit = epsilon_of(got.dtype) / 2
    norms = sum(fact.statistics[3] for fact in facts) * share
    allowed = ((len(facts) + 1) * unit + len(facts) * _NOISE) * norms
    sketches = [fact.sketch for fact in facts]
    if got.sketch is not None and all(sketch is not None for sketch in sketches):
        total = np.sum([np.asarray(sketch, np.float64) for sketch in sketches], axis=0) * share
        apart = float(np.linalg.norm(got.sketch - total))
        if apart > allowed:
            return (
                f"the sketch of the result is {apart:.4g} from what is right, whose norm is {norms:.4g}",
                RestsOn.SKETCHES,
            )
        return None
    right = sum(fact.statistics[2] for fact in facts) * share
    root = math.sqrt(max(1, got.size))
    if abs(mean - right) > allowed / root + unit * abs(right):
        return f"Mean is {mean:.6g} where {right:.6g} is right", RestsOn.STATISTICS
    if norm > norms * (1 + _NOISE) + allowed:
        return f"Norm is {norm:.6g} where at most {norms:.6g} is right", RestsOn.STATISTICS
    return None


def _norm_noise(fact: TensorFact) -> float:
    """Return how far apart norms of the same values may be, relative to them: u sqrt(n) of n elements that
    are added up in float32 (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 2.8)."""
    return max(_NOISE, epsilon_of("float32") / 2 * math.sqrt(fact.size))


def _wrong_gather(got: TensorFact, facts: Sequence[TensorFact]) -> tuple[str, RestsOn] | None:
    if sum(fact.size for fact in facts) != got.size or any(f.dtype != got.dtype for f in facts):
        return None
    high = max(fact.statistics[0] for fact in facts)
    low = min(fact.statistics[1] for fact in facts)
    norm = math.sqrt(sum(fact.statistics[3] ** 2 for fact in facts))
    for name, ours, right in (("Max", got.statistics[0], high), ("Min", got.statistics[1], low)):
        if ours != right:
            return f"{name} is {ours:.6g} where {right:.6g} is right", RestsOn.STATISTICS
    if abs(got.statistics[3] - norm) > _norm_noise(got) * norm:
        return f"Norm is {got.statistics[3]:.6g} where {norm:.6g} is right", RestsOn.STATISTICS
    return None


def _row(
    taken: _Taken,
    kind: RankFault,
    ranks: Sequence[int],
    message: str,
    group: str,
    expected: str = "",
    found: str = "",
    rests: str = "",
    verdict: str = ERROR,
) -> RankFinding:
    summary, fact = taken
    return RankFinding(
        summary.step, verdict, kind, fact.key, ranges_of(ranks), group, expected, found,
        rests or summary.values_rest_on.value, message, dump=summary.name, key=fact.key, place=fact.place,
    )  # fmt: skip
