"""What the commands say of captured faults, and whether it is what they are.

Comes in: the folder of the captures, the cells. Goes out: `Judged`, one for each cell and way; tables.
Called by `main.py`. What a command printed is kept in said/{layout}/{case}.{way}.txt, and read from there
the next time.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.measuring import ran
from scripts.parallel_faults.table import FAULTS, LAYOUTS, Fault, cells, variants_of

WAYS = {"ranks": "without a golden run", "same": "same layout", "one": "one process"}
GOALS = {"ranks": 0.70, "same": 0.95, "one": 0.90}
PLACES = 3  # the findings of a list of which one must name the fault


@dataclass(frozen=True)
class Judged:
    """A cell in one way: the exit code, and the place of the first finding that names it, 0 for none."""

    layout: str
    fault: Fault
    way: str
    code: int
    place: int


@dataclass(frozen=True)
class Said:
    """What a command said of a capture: its exit code and its text."""

    code: int
    text: str

    @property
    def findings(self) -> list[str]:
        """The numbered findings, each with the lines that belong to it."""
        found: list[list[str]] = []
        for line in self.text.splitlines():
            if re.match(r"\d+\. ", line):
                found.append([line])
            elif found and line.startswith(" "):
                found[-1].append(line.strip())
        return [" ".join(lines) for lines in found]


def golden_of(variant: str, way: str) -> str:
    """Return the name of the golden case of a variant."""
    name = "one" if way == "one" else "honest"
    return name if variant == "plain" else f"{name}-{variant}"


def words_of(layout: str, target: str, golden: str, way: str, folder: Path) -> list[object]:
    """Return the words of the command for a case in one way."""
    captures = folder / "captures" / layout
    if way == "ranks":
        return ["ranks", captures / target]
    sides = ["-tp", captures / target, "-gp", captures / golden]
    return ["locate", *sides, *(["--layout", LAYOUTS[layout].axes] if way == "one" else [])]


def said_of(layout: str, target: str, golden: str, way: str, folder: Path) -> Said:
    """Return what a command says of a case, now or before."""
    kept = folder / "said" / layout / f"{target}.{way}.txt"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        out = kept.with_suffix(".out")
        words = words_of(layout, target, golden, way, folder)
        ended = ran("ray_precheck", *words, "-o", out, codes=None, limit_s=600)
        shutil.rmtree(out, ignore_errors=True)
        kept.write_text(f"{ended.code}\n{ended.printed}")
    code, _, text = kept.read_text().partition("\n")
    return Said(int(code), text)


def place_of(fault: Fault, layout: str, way: str, findings: list[str]) -> int:
    """Return the place of the first finding that says what a fault is and where, 0 for none."""
    for place, finding in enumerate(findings[:PLACES], 1):
        if all(re.search(word, finding, re.I) for word in fault.said(layout, way)):
            return place
    return 0


def judged(
    folder: Path, layouts: Iterable[str], faults: Iterable[str], ways: Iterable[str]
) -> Iterator[Judged]:
    """Yield the judgement of each captured cell in each way."""
    chosen = set(faults) or {fault.name for fault in FAULTS}
    for layout, fault in cells(tuple(layouts)):
        if fault.name not in chosen or not (folder / "captures" / layout / fault.name).exists():
            continue
        for way in ways:
            golden = golden_of(fault.variant, way)
            if way == "one" and not (folder / "captures" / layout / golden).exists():
                continue
            said = said_of(layout, fault.name, golden, way, folder)
            yield Judged(layout, fault, way, said.code, place_of(fault, layout, way, said.findings))


def accused(
    folder: Path, layouts: Iterable[str], ways: Iterable[str]
) -> Iterator[tuple[str, str, str, Said]]:
    """Yield what is said of honest runs where the exit code is not 0: layout, case, way."""
    for layout in layouts:
        for variant in variants_of(layout):
            honest, again = (
                golden_of(variant, "same"),
                golden_of(variant, "same").replace("honest", "honest_again"),
            )
            one = golden_of(variant, "one")
            for way in ways:
                target = again if way == "same" else honest
                golden = one if way == "one" else honest
                if not (folder / "captures" / layout / golden).exists():
                    continue
                said = said_of(layout, target, golden, way, folder)
                if said.code not in (0, 4 if way == "ranks" else 0):
                    yield layout, target, way, said


def table_of(found: Iterable[Judged]) -> str:
    """Return a table in Markdown: a row for each fault and layout, and the totals against their goals."""
    rows: dict[tuple[str, str], dict[str, Judged]] = {}
    for each in found:
        rows.setdefault((each.layout, each.fault.name), {})[each.way] = each
    ways = [way for way in WAYS if any(way in row for row in rows.values())]
    lines = [
        f"| layout | fault | {' | '.join(WAYS[way] for way in ways)} |",
        "|---" * (2 + len(ways)) + "|",
    ]
    for (layout, fault), row in rows.items():
        marks = [_mark(row.get(way)) for way in ways]
        lines.append(f"| {layout} | {fault} | {' | '.join(marks)} |")
    for way in ways:
        counted = [row[way] for row in rows.values() if way in row]
        right = sum(bool(each.place) for each in counted)
        lines.append(
            f"\n{WAYS[way]}: {right} of {len(counted)} named, {right / max(1, len(counted)):.1%}"
            f" (goal {GOALS[way]:.0%})"
        )
    return "\n".join(lines)


def _mark(one: Judged | None) -> str:
    if one is None:
        return "-"
    if one.place:
        return str(one.place)
    return {0: "nothing", 1: "other", 2: "refused"}.get(one.code, f"exit {one.code}")
