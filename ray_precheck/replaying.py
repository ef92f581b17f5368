"""A replay on the CPU of calls whose captured results are not finite, from its configuration to its report.

Comes in: a `RunConfig`. Goes out: a `ReplayReport`. Called by the command `run_overflow_check`. It is a
precheck of these calls with another job: `jobs.overflow.replay`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ray_precheck.config import RunConfig
from ray_precheck.dump.folders import find_dumps
from ray_precheck.dump.parse import open_dump
from ray_precheck.errors import UsageError
from ray_precheck.foreign import open_file
from ray_precheck.jobs.overflow.replay import REPLAY_TABLES, ReplayJob, overflowed
from ray_precheck.jobs.precheck.subject import find_subject, read_options
from ray_precheck.runtime.driving import RunSetting, drive_to_end, planned
from ray_precheck.runtime.places.choice import Cluster
from ray_precheck.runtime.progress import Progress
from ray_precheck.store.columns import decode_row
from ray_precheck.store.done import ResultRow, parse_result_row
from ray_precheck.store.opening import NewFiles, opened_run
from ray_precheck.store.repair import rows_below
from ray_precheck.store.resume import RunFiles
from ray_precheck.store.stamps import new_stamp


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The report of a replay; `calls` counts those of the dump, of which `rows` had overflowed."""

    files: RunFiles | None
    rows: tuple[ResultRow, ...]
    calls: int
    completed: bool
    stop_reason: str = ""


def replay_overflows(
    config: RunConfig, *, on_files: Callable[[RunFiles], None] = lambda files: None
) -> ReplayReport:
    """Replay the calls of a dump whose captured results are not finite.

    Raises:
        PrecheckError: a wrong option or dump, or a replay that stopped before a row was written.
    """
    config = replace(config, device_type="cpu", tested="device", bench_workers=0)
    config.validate()
    found = find_dumps(config.dump)
    if len(found.dumps) > 1:
        raise UsageError(
            f"{config.dump} is a folder of {len(found.dumps)} dumps; name one of them, such as"
            f" {found.dumps[0].path}"
        )
    with ExitStack() as held, open_dump(found.dumps[0].path) as dump, ExitStack() as joined:
        calls = len(dump.calls)
        dump.calls = overflowed(dump)
        if not dump.calls:
            return ReplayReport(None, (), calls, completed=True)
        cluster = Cluster(config, joined)
        subject = find_subject(read_options(config), dump, cluster, is_alone=False, show=True)
        names = {call.name for call in dump.calls}
        new, fingerprint = NewFiles(config.out, new_stamp()), subject.fingerprint()
        opened = held.enter_context(
            opened_run(
                config.resume_csv, new, names, fingerprint, config, REPLAY_TABLES, subject.reads
            )
        )
        files, done = opened.files, opened.done
        on_files(files)
        progress = Progress(len(names), len(done))
        plan = subject.plan(done, progress)
        job = ReplayJob(dump, subject.check_settings(files), shared_fs=config.shared_fs)
        setting = RunSetting(config, cluster, subject.places, files, progress)
        planning = planned(plan.tasks, plan.settled)
        end = drive_to_end(job, planning, setting, is_new=opened.is_new)
        end.require_rows()
        return ReplayReport(files, tuple(_rows(files.result)), calls, end.completed, end.reason)


def _rows(path: Path) -> Iterator[ResultRow]:
    with open_file(path) as file:
        for line in rows_below(file, REPLAY_TABLES.result):
            yield parse_result_row(decode_row(line), REPLAY_TABLES)
