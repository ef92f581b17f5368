"""The files of a run, made or gone on with, and held until the run ends.

Comes in: the result table to go on in, or the folder and the stamp of a new run. Goes out: an `OpenedRun`.
Called by the sessions, of each job that writes two tables.
"""

import contextlib
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ray_precheck.dump.cut_short import heard_cuts
from ray_precheck.options.job import ResumeOptions
from ray_precheck.store.reads import Reads, stamps_of
from ray_precheck.store.resume import RunFiles, hold_files, resume_run, run_files, start_run
from ray_precheck.store.settings import RunSettings, note_cuts
from ray_precheck.store.tables import API_TABLES, Tables


class NewFiles(NamedTuple):
    """Where the files of a new run are made, and the stamp in their names.

    With `goes_on` the stamp is that of an earlier part of the same run: what was killed there before its
    first result row is removed, so that it does not keep the stamp.
    """

    folder: Path
    stamp: str
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """The files of a run, the names that are done in them, and whether they are new."""

    files: RunFiles
    done: set[str]
    is_new: bool


@contextlib.contextmanager
def opened_run(
    resumed: Path | None,
    new: NewFiles,
    names: Set[str],
    fingerprint: dict[str, str],
    options: ResumeOptions,
    tables: Tables = API_TABLES,
    reads: Reads | None = None,
) -> Iterator[OpenedRun]:
    """Hold the files of a run, so that no other run takes them while the block runs.

    `resumed` is the result table of the run to go on with; None makes new files. `names` are all pieces of
    the run, `fingerprint` the settings that must be the same, `reads` the files that must be, too.

    Raises:
        UsageError: the folder of new files cannot be made or written.
        ResumeError: the files cannot be gone on with, or another run has them; see `resume_run`.
        StoppedError: the disk is full.
    """
    cuts = heard_cuts(getattr(options, "dump", None))
    if resumed is None:
        with contextlib.ExitStack() as held:
            now = RunSettings(fingerprint, reads=stamps_of(reads or {}))
            files = _begun(new, now, tables, held)
            note_cuts(files.settings, cuts)
            yield OpenedRun(files, set(), True)
        return
    with hold_files(run_files(resumed, tables)) as files:
        force, retry = options.force, options.retry
        done = resume_run(
            files, names, fingerprint, force=force, retry=retry, tables=tables, reads=reads or {}
        )
        note_cuts(files.settings, cuts)
        yield OpenedRun(files, done, False)


def _begun(
    new: NewFiles, settings: RunSettings, tables: Tables, held: contextlib.ExitStack
) -> RunFiles:
    """Make the files of a new run, which are this process's until `held` is closed."""
    before = run_files(new.folder / tables.file("result", new.stamp), tables)
    if not (new.goes_on and (before.settings.exists() or before.details.exists())):
        return held.enter_context(hold_files(start_run(new.folder, new.stamp, settings, tables)))
    # Held before anything of it is removed: it may be another process that has just begun.
    before = held.enter_context(hold_files(before))
    if not before.result.exists() and not _others(before, tables):
        with contextlib.suppress(OSError):
            for path in (before.details, before.timeline, before.settings):
                path.unlink(missing_ok=True)
    files = start_run(new.folder, new.stamp, settings, tables)
    return before if files.result == before.result else held.enter_context(hold_files(files))


def _others(files: RunFiles, tables: Tables) -> list[Path]:
    """Return further tables of the same stem and stamp, whose run has the same settings file."""
    stamp = files.errors.name
    tables_there = files.result.parent.glob(f"{tables.stem}_*_{stamp}.csv")
    return [path for path in tables_there if path not in (files.result, files.details)]
