"""What the ranks of a group got and gave, record by record: samples, masks, activations, calls.

Comes in: the dumps of a group in a step, and its `Replicas`. Goes out: findings. Called by `checks`.
Checksums tell which records agree; of the few that say something the dumps are asked (`OpenDumps`).
"""

import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_precheck.dump.tensors import read_sketches
from ray_precheck.errors import DumpError
from ray_precheck.operators.drawing import DRAWING, Never
from ray_precheck.operators.effects import UNINITIALISED
from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.difference.rows import ERROR, WARNING
from ray_precheck.trace.flow import is_collective
from ray_precheck.trace.items import INPUT, OUTPUT, Item
from ray_precheck.trace.ranks.layout import (
    CONTEXT,
    DATA,
    EXPERT,
    PIPELINE,
    TENSOR,
    Evidence,
)
from ray_precheck.trace.ranks.nouns import (
    RankFault,
    RankFinding,
    RankGroup,
    RankSummary,
    TensorFact,
)
from ray_precheck.trace.ranks.replicas import Replicas
from ray_precheck.trace.ranks.state import is_rounding, shown_fact, shown_group, shown_ranks
from ray_precheck.trace.ranks.summary import OPTIMIZER, fact_of, plain_name
from ray_precheck.trace.side import MODULE_PREFIXES, CaptureSide, open_side
from ray_precheck.trace.sources import Modules, source_lines

_OPEN = 16
_COLUMNS = 2048
_MOST_ROWS = 3
_FORWARD, _BACKWARD = ".forward", ".backward"
# A value that stands beside others in a sum of the residual stream.
_SUMS = re.compile(r"\w+\.(?:__i?r?add__|add_?|__i?r?sub__|sub_?)\.\d+\.forward")
_EMBEDS = re.compile(r"\w+\.embedding\.\d+\.forward")
# These give what they get; in functions of a user's own they stand for the function.
_NO_OPERATORS = re.compile(r"\w+\.(?:view_as|detach|contiguous|clone)\.\d+\.\w+")
# Records behind a value among which the one that reads it is looked for.
_NEAR = 40
_SHARDING = ("all_gather", "reduce_scatter", "all_to_all")
_MIX = np.uint64(0x9E3779B97F4A7C15)


class OpenDumps:
    """The dumps of a run, of which a few are open at a time, for what summaries do not tell.

    `paths` are theirs by step and rank.
    """

    def __init__(self, paths: Mapping[tuple[int, int], Path]) -> None:
        self._paths = paths
        self._open: OrderedDict[tuple[int, int], tuple[CaptureSide, dict[str, int], Any]] = (
            OrderedDict()
        )

    def items(self, summary: RankSummary, key: str) -> list[Item]:
        """Return the values of a record; none where the dump cannot be read."""
        found = self._side(summary)
        if found is None or key not in found[1]:
            return []
        return found[0].items(found[0].entries[found[1][key]])

    def fact(self, summary: RankSummary, item: Item) -> TensorFact:
        """Return what a tensor's element says of its values."""
        found = self._side(summary)
        number = item.statistic("sketch")
        rows = found[2] if found is not None else ()
        is_known = type(number) is int and number < len(rows)
        return fact_of(item, rows[number] if is_known else None)

    def modules(self, summary: RankSummary) -> Modules:
        """Return the modules around the records."""
        path = self._paths.get((summary.step, summary.rank))
        return Modules(path.parent) if path is not None else Modules()

    def source(self, summary: RankSummary, key: str) -> str:
        """Return the program's line of a record, "" where it is not known."""
        path = self._paths.get((summary.step, summary.rank))
        return source_lines(path, {key}).get(key, "") if path is not None and key else ""

    def close(self) -> None:
        """Close what is open."""
        while self._open:
            self._open.popitem()[1][0].file.close()

    def _side(self, summary: RankSummary) -> tuple[CaptureSide, dict[str, int], Any] | None:
        at = summary.step, summary.rank
        if at not in self._open and at in self._paths:
            try:
                side = open_side(self._paths[at])
                rows = read_sketches(side.folder)
            except (DumpError, OSError):
                return None
            places = {entry.key: place for place, entry in enumerate(side.entries)}
            self._open[at] = side, places, rows
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)[1][0].file.close()
        if at in self._open:
            self._open.move_to_end(at)
        return self._open.get(at)


