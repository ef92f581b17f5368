"""The files of one step on one rank: a log that grows call by call, and the dump that it becomes.

Comes in: records as JSON text. Goes out: while the step runs, `dump.jsonl` (one record on each line, each
written at once, so that whatever kills the process costs the call that was being written) and
`stack.jsonl`; at its end dump.json, stack.json and construct.json in msprobe's form. Called by the probes;
`finish` does the same to a log that a killed process has left. `dump.log` reads a log.

    dump.jsonl    {"task": .., "level": .., "framework": .., "dump_data_dir": ..}       the first line
                  {"Functional.relu.0.forward": {"input_args": [..], .., "stack": 3, "parent": ".."}}
    stack.jsonl   {"3": ["File train.py, line 12, in <module>, \\n loss.backward()", ..]}

The process that writes dump.jsonl holds its lock (flock), which ends with the process, and where another one
writes it for this one (`shared_writer`) when both have ended or closed it; others may read
meanwhile, since a `LineFile` ends with a line break whatever happens between two calls. dump.json is put in
its place as the last one of the three files, and then the log is removed: where both are there, only this
removal is missing.
"""

import errno
import fcntl
import functools
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ray_precheck.capture.writing.elements import array, quoted
from ray_precheck.capture.writing.shared_writer import SharedWriter
from ray_precheck.dump.folders import end_of_log
from ray_precheck.dump.log import Log, as_dump, whole_lines
from ray_precheck.foreign import regular_file

# A reader that asks whether a log is locked holds its lock for some microseconds.
_PATIENCE_S = 0.5
_INTERVAL_S = 0.01
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_OPEN: "weakref.WeakSet[LineFile]" = weakref.WeakSet()
LOG, STACK_LOG = "dump.jsonl", "stack.jsonl"
DUMP, STACKS, CONSTRUCT, TENSORS = "dump.json", "stack.json", "construct.json", "dump_tensor_data"


class LineFile:
    """A locked file that `append` adds lines to; it is empty at first.

    A child that this process forks does not write to it, and does not keep it locked.

    Raises:
        BlockingIOError: another process has it.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_locked(path, _FLAGS)
        self._writer: SharedWriter | None = None
        self.size = 0
        # Whether lines can be added.
        self.is_open = True
        _OPEN.add(self)

    def clear(self) -> None:
        """Remove what another capture has left in the file.

        Of a file that was emptied ext4 writes the blocks to the disk when it is closed.
        """
        if os.fstat(self._file).st_size:
            os.ftruncate(self._file, 0)

    def append(self, line: str) -> None:
        """Add a line, which ends with a line break; `size` grows when it is whole.

        Raises:
            OSError: a part of the line may have been written, which `cut_to` removes.
        """
        # A lone surrogate, which UTF-8 does not have, becomes the escape that JSON has for it.
        raw = line.encode("utf-8", "backslashreplace")
        length = len(raw)
        if self._writer is not None and self._writer.line(raw, self.size):
            self.size += length
            return
        written = os.write(self._file, raw)
        while written < length:  # the disk is almost full, or the file has almost reached its limit
            written += os.write(self._file, raw[written:])
        self.size += length

    def share(self, writer: SharedWriter, folder: Path) -> None:
        """Let another process add the lines, each behind the files in a folder that were made before it."""
        if writer.begin(self._file, folder):
            self._writer = writer

    def settle(self) -> None:
        """Wait until another process has added all lines, and add them here from then on.

        Raises:
            OSError: it could not add them all, or a file before them.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.end()
            except OSError:
                self.size = os.fstat(self._file).st_size
                raise

    def cut_to(self, size: int) -> None:
        """Remove what was added since the file had this size.

        Where even this is refused, nothing is added any more: the file ends with a torn line.
        """
        with suppress(OSError):
            self.settle()
        self.size = size = min(size, os.fstat(self._file).st_size)
        try:
            os.ftruncate(self._file, size)
        except OSError:
            self.close()

    def close(self) -> None:
        """Unlock and close the file."""
        with suppress(OSError):
            self.settle()
        file, self._file, self.is_open = self._file, -1, False
        if file >= 0:
            with suppress(OSError):
                os.close(file)


