"""The counts of `verdicts` as Markdown: what it prints, and the document that it and `attack` keep.

Comes in: a `Tally`. Goes out: text. Called by `verdicts.main` and `attack.main`.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from scripts.measuring import ROOT, markdown_table, sections_in
from scripts.verdicts.tally import Cell, Tally

TABLE = ROOT / "ray_precheck" / "accuracy" / "VERDICTS.md"
_DTYPES = ("float32", "float16", "bfloat16")
_OTHERS = "integers, bool"

# Each begins with its heading.
SECTIONS = sections_in(Path(__file__).with_name("page.txt"))
_HEAD = SECTIONS.pop("head")


def with_section(document: str, way: str, section: str) -> str:
    """Return the document of all ways with one of its sections replaced, the others as they were."""
    parts = {}
    for name, text in SECTIONS.items():
        heading = text.partition("\n")[0]
        begin = document.find(heading)
        others = [document.find(t.partition("\n")[0]) for n, t in SECTIONS.items() if n != name]
        end = min((at for at in others if at > begin), default=len(document))
        parts[name] = document[begin:end].strip() if begin >= 0 else ""
    parts[way] = section.strip()
    return "\n\n".join([_HEAD.strip(), *filter(None, parts.values())]) + "\n"


def keep_section(way: str, **told: object) -> None:
    """Write one section of the document, the others as they were; `told` has what its text leaves open."""
    section = SECTIONS[way].format(**told)
    before = TABLE.read_text("utf-8") if TABLE.exists() else ""
    TABLE.write_text(with_section(before, way, section), "utf-8")
    print(f"written: {TABLE.relative_to(ROOT)}")


def as_markdown(tally: Tally, standards: Sequence[str]) -> str:
    """Return a summary, and for each standard both tables."""
    parts = [summary(tally, standards)]
    for standard in standards:
        parts.append(f"### `{standard}`: faults found of those that count")
        parts.append(_table("fault", standard, tally.planted, tally.found))
        parts.append(f"### `{standard}`: honest results called an error")
        parts.append(_table("implementation", standard, tally.honest, tally.alarmed))
    return "\n\n".join(parts)


def summary(tally: Tally, standards: Sequence[str]) -> str:
    """Return the table that has one line for each standard."""
    rows = []
    for standard in standards:
        planted, found = (_sum(c, standard) for c in (tally.planted, tally.found))
        honest, alarmed = (_sum(c, standard) for c in (tally.honest, tally.alarmed))
        faults = f"{found} of {planted}", _percent(found, planted)
        rows.append([f"`{standard}`", *faults, f"{alarmed} of {honest}", _percent(alarmed, honest)])
    return markdown_table(("standard", "faults found", "share", "false alarms", "share"), rows)


def missed_lines(tally: Tally, standard: str) -> str:
    """Return a line for each fault that a standard missed."""
    lines = [
        f"- {name}, {dtype}: {where}" for one, dtype, name, where in tally.missed if one == standard
    ]
    return "\n".join(lines) or "Nothing."


def _table(what: str, standard: str, whole: Counter[Cell], part: Counter[Cell]) -> str:
    names = dict.fromkeys(name for one, _, name in whole if one == standard)
    rows = []
    for name in names:
        cells = []
        for dtype in (*_DTYPES, _OTHERS):
            keys = [key for key in whole if _is_in(key, standard, dtype, name)]
            total, some = sum(whole[key] for key in keys), sum(part[key] for key in keys)
            cells.append(f"{some} of {total}" if total else "")
        rows.append([name, *cells])
    return markdown_table((what, *_DTYPES, _OTHERS), rows)


def _is_in(key: Cell, standard: str, dtype: str, name: str) -> bool:
    same_dtype = key[1] == dtype or (dtype == _OTHERS and key[1] not in _DTYPES)
    return key[0] == standard and key[2] == name and same_dtype


def _sum(counts: Counter[Cell], standard: str) -> int:
    return sum(count for (one, _, _), count in counts.items() if one == standard)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else ""
