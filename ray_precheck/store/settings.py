"""The third file of a run: the settings that its rows were made with, and whether it is complete.

Comes in: the fingerprint of a run. Goes out: a small JSON beside the CSV files, and its content. Called by
resume, by the session and, at the end of a run, by the journal.

The files that a run reads beside its dump.json, as they were when its rows were made. A size and a time
tell nearly always, and cost no look into the file. A copy of a dump has other times with the same bytes, so
the stamps of a small dump have a digest, too; of a large one it would take longer than the run, and a copy
of it is taken for another.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ray_precheck.foreign import from_json, open_file, read_file
from ray_precheck.schema.environment import (
    Environment,
    environment_from_dict,
    environment_to_dict,
)
from ray_precheck.store.tables import BOM, added_columns, replace_file

# Reading so much takes a fifth of a second; a run that reads the files itself takes longer.
_DIGESTED_BYTES, _DIGESTED_FILES = 256 << 20, 4096
_CHUNK_BYTES = 1 << 20
# What is read beside a dump, if it is there.
_BESIDE = ("sketches.npy", "construct.json", "stack.json")
TENSOR_FOLDER = "dump_tensor_data"

# Files and folders by what they are to the run: "target/sketches.npy".
Reads = Mapping[str, Path]


class FileStamp(NamedTuple):
    """The size of a file in bytes, its time in nanoseconds, and the digest of its content, "" for none."""

    size: int
    time_ns: int
    digest: str = ""


Stamps = Mapping[str, FileStamp]


def reads_of_dumps(
    labelled: Iterable[tuple[str, Sequence[Path]]], *, tensors: bool = True
) -> dict[str, Path]:
    """Return what a run may read of dumps besides their records: the files of tensors, or, where no digest
    tells the records from others, the dumps themselves."""
    return {
        f"{label}/{number}/{name}" if number else f"{label}/{name}": dump.parent / name
        for label, dumps in labelled
        for number, dump in enumerate(dumps)
        for name in (*_BESIDE, TENSOR_FOLDER if tensors else dump.name)
    }


def stamps_of(reads: Reads, known: Stamps | None = None) -> dict[str, FileStamp]:
    """Return the stamps of all files, those in folders by the names that they have there.

    With the stamps of an earlier part of the run, `known`, a file is read only where it has another time and
    its digest is known.
    """
    there = {
        name: (path, found)
        for name, path, found in _files({name: str(path) for name, path in reads.items()})
    }
    is_small = (
        known is None
        and len(there) <= _DIGESTED_FILES
        and sum(found.st_size for _, found in there.values()) <= _DIGESTED_BYTES
    )
    made: dict[str, FileStamp] = {}
    for name, (path, found) in there.items():
        before = (known or {}).get(name, FileStamp(-1, -1))
        same = before[:2] == (found.st_size, found.st_mtime_ns)
        is_read = is_small or (before.digest and not same)
        digest = before.digest if same else _digest(path) if is_read else ""
        made[name] = FileStamp(found.st_size, found.st_mtime_ns, digest)
    return made


def stamps_from_json(found: object) -> dict[str, FileStamp]:
    """Return the stamps that a JSON has, as far as they are stamps."""
    if not isinstance(found, dict):
        return {}
    kinds = [int, int, str]
    return {
        name: FileStamp(*values)
        for name, values in found.items()
        if isinstance(values, list) and [type(value) for value in values] == kinds
    }


def changed_since(known: Stamps, now: Stamps, reads: Reads) -> str:
    """Return a sentence about the first file that is not as it was, "" where all are; new ones are fine."""
    for name, before in sorted(known.items()):
        found = now.get(name)
        if found is None:
            return f"{_path_of(name, reads)} is no longer there"
        if found.size != before.size:
            return f"{_path_of(name, reads)} has {found.size} bytes, and had {before.size}"
        if found.time_ns != before.time_ns and not (
            before.digest and found.digest == before.digest
        ):
            what = "other content than it had" if before.digest else "been written again"
            return f"{_path_of(name, reads)} has {what}"
    return ""


def _path_of(name: str, reads: Reads) -> Path:
    label = max((each for each in reads if name == each or name.startswith(f"{each}/")), key=len)
    return Path(f"{reads[label]}{name[len(label) :]}")


def _files(reads: Mapping[str, str]) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield the regular files, and those in folders, by name; what is not there is left out."""
    for name, path in reads.items():
        with suppress(OSError, ValueError):
            found = os.stat(path)
            if stat.S_ISDIR(found.st_mode):
                yield from _files_below(name, path)
            elif stat.S_ISREG(found.st_mode):
                yield name, path, found


