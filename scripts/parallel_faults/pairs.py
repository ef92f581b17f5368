"""Pairs of calls that `compare` finds between layouts, beside those that the programs say.

Comes in: captures of two layouts (of a rank each, or as they were put together), and the tables of `compare`.
Goes out: `FoundPairs`, and with it F1. Called by `main.py`. All programs have one model: calls belong
together that are the same operator, for the same time, in the module of the same name. An operator that runs
a different number of times in a module of the two layouts (its collectives' copies, say) counts for neither.
"""

import csv
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# What wrappers put before and into names; "block" is that of the checkpointed blocks of `layouts.py`.
_WRAPPERS = re.compile(
    r"\b(module|_fsdp_wrapped_module|_orig_mod|_checkpoint_wrapped_module|block)\."
)


@dataclass(frozen=True)
class FoundPairs:
    """How many pairs are right, how many of those found are not, and how many were not found."""

    right: int
    wrong: int
    missed: int

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, 1 where there was nothing to find."""
        whole = 2 * self.right + self.wrong + self.missed
        return 2 * self.right / whole if whole else 1.0


def places_of(dump: Path) -> dict[str, tuple[str, str, str, int]]:
    """Return of each call of a dump its module, its operator, its direction and its number among its like."""
    calls = list(json.loads((dump / "dump.json").read_text())["data"])
    construct = json.loads((dump / "construct.json").read_text())
    counted: Counter[tuple[str, str, str]] = Counter()
    places = {}
    for key in calls:
        if key.startswith("Distributed."):
            continue  # collectives belong to a layout, and those of two layouts are not each other's
        if key.startswith("Module.") and key.rsplit(".", 2)[-2] not in ("forward", "backward"):
            continue  # parameters_grad
        call, direction = key.rsplit(".", 1)
        if direction not in ("forward", "backward"):  # Module.NAME.Class.forward.0
            parts = key.split(".")
            what, direction = "module", parts[-2]
            module = ".".join(parts[1:-3])
        else:
            what = call.split(".", 1)[1].rpartition(".")[0].strip("_").lower()
            parent = construct.get(f"{call}.forward") or ""
            module = ".".join(parent.split(".")[1:-3])
        module = _WRAPPERS.sub("", f"{module}.").removesuffix(".")
        like = (module, what, direction)
        places[key] = (*like, counted[like])
        counted[like] += 1
    return places


def pairs_found(table: Path) -> dict[str, str]:
    """Return the pairs of a compare_calls file: the golden run's call by that of the target."""
    with table.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["Call"]: row["Golden Call"] for row in rows if row["Match"] != "unmatched"}


def judged_pairs(target: Path, golden: Path, table: Path) -> FoundPairs:
    """Judge the pairs that a table has of two dumps."""
    mine, other = places_of(target), places_of(golden)
    ours, theirs = (Counter(place[:3] for place in each.values()) for each in (mine, other))
    sure = {like for like in ours if ours[like] == theirs[like]}
    by_place = {place: key for key, place in other.items() if place[:3] in sure}
    truth = {key: by_place[place] for key, place in mine.items() if place[:3] in sure}
    found = pairs_found(table)
    right = sum(found.get(key) == partner for key, partner in truth.items())
    named = set(truth.values())
    wrong = sum(
        truth.get(key) != partner
        for key, partner in found.items()
        if key in truth or partner in named
    )
    return FoundPairs(right, wrong, len(truth) - right)
