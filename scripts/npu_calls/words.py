"""The page of the docs: its sentences, and what stands in which of its tables.

Comes in: the uses and facts, and the sightings of each release. Goes out: the page's text, and, of a page,
the rows that it has. Called by the command, and by a test that holds the page against the sources.
"""

import datetime
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.measuring import markdown_table, sections_in
from scripts.npu_calls.evaluate import OR, Use
from scripts.npu_calls.everything import Everything
from scripts.npu_calls.explained import ACCEPTED, ACL_REFERENCE, EXPLAINED
from scripts.npu_calls.facts import Fact
from scripts.npu_calls.lookup import Presence, Sighting

_MOST_PLACES = 3
# Of a release, by its version: what was found of each use or fact.
Sightings = Mapping[str, Mapping[Use | Fact, Sighting]]
Row = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page: its title, the sentences before it, and its columns and rows."""

    title: str
    words: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        rows = markdown_table(self.columns, self.rows)
        return f"## {self.title}\n\n{self.words.strip()}\n\n{rows}\n"


def rows_of(things: Iterable[Use | Fact]) -> list[tuple[Row, list[Use | Fact]]]:
    """Return the first two cells of each row, what is used and where, with what stands behind them."""
    groups: dict[str, list[Use | Fact]] = defaultdict(list)
    for thing in sorted(things, key=lambda each: (each.text, each.where)):
        groups[thing.text].append(thing)
    return [((_code(text), _places(group)), group) for text, group in groups.items()]


def _code(text: str) -> str:
    return OR.join(f"`{part}`" for part in text.split(OR)) if OR in text else f"`{text}`"


def _places(group: Iterable[Use | Fact]) -> str:
    places = sorted({thing.where for thing in group})
    shown = ", ".join(f"`{place}`" for place in places[:_MOST_PLACES])
    more = len(places) - _MOST_PLACES
    return f"{shown} and {more} more" if more > 0 else shown


def page_rows(text: str) -> set[Row]:
    """Return the first two cells of every row of a page's tables."""
    found = re.findall(r"(?m)^\| (`.*?`) \| (`[^|]*) \|", text)
    return {(first, second) for first, second in found}


def used_table(title: str, words: str, uses: Iterable[Use], sightings: Sightings) -> Table:
    """Return the table of names: what is used, where, in which file it was found, and in which versions."""
    rows = []
    for cells, group in rows_of(uses):
        found = {
            version: _worst(each[thing] for thing in group) for version, each in sightings.items()
        }
        rows.append([*cells, _files(found), _versions(found), _arguments(group, found)])
    columns = ("we use", "in", "it stands in", "releases that have it", "arguments")
    return Table(title, words, columns, rows)


def operator_table(title: str, words: str, uses: Iterable[Use], sightings: Sightings) -> Table:
    """Return the table of operators; the last column has the parameters that no bench takes."""
    rows = []
    for cells, group in rows_of(uses):
        found = {
            version: _worst(each[thing] for thing in group) for version, each in sightings.items()
        }
        rows.append([*cells, _versions(found), _not_taken(group, sightings)])
    columns = ("operator", "in", "releases that have it", "parameters that its bench does not take")
    return Table(title, words, columns, rows)


def fact_table(
    title: str, words: str, facts: Iterable[Fact], both: Mapping[str, Sightings]
) -> Table:
    """Return the table of texts: what each is, and which releases of which package name it."""
    rows = []
    for cells, group in rows_of(facts):
        what = group[0].what  # type: ignore[union-attr]
        is_sought = any(fact.sought or fact.is_pattern for fact in group)  # type: ignore[union-attr]
        named = [
            f"{package} {_versions({v: _worst(e[t] for t in group) for v, e in found.items()})}"
            for package, found in both.items()
        ]
        rows.append([*cells, what, "; ".join(named) if is_sought else "not sought"])
    return Table(title, words, ("text", "in", "what it is", "releases that name it"), rows)


def _worst(sightings: Iterable[Sighting]) -> Sighting:
    """Return the sighting of a row: that of the use that fares worst."""
    order = list(Presence)
    return max(sightings, key=lambda sighting: order.index(sighting.found))


def _files(found: Mapping[str, Sighting]) -> str:
    """Return the module of the newest release in which it stands."""
    files = [sighting.file for sighting in found.values() if sighting.file]
    if not files:
        return "-"
    module = re.sub(r"(/__init__)?\.pyi?$", "", files[-1]).replace("/", ".")
    return f"`{module}`"


