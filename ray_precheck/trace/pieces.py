"""The pairs of records that a comparison looks at, in the order of its rows.

Comes in: two captures and how their calls are aligned. Goes out: a `RecordPair` for each pair of records, and
for each record that has no partner. Called by the job that compares captures. Every record of both sides is
in a piece.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ray_precheck.trace.alignment.align import How, Match
from ray_precheck.trace.alignment.calls import Call
from ray_precheck.trace.side import CaptureSide, RecordEntry

# Behind the key of a record that only the golden side has: its name must not be that of a target's.
GOLDEN_ONLY = "@golden"


class RecordPair(NamedTuple):
    """Records of both sides that belong together; one side is empty where there is no partner.

    `name` is unique: the key of the first record of the target, or that of the golden side with
    `GOLDEN_ONLY`. A fusion has several records on one side.
    """

    name: str
    target: tuple[RecordEntry, ...]
    golden: tuple[RecordEntry, ...]
    how: How
    note: str = ""


def pieces_of(
    target: CaptureSide,
    golden: CaptureSide,
    calls: tuple[Sequence[Call], Sequence[Call]],
    matches: Iterable[Match],
) -> list[RecordPair]:
    """Return the pieces: those of the target's records in the order of its file, and each record that
    only the golden side has behind the record before it on that side."""
    here, there = _by_call(target), _by_call(golden)
    found: list[RecordPair] = []
    for match in matches:
        own = [here[calls[0][position].name] for position in match.target]
        other = [there[calls[1][position].name] for position in match.golden]
        found += _of_match(own, other, match)
    return _in_order(found, target, golden)


def _by_call(side: CaptureSide) -> dict[str, dict[str, RecordEntry]]:
    """Return the records of each call by direction."""
    found: dict[str, dict[str, RecordEntry]] = {}
    for entry in side.entries:
        found.setdefault(entry.call, {})[entry.direction] = entry
    return found


def _of_match(
    own: Sequence[dict[str, RecordEntry]], other: Sequence[dict[str, RecordEntry]], match: Match
) -> Iterable[RecordPair]:
    if len(own) == len(other) == 1 and own[0].keys() == other[0].keys():
        # Nearly all of them: a call with one partner, and the same directions on both sides.
        for direction, entry in own[0].items():
            pair = (entry,), (other[0][direction],)
            yield RecordPair(entry.key, *pair, match.how, match.note)
        return
    directions = dict.fromkeys(each for call in (*own, *other) for each in call)
    for direction in directions:
        target = tuple(call[direction] for call in own if direction in call)
        golden = tuple(call[direction] for call in other if direction in call)
        piece = RecordPair(_name(target, golden), target, golden, match.how, match.note)
        if own and other and not (target and golden):
            lacking = "golden side" if target else "target"
            note = f"the {lacking} has no {direction or 'such'} record of this call"
            piece = piece._replace(how=How.UNMATCHED, note=note)
        yield piece


def _name(target: Sequence[RecordEntry], golden: Sequence[RecordEntry]) -> str:
    return target[0].key if target else f"{golden[0].key}{GOLDEN_ONLY}"


def _in_order(
    pieces: Sequence[RecordPair], target: CaptureSide, golden: CaptureSide
) -> list[RecordPair]:
    place = {entry.key: position for position, entry in enumerate(target.entries)}
    theirs = {entry.key: position for position, entry in enumerate(golden.entries)}
    ours = [piece for piece in pieces if piece.target]
    ours.sort(key=lambda piece: place[piece.target[0].key])
    others = [piece for piece in pieces if not piece.target]
    if not others:
        return ours
    others.sort(key=lambda piece: theirs[piece.golden[0].key])
    before = _before(ours, golden)
    behind: dict[str, list[RecordPair]] = {}
    for piece in others:
        behind.setdefault(before[piece.golden[0].key], []).append(piece)
    found = behind.pop("", [])
    for piece in ours:
        found.append(piece)
        found += behind.pop(piece.name, ())
    return found


def _before(ours: Sequence[RecordPair], golden: CaptureSide) -> dict[str, str]:
    """Return for each record of the golden side the piece of the record before it that has one; "" for
    none."""
    of_key: dict[str, str] = {}
    for piece in ours:
        for entry in piece.golden:
            of_key.setdefault(entry.key, piece.name)
    found, last = {}, ""
    for entry in golden.entries:
        found[entry.key] = last
        last = of_key.get(entry.key, last)
    return found
