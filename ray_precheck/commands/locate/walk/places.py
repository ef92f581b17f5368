"""The rows of `locate_{timestamp}.csv`: roots with their places over ranks and steps, and what is no root.

Comes in: a `Located` for each dump. Goes out: rows. Called by the session.

Order of the places: NaN and infinities that a record made of finite values; then what the runs were given
differently from the start, and calls that only one of them makes; then operators by their own error in units
of what rounding explains, the largest first, of a call and its gradient by the larger of both; then estimates
and gaps, likewise. What is alike stands in the order of steps, of the run, of ranks. An operator that errs in
a later step than the first difference is ranked behind those of that step: weights and states have brought it
there.

Also here: the affected part of the data flow, as Graphviz dot and as JSON.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ray_precheck.commands.locate.walk.nouns import INHERITED, Located, Passed, Root, RootKind
from ray_precheck.options.declared import ranges_of

COLUMNS = (
    "Place",
    "Step",
    "Rank",
    "API Name",
    "Direction",
    "Own Error",
    "Inherited Error",
    "Verdict",
    "Index",
    "Module",
    "Source",
    "Cause",
    "Message",
)
_FEWEST_DIGITS = 4
_ORDER = {RootKind.ESTIMATE: 3, RootKind.GAP: 3}


class DumpRoots(NamedTuple):
    """What was found in the dump of one rank in one step; `step` and `rank` are numbers as text, "" where the
    dump has none."""

    step: str
    rank: str
    label: str
    located: Located


class RootPlace(NamedTuple):
    """A root with its dump; `place` counts from 1.

    The same root of several ranks in a step has one place, with the dump in which it errs most: `ranks` are
    all of them, of `of_ranks` in that step.
    """

    place: int
    dump: DumpRoots
    root: Root
    ranks: tuple[str, ...] = ()
    of_ranks: int = 1


def ranked(dumps: Iterable[DumpRoots]) -> list[RootPlace]:
    """Return all roots, the likeliest culprit first."""
    dumps = list(dumps)
    of_ranks = Counter(dump.step for dump in dumps)
    alike: dict[tuple[str, RootKind, str, str], list[tuple[DumpRoots, Root]]] = defaultdict(list)
    for dump in dumps:
        for root in dump.located.roots:
            path = root.item if root.kind.differs_from_start else ""
            alike[dump.step, root.kind, root.name, path].append((dump, root))
    found = [
        (*min(each, key=lambda one: _order(*one)), tuple(dump.rank for dump, _ in each))
        for each in alike.values()
    ]
    found.sort(key=lambda each: _order(*each[:2]))
    found = _repeats_last(found)
    first = min((_number_in(dump.step) for dump, _, _ in found), default=0)
    found = [(dump, _doubted(dump, root, first), ranks) for dump, root, ranks in found]
    return [
        RootPlace(place, dump, root, ranks, of_ranks[dump.step])
        for place, (dump, root, ranks) in enumerate(found, 1)
    ]


_Found = tuple[DumpRoots, Root, tuple[str, ...]]


def _repeats_last(found: Sequence[_Found]) -> list[_Found]:
    """Return roots in their order, those that an earlier step has just so behind all others."""
    steps: dict[tuple[RootKind, str, str, str], int] = {}
    for dump, root, _ in found:
        alike, step = _same_root(root), _number_in(dump.step)
        steps[alike] = min(step, steps.get(alike, step))
    is_first = [_number_in(dump.step) == steps[_same_root(root)] for dump, root, _ in found]
    firsts = [each for each, first in zip(found, is_first, strict=True) if first]
    return firsts + [each for each, first in zip(found, is_first, strict=True) if not first]


def _same_root(root: Root) -> tuple[RootKind, str, str, str]:
    return root.kind, root.name, root.item, root.cause


def _doubted(dump: DumpRoots, root: Root, first_step: int) -> Root:
    """Return a root; what no replay tells of a later step than the first root's is marked doubtful."""
    if root.kind not in _ORDER or _number_in(dump.step) <= first_step:
        return root
    said = f"{root.message}; doubtful: the runs were apart since step {first_step}"
    return replace(root, message=said)


