"""The files of a run, new or resumed, and the calls that are done in them.

Comes in: a folder and a time stamp, or the result CSV of an earlier run (ours, or one that msprobe wrote).
Goes out: an `OpenedRun`, the files to write and the names that are done. Called for each run before it is
planned. The files are held (`hold_files`) from before the first look at them until their last rename.
"""

import contextlib
import errno
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ray_precheck.dump.folders import heard_cuts
from ray_precheck.errors import ResumeError, StoppedError, UsageError
from ray_precheck.foreign import open_file, regular_file
from ray_precheck.options.shared import ResumeOptions
from ray_precheck.schema.environment import INVOKED, working_folder
from ray_precheck.store.claim import ClaimedError, claimed, locked, running
from ray_precheck.store.heat import keep_heats, remove_heats
from ray_precheck.store.journal import repair, rows_below
from ray_precheck.store.results import read_done, without_details
from ray_precheck.store.settings import (
    Reads,
    RunSettings,
    changed_since,
    load_settings,
    note_cuts,
    save_settings,
    stamps_of,
)
from ray_precheck.store.tables import (
    ADDED_SETTING,
    API_TABLES,
    BOM,
    ERROR_FOLDER,
    LATER_COLUMNS,
    MSPROBE_ERROR_FOLDER,
    RESULT_STEM,
    RunFiles,
    Tables,
    added_columns,
    added_setting,
    remove_leftover,
    row_cells,
    run_files,
    whole_rows,
)


def error_folder(files: RunFiles, below: Path | None, *, as_msprobe: bool) -> Path:
    """Return the absolute folder for the tensors of failing outputs; a resumed run keeps its folder.

    It is `error_data/{timestamp}` beside the results, or in the folder `below` where one is named; as
    msprobe has it, `ut_error_data{timestamp}` there.
    """
    parent = files.result.parent if below is None else below
    ours = parent / ERROR_FOLDER / files.errors.name
    theirs = parent / f"{MSPROBE_ERROR_FOLDER}{files.errors.name}"
    if ours.is_dir() != theirs.is_dir():  # An earlier part of the run has used one.
        as_msprobe = theirs.is_dir()
    return (theirs if as_msprobe else ours).absolute()


@contextlib.contextmanager
def hold_files(files: RunFiles) -> Iterator[RunFiles]:
    """Hold the files of a run for this process; yields them with the token of its claim.

    Raises:
        ResumeError: another run has them, or their folder is missing or not writable.
        StoppedError: the disk is full.
    """
    if not files.result.parent.is_dir():
        raise ResumeError(f"cannot read {files.result}: {os.strerror(errno.ENOENT)}")
    with contextlib.ExitStack() as claim:
        try:
            token = claim.enter_context(claimed(files.lock))
        except ClaimedError as error:
            raise ResumeError(
                f"another run has {files.result}: {error.holder}; wait for its end, or stop it first"
            ) from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoppedError(f"cannot write {files.lock}: {error.strerror}") from None
            raise ResumeError(f"cannot go on in {files.result}: {error.strerror}") from None
        yield replace(files, token=token)


