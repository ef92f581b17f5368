"""What the ranks of a group got and gave, record by record: samples, masks, activations, calls.

Comes in: the dumps of a group in a step, and its `Replicas`. Goes out: findings. Called by `checks`.
Checksums tell which records agree; of the few that say something the dumps are asked (`OpenDumps`).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.difference.rows import ERROR, WARNING
from ray_precheck.trace.flow import is_collective
from ray_precheck.trace.items import OUTPUT, Item
from ray_precheck.trace.ranks.agreement import (
    ranks_have,
    shown_fact,
    shown_group,
    shown_ranks,
)
from ray_precheck.trace.ranks.checksums import OPTIMIZER
from ray_precheck.trace.ranks.dumps import OpenDumps
from ray_precheck.trace.ranks.layout import (
    CONTEXT,
    DATA,
    EXPERT,
    PIPELINE,
    TENSOR,
    UNKNOWN,
    GroupEvidence,
)
from ray_precheck.trace.ranks.nouns import (
    RankFault,
    RankFinding,
    RankTrace,
    RestsOn,
    TensorFact,
)
from ray_precheck.trace.ranks.replicas import Replicas
from ray_precheck.trace.side import MODULE_PREFIXES

_MOST_ROWS = 3
FORWARD, BACKWARD = ".forward", ".backward"
# These give what they get; in functions of a user's own they stand for the function.
_NO_OPERATORS = re.compile(r"\w+\.(?:view_as|detach|contiguous|clone)\.\d+\.\w+")
# Records behind a value among which the one that reads it is looked for.
NEAR = 40
_SHARDING = ("all_gather", "reduce_scatter", "all_to_all")


class _Common(NamedTuple):
    """The records that all ranks of a group have: `got`, `gave`, `settings` `(ranks, keys)`, and where a key
    stands among the records of the first rank."""

    keys: Sequence[str]
    got: NDArray[np.uint32]
    gave: NDArray[np.uint32]
    settings: NDArray[np.uint32]
    places: Sequence[int]


def _common(members: Sequence[RankTrace]) -> _Common:
    first = members[0]
    if all(each.keys == first.keys for each in members):
        keys: Sequence[str] = first.keys
        places: Sequence[int] = range(len(keys))
        chosen = [slice(None)] * len(members)
    else:
        indices = [{key: place for place, key in enumerate(each.keys)} for each in members]
        shared = set.intersection(*(set(each) for each in indices))
        # Where ranks call an operator more or less often, its calls of one number are not the same call.
        counts = [Counter(map(_operator_of, each.keys)) for each in members]
        uneven = {name for each in counts for name in each if each[name] != counts[0][name]}
        uneven |= {name for name in counts[0] if any(not each[name] for each in counts)}
        keys = [key for key in first.keys if key in shared and _operator_of(key) not in uneven]
        places = [indices[0][key] for key in keys]
        chosen = [[index[key] for key in keys] for index in indices]  # type: ignore[misc]
    stacked = [
        np.stack([getattr(each, name)[at] for each, at in zip(members, chosen, strict=True)])
        for name in ("got", "gave", "settings")
    ]
    got, gave, settings = stacked
    return _Common(keys, got, gave, settings, places)


def _operator_of(key: str) -> str:
    """Return a record's operator and pass, without its number."""
    if key.startswith(MODULE_PREFIXES):
        return key.rpartition(".")[0]
    name, _, way = key.rpartition(".")
    return f"{name.rpartition('.')[0]}.{way}"


