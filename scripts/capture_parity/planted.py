"""Plants faults into captures of this package, and counts those that a comparison with msprobe's notices.

    python -m scripts.capture_parity.planted CAPTURES [--each N] [--seed N]

Comes in: the folder that `--captures` of the main module has filled. Goes out: for each kind of fault how
many of N a dump were noticed, and the reasons that took the others for known differences; exit code 1 where
fewer than 99 % were. A fault is planted at a random place at which the dumps do not differ: where they differ
with a reason, the reason names that place, and the value there is not looked at.
"""

import argparse
import copy
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scripts.capture_parity.main import LEVELS, MODEL_NAMES, dump_of
from scripts.capture_parity.reasons import Dumps, reason_of
from scripts.capture_parity.records import (
    STATISTICS,
    RecordDifference,
    differences_of_dumps,
    differences_of_record,
    element_at,
)

LEAST_NOTICED = 0.99
_TRIES = 200
Json = Any


class Fault(NamedTuple):
    """Our records with a fault, the key of the record that has it, and what was done to it."""

    ours: dict[str, Json]
    key: str
    place: str


class Garden:
    """Two dumps of the same step, and the places at which a fault may be planted."""

    def __init__(self, dumps: Dumps, seed: int) -> None:
        self.dumps = dumps
        self.random = random.Random(seed)
        named = [(each.key, each.path) for each in differences_of_dumps(dumps.theirs, dumps.ours)]
        self._named = frozenset(named)
        self.keys = [key for key in dumps.theirs if key in dumps.ours]
        self.places = [
            (key, path) for key in self.keys for path in _tensor_paths(dumps.ours[key], ())
        ]

    def is_named(self, found: RecordDifference) -> bool:
        """Return whether the dumps differ at a place without any fault."""
        return (found.key, found.path) in self._named

    def is_free(self, key: str, path: Sequence[str], field: str = "") -> bool:
        """Return whether the dumps do not differ at a place or around it."""
        parts = [*path, field] if field else list(path)
        is_compared = not self.dumps.is_incomparable(key, ".".join(parts))
        if field not in ("", *STATISTICS) and self.dumps.gradients == "border":
            is_compared = True  # dtypes and shapes are held against those of the inputs
        return is_compared and not any(
            (key, ".".join(parts[:end])) in self._named for end in range(len(parts) + 1)
        )

    @property
    def compared(self) -> int:
        """How many tensors have a value that is held against msprobe's."""
        return sum(self.is_free(key, path, "Max") for key, path in self.places)

    def with_record(self, key: str, change: Callable[[Json], None], place: str) -> Fault:
        """Return our records with one that is changed."""
        record = copy.deepcopy(self.dumps.ours[key])
        change(record)
        return Fault({**self.dumps.ours, key: record}, key, place)


def _tensor_paths(value: Json, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict) and "shape" in value:
        yield path
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in items:
            yield from _tensor_paths(each, (*path, str(name)))


def _field(name: str, changed: Callable[[Json], Json]) -> Callable[[Garden], Fault | None]:
    """Return what changes a field of a random tensor, if that makes it another value."""

    def plant(garden: Garden) -> Fault | None:
        key, path = garden.random.choice(garden.places)
        element = element_at(garden.dumps.ours[key], path)
        value = element.get(name)
        if not garden.is_free(key, path, name) or value is None or changed(element) == value:
            return None

        def change(record: Json) -> None:
            element_at(record, path)[name] = changed(element)

        return garden.with_record(key, change, f"{'.'.join(path)}.{name}")

    return plant


def _one_percent(name: str) -> Callable[[Json], Json]:
    """Return what gives a statistic that is off by 1 %, a mean by 1 % of the root mean square."""

    def changed(element: Json) -> Json:
        value, scale = element[name], element[name]
        if not (isinstance(value, float) and isinstance(element["Norm"], float)):
            return value
        if name == "Mean":
            scale = element["Norm"] / math.sqrt(max(1, math.prod(element["shape"])))
        return value + 0.01 * scale if math.isfinite(scale) and math.isfinite(value) else value

    return changed


def _missing(garden: Garden) -> Fault | None:
    key = garden.random.choice(garden.keys)
    if not garden.is_free(key, ()):
        return None
    return Fault({each: value for each, value in garden.dumps.ours.items() if each != key}, key, "")


