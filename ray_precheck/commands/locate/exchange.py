"""The collectives of a run, each one recomputed in float64 from what all of its ranks brought.

Comes in: the records of collectives of all dumps with files of tensors. Goes out: a `Recomputed` for each
rank's record, and rows in the two tables `EXCHANGE_TABLES`: one for each collective, and one for each rank in
it. Called by `run` when the calls of all dumps are there. The journal is
`OUT/locate_collectives_calls_{timestamp}.csv` and `OUT/locate_collectives_ranks_{timestamp}.csv`. No worker
is asked, so this is no `Job`: nearly all of the time goes into reading.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.commands.locate.exchange_judging import OpenedTensors, judged_output
from ray_precheck.commands.locate.plan import call_entries
from ray_precheck.commands.locate.search import LocationSearch, PartEnd
from ray_precheck.commands.locate.walk.collectives import Recomputed
from ray_precheck.dump.mapped import MappedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.running.run import Feature, RunEnd, run_job
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.progress import Progress
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Done
from ray_precheck.store.repair import decoded_rows
from ray_precheck.store.resume import RunFiles
from ray_precheck.store.tables import Tables, decode_name, encode_name, encode_row, encode_text
from ray_precheck.trace.flow.exchange import (
    RankRecord,
    made_by,
)
from ray_precheck.trace.flow.meetings import Meeting, meetings_of
from ray_precheck.trace.side import CaptureSide, record_from_json

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
        for each in exchanges:
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