def _versions(found: Mapping[str, Sighting]) -> str:
    missing = [version for version, each in found.items() if each.found is Presence.MISSING]
    if all(each.found is Presence.NOT_TOLD for each in found.values()):
        return "not told by a file"
    if not missing:
        return f"all {len(found)}"
    if len(missing) == len(found):
        return "**none**"
    return f"{len(found) - len(missing)}; missing in {', '.join(missing)}"


def _arguments(group: Sequence[Use | Fact], found: Mapping[str, Sighting]) -> str:
    wrong = [version for version, each in found.items() if each.found is Presence.ARGUMENTS]
    if wrong:
        return f"**not taken** in {', '.join(wrong)}"
    if not any(isinstance(use, Use) and use.how == "call" for use in group):
        return "-"
    kinds = {each.found for each in found.values()}
    if kinds == {Presence.ANY}:
        return "it takes any"
    if Presence.NATIVE in kinds:
        return "not known: C++"
    return "not known" if Presence.NOT_TOLD in kinds else "taken"


def _not_taken(group: Sequence[Use | Fact], sightings: Sightings) -> str:
    """Return the parameters that no bench takes, each with the first release that has it."""
    first: dict[str, str] = {}
    wrong, native = [], False
    for version, each in sightings.items():
        for thing in group:
            sighting = each[thing]
            native = native or sighting.found is Presence.NATIVE
            if sighting.found is Presence.ARGUMENTS:
                wrong.append(version)
            for name in sighting.more:
                first.setdefault(name, version)
    if wrong:
        return f"**other order or names** in {', '.join(wrong)}"
    if not any(isinstance(use, Use) and use.rows for use in group):
        return "it has no bench"
    if native:
        return "not known: C++"
    since = defaultdict(list)
    for name, version in first.items():
        since[version].append(name)
    return "; ".join(f"`{'`, `'.join(n)}` (from {v})" for v, n in since.items()) or "none"


_TEXTS = sections_in(Path(__file__).with_name("page.txt"))


def page(
    everything: Everything,
    of_ray: Iterable[Use],
    sightings: Mapping[str, Sightings],
    date: datetime.date,
) -> str:
    """Return the page. `sightings` has those of ray besides those of the wheels."""
    uses: dict[tuple[str, bool], list[Use]] = {}
    for use in everything.uses:
        uses.setdefault((use.library, use.how == "operator"), []).append(use)
    releases = {package: ", ".join(found) for package, found in sightings.items()}
    tables = [
        used_table(
            "torch_npu", _TEXTS["torch_npu"], uses["torch_npu", False], sightings["torch_npu"]
        ),
        operator_table(
            "Operators of torch_npu",
            _TEXTS["operators"],
            uses["torch_npu", True],
            sightings["torch_npu"],
        ),
        used_table(
            "MindSpore", _TEXTS["mindspore"], uses["mindspore", False], sightings["mindspore"]
        ),
        operator_table(
            "Fused operators of MindSpore",
            _TEXTS["mindspore_operators"],
            uses["mindspore", True],
            sightings["mindspore"],
        ),
        fact_table("Texts about NPUs", _TEXTS["facts"], everything.facts, sightings),
        _acl(of_ray),
    ]
    parts = [
        _TEXTS["head"].format(date=date.isoformat(), **releases),
        *(table.text() for table in tables),
        _varying(),
        _accepted(),
        _TEXTS["left"],
    ]
    return "\n".join(_filled(part) for part in parts)


def _acl(of_ray: Iterable[Use]) -> Table:
    rows = [
        [*cells, ACL_REFERENCE.get(group[0].text, "**not in the reference that was read**")]
        for cells, group in rows_of(of_ray)
    ]
    return Table("acl", _TEXTS["acl"], ("Ray calls", "in", "the reference says"), rows)


def _varying() -> str:
    lines = [f"- `{where}`: {told.words}" for where, told in sorted(EXPLAINED.items())]
    words = "Places of the package where a name varies, and which names it has:"
    return "\n".join(["## Names that vary", "", words, "", *lines]) + "\n"


def _accepted() -> str:
    lines = [f"- `{text}`: {reason}." for text, reason in sorted(ACCEPTED.items())]
    return "\n".join(["## What some releases lack", "", *lines]) + "\n"


def _filled(text: str) -> str:
    """Return a text with its paragraphs filled; tables, lists and titles stay as they are."""
    paragraphs = text.strip("\n").split("\n\n")
    return (
        "\n\n".join(
            p if p.startswith(("#", "|", "- ")) else textwrap.fill(" ".join(p.split()), 110)
            for p in paragraphs
        )
        + "\n"
    )
