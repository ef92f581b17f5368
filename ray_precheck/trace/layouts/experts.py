"""Experts that are spread over ranks: where they are, and which calls are theirs.

Comes in: the calls of two runs, as the first rank of each stage makes them. Goes out: `Experts`, and in each
run whose ranks have experts of their own one more stage for each set of ranks with the same ones. Called by
`together`; `partners` pairs their calls.

Where all ranks have all experts, each has tokens of its own for them, and no part of the rest is told here.

An expert is told by the number in the names of its modules, which counts those of all ranks; where each rank
counts its own from 0, the rank's place in the group of its all_to_all tells how many come before. Its weights
are the same tensors in both runs. Its tokens come from all ranks, in an order that hangs on how they are
exchanged: a rank that has the expert has rows of the whole, the others have none.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ray_precheck.trace.alignment.calls import calls_of
from ray_precheck.trace.items import bare_name
from ray_precheck.trace.layouts.axes import LayoutStage
from ray_precheck.trace.layouts.run_calls import (
    UNKNOWN,
    ModelCall,
    Occurrence,
    RecordPlace,
    RunCalls,
    plain_module_path,
    stage_calls,
)
from ray_precheck.trace.side import MODULE, CaptureSide

_EXCHANGE, _PARAMETER = "all_to_all", b'"parameter"'
_SAME = 1e-4  # of norms of the same weights in two runs


@dataclass(frozen=True, slots=True)
class Experts:
    """The modules that have spread experts. `spread` are the paths of the lists of experts
    (`layers.0.mlp.experts`), `around` of the modules that have these, `shared` of other modules in them, of
    which every rank has the whole (a router). `unknown` are the lists of which nothing tells which expert of
    a rank is which of the other run."""

    spread: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    unknown: frozenset[str] = frozenset()

    def mixture_of(self, name: str) -> str:
        """Return the module with spread experts that a module is, or lies in; "" for none."""
        if any(f"{name}.".startswith(f"{each}.") for each in self.shared):
            return ""
        return next((each for each in self.around if f"{name}.".startswith(f"{each}.")), "")

    def is_unknown(self, name: str) -> bool:
        """Return whether nothing tells which expert has a parameter."""
        return any(name.startswith(f"{each}.") for each in self.unknown)

    def expert_of(self, name: str) -> str:
        """Return the path of the expert that a name lies in, "" for none."""
        for begin in self.spread:
            number = name.removeprefix(f"{begin}.").partition(".")[0]
            if name.startswith(f"{begin}.") and number.isdigit():
                return f"{begin}.{number}"
        return ""


def spread_experts(runs: tuple[RunCalls, RunCalls]) -> Experts:
    """Return the experts that ranks of either run have each for themselves, and note them in both runs: their
    stages, and what marks their calls."""
    names = [{name for call in run.calls for name in call.parameters} for run in runs]
    own = [[_numbered(run.sides[rank]) for rank in range(len(run.sides))] for run in runs]
    spread: set[str] = set()
    for side, run in enumerate(runs):
        spread.update((*_unlike(run, own[side]), *_uneven(run)))
        if any(_EXCHANGE in call.name for call in run.calls):
            spread.update(_fewer(names[side], names[not side]))
    if not spread:
        return Experts()
    unknown: set[str] = set()
    for side, run in enumerate(runs):
        for begin in spread:
            every = [frozenset().union(*(e.get(begin, ()) for e in ranks)) for ranks in own]
            is_counted_anew = len(every[side]) < len(every[not side])
            if is_counted_anew and not _count(run, runs[not side], begin, every):
                unknown.add(begin)
    around = tuple(sorted({begin.rpartition(".")[0] for begin in spread}))
    shared = tuple(sorted(_shared(names[0] & names[1], around, spread)))
    found = Experts(tuple(sorted(spread)), around, shared, frozenset(unknown))
    for run in runs:
        for call in run.calls:
            call.mixture = found.mixture_of(call.path)
            call.expert = found.expert_of(call.path)
            if found.is_unknown(call.expert):
                call.expert = UNKNOWN
        _give_stages(run, found)
    return found


def _numbered(side: CaptureSide) -> dict[str, frozenset[str]]:
    """Return the numbers in the paths of the modules of a rank, by what stands before them."""
    found: dict[str, set[str]] = {}
    records = {each for each in side.modules.values() if each}
    records.update(entry.key for entry in side.entries if entry.kind == MODULE)
    for record in records:
        words = plain_module_path(record).split(".")
        for at, word in enumerate(words):
            if word.isdigit():
                found.setdefault(".".join(words[:at]), set()).add(word)
    return {begin: frozenset(numbers) for begin, numbers in found.items()}


def _unlike(run: RunCalls, own: Sequence[dict[str, frozenset[str]]]) -> Iterator[str]:
    """Yield the lists of modules of which the ranks of a stage have other numbers."""
    for stage in run.layout.stages:
        begins = {begin for rank in stage.ranks for begin in own[rank]}
        unlike = {
            begin
            for begin in begins
            if len({own[rank].get(begin, frozenset()) for rank in stage.ranks}) > 1
        }
        for begin in unlike:
            if not any(begin.startswith(f"{other}.") for other in unlike):
                yield begin


def _uneven(run: RunCalls) -> Iterator[str]:
    """Yield the lists of modules of which each gets another number of rows, and another one on other ranks: a
    router deals out tokens to them, of which each rank has its own, though it has all experts."""
    for number, stage in enumerate(run.layout.stages):
        calls = [call for call in run.calls if call.occurrences[0].stage == number]
        ours = _rows_in_lists(calls)
        found = {begin for begin, rows in ours.items() if any(len(set(each)) > 1 for each in rows)}
        if len(stage.ranks) > 1 and found:
            last = stage.ranks[-1]
            others = stage_calls(number, run, last, calls_of(run.sides[last]))
            theirs = _rows_in_lists(others)
            found = {begin for begin in found if ours[begin] != theirs.get(begin)}
            yield from (each for each in found if not any(each.startswith(f"{o}.") for o in found))


def _rows_in_lists(calls: Iterable[ModelCall]) -> dict[str, list[list[int]]]:
    """Return by the path of a list of modules the rows that each of them gets, for each of the calls that all
    of them have."""
    found: dict[str, dict[Hashable, list[int]]] = {}
    for call in calls:
        words = call.path.split(".")
        for at, word in enumerate(words):
            if word.isdigit() and at > 1 and call.parameters:
                like = tuple(words[at + 1 :]), call.view.type_name
                lists = found.setdefault(".".join(words[:at]), {})
                lists.setdefault(like, []).append(call.rows)
    return {begin: [*each.values()] for begin, each in found.items()}


def _fewer(names: set[str], others: set[str]) -> Iterator[str]:
    """Yield the lists of modules of whose parameters the other run has some that this one has not."""
    for name in others - names:
        words = name.split(".")
        for at, word in enumerate(words):
            begin, end = ".".join(words[:at]), ".".join(words[at + 1 :])
            if word.isdigit() and f"{begin}.0.{end}" in names:
                yield begin


def _count(run: RunCalls, other: RunCalls, begin: str, numbers: Sequence[frozenset[str]]) -> bool:
    """Note how many experts come before those of each rank, where each rank counts its own from 0; False
    where the groups of its exchanges do not have as many as the other run has, or where a weight is that of
    an expert of another number."""
    own, whole = min(map(len, numbers)), max(map(len, numbers))
    theirs = _norms(other.sides, begin)
    for rank, side in enumerate(run.sides):
        group = next(_groups_of_exchange(side), ())
        if rank not in group or own * len(group) != whole:
            return False
        before = group.index(rank) * own
        for (number, rest), norm in _norms([side], begin).items():
            same = {
                each
                for (each, name), known in theirs.items()
                if name == rest and abs(known - norm) <= _SAME * known
            }
            if same and number + before not in same:
                return False
        run.before.setdefault(rank, {})[begin] = before
    return True


def _norms(sides: Sequence[CaptureSide], begin: str) -> dict[tuple[int, str], float]:
    """Return the norms of the parameters of experts by number and the rest of their names."""
    found: dict[tuple[int, str], float] = {}
    for side in sides:
        for entry in side.entries:
            for item in side.items(entry) if _PARAMETER in side.raw(entry) else ():
                name = bare_name(item.state_name)
                number, _, rest = name.removeprefix(f"{begin}.").partition(".")
                if name.startswith(f"{begin}.") and number.isdigit() and item.norm is not None:
                    found.setdefault((int(number), rest), item.norm)
    return found


def _groups_of_exchange(side: CaptureSide) -> Iterator[tuple[int, ...]]:
    for entry in side.entries:
        if _EXCHANGE in entry.call:
            group = side.record(entry).get("group")
            ranks = group.get("group_ranks") if isinstance(group, dict) else None
            if isinstance(ranks, list):
                yield tuple(ranks)


def _shared(names: Iterable[str], around: Sequence[str], spread: Iterable[str]) -> Iterator[str]:
    """Yield the modules beside the experts, of whose parameters both sides have the names."""
    lists = tuple(spread)
    for name in names:
        for each in around:
            child, _, rest = name.removeprefix(f"{each}.").partition(".")
            module = f"{each}.{child}"
            has_experts = any(f"{begin}.".startswith(f"{module}.") for begin in lists)
            if name.startswith(f"{each}.") and rest and not has_experts:
                yield module


def _give_stages(run: RunCalls, experts: Experts) -> None:
    """Give the experts of each stage, of which ranks have other ones, stages of their own."""
    for home, stage in enumerate(run.layout.stages):
        by_rank = {rank: _calls_on(run, home, rank, experts) for rank in stage.ranks}
        holders: dict[str, tuple[int, ...]] = {}
        for rank in stage.ranks:
            for expert in dict.fromkeys(call.expert for call in by_rank[rank]):
                if not experts.is_unknown(expert):
                    holders[expert] = (*holders.get(expert, ()), rank)
        if all(ranks == stage.ranks for ranks in holders.values()):
            continue
        run.calls = [
            call
            for call in run.calls
            if call.expert not in holders or call.occurrences[0].stage != home
        ]
        for ranks in dict.fromkeys(holders.values()):
            its = {expert for expert, having in holders.items() if having == ranks}
            calls = {rank: [each for each in by_rank[rank] if each.expert in its] for rank in ranks}
            _add_stage(run, home, ranks, calls)


def _add_stage(
    run: RunCalls, home: int, ranks: Sequence[int], calls: dict[int, list[ModelCall]]
) -> None:
    """Add the stage of experts that these ranks have."""
    number, lead = len(run.stages), ranks[0]
    stage = run.layout.stages[home]
    run.stages.append(LayoutStage(stage.ranks, stage.axes, lead))
    run.homes[number] = home
    names = {key: call.name for key, call in zip(_keys(calls[lead]), calls[lead], strict=True)}
    for rank in ranks:
        theirs = zip(_keys(calls[rank]), calls[rank], strict=True)
        run.names[number, rank] = {names[key]: call.name for key, call in theirs if key in names}
    for call in calls[lead]:
        call.occurrences = [Occurrence(number, call.name)]
    run.calls += calls[lead]
    _give_places(run, number, home, lead, {call.name for call in calls[lead]})


def _give_places(run: RunCalls, number: int, home: int, lead: int, names: set[str]) -> None:
    """Note where the records of the lead stand among those of the home's first rank: behind the last call
    before them that both have."""
    first = run.stages[home].first
    if lead == first:
        return
    ours = {theirs: name for name, theirs in run.names[home, lead].items()}
    last, behind = 0, 0
    for entry in run.sides[lead].entries:
        if entry.call in names:
            behind += 1
            run.places[number, entry.key] = RecordPlace(last, behind)
            continue
        mate = run.entries[first].get((ours.get(entry.call, entry.call), entry.direction))
        if mate is not None and mate.span.start > last:
            last, behind = mate.span.start, 0


def _calls_on(run: RunCalls, home: int, rank: int, experts: Experts) -> list[ModelCall]:
    """Return the calls in experts of a rank, in its order."""
    found = []
    for call in stage_calls(home, run, rank, calls_of(run.sides[rank])):
        expert = experts.expert_of(call.path)
        if expert:
            call.mixture, call.expert = experts.mixture_of(call.path), expert
            found.append(call)
    return found


def _keys(calls: Iterable[ModelCall]) -> list[Hashable]:
    """Return what tells each call in experts of a rank: its operator, module and number among its like."""
    counts: Counter[Hashable] = Counter()
    found: list[Hashable] = []
    for call in calls:
        like = call.view.kind, call.view.type_name, call.path
        found.append((like, counts[like]))
        counts[like] += 1
    return found