def open_locked(path: Path, flags: int, patience_s: float = _PATIENCE_S) -> int:
    """Return the descriptor of a file that is locked until it is closed, or until the process ends.

    It waits `patience_s` for another process. On a file system without locks it is not locked.

    Raises:
        BlockingIOError: another process has it.
    """
    until = time.monotonic() + patience_s
    while True:
        file = regular_file(path, flags | os.O_CLOEXEC, 0o640)
        try:
            if _lock(file) and _is_still(path, file):
                return file
        except OSError:  # there are no locks
            return file
        os.close(file)
        if time.monotonic() > until:
            raise BlockingIOError(
                errno.EWOULDBLOCK, f"another process is writing {path.name}", str(path)
            )
        time.sleep(_INTERVAL_S)


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, file: int) -> bool:
    """Return whether a name still stands for the file that was opened by it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _leave_to_the_parent() -> None:
    """Close the files in a forked child, such as a worker of a data loader.

    What it calls is no part of the step, and its copy of the lock would outlive the parent.
    """
    for file in list(_OPEN):
        file.close()


os.register_at_fork(after_in_child=_leave_to_the_parent)


class StepLog:
    """The log of a step: `record` writes one line, `finish` turns the log into the dump.

    `noted` are fields of the dump's header that are known during the step only; the log lacks them.

    Any thread may call it. A child that this process forks has nothing to do with it: there it does
    nothing. What an earlier capture has left in the folder is removed: its dump or log, not its tensors.

    Raises:
        BlockingIOError: another process is writing a log in this folder.
        OSError: the folder cannot be written.
    """

    def __init__(
        self, folder: Path, header: dict[str, object], lines_of: Callable[[int], list[str]]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lines_of = lines_of
        self._keys: dict[int, list[str]] = {}
        self._parents: dict[str, str | None] = {}
        # Reentrant, because a handler of a signal may call an operator while a record is written.
        self._lock = threading.RLock()
        self._fields = header
        self._header = f"{json.dumps(header)}\n"
        self.noted: dict[str, object] = {}
        self._log = LineFile(folder / LOG)
        with ExitStack() as failing:
            failing.callback(self._log.close)
            self._stack_log = LineFile(folder / STACK_LOG)
            failing.callback(self._stack_log.close)
            # A dump beside a log would be taken for the one that the log has become.
            for name in (DUMP, STACKS, CONSTRUCT):
                (folder / name).unlink(missing_ok=True)
            self._log.clear()
            self._stack_log.clear()
            self._log.append(self._header)
            failing.pop_all()

    @property
    def size(self) -> int:
        """How many bytes the log has, that of the stacks included."""
        return self._log.size + self._stack_log.size

    def share(self, writer: SharedWriter) -> None:
        """Let another process add the records, each behind its files."""
        self._log.share(writer, self.folder / TENSORS)

    def settle(self) -> None:
        """Wait until another process has written all records and files; raises as `LineFile.settle`."""
        with self._lock:
            self._log.settle()

    def record(self, key: str, fields: str, stack: int | None, parent: str | None) -> None:
        """Write the record of a call; `fields` are those of msprobe as JSON, without braces.

        The lines of a stack are written before the first record that names it. Of records with the same
        key, such as those of two backward passes through one call, the first counts; after the end of
        the step nothing is written.

        Raises:
            OSError: it cannot be written; the log ends with the record before.
        """
        log = self._log
        if not log.is_open:
            return
        with self._lock:
            if key not in self._parents and log.is_open:
                self._write(key, fields, stack, parent)

    def raise_born(self) -> None:
        """Raise what a record has shown that is to stop the script; here nothing is looked for."""

    def _write(self, key: str, fields: str, stack: int | None, parent: str | None) -> None:
        """Write a record, all of it or nothing: an exception may come out of a signal's handler, too."""
        size, stack_size = self._log.size, self._stack_log.size
        is_new = stack is not None and stack not in self._keys
        is_written = False
        try:
            if stack is not None:
                if is_new:
                    self._keys[stack] = []
                    lines = _lines_text(tuple(self._lines_of(stack)))
                    self._stack_log.append(f'{{"{stack}": {lines}}}\n')
                self._keys[stack].append(key)
            self._parents[key] = parent
            self._log.append(_line(key, fields, stack, parent))
            is_written = True
        finally:
            if not is_written:
                self._log.cut_to(size)
                self._parents.pop(key, None)
                if is_new:
                    self._stack_log.cut_to(stack_size)
                self._forget_stack(key, stack, is_new)

    def _forget_stack(self, key: str, stack: int | None, is_new: bool) -> None:
        if stack is None:
            return
        keys = self._keys.get(stack, [])
        if keys[-1:] == [key]:
            keys.pop()
        if is_new:
            self._keys.pop(stack, None)

    def close(self, cut_short: str = "") -> None:
        """Close the log as it is, with the reason where there is one; `finish_folder` makes a dump of it."""
        if cut_short and self._log.is_open:
            with self._lock:
                self._end_log(cut_short)
        self._log.close()
        self._stack_log.close()

    def _end_log(self, cut_short: str) -> None:
        with suppress(OSError):  # without its last line a log is that of a killed process
            self._log.append(end_of_log(cut_short))

    def finish(self, with_construct: bool, cut_short: str = "") -> None:
        """Write the dump's files, which say why the step was `cut_short`, and remove the log; after `close`
        or in a forked child, do nothing.

        Raises:
            OSError: the files cannot be written; the log stays.
        """
        if not self._log.is_open:
            return
        with self._lock:
            try:
                self._log.settle()
                header = self._header.encode()
                log = Log(header, self._log.size, len(self._parents))
                self._end_log(cut_short)
                stacks = {number: self._lines_of(number) for number in self._keys}
                with (self.folder / LOG).open("rb") as source:
                    write_dump(
                        self.folder,
                        as_dump(
                            json.dumps(self._fields | self.noted).encode(),
                            whole_lines(log, source),
                            cut_short,
                        ),
                        self._keys,
                        stacks,
                        self._parents if with_construct else {},
                    )
            finally:
                # Not before: nobody else may finish the log meanwhile.
                self.close()


