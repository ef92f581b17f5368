"""Calls whose captured results were not finite, run again on the CPU: msprobe 8's `run_overflow_check`.

Comes in: a `RunConfig`. Goes out: a `ReplayReport`. Called by `replay_command`. The job is that of the
precheck, whose workers run the device's half of a check, with the CPU as the device, and look whether its
results are finite. Where they are not either it is a `normal overflow`, else `abnormal`.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ray_precheck.check.attempt import Measured
from ray_precheck.dump.folders import one_dump
from ray_precheck.dump.parse import Dump, DumpCall, open_dump
from ray_precheck.dump.scan import ByteRange, split_key
from ray_precheck.options.commands import IN_ERROR, NOTHING_CHECKED, PASSED, STOPPED
from ray_precheck.replay.config import RunConfig
from ray_precheck.replay.job import PrecheckJob, PrecheckOpener, PrecheckRunner, done_of
from ray_precheck.replay.selected import CallsFeature, find_selected, read_options
from ray_precheck.running.run import RunEnd, resumed_table, run_job, session_of_one
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.schema.environment import environment_to_dict
from ray_precheck.schema.result import Outcome, TaskResult, Verdict
from ray_precheck.schema.task import DeviceSlot, Done, Phase, TaskPayload
from ray_precheck.schema.values import HostTensor
from ray_precheck.store.journal import decoded_rows
from ray_precheck.store.results import ResultRow, parse_result_row
from ray_precheck.store.settings import note_environment
from ray_precheck.store.tables import API_TABLES, RunFiles
from ray_precheck.trace.overflow.records import FollowedRecord, bad_of, opened
from ray_precheck.trace.side import API, RecordEntry, record_from_json

if TYPE_CHECKING:
    from ray_precheck.check.checker import Checker

REPLAY_TABLES = replace(API_TABLES, stem="run_overflow_check", needs_details=False)
NORMAL, ABNORMAL = "normal overflow", "abnormal overflow"


class ReplayJob(PrecheckJob):
    """The calls of a dump as a job, each replayed on the CPU."""

    def __init__(self, dump: Dump, settings: Any, *, shared_fs: bool = False) -> None:
        super().__init__(dump, settings, shared_fs=shared_fs)
        self.tables = REPLAY_TABLES
        self.has_bench = self.bench_suffices = False

    def opener(self, *, is_home: bool) -> "ReplayOpener":
        """Return the opener of a worker's checker."""
        own = super().opener(is_home=is_home)
        return ReplayOpener(own.settings, own.must_see_data)


@dataclass(frozen=True, slots=True)
class ReplayOpener(PrecheckOpener):
    """Opens a checker whose device is the CPU."""

    def open(self, slot: DeviceSlot, tell: Callable[[Phase], None]) -> "ReplayRunner":
        """Load the frameworks and prove them; see `PrecheckOpener.open`."""
        runner = PrecheckOpener.open(self, slot, tell)
        return ReplayRunner(runner.checker, self.settings.framework, self.settings.task)


class ReplayRunner(PrecheckRunner):
    """Runs one call after the other on the CPU."""

    def __init__(self, checker: "Checker", framework: str, task: str) -> None:
        super().__init__(checker, ())
        self._framework = framework
        self._draws = task != "tensor"

    def run(self, payload: TaskPayload, stage: Stage, *, files: Any = None, **others: Any) -> Done:
        """Run a call, and say whether its results are finite where the captured ones are not."""
        began_s = time.time()
        records = records_of(payload, self._framework)
        lost = _lost_inputs(records) if self._draws else ""
        if lost:
            said = f"{lost} held NaN, which inputs that are made of statistics do not have"
            found: TaskResult | Measured = _result(payload, records, [Verdict.SKIP] * 2, said)
        else:
            found = self.checker.measure(payload, files)
        if isinstance(found, Measured):
            found = _judged(payload, records, found)
        return done_of(replace(found, began_s=began_s))


def overflowed(dump: Dump) -> list[DumpCall]:
    """Return the calls of a dump whose captured outputs or gradients are not finite."""
    return [call for call in dump.calls if _overflowed(dump, call)]


def _overflowed(dump: Dump, call: DumpCall) -> bool:
    payload = TaskPayload(0, call.name, dump.raw(call.forward), dump.raw(call.backward))
    return any(each.bad_outputs for each in records_of(payload, dump.framework))


def records_of(payload: TaskPayload, framework: str) -> list[FollowedRecord]:
    """Return the records of a call, forward first; those that the dump has."""
    found = []
    for direction, raw in (("forward", payload.forward), ("backward", payload.backward)):
        key = f"{payload.name}.{direction}"
        if raw is not None and split_key(key) is not None:
            entry = RecordEntry(key, payload.name, direction, API, ByteRange(0, 0))
            found.append(opened(entry, record_from_json(raw), framework))
    return found