def new_run_files(folder: Path, stamp: str, tables: Tables = API_TABLES) -> RunFiles:
    """Return files for a new run in `folder`, which is made if it is missing.

    Nothing that exists is written over: a second run in the same second gets another stamp, which
    is taken by its settings file. The CSV files are made with their first rows.

    Raises:
        UsageError: the folder is a file, or cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"out path {folder} is a file; name a folder for the results") from None
    except OSError as error:
        raise UsageError(f"cannot make the out path {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"out path {folder} is not writable; name another folder with -o")
    number, name = 0, stamp
    while True:
        files = run_files(folder / tables.file("result", name), tables)
        try:
            if any(path.exists() for path in (files.result, files.details, files.timeline)):
                raise FileExistsError
            os.close(os.open(files.settings, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            return files
        except FileExistsError:
            number += 1
            name = f"{stamp}_{number}"
        except OSError as error:
            raise UsageError(f"cannot write to the out path {folder}: {error.strerror}") from None


def _is_written(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_size > 0
    return False


def _remove_killed(folder: Path, tables: Tables) -> None:
    """Remove the files of runs killed before they had a CSV file: nobody can go on with these."""
    for lock in folder.glob(f"{tables.stem}_*.lock"):
        stamp = lock.stem.removeprefix(f"{tables.stem}_")
        files = run_files(folder / tables.file("result", stamp), tables)
        # The stem of one command's tables may begin another's. A run that begins has not named itself yet.
        if not re.fullmatch(r"\d+(_\d+)?", stamp) or not _is_written(lock) or running(lock):
            continue
        with contextlib.suppress(ResumeError, StoppedError), hold_files(files):
            if not files.result.exists() and not files.details.exists():
                remove_run(files)


def start_run(
    folder: Path,
    stamp: str,
    settings: RunSettings,
    tables: Tables = API_TABLES,
) -> RunFiles:
    """Return the files of a new run, with its settings beside them.

    Raises:
        UsageError: the folder is a file, is full, or cannot be made or written; nothing is left.
    """
    files = new_run_files(folder, stamp, tables)
    _remove_killed(folder, tables)
    try:
        save_settings(files.settings, settings)
    except OSError as error:
        discard_run(files)
        raise UsageError(f"cannot write to the out path {folder}: {error.strerror}") from None
    return files


def remove_run(files: RunFiles) -> None:
    """Remove the files of a run of which nothing is to be kept."""
    for path in (files.result, files.details, files.timeline, files.settings):
        path.unlink(missing_ok=True)
    remove_heats(files.result)


def discard_run(files: RunFiles) -> bool:
    """Remove the files of a new run that ended before a row was written; returns whether it did so.

    Rows always stay, also detail rows without their result row.
    """
    try:
        if any(_has_rows(path) for path in (files.result, files.details)):
            return False
        remove_run(files)
    except (OSError, ResumeError):
        return False
    return True


def _has_rows(path: Path) -> bool:
    """Return whether a file of ours has anything below its header."""
    try:
        with open_file(path) as file:
            next(whole_rows(file), b"")
            return bool(file.read(1))
    except FileNotFoundError:
        return False


def resume_run(
    files: RunFiles,
    names: Set[str],
    fingerprint: dict[str, str],
    *,
    force: bool = False,
    retry: Collection[str] = (),
    tables: Tables = API_TABLES,
    reads: Reads | None = None,
) -> set[str]:
    """Repair the files of an interrupted run and return the names that are done.

    `names` are the calls of the dump, `reads` the files that rows are made of. With `force` the settings,
    the dump and its files may be others: rows that are there stay. Rows of the kinds in `retry` (error,
    skip, crash, all) are dropped, so that they are done again.

    Raises:
        ResumeError: a file cannot be read or written, is no CSV of results, was made with other
            settings, of other files or of other calls, its settings cannot be compared, or another run is
            writing it; nothing has been changed.
        StoppedError: the disk is full; acknowledged rows are still there.
    """
    with contextlib.ExitStack() as lock:
        try:
            lock.enter_context(locked(files.result))
        except BlockingIOError:
            raise ResumeError(
                f"another run is writing {files.result}: its writer is a process of this machine;"
                " wait for its end, or stop it first"
            ) from None
        return _resume_locked(files, names, fingerprint, tables, reads or {}, force, retry)


def _resume_locked(
    files: RunFiles,
    names: Set[str],
    fingerprint: dict[str, str],
    tables: Tables,
    reads: Reads,
    force: bool,
    retry: Collection[str],
) -> set[str]:
    settings = _read_settings(files, tables)
    fingerprint = _with_columns_of(settings, fingerprint)
    done = load_done(files, names, settings, retry, tables)
    tables = replace(tables, details=(*tables.details, *added_columns(fingerprint)))
    foreign = done - names
    # Without an earlier stamp there is nothing to hold the files to: they are what later parts are held to.
    known = None if settings is None else settings.reads or None
    stamps = stamps_of(reads, known)
    if not force:
        stays = not done.isdisjoint(names)
        lost = stays and bool(stamps) and not known
        _require_same(files, settings, fingerprint, foreign, stays=stays, lost=lost)
        changed = changed_since(known or {}, stamps, reads) if stays else ""
        if changed:
            raise ResumeError(
                f"{changed} since rows of {files.result} were made; check all calls again with --retry all,"
                " start a new run, or add --force to resume all the same"
            )
    if settings is not None:
        try:
            _require_columns(files, tables)
        except ResumeError as error:  # of another standard: with --force the settings may differ
            raise ResumeError(
                f"{error}; one file cannot hold the columns of two standards, even with --force:"
                " give the same --standard, or start a new run"
            ) from None
    _require_writable(files)
    if settings is None:
        _set_foreign_details_aside(files, tables)
    # Rows without a settings file are msprobe's. They stay so when the run is resumed once more.
    adopted = bool(done) if settings is None else settings.adopted
    now = RunSettings(
        fingerprint,
        adopted,
        reads=stamps,
        foreign=tuple(sorted(foreign)),
        command=() if settings is None else settings.command,
        folder="" if settings is None else settings.folder,
    )
    is_same = settings is not None and settings.fingerprint == fingerprint and not retry
    if settings is not None and is_same and _is_untouched(files, settings):
        now = replace(settings, reads=now.reads, foreign=now.foreign)
    else:
        repair(files.result, files.details, done, tables)
    try:
        keep_heats(files.result, done)
        if settings != now:
            save_settings(files.settings, now)
    except OSError as error:
        path = error.filename or files.settings
        raise StoppedError(f"cannot write {path}: {error.strerror}") from None
    return done


def load_done(
    files: RunFiles,
    names: Set[str],
    settings: RunSettings | None = None,
    retry: Collection[str] = (),
    tables: Tables = API_TABLES,
) -> set[str]:
    """Return the names that are done, after a look at both files and without changing them.

    Raises:
        ResumeError: a file is missing or unreadable, or has other columns.
    """
    whole = settings is None or settings.adopted or _is_untouched(files, settings)
    try:
        done, with_details = read_done(files.result, names, retry, tables)
        added = settings.added_columns if settings is not None else ()
        tables = replace(tables, details=(*tables.details, *added))
        lost = set() if whole else without_details(files.details, with_details, tables)
    except OSError as error:
        raise ResumeError(f"cannot read {error.filename}: {error.strerror}") from None
    return done - (lost & names)


def _read_settings(files: RunFiles, tables: Tables) -> RunSettings | None:
    """Return the settings of a run; None for one of msprobe, and nothing but `cut` where ours have gone."""
    try:
        return load_settings(files.settings) or _lost_settings(files, tables)
    except OSError as error:
        raise ResumeError(
            f"cannot read {files.settings}, which says how {files.result.name} was made:"
            f" {error.strerror}"
        ) from None


def _with_columns_of(settings: RunSettings | None, fingerprint: dict[str, str]) -> dict[str, str]:
    """Return the settings of a resumed run with the added columns that its details have, where a former
    version began it, whose standard did not add all of these yet."""
    if settings is None:
        return fingerprint
    before, now = settings.added_columns, added_columns(fingerprint)
    known = tuple(each for each in now if each in before or each not in LATER_COLUMNS)
    return {**fingerprint, **added_setting(before)} if before == known else fingerprint


def _lost_settings(files: RunFiles, tables: Tables) -> RunSettings | None:
    """Return what is known of our settings that have gone; None for a result CSV that may be of msprobe.

    Its tables for MindSpore have our columns. But its bench has the tested dtype, ours is float64; the
    columns that our standards add, a timeline, and the tables of other commands are ours alone.
    """
    lost = RunSettings({}, cut=True)
    if tables != API_TABLES:
        return lost
    try:
        with open_file(files.details) as file:
            rows = whole_rows(file)
            headings = row_cells(next(rows, b"").removeprefix(BOM))
            width = len(tables.details)
            if headings[:width] == list(tables.details) and headings[width:]:
                return replace(lost, fingerprint=added_setting(headings[width:]))
            if headings == list(tables.details) and any(
                len(row) > 2 and row[1].endswith("float64") and not row[2].endswith("float64")
                for row in map(row_cells, rows)
            ):
                return lost
    except FileNotFoundError:
        pass
    return lost if files.timeline.exists() else None


def _is_untouched(files: RunFiles, settings: RunSettings) -> bool:
    return settings.is_untouched(files.result, files.details)


def _require_same(
    files: RunFiles,
    settings: RunSettings | None,
    fingerprint: Mapping[str, str],
    foreign: Collection[str],
    *,
    stays: bool,
    lost: bool,
) -> None:
    """Compare the settings of a resumed run with those that its files were made with.

    A setting that the file lacks may have had any value, unless the value of runs from before the
    setting existed is known; of a file that is torn or has gone it had one, which nobody knows. Where a row
    `stays`, it must be known; `lost`: so are the stamps of the files that were read. All rows must be of
    this dump.
    """
    before = {} if settings is None else settings.made_with
    other = {key: value for key, value in fingerprint.items() if before.get(key, value) != value}
    differences: list[str] = []
    # Rows that the dump lacks are fine where an earlier --force has accepted them.
    foreign = set(foreign) - set(() if settings is None else settings.foreign)
    if "dump" in other or foreign:
        row = f": it has a row for {min(foreign)}, which this dump does not have" if foreign else ""
        differences.append(f"is of another dump{row}")
        other.pop("dump", None)
    if "standard" in other:
        # A difference of the standard implies other columns, so it is enough to report the
        # standard.
        other.pop(ADDED_SETTING, None)
    if other:
        pairs = [f"{key} {before[key]}, not {value}" for key, value in other.items()]
        differences.append(f"was made with {' and '.join(pairs)}")
    unknown = [key for key in fingerprint if key not in before] + ["its files"] * lost
    if not differences and stays and settings is not None and settings.cut and unknown:
        state = "is torn and lacks" if files.settings.exists() else "is missing, and with it"
        raise ResumeError(
            f"{files.settings} {state} the settings that {files.result.name} was made with"
            f" ({', '.join(unknown)}), so they cannot be compared; start a new run, or add --force to resume"
            " all the same"
        )
    if differences:
        raise ResumeError(
            f"{files.result} {', and '.join(differences)}; resume with the same dump and settings, start"
            " a new run, or add --force to resume all the same"
        )


def _require_writable(files: RunFiles) -> None:
    """Raise if the files cannot be written, before the run begins, and remove leftovers of a killed
    run beside them."""
    for path in (files.result, files.details):
        try:
            os.close(regular_file(path, os.O_WRONLY | os.O_APPEND))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ResumeError(f"cannot go on in {path}: {error.strerror}") from None
    folder = files.result.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ResumeError(f"cannot go on in {files.result}: its folder {folder} is not writable")
    for path in (files.result, files.details, files.settings):
        with contextlib.suppress(OSError):
            remove_leftover(path)


def _require_columns(files: RunFiles, tables: Tables) -> None:
    """Raise where the details have other columns than the default ones and those added."""
    try:
        with open_file(files.details) as file:
            rows_below(file, tables.details)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ResumeError(f"cannot read {files.details}: {error.strerror}") from None


def _set_foreign_details_aside(files: RunFiles, tables: Tables) -> None:
    """Rename a details file that has other columns, as msprobe's for PyTorch has."""
    aside = files.details.with_suffix(".msprobe.csv")
    try:
        _require_columns(files, tables)
    except ResumeError:
        if aside.exists():
            raise
        try:
            files.details.rename(aside)
        except OSError as error:
            raise ResumeError(f"cannot move {files.details} away: {error.strerror}") from None


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
            now = RunSettings(
                fingerprint,
                reads=stamps_of(reads or {}),
                command=INVOKED.get(),
                folder=working_folder(),
            )
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
            remove_heats(before.result)
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
