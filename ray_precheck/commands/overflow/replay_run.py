"""A replay on the CPU of calls whose captured results are not finite, from its configuration to its report.

Comes in: a `RunConfig`. Goes out: a `ReplayReport`. Called by the command `run_overflow_check`. It is a
precheck of these calls with another job: `commands.overflow.replay_job`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ray_precheck.commands.overflow.replay_job import REPLAY_TABLES, ReplayJob, overflowed
from ray_precheck.dump.folders import one_dump
from ray_precheck.dump.parse import open_dump
from ray_precheck.replay.config import RunConfig
from ray_precheck.replay.subject import SubjectFeature, find_subject, read_options
from ray_precheck.running.run import RunEnd, run_job
from ray_precheck.running.session import resumed_table, session_of_one
from ray_precheck.store.done import ResultRow, parse_result_row
from ray_precheck.store.repair import decoded_rows
from ray_precheck.store.resume import RunFiles


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
        subject = find_subject(read_options(config), dump, session, is_alone=False)
        feature = _Replay(subject, REPLAY_TABLES)
        return replace(run_job(feature, config, session, config.out, resumed), calls=calls)


class _Replay(SubjectFeature[ReplayJob, ReplayReport]):
    """Calls that overflowed, each replayed."""

    def job(self, files: RunFiles, done: set[str]) -> ReplayJob:
        settings = self.subject.check_settings(files)
        shares = self.subject.asked.config.shared_fs
        return ReplayJob(self.subject.dump, settings, shared_fs=shares)

    def report(self, files: RunFiles, end: RunEnd) -> ReplayReport:
        cells = decoded_rows(files.result, REPLAY_TABLES.result)
        rows = tuple(parse_result_row(each, REPLAY_TABLES) for each in cells)
        return ReplayReport(files, rows, len(self.names), end.completed, end.stop_reason)
