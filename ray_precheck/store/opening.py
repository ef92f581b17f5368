"""The files of a run, made or gone on with, and held until the run ends.

Comes in: the result table to go on in, or the folder and the stamp of a new run. Goes out: an `OpenedRun`.
Called by the sessions, of each job that writes two tables.
"""

import contextlib
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.options.files import ResumeOptions
from ray_precheck.store.resume import RunFiles, hold_files, resume_run, run_files, start_run
from ray_precheck.store.tables import API_TABLES, Tables


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """The files of a run, the names that are done in them, and whether they are new."""

    files: RunFiles
    done: set[str]
    is_new: bool


@contextlib.contextmanager
def opened_run(
    resumed: Path | None,
    new: tuple[Path, str],
    names: Set[str],
    fingerprint: dict[str, str],
    options: ResumeOptions,
    tables: Tables = API_TABLES,
) -> Iterator[OpenedRun]:
    """Hold the files of a run, so that no other run takes them while the block runs.

    `resumed` is the result table of the run to go on with; None makes files in the folder `new[0]` with the
    stamp `new[1]`. `names` are all pieces of the run, `fingerprint` the settings that must be the same.

    Raises:
        UsageError: the folder of new files cannot be made or written.
        ResumeError: the files cannot be gone on with, or another run has them; see `resume_run`.
        StoppedError: the disk is full.
    """
    if resumed is None:
        with hold_files(start_run(*new, fingerprint, tables)) as files:
            yield OpenedRun(files, set(), True)
        return
    with hold_files(run_files(resumed, tables)) as files:
        force, retry = options.force, options.retry
        done = resume_run(files, names, fingerprint, force=force, retry=retry, tables=tables)
        yield OpenedRun(files, done, False)


def results_folder(out: Path, resumed: Path | None) -> Path:
    """Return the folder of the results of several tables: `out`, or that of the run to go on with, which is
    named by its folder or one of its tables."""
    if resumed is None:
        return out
    return resumed.parent if resumed.is_file() else resumed
