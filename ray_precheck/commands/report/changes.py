"""What changed between two runs of a command: newly failing, newly fixed, moved.

Comes in: the views of both, whose tables are read again. Goes out: one more `View`. Called by the command.
Rows are the same where their names are; a number has moved where its first three digits have, or, near 1,
those of its distance to 1.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ray_precheck.commands.report.rows import TableRows, linked_name, three_digits
from ray_precheck.running.views import worst_tone
from ray_precheck.schema.view import (
    Card,
    CellKind,
    Count,
    Fact,
    NotCompared,
    RowColumn,
    RowTable,
    Tone,
    View,
    ViewState,
)

# Of 1,000,000 rows that all moved those that moved most are shown.
_MOST_ROWS = 50_000
_MOST_CARDS = 10
_NAMED = 5
_FAILING, _FIXED, _MOVED = "newly failing", "newly fixed", "moved"
_OTHERWISE, _NEW, _GONE = "other verdict", "only in the second", "only in the first"
_TONES = {
    _FAILING: Tone.ERROR,
    _FIXED: Tone.PASS,
    _MOVED: Tone.WARNING,
    _OTHERWISE: Tone.WARNING,
    _NEW: Tone.UNMATCHED,
    _GONE: Tone.UNMATCHED,
}
_COLUMNS = (
    RowColumn("Name", CellKind.NAME),
    RowColumn("Change", CellKind.TONE),
    RowColumn("Before", CellKind.TEXT),
    RowColumn("After", CellKind.TEXT),
    RowColumn("Times", CellKind.NUMBER),
    RowColumn("Moved", CellKind.TEXT),
    RowColumn("Table", CellKind.TEXT),
)


@dataclass(frozen=True, slots=True)
class _Row:
    """The worst verdict of a row, its word, and its numbers to three digits."""

    tone: Tone
    word: str
    numbers: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Change:
    name: str
    kind: str
    before: str
    after: str
    times: float
    moved: str
    table: str


def changes_between(before: Sequence[View], after: Sequence[View], of: Sequence[str]) -> View:
    """Return what changed from the runs of one folder to those of another; `of` are both folders.

    Views are those of the same command, in their order; one without its like is named as not compared.
    """
    pairs, lone = _paired(before, after)
    changes: list[_Change] = []
    same = 0
    for one, other in pairs:
        tables = {(table.label, table.title): table for table in _own_tables(one)}
        for table in _own_tables(other):
            earlier = tables.pop((table.label, table.title), None)
            if earlier is None:
                lone.append(
                    NotCompared(
                        f"{_titled(table)} of {other.command} is only in {of[1]}", table_rows(table)
                    )
                )
                continue
            found, equal = _changes(earlier, table)
            changes += found
            same += equal
        lone += [
            NotCompared(f"{_titled(table)} of {one.command} is only in {of[0]}", table_rows(table))
            for table in tables.values()
        ]
    changes.sort(key=lambda change: (list(_TONES).index(change.kind), -_rank(change.times)))
    counts = Counter(change.kind for change in changes)
    failing = counts[_FAILING]
    # Rows that only one side has say nothing of the other.
    nothing = not same and counts[_NEW] + counts[_GONE] == len(changes)
    notes = _differing(pairs)
    if len(changes) > _MOST_ROWS:
        notes = (*notes, f"Of {len(changes):,} rows that changed {_MOST_ROWS:,} are shown.")
    return View(
        "report",
        f"{of[0]} against {of[1]}",
        _sentence(counts, same, nothing=nothing),
        _tone(counts, nothing=nothing),
        ViewState.FINISHED,
        facts=(Fact("Before", of[0]), Fact("After", of[1])),
        counts=(
            *(Count(kind, counts[kind], tone) for kind, tone in _TONES.items() if counts[kind]),
            Count("as before", same, Tone.PLAIN),
        ),
        reasons=tuple(lone),
        notes=notes,
        cards=tuple(_card(change) for change in changes[:_MOST_CARDS] if change.kind == _FAILING),
        more_cards=max(0, failing - _MOST_CARDS),
        tables=(
            RowTable(
                "what changed",
                _COLUMNS,
                rows=tuple(_cells(change) for change in changes[:_MOST_ROWS]),
                tones=_TONES,
            ),
        ),
    )


def _own_tables(view: View) -> list[RowTable]:
    """Return the tables whose rows stand in no other table of the view."""
    return [table for table in view.tables if not table.repeats]


def _tone(counts: Counter[str], *, nothing: bool) -> Tone:
    if nothing:
        return Tone.SKIP
    if counts[_FAILING]:
        return Tone.ERROR
    # What is gone, or is compared no more, is no proof that it is right.
    is_less = counts[_OTHERWISE] or counts[_GONE]
    return Tone.WARNING if is_less else Tone.PASS


def _rank(times: float) -> float:
    """Return a number that orders changes: NaN is the least."""
    return -1.0 if math.isnan(times) else abs(math.log(times)) if 0 < times < math.inf else math.inf


def _paired(
    before: Sequence[View], after: Sequence[View]
) -> tuple[list[tuple[View, View]], list[NotCompared]]:
    pairs, waiting, lone = [], list(before), []
    for other in after:
        one = next((each for each in waiting if each.command == other.command), None)
        if one is None:
            lone.append(NotCompared(f"{other.command} has no run in the first folder", 1))
            continue
        waiting.remove(one)
        pairs.append((one, other))
    lone += [NotCompared(f"{one.command} has no run in the second folder", 1) for one in waiting]
    return pairs, lone


def _differing(pairs: Sequence[tuple[View, View]]) -> tuple[str, ...]:
    """Return sentences on settings that differ, by which the rows may."""
    notes = []
    for one, other in pairs:
        values = {fact.name: fact.value for fact in one.facts}
        for fact in other.facts:
            if fact.name in values and values[fact.name] != fact.value:
                notes.append(
                    f"{other.command}: {fact.name} differs: {values[fact.name]} before, {fact.value} after."
                )
    return tuple(notes)


def _sentence(counts: Counter[str], same: int, *, nothing: bool) -> str:
    if nothing:
        return "Nothing of the two could be compared"
    if not counts:
        return f"Nothing changed: {same:,} rows are as before"
    parts = [f"{counts[kind]:,} {kind}" for kind in _TONES if counts[kind]]
    return f"{', '.join(parts)}; {same:,} rows are as before"


def _titled(table: RowTable) -> str:
    return f"the table {'/'.join(filter(None, [table.label, table.title]))}"


def table_rows(table: RowTable) -> int:
    """Return how many rows a table has."""
    return sum(len(piece) for piece in _pieces(table))


def _pieces(table: RowTable) -> Iterator[Sequence[Sequence[str]]]:
    if table.path is None:
        yield table.rows
    else:
        yield from TableRows(table.path, table.columns).pieces()


def _changes(before: RowTable, after: RowTable) -> tuple[list[_Change], int]:
    """Return what changed between two tables, and how many rows did not."""
    headings = [each.heading for each in after.columns if each.kind is CellKind.NUMBER]
    known = dict(_read(before, headings))
    changes, same = [], 0
    for name, row in _read(after, headings):
        earlier = known.pop(name, None)
        if earlier is None:
            changes.append(_Change(name, _NEW, "", row.word, math.nan, "", after.title))
            continue
        change = _change(name, earlier, row, headings, after.title)
        if change is None:
            same += 1
        else:
            changes.append(change)
    changes += [
        _Change(name, _GONE, row.word, "", math.nan, "", after.title) for name, row in known.items()
    ]
    return changes, same


def _change(
    name: str, before: _Row, after: _Row, headings: Sequence[str], table: str
) -> _Change | None:
    moved = []
    most = math.nan
    for heading, one, other in zip(headings, before.numbers, after.numbers, strict=True):
        if one == other or (math.isnan(one) and math.isnan(other)):
            continue
        moved.append(f"{heading} {one:g} to {other:g}")
        times = other / one if one and not math.isnan(one) else math.inf
        if not _rank(times) <= _rank(most):
            most = times
    if before.tone is not after.tone:
        kind = _OTHERWISE
        if after.tone is Tone.ERROR:
            kind = _FAILING
        elif before.tone is Tone.ERROR:
            kind = _FIXED
        return _Change(name, kind, before.word, after.word, most, "; ".join(moved), table)
    if not moved:
        return None
    return _Change(name, _MOVED, before.word, after.word, most, "; ".join(moved), table)


def _read(table: RowTable, headings: Sequence[str]) -> Iterator[tuple[str, _Row]]:
    """Yield the rows by their names; of equal names the second is `NAME (2)`."""
    columns = table.columns
    tones = [at for at, each in enumerate(columns) if each.kind is CellKind.TONE]
    where = [
        next((at for at, each in enumerate(columns) if each.heading == h), -1) for h in headings
    ]
    seen: Counter[str] = Counter()
    for piece in _pieces(table):
        numbers = [
            three_digits(np.array([_number(cells[at]) if at >= 0 else math.nan for cells in piece]))
            for at in where
        ]
        for index, cells in enumerate(piece):
            name = "/".join(filter(None, [table.label, linked_name(table, cells)]))
            seen[name] += 1
            if seen[name] > 1:
                name = f"{name} ({seen[name]})"
            words = [cells[at] for at in tones]
            found = [table.tones.get(word, Tone.PLAIN) for word in words]
            tone = worst_tone(found)
            word = words[found.index(tone)] if found else ""
            yield name, _Row(tone, word, tuple(float(each[index]) for each in numbers))


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _card(change: _Change) -> Card:
    was = f"it was {change.before or 'without a verdict'} and is {change.after}"
    return Card(
        change.name,
        _TONES[change.kind],
        f"{was}{f': {change.moved}' if change.moved else ''}",
        row=change.name,
    )


def _cells(change: _Change) -> tuple[str, ...]:
    times = "" if math.isnan(change.times) else repr(change.times)
    return (
        change.name,
        change.kind,
        change.before,
        change.after,
        times,
        change.moved,
        change.table,
    )


def titled(views: Sequence[View], folder: Path) -> tuple[View, ...]:
    """Return views whose titles say of which folder they are."""
    return tuple(
        replace(view, title=f"{view.title} ({folder})" if view.title else str(folder))
        for view in views
    )