def _files_below(name: str, folder: str) -> Iterator[tuple[str, str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(f"{name}/{entry.name}", entry.path)
            elif entry.is_file():
                with suppress(FileNotFoundError):  # removed at this moment
                    yield f"{name}/{entry.name}", entry.path, entry.stat()


def _digest(path: str) -> str:
    state = hashlib.sha256()
    try:
        with open_file(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                state.update(chunk)
    except OSError:
        return ""
    return state.hexdigest()[:16]


# Settings that came later, with what runs did before: their files lack them.
_BEFORE_THERE_WAS = {"selection": "every call", "distribution": "uniform", "layouts": "off"}
_ENVIRONMENT, _CUT_SHORT, _READS, _FOREIGN = "environment", "cut_short", "reads", "foreign rows"
_COMMAND, _FOLDER, _INVOKED = "words", "folder", "invoked as"
_WHOLE_PAIR = re.compile(r'"([^"\\]+)": "([^"\\]*)"')


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings with which the files of a run were made.

    `adopted`: msprobe wrote some of the rows, for which there are no details. `completed` are the
    bytes of the result CSV and of the details when the run was completed, None before. `cut`: the
    file was torn, so that a setting which is not there may have been anything. `environment` is
    made by `schema.environment`; a run may be resumed in another environment. `cut_short` are sentences about
    the captures that were checked and are not whole. `reads` are the files that the rows were made of, and
    `foreign` the names of rows that the dump lacks, which `--force` has let in. `command` are the words
    behind `ray-precheck` that began the run, () where Python code did, `folder` where that was.
    """

    fingerprint: dict[str, str]
    adopted: bool = False
    completed: tuple[int, int] | None = None
    cut: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict, compare=False)
    cut_short: tuple[str, ...] = field(default=(), compare=False)
    reads: Stamps = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    command: tuple[str, ...] = field(default=(), compare=False)
    folder: str = field(default="", compare=False)

    @property
    def made_with(self) -> dict[str, str]:
        """The fingerprint, with the values of options that the version of the run did not have yet."""
        return self.fingerprint if self.cut else {**_BEFORE_THERE_WAS, **self.fingerprint}

    @property
    def added_columns(self) -> tuple[str, ...]:
        """The headings that the details have after the default ones."""
        return added_columns(self.fingerprint)

    def is_untouched(self, result: Path, details: Path) -> bool:
        """Return whether both files are as the completed run left them, going by their sizes."""
        return self.completed is not None and self.completed == _sizes(result, details)


def load_settings(path: Path) -> RunSettings | None:
    """Return the content of a settings file; None if there is no file.

    Of a file that was cut, or is no JSON, every pair that can still be read counts.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        data = read_file(path).removeprefix(BOM)
    except FileNotFoundError:
        return None
    found = _read_json(data)
    is_cut = found is None
    if found is None:
        found = dict(_WHOLE_PAIR.findall(data.decode("utf-8", "replace")))
    sizes = found.get("completed")
    completed = None
    if isinstance(sizes, dict):
        completed = (sizes.get("result_bytes", -1), sizes.get("details_bytes", -1))
    fingerprint = {key: value for key, value in found.items() if isinstance(value, str)}
    environment = found.get(_ENVIRONMENT)
    invoked = found.get(_INVOKED)
    invoked = invoked if isinstance(invoked, dict) else {}
    words = invoked.get(_COMMAND)
    return RunSettings(
        fingerprint,
        found.get("adopted") is True,
        completed,
        is_cut,
        environment if isinstance(environment, dict) else {},
        tuple(cuts) if isinstance(cuts := found.get(_CUT_SHORT), list) else (),
        stamps_from_json(found.get(_READS)),
        tuple(rows) if isinstance(rows := found.get(_FOREIGN), list) else (),
        tuple(map(str, words)) if isinstance(words, list) else (),
        str(invoked.get(_FOLDER, "")),
    )


def _read_json(data: bytes) -> dict[str, Any] | None:
    """Return the content of a whole settings file, None if it is torn or no settings file."""
    try:
        found = from_json(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def save_settings(path: Path, settings: RunSettings) -> None:
    """Write settings beside the results, atomically.

    Raises:
        OSError: the file cannot be written; it is as it was.
    """
    content: dict[str, Any] = dict(settings.fingerprint)
    if settings.adopted:
        content["adopted"] = True
    if settings.cut_short:
        content[_CUT_SHORT] = list(settings.cut_short)
    if settings.environment:
        content[_ENVIRONMENT] = dict(settings.environment)
    if settings.completed is not None:
        content["completed"] = dict(
            zip(("result_bytes", "details_bytes"), settings.completed, strict=True)
        )
    if settings.command:
        content[_INVOKED] = {_COMMAND: list(settings.command), _FOLDER: settings.folder}
    if settings.foreign:
        content[_FOREIGN] = list(settings.foreign)
    text = json.dumps(content, indent=1)
    if settings.reads:  # in one line: with an indent 100,000 files take seconds
        text = f"{text[:-2]},\n {json.dumps(_READS)}: {json.dumps(settings.reads)}\n}}"
    replace_file(path, [text.encode() + b"\n"])


def note_environment(path: Path, environment: Mapping[str, Any]) -> None:
    """Note in the settings file, where there is one, where the run runs.

    If this fails, the summary lacks some words; nothing else is lost.
    """
    _note(path, "environment", environment)


def note_cuts(path: Path, cut_short: tuple[str, ...]) -> None:
    """Note in the settings file, where there is one, which captures were cut short.

    If this fails, the command `summary` does not say it.
    """
    if cut_short:
        _note(path, "cut_short", cut_short)


def noted_environment(path: Path) -> Environment:
    """Return the environment that a settings file notes; an empty one where it notes none."""
    settings = load_settings(path)
    return Environment() if settings is None else environment_from_dict(settings.environment)


def note_caveat(path: Path, caveat: str) -> None:
    """Add a sentence about a limit of a device's precision to the environment, unless it is there
    already or is empty."""
    there = noted_environment(path)
    if caveat and caveat not in there.caveats:
        there = replace(there, caveats=(*there.caveats, caveat))
        note_environment(path, environment_to_dict(there))


def mark_completed(path: Path, result: Path, details: Path) -> None:
    """Note in the settings file, where there is one, that both files are complete.

    If this fails, the next resume does one call again; nothing is lost.
    """
    _note(path, "completed", _sizes(result, details))


def _note(path: Path, name: str, value: Any) -> None:
    with suppress(OSError):
        settings = load_settings(path)
        if settings is not None and getattr(settings, name) != value:
            save_settings(path, replace(settings, **{name: value}))


def _sizes(result: Path, details: Path) -> tuple[int, int] | None:
    try:
        return result.stat().st_size, details.stat().st_size
    except OSError:
        return None
