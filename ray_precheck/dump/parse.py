"""dump.json as a whole: its header and where each API call stands in the file.

Comes in: a path. Goes out: a `Dump` with one `DumpCall` for every API call, in the order of the
file, and one for every record that is no API call. Records are read when they are needed. The log
of a capture that was cut off is read as the dump.json that it would have become.
"""

import gc
import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import orjson

from ray_precheck.descriptors.descriptor import (
    framework_names,
    is_framework,
    known_frameworks,
)
from ray_precheck.dump.folders import LOG_FILE, cut_note, is_being_written, standing_for
from ray_precheck.dump.log import (
    Log,
    as_dump,
    log_members,
    scan_log,
    whole_lines,
)
from ray_precheck.dump.scan import (
    ApiKey,
    ByteRange,
    Member,
    OnProgress,
    parse_key,
    read_value,
    scan_dump,
    silent,
    split_key,
    value_of,
)
from ray_precheck.errors import DumpError, NothingToCheckError
from ray_precheck.foreign import open_file, shown
from ray_precheck.schema.dtypes import FULL_FLOAT32, Float32, from_header
from ray_precheck.schema.task import Task, TaskPayload

STATISTICS, TENSOR, STRUCTURE = "statistics", "tensor", "structure"
# They hold statistics, and tensors where the check that they are named for had found something.
_CHECKS = ("overflow_check", "nan_check")
TASKS = (STATISTICS, TENSOR, STRUCTURE, *_CHECKS)
# A record is read as a whole; a call with 1,500 tensors has 0.5 MB.
LARGEST_RECORD_BYTES = 64 << 20
_LARGEST_FIELD_BYTES = 1 << 14
_SHOWN_FIELDS = 20
_WORD = re.compile(r"\w{1,60}")
# The memory that the names of all calls may take: this much, and half of the file's size.
_SURE_NAME_BYTES = 256 << 20
_DIGEST_CHUNK = 1 << 20
_LOOKED_AT = 1000


@dataclass(slots=True)
class DumpCall:
    """One row to come: an API call with its records, or a foreign record with the reason."""

    name: str
    forward: ByteRange | None = None
    backward: ByteRange | None = None
    foreign: str = ""


