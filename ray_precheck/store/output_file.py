"""The files that `--junit` and `--json` name: refused before a run starts, and written at its end.

Comes in: the path that was given, and the content. Called by the command line, and by the modules that
make the content.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from ray_precheck.errors import UsageError
from ray_precheck.store.tables import replace_file


def require_writable(option: str, path: Path) -> None:
    """Require that a file can be written here once the run has ended.

    Raises:
        UsageError: it is a folder, its folder is not there, or one of them is not writable.
    """
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"{option}: {path} is a folder; name a file in it")
    if not folder.is_dir():
        raise UsageError(
            f"{option}: the folder {folder} of {path.name} is not there; make it first"
        )
    is_special = path.exists() and not path.is_file()
    if not os.access(path if is_special else folder, os.W_OK):
        raise UsageError(f"{option}: {path if is_special else folder} is not writable")


def write_report(option: str, path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file atomically; a path that is no regular file, such as /dev/stdout, is written to
    directly.

    Raises:
        UsageError: it cannot be written; a file that was there is as it was.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                file.writelines(pieces)
        else:
            replace_file(path.resolve(), pieces)
    except OSError as error:
        raise UsageError(f"{option}: cannot write {path}: {error.strerror}") from None
