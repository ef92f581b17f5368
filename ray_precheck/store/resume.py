"""What an interrupted run has done, and the repair of its files.

Comes in: the result CSV of an earlier run (ours, or one that msprobe wrote). Goes out: the names
that are done; both files end with whole rows and agree. Called by the session before it plans.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.errors import ResumeError, StoppedError, UsageError
from ray_precheck.store.columns import (
    BOM,
    DETAIL_COLUMNS,
    RESULT_COLUMNS,
    call_of_detail,
    decode_row,
    header,
)
from ray_precheck.store.journal import replace_file, row_name, split_rows

_RESULT_STEM = "accuracy_checking_result_"
_DETAILS_STEM = "accuracy_checking_details_"


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run: result rows, detail rows, and the settings that they were made with."""

    result: Path
    details: Path
    settings: Path


def run_files(result: Path) -> RunFiles:
    """Return the files that belong to a result CSV.

    Raises:
        ResumeError: its name is not `accuracy_checking_result_{timestamp}.csv`.
    """
    stem = result.name.removeprefix(_RESULT_STEM)
    if stem == result.name or not stem.endswith(".csv"):
        raise ResumeError(
            f"{result} is no result CSV: a name like {_RESULT_STEM}20260101120000.csv is expected"
        )
    stamp = stem.removesuffix(".csv")
    return RunFiles(
        result,
        result.with_name(f"{_DETAILS_STEM}{stamp}.csv"),
        result.with_name(f"accuracy_checking_{stamp}.run.json"),
    )


def new_run_files(folder: Path, stamp: str) -> RunFiles:
    """Return files for a new run in `folder`, which is made if it is missing.

    Nothing that exists is written over: a second run in the same second gets another stamp.

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
        files = run_files(folder / f"{_RESULT_STEM}{name}.csv")
        try:
            if files.details.exists() or files.settings.exists():
                raise FileExistsError
            os.close(os.open(files.result, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            return files
        except FileExistsError:
            number += 1
            name = f"{stamp}_{number}"
        except OSError as error:
            raise UsageError(f"cannot write to the out path {folder}: {error.strerror}") from None


def load_done(files: RunFiles, names: set[str]) -> set[str]:
    """Return the names that are done, after a look at the file and without changing it.

    `names` are the calls of the dump.

    Raises:
        ResumeError: the file is missing, is no result CSV, or is of another dump.
    """
    try:
        lines = split_rows(files.result.read_bytes())
    except OSError as error:
        raise ResumeError(f"cannot read {files.result}: {error.strerror}") from None
    if not lines or _is_torn_header(lines, header(RESULT_COLUMNS)):
        return set()
    if not _is_header(lines[0], RESULT_COLUMNS):
        expected = ", ".join(RESULT_COLUMNS)
        raise ResumeError(f"{files.result} is no result CSV: its first line must be {expected}")
    done = {row_name(line) for line in lines[1:] if _is_whole(line)}
    foreign = next((name for name in done if name not in names), None)
    if foreign is not None:
        raise ResumeError(
            f"{files.result} is of another dump: it has a row for {foreign}, which this dump has not"
        )
    return done


def _is_header(line: bytes, columns: Iterable[str]) -> bool:
    # msprobe's PyTorch precheck writes "API name", and pads rows with blanks.
    found = [cell.strip().lower() for cell in decode_row(line.rstrip(b"\r\n"))]
    return found == [heading.lower() for heading in columns]


def _is_torn_header(lines: Sequence[bytes], head: bytes) -> bool:
    return len(lines) == 1 and lines[0] != head and head.startswith(lines[0])


def _is_whole(line: bytes) -> bool:
    return line.endswith(b"\n") and line.count(b'"') % 2 == 0 and bool(line.strip())


def repair(files: RunFiles, done: set[str]) -> None:
    """Make both files end with whole rows that agree.

    A torn last line is cut, detail rows without a result row are dropped (they are made again),
    and a second row of the same name is dropped. A missing, empty or header-only file is fine.

    Raises:
        ResumeError: the details file beside the result CSV is no details CSV.
    """
    _repair_file(files.result, header(RESULT_COLUMNS), RESULT_COLUMNS, done, per_call=False)
    _repair_file(files.details, header(DETAIL_COLUMNS), DETAIL_COLUMNS, done, per_call=True)


def _repair_file(
    path: Path, head: bytes, columns: Iterable[str], done: set[str], *, per_call: bool
) -> None:
    if not path.exists() or path.stat().st_size == 0:
        return
    lines = split_rows(path.read_bytes())
    if _is_torn_header(lines, head):
        _replace(path, [head])
        return
    if not _is_header(lines[0], columns):
        raise ResumeError(f"{path} has other columns than ray_precheck writes; move it away first")
    kept, seen = [lines[0]], set()
    for line in lines[1:]:
        name = row_name(line)
        call = call_of_detail(name) if per_call else name
        if _is_whole(line) and call in done and name not in seen:
            seen.add(name)
            kept.append(line)
    if kept != lines:
        _replace(path, kept)


def _replace(path: Path, lines: Iterable[bytes]) -> None:
    try:
        replace_file(path, lines)
    except OSError as error:
        raise StoppedError(f"cannot write {path}: {error.strerror}") from None


def save_settings(files: RunFiles, fingerprint: dict[str, str]) -> None:
    """Write the settings that the results are made with beside them."""
    _replace(files.settings, [json.dumps(fingerprint, indent=1).encode() + b"\n"])


def require_same_settings(files: RunFiles, fingerprint: dict[str, str]) -> None:
    """Compare the settings of a resumed run with those that its files were made with.

    A result CSV without a settings file (one of msprobe's) is taken as it is.

    Raises:
        ResumeError: names what differs.
    """
    try:
        before = json.loads(files.settings.read_bytes().removeprefix(BOM))
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        raise ResumeError(
            f"cannot read {files.settings}, which says how {files.result.name} was made;"
            " remove it to go on nevertheless"
        ) from None
    for key, value in fingerprint.items():
        if isinstance(before, dict) and before.get(key, value) != value:
            what = (
                "of another dump"
                if key == "dump"
                else f"made with {key} {before[key]}, not {value}"
            )
            raise ResumeError(f"{files.result} is {what}; go on with the same, or start anew")
