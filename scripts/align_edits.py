"""Measure how well the alignment of two captures finds pairs after random edits, and how long it takes.

    python -m scripts.align_edits [--calls 300 3000 100000] [--trials 20 5 1] [--seed 0] [--broken NAME ...]

The golden side is a capture of tests/data, repeated with other values until it is long enough; the target
is the same after edits at 5 % as many places as there are calls: a call inserted (half of these are casts of
what was before), removed, renamed (half of these within the operator's names), 2 to 8 calls fused, or one
split into 2 to 8. From `same` and `other run` a whole round of the capture is taken away at a random place,
too, where there are three: which one is missing is told by values alone. All numbers of calls are given
anew. Values are those of the golden side (`same`), of another honest run (`other run`: each norm off by up
to 1e-3), of a run that is wrong from a random call on (`fault`: norms off by factors, one in 50 NaN), or
missing (`none`).

F1 is that of pairs (call of the target, call of the golden side); a fused call is in as many pairs as it has
partners. Calls of one side that follow each other with the same operator and shapes are interchangeable:
between each such run of the target and each of the golden side as many found pairs are right as there are
true ones. `strict` is F1 without that. `dropped` counts calls that are in no match. Exit code 1 if the
smallest mean F1 is below 0.99, a call is dropped or an alignment takes 60 s.

`--broken` breaks the alignment in one way and measures again: what does not fall is not seen here.
"""

import argparse
import itertools
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

from ray_precheck.trace.alignment import align as room
from ray_precheck.trace.alignment import anchors, gaps
from ray_precheck.trace.alignment.calls import Call, calls_of
from ray_precheck.trace.alignment.features import features_of
from ray_precheck.trace.side import API, open_side

DATA = Path(__file__).parent.parent / "tests" / "data"
CAPTURES = ("torch_llm", "torch_cnn", "mindspore_llm")
VALUES = ("same", "other run", "fault", "none")
TELLING = VALUES[:2]
EDITED, LONGEST, LOOKED_AT = 0.05, 8, 300
WANTED_F1, WANTED_S = 0.99, 60.0
Pairs: TypeAlias = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class EditedRun:
    """Two sides, and the pairs that are right."""

    target: list[Call]
    golden: list[Call]
    pairs: Pairs


@dataclass(frozen=True, slots=True)
class Score:
    """What an alignment of a case reached."""

    f1: float
    strict: float
    dropped: int
    took_s: float


