"""The comparison of two captures as a job: every pair of records, measured and judged.

Comes in: two open captures, their pieces, and the settings of the comparison. Goes out: a `Job`, its
`Opener` and its `Runner`. The session makes a `ComparisonJob`; workers are given its opener, and read the
files of a piece themselves, or get them with it where they do not see the folders.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray_precheck.commands.compare.rows import (
    GOLDEN,
    NOISE,
    TARGET,
    ComparisonInputFiles,
    ComparisonPayload,
    ComparisonSettings,
    PairFiles,
    PieceReading,
    PieceRows,
    SideRecords,
    rows_of_piece,
    unread_rows,
)
from ray_precheck.dump.mapped import MappedTensors
from ray_precheck.dump.tensors import FolderFiles, TensorFiles
from ray_precheck.runtime.job import InputFiles, Tell
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.runtime.workers.shared import require_folders, seen_folders
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import Cause, DeviceSlot, Done, Task
from ray_precheck.store.tables import Tables, encode_name
from ray_precheck.trace.alignment.align import RecordPair
from ray_precheck.trace.difference.measuring import Reading, Source
from ray_precheck.trace.difference.rows import ComparisonMode, encode_rows, headings
from ray_precheck.trace.difference.standards.registry import standard_of
from ray_precheck.trace.side import API, BACKWARD, FORWARD, CaptureSide, RecordEntry
from ray_precheck.trace.sources import model_line

CALL_COLUMNS = (
    "Call",
    "Result",
    "Golden Call",
    "Match",
    "Rows",
    "Errors",
    "Warnings",
    "Unmatched",
    "Relative L2",
    "Module",
    "Source",
    "Message",
)
_VERDICTS = {"pass": Verdict.PASS, "warning": Verdict.PASS, "error": Verdict.ERROR}


def tables_of(mode: ComparisonMode) -> Tables:
    """Return the tables of a comparison: `compare_calls_*.csv`, `compare_result_*.csv`."""
    return Tables(
        "compare",
        CALL_COLUMNS,
        headings(mode),
        detail_parts=None,
        verdicts=1,
        needs_details=False,
        words=("calls", "result"),
        unit="pairs",
    )


class ComparisonJob:
    """The pieces of two captures as a job. `noise_of` has the record of the second golden run for each
    key of the golden one; `shared_fs`: every machine sees both folders of tensors."""

    def __init__(
        self,
        target: CaptureSide,
        golden: CaptureSide,
        pieces: Sequence[RecordPair],
        settings: ComparisonSettings,
        *,
        noise: CaptureSide | None = None,
        noise_of: Mapping[str, RecordEntry] | None = None,
        shared_fs: bool = False,
    ) -> None:
        self._target, self._golden, self._noise = target, golden, noise
        self._pieces = pieces
        self._settings = settings
        self._noise_of = noise_of or {}
        self._forward = [
            {
                each.call: each
                for each in side.entries
                if each.direction == FORWARD and each.kind == API
            }
            for side in (target, golden)
        ]
        self.names = [piece.name for piece in pieces]
        self.tables: Tables = tables_of(settings.mode)
        self.has_bench = False
        self.bench_suffices = False
        self.memory_limit_bytes = 0
        self._shares_files = settings.mode is ComparisonMode.REAL and shared_fs
        sends = settings.mode is ComparisonMode.REAL and not shared_fs
        self.input_files: InputFiles | None = (
            ComparisonInputFiles(lambda task: self.payload(task).by_side(), settings.folders)
            if sends
            else None
        )

    def payload(self, task: Task) -> ComparisonPayload:
        """Return the raw records of a piece, read from both dumps."""
        piece = self._pieces[task.index]
        noise = [self._noise_of[each.key] for each in piece.golden if each.key in self._noise_of]
        first = (piece.target or piece.golden)[0]
        side = self._target if piece.target else self._golden
        return ComparisonPayload(
            task.index,
            task.name,
            first.call.rpartition(".")[0],
            piece.how.value,
            piece.note,
            SideRecords.of(self._target, piece.target),
            SideRecords.of(self._golden, piece.golden),
            SideRecords.of(self._noise, noise) if self._noise is not None else SideRecords(),
            side.modules.get(first.key, ""),
            tuple(side.stacks.get(first.key, ())),
            self._saved(piece),
        )

    def _saved(self, piece: RecordPair) -> tuple[SideRecords, SideRecords]:
        """Return the forward records of a pair of backward calls; modules save tensors of their inside."""
        found = (SideRecords(), SideRecords())
        if len(piece.target) == len(piece.golden) == 1 and piece.target[0].direction == BACKWARD:
            calls = piece.target[0].call, piece.golden[0].call
            own, other = (of.get(call) for of, call in zip(self._forward, calls, strict=True))
            if own is not None and other is not None:
                found = (SideRecords.of(self._target, [own]), SideRecords.of(self._golden, [other]))
        return found

    def opener(self, *, is_home: bool) -> "ComparisonOpener":
        """Return the opener of a worker's runner. With a shared file system other machines must see the
        folders of the tensors."""
        folders = self._settings.folders.values() if self._shares_files else ()
        return ComparisonOpener(self._settings, seen_folders(folders, is_home=is_home))

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        """Return the rows of a piece that broke its worker: errors."""
        return self._without_numbers(task, "error", reason)

    def unchecked(self, task: Task, reason: str) -> Done:
        """Return the rows of a piece that could not be compared: unmatched."""
        return self._without_numbers(task, "unmatched", reason)

    def _without_numbers(self, task: Task, result: str, reason: str) -> Done:
        payload = self.payload(task)
        return _done(payload, unread_rows(payload, self._settings.mode, result, reason), 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ComparisonOpener:
    """Opens the runner of a slot, in the check process; it needs no device. `must_see` are folders that its
    machine has to have."""

    settings: ComparisonSettings
    must_see: tuple[Path, ...] = ()
    memory_limit_bytes: int = 0

    def open(self, slot: DeviceSlot, tell: Tell) -> "ComparisonRunner":
        """Return a runner.

        Raises:
            DeviceError: the machine does not share the captured tensors that it is said to share.
        """
        require_folders(slot, self.must_see, "the captured tensors")
        return ComparisonRunner(self.settings)


class ComparisonRunner:
    """Compares one piece after the other. `reading` is how the pieces are read, by default from the
    folders of the settings, which have no sketches."""

    caveat = ""

    def __init__(self, settings: ComparisonSettings, reading: PieceReading | None = None) -> None:
        self._settings = settings
        self._standard = standard_of(settings.standard, settings.max_err)
        self._reading = reading or _reading(
            settings, {side: FolderFiles(path) for side, path in settings.folders.items()}
        )

    def run(
        self,
        payload: ComparisonPayload,
        stage: Stage,
        *,
        files: Any = None,
        half: Any = None,
        threads: int = 1,
        is_near: bool = False,
    ) -> Done:
        """Compare a piece; `files` has its files on a machine that sees no folder."""
        began_s, began = time.time(), time.perf_counter()
        settings, reading = self._settings, self._reading
        if isinstance(files, PairFiles):
            reading = _reading(settings, files.folders())
        rows = rows_of_piece(payload, self._standard, settings, reading)
        return _done(payload, rows, began_s, time.perf_counter() - began)

    def damage(self) -> tuple[Cause, str] | None:
        """Return None: reading files leaves nothing behind."""
        return None


def _reading(settings: ComparisonSettings, files: Mapping[str, TensorFiles]) -> PieceReading:
    """Return how pieces are read from these files."""
    is_real = settings.mode is ComparisonMode.REAL
    sources = {
        side: Source(MappedTensors(each) if is_real else None) for side, each in files.items()
    }
    pair = Reading(
        settings.mode, sources[TARGET], sources[GOLDEN], settings.same_framework, settings.framework
    )
    if NOISE not in settings.folders:
        return PieceReading(pair)
    noise = replace(pair, target=sources[GOLDEN], golden=sources[NOISE], same_framework=True)
    return PieceReading(pair, noise)


def _done(payload: ComparisonPayload, rows: PieceRows, began_s: float, took_s: float) -> Done:
    row = (
        encode_name(payload.name),
        rows.result,
        encode_name(", ".join(key for key, _ in payload.golden.records)),
        payload.how,
        *map(str, (rows.rows, rows.errors, rows.warnings, rows.unmatched)),
        rows.relative_l2,
        payload.module,
        model_line(payload.stack),
        rows.message,
    )
    verdict = _VERDICTS.get(rows.result, Verdict.SKIP)
    return Done(
        payload.index,
        payload.name,
        verdict,
        encode_rows([row]),
        rows.encoded,
        began_s,
        device_s=took_s,
    )


def tasks_of(job: ComparisonJob, done: set[str], costs_s: Sequence[float]) -> list[Task]:
    """Return a task for each piece that is not done, in their order."""
    return [
        Task(index, name, costs_s[index])
        for index, name in enumerate(job.names)
        if name not in done
    ]
