"""Activations of ranks: operators that err on one rank, sums over the ranks that are missing.

Comes in: the dumps of a group in a step. Goes out: findings. Called by `checks`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from ray_precheck.operators.drawing import DRAWING, Never
from ray_precheck.operators.effects import UNINITIALISED
from ray_precheck.trace.difference.rows import ERROR, WARNING
from ray_precheck.trace.items import INPUT, OUTPUT, Item, bare_name
from ray_precheck.trace.ranks.agreement import (
    differ_by_rounding,
    ranks_have,
    shown_group,
    shown_ranks,
)
from ray_precheck.trace.ranks.dumps import module_words
from ray_precheck.trace.ranks.flow import BACKWARD, FORWARD, NEAR, GroupFlow
from ray_precheck.trace.ranks.layout import CONTEXT, TENSOR
from ray_precheck.trace.ranks.nouns import (
    RankFault,
    RankFinding,
    RankTrace,
    RestsOn,
    TensorFact,
)
from ray_precheck.trace.side import MODULE_PREFIXES

_COLUMNS = 2048
_MOST_ROWS = 3
# A value that stands beside others in a sum of the residual stream.
_SUMS = re.compile(r"\w+\.(?:__i?r?add__|add_?|__i?r?sub__|sub_?)\.\d+\.forward")
_EMBEDS = re.compile(r"\w+\.embedding\.\d+\.forward")
_MIX = np.uint64(0x9E3779B97F4A7C15)


class ActivationChecks(GroupFlow):
    """The checks of what operators of one group got and gave in one step."""

    def findings(self) -> Iterator[RankFinding]:
        """Yield what is wrong, the causes before what may follow from them."""
        yield from super().findings()
        if self._group.kind in (TENSOR, CONTEXT):
            yield from self._positions()
        yield from self._operators()
        if self._group.kind == TENSOR:
            yield from self._sums()

    def gradient_cause(self) -> RankFinding | None:
        """Return the first place of the backward pass where what all ranks have alike gets other gradients:
        what reads it did not sum them over the ranks. None where there is none."""
        if self._group.kind != TENSOR or self._is_split:
            return None
        for place, key in enumerate(self._common.keys):
            if not key.endswith(BACKWARD) or self._same_got[place] or self._is_no_call(key):
                continue
            forward = self._at.get(key.removesuffix(BACKWARD) + FORWARD)
            if forward is None or not (self._same_got[forward] and self._same_gave[forward]):
                continue
            ours, theirs = self._members[0], self._other(place)
            pairs = self._pairs(ours, theirs, key, INPUT)
            pair = next((each for each in pairs if not each[2].is_same(each[3])), None)
            if pair is None or pair[2].is_constant:
                continue
            giver = self._giver(ours, place, pair[2])
            module = module_words(self._dumps.modules(ours), giver)
            through = f" (it comes from {giver}{module})" if giver else ""
            message = (
                f"{key}: the ranks have the output of {key.removesuffix(BACKWARD)} alike, and get other"
                f" gradients of it{through}: the gradients of what reads it were not summed over the group"
            )
            verdict = WARNING if differ_by_rounding(pair[2], pair[3]) else ERROR
            return self._row(
                RankFault.ACTIVATION, giver or key, [theirs.rank], message, place, pair[2:], verdict
            )
        return None

    def _giver(self, summary: RankTrace, place: int, fact: TensorFact) -> str:
        """Return the record before a place that gave a tensor, "" where none of those near it did."""
        at = self._common.places[place]
        for number in range(at - 1, max(-1, at - NEAR), -1):
            key = summary.keys[number]
            if key.startswith(MODULE_PREFIXES):
                continue
            for item in self._dumps.items(summary, key):
                if item.part == OUTPUT and item.is_tensor:
                    given = self._dumps.fact(summary, item)
                    if given.statistics == fact.statistics and given.size == fact.size:
                        return key
        return ""

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
            for number in range(place + 1, min(place + NEAR // 4, len(self._common.keys))):
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
                        f"{key}: {shown_ranks(ranks)} read the same rows of {bare_name(table) or 'a table'}"
                        f" and add them (in {reader}) to parts of a sequence that each has of its own: "
                        + (
                            "the positions are not offset by the rank's part"
                            if _are_counted(indices)
                            else f"{ranks_have(ranks[1:])} the samples of another rank's part of the sequence"
                        )
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
            # Two masks that both have a true and a false element need not be the same.
            if ours.values_rest_on is not RestsOn.DIGESTS and any(
                x.is_vague for *_, x, _ in inputs
            ):
                continue
            pair = outputs[0][2:]
            verdict = WARNING if all(differ_by_rounding(x, y) for *_, x, y in outputs) else ERROR
            ranks = [theirs.rank] if len(self._members) > 2 else [ours.rank, theirs.rank]
            if is_random:
                if key.endswith(BACKWARD):
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
                if not key.endswith(BACKWARD):
                    continue
                forward = self._at.get(key.removesuffix(BACKWARD) + FORWARD)
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

    def _odd_pair(self, place: int) -> tuple[RankTrace, RankTrace]:
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
            is_bias = ".linear." in key and key.endswith(FORWARD)
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
            name = bare_name(alike[0][0].state_name)
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
            if not at < each.place < at + NEAR // 4:
                continue
            for item in self._dumps.items(summary, each.key):
                if item.part == INPUT and item.is_tensor:
                    fact = self._dumps.fact(summary, item)
                    if any(fact.statistics == other.statistics for other in given):
                        return True
        return False

    def _bias(
        self, place: int, key: str, name: str, ours: RankTrace, theirs: RankTrace
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
        ours: RankTrace,
        theirs: RankTrace,
    ) -> RankFinding:
        giver = self._giver(ours, place, part[2])
        where = module_words(self._dumps.modules(ours), giver or key)
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
        verdict = WARNING if differ_by_rounding(*pair) else ERROR
        return self._row(RankFault.ACTIVATION, key, [theirs.rank], message, place, pair, verdict)


def _has_gradient(item: Item) -> bool:
    return item.statistic("requires_grad") is True and "float" in item.dtype


def _are_counted(indices: Item) -> bool:
    """Return whether indices can be positions: as many as their range has numbers."""
    shape, high, low = indices.shape or (), indices.number("Max"), indices.number("Min")
    return bool(shape) and high is not None and low is not None and high - low + 1 == shape[-1]