class _Common(NamedTuple):
    """The records that all ranks of a group have: `got`, `gave`, `settings` `(ranks, keys)`, and where a key
    stands among the records of the first rank."""

    keys: Sequence[str]
    got: NDArray[np.uint32]
    gave: NDArray[np.uint32]
    settings: NDArray[np.uint32]
    places: Sequence[int]


def _common(members: Sequence[RankSummary]) -> _Common:
    first = members[0]
    if all(each.keys == first.keys for each in members):
        keys: Sequence[str] = first.keys
        places: Sequence[int] = range(len(keys))
        chosen = [slice(None)] * len(members)
    else:
        indices = [{key: place for place, key in enumerate(each.keys)} for each in members]
        shared = set.intersection(*(set(each) for each in indices))
        keys = [key for key in first.keys if key in shared]
        places = [indices[0][key] for key in keys]
        chosen = [[index[key] for key in keys] for index in indices]  # type: ignore[misc]
    stacked = [
        np.stack([getattr(each, name)[at] for each, at in zip(members, chosen, strict=True)])
        for name in ("got", "gave", "settings")
    ]
    got, gave, settings = stacked
    return _Common(keys, got, gave, settings, places)


class FlowChecks:
    """The checks of one group in one step."""

    def __init__(
        self,
        members: Sequence[RankSummary],
        replicas: Replicas,
        evidence: Evidence | None,
        dumps: OpenDumps,
    ) -> None:
        self._members, self._replicas, self._dumps = members, replicas, dumps
        self._group = replicas.group
        self._common = _common(members)
        self._at = {key: place for place, key in enumerate(self._common.keys)}
        operations = (evidence or Evidence()).forward
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
            yield from self._positions()
        yield from self._operators()
        if kind == TENSOR:
            yield from self._sums()

    def gradient_cause(self) -> RankFinding | None:
        """Return the first place of the backward pass where what all ranks have alike gets other gradients:
        what reads it did not sum them over the ranks. None where there is none."""
        if self._group.kind != TENSOR or self._is_split:
            return None
        for place, key in enumerate(self._common.keys):
            if not key.endswith(_BACKWARD) or self._same_got[place] or self._is_no_call(key):
                continue
            forward = self._at.get(key.removesuffix(_BACKWARD) + _FORWARD)
            if forward is None or not (self._same_got[forward] and self._same_gave[forward]):
                continue
            ours, theirs = self._members[0], self._other(place)
            pairs = self._pairs(ours, theirs, key, INPUT)
            pair = next((each for each in pairs if not each[2].is_same(each[3])), None)
            if pair is None or pair[2].is_constant:
                continue
            giver = self._giver(ours, place, pair[2])
            module = _module_words(self._dumps.modules(ours), giver)
            through = f" (it comes from {giver}{module})" if giver else ""
            message = (
                f"{key}: the ranks have the output of {key.removesuffix(_BACKWARD)} alike, and get other"
                f" gradients of it{through}: the gradients of what reads it were not summed over the group"
            )
            verdict = WARNING if is_rounding(pair[2], pair[3]) else ERROR
            return self._row(
                RankFault.ACTIVATION, giver or key, [theirs.rank], message, place, pair[2:], verdict
            )
        return None

    def _is_no_call(self, key: str) -> bool:
        return (
            key.startswith((*MODULE_PREFIXES, OPTIMIZER))
            or is_collective(key)
            or _NO_OPERATORS.fullmatch(key) is not None
        )

    def _other(self, place: int) -> RankSummary:
        """Return the first rank that got something else than the first one."""
        differs = self._common.got[:, place] != self._common.got[0, place]
        return self._members[int(np.argmax(differs))]

    def _pairs(
        self, ours: RankSummary, theirs: RankSummary, key: str, part: str
    ) -> list[tuple[Item, Item, TensorFact, TensorFact]]:
        """Return the tensors of a record on two ranks, with what is known of them."""
        sides = []
        for summary in (ours, theirs):
            items = [i for i in self._dumps.items(summary, key) if i.part == part and i.is_tensor]
            sides.append([(item, self._dumps.fact(summary, item)) for item in items])
        if len(sides[0]) != len(sides[1]):
            return []
        return [(a, b, x, y) for (a, x), (b, y) in zip(*sides, strict=True)]

    def _giver(self, summary: RankSummary, place: int, fact: TensorFact) -> str:
        """Return the record before a place that gave a tensor, "" where none of those near it did."""
        at = self._common.places[place]
        for number in range(at - 1, max(-1, at - _NEAR), -1):
            key = summary.keys[number]
            if key.startswith(MODULE_PREFIXES):
                continue
            for item in self._dumps.items(summary, key):
                if item.part == OUTPUT and item.is_tensor:
                    given = self._dumps.fact(summary, item)
                    if given.statistics == fact.statistics and given.size == fact.size:
                        return key
        return ""

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
        return RankFinding(
            summary.step, verdict, kind, name, ranges_of(ranks), shown_group(self._group), expected,
            found, summary.rests_on.value, message, dump=summary.name, key=key,
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

    def _marks_of(self, summary: RankSummary, names: Sequence[str]) -> tuple[int, ...]:
        """Return what tells the inputs of a rank: their values, and what their first readers gave, because
        whole numbers have no Mean and no Norm."""
        found = []
        for name in names:
            found.append(summary.inputs[name].checksum)
            place = self._at.get(summary.uses.get(name, ""))
            if place is not None:
                row = self._members.index(summary)
                found.append(int(self._common.gave[row, place]))
        return tuple(found)

    def _same_samples(self, names: Sequence[str]) -> Iterator[RankFinding]:
        owners: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for each in self._members:
            owners[self._marks_of(each, names)].append(each.rank)
        for ranks in owners.values():
            if len(ranks) < 2:
                continue
            shown = ", ".join(names)
            message = (
                f"{shown_ranks(ranks[1:])} has rank {ranks[0]}'s samples: all inputs of the model ({shown})"
                " are the same, where each data-parallel rank has a batch of its own"
            )
            place = self._at.get(self._members[0].uses.get(names[0], ""), 0)
            fact = self._members[0].inputs[names[0]]
            yield self._row(RankFault.SAMPLE, names[0], ranks[1:], message, place, (None, fact))

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
                f"{shown_ranks(odd)} has other samples than rank {first.rank}: the input {name} of the model"
                " differs, where tensor-parallel ranks work on one batch"
            )
            place = self._at.get(first.uses.get(name, ""), 0)
            pair = facts[first.rank], facts[odd[0]]
            yield self._row(RankFault.SAMPLE, name, odd, message, place, pair)
            return

    def _is_summed(self, key: str) -> bool:
        """Return whether a sum over the ranks follows on the reader of an input, so that they read one."""
        place = self._at.get(key)
        if place is None:
            return False
        near = self._common.keys[place : place + _NEAR // 4]
        return any("all_reduce" in each or "reduce_scatter" in each for each in near)

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
            yield self._row(RankFault.CONFIGURATION, key, by_count[1][1], message, int(place))

    def _calls(self) -> Iterator[RankFinding]:
        """Yield that ranks make other calls with gradients: a warning, because experts may have no tokens."""
        first = self._members[0]
        if all(each.keys == first.keys for each in self._members):
            return
        counts = {
            each.rank: Counter(
                key.rpartition(".")[0].rpartition(".")[0]
                for key in each.keys
                if key.endswith(_BACKWARD) and not key.startswith(MODULE_PREFIXES)
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

    def _positions(self) -> Iterator[RankFinding]:
        """Yield a table whose rows all ranks read alike, and add to parts of a sequence that they have of
        their own."""
        for place, key in enumerate(self._common.keys):
            if not _EMBEDS.fullmatch(key) or not (self._same_got[place] and self._same_gave[place]):
                continue
            items = self._dumps.items(self._members[0], key)
            indices = next((i for i in items if i.part == INPUT and "int" in i.dtype), None)
            table = next((i.state_name for i in items if i.state_name), "")
            given = next((i for i in items if i.part == OUTPUT and i.is_tensor), None)
            if (
                indices is None
                or given is None
                or self._dumps.fact(self._members[0], indices).is_constant
            ):
                continue
            fact = self._dumps.fact(self._members[0], given)
            for number in range(place + 1, min(place + _NEAR // 4, len(self._common.keys))):
                reader = self._common.keys[number]
                if not _SUMS.fullmatch(reader) or self._same_got[number]:
                    continue
                ours, theirs = self._members[0], self._other(number)
                pairs = self._pairs(ours, theirs, reader, INPUT)
                alike = any(x.is_same(y) and x.statistics == fact.statistics for *_, x, y in pairs)
                parts = any(not x.is_same(y) for *_, x, y in pairs)
                if alike and parts:
                    ranks = [each.rank for each in self._members]
                    message = (
                        f"{key}: {shown_ranks(ranks)} read the same rows of {plain_name(table) or 'a table'}"
                        f" and add them (in {reader}) to parts of a sequence that each has of its own:"
                        " the positions are not offset by the rank's part"
                    )
                    yield self._row(RankFault.ACTIVATION, key, ranks[1:], message, place)
                    return

    def _operators(self) -> Iterator[RankFinding]:
        """Yield operators that gave other values for the same inputs."""
        shown = 0
        for place in self._broken():
            key = self._common.keys[place]
            operator = key.rpartition(".")[0].rpartition(".")[0]
            if self._is_no_call(key) or UNINITIALISED.of(operator):
                continue
            drawing = DRAWING.of(operator)
            is_random = drawing is not None and not isinstance(drawing, Never)
            if is_random and (self._group.kind != TENSOR or not self._draws_mask(key)):
                continue
            ours, theirs = self._odd_pair(place)
            inputs = self._pairs(ours, theirs, key, INPUT)
            outputs = [
                each
                for each in self._pairs(ours, theirs, key, OUTPUT)
                if not each[2].is_same(each[3])
            ]
            if not inputs or not outputs or all(x.is_constant for *_, x, _ in inputs):
                continue
            pair = outputs[0][2:]
            verdict = WARNING if all(is_rounding(x, y) for *_, x, y in outputs) else ERROR
            ranks = [theirs.rank] if len(self._members) > 2 else [ours.rank, theirs.rank]
            if is_random:
                if key.endswith(_BACKWARD):
                    continue
                message = (
                    f"{key}: the masks of {shown_ranks([ours.rank, theirs.rank])} differ, and they have the"
                    " input alike: the ranks drew from other random states in a replicated region"
                )
                yield self._row(RankFault.MASK, key, [theirs.rank], message, place, pair)
                return
            message = (
                f"{key}: {shown_ranks([ours.rank, theirs.rank])} got the same inputs, and gave other values"
                f" ({outputs[0][0].path})"
            )
            if verdict == WARNING:
                message += "; they agree but for rounding"
            yield self._row(RankFault.ACTIVATION, key, ranks, message, place, pair, verdict)
            shown += 1
            if shown >= _MOST_ROWS:
                return

    def _broken(self) -> Iterator[int]:
        """Yield the places of records that gave other values on ranks where they got the same, as checksums
        tell. A backward pass got its forward's inputs and outputs, too."""
        keys, got, gave = self._common.keys, self._common.got, self._common.gave
        for begin in range(0, len(keys), _COLUMNS):
            chosen = range(begin, min(begin + _COLUMNS, len(keys)))
            wide = got[:, chosen].astype(np.uint64)
            for number, place in enumerate(chosen):
                key = keys[place]
                if not key.endswith(_BACKWARD):
                    continue
                forward = self._at.get(key.removesuffix(_BACKWARD) + _FORWARD)
                if forward is None:
                    wide[:, number] = np.arange(len(wide))
                    continue
                before = got[:, forward].astype(np.uint64) * _MIX
                after = gave[:, forward].astype(np.uint64)
                wide[:, number] = ((wide[:, number] + before) * _MIX + after) >> np.uint64(32)
            both = (wide << np.uint64(32)) | gave[:, chosen].astype(np.uint64)
            inputs = np.diff(np.sort(wide, axis=0), axis=0).astype(bool).sum(axis=0)
            pairs = np.diff(np.sort(both, axis=0), axis=0).astype(bool).sum(axis=0)
            yield from (begin + int(number) for number in np.nonzero(pairs > inputs)[0])

    def _odd_pair(self, place: int) -> tuple[RankSummary, RankSummary]:
        """Return a rank with what most ranks gave, and one that gave something else for the same inputs."""
        by_input: dict[int, Counter[int]] = defaultdict(Counter)
        got, gave = self._common.got[:, place], self._common.gave[:, place]
        for inputs, outputs in zip(got.tolist(), gave.tolist(), strict=True):
            by_input[inputs][outputs] += 1
        inputs = next(each for each, given in by_input.items() if len(given) > 1)
        usual = by_input[inputs].most_common(1)[0][0]
        first = next(
            i for i, (a, b) in enumerate(zip(got, gave, strict=True)) if (a, b) == (inputs, usual)
        )
        odd = next(
            i for i, (a, b) in enumerate(zip(got, gave, strict=True)) if a == inputs and b != usual
        )
        return self._members[first], self._members[odd]

    def _sums(self) -> Iterator[RankFinding]:
        """Yield the first sum of a value that all ranks have alike and one that each has of its own: of
        tensor parallelism without divided sequences, the latter was not summed over the ranks.

        Both have gradients (a mask has none) and one shape; or what all have is the bias of a module whose
        weight is a part.
        """
        modules = {name.rpartition(".")[0] for name in self._replicas.parts}
        for place, key in enumerate(self._common.keys):
            is_bias = ".linear." in key and key.endswith(_FORWARD)
            if self._same_got[place] or not (is_bias or _SUMS.fullmatch(key)):
                continue
            ours, theirs = self._members[0], self._other(place)
            pairs = [
                each for each in self._pairs(ours, theirs, key, INPUT) if _has_gradient(each[0])
            ]
            alike = [each for each in pairs if each[2].is_same(each[3]) and not each[2].is_constant]
            parts = [each for each in pairs if not each[2].is_same(each[3])]
            if not alike or not parts:
                continue
            name = plain_name(alike[0][0].state_name)
            if is_bias:
                is_vector = len(alike[0][2].shape) == 1
                if name and is_vector and self._is_summed_next(place):
                    yield self._bias(place, key, name, ours, theirs)
                    return
                continue
            is_module_bias = name.rpartition(".")[0] in modules and not self._is_split
            if not is_module_bias and alike[0][2].shape != parts[0][2].shape:
                continue
            if self._is_summed_next(place):
                continue
            yield self._mixed(place, key, parts[0], name, ours, theirs)
            return

    def _is_summed_next(self, place: int) -> bool:
        """Return whether a collective of the group follows that gets what a record gave."""
        summary = self._members[0]
        given = [
            self._dumps.fact(summary, item)
            for item in self._dumps.items(summary, self._common.keys[place])
            if item.part == OUTPUT and item.is_tensor
        ]
        at = self._common.places[place]
        for each in summary.exchanges:
            if not at < each.place < at + _NEAR // 4:
                continue
            for item in self._dumps.items(summary, each.key):
                if item.part == INPUT and item.is_tensor:
                    fact = self._dumps.fact(summary, item)
                    if any(fact.statistics == other.statistics for other in given):
                        return True
        return False

    def _bias(
        self, place: int, key: str, name: str, ours: RankSummary, theirs: RankSummary
    ) -> RankFinding:
        ranks = [each.rank for each in self._members]
        message = (
            f"{key}: {name}, which is a copy, is added on each of {shown_ranks(ranks)} before what they have"
            f" is summed over the ranks: the sum has it {len(ranks)} times"
        )
        return self._row(RankFault.ACTIVATION, key, [theirs.rank], message, place)

    def _mixed(
        self,
        place: int,
        key: str,
        part: tuple[Item, Item, TensorFact, TensorFact],
        name: str,
        ours: RankSummary,
        theirs: RankSummary,
    ) -> RankFinding:
        giver = self._giver(ours, place, part[2])
        where = _module_words(self._dumps.modules(ours), giver or key)
        exchange = next((each for each in ours.exchanges if each.key == giver), None)
        over = ""
        if exchange is not None:
            over = f", where it was reduced over the group {exchange.meeting.group}"
        message = (
            f"{key}: {name or 'a value'} that all ranks have alike is added to one that each of"
            f" {shown_ranks([each.rank for each in self._members])} has of its own"
            f" (from {giver or 'an unknown record'}{where}{over}): a sum over the group"
            f" {shown_group(self._group)} is missing"
        )
        pair = part[2:]
        verdict = WARNING if is_rounding(*pair) else ERROR
        return self._row(RankFault.ACTIVATION, key, [theirs.rank], message, place, pair, verdict)


def _has_gradient(item: Item) -> bool:
    return item.statistic("requires_grad") is True and "float" in item.dtype


def _module_words(modules: Modules, key: str) -> str:
    """Return ` in layers.0.mlp` for the module around a record, "" where there is none."""
    found = modules.of(key) if key else ""
    parts = found.split(".")[1:]
    cut = next((at for at, part in enumerate(parts) if part in ("forward", "backward")), len(parts))
    return f" in {'.'.join(parts[: max(0, cut - 1)])}" if cut > 1 else ""


def exchanges_by_module(
    summary: RankSummary, groups: Sequence[RankGroup], modules: Modules
) -> Iterator[RankFinding]:
    """Yield collectives that a module lacks, or makes otherwise, beside the others of its role and class."""
    first_backward = next(
        (place for place, key in enumerate(summary.keys) if _BACKWARD in key), len(summary.keys)
    )
    made: dict[str, list[str]] = {}
    for key in summary.keys[:first_backward]:
        if key.startswith(MODULE_PREFIXES) and f"{_FORWARD}." in key:
            made.setdefault(key, [])
    places: dict[str, tuple[str, int]] = {}
    for each in summary.exchanges:
        module = modules.of(each.key)
        if each.place < first_backward and module in made and b'"by"' not in each.raw:
            made[module].append(f"{each.meeting.operation} in the group {each.meeting.group}")
            places.setdefault(module, (each.key, each.place))
    roles: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    for module, operations in made.items():
        if module.endswith(f"{_FORWARD}.0"):
            roles[re.sub(r"\d+", "#", module)][module] = tuple(operations)
    frequent = Counter(operation for operations in made.values() for operation in operations)
    for alike in roles.values():
        counts = Counter(alike.values())
        if len(counts) < 2:
            continue
        usual, _ = max(
            counts.items(),
            key=lambda item: (item[1], bool(item[0]), max((frequent[name] for name in item[0]), default=0),
                              -len(item[0])),
        )  # fmt: skip
        for module, own in alike.items():
            if own != usual:
                like = next(other for other, done in alike.items() if done == usual)
                yield _unlike_module(summary, module, like, (own, usual), groups, places, modules)
                break


def _unlike_module(
    summary: RankSummary,
    module: str,
    like: str,
    made: tuple[Sequence[str], Sequence[str]],
    groups: Sequence[RankGroup],
    places: Mapping[str, tuple[str, int]],
    modules: Modules,
) -> RankFinding:
    operations, usual = made
    short, other = (".".join(each.split(".")[1:-3]) for each in (module, like))
    key, place = places.get(module, (module, _begin_of(module, summary, modules)))
    group = next((each for each in groups if summary.rank in each.ranks), None)
    shown = "; ".join(operations) or "no collective"
    message = (
        f"{short} makes {shown} in its forward pass, and {other}, which is alike, makes"
        f" {'; '.join(usual) or 'none'}: a collective is missing, is one too many, or runs in another group"
    )
    return RankFinding(
        summary.step, ERROR, RankFault.COLLECTIVE, key, str(summary.rank),
        shown_group(group) if group is not None else "", "; ".join(usual), shown, "the records",
        message, dump=summary.name, key=key, place=place,
    )  # fmt: skip


def _begin_of(module: str, summary: RankSummary, modules: Modules) -> int:
    """Return the place of the first record in a module; its own record stands behind them."""
    place = summary.keys.index(module)
    inside = (
        at for at in range(max(0, place - _NEAR), place) if modules.of(summary.keys[at]) == module
    )
    return next(inside, place)
