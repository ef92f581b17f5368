"""The time stamps that name the files of a run.

Comes in: folders of results. Goes out: the stamp of a new run that has the same one in all of them,
and that of the newest run. Called by the session.
"""

import contextlib
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ray_precheck.errors import ResumeError, UsageError
from ray_precheck.store.resume import RESULT_STEM

_FORMAT = "%Y%m%d%H%M%S"
# What a second run in the same second has behind the time.
_STAMP = re.compile(r"_(\d{14}(?:_\d+)?)$")


def new_stamp(folders: Iterable[Path] = ()) -> str:
    """Return the time now as a stamp that names no run in these folders, missing ones included."""
    now = time.strftime(_FORMAT)
    taken = {stamp for folder in folders for stamp in _stamps(folder)}
    number, stamp = 0, now
    while stamp in taken:
        number += 1
        stamp = f"{now}_{number}"
    return stamp


@contextlib.contextmanager
def reserved_stamp(folder: Path, stem: str) -> Iterator[str]:
    """Hold a new stamp that no file below the folder has, for runs that write several tables with one stamp.

    Until the block ends, `{stem}_{stamp}.reserved` keeps it from other runs that begin in the same second.

    Raises:
        UsageError: the folder is a file, or cannot be made or written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"out path {folder} is a file; name a folder for the results")
    now, number = time.strftime(_FORMAT), 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            stamp = f"{now}_{number}" if number else now
            lock = folder / f"{stem}_{stamp}.reserved"
            with contextlib.suppress(FileExistsError):
                lock.touch(exist_ok=False)
                if all(path == lock for path in folder.rglob(f"*_{stamp}.*")):
                    break
                lock.unlink()
            number += 1
    except OSError as error:
        raise UsageError(
            f"cannot write to the out path {folder}: {error.strerror}; name another folder with -o"
        ) from None
    try:
        yield stamp
    finally:
        lock.unlink(missing_ok=True)


def newest_stamp(folders: Iterable[Path]) -> str:
    """Return the newest stamp of a run in these folders, "" where there is none."""
    return newest_of(stamp for folder in folders for stamp in _stamps(folder))


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


def newest_result(folder: Path) -> Path:
    """Return the result CSV of the newest run in a folder.

    Raises:
        ResumeError: there is none.
    """
    stamp = newest_stamp([folder])
    if not stamp:
        raise ResumeError(f"-csv_path: {folder} has no {RESULT_STEM}*.csv to go on in")
    return result_of(folder, stamp)


def _stamps(folder: Path) -> list[str]:
    return [path.stem.removeprefix(RESULT_STEM) for path in folder.glob(f"{RESULT_STEM}*.csv")]


def _order(stamp: str) -> tuple[str, int]:
    when, _, number = stamp.partition("_")
    return when, int(number) if number.isdigit() else 0