def _line(key: str, fields: str, stack: int | None, parent: str | None) -> str:
    """Return the line of a record; a line break in JSON is a blank, and must not end the line."""
    if "\n" in fields:
        fields = fields.replace("\n", " ")
    parts = [fields] if fields else []
    if stack is not None:
        # A text: msprobe's `compare` looks for a word in every field of a record, and fails on numbers.
        parts.append(f'"stack": "{stack}"')
    if parent is not None:
        parts.append(f'"parent": {quoted(parent)}')
    return f"{{{quoted(key)}: {{{', '.join(parts)}}}}}\n"


def write_dump(
    folder: Path,
    dump: Iterable[bytes],
    keys: Mapping[int, Sequence[str]],
    stacks: Mapping[int, Sequence[str]],
    parents: Mapping[str, str | None],
    *,
    is_durable: bool = False,
) -> None:
    """Put dump.json, stack.json and construct.json in the place of the log in a folder.

    `keys` are the records of each stack, `stacks` its lines. Each file appears as a whole, dump.json last.
    What `is_durable` outlasts a machine that loses its power, which takes time.

    Raises:
        OSError: a file cannot be written; the log stays, and nothing else.
    """
    contents = {
        STACKS: [_stacks_text(keys, stacks).encode()],
        CONSTRUCT: [_construct_text(parents).encode()],
        DUMP: dump,
    }
    parts = {name: folder / f"{name}.part" for name in contents}
    try:
        for name, pieces in contents.items():
            with parts[name].open("wb") as file:
                file.writelines(pieces)
                if is_durable:
                    file.flush()
                    os.fsync(file.fileno())
        for name in contents:
            os.replace(parts[name], folder / name)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    remove_log(folder)


def remove_log(folder: Path) -> None:
    """Remove the log of a folder whose dump.json is there; dump.jsonl last, which says that it was not."""
    (folder / STACK_LOG).unlink(missing_ok=True)
    (folder / LOG).unlink(missing_ok=True)


def _stacks_text(keys: Mapping[int, Sequence[str]], stacks: Mapping[int, Sequence[str]]) -> str:
    """Return stack.json: for each stack the records that it led to, and its lines."""
    entries = [
        f'"{place}": [{array(map(quoted, keys[number]))}, {_lines_text(tuple(stacks[number]))}]'
        for place, number in enumerate(sorted(keys))
    ]
    return "{" + ",\n".join(entries) + "}\n"


@functools.lru_cache(1 << 12)
def _lines_text(lines: tuple[str, ...]) -> str:
    """Return the lines of a stack, most of which come again in each step."""
    return array(map(quoted, lines))


def _construct_text(parents: Mapping[str, str | None]) -> str:
    """Return construct.json: for each record the module that it is a part of."""
    entries = [
        f" {quoted(key)}: {'null' if parent is None else quoted(parent)}"
        for key, parent in parents.items()
    ]
    return "{\n" + ",\n".join(entries) + "\n}\n" if entries else "{}\n"
