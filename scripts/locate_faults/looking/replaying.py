"""The baseline: own errors of a capture, by the precheck of what it holds (`--tested dump --standard auto`).

Comes in: a dump.json with tensors. Goes out: the directions that are in error, the largest first. Called by
the child of a model. A call whose record and tensors are the same as in an earlier capture of the process
is not checked again: a fault leaves the calls before it as they were.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import orjson

from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.commands.locate.job import LocationOpener
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.replay.planner import plan_tasks
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import TaskPayload

_known: dict[bytes, Any] = {}


class _Remembering:
    """A runner that looks up what it has done before."""

    def __init__(self, runner: Any, folders: Mapping[str, Path | None]) -> None:
        self._runner = runner
        self._folders = folders

    def run(self, payload: Any, *args: Any, **kwargs: Any) -> Any:
        state = hashlib.blake2b(f"{payload.index} {payload.is_replayed}".encode())
        for side, folder in self._folders.items():
            records = getattr(payload, side)
            if folder is not None:
                state.update(b"-" if records is None else digest_of(records, folder))
            state.update(b"|")
        key = state.digest()
        if key not in _known:
            _known[key] = self._runner.run(payload, *args, **kwargs)
        return _known[key]

    def damage(self) -> Any:
        return self._runner.damage()


def forget() -> None:
    """Forget what was replayed, because another model follows."""
    _known.clear()


@contextmanager
def remembered() -> Iterator[None]:
    """Let searches in this process look up calls that were replayed before.

    `locate` itself replays every call of each capture; here hundreds of captures of one step differ in some
    of its calls. A call is the same where its records, and the contents of all files that they name, are.
    """
    original = LocationOpener.open

    def opened(opener: LocationOpener, *args: Any) -> Any:
        settings = opener.settings
        folders = {"target": settings.target.data_folder, "golden": settings.golden_folder}
        return _Remembering(original(opener, *args), folders)

    with mock.patch.object(LocationOpener, "open", opened):
        yield


_STANDARD = "auto"
_SHOWN = 12


class OwnError(NamedTuple):
    """A direction of a call that the precheck calls an error.

    `share` is its largest error over that of the worst honest implementation, infinite where there is none.
    """

    key: str
    share: float
    message: str


class Replayed(NamedTuple):
    """What the precheck says of a capture; `skipped` are the calls that it could not check."""

    errors: tuple[OwnError, ...]
    calls: int
    skipped: dict[str, str]


class Replay:
    """Prechecks captures of one process, each call once."""

    def __init__(self) -> None:
        self._known: dict[bytes, TaskResult] = {}

    def of(self, path: Path) -> Replayed:
        """Precheck a capture."""
        errors: list[OwnError] = []
        skipped: dict[str, str] = {}
        with open_dump(path) as dump:
            settings = CheckSettings(
                dump.framework,
                dump.task,
                dump.data_folder,
                tests_dump=True,
                standard=STANDARDS[_STANDARD](),
                device_type="cpu",
            )
            checker = Checker(settings, "cpu")
            plan = plan_tasks(dump, dump.framework, set())
            for result in (*plan.skipped, *self._results(dump, plan.tasks, checker)):
                errors += _errors_of(result)
                if Verdict.SKIP in (result.forward, result.backward):
                    skipped[result.name] = result.message
            calls = len(dump.calls)
        errors.sort(key=lambda error: -error.share)
        return Replayed(tuple(errors), calls, skipped)

    def _results(self, dump: Dump, tasks: Any, checker: Checker) -> Iterator[TaskResult]:
        for task in tasks:
            payload = dump.payload(task)
            digest = digest_of(payload, dump.data_folder)
            if digest not in self._known:
                self._known[digest] = checker.check(payload)
            yield self._known[digest]


def named_by(replay: Replay, path: Path) -> list[list[Any]]:
    """Return the first errors of a capture as findings, with no verdict beside them."""
    return [[*each, ""] for each in replay.of(path).errors[:_SHOWN]]


def digest_of(payload: TaskPayload, folder: Path) -> bytes:
    """Return a digest of a call's name, its records and the tensors that they name."""
    state = hashlib.blake2b(payload.name.encode())
    for record in (payload.forward, payload.backward):
        if record is None:
            continue
        state.update(record)
        for name in sorted(set(_files_in(orjson.loads(_plain(record))))):
            state.update((folder / name).read_bytes())
    return state.digest()


def _plain(record: bytes) -> bytes:
    """Return a record without the words for NaN and infinities, which only statistics have."""
    for word in (b"-Infinity", b"Infinity", b"NaN"):
        record = record.replace(word, b"null")
    return record


def _files_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        name = value.get("data_name")
        if isinstance(name, str):
            yield name
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _files_in(each)


def _errors_of(result: TaskResult) -> Iterator[OwnError]:
    for direction, verdict in (("forward", result.forward), ("backward", result.backward)):
        if verdict is not Verdict.ERROR:
            continue
        checks = [
            check
            for check in result.checks
            if check.verdict is Verdict.ERROR and f".{direction}." in check.name
        ]
        share, message = 0.0, result.message
        for check in checks:
            columns = dict(check.columns)
            honest = columns.get("HonestMaxAbsErr")
            metrics = check.metrics
            if metrics is None or metrics.mismatch or not isinstance(honest, float) or not honest:
                found = math.inf
            else:
                found = metrics.max_abs_err / honest
            if found >= share:
                share, message = found, check.message or message
        yield OwnError(f"{result.name}.{direction}", share, message)
