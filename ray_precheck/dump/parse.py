"""dump.json as a whole: its header and where each API call stands in the file.

Comes in: a path. Goes out: a `Dump` with one `DumpCall` for every API call, in the order of the
file, and one for every record that is no API call. Records are read when they are needed.
"""

import hashlib
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import orjson

from ray_precheck.dump.names import ApiKey, parse_key
from ray_precheck.dump.scan import Member, read_value, scan_dump
from ray_precheck.errors import DumpError
from ray_precheck.schema.task import Task, TaskPayload

FRAMEWORKS = ("mindspore", "pytorch", "mindtorch")
TASKS = ("statistics", "tensor")
_DIGEST_CHUNK = 1 << 20


@dataclass(slots=True)
class DumpCall:
    """One row to come: an API call with its records, or a foreign record with the reason."""

    name: str
    forward: Member | None = None
    backward: Member | None = None
    foreign: str = ""


@dataclass(slots=True)
class Dump:
    """An open dump.json: header fields, the calls in file order, and the file to read them from.

    `framework` is "" where the header does not name it and no record tells.
    """

    path: Path
    task: str
    framework: str
    data_folder: Path
    file: BinaryIO
    calls: list[DumpCall] = field(default_factory=list)

    def payload(self, task: Task) -> TaskPayload:
        """Read the raw records of a task from the file."""
        call = self.calls[task.index]
        return TaskPayload(task.index, call.name, self.raw(call.forward), self.raw(call.backward))

    def raw(self, member: Member | None) -> bytes | None:
        """Read the raw JSON of one record; None for a record that the dump does not have."""
        return None if member is None else read_value(self.file, member)

    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal: what a resumed run must find unchanged."""
        self.file.seek(0)
        state = hashlib.sha256()
        while chunk := self.file.read(_DIGEST_CHUNK):
            state.update(chunk)
        return state.hexdigest()

    def __enter__(self) -> "Dump":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.file.close()


def open_dump(path: str | os.PathLike[str]) -> Dump:
    """Open a dump.json and find its calls.

    Raises:
        DumpError: no such file, not JSON, cut off, no `data`, unknown task or framework, or no API.
    """
    where = Path(path)
    if where.is_dir():
        raise DumpError(f"{where} is a folder; name the dump.json in it")
    try:
        file = where.open("rb")
    except OSError as error:
        raise DumpError(f"cannot read the dump {where}: {error.strerror}") from None
    with ExitStack() as stack:
        stack.enter_context(file)
        dump = _read_dump(file, where)
        stack.pop_all()  # The dump is good and keeps its file open.
    return dump


def _read_dump(file: BinaryIO, path: Path) -> Dump:
    header, members = scan_dump(file, str(path))
    fields = {member.key: member for member in header}
    if "data" not in fields:
        found = ", ".join(sorted(fields)) or "nothing"
        raise DumpError(f"{path} has no 'data' (found: {found}); is it a dump.json of msprobe?")
    if not read_value(file, fields["data"]).startswith(b"{"):
        raise DumpError(f"'data' of {path} must be an object of API records")
    task = _header_text(file, fields, "task") or "statistics"
    if task not in TASKS:
        raise DumpError(f"task {task!r} of {path} is unknown; expected one of: {', '.join(TASKS)}")
    framework = _header_text(file, fields, "framework") or _guess_framework(file, members)
    if framework and framework not in FRAMEWORKS:
        expected = ", ".join(FRAMEWORKS)
        raise DumpError(
            f"framework {framework!r} of {path} is unknown; expected one of: {expected}"
        )
    calls, has_modules_only = _group_calls(members)
    if not calls:
        raise DumpError(f"'data' of {path} is empty: the capture saw no API call")
    if has_modules_only:
        raise DumpError(f"{path} holds modules but no API; capture it with level L1 or mix")
    folder = _data_folder(path, _header_text(file, fields, "dump_data_dir"))
    return Dump(path, task, framework, folder, file, calls)


def _header_text(file: BinaryIO, fields: dict[str, Member], key: str) -> str:
    """Return a header field as text, "" where it is missing, null or not decodable."""
    if key not in fields:
        return ""
    try:
        value = orjson.loads(read_value(file, fields[key]))
    except ValueError:
        return ""
    return "" if value is None else str(value)


def _guess_framework(file: BinaryIO, members: list[Member]) -> str:
    """Return the framework that the tensor types of the first records name (old dumps)."""
    for member in members[:1000]:
        raw = read_value(file, member)
        if b'"mindspore.' in raw:
            return "mindspore"
        if b'"torch.' in raw:
            return "pytorch"
    return ""


def _group_calls(members: list[Member]) -> tuple[list[DumpCall], bool]:
    """Return one call for each name, in order of appearance, and whether all are modules."""
    calls: dict[str, DumpCall] = {}
    modules_only = bool(members)
    for member in members:
        key = parse_key(member.key)
        if not isinstance(key, ApiKey):
            modules_only = modules_only and key.is_module
            calls.setdefault(member.key, DumpCall(member.key, foreign=key.reason))
            continue
        modules_only = False
        call = calls.setdefault(str(key.name), DumpCall(str(key.name)))
        call.foreign = ""  # a foreign record of the same name gives way to the call
        if key.direction == "forward":
            call.forward = member
        else:
            call.backward = member
    return list(calls.values()), modules_only


def _data_folder(path: Path, recorded: str) -> Path:
    """Return the folder of captured tensors: beside the dump, else where the header says."""
    beside = path.parent / "dump_tensor_data"
    if beside.is_dir() or not recorded:
        return beside
    return Path(recorded)