def _lost_inputs(records: Sequence[FollowedRecord]) -> str:
    """Return the name of a tensor that held NaN among the inputs of a call, "" if there is none."""
    for record in records:
        for values in bad_of(record.inputs):
            if values.item.is_tensor and values.found is not None and values.found.nan:
                return f"{record.entry.key}.{values.item.path}"
    return ""


def _judged(
    payload: TaskPayload, records: Sequence[FollowedRecord], measured: Measured
) -> TaskResult:
    """Compare what the CPU gave with what was captured, forward and backward."""
    verdicts, said = [Verdict.NONE, Verdict.NONE], []
    given = {"forward": (measured.outputs, measured.error)}
    given["backward"] = (measured.gradients, measured.gradient_error or measured.error)
    for record in records:
        place = ("forward", "backward").index(record.entry.direction)
        results, error = given[record.entry.direction]
        if not record.bad_outputs:
            verdicts[place] = Verdict.PASS
        elif results is None:
            verdicts[place] = Verdict.SKIP
            reason = error.text if error else measured.no_gradients or "it gave none"
            said.append(f"{record.entry.direction}: the CPU has no result: {reason}")
        else:
            is_normal = not _are_finite(results)
            verdicts[place] = Verdict.PASS if is_normal else Verdict.ERROR
            word = f"{NORMAL}: the CPU's result is not finite either"
            other = f"{ABNORMAL}: the CPU's result is finite"
            said.append(f"{record.entry.direction}: {word if is_normal else other}")
    return _result(payload, records, verdicts, "; ".join([*said, *measured.notes]))


def _result(
    payload: TaskPayload, records: Sequence[FollowedRecord], verdicts: Sequence[Verdict], said: str
) -> TaskResult:
    backward = verdicts[1] if len(records) > 1 else Verdict.NONE
    return TaskResult(payload.index, payload.name, Outcome.COMPLETED, verdicts[0], backward, said)


def _are_finite(results: Iterable[Any]) -> bool:
    for each in results:
        if isinstance(each, HostTensor):
            values = each.data
            if values.dtype.kind in "fc" and not np.isfinite(values).all():
                return False
        elif isinstance(each, float) and not math.isfinite(each):
            return False
    return True


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The report of a replay; `calls` counts those of the dump, of which `rows` had overflowed."""

    files: RunFiles | None
    rows: tuple[ResultRow, ...]
    calls: int
    completed: bool
    stop_reason: str = ""


def replay_overflows(
    config: RunConfig, *, on_files: Callable[[Path], None] = lambda path: None
) -> ReplayReport:
    """Replay the calls of a dump whose captured results are not finite.

    Raises:
        PrecheckError: a wrong option or dump, or a replay that stopped before a row was written.
    """
    config = replace(config, device_type="cpu", tested="device", bench_workers=0)
    config.validate()
    path = one_dump(config.dump)
    resumed = resumed_table(config.resume_csv, REPLAY_TABLES)
    with session_of_one(config, show=True, on_files=on_files) as session, open_dump(path) as dump:
        calls = len(dump.calls)
        dump.calls = overflowed(dump)
        if not dump.calls:
            return ReplayReport(None, (), calls, completed=True)
        selected = find_selected(read_options(config), dump, session, is_alone=False)
        feature = _Replay(selected, REPLAY_TABLES)
        return replace(run_job(feature, config, session, config.out, resumed), calls=calls)


class _Replay(CallsFeature[ReplayJob, ReplayReport]):
    """Calls that overflowed, each replayed."""

    def job(self, files: RunFiles, done: set[str]) -> ReplayJob:
        settings = self.selected.check_settings(files)
        shares = self.selected.asked.config.shared_fs
        note_environment(files.settings, environment_to_dict(self.selected.environment))
        return ReplayJob(self.selected.dump, settings, shared_fs=shares)

    def report(self, files: RunFiles, end: RunEnd) -> ReplayReport:
        found = read_replay(files, completed=end.completed)
        return replace(found, calls=len(self.names), stop_reason=end.stop_reason)


def read_replay(files: RunFiles, *, completed: bool) -> ReplayReport:
    """Return the report of a replay from its files, which do not tell how many calls the dump has.

    Raises:
        ResumeError: the table has other columns.
        OSError: it cannot be read.
    """
    cells = decoded_rows(files.result, REPLAY_TABLES.result)
    rows = tuple(parse_result_row(each, REPLAY_TABLES) for each in cells)
    return ReplayReport(files, rows, len(rows), completed)


def replay_exit_code(report: ReplayReport) -> int:
    """Return the exit code of a replay."""
    if not report.completed:
        return STOPPED
    if report.files is None:
        return PASSED
    if any(row.is_error for row in report.rows):
        return IN_ERROR
    return NOTHING_CHECKED if all(row.is_skip for row in report.rows) else PASSED
