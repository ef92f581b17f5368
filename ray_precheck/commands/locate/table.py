"""The table of `locate`, and what is said of it on the screen.

Comes in: what was found in the dumps, and its places. Goes out: `locate_{timestamp}.csv`, perhaps a
graph, and lines of text. Called by the session and the command.

Also here: what was found in a dump as rows of a journal, and back.
"""

import json
import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ray_precheck.commands.locate.plan import number_cell
from ray_precheck.commands.locate.walk.nouns import (
    INFINITE,
    INHERITED,
    UNCHECKED,
    Located,
    Passed,
    Root,
    RootKind,
    SharedRecord,
)
from ray_precheck.commands.locate.walk.places import (
    COLUMNS,
    DumpRoots,
    RootPlace,
    cells_of_root,
    graph_dot,
    graph_json,
    left_out_rows,
    passed_rows,
    ranks_in_words,
    shown_error,
)
from ray_precheck.foreign import open_file
from ray_precheck.operators.table import with_name
from ray_precheck.store.journal import decoded_rows
from ray_precheck.store.tables import (
    Tables,
    decode_name,
    encode_name,
    encode_row,
    encode_text,
    header,
    replace_file,
)
from ray_precheck.trace.flow import Meeting
from ray_precheck.trace.sources import Modules, source_lines

_SHOWN = 3
# Of these kinds of roots an own error says nothing of a call.
PLACES = (RootKind.GAP, RootKind.CALL)
_NAMED = (3,)  # columns that are names: `API Name`
_LONGEST_LINE, _LONGEST_REASON = 200, 500
# The module and the source line of records, by their keys.
Looked = Mapping[str, tuple[str, str]]
_NOWHERE = ("", "")


def write_location(
    table: Path,
    dumps: Sequence[DumpRoots],
    places: Sequence[RootPlace],
    paths: Mapping[str, tuple[Path, Path | None]],
    known: Mapping[str, Looked] | None = None,
    *,
    with_graph: bool = False,
) -> tuple[Path, ...]:
    """Write the table: roots by their places, then what passes an error on, then what was not checked.

    `paths` has the dump of each label and its golden one, or `known` the module and the source line of its
    records. Returns the files of the graph.
    """
    looked = {
        dump.label: looked_up(dump.located, *paths[dump.label])
        for dump in dumps
        if dump.label in paths
    }
    looked |= known or {}
    lines = [header(COLUMNS)]
    for found in places:
        look = looked[found.dump.label]
        row = list(cells_of_root(found, *look.get(found.root.name, _NOWHERE)))
        if found.root.before:
            row[-1] += _told(look, found.root.before)
        lines.append(_encoded(row))
    for verdict in (INHERITED, UNCHECKED):
        for dump, each, cells in passed_rows(dumps, verdict):
            module, source = looked[dump.label].get(each.key, _NOWHERE)
            lines.append(_encoded([*cells[:9], module, source, *cells[11:]]))
    lines += map(_encoded, left_out_rows(dumps))
    table.parent.mkdir(parents=True, exist_ok=True)
    replace_file(table, lines)
    if not with_graph:
        return ()
    stem = table.stem.replace("locate_", "locate_graph_", 1)
    graphs = (table.with_name(f"{stem}.dot"), table.with_name(f"{stem}.json"))
    for path, text in zip(
        graphs, (graph_dot(dumps, places), graph_json(dumps, places)), strict=True
    ):
        replace_file(path, [text.encode()])
    return graphs


def looked_up(located: Located, path: Path, golden: Path | None = None) -> Looked:
    """Return modules and source lines of the records of a dump that have a row, by `Root.name` and keys."""
    keys = {each.key for each in located.passed} | {each.key for each in located.shared}
    roots = [*located.roots, *located.silent]
    for root in roots:
        if not root.is_golden:
            keys.update({root.key, root.before} - {""})
    modules, sources = Modules(path.parent), source_lines(path, keys)
    found = {key: (modules.of(key), sources.get(key, "")) for key in keys}
    theirs = {root.key: root.name for root in roots if root.is_golden}
    if golden is not None and theirs:
        modules, sources = Modules(golden.parent), source_lines(golden, set(theirs))
        found |= {name: (modules.of(key), sources.get(key, "")) for key, name in theirs.items()}
    return found