@dataclass(slots=True)
class Dump:
    """An open dump.json: header fields, the calls in file order, and the file to read them from.

    `task` is how its calls are checked: tensor with captured files, statistics with generated inputs.
    `framework` is "" where the header does not name it and no record tells. `knows_layouts`: a tensor
    of it without strides was contiguous. `float32` are the formats of the operands of float32 products.
    """

    path: Path
    task: str
    framework: str
    data_folder: Path
    file: BinaryIO
    calls: list[DumpCall] = field(default_factory=list)
    log: Log | None = None
    knows_layouts: bool = False
    float32: Float32 = FULL_FLOAT32

    @property
    def note(self) -> str:
        """A sentence about a dump that was cut short, or is the log of a capture; "" for a whole one."""
        if self.log is None:
            return cut_note(self.path)
        begin = f"{self.path} is the log of a capture that"
        if is_being_written(self.file):
            return f"{begin} is still being written; read up to record {self.log.records}"
        return (
            f"{begin} was cut off after {self.log.records} records; `ray-precheck capture --finish"
            f" {self.path.parent}` makes a dump.json of it"
        )

    def payload(self, task: Task) -> TaskPayload:
        """Read the raw records of a task from the file."""
        call = self.calls[task.index]
        return TaskPayload(task.index, call.name, self.raw(call.forward), self.raw(call.backward))

    def raw(self, span: ByteRange | None) -> bytes | None:
        """Read the raw JSON of one record; None for a record that the dump does not have."""
        if span is None:
            return None
        # Without the file's buffer: forward and backward records lie far from each other.
        length = max(0, span.end - span.start)
        return value_of(os.pread(self.file.fileno(), length, span.start))

    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal, by which a resumed run knows its dump.

        A log has the digest of the dump.json that it becomes, so that a run goes on when it is finished.
        """
        state = hashlib.sha256()
        if self.log is not None:
            lines = whole_lines(self.log, self.file)
            pieces = as_dump(self.log.header, lines, self.log.cut_short)
        else:
            self.file.seek(0)
            pieces = iter(partial(self.file.read, _DIGEST_CHUNK), b"")
        for piece in pieces:
            state.update(piece)
        return state.hexdigest()

    def __enter__(self) -> "Dump":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def open_dump(path: str | os.PathLike[str], on_progress: OnProgress = silent) -> Dump:
    """Open a dump.json, or the log of a capture, and find its calls.

    A dump.json that is not there stands for the log beside it, and the other way round.

    `on_progress` is told the bytes that are dealt with and the file's size, every few MiB.

    Raises:
        DumpError: no such file, not JSON, cut off, no `data`, unknown task or framework, or no API.
    """
    where = Path(path)
    try:
        where = standing_for(where)
        _require_file(where)
        file = open_file(where)
        with ExitStack() as stack:
            stack.enter_context(file)
            dump = _read_dump(file, where, on_progress)
            stack.pop_all()  # The dump is good and keeps its file open.
    except OSError as error:
        raise DumpError(f"cannot read the dump {where}: {error.strerror or error}") from None
    return dump


def _require_file(where: Path) -> None:
    try:
        mode = os.stat(where).st_mode
    except ValueError as error:  # a null byte in the path
        raise DumpError(f"cannot read the dump {str(where)!r}: {error}") from None
    if stat.S_ISDIR(mode):
        raise DumpError(f"{where} is a folder; name the dump.json in it")


def _read_dump(file: BinaryIO, path: Path, on_progress: OnProgress) -> Dump:
    log = None
    if path.suffix == Path(LOG_FILE).suffix:
        log, header = scan_log(file, str(path), on_progress)
        members = log_members(log, file, str(path), on_progress)
    else:
        header, members = scan_dump(file, str(path), on_progress)
    fields = dict(header)
    if log is None and "data" not in fields:
        keys = sorted(fields)[:_SHOWN_FIELDS]
        found = ", ".join(key if _WORD.fullmatch(key) else shown(key) for key in keys) or "nothing"
        raise DumpError(f"{path} has no 'data' (found: {found}); is it a dump.json of msprobe?")
    if log is None and not _begins_an_object(file, fields["data"]):
        raise DumpError(f"'data' of {path} must be an object of API records")
    task = _header_text(file, fields, "task", path) or STATISTICS
    if task not in TASKS:
        expected = ", ".join(TASKS)
        raise DumpError(f"task {shown(task)} of {path} is unknown; expected one of: {expected}")
    framework = _header_text(file, fields, "framework", path)
    if framework and not is_framework(framework):
        expected = ", ".join(framework_names())
        raise DumpError(
            f"framework {shown(framework)} of {path} is unknown; expected one of: {expected}"
        )
    folder = _data_folder(path, _header_text(file, fields, "dump_data_dir", path))
    name_limit = _SURE_NAME_BYTES + os.fstat(file.fileno()).st_size // 2
    with _without_collector():
        calls, has_modules = _group_calls(members, name_limit, path, first_counts=log is not None)
    if not calls and task == STRUCTURE:
        raise DumpError(
            f"{path} has no records of calls, as its task is structure; capture the step with task"
            f" {STATISTICS} or {TENSOR}"
        )
    if not calls and has_modules:
        raise DumpError(f"{path} holds modules but no API; capture it with level L1 or mix")
    if not calls:
        raise NothingToCheckError(
            f"'data' of {path} is empty: the capture saw no API call"
            if log is None
            else f"{path} holds no call: the capture was cut off before the first one"
        )
    size = os.fstat(file.fileno()).st_size
    on_progress(size, size)
    framework = framework or _guess_framework(file, calls)
    knows = "layouts" in fields and read_value(file, fields["layouts"]).strip() == b"true"
    float32 = _header_float32(file, fields)
    return Dump(
        path, _checked_as(task, folder), framework, folder, file, calls, log, knows, float32
    )


def _header_float32(file: BinaryIO, fields: dict[str, ByteRange]) -> Float32:
    """Return the formats that the header names; full float32 where it names none that is known."""
    span = fields.get("float32")
    if span is None or span.end - span.start > _LARGEST_FIELD_BYTES:
        return Float32()
    try:
        return from_header(orjson.loads(read_value(file, span)))
    except ValueError:
        return Float32()


def _checked_as(task: str, folder: Path) -> str:
    """Return whether calls are checked with captured tensors or with generated ones.

    A dump of task structure has shapes, and no statistics either: inputs are drawn as for a tensor
    without Max and Min.
    """
    if task in _CHECKS and folder.is_dir():
        return TENSOR
    return task if task == TENSOR else STATISTICS


def _begins_an_object(file: BinaryIO, span: ByteRange) -> bool:
    """Return whether a value is an object, by its first character that is no blank."""
    file.seek(span.start)
    left = span.end - span.start
    while left > 0 and (piece := file.read(min(left, _LARGEST_FIELD_BYTES))):
        if piece.lstrip():
            return piece.lstrip().startswith(b"{")
        left -= len(piece)
    return False


def _header_text(file: BinaryIO, fields: dict[str, ByteRange], key: str, path: Path) -> str:
    """Return a header field as text, "" where it is missing or null.

    Raises:
        DumpError: the value is not a text, or not a short one.
    """
    if key not in fields:
        return ""
    length = fields[key].end - fields[key].start
    if length > _LARGEST_FIELD_BYTES:
        raise DumpError(f"{key!r} of {path} has {length} bytes; a short text is expected")
    raw = read_value(file, fields[key])
    try:
        value = orjson.loads(raw)
    except ValueError:
        raise DumpError(f"{key!r} of {path} is {shown(raw)}; a text is expected") from None
    if value is not None and not isinstance(value, str):
        raise DumpError(f"{key!r} of {path} is {shown(value)}; a text is expected")
    return value or ""


def _guess_framework(file: BinaryIO, calls: list[DumpCall]) -> str:
    """Return the framework that the tensor types of the first records name (old dumps).

    Of two with the same tensors the one is meant whose own prefix stands in the dump.
    """
    frameworks = sorted(known_frameworks(), key=lambda each: not each.told_by)
    records = (span for call in calls for span in (call.forward, call.backward) if span)
    for span in islice(records, _LOOKED_AT):
        if span.end - span.start > LARGEST_RECORD_BYTES:
            continue
        raw = read_value(file, span)
        for framework in frameworks:
            modules = {name.partition(".")[0] for name in framework.tensor_types}
            prefix = f"{framework.told_by}." if framework.told_by else ""
            if any(f'"{module}.'.encode() in raw for module in modules) and any(
                call.name.startswith(prefix) for call in calls
            ):
                return framework.name
    return ""


@contextmanager
def _without_collector() -> Iterator[None]:
    """Make millions of objects that stay, without Python looking through them for cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _group_calls(
    members: Iterable[Member], name_limit: int, path: Path, *, first_counts: bool
) -> tuple[list[DumpCall], bool]:
    """Return one call for each name, in order of appearance, and whether there are modules, too.

    A module is no API: `compare` and `locate` read its records. Of a record that stands twice the last one
    counts, as for readers of JSON; in a log the first.
    """
    calls: dict[str, DumpCall] = {}
    has_modules = False
    name_bytes = 0
    for key, span in members:
        named = split_key(key)
        foreign = None if named else parse_key(key)
        assert not isinstance(foreign, ApiKey)
        if foreign is not None and foreign.is_module:
            has_modules = True
            continue
        name, direction = named or (key, "")
        call = calls.get(name)
        if call is None:
            call = calls[name] = DumpCall(name)
            name_bytes += sys.getsizeof(name)
            if name_bytes > name_limit:
                raise DumpError(
                    f"the names in {path} take more than {name_limit >> 20} MiB of memory; names of"
                    " API calls are short: is it a dump.json of msprobe?"
                )
        if foreign is None:
            if not (first_counts and getattr(call, direction)):
                call.foreign = ""  # a foreign record of the same name gives way to the call
                setattr(call, direction, span)
        elif call.forward is None and call.backward is None:
            call.foreign = foreign.reason
    return list(calls.values()), has_modules


def _data_folder(path: Path, recorded: str) -> Path:
    """Return the folder of captured tensors: beside the dump, else where the header says."""
    beside = path.parent / "dump_tensor_data"
    return beside if beside.is_dir() or not recorded else Path(recorded)
