"""Ask rules of the rows that a watch has written, as the watch would have asked them.

    python -m scripts.watch.asked out [more ...] [--planted planted.tsv] [--rule RULE ...]

Comes in: folders of `capture --watch`. Goes out: for each how many rows it has, and how often each rule
fired. With `--planted`, which `scripts.watch.planted` has written in the training of the one folder: which
rules each jump made fire, in its step or one of the three behind it.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from ray_precheck.capture.rules import COLUMNS, History, parse_trigger, windows_of
from scripts.watch.planted import UNDONE
from scripts.watch.trial import FIRST, RULES

_WITHIN = 4
_Row = dict[str, float | None]


def steps_of(folder: Path) -> list[tuple[float, _Row]]:
    """Return the rows of rank 0: when each step ended (seconds of the epoch), and its numbers by columns."""
    with (folder / "watch_0.csv").open(encoding="utf-8-sig", newline="") as file:
        return [_row(each) for each in csv.DictReader(file)]


def _row(cells: dict[str, str]) -> tuple[float, _Row]:
    when = datetime.fromisoformat(cells["Time"].replace("Z", "+00:00")).timestamp()
    named = [name for name in cells if name.startswith((*COLUMNS.values(),))]
    numbers = {name: float(cells[name]) if cells[name] else None for name in named}
    if numbers["Skipped"]:
        numbers |= {COLUMNS[name]: None for name in ("grad_norm", "nan", "inf")}
    return when, numbers


def fired(rows: Sequence[_Row], rules: Sequence[str]) -> list[set[str]]:
    """Return the rules that became true with each row."""
    triggers = [parse_trigger(rule) for rule in rules]
    history = History(windows_of(triggers))
    before: set[str] = set()
    found = []
    for row in rows:
        now = {each.text for each in triggers if each.fires(row, history)}
        found.append(now - before)
        before = now
        history.add(row)
    return found


def found_jumps(
    rows: Sequence[tuple[float, _Row]], lines: Sequence[str], rules: Sequence[str]
) -> dict[str, set[str]]:
    """Return by jump the rules that it made fire; each is asked after the honest rows before the first."""
    told = [(float(when), what) for when, what in (line.split("\t") for line in lines)]
    honest = [row for when, row in rows if when < told[0][0]]
    found = {}
    for place, (began, jump) in enumerate(told):
        if jump == UNDONE:
            continue
        ends = [when for when, what in told[place:] if what == UNDONE]
        last = ends[0] if ends else float("inf")
        moved = [row for when, row in rows if began <= when < last][:_WITHIN]
        found[jump] = set[str]().union(*fired([*honest, *moved], rules)[len(honest) :])
    return found


def main() -> int:
    """Ask the rules of the command line of all folders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--planted", type=Path)
    parser.add_argument("--rule", nargs="+", default=[FIRST, *RULES])
    given = parser.parse_args()
    rules: list[str] = given.rule
    heads = " | ".join(f"`{rule}`" for rule in rules)
    if given.planted is not None:
        print("| jump |", heads, "|")
        lines = given.planted.read_text().splitlines()
        for jump, found in found_jumps(steps_of(given.folders[0]), lines, rules).items():
            print("|", jump, "|", *(f"{int(rule in found)} |" for rule in rules))
        return 0
    print("| program | steps |", heads, "|")
    for folder in given.folders:
        alarms = fired([row for _, row in steps_of(folder)], rules)
        counts = [sum(rule in each for each in alarms) for rule in rules]
        print("|", folder.name, "|", f"{len(alarms):,}", "|", *(f"{n} |" for n in counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
