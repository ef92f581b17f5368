"""The time stamps that name the files of a run.

Comes in: folders of results. Goes out: the stamp of a new run that has the same one in all of them,
and that of the newest run. Called by the session.
"""

import time
from collections.abc import Iterable
from pathlib import Path

from ray_precheck.errors import ResumeError
from ray_precheck.store.resume import RESULT_STEM

_FORMAT = "%Y%m%d%H%M%S"


def new_stamp(folders: Iterable[Path] = ()) -> str:
    """Return the time now as a stamp that names no run in these folders, missing ones included."""
    now = time.strftime(_FORMAT)
    taken = {stamp for folder in folders for stamp in _stamps(folder)}
    number, stamp = 0, now
    while stamp in taken:
        number += 1
        stamp = f"{now}_{number}"
    return stamp


def newest_stamp(folders: Iterable[Path]) -> str:
    """Return the newest stamp of a run in these folders, "" where there is none."""
    return max((stamp for folder in folders for stamp in _stamps(folder)), default="", key=_order)


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
