"""The files of a diagnosis: its page, whose name has the stamp of all of its parts.

Comes in: a folder of results. Goes out: the page of a new diagnosis, or of the one that is resumed.
Called by the session. The page is there from the beginning, so that a diagnosis that was ended before any
part had a row is found again.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ray_precheck.commands.compare.job import tables_of
from ray_precheck.commands.locate.exchange import EXCHANGE_TABLES
from ray_precheck.commands.locate.payload import LOCATION_TABLES
from ray_precheck.commands.locate.rows import PAIR_TABLES
from ray_precheck.errors import ResumeError, UsageError
from ray_precheck.store.opening import new_stamp, newest_of
from ray_precheck.store.tables import replace_file
from ray_precheck.trace.difference.row import ComparisonMode

# Where results stand below the folder of all: `FoundDump.place`.
_PLACES = ("", "step*/", "step*/*/", "rank*/", "proc*/")
_BEGIN, _END = "diagnose_", ".txt"
# Those of the comparison have these names in every mode.
COMPARISON_TABLES = tables_of(ComparisonMode.REAL)
# A search replays calls, or looks at pairs of dumps without files, and recomputes collectives.
SEARCH_TABLES = (LOCATION_TABLES, PAIR_TABLES, EXCHANGE_TABLES)


def new_page(folder: Path) -> Path:
    """Make the page of a new diagnosis, whose stamp no file below the folder has.

    Raises:
        UsageError: the folder cannot be made or written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"out path {folder} is a file; name a folder for the results")
    now, number = new_stamp(), 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            page = folder / f"{_BEGIN}{now}{f'_{number}' if number else ''}{_END}"
            if not any(results_named(folder, f"*_{stamp_of(page)}.*")):
                with contextlib.suppress(FileExistsError):
                    page.touch(exist_ok=False)
                    return page
            number += 1
    except OSError as error:
        raise UsageError(
            f"cannot write to the out path {folder}: {error.strerror}; name another folder with -o"
        ) from None


def results_named(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the files of results whose names fit, in the folder and in those of steps and ranks.

    The default folder is that where the command runs, so that nothing else below it is looked through.
    """
    for place in _PLACES:
        yield from folder.glob(f"{place}{pattern}")


def resumed_page(named: Path) -> Path:
    """Return the page of the diagnosis that -csv_path names, by its folder or itself.

    Raises:
        ResumeError: there is none.
    """
    if named.is_dir():
        newest = newest_of(map(stamp_of, named.glob(f"{_BEGIN}*{_END}")))
        if not newest:
            raise ResumeError(f"-csv_path: {named} has no {_BEGIN}*{_END} to go on with")
        return named / f"{_BEGIN}{newest}{_END}"
    if not (named.name.startswith(_BEGIN) and named.suffix == _END and named.exists()):
        raise ResumeError(
            f"-csv_path: {named} is no page of a diagnosis; name the folder of its results, which -o named"
        )
    return named


def stamp_of(page: Path) -> str:
    """Return the stamp of a diagnosis, which the files of its parts have, too."""
    return page.stem.removeprefix(_BEGIN)


def write_page(page: Path, text: str) -> None:
    """Put a text in the place of the page, atomically.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        replace_file(page, [text.encode(errors="surrogateescape")])
    except OSError as error:
        raise UsageError(f"cannot write {page}: {error.strerror}") from None