def ranks_in_words(found: RootPlace) -> str:
    """Return on which ranks a root is: `rank 17 alone of 1000`, `all 8 ranks`, `ranks 0-3 of 8`."""
    if len(found.ranks) == found.of_ranks:
        return f"all {found.of_ranks} ranks"
    named = _named(found.ranks)
    if len(found.ranks) == 1:
        return f"rank {named} alone of {found.of_ranks}"
    return f"ranks {named} of {found.of_ranks}"


def _named(ranks: Sequence[str]) -> str:
    """Return the ranks as a cell: as ranges where all are numbers."""
    if len(ranks) > 1 and all(rank.isdigit() for rank in ranks):
        return ranges_of([int(rank) for rank in ranks])
    return ",".join(dict.fromkeys(ranks))


def _order(dump: DumpRoots, root: Root) -> tuple[float, ...]:
    step = _number_in(dump.step)
    # What a wrong result does to its own gradient may be more than what it is: the call counts as a whole.
    call = root.key.removesuffix(f".{root.direction}")
    own = max(map(_size, (each for each in dump.located.roots if _is_of(each, call, root))))
    if root.kind is RootKind.CALL:
        own = 0.0
    return (
        _class_of(root),
        step,
        -own,
        root.place,
        _number_in(dump.rank),
    )


def _is_of(each: Root, call: str, root: Root) -> bool:
    """Return whether a root is of this call, and as sure as another one."""
    same = each.key.removesuffix(f".{each.direction}") == call
    return same and _class_of(each) == _class_of(root)


def _size(root: Root) -> float:
    return root.own if root.own is not None and not math.isnan(root.own) else 0.0


def _class_of(root: Root) -> int:
    if root.kind is RootKind.NON_FINITE:
        return 0
    if root.kind.differs_from_start or root.kind is RootKind.CALL:
        return 1
    return _ORDER.get(root.kind, 2)


def _number_in(text: str) -> int:
    digits = "".join(character for character in text if character.isdigit())
    return int(digits) if digits else 0


def cells_of_root(found: RootPlace, module: str, source: str) -> Sequence[str]:
    """Return the row of a root."""
    root = found.root
    own = root.own if root.kind is not RootKind.CALL else None
    return (
        str(found.place),
        found.dump.step,
        _named(found.ranks or (found.dump.rank,)),
        _call(root.key, root.direction),
        root.direction,
        shown_error(own),
        shown_error(root.inherited),
        root.kind.value,
        f"{root.item}{root.index}" if root.item else root.index,
        module,
        source,
        root.cause,
        "; ".join(filter(None, [root.message, _spread(found)])),
    )


def _spread(found: RootPlace) -> str:
    return f"on {ranks_in_words(found)}" if found.of_ranks > 1 else ""


def passed_rows(
    dumps: Sequence[DumpRoots], verdict: str
) -> Iterator[tuple[DumpRoots, Passed, Sequence[str]]]:
    """Yield the rows of the records that are no roots, without module and source.

    Records that are the same on several ranks of a step have one row, with the largest errors of them.
    """
    alike: dict[tuple[str, str, str], list[tuple[DumpRoots, Passed]]] = defaultdict(list)
    for dump in dumps:
        for each in dump.located.passed:
            if each.verdict == verdict:
                alike[dump.step, each.key, each.message].append((dump, each))
    steps = {dump.step: number for number, dump in enumerate(reversed(dumps))}
    order = sorted(alike.values(), key=lambda some: (-steps[some[0][0].step], some[0][1].place))
    for some in order:
        dump, each = some[0]
        yield (
            dump,
            each,
            (
                "",
                dump.step,
                _named([one.rank for one, _ in some]),
                _call(each.key, each.direction),
                each.direction,
                shown_error(_largest([other.own for _, other in some])),
                shown_error(_largest([other.inherited for _, other in some])),
                each.verdict,
                "",
                "",
                "",
                "",
                each.message,
            ),
        )


def _largest(errors: Sequence[float | None]) -> float | None:
    known = [each for each in errors if each is not None and not math.isnan(each)]
    return max(known, default=None)