def main(arguments: list[str] | None = None) -> int:
    """Measure all captures, lengths and kinds of values; returns 1 if something is not reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, nargs="+", default=[300, 3000, 100_000])
    parser.add_argument("--trials", type=int, nargs="+", default=[20, 5, 1], help="for each length")
    parser.add_argument("--captures", nargs="+", default=list(CAPTURES), choices=CAPTURES)
    parser.add_argument("--values", nargs="+", default=list(VALUES), choices=VALUES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--broken", nargs="+", default=[], choices=list(BROKEN))
    given = parser.parse_args(arguments)
    print("| alignment | calls | values | F1: mean (least) | strict | dropped | s (longest) |")
    print("|---|---|---|---|---|---|---|")
    failed = False
    for name in given.broken or ["whole"]:
        with BROKEN.get(name, _whole)():
            for length, trials in zip(given.calls, given.trials, strict=False):
                for values in given.values:
                    scores = list(measured(given.captures, length, values, trials, given.seed))
                    print(table_line(name, length, values, scores), flush=True)
                    failed |= not is_reached(scores)
    return int(failed)


def measured(
    captures: Sequence[str], length: int, values: str, trials: int, seed: int
) -> Iterator[Score]:
    """Yield the score of each trial of each capture."""
    for capture in captures:
        base = captured(capture)
        for trial in range(trials):
            rng = random.Random(f"{seed} {capture} {length} {values} {trial}")
            yield score_of(edited_run(base, length, values, rng))


def table_line(name: str, length: int, values: str, scores: Sequence[Score]) -> str:
    """Return a line of the table."""
    f1 = [score.f1 for score in scores]
    strict = sum(score.strict for score in scores) / len(scores)
    return (
        f"| {name} | {length:,} | {values} | {sum(f1) / len(f1):.4f} ({min(f1):.4f}) | {strict:.4f} "
        f"| {sum(score.dropped for score in scores)} | {max(score.took_s for score in scores):.1f} |"
    )


def is_reached(scores: Sequence[Score]) -> bool:
    """Return whether these scores are what the alignment is to reach."""
    return (
        sum(score.f1 for score in scores) / len(scores) >= WANTED_F1
        and not any(score.dropped for score in scores)
        and max(score.took_s for score in scores) < WANTED_S
    )


def score_of(case: EditedRun) -> Score:
    """Align a case and hold what was found beside what is right."""
    before = time.perf_counter()
    matches = room.align(case.target, case.golden)
    took_s = time.perf_counter() - before
    found = [pair for match in matches for pair in itertools.product(match.target, match.golden)]
    held = (
        {at for match in matches for at in match.target},
        {at for match in matches for at in match.golden},
    )
    dropped = len(case.target) + len(case.golden) - len(held[0]) - len(held[1])
    runs = _run_numbers(case.target), _run_numbers(case.golden)
    loose = [
        Counter((runs[0][x], runs[1][y] if y < len(runs[1]) else -1) for x, y in pairs)
        for pairs in (found, case.pairs)
    ]
    strict = Counter(found), Counter(case.pairs)
    return Score(_f1(*loose), _f1(*strict), dropped, took_s)


def _f1(found: Counter[Any], right: Counter[Any]) -> float:
    together = found.total() + right.total()
    return 2 * (found & right).total() / together if together else 1.0


def _run_numbers(calls: Sequence[Call]) -> list[int]:
    """Return for each call the number of its run of calls with the same operator and shapes."""
    keys = [(call.family, call.inputs, call.outputs) for call in calls]
    changes = [0, *(int(before != key) for before, key in itertools.pairwise(keys))]
    return list(itertools.accumulate(changes))[: len(calls)]


def captured(name: str) -> list[Call]:
    """Return the calls of APIs of a capture of tests/data."""
    with open_side(DATA / name / "dump.json") as side:
        return [call for call in calls_of(side) if call.kind == API]


def edited_run(base: Sequence[Call], length: int, values: str, rng: random.Random) -> EditedRun:
    """Return two sides with `length` golden calls, and edits at 5 % as many places."""
    golden = numbered(grown(base, length, rng))
    period = len(base) if length >= 3 * len(base) and values in TELLING else 0
    target, pairs = edited(golden, rng, period)
    return EditedRun(numbered(valued(target, values, rng)), numbered(golden), pairs)


def grown(base: Sequence[Call], length: int, rng: random.Random) -> list[Call]:
    """Return a sequence of calls that goes round and round through a capture, with values of its own."""
    return [
        call._replace(norms=tuple(norm * math.exp(rng.gauss(0, 0.3)) for norm in call.norms))
        for call in itertools.islice(itertools.cycle(base), length)
    ]


def numbered(calls: Sequence[Call]) -> list[Call]:
    """Return calls with the numbers that a capture would have given them."""
    counts: Counter[str] = Counter()
    found = []
    for call in calls:
        found.append(call._replace(name=f"{call.type_name}.{counts[call.type_name]}"))
        counts[call.type_name] += 1
    return found


def edited(golden: Sequence[Call], rng: random.Random, gone: int = 0) -> tuple[list[Call], Pairs]:
    """Return the calls after random edits and without `gone` calls in a row, and the pairs of positions
    (edited, golden)."""
    first_gone = rng.randrange(len(golden) - gone) if gone else -1
    places = set(rng.sample(range(len(golden)), max(1, round(EDITED * len(golden)))))
    target: list[Call] = []
    pairs: Pairs = []
    at = 0
    while at < len(golden):
        if 0 <= first_gone <= at:
            at, first_gone = at + gone, -1
            continue
        kind = rng.choice(KINDS) if at in places else _unchanged
        made, used = kind(golden, at, rng)
        # Of an insertion the first call is new, and the golden call keeps its own.
        partners = made[1:] if kind is _inserted else made
        start = len(target) + len(made) - len(partners)
        pairs += [(start + x, at + y) for x in range(len(partners)) for y in range(used)]
        target += made
        at += used
    return target, pairs


Edit: TypeAlias = Callable[[Sequence[Call], int, random.Random], tuple[list[Call], int]]


def _unchanged(golden: Sequence[Call], at: int, _rng: random.Random) -> tuple[list[Call], int]:
    return [golden[at]], 1


def _inserted(golden: Sequence[Call], at: int, rng: random.Random) -> tuple[list[Call], int]:
    if at and rng.random() < 0.5:
        before = golden[at - 1]
        new = Call("", API, "Tensor.to", "to", before.outputs, before.outputs, (), before.norms)
    else:
        new = rng.choice(golden)
        new = new._replace(norms=tuple(norm * math.exp(rng.gauss(0, 0.3)) for norm in new.norms))
    return [new, golden[at]], 1


def _removed(_golden: Sequence[Call], _at: int, _rng: random.Random) -> tuple[list[Call], int]:
    return [], 1


def _renamed(golden: Sequence[Call], at: int, rng: random.Random) -> tuple[list[Call], int]:
    call = golden[at]
    if rng.random() < 0.5:
        return [call._replace(type_name=f"Other.{call.family}")], 1
    new = f"renamed_{rng.randrange(20)}"
    return [call._replace(type_name=f"NPU.{new}", family=new)], 1


def _fused(golden: Sequence[Call], at: int, rng: random.Random) -> tuple[list[Call], int]:
    calls = golden[at : at + rng.randint(2, LONGEST)]
    if len(calls) < 2:
        return _unchanged(golden, at, rng)
    inputs = list(calls[0].inputs)
    for before, call in itertools.pairwise(calls):
        outside = list(call.inputs)
        for shape in before.outputs:
            if shape in outside:
                outside.remove(shape)
        inputs += outside
    if rng.random() < 0.5:
        # A tensor that several of the calls get is handed over once, and numbers are no tensors any more.
        inputs = [shape for shape in dict.fromkeys(inputs) if shape]
    name = f"fused_{rng.randrange(20)}"
    last = calls[-1]
    whole = Call("", API, f"NPU.{name}", name, tuple(inputs), last.outputs, (), last.norms)
    return [whole], len(calls)


def _split(golden: Sequence[Call], at: int, rng: random.Random) -> tuple[list[Call], int]:
    call = golden[at]
    between = [*call.outputs, *call.inputs]
    if not between:
        return _unchanged(golden, at, rng)
    parts = []
    inputs = call.inputs
    # With a part that is the whole operator it would be an insertion.
    others = [each for each in golden[:LOOKED_AT] if each.family != call.family]
    for _ in range(rng.randint(2, LONGEST)):
        like = rng.choice(others)
        outputs = (rng.choice(between),)
        norms = (math.exp(rng.gauss(2, 1)),)
        parts.append(Call("", API, like.type_name, like.family, inputs, outputs, (), norms))
        inputs = outputs
    parts[-1] = parts[-1]._replace(outputs=call.outputs, norms=call.norms)
    return parts, 1


KINDS: tuple[Edit, ...] = (_inserted, _removed, _renamed, _fused, _split)


def valued(calls: Sequence[Call], values: str, rng: random.Random) -> list[Call]:
    """Return calls with the values that the target has."""
    if values == "none":
        return [call._replace(norms=(math.nan,) * len(call.norms)) for call in calls]
    if values == "same":
        return list(calls)
    start = rng.randrange(len(calls)) if values == "fault" else len(calls)
    found = []
    for at, call in enumerate(calls):
        if at < start:
            norms = [norm * (1 + rng.uniform(-1e-3, 1e-3)) for norm in call.norms]
        else:
            norms = [norm * math.exp(rng.gauss(0, 0.5)) for norm in call.norms]
            if rng.random() < 0.02:
                norms = [math.nan] * len(norms)
        found.append(call._replace(norms=tuple(norms)))
    return found


def _whole() -> Any:
    return patch.object(gaps, "LONGEST_FUSION", gaps.LONGEST_FUSION)


def _without_anchors() -> Any:
    return patch.object(room, "anchors", lambda *_: [])


def _with_chance_anchors() -> Any:
    return patch.object(anchors, "_chained", lambda pairs, _shift: pairs)


def _without_shapes() -> Any:
    def bare(calls: Sequence[Call]) -> list[Call]:
        return [call._replace(inputs=(), outputs=()) for call in calls]

    return patch.object(
        room, "features_of", lambda target, golden: features_of(bare(target), bare(golden))
    )


def _without_fusion() -> Any:
    return patch.object(gaps, "LONGEST_FUSION", 1)


def _off_by_one() -> Any:
    whole = room.align

    def shifted(target: Sequence[Call], golden: Sequence[Call]) -> list[room.Match]:
        return [
            match._replace(golden=tuple((at + 1) % len(golden) for at in match.golden))
            for match in whole(target, golden)
        ]

    return patch.object(room, "align", shifted)


def _by_name() -> Any:
    whole = room.align
    return patch.object(room, "align", lambda target, golden: whole(target, golden, exact=True))


BROKEN: dict[str, Callable[[], Any]] = {
    "no anchors": _without_anchors,
    "chance anchors": _with_chance_anchors,
    "no shapes": _without_shapes,
    "no fusions": _without_fusion,
    "off by one": _off_by_one,
    "by name": _by_name,
}


if __name__ == "__main__":
    sys.exit(main())