def _told(look: Looked, key: str) -> str:
    """Return where a record is, as the end of a sentence."""
    module, source = look.get(key, _NOWHERE)
    where = "; ".join(filter(None, [f"in {module}" if module else "", source]))
    return f"; {key} is {'at ' if not module else ''}{where}" if where else ""


def _encoded(cells: Sequence[str]) -> bytes:
    return encode_row(
        [encode_name(cell) if i in _NAMED else encode_text(cell) for i, cell in enumerate(cells)]
    )


def location_lines(
    places: Sequence[RootPlace],
    dumps: Sequence[DumpRoots],
    table: Path,
    paths_of_errors: Mapping[str, Path],
    *,
    is_compared: bool,
    unread: Collection[str] = (),
    limit: float | None = None,
) -> Iterator[str]:
    """Yield the closing lines of a search: the first suspects, each with what is known of it. `unread` are
    the dumps that could not be read; `limit` is that of `--standard megengine`, None for another standard."""
    counts: Counter[str] = Counter()
    for dump in dumps:
        counts.update(each.verdict for each in dump.located.passed)
        counts[INHERITED] += dump.located.left_out
    records = sum(dump.located.records for dump in dumps)
    judged = sum(dump.located.judged for dump in dumps)
    yield ""
    if not places and limit is not None and judged:
        yield f"no operator is to blame: no variable has an error above {limit:g}"
    elif not places:
        yield from _nothing(records, judged, counts[UNCHECKED], is_compared=is_compared)
    else:
        yield _headline(places)
    if unread:
        some = ", ".join(sorted(unread)[:_SHOWN]) + (", ..." if len(unread) > _SHOWN else "")
        yield f"{len(unread)} of {len(dumps)} dumps could not be read, and nothing is said of them: {some}"
    for found in places[:_SHOWN]:
        yield from _suspect(found, table, paths_of_errors)
    if len(places) > _SHOWN:
        yield f"and {len(places) - _SHOWN} more"
    told = f"{judged} of {records} records were judged by themselves"
    if counts[INHERITED]:
        told += f"; {counts[INHERITED]} only pass an error on"
    if counts[UNCHECKED]:
        told += f"; {counts[UNCHECKED]} could not be checked (their rows say why)"
    yield told
    yield f"rows: {table}"


def _headline(places: Sequence[RootPlace]) -> str:
    first = places[0].root
    if first.kind.differs_from_start:
        return f"the runs were not given the same ({first.kind.value}); no operator is to blame for that:"
    if first.kind is RootKind.CALL:
        return "the runs are not the same program; what one of them does otherwise comes first:"
    if first.kind is RootKind.GAP:
        return "no captured operator errs; something that was not captured does:"
    if len(places) == 1:
        return "one operator is to blame:"
    return f"{len(places)} suspects, the likeliest first:"


def _nothing(records: int, judged: int, unchecked: int, *, is_compared: bool) -> Iterator[str]:
    if not judged and not is_compared:
        yield f"nothing could be judged of {records} records"
    elif is_compared:
        yield "no operator is to blame: nothing but rounding separates the runs"
    else:
        yield "no operator is to blame: each gave what its inputs and rounding explain"
    if unchecked:
        many = "record" if unchecked == 1 else "records"
        yield f"{unchecked} {many} could not be checked; a golden run (-gp) tells what lies in them"