def left_out_rows(dumps: Sequence[DumpRoots]) -> Iterator[Sequence[str]]:
    """Yield the row that says how many records have none, where not all have one."""
    left_out = [dump.located.left_out for dump in dumps if dump.located.left_out]
    if not left_out:
        return
    said = (
        f"{sum(left_out)} more records of {len(left_out)} dump{'s' if len(left_out) > 1 else ''} only pass"
        " an error on, further down, and have no row"
    )
    yield (*[""] * 7, INHERITED, *[""] * 4, said)


def _call(key: str, direction: str) -> str:
    """Return the name of a call: the key of its record without the direction."""
    return key.removesuffix(f".{direction}") if direction else key


def shown_error(value: float | None) -> str:
    """Return an error as a cell, with as many digits as it is worth; "" for what is not known."""
    if value is None or math.isnan(value):
        return ""
    return f"{value:.{_FEWEST_DIGITS}g}"


# A larger drawing shows nothing; the JSON has all.
_MOST_DRAWN = 400


def graph_json(dumps: Iterable[DumpRoots], places: Iterable[RootPlace]) -> str:
    """Return all affected records with their links.

    `{dump: {"records": {key: facts}, "links": [[from, to], ..]}}`
    """
    place_of = {(found.dump.step, found.root.name): found.place for found in places}
    content = {}
    for dump in dumps:
        located = dump.located
        records: dict[str, dict[str, object]] = {}
        for root in located.roots:
            records[root.name] = {
                "place": place_of.get((dump.step, root.name)),
                "verdict": root.kind.value,
                "own": shown_error(root.own),
                "inherited": shown_error(root.inherited),
            }
        for each in located.passed:
            facts = {"verdict": each.verdict, "own": shown_error(each.own)}
            records.setdefault(each.key, {**facts, "inherited": shown_error(each.inherited)})
        content[dump.label] = {"records": records, "links": [list(edge) for edge in located.edges]}
    return json.dumps(content, indent=1) + "\n"


def graph_dot(dumps: Iterable[DumpRoots], places: Iterable[RootPlace]) -> str:
    """Return a drawing: roots red with their places, what passes an error on grey; data flows downwards."""
    place_of = {(found.dump.step, found.root.name): found.place for found in places}
    lines = ["digraph located {", "  node [shape=box, fontname=monospace];"]
    drawn = 0
    for number, dump in enumerate(dumps):
        names: dict[str, str] = {}
        for root in dump.located.roots:
            place = place_of.get((dump.step, root.name), "?")
            own = f"\\nown {shown_error(root.own)}" if root.own is not None else ""
            label = f"{place}: {_quoted(root.name)}\\n{root.kind.value}{own}"
            names[root.name] = f'  n{number}_{len(names)} [label="{label}", color=red, penwidth=2];'
        for edge in dump.located.edges:
            for key in edge:
                if key not in names:
                    names[key] = f'  n{number}_{len(names)} [label="{_quoted(key)}", color=grey];'
        ids = {key: line.split()[0] for key, line in names.items()}
        for line in list(names.values())[: _MOST_DRAWN - drawn]:
            lines.append(line)
        shown = set(list(names)[: max(0, _MOST_DRAWN - drawn)])
        lines += [
            f"  {ids[one]} -> {ids[two]};"
            for one, two in dump.located.edges
            if one in shown and two in shown
        ]
        drawn += len(shown)
        if drawn >= _MOST_DRAWN:
            lines.append(
                f'  more [label="the first {_MOST_DRAWN} affected records; the JSON has all"];'
            )
            break
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def reached_from(edges: Iterable[tuple[str, str]]) -> Callable[[str], int]:
    """Return a function that counts the records downstream of one, by the links between records."""
    below: dict[str, list[str]] = {}
    for one, two in edges:
        below.setdefault(one, []).append(two)

    def count(key: str) -> int:
        seen, waiting = {key}, [key]
        while waiting:
            for each in below.get(waiting.pop(), ()):
                if each not in seen:
                    seen.add(each)
                    waiting.append(each)
        return len(seen) - 1

    return count
