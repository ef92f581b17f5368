"""The collectives of a run, each one recomputed in float64 from what all of its ranks brought.

Comes in: the records of collectives of all dumps with files of tensors. Goes out: a `Recomputed` for each
rank's record, and rows in the two tables `EXCHANGE_TABLES`: one for each collective, and one for each rank in
it. Called by `run` when the calls of all dumps are there. The journal is
`OUT/locate_collectives_calls_{timestamp}.csv` and `OUT/locate_collectives_ranks_{timestamp}.csv`. No worker
is asked, so this is no `Job`: nearly all of the time goes into reading.

Whether what a rank got of a collective is what all ranks brought. Tensors are read in pieces.

A sum of N numbers in floating point, in any order, is within (N - 1) u of the exact one times the sum of
the absolute values, where u is half the distance of 1 to the next number (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., section 4.2); two more roundings are allowed, for the division of a mean and
for a result that was rounded once more. What is only copied, the largest and the smallest must agree.
"""

import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ray_precheck.commands.locate.search import LocationSearch, PartEnd
from ray_precheck.commands.locate.walk.collectives import Recomputed
from ray_precheck.commands.locate.walk.nouns import INFINITE
from ray_precheck.dump.mapped import MappedTensor, MappedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.numerics.arrays import pieces, same_values, smallest_subnormal, unit_roundoff
from ray_precheck.running.run import Feature, RunEnd, run_job
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.progress import Progress
from ray_precheck.schema.dtypes import DTYPES, Array, is_differentiable
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Done
from ray_precheck.store.journal import decoded_rows
from ray_precheck.store.tables import (
    RunFiles,
    Tables,
    decode_name,
    encode_name,
    encode_row,
    encode_text,
)
from ray_precheck.trace.difference.measuring import open_item
from ray_precheck.trace.exchange import (
    LARGEST,
    MEAN,
    PRODUCT,
    SMALLEST,
    Made,
    RankRecord,
    made_by,
)
from ray_precheck.trace.flow import Meeting, meetings_of, uneven_ends
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import CaptureSide, call_entries, record_from_json

_MORE_ROUNDINGS = 2


class OpenedTensors:
    """The tensors of all ranks, each mapped once."""

    def __init__(self, files: dict[int, MappedTensors]) -> None:
        self._files = files
        self._known: dict[tuple[int, str], MappedTensor] = {}

    def of(self, rank: int, item: Item) -> MappedTensor:
        """Return a tensor of a rank.

        Raises:
            NotCheckable: it cannot be read.
        """
        key = rank, item.file
        if key not in self._known:
            self._known[key] = open_item(item, self._files[rank])
        return self._known[key]


@dataclass(slots=True)
class _Worst:
    """The largest error so far, in units of what rounding explains."""

    own: float = 0.0
    at: int = -1
    got: float = 0.0
    expected: float = 0.0
    wrong: int = 0


def judged_output(made: Made, files: OpenedTensors, key: str, place: int) -> Recomputed:
    """Compare what a rank got with what all ranks brought, in pieces.

    Raises:
        NotCheckable: a tensor cannot be read, or the sizes do not fit.
    """
    given = files.of(made.rank, made.item)
    worst = _Worst()
    offset = 0
    for parts in made.pieces:
        count = parts[0].length
        tensors = [files.of(part.rank, part.item) for part in parts]
        for tensor, part in zip(tensors, parts, strict=True):
            if part.length != count or part.start + count > len(tensor.raw):
                raise NotCheckable("the ranks brought tensors of other sizes")
        if offset + count > len(given.raw):
            raise NotCheckable("it gave less than the ranks brought")
        for piece in pieces(count):
            low, high = piece.start, piece.stop
            got = _wide(given, offset + low, offset + high)
            brought = [
                _wide(tensor, part.start + low, part.start + high)
                for tensor, part in zip(tensors, parts, strict=True)
            ]
            _take(worst, got, brought, made.operation, given.dtype, offset + low)
        offset += count
    said = ""
    is_wrong = worst.own > 1.0
    if is_wrong:
        said = _sentence(made, worst, len(given.raw))
    index = ""
    if worst.at >= 0:
        at = np.unravel_index(worst.at, made.item.shape or (1,))
        index = f"[{', '.join(str(int(each)) for each in at)}]" if made.item.shape else ""
    return Recomputed(key, place, worst.own, is_wrong, made.item.path, index, said)


def _wide(tensor: MappedTensor, low: int, high: int) -> Array:
    """Return elements as float64, complex128 or int64."""
    some = tensor.carrier(tensor.raw[low:high])
    kind = DTYPES[tensor.dtype].kind
    wide = {"float": np.float64, "complex": np.complex128}.get(kind, np.int64)
    return some.astype(wide)


