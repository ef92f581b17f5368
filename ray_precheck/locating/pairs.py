"""The search of dumps without files of tensors, from their pairs to what was found in each.

Comes in: the pairs of a search, and what its parts share. Goes out: the `LocatedRows` of each pair, by its
label. Called by `run`. The pairs are one job, whose journal is `OUT/locate_dumps_{timestamp}.csv` and
`OUT/locate_roots_{timestamp}.csv`.
"""

from collections.abc import Sequence
from pathlib import Path

from ray_precheck.errors import DumpError
from ray_precheck.foreign import open_file
from ray_precheck.jobs.dumps.job import DumpsJob, digest_of_dumps
from ray_precheck.jobs.location.dumps import DumpToLocate
from ray_precheck.jobs.location.pairs import PairPayload, dump_pairs_job
from ray_precheck.jobs.location.rows import PAIR_TABLES, LocatedRows, read_located
from ray_precheck.locating.search import LocationSearch
from ray_precheck.runtime.driving import RunSetting, drive_to_end, planned
from ray_precheck.runtime.places.choice import find_places
from ray_precheck.runtime.progress import Progress
from ray_precheck.store.opening import OpenedRun, opened_run
from ray_precheck.store.reads import reads_of_dumps

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
) -> dict[str, LocatedRows] | None:
    """Search pairs of dumps, or go on with that; returns None if it was stopped on request.

    Raises:
        DumpError: none of the pairs could be searched; a new run leaves no file.
        StoppedError: the run had to stop.
    """
    config, folder = search.config, search.folder
    job = dump_pairs_job(
        pairs,
        exact=search.is_exact,
        first_step=search.first_step,
        shared_fs=config.shared_fs,
    )
    resumed = search.resumed(folder, PAIR_TABLES)
    labelled = [(pair.label, filter(None, (pair.target, pair.golden))) for pair in pairs]
    fingerprint = search.fingerprint(pairs=digest_of_dumps(labelled))
    new = search.shared.new_files(folder)
    reads = reads_of_dumps(
        ((pair.label, [each for each in (pair.target, pair.golden) if each]) for pair in pairs),
        tensors=False,
    )
    with opened_run(
        resumed, new, set(job.names), fingerprint, config, PAIR_TABLES, reads
    ) as opened:
        files = opened.files
        search.on_files(files.result)
        if not _drive(search, job, opened):
            return None
        found = read_located(files.result, files.details)
        if not any(rows.known for rows in found.values()):
            if opened.is_new:
                for path in (files.result, files.details, files.settings, files.timeline):
                    path.unlink(missing_ok=True)
            raise DumpError(next((rows.message for rows in found.values()), "no dump was searched"))
        return found


def _drive(search: LocationSearch, job: DumpsJob[PairPayload], opened: OpenedRun) -> bool:
    config, shared, tasks = search.config, search.shared, job.tasks(opened.done)
    places = None
    if search.is_done_here(sum(task.cost_s for task in tasks)):
        planning = planned((), job.settled(tasks))
    else:
        places = find_places(config, "pytorch", shared.cluster, show=search.show, device_runs=False)
        planning = planned(tasks)
    show = search.show and len(job.names) > 1
    progress = Progress(len(job.names), len(opened.done), show=show)
    setting = RunSetting(
        config, shared.cluster, places, opened.files, progress, shared.stop_requested
    )
    end = drive_to_end(job, planning, setting, is_new=opened.is_new)
    end.require_end()
    return end.completed