def _suspect(found: RootPlace, table: Path, errors: Mapping[str, Path]) -> Iterator[str]:
    root, dump = found.root, found.dump
    where = f" ({dump.label})" if dump.step or dump.rank else ""
    if found.of_ranks > 1:
        where = f" (step {dump.step or '0'}, {ranks_in_words(found)})"
    yield _short(f"{found.place}. {root.key}: {root.kind.value}{where}")
    said = []
    if root.own is not None and not math.isnan(root.own) and root.kind not in PLACES:
        said.append(f"own error {_times(root.own)}")
    if root.inherited is not None and not math.isnan(root.inherited):
        said.append(f"inherited {_times(root.inherited)}")
    if root.item or root.index:
        said.append(f"at {with_name(root.key, root.item)}{root.index}")
    if said:
        yield f"   {', '.join(said)}"
    if root.cause:
        yield _short(f"   likely cause: {root.cause}")
    # The message of a replayed call only has in words what stands above.
    if root.message and not (root.cause and root.kind is RootKind.OPERATOR):
        yield _short(f"   {root.message}", _LONGEST_REASON)
    if root.reached:
        yield f"   it reached {root.reached} more record{'s' if root.reached > 1 else ''}"
    module, source, message = row_of_place(found, table)
    if root.before and message != root.message:
        yield _short(f"   {message.removeprefix(root.message).removeprefix('; ')}")
    if module:
        yield _short(f"   in {module}")
    if source:
        yield _short(f"   {source}")
    file = saved_call(found, errors)
    if file is not None:
        yield f"   alone: ray-precheck repro {shlex.quote(str(file))}"


def saved_call(found: RootPlace, errors: Mapping[str, Path]) -> Path | None:
    """Return the file of a root's call, inputs and results, that `repro` makes a script of; None where it
    was not saved. `errors` has the folder of saved tensors by the label of the dump."""
    saved = errors.get(found.dump.label)
    if saved is None or found.root.kind is RootKind.CALL:
        return None
    file = saved / f"{found.root.key.removesuffix(f'.{found.root.direction}')}.json"
    return file if file.exists() else None


def _times(value: float) -> str:
    if value == INFINITE:
        return "beyond all rounding"
    return f"{shown_error(value)} times what rounding explains"


def row_of_place(found: RootPlace, table: Path) -> tuple[str, str, str]:
    """Return the module, the source line and the message of a root, as its row has them."""
    from ray_precheck.store.tables import decode_row

    with open_file(table) as file:
        file.readline()
        for line in file:
            cells = decode_row(line)
            if cells and cells[0] == str(found.place):
                return cells[9], cells[10], cells[12]
    return "", "", ""


def _short(line: str, longest: int = _LONGEST_LINE) -> str:
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


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
ROOT, NEIGHBOUR, PASSED, SHARED, LINK = "root", "neighbour", "passed", "collective", "link"
# A root of the golden run, and those that show in no value of their dump.
GOLDEN_ROOT, SILENT, GOLDEN_SILENT = "golden root", "silent root", "golden silent root"


@dataclass(slots=True)
class LocatedRows:
    """What the journal holds of one dump: `known` is False where it could not be searched."""

    located: Located = field(default_factory=Located)
    looked: dict[str, tuple[str, str]] = field(default_factory=dict)
    message: str = ""
    known: bool = False


def encoded_located(dump: str, located: Located, looked: Looked) -> Iterator[bytes]:
    """Yield the rows of a dump."""
    every = [(root, ROOT, GOLDEN_ROOT) for root in located.roots]
    every += [(root, SILENT, GOLDEN_SILENT) for root in located.silent]
    for root, own_kind, golden_kind in every:
        cells = [
            root.kind.value, encode_name(root.item), number_cell(root.own), number_cell(root.inherited),
            encode_text(root.index), encode_text(root.cause), encode_text(root.message),
            encode_name(root.before), str(root.reached), *_place(root.name, looked),
        ]  # fmt: skip
        kind = golden_kind if root.is_golden else own_kind
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
    if kind in (ROOT, GOLDEN_ROOT, SILENT, GOLDEN_SILENT):
        root = Root(
            RootKind(cells[4]), key, direction, place, decode_name(cells[5]), own, inherited,
            cells[8], cells[9], cells[10], decode_name(cells[11]), _count(cells[12]),
            kind in (GOLDEN_ROOT, GOLDEN_SILENT),
        )  # fmt: skip
        (located.roots if kind in (ROOT, GOLDEN_ROOT) else located.silent).append(root)
        rows.looked[root.name] = where
        return
    rows.looked[key] = where
    if kind == PASSED:
        located.passed.append(Passed(cells[4], key, direction, place, own, inherited, cells[10]))
    elif kind == SHARED:
        meeting, *facts = json.loads(cells[10])
        located.shared.append(SharedRecord(key, direction, place, Meeting(*meeting), *facts))


def _float(cell: str) -> float | None:
    return float(cell) if cell else None