class GroupFlow:
    """The records of one group in one step, and the checks that need no operator's facts."""

    def __init__(
        self,
        members: Sequence[RankTrace],
        replicas: Replicas,
        evidence: GroupEvidence | None,
        dumps: OpenDumps,
    ) -> None:
        self._members, self._replicas, self._dumps = members, replicas, dumps
        self._group = replicas.group
        self._common = _common(members)
        self._at = {key: place for place, key in enumerate(self._common.keys)}
        operations = (evidence or GroupEvidence()).forward
        self._is_split = any(word in name for name in operations for word in _SHARDING)
        self._same_got = (self._common.got == self._common.got[0]).all(axis=0)
        self._same_gave = (self._common.gave == self._common.gave[0]).all(axis=0)

    def findings(self) -> Iterator[RankFinding]:
        """Yield what is wrong, the causes before what may follow from them."""
        kind = self._group.kind
        yield from self._samples()
        if kind != PIPELINE:
            yield from self._settings()
            yield from self._calls()
        if kind in (TENSOR, CONTEXT):
            yield from self._masks()

    def _is_no_call(self, key: str) -> bool:
        return (
            key.startswith((*MODULE_PREFIXES, OPTIMIZER))
            or is_collective(key)
            or _NO_OPERATORS.fullmatch(key) is not None
        )

    def _other(self, place: int) -> RankTrace:
        """Return the first rank that got something else than the first one."""
        differs = self._common.got[:, place] != self._common.got[0, place]
        return self._members[int(np.argmax(differs))]

    def _pairs(
        self, ours: RankTrace, theirs: RankTrace, key: str, part: str
    ) -> list[tuple[Item, Item, TensorFact, TensorFact]]:
        """Return the tensors of a record on two ranks, with what is known of them."""
        sides = []
        for summary in (ours, theirs):
            items = [i for i in self._dumps.items(summary, key) if i.part == part and i.is_tensor]
            sides.append([(item, self._dumps.fact(summary, item)) for item in items])
        if len(sides[0]) != len(sides[1]):
            return []
        return [(a, b, x, y) for (a, x), (b, y) in zip(*sides, strict=True)]

    def _row(
        self,
        kind: RankFault,
        name: str,
        ranks: Sequence[int],
        message: str,
        place: int,
        facts: Sequence[TensorFact | None] = (None, None),
        verdict: str = ERROR,
    ) -> RankFinding:
        summary = next((each for each in self._members if each.rank == ranks[0]), self._members[0])
        expected, found = ("" if fact is None else shown_fact(fact) for fact in facts)
        key = name if name in summary.keys else ""
        if not key and place < len(self._common.keys):
            key = self._common.keys[place]
        rests_on = summary.rests_on if name in summary.inputs else summary.values_rest_on
        return RankFinding(
            summary.step, verdict, kind, name, ranges_of(ranks), shown_group(self._group), expected,
            found, rests_on.value, message, dump=summary.name, key=key,
            place=self._common.places[place] if place < len(self._common.keys) else 0,
        )  # fmt: skip

    def _samples(self) -> Iterator[RankFinding]:
        """Yield data-parallel ranks with the same samples, tensor-parallel ones with other ones."""
        names = [
            name for name in self._members[0].inputs
            if all(name in each.inputs for each in self._members)
            and any(not each.inputs[name].is_constant for each in self._members)
        ]  # fmt: skip
        if not names:
            return
        if self._group.kind in (DATA, EXPERT):
            yield from self._same_samples(names)
        elif self._group.kind == TENSOR:
            yield from self._other_samples(names)

    def _marks_of(self, summary: RankTrace, names: Sequence[str]) -> tuple[int, ...]:
        """Return what tells the inputs of a rank: their values, and what their first readers gave, because
        whole numbers have no Mean and no Norm; where it is a mask, what the calls behind them gave, too."""
        found = []
        row = self._members.index(summary)
        for name in names:
            fact = summary.inputs[name]
            found += [fact.checksum, fact.content]
            place = self._at.get(summary.uses.get(name, ""))
            if place is not None:
                end = place + (NEAR if self._is_vague(summary, fact, place) else 1)
                found += [
                    int(given)
                    for key, given in zip(
                        self._common.keys[place:end], self._common.gave[row, place:end], strict=True
                    )
                    if not self._is_no_call(key)
                ]
            elif fact.is_vague:
                found.append(-summary.rank)
        return tuple(found)

    def _is_vague(self, summary: RankTrace, fact: TensorFact, place: int) -> bool:
        """Return whether a range alone is known of an input and of what its first reader gave."""
        if not fact.is_vague or fact.content >= 0 or summary.rests_on is RestsOn.DIGESTS:
            return False
        items = self._dumps.items(summary, self._common.keys[place])
        given = [each for each in items if each.part == OUTPUT and each.is_tensor]
        return all(self._dumps.fact(summary, each).is_vague for each in given)

    def _same_samples(self, names: Sequence[str]) -> Iterator[RankFinding]:
        owners: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for each in self._members:
            owners[self._marks_of(each, names)].append(each.rank)
        for ranks in owners.values():
            if len(ranks) < 2:
                continue
            shown = ", ".join(names)
            message = (
                f"{ranks_have(ranks[1:])} rank {ranks[0]}'s samples: all inputs of the model ({shown})"
                " are the same, where each data-parallel rank has a batch of its own"
            )
            verdict = ERROR
            if self._draw_apart(ranks):
                verdict = WARNING
                message += "; the ranks draw other random numbers, for which it may be meant"
            place = self._at.get(self._members[0].uses.get(names[0], ""), 0)
            fact = self._members[0].inputs[names[0]]
            pair = None, fact
            yield self._row(RankFault.SAMPLE, names[0], ranks[1:], message, place, pair, verdict)

    def _draw_apart(self, ranks: Sequence[int]) -> bool:
        """Return whether a dropout that ranks give the same values gives other ones on each of them."""
        rows = [row for row, each in enumerate(self._members) if each.rank in ranks]
        got, gave = self._common.got[rows], self._common.gave[rows]
        drawn = (got == got[0]).all(axis=0) & (gave != gave[0]).any(axis=0)
        return any(self._draws_mask(self._common.keys[at]) for at in np.nonzero(drawn)[0])

    def _other_samples(self, names: Sequence[str]) -> Iterator[RankFinding]:
        first = self._members[0]
        for name in names:
            facts = {each.rank: each.inputs[name] for each in self._members}
            odd = [rank for rank, fact in facts.items() if not fact.is_same(facts[first.rank])]
            if not odd or len({fact.shape for fact in facts.values()}) > 1:
                continue
            if self._is_split and not self._is_summed(first.uses.get(name, "")):
                continue  # The program may divide a sequence itself.
            message = (
                f"{ranks_have(odd)} other samples than rank {first.rank}: the input {name} of the model"
                " differs, where tensor-parallel ranks work on one batch"
            )
            place = self._at.get(first.uses.get(name, ""), 0)
            pair = facts[first.rank], facts[odd[0]]
            yield self._row(RankFault.SAMPLE, name, odd, message, place, pair)
            return

    def _is_summed(self, key: str) -> bool:
        """Return whether the first exchange after the reader of an input is a sum, so that all ranks read
        one: each has rows of the table. Where a sequence was divided before, a gathering comes first."""
        place = self._at.get(key)
        if place is None:
            return False
        exchanges = (
            each
            for each in self._common.keys[place:]
            if is_collective(each) and "broadcast" not in each
        )
        first = next(exchanges, "")
        return "all_reduce" in first or "reduce_scatter" in first

    def _settings(self) -> Iterator[RankFinding]:
        """Yield functions whose numbers (a dropout's share, an epsilon) differ between ranks."""
        settings = self._common.settings
        for place in np.nonzero((settings != settings[0]).any(axis=0))[0][:_MOST_ROWS]:
            key = self._common.keys[place]
            said: dict[str, list[int]] = defaultdict(list)
            for each in self._members:
                floats = [
                    f"{item.path.partition('.')[2]} {item.statistic('value')!r}"
                    for item in self._dumps.items(each, key)
                    if item.type_name == "float"
                ]
                said[", ".join(floats)].append(each.rank)
            if len(said) < 2:
                continue
            by_count = sorted(said.items(), key=lambda item: (-len(item[1]), item[1]))
            shown = "; ".join(f"{value} on {shown_ranks(ranks)}" for value, ranks in by_count)
            message = f"{key}: its numbers differ between the ranks: {shown}"
            verdict = WARNING if self._group.kind == UNKNOWN else ERROR
            yield self._row(
                RankFault.CONFIGURATION, key, by_count[1][1], message, int(place), verdict=verdict
            )

    def _calls(self) -> Iterator[RankFinding]:
        """Yield that ranks make other calls with gradients: a warning, because experts may have no tokens."""
        first = self._members[0]
        if all(each.keys == first.keys for each in self._members):
            return
        counts = {
            each.rank: Counter(
                key.rpartition(".")[0].rpartition(".")[0]
                for key in each.keys
                if key.endswith(BACKWARD) and not key.startswith(MODULE_PREFIXES)
            )
            for each in self._members
        }
        totals = {rank: sum(each.values()) for rank, each in counts.items()}
        if len({tuple(sorted(each.items())) for each in counts.values()}) < 2:
            return
        most = max(totals, key=lambda rank: totals[rank])
        fewest = min(totals, key=lambda rank: totals[rank])
        lacking = counts[most] - counts[fewest]
        shown = ", ".join(f"{name} ({number})" for name, number in lacking.most_common(4))
        odd = [rank for rank in totals if totals[rank] == totals[fewest]]
        message = (
            f"{shown_ranks(odd)} makes fewer calls that take part in the gradients than rank {most}:"
            f" {totals[fewest]} to {totals[most]}; missing are {shown or 'none by name'} (a microbatch that"
            " was left out, another branch)"
        )
        yield self._row(RankFault.CALLS, "calls", odd, message, 0, verdict=WARNING)

    def _masks(self) -> Iterator[RankFinding]:
        """Yield dropouts whose random states agree where activations are parts, or differ where the ranks
        have them alike."""
        same: list[tuple[int, str]] = []
        for key in self._members[0].masks:
            place = self._at.get(key)
            if place is None or not self._draws_mask(key):
                continue
            states = {each.masks.get(key) for each in self._members}
            if self._same_got[place] and len(states) > 1 and None not in states:
                odd = [
                    each.rank for each in self._members
                    if each.masks[key] != self._members[0].masks[key]
                ]  # fmt: skip
                message = (
                    f"{key}: {shown_ranks(odd)} begins with another random state than rank"
                    f" {self._members[0].rank}, and the ranks have its input alike: the masks differ where"
                    " they must agree"
                )
                yield self._row(RankFault.MASK, key, odd, message, place)
                return
            distinct = len(set(map(int, self._common.got[:, place])))
            if distinct == len(self._members) and len(states) == 1 and None not in states:
                same.append((place, key))
        if same:
            place, key = same[0]
            ranks = [each.rank for each in self._members]
            more = f" (and in {len(same) - 1} more dropouts)" if len(same) > 1 else ""
            message = (
                f"{key}: the dropout masks of {shown_ranks(ranks)} are the same in a region where each rank"
                f" has a part of its own{more}: they begin with the same random state"
            )
            yield self._row(RankFault.MASK, key, ranks[1:], message, place)

    @staticmethod
    def _draws_mask(key: str) -> bool:
        operator = key.rpartition(".")[0].rpartition(".")[0]
        return "dropout" in operator or "attention" in operator