def _take(
    worst: _Worst, got: Array, brought: Sequence[Array], operation: str, dtype: str, start: int
) -> None:
    """Take a piece into account; where a sum of half precision may have overflowed on its way, nothing is
    said."""
    with np.errstate(all="ignore"):
        expected, allowed = _expected(brought, operation, dtype)
        error = np.abs(got - expected)
        same = same_values(got, expected)
        share = np.where(same, 0.0, error / np.where(allowed > 0, allowed, 1.0))
        share = np.where(~same & ((allowed == 0) | np.isnan(share)), INFINITE, share)
        largest = DTYPES[dtype].largest or math.inf
        if len(brought) > 1 and DTYPES[dtype].kind in ("float", "complex"):
            total = np.sum(np.abs(np.stack(brought)), axis=0)
            share = np.where(total > largest, 0.0, share)
    worst.wrong += int(np.count_nonzero(share > 1.0))
    if len(share) and (top := float(np.max(share))) > worst.own:
        at = int(np.argmax(share))
        worst.own, worst.at = top, start + at
        worst.got, worst.expected = float(np.real(got[at])), float(np.real(expected[at]))


def _expected(brought: Sequence[Array], operation: str, dtype: str) -> tuple[Array, Array]:
    """Return what an operation makes of its parts, and how far rounding may take it."""
    stacked = np.stack(brought)
    number = len(brought)
    exact = np.zeros(stacked.shape[1:])
    if number == 1:
        return stacked[0], exact
    if operation == LARGEST:
        return np.max(stacked, axis=0), exact
    if operation == SMALLEST:
        return np.min(stacked, axis=0), exact
    if not is_differentiable(dtype):
        return (np.prod if operation == PRODUCT else np.sum)(stacked, axis=0), exact
    unit = (number - 1 + _MORE_ROUNDINGS) * unit_roundoff(dtype)
    tiny = number * smallest_subnormal(dtype)
    if operation == PRODUCT:
        product = np.prod(stacked, axis=0)
        return product, unit * np.abs(product) + tiny
    share = 1.0 / number if operation == MEAN else 1.0
    total = np.sum(np.abs(stacked), axis=0) * share
    return np.sum(stacked, axis=0) * share, unit * total + tiny


def _sentence(made: Made, worst: _Worst, size: int) -> str:
    ranks = len(made.pieces[0])
    of = f"the {made.operation} of {ranks} ranks" if ranks > 1 else "the copy"
    return (
        f"{worst.wrong} of {size} elements are not {of} of what the ranks brought: {worst.got:.6g} where"
        f" {worst.expected:.6g} is right; the collective itself is wrong"
    )


# `locate_collectives_calls_{timestamp}.csv` and `locate_collectives_ranks_{timestamp}.csv`.
EXCHANGE_TABLES = Tables(
    "locate_collectives",
    ("Collective", "Result", "Ranks", "Message"),
    ("Dump", "Record", "Place", "Verdict", "Value", "Own Error", "Index", "Message", "Collective"),
    detail_parts=None,
    verdicts=1,
    needs_details=False,
    words=("calls", "ranks"),
)


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A rank's record of a collective, with the folder of its tensors; `dump` is the label of the dump."""

    dump: str
    step: str
    rank: int
    key: str
    place: int
    meeting: Meeting
    raw: bytes
    folder: Path


def exchanges_of(side: CaptureSide, dump: str, step: str, rank: str) -> list[Exchanged]:
    """Return the collectives of an open capture."""
    known = meetings_of(side)
    number = int(rank) if rank.isdigit() else 0
    folder = side.data_folder.absolute()
    return [
        Exchanged(dump, step, number, entry.key, place, known[entry.key], side.raw(entry), folder)
        for place, entry in enumerate(call_entries(side))
        if entry.key in known
    ]


class WholeExchanges:
    """The collectives whose ranks are all there, by their names."""

    def __init__(self, exchanges: Iterable[Exchanged]) -> None:
        self.tables = EXCHANGE_TABLES
        met: dict[str, list[Exchanged]] = defaultdict(list)
        all_of = list(exchanges)
        uneven = {
            (step, *ends)
            for step in {each.step for each in all_of}
            for ends in uneven_ends(
                (each.rank, each.meeting) for each in all_of if each.step == step
            )
        }
        for each in all_of:
            if (each.step, each.meeting.ends_on(each.rank), each.meeting.group) not in uneven:
                met[f"step{each.step or 0} {each.meeting.name_on(each.rank)}"].append(each)
        self._met = {name: _in_group(some) for name, some in met.items() if _is_whole(some)}
        self.names = list(self._met)

    def of(self, name: str) -> Sequence[Exchanged]:
        """Return the records of a collective, in the order of the ranks."""
        return self._met[name]

    def rows(self, done: Container[str]) -> Iterator[Done]:
        """Yield the rows of the collectives that are not in `done`, each recomputed when it is asked for."""
        for index, name in enumerate(self.names):
            if name not in done:
                yield recomputed(index, name, self._met[name])


def _is_whole(some: Sequence[Exchanged]) -> bool:
    """Return whether the records of all ranks of a group are there."""
    ranks = {each.rank for each in some}
    meeting = some[0].meeting
    return len(ranks) == len(some) > 1 and set(meeting.ranks) <= ranks


