"""The files of a run, made or gone on with, and held until the run ends.

Comes in: the result table to go on in, or the folder and the stamp of a new run. Goes out: an `OpenedRun`.
Called by the sessions, of each job that writes two tables.

Also here: the time stamps that name the files of a run.
"""

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ray_precheck.dump.folders import heard_cuts
from ray_precheck.errors import UsageError
from ray_precheck.options.shared import ResumeOptions
from ray_precheck.store.resume import (
    RESULT_STEM,
    RunFiles,
    hold_files,
    resume_run,
    run_files,
    start_run,
)
from ray_precheck.store.settings import Reads, RunSettings, note_cuts, stamps_of
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


_FORMAT = "%Y%m%d%H%M%S"
# What a second run in the same second has behind the time.
_STAMP = re.compile(r"_(\d{14}(?:_\d+)?)$")


def new_stamp() -> str:
    """Return the time now as a stamp."""
    return time.strftime(_FORMAT)


@contextlib.contextmanager
def reserved_stamp(folder: Path, stem: str, places: Iterable[Path] = ()) -> Iterator[str]:
    """Hold a new stamp that no file in the folder has, and none in `places` below it, for a run that writes
    several tables with one stamp.

    Until the block ends, `{stem}_{stamp}.reserved` keeps it from other runs that begin in the same second. A
    folder that was made for that and is empty in the end is removed.

    Raises:
        UsageError: the folder is a file, or cannot be made or written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"out path {folder} is a file; name a folder for the results")
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _reserved(folder, stem, places)
    except OSError as error:
        raise UsageError(
            f"cannot write to the out path {folder}: {error.strerror}; name another folder with -o"
        ) from None
    try:
        yield lock.stem.removeprefix(f"{stem}_")
    finally:
        with contextlib.suppress(OSError):
            lock.unlink(missing_ok=True)
            for each in made:
                each.rmdir()


def release_stamp(folder: Path, stem: str, stamp: str) -> None:
    """Remove what an earlier part of a run that was killed left of `reserved_stamp`."""
    with contextlib.suppress(OSError):
        (folder / f"{stem}_{stamp}.reserved").unlink()


def _reserved(folder: Path, stem: str, places: Iterable[Path]) -> Path:
    """Make the file that keeps a stamp from other runs."""
    folders = {folder, *(folder / place for place in places)}
    now, number = new_stamp(), 0
    while True:
        stamp = f"{now}_{number}" if number else now
        lock = folder / f"{stem}_{stamp}.reserved"
        with contextlib.suppress(FileExistsError):
            lock.touch(exist_ok=False)
            files = (path for each in folders for path in each.glob(f"*_{stamp}.*"))
            if all(path == lock for path in files):
                return lock
            lock.unlink()
        number += 1


def newest_there(folder: Path, places: Iterable[Path], pattern: str) -> str:
    """Return the newest stamp of the files whose names fit in `places` below a folder, "" for none."""
    return newest_of(stamp_in(path) for place in places for path in (folder / place).glob(pattern))


def newest_of(stamps: Iterable[str]) -> str:
    """Return the newest of some stamps, "" where there is none."""
    return max(stamps, default="", key=_order)


def stamp_in(path: Path) -> str:
    """Return the stamp in the name of a file of a run, "" where it has none."""
    found = _STAMP.search(path.stem)
    return found[1] if found else ""


def result_of(folder: Path, stamp: str) -> Path:
    """Return the result CSV that a run with this stamp has in a folder."""
    return folder / f"{RESULT_STEM}{stamp}.csv"


def _order(stamp: str) -> tuple[str, int]:
    when, _, number = stamp.partition("_")
    return when, int(number) if number.isdigit() else 0