def _swapped(garden: Garden) -> Fault | None:
    """Swap two gradients that a call passes on and that are not alike."""
    key = garden.random.choice(garden.keys)
    gradients = garden.dumps.ours[key].get("output") if "backward" in key.split(".") else None
    if not isinstance(gradients, list) or len(gradients) < 2:
        return None
    first, second = garden.random.sample(range(len(gradients)), 2)
    their = garden.dumps.theirs[key].get("output", [])
    free = all(garden.is_free(key, ("output", str(index))) for index in (first, second))
    if not free or gradients[first] == gradients[second] or len(their) != len(gradients):
        return None

    def change(record: Json) -> None:
        found = record["output"]
        found[first], found[second] = found[second], found[first]

    return garden.with_record(key, change, f"output.{first} and {second}")


KINDS: dict[str, Callable[[Garden], Fault | None]] = {
    "Max, 1 %": _field("Max", _one_percent("Max")),
    "Norm, 1 %": _field("Norm", _one_percent("Norm")),
    "Mean, 1 %": _field("Mean", _one_percent("Mean")),
    "dtype": _field("dtype", lambda element: "torch.float16"),
    "shape": _field("shape", lambda element: [*element["shape"], 1]),
    "a missing key": _missing,
    "swapped gradients": _swapped,
}


def fault_of(garden: Garden, kind: str) -> Fault | None:
    """Return a fault of a kind, None where no place for it is found."""
    found = (KINDS[kind](garden) for _ in range(_TRIES))
    return next((fault for fault in found if fault is not None), None)


def excuses(garden: Garden, fault: Fault) -> list[str] | None:
    """Return the reasons that take a fault for a known difference, None where it is noticed."""
    dumps = Dumps(garden.dumps.theirs, fault.ours, garden.dumps.level, garden.dumps.gradients)
    found = []
    for each in differences_of_record(fault.key, dumps.theirs, dumps.ours):
        if garden.is_named(each):
            continue
        reason = reason_of(each, dumps)
        if reason is None:
            return None
        found.append(reason)
    return found or ["too small to be a difference"]


def gardens(folder: Path, seed: int) -> Iterator[tuple[str, Garden]]:
    """Yield the pairs of captures that a folder has."""
    for model in MODEL_NAMES:
        for level in LEVELS:
            for gradients in ("node", "border"):
                paths = [folder / f"{model}-{level}-{each}" for each in ("msprobe", gradients)]
                if all(list(path.glob("step0/*/dump.json")) for path in paths):
                    records = [json.loads(dump_of(path).read_bytes())["data"] for path in paths]
                    dumps = Dumps(*records, level, gradients)
                    yield f"{model}, {level}, {gradients}", Garden(dumps, seed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant as the command line says."""
    parser = argparse.ArgumentParser(description="faults in captures that a comparison must notice")
    parser.add_argument("captures", type=Path, help="what --captures of the comparison has kept")
    parser.add_argument("--each", type=int, default=50, help="faults of each kind in each dump")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    tried: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    compared = tensors = 0
    for title, garden in gardens(options.captures, options.seed):
        compared, tensors = compared + garden.compared, tensors + len(garden.places)
        for kind in KINDS:
            for _ in range(options.each):
                fault = fault_of(garden, kind)
                if fault is None:
                    continue
                tried[kind] += 1
                excused = excuses(garden, fault)
                noticed[kind] += excused is None
                if excused is not None:
                    missed[f"{kind}: {' and '.join(sorted(set(excused)))}"] += 1
                    print(f"{title}: {kind} in {fault.key} {fault.place}", file=sys.stderr)
    print("| fault | planted | noticed |\n|---|---|---|")
    for kind in KINDS:
        print(f"| {kind} | {tried[kind]} | {noticed[kind]} |")
    for text, count in missed.most_common():
        print(f"not noticed: {text}: {count}")
    share = sum(noticed.values()) / max(1, sum(tried.values()))
    print(f"\n{share:.2%} of {sum(tried.values())} were noticed")
    print(f"{compared} of {tensors} tensors are compared; a reason names the places of the others")
    return 0 if share >= LEAST_NOTICED else 1


if __name__ == "__main__":
    sys.exit(main())