def _in_group(some: Sequence[Exchanged]) -> list[Exchanged]:
    return sorted(some, key=lambda each: each.rank)


def recomputed(index: int, name: str, some: Sequence[Exchanged]) -> Done:
    """Return the rows of a collective: what each rank got, against what all of them brought."""
    began_s, start = time.time(), time.perf_counter()
    records = [RankRecord(each.rank, record_from_json(each.raw)) for each in some]
    of_rank = {each.rank: each for each in some}
    made = made_by(some[0].meeting.operation, records)
    if not made:
        said = "its results cannot be recomputed: they were not captured, or it is not known what it does"
        return _done(index, name, Verdict.SKIP, some, said)
    found: dict[int, Recomputed] = {}
    said = ""
    files = OpenedTensors({each.rank: MappedTensors(each.folder) for each in some})
    for each in made:
        try:
            judged = judged_output(each, files, of_rank[each.rank].key, of_rank[each.rank].place)
        except NotCheckable as reason:
            said = f"rank {each.rank}: {reason}"
            continue
        held = found.get(each.rank)
        if held is None or judged.own > held.own:
            found[each.rank] = judged
    rows = b"".join(_row(name, of_rank[rank].dump, each) for rank, each in sorted(found.items()))
    wrong = [rank for rank, each in found.items() if each.is_wrong]
    verdict = Verdict.ERROR if wrong else (Verdict.PASS if found else Verdict.SKIP)
    return _done(index, name, verdict, some, said, rows, began_s, time.perf_counter() - start)


def _row(name: str, dump: str, each: Recomputed) -> bytes:
    return encode_row(
        [
            encode_name(dump), encode_name(each.key), str(each.place),
            (Verdict.ERROR if each.is_wrong else Verdict.PASS).value, encode_name(each.item),
            repr(each.own), encode_text(each.where), encode_text(each.message), encode_name(name),
        ]
    )  # fmt: skip


def _done(
    index: int,
    name: str,
    verdict: Verdict,
    some: Sequence[Exchanged],
    message: str,
    rows: bytes = b"",
    began_s: float = 0.0,
    took_s: float = 0.0,
) -> Done:
    row = encode_row([encode_name(name), verdict.value, str(len(some)), encode_text(message)])
    return Done(index, name, verdict, row, rows, began_s, device_s=took_s)


def read_recomputed(path: Path) -> dict[str, list[Recomputed]]:
    """Read the table of the ranks: what is known of the collectives of each dump, by its label."""
    found: dict[str, list[Recomputed]] = defaultdict(list)
    for cells in decoded_rows(path, EXCHANGE_TABLES.details):
        dump, key, place, verdict, item, own, where, message, _ = cells
        found[decode_name(dump)].append(
            Recomputed(
                decode_name(key), int(place), float(own), verdict == Verdict.ERROR.value,
                decode_name(item), where, message,
            )
        )  # fmt: skip
    return dict(found)


def recompute_exchanges(
    exchanges: Iterable[Exchanged], search: LocationSearch
) -> PartEnd[dict[str, list[Recomputed]]]:
    """Recompute the collectives whose ranks are all there, in this process, because all of it is reading.

    Raises:
        StoppedError: the run stopped before a row was written.
    """
    feature = _Collectives(list(exchanges), search)
    if not feature.names:
        return PartEnd({})
    resumed = search.session.resumed(search.folder, EXCHANGE_TABLES)
    return run_job(feature, search.config, search.session, search.folder, resumed)


class _Collectives(Feature[WholeExchanges, PartEnd[dict[str, list[Recomputed]]]]):
    """The collectives of a search, each recomputed from what all its ranks brought."""

    tables = EXCHANGE_TABLES

    def __init__(self, exchanges: Sequence[Exchanged], search: LocationSearch) -> None:
        self._whole, self._search = WholeExchanges(exchanges), search
        self.names = self._whole.names
        self.fingerprint = search.fingerprint(collectives=_digest(self._whole))
        self.reads = {each.dump: each.folder for each in exchanges}

    def to_go_on_with(self, files: RunFiles) -> Path:
        return self._search.folder

    def job(self, files: RunFiles, done: set[str]) -> WholeExchanges:
        return self._whole

    def plan(self, job: WholeExchanges, done: set[str], progress: Progress) -> TaskPlan:
        return TaskPlan((), job.rows(done))

    def report(self, files: RunFiles, end: RunEnd) -> PartEnd[dict[str, list[Recomputed]]]:
        if not end.completed:
            return PartEnd(None, False, end.stop_reason)
        return PartEnd(read_recomputed(files.details))


def _digest(whole: WholeExchanges) -> str:
    """Return what tells these collectives from others: their names, and the records of all ranks."""
    state = hashlib.sha256()
    for name in whole.names:
        state.update(f"{name}\0".encode())
        for each in whole.of(name):
            state.update(each.raw)
    return state.hexdigest()[:32]
