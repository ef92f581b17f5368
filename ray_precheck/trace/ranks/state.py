"""Parameters, buffers, gradients and updates of ranks that have copies of them.

Comes in: the dumps of a group in each step, and its `Replicas`. Goes out: findings. Called by `checks`. Of
what follows from what, the first is told: a parameter that differs at the start, a gradient that differs at
the update of equal parameters, an update that makes different parameters of equal ones.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.difference.rows import ERROR, WARNING
from ray_precheck.trace.ranks.agreement import (
    NO_FACTOR,
    differ_by_rounding,
    factor_of_facts,
    is_near,
    odd_ones,
    ranks_have,
    shown_fact,
    shown_group,
    shown_ranks,
    usual_of,
)
from ray_precheck.trace.ranks.layout import CONTEXT, DATA, EXPERT, PIPELINE, TENSOR, Ranks
from ray_precheck.trace.ranks.nouns import (
    RankFault,
    RankFinding,
    RankGroup,
    RankTrace,
    TensorFact,
    UpdateFact,
)
from ray_precheck.trace.ranks.replicas import Replicas, members_of, role_of
from ray_precheck.trace.ranks.scales import reductions_of_gradients
from ray_precheck.trace.ranks.summary import named_tensors

# Beyond so many rows of one kind in a step there is one for all.
_MOST_ROWS = 8
_PARTIAL = "Partial"
# So many of the copies have one factor where a norm scaled them all.
_NEARLY_ALL = 0.8


class StateChecks:
    """The checks of one group. `others` are the reductions of other groups, by parameter."""

    def __init__(
        self, steps: Sequence[Ranks], replicas: Replicas, others: Mapping[str, RankGroup]
    ) -> None:
        self._steps, self._replicas, self._others = steps, replicas, others
        self._group = replicas.group
        self._known: set[str] = set()
        self._served: set[int] = set()
        self._is_shared = False

    def findings(self) -> Iterator[RankFinding]:
        """Yield what is wrong, in the order of the steps."""
        for number, ranks in enumerate(self._steps):
            members = members_of(ranks, self._group)
            if len(members) > 1:
                yield from self._starts(number, members)
                yield from self._buffers(number, members)
                yield from self._gradients(members)
                yield from self._updates(number, members)

    def _row(
        self,
        summary: RankTrace,
        kind: RankFault,
        name: str,
        ranks: Sequence[int],
        message: str,
        facts: tuple[TensorFact | None, TensorFact | None] = (None, None),
        verdict: str = ERROR,
        key: str = "",
    ) -> RankFinding:
        key = key or summary.uses.get(name, "")
        place = summary.keys.index(key) if key in summary.keys else 0
        if kind in (RankFault.GRADIENT, RankFault.UPDATE):
            place = len(summary.keys)
        expected, found = ("" if fact is None else shown_fact(fact) for fact in facts)
        return RankFinding(
            summary.step, verdict, kind, name, ranges_of(ranks), shown_group(self._group), expected,
            found, summary.rests_on.value, message, dump=summary.name, key=key, place=place,
        )  # fmt: skip

    def _starts(self, number: int, members: Sequence[RankTrace]) -> Iterator[RankFinding]:
        """Yield the copies that differ at the start of a step, and parts that are the same."""
        step = members[0].step
        for odd in self._replicas.odd:
            if odd.step == step and odd.is_copy:
                yield self._same_part(odd.name, odd.like, members)
                self._known.add(odd.name)
        yield from self._moved_parts(members)
        known = {each.rank: dict(named_tensors(each)) for each in members}
        found = []
        for name in self._replicas.copies:
            facts = {rank: each[name] for rank, each in known.items() if name in each}
            if name not in self._known and len(facts) > 1 and odd_ones(facts)[1]:
                found.append((name, facts))
        self._known.update(name for name, _ in found)
        is_many = len(found) > _MOST_ROWS
        for name, facts in found[: 1 if is_many else None]:
            rest = f" (and {len(found) - 1} more parameters)" if is_many else ""
            yield self._start(name, facts, rest, members, is_first=not number)

    def _start(
        self,
        name: str,
        facts: Mapping[int, TensorFact],
        rest: str,
        members: Sequence[RankTrace],
        *,
        is_first: bool,
    ) -> RankFinding:
        most, odd_ranks = odd_ones(facts)
        pair = facts[most[0]], facts[odd_ranks[0]]
        when = f"at the start of step {members[0].step}"
        if self._is_shared:
            when += ": what some ranks updated was not given to the others (broadcast)"
        elif not is_first:
            when += ", though no gradient and no update told of it before"
        message = (
            f"{name}{rest}: {ranks_have(odd_ranks)} other values than {shown_ranks(most)} {when}; it is"
            f" a copy ({self._replicas.copies[name]})"
        )
        verdict = WARNING if differ_by_rounding(*pair) else ERROR
        if verdict == WARNING:
            message += "; they agree but for rounding"
        summary = next(each for each in members if each.rank == odd_ranks[0])
        return self._row(summary, RankFault.PARAMETER, name, odd_ranks, message, pair, verdict)

    def _same_part(self, name: str, like: str, members: Sequence[RankTrace]) -> RankFinding:
        first, *others = members
        message = (
            f"{name}: {ranks_have([each.rank for each in others])} rank {first.rank}'s part: the ranks"
            f" have the same values, where {like} has other ones on each of them"
        )
        fact = dict(named_tensors(first)).get(name)
        ranks = [each.rank for each in others]
        return self._row(others[0], RankFault.PARAMETER, name, ranks, message, (None, fact))

    def _moved_parts(self, members: Sequence[RankTrace]) -> Iterator[RankFinding]:
        """Yield parameters of one rank that are another's of another name: an expert in the wrong place."""
        if self._group.kind != EXPERT:
            return
        owners: dict[tuple[int, int], tuple[RankTrace, str]] = {}
        for summary in members:
            for name, fact in named_tensors(summary):
                if fact.is_constant or name in self._known or name in self._replicas.copies:
                    continue
                other, theirs = owners.setdefault((fact.checksum, fact.content), (summary, name))
                if other is summary or role_of(theirs) != role_of(name) or theirs == name:
                    continue
                self._known.add(name)
                message = (
                    f"{name}: {ranks_have([summary.rank])} the values of {theirs} of rank {other.rank},"
                    " another part of the model"
                )
                yield self._row(
                    summary, RankFault.PARAMETER, name, [summary.rank], message, (None, fact)
                )

    def _buffers(self, number: int, members: Sequence[RankTrace]) -> Iterator[RankFinding]:
        """Yield the buffers that were the same and are not any more; running statistics of ranks with samples
        of their own honestly differ where nobody keeps them together, so this is a warning."""
        if self._group.kind not in (DATA, TENSOR):
            return
        before = members_of(self._steps[number - 1], self._group) if number else []
        found: list[tuple[str, dict[int, TensorFact], list[int], list[int]]] = []
        for name in dict.fromkeys(name for each in members for name in each.buffers):
            facts = {each.rank: each.buffers[name] for each in members if name in each.buffers}
            if len(facts) < 2 or name in self._known:
                continue
            most, odd_ranks = odd_ones(facts)
            earlier = [each.buffers[name] for each in before if name in each.buffers]
            were_same = len(earlier) > 1 and all(each.is_same(earlier[0]) for each in earlier)
            if not odd_ranks or not were_same:
                continue
            self._known.add(name)
            found.append((name, facts, most, odd_ranks))
        for name, facts, most, odd_ranks in found[:1]:
            rest = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            message = (
                f"the buffer {name}{rest} was the same on all ranks in step {before[0].step}, and"
                f" {ranks_have(odd_ranks)} other values than {shown_ranks(most)} now: it is not kept"
                " together (broadcast)"
            )
            summary = next(each for each in members if each.rank == odd_ranks[0])
            pair = facts[most[0]], facts[odd_ranks[0]]
            yield self._row(summary, RankFault.BUFFER, name, odd_ranks, message, pair, WARNING)

    def _gradients(self, members: Sequence[RankTrace]) -> Iterator[RankFinding]:
        """Yield the copies whose gradients differ at the update."""
        found: list[tuple[str, dict[int, TensorFact], list[int], list[int]]] = []
        told = 0
        for name in self._replicas.copies:
            updates = {each.rank: each.updates[name] for each in members if name in each.updates}
            facts = {
                rank: update.gradient
                for rank, update in updates.items()
                if update.gradient is not None and _PARTIAL not in update.gradient.placements
            }
            if name in self._known or len(facts) < 2 or not _same_starts(updates):
                continue
            told += 1
            most, odd_ranks = odd_ones(facts)
            if odd_ranks:
                found.append((name, facts, most, odd_ranks))
        factors = [factor_of_facts(facts[most[0]], facts[odd[0]]) for _, facts, most, odd in found]
        self._known.update(name for name, *_ in found)
        factor = usual_of([each for each in factors if each])
        alike = [place for place, each in enumerate(factors) if is_near(each, factor)]
        if (
            len(alike) > 1
            and len(alike) >= _NEARLY_ALL * told
            and not is_near(1.0, factor, NO_FACTOR)
        ):
            name, facts, most, odd_ranks = found[alike[0]]
            message = (
                f"the gradients of {len(alike)} of {told} parameters that are copies are scaled: those of"
                f" {shown_ranks(odd_ranks)} are {factor:.4g} times those of {shown_ranks(most)} (a norm of"
                " the rank's own gradients, as in clipping, or a loss scale)"
            )
            summary = next(each for each in members if each.rank == odd_ranks[0])
            yield self._row(summary, RankFault.GRADIENT, name, odd_ranks, message,
                            (facts[most[0]], facts[odd_ranks[0]]))  # fmt: skip
            return
        # Fewer rows of a data-parallel group tell that as well; of a tensor-parallel one its norms are all.
        is_reduced = any("reduc" in basis for basis in self._replicas.copies.values())
        is_local = len(found) > 1 and not is_reduced and self._group.kind != TENSOR
        if len(found) == told and (is_local or len(found) > _MOST_ROWS):
            yield self._all_gradients(found, members)
            return
        for (name, facts, most, odd_ranks), factor in zip(found, factors, strict=True):
            yield self._gradient(name, facts, most, odd_ranks, factor, members)

    def _gradient(
        self,
        name: str,
        facts: Mapping[int, TensorFact],
        most: Sequence[int],
        odd_ranks: Sequence[int],
        factor: float,
        members: Sequence[RankTrace],
    ) -> RankFinding:
        by_rank = {each.rank: each for each in members}
        pair = facts[most[0]], facts[odd_ranks[0]]
        verdict = WARNING if differ_by_rounding(*pair) else ERROR
        own = [
            rank for rank in facts
            if (raw := by_rank[rank].gradients.get(name)) is not None
            and factor_of_facts(raw, facts[rank])
            and name not in by_rank[rank].reduced
        ]  # fmt: skip
        if verdict == WARNING:
            said = f"{ranks_have(odd_ranks)} another gradient than {shown_ranks(most)}, but for rounding"
        elif self._group.kind in (TENSOR, CONTEXT) and _uses_own_rows(facts):
            verdict = WARNING
            said = (
                "each rank uses rows of its own and changes these alone, so that the copies drift apart in"
                " the rows of others"
            )
        elif (other := self._others.get(name)) is not None:
            said = (
                f"{shown_ranks(odd_ranks)}'s gradient was not reduced with {shown_ranks(most)}'s; it was"
                f" reduced in the group {shown_group(other)}"
            )
        elif factor and not is_near(factor, 1.0, NO_FACTOR):
            said = f"{shown_ranks(odd_ranks)}'s gradient is {factor:.4g} times that of {shown_ranks(most)}"
        elif len(own) == len(facts) or self._likes_are_reduced(name):
            said = f"{shown_ranks(odd_ranks)}'s gradient was not reduced with {shown_ranks(most)}'s"
        else:
            said = f"{ranks_have(odd_ranks)} another gradient than {shown_ranks(most)}"
        basis = self._replicas.copies[name]
        return self._row(
            by_rank[odd_ranks[0]], RankFault.GRADIENT, name, odd_ranks,
            f"{name}: {said}; it is a copy ({basis})", pair, verdict,
        )  # fmt: skip

    def _likes_are_reduced(self, name: str) -> bool:
        """Return whether the collectives of the group reduce gradients of the role, and not this one."""
        copies = self._replicas.copies
        return "reduc" not in copies[name] and any(
            "reduc" in basis and role_of(other) == role_of(name) for other, basis in copies.items()
        )

    def _all_gradients(
        self,
        found: Sequence[tuple[str, dict[int, TensorFact], list[int], list[int]]],
        members: Sequence[RankTrace],
    ) -> RankFinding:
        """Return the row of a group none of whose gradients are the same: a warning, because local steps
        between averages of the parameters are a way to train, too."""
        name, facts, most, odd_ranks = found[0]
        is_reduced = any("reduc" in basis for basis in self._replicas.copies.values())
        message = (
            f"the gradients of all {len(found)} parameters that are copies differ at the update"
            f" ({name}, {found[1][0]}, ...): {shown_ranks(odd_ranks)}'s were not reduced with"
            f" {shown_ranks(most)}'s"
        )
        if reductions_of_gradients(members[0], self._group):
            message += (
                ", though the group reduces tensors of their shapes in this step: before the last backward"
                " pass had added to them"
            )
        if not is_reduced:
            message += (
                "; right only where the parameters are averaged instead, as after local steps"
            )
        summary = next(each for each in members if each.rank == odd_ranks[0])
        return self._row(
            summary, RankFault.GRADIENT, name, odd_ranks, message,
            (facts[most[0]], facts[odd_ranks[0]]), ERROR if is_reduced else WARNING,
        )  # fmt: skip

    def _are_given(self, number: int, names: Iterable[str], givers: Sequence[RankTrace]) -> bool:
        """Return whether all ranks begin the next step with the parameters that some of them updated, as
        those of a server that gives them to the others (or those that were not looked at change nothing)."""
        if number + 1 >= len(self._steps):
            return False
        later = [
            dict(named_tensors(each)) for each in members_of(self._steps[number + 1], self._group)
        ]
        known = [
            [each[name] for each in later if name in each]
            for name in names
            if name in givers[0].updates and not _is_stale(givers[0].updates[name])
        ]
        known = [facts for facts in known if len(facts) > 1 and not facts[0].is_constant]
        return bool(known) and all(not odd_ones(dict(enumerate(facts)))[1] for facts in known)

    def _updates(self, number: int, members: Sequence[RankTrace]) -> Iterator[RankFinding]:
        """Yield updates that ranks lack, and those that made different parameters of equal ones."""
        updating = [each for each in members if each.updates]
        idle = [each for each in members if not each.updates]
        if updating and idle and self._are_given(number, updating[0].updates, updating):
            self._served.update(each.rank for each in idle)
        late = [each for each in idle if each.rank not in self._served]
        if updating and late:
            yield self._row(
                late[0], RankFault.UPDATE, "optimizer", [each.rank for each in late],
                f"{shown_ranks([each.rank for each in late])} made no update in step {members[0].step}, and"
                f" {shown_ranks([each.rank for each in updating])} did: its parameters are stale (a skipped"
                " step, an overflow of a loss scale on one rank)",
                verdict=WARNING if all(self._never_updates(each) for each in late) else ERROR,
            )  # fmt: skip
        yield from self._left_out(number, updating)
        found: list[tuple[str, dict[int, UpdateFact], dict[int, TensorFact]]] = []
        for name in self._replicas.copies:
            updates = {each.rank: each.updates[name] for each in updating if name in each.updates}
            if name in self._known or len(updates) < 2 or not _same_starts(updates):
                continue
            after = {rank: each.after for rank, each in updates.items() if each.after is not None}
            if len(after) > 1 and odd_ones(after)[1]:
                found.append((name, updates, after))
        stale = {rank for _, updates, _ in found for rank in _stale_in(updates)}
        if found and stale == {each.rank for each in updating}:
            self._is_shared = (
                True  # each rank updates some, as ZeRO does, and gives them to the others
            )
            return
        self._known.update(name for name, *_ in found)
        for name, updates, after in found[:1]:
            yield self._update(name, updates, after, members, len(found) - 1)

    def _update(
        self,
        name: str,
        updates: Mapping[int, UpdateFact],
        after: Mapping[int, TensorFact],
        members: Sequence[RankTrace],
        more: int,
    ) -> RankFinding:
        most, odd_ranks = odd_ones(after)
        by_rank = {each.rank: each for each in members}
        ours, theirs = updates[most[0]], updates[odd_ranks[0]]
        verdict = WARNING if differ_by_rounding(after[most[0]], after[odd_ranks[0]]) else ERROR
        stale = _stale_in(updates)
        states = [word for word, value in theirs.state if dict(ours.state).get(word) != value]
        options = [
            word for word, value in by_rank[odd_ranks[0]].options[theirs.options].items()
            if by_rank[most[0]].options[ours.options].get(word) != value
        ]  # fmt: skip
        if stale and len(stale) < len(updates):
            said = f"{shown_ranks(stale)} did not change it in the update, the others did"
            odd_ranks = stale
        elif options:
            said = f"its options differ: {', '.join(options)}"
        elif states:
            said = f"the state of the optimizer was another one before: {', '.join(states)}"
        else:
            said = "equal values, gradients and options became different ones"
        rest = f" (and {more} more parameters)" if more else ""
        message = f"{name}{rest}: the update made it differ on {shown_ranks(odd_ranks)}: {said}"
        if verdict == WARNING:
            message += "; they agree but for rounding"
        return self._row(
            by_rank[odd_ranks[0]], RankFault.UPDATE, name, odd_ranks, message,
            (after[most[0]], after[odd_ranks[0]]), verdict,
        )  # fmt: skip

    def _never_updates(self, summary: RankTrace) -> bool:
        """Return whether a rank makes no update, and no second step tells whether others give it theirs."""
        return len(self._steps) == 1 and not summary.updates

    def _left_out(self, number: int, updating: Sequence[RankTrace]) -> Iterator[RankFinding]:
        """Yield the parameters that the optimizers of some ranks lack; where most are some rank's alone, the
        ranks share the work."""
        if len(updating) < 2 or self._group.kind == PIPELINE:
            return
        everyone = set.intersection(*(set(each.updates) for each in updating))
        some = set.union(*(set(each.updates) for each in updating)) - everyone
        owned = [dict(named_tensors(each)) for each in updating]
        some = {name for name in some if all(name in each for each in owned)}
        if not some or len(some) > len(everyone):
            return
        if all(
            self._are_given(number, [name], [each for each in updating if name in each.updates])
            for name in some
        ):
            return
        for name in sorted(some - self._known)[:_MOST_ROWS]:
            idle = [each for each in updating if name not in each.updates]
            self._known.add(name)
            message = (
                f"{name}: {shown_ranks([each.rank for each in idle])} did not update it: its optimizer does"
                " not have it, or it had no gradient, and the other ranks' did; it is stale"
            )
            yield self._row(idle[0], RankFault.UPDATE, name, [each.rank for each in idle], message)


def _uses_own_rows(facts: Mapping[int, TensorFact]) -> bool:
    """Return whether the gradients of a table can have no element in common that is not 0."""
    first = next(iter(facts.values()))
    known = [fact.zeros for fact in facts.values()]
    used = sum(first.size - zeros for zeros in known)
    return len(first.shape) > 1 and min(known) > 0 and used <= first.size


def _same_starts(updates: Mapping[int, UpdateFact]) -> bool:
    before = [each.before for each in updates.values() if each.before is not None]
    return all(each.is_same(before[0]) for each in before)


def _is_stale(update: UpdateFact) -> bool:
    before, after = update.before, update.after
    return before is not None and after is not None and before.is_same(after)


def _stale_in(updates: Mapping[int, UpdateFact]) -> list[int]:
    """Return the ranks on which an update changed nothing."""
    return [
        rank
        for rank, each in updates.items()
        if each.before is not None and each.after is not None and each.before.is_same(each.after)
    ]
