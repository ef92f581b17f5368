"""The time stamps that name the files of a run.

Comes in: folders of results. Goes out: the stamp of a new run, perhaps the same one in all of them, and that
of the newest run. Called by the session.
"""

import contextlib
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ray_precheck.errors import UsageError
from ray_precheck.store.resume import RESULT_STEM

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
