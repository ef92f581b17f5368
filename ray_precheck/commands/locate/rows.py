"""What was found in a dump as rows of a journal, and back.

Comes in: a `Located`, with the modules and source lines of its records. Goes out: lines of CSV, and from
them the same once more. Called by the job that searches pairs of dumps, and by the session.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ray_precheck.commands.locate.payload import number_cell
from ray_precheck.commands.locate.report import Looked
from ray_precheck.commands.locate.walk.roots import Located, Passed, Root, RootKind, SharedRecord
from ray_precheck.store.repair import decoded_rows
from ray_precheck.store.tables import Tables, decode_name, encode_name, encode_row, encode_text
from ray_precheck.trace.flow.meetings import Meeting

# `locate_dumps_{timestamp}.csv` and `locate_roots_{timestamp}.csv`. A row of the roots is of a root, of the
# target or of the golden run, of a record before a gap, of a record that is no root, of one of a collective,
# or of a link between affected records.
PAIR_TABLES = Tables(
    "locate",
    ("Dump", "Result", "Records", "Judged", "Compared", "Roots", "First", "Left Out",
     "Collectives Left Out", "Message"),
    (
        "Row", "Record", "Direction", "Place", "Verdict", "Value", "Own Error", "Inherited Error", "Index",
        "Cause", "Message", "Other", "Reached", "Module", "Source", "Dump",
    ),
    detail_parts=None,
    verdicts=1,
    needs_details=False,
    words=("dumps", "roots"),
)  # fmt: skip
ROOT, GOLDEN_ROOT, NEIGHBOUR, PASSED, SHARED, LINK = (
    "root", "golden root", "neighbour", "passed", "collective", "link"
)  # fmt: skip


@dataclass(slots=True)
class LocatedRows:
    """What the journal holds of one dump: `known` is False where it could not be searched."""

    located: Located = field(default_factory=Located)
    looked: dict[str, tuple[str, str]] = field(default_factory=dict)
    message: str = ""
    known: bool = False


def encoded_located(dump: str, located: Located, looked: Looked) -> Iterator[bytes]:
    """Yield the rows of a dump."""
    for root in located.roots:
        cells = [
            root.kind.value, encode_name(root.item), number_cell(root.own), number_cell(root.inherited),
            encode_text(root.index), encode_text(root.cause), encode_text(root.message),
            encode_name(root.before), str(root.reached), *_place(root.name, looked),
        ]  # fmt: skip
        kind = GOLDEN_ROOT if root.is_golden else ROOT
        yield _row(kind, root.key, root.direction, root.place, cells, dump)
    for key in sorted({root.before for root in located.roots} - {""}):
        yield _row(NEIGHBOUR, key, "", 0, [*[""] * 9, *_place(key, looked)], dump)
    for each in located.passed:
        cells = [
            each.verdict, "", number_cell(each.own), number_cell(each.inherited), "", "",
            encode_text(each.message), "", "", *_place(each.key, looked),
        ]  # fmt: skip
        yield _row(PASSED, each.key, each.direction, each.place, cells, dump)
    for shared in located.shared:
        facts = json.dumps([*shared[3:]], separators=(",", ":"))
        cells = ["", "", "", "", "", "", encode_text(facts), "", "", *_place(shared.key, looked)]
        yield _row(SHARED, shared.key, shared.direction, shared.place, cells, dump)
    for one, other in located.edges:
        yield _row(LINK, one, "", 0, [*[""] * 7, encode_name(other), *[""] * 3], dump)


def _place(key: str, looked: Looked) -> list[str]:
    module, source = looked.get(key, ("", ""))
    return [encode_name(module), encode_text(source)]


def _row(kind: str, key: str, direction: str, place: int, cells: list[str], dump: str) -> bytes:
    return encode_row([kind, encode_name(key), direction, str(place), *cells, encode_name(dump)])


def read_located(dumps: Path, roots: Path) -> dict[str, LocatedRows]:
    """Read both tables: what was found in each dump, by its label."""
    found: dict[str, LocatedRows] = defaultdict(LocatedRows)
    for name, _, records, judged, compared, _, _, *left_out, message in decoded_rows(
        dumps, PAIR_TABLES.result
    ):
        rows = found[decode_name(name)]
        rows.known, rows.message = bool(records), message
        located = rows.located
        located.records, located.judged = _count(records), _count(judged)
        located.compared = _count(compared)
        located.left_out, located.shared_left_out = map(_count, left_out)
    for cells in decoded_rows(roots, PAIR_TABLES.details):
        _take(found[decode_name(cells[-1])], cells)
    return dict(found)


def _count(cell: str) -> int:
    return int(cell) if cell.isdigit() else 0


def _take(rows: LocatedRows, cells: list[str]) -> None:
    kind, key, direction, place = cells[0], decode_name(cells[1]), cells[2], _count(cells[3])
    own, inherited = _float(cells[6]), _float(cells[7])
    located = rows.located
    if kind == LINK:
        located.edges.append((key, decode_name(cells[11])))
        return
    where = (decode_name(cells[13]), cells[14])
    if kind in (ROOT, GOLDEN_ROOT):
        located.roots.append(
            Root(
                RootKind(cells[4]), key, direction, place, decode_name(cells[5]), own, inherited,
                cells[8], cells[9], cells[10], decode_name(cells[11]), _count(cells[12]),
                kind == GOLDEN_ROOT,
            )
        )  # fmt: skip
        rows.looked[located.roots[-1].name] = where
        return
    rows.looked[key] = where
    if kind == PASSED:
        located.passed.append(Passed(cells[4], key, direction, place, own, inherited, cells[10]))
    elif kind == SHARED:
        meeting, *facts = json.loads(cells[10])
        located.shared.append(SharedRecord(key, direction, place, Meeting(*meeting), *facts))


def _float(cell: str) -> float | None:
    return float(cell) if cell else None
