"""What the alignment finds again after random edits at 5 % of the places of a capture, by F1 of pairs."""

import itertools
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.trace.alignment import align as room
from ray_precheck.trace.alignment import gaps
from ray_precheck.trace.alignment.calls import Call, calls_of
from ray_precheck.trace.side import API, open_side

pytestmark = pytest.mark.unit

DATA = Path(__file__).parents[3] / "data"
LENGTH, EDITED, WANTED = 1000, 0.05, 0.99
Pairs = list[tuple[int, int]]


def moved(call: Call, rng: random.Random, by: float = 0.3) -> Call:
    return call._replace(norms=tuple(norm * math.exp(rng.gauss(0, by)) for norm in call.norms))


def numbered(calls: list[Call]) -> list[Call]:
    counts: Counter[str] = Counter()
    found = []
    for call in calls:
        found.append(call._replace(name=f"{call.type_name}.{counts[call.type_name]}"))
        counts[call.type_name] += 1
    return found


def edit(golden: list[Call], at: int, rng: random.Random) -> tuple[list[Call], int, int]:
    """Return new calls, how many golden ones they stand for, and how many of them are without any."""
    call, kind = golden[at], rng.choice(["insert", "remove", "rename", "fuse", "split"])
    if kind == "insert":
        return [moved(rng.choice(golden), rng), call], 1, 1
    if kind == "remove":
        return [], 1, 0
    if kind == "fuse" and at + 1 < len(golden):
        calls = golden[at : at + rng.randint(2, 8)]
        inputs = list(calls[0].inputs)
        for before, each in itertools.pairwise(calls):
            outside = list(each.inputs)
            for shape in before.outputs:
                if shape in outside:
                    outside.remove(shape)
            inputs += outside
        name, last = f"fused_{rng.randrange(20)}", calls[-1]
        whole = Call("", API, f"NPU.{name}", name, tuple(inputs), last.outputs, (), last.norms)
        return [whole], len(calls), 0
    if kind == "split" and (between := [*call.outputs, *call.inputs]):
        others = [each for each in golden[:300] if each.family != call.family]
        parts, given = [], call.inputs
        for _ in range(rng.randint(2, 8)):
            like, made = rng.choice(others), (rng.choice(between),)
            norms = (math.exp(rng.gauss(2, 1)),)
            parts.append(Call("", API, like.type_name, like.family, given, made, (), norms))
            given = made
        parts[-1] = parts[-1]._replace(outputs=call.outputs, norms=call.norms)
        return parts, 1, 0
    new = f"renamed_{rng.randrange(20)}"
    return [call._replace(type_name=f"NPU.{new}", family=new)], 1, 0


def edited(golden: list[Call], rng: random.Random) -> tuple[list[Call], Pairs]:
    places = set(rng.sample(range(len(golden)), round(EDITED * len(golden))))
    target: list[Call] = []
    pairs: Pairs = []
    at = 0
    while at < len(golden):
        made, used, new = edit(golden, at, rng) if at in places else ([golden[at]], 1, 0)
        first = len(target) + new
        last = len(target) + len(made)
        pairs += itertools.product(range(first, last), range(at, at + used))
        target += made
        at += used
    return target, pairs


def valued(calls: list[Call], values: str, rng: random.Random) -> list[Call]:
    """The values of the golden run, of another honest run, of a faulty one from a place on, or none."""
    if values == "none":
        return [call._replace(norms=(math.nan,) * len(call.norms)) for call in calls]
    start = rng.randrange(len(calls)) if values == "fault" else len(calls)
    honest = 0.0 if values == "same" else 3e-4
    return [moved(call, rng, honest if at < start else 0.5) for at, call in enumerate(calls)]


def runs(calls: list[Call]) -> list[int]:
    """Number the runs of calls with one operator and shapes, which are interchangeable."""
    keys = [(call.family, call.inputs, call.outputs) for call in calls]
    changes = [0, *(int(before != key) for before, key in itertools.pairwise(keys))]
    return list(itertools.accumulate(changes))


def f1_of(capture: str, values: str, seed: int) -> float:
    rng = random.Random(f"{capture} {values} {seed}")
    with open_side(DATA / capture / "dump.json") as side:
        base = [call for call in calls_of(side) if call.kind == API]
    golden = [moved(call, rng) for call in itertools.islice(itertools.cycle(base), LENGTH)]
    target, right = edited(golden, rng)
    target, golden = numbered(valued(target, values, rng)), numbered(golden)
    matches = room.align(target, golden)
    # Every call of both sides is in a match.
    assert {at for match in matches for at in match.target} == set(range(len(target)))
    assert {at for match in matches for at in match.golden} == set(range(len(golden)))
    found = [pair for m in matches for pair in itertools.product(m.target, m.golden)]
    one, other = runs(target), runs(golden)
    both = [Counter((one[x], other[y]) for x, y in pairs) for pairs in (found, right)]
    return 2 * (both[0] & both[1]).total() / (both[0].total() + both[1].total())


def mean_f1(values: str, captures: tuple[str, ...] = ("torch_llm", "mindspore_llm")) -> float:
    scores = [f1_of(capture, values, seed) for capture in captures for seed in range(2)]
    return sum(scores) / len(scores)


@pytest.mark.parametrize("values", ["same", "other run", "fault", "none"])
def test_pairs_are_found_after_edits_at_five_percent_of_the_places(values: str) -> None:
    assert mean_f1(values) >= WANTED


def by_name(whole: Any) -> Any:
    return lambda target, golden: whole(target, golden, exact=True)


@pytest.mark.parametrize(
    ("place", "name", "broken"),
    [
        (gaps, "LONGEST_FUSION", lambda _: 1),
        (room, "align", by_name),
        (room, "features_of", lambda whole: lambda *sides: whole(*map(without_shapes, sides))),
    ],
    ids=["no fusions", "by name", "no shapes"],
)
def test_a_broken_alignment_is_seen(
    place: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, broken(getattr(place, name)))
    assert mean_f1("none", ("torch_llm",)) < WANTED


def without_shapes(calls: list[Call]) -> list[Call]:
    return [call._replace(inputs=(), outputs=()) for call in calls]
