"""The search of dumps without files of tensors, from their pairs to what was found in each.

Comes in: the pairs of a search, and what its parts share. Goes out: the `LocatedRows` of each pair, by its
label. Called by `run`. The pairs are one job, whose journal is `OUT/locate_dumps_{timestamp}.csv` and
`OUT/locate_roots_{timestamp}.csv`.
"""

from collections.abc import Sequence
from pathlib import Path

from ray_precheck.commands.locate.search import LocationSearch, PartEnd
from ray_precheck.commands.locate.work.dumps import DumpToLocate
from ray_precheck.commands.locate.work.pairs import PairPayload, dump_pairs_job
from ray_precheck.commands.locate.work.rows import PAIR_TABLES, LocatedRows, read_located
from ray_precheck.errors import DumpError
from ray_precheck.foreign import open_file
from ray_precheck.running.dumps_job import DumpsJob, digest_of_dumps
from ray_precheck.running.run import Feature, RunEnd, planned, run_job
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.progress import Progress
from ray_precheck.store.reads import reads_of_dumps
from ray_precheck.store.resume import RunFiles, remove_run

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
    """Search pairs of dumps, or go on with that.

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
