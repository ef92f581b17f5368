"""The search of dumps without files of tensors, by statistics or sketches: a piece of the job is a pair of
dumps.

Comes in: the pairs of dumps that have no files of tensors. Goes out: a `Job`, its `Opener` and its `Runner`,
and rows in the two tables `PAIR_TABLES`: one for each pair, and one for each root and for each record that
passes an error on. Called by `run`.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.commands.locate.options import SearchOptions
from ray_precheck.commands.locate.plan import plan_location
from ray_precheck.commands.locate.report import (
    PAIR_TABLES,
    LocatedRows,
    encoded_located,
    looked_up,
    read_located,
)
from ray_precheck.commands.locate.search import DumpToLocate, LocationSearch, PartEnd, located_in
from ray_precheck.commands.locate.walk.nouns import INHERITED, Located
from ray_precheck.dump.sketches import SKETCHES
from ray_precheck.errors import DumpError, UsageError
from ray_precheck.foreign import open_file
from ray_precheck.running.dumps_job import DumpsJob, DumpWork, as_told, digest_of_dumps
from ray_precheck.running.run import Feature, RunEnd, planned, run_job
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.progress import Progress
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Done
from ray_precheck.store.resume import RunFiles, remove_run
from ray_precheck.store.settings import reads_of_dumps
from ray_precheck.store.tables import encode_name, encode_row, encode_text
from ray_precheck.trace.side import float32_note, open_side, without_collector
from ray_precheck.trace.sources import CONSTRUCT_FILE

# A core walks through the records of this many bytes of both dumps in a second.
_BYTES_OF_A_SECOND = 16e6
# So many records of all dumps that only pass an error on have rows, and so many of one dump at least.
_MOST_PASSED, _FEWEST_PASSED = 20_000, 100
# The files in the folder of a dump that are read with it.
_BESIDE = (CONSTRUCT_FILE, "stack.json", SKETCHES)


@pickled_by_position
@dataclass(frozen=True, slots=True)
class PairPayload:
    """A pair of dumps to search. `most` records that pass an error on, and as many of collectives, have
    rows."""

    index: int
    name: str
    target: Path
    golden: Path
    options: SearchOptions
    is_first_step: bool
    most: int

    @property
    def paths(self) -> tuple[Path, ...]:
        """Both dumps."""
        return self.target, self.golden


def dump_pairs_job(
    pairs: Sequence[DumpToLocate],
    options: SearchOptions,
    *,
    first_step: str = "",
    shared_fs: bool = False,
) -> DumpsJob[PairPayload]:
    """Return pairs of dumps as a job. `shared_fs`: every machine sees them by the same paths."""
    work = DumpWork(PAIR_TABLES, search, _done, _BYTES_OF_A_SECOND, Verdict.SKIP, _BESIDE)
    most = max(_FEWEST_PASSED, _MOST_PASSED // max(1, len(pairs)))
    payloads = [
        PairPayload(
            index, each.label, each.target.absolute(), (each.golden or each.target).absolute(), options,
            each.step == first_step, most,
        )
        for index, each in enumerate(pairs)
    ]  # fmt: skip
    return DumpsJob(work, payloads, shared_fs=shared_fs)


def search(payload: PairPayload, paths: tuple[Path, ...]) -> Done:
    """Return the rows of a pair: where errors begin, and what passes them on.

    `paths` are where both stand on this machine. A pair that cannot be read is SKIP and has no number of
    records.
    """
    began_s, start = time.time(), time.perf_counter()
    try:
        with (
            without_collector(),
            open_side(str(paths[0])) as target,
            open_side(str(paths[1])) as golden,
        ):
            plan = plan_location(target, golden, payload.options)
            located = located_in(target, golden, plan, None, is_first_step=payload.is_first_step)
            notes = [
                each for each in (target.note, golden.note, float32_note(target, golden)) if each
            ]
            _shorten(located, payload.most)
            rows = list(_rows(payload, located, target.path, golden.path))
    except (DumpError, UsageError, OSError) as error:
        return _done(payload, Verdict.SKIP, as_told(str(error), paths, payload.paths))
    said = as_told("; ".join(notes), paths, payload.paths)
    verdict = Verdict.ERROR if located.roots else Verdict.PASS
    return _done(payload, verdict, said, located, rows, began_s, start)


def _shorten(located: Located, most: int) -> None:
    """Leave out what only passes an error on, beyond so many records; others always stay."""
    kept = 0
    passed = []
    for each in located.passed:
        kept += each.verdict == INHERITED
        if each.verdict != INHERITED or kept <= most:
            passed.append(each)
    located.left_out = len(located.passed) - len(passed)
    located.passed = passed
    located.shared_left_out = max(0, len(located.shared) - most)
    del located.shared[most:], located.edges[most:]


def _rows(payload: PairPayload, located: Located, path: Path, golden: Path) -> Iterator[bytes]:
    yield from encoded_located(payload.name, located, looked_up(located, path, golden))


def _done(
    payload: PairPayload,
    verdict: Verdict,
    message: str,
    located: Located | None = None,
    rows: Sequence[bytes] = (),
    began_s: float = 0.0,
    start: float = 0.0,
) -> Done:
    counts = [""] * 6
    if located is not None:
        roots = located.roots
        counts = [
            str(located.records), str(located.judged), str(located.compared), str(len(roots)),
            encode_name(roots[0].key) if roots else "", str(located.left_out),
        ]  # fmt: skip
    shared = str(located.shared_left_out) if located is not None else ""
    cells = [encode_name(payload.name), verdict.value, *counts, shared, encode_text(message)]
    took_s = time.perf_counter() - start if start else 0.0
    return Done(
        payload.index, payload.name, verdict, encode_row(cells), b"".join(rows), began_s,
        device_s=took_s,
    )  # fmt: skip


_HEAD_BYTES, _FIRST_RECORDS_BYTES = 1 << 12, 1 << 18


def has_tensor_files(dump: Path) -> bool:
    """Return whether a dump has its tensors in files, as its head says or its first records show."""
    try:
        with open_file(dump) as file:
            head = file.read(_FIRST_RECORDS_BYTES)
    except OSError:
        return False
    said = head[:_HEAD_BYTES].replace(b" ", b"")
    return b'"data_name"' in head or b'"task":"tensor"' in said


def search_pairs(
    pairs: Sequence[DumpToLocate], search: LocationSearch
) -> PartEnd[dict[str, LocatedRows]]:
    """Search pairs of dumps, or resume that.

    Raises:
        DumpError: none of the pairs could be searched; a new run leaves no file.
        StoppedError: the run stopped before a row was written.
    """
    resumed = search.session.resumed(search.folder, PAIR_TABLES)
    feature = _Pairs(pairs, search)
    return run_job(feature, search.config, search.session, search.folder, resumed)


class _Pairs(Feature[DumpsJob[PairPayload], PartEnd[dict[str, LocatedRows]]]):
    """Pairs of dumps, each searched as a whole."""

    tables = PAIR_TABLES

    def __init__(self, pairs: Sequence[DumpToLocate], search: LocationSearch) -> None:
        self._job = dump_pairs_job(
            pairs,
            search.options,
            first_step=search.first_step,
            shared_fs=search.config.shared_fs,
        )
        self.names = self._job.names
        labelled = [
            (pair.label, [each for each in (pair.target, pair.golden) if each]) for pair in pairs
        ]
        self.fingerprint = search.fingerprint(pairs=digest_of_dumps(labelled))
        self.reads = reads_of_dumps(labelled, tensors=False)
        cost_s = sum(task.cost_s for task in self._job.tasks(set()))
        self.places = search.session.cores_for(search.config, "pytorch", cost_s)

    @property
    def is_shown(self) -> bool:
        return len(self.names) > 1

    def job(self, files: RunFiles, done: set[str]) -> DumpsJob[PairPayload]:
        return self._job

    def plan(self, job: DumpsJob[PairPayload], done: set[str], progress: Progress) -> TaskPlan:
        return planned(job, job.tasks(done), self.places)

    def report(self, files: RunFiles, end: RunEnd) -> PartEnd[dict[str, LocatedRows]]:
        if not end.completed:
            return PartEnd(None, False, end.stop_reason)
        found = read_located(files.result, files.details)
        if not any(rows.known for rows in found.values()):
            if end.is_new:
                remove_run(files)
            raise DumpError(next((rows.message for rows in found.values()), "no dump was searched"))
        return PartEnd(found)
