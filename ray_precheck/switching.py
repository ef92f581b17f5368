"""A run of calls under default and plain kernels, from its configuration to its report.

Comes in: a `NaiveConfig`. Goes out: a `NaiveReport`. Called by the command `naive`, and by programs that
import the package. It is a precheck of the device's own results with another job: `jobs.naive`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ray_precheck.config import NaiveConfig
from ray_precheck.dump.folders import find_dumps
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.errors import ResumeError, UsageError
from ray_precheck.foreign import open_file
from ray_precheck.jobs.naive import NAIVE_TABLES, NaiveJob
from ray_precheck.jobs.precheck.subject import Subject, find_subject, read_options
from ray_precheck.plan.planner import plan_tasks
from ray_precheck.report.frames import read_table
from ray_precheck.runtime.driving import RunSetting, TaskPlan, drive_to_end, planned
from ray_precheck.runtime.places.choice import Cluster
from ray_precheck.runtime.progress import Progress
from ray_precheck.schema.result import Verdict, verdict_in
from ray_precheck.store.columns import decode_name, decode_row
from ray_precheck.store.opening import NewFiles, OpenedRun, opened_run
from ray_precheck.store.repair import rows_below
from ray_precheck.store.resume import RunFiles
from ray_precheck.store.stamps import new_stamp

if TYPE_CHECKING:
    import pandas

# A call runs under both sides, several times, and its bench with its peers is computed for each.
_COSTS_AS_MANY_CHECKS = 8.0
# Settings of a precheck that mean nothing here.
_WITHOUT = ("standard", "tested")


class NaiveRow(NamedTuple):
    """A row of `naive_{timestamp}.csv`; the errors are numbers as text, "" where they are not known."""

    name: str
    verdict: Verdict
    default_error: str
    naive_error: str
    difference: str
    wrong: str
    switch: str
    reproducible: str
    output: str
    at: str
    message: str


@dataclass(frozen=True, slots=True)
class NaiveReport:
    """The report of a run. `completed` is False if it stopped before its end, for the reason `stop_reason` or
    on request. `note` is a sentence about a dump that is the log of a capture, "" for a whole one."""

    files: RunFiles
    rows: tuple[NaiveRow, ...]
    completed: bool
    stop_reason: str = ""
    note: str = ""

    @property
    def results(self) -> "pandas.DataFrame":
        """The rows of `naive_{timestamp}.csv` as a data frame."""
        return read_table(self.files.result)


def contrast_kernels(
    config: NaiveConfig,
    *,
    show_progress: bool = True,
    on_files: Callable[[RunFiles], None] = lambda files: None,
) -> NaiveReport:
    """Run the calls of a dump under default and plain kernels, and compare.

    Raises:
        PrecheckError: a wrong option, dump or device, or a run that stopped before a row was written. A run
            that had to stop later is reported as not completed, and goes on with `resume_csv`.
    """
    config = replace(config, tested="device", standard="msprobe", bench_workers=0)
    config.validate()
    found = find_dumps(config.dump)
    if len(found.dumps) > 1:
        raise UsageError(
            f"{config.dump} is a folder of {len(found.dumps)} dumps; name one of them, such as"
            f" {found.dumps[0].path}"
        )
    with ExitStack() as held, open_dump(found.dumps[0].path) as dump, ExitStack() as joined:
        note = dump.note
        if note and show_progress:
            print(f"warning: {note}", file=sys.stderr, flush=True)
        cluster = Cluster(config, joined)
        subject = find_subject(
            read_options(config), dump, cluster, is_alone=True, show=show_progress
        )
        opened = held.enter_context(_opened(config, subject))
        files, done = opened.files, opened.done
        on_files(files)
        names = {call.name for call in dump.calls}
        progress = Progress(len(names), len(done & names), show=show_progress)
        settings = subject.check_settings(files)
        job = NaiveJob(dump, settings, config.runs, shared_fs=config.shared_fs)
        plan = _plan(dump, subject, done, job)
        setting = RunSetting(config, cluster, subject.places, files, progress)
        planning = planned(plan.tasks, plan.settled)
        end = drive_to_end(job, planning, setting, is_new=opened.is_new)
        end.require_rows()
        return NaiveReport(files, tuple(_rows(files.result)), end.completed, end.reason, note)


def _opened(config: NaiveConfig, subject: Subject) -> AbstractContextManager[OpenedRun]:
    """Open the files to write; their fingerprint has no settings that change nothing here."""
    fingerprint = subject.fingerprint()
    for key in _WITHOUT:
        fingerprint.pop(key, None)
    resumed = None if config.resume_csv is None else _resumed(config.resume_csv)
    names = {call.name for call in subject.dump.calls}
    new = NewFiles(config.out, new_stamp())
    return opened_run(resumed, new, names, fingerprint, config, NAIVE_TABLES, subject.reads)


def _resumed(path: Path) -> Path:
    """Return the table of the calls of a run: named itself, by its outputs, or the newest in a folder.

    Raises:
        ResumeError: there is none in the folder.
    """
    begin, other = (NAIVE_TABLES.file(kind, "\0").split("\0")[0] for kind in ("result", "details"))
    if path.is_dir():
        found = [each for each in path.glob(f"{begin}*.csv") if not each.name.startswith(other)]
        if not found:
            raise ResumeError(f"-csv_path: {path} has no {begin}*.csv to go on in")
        return max(found, key=lambda each: each.name)
    return path.with_name(path.name.replace(other, begin, 1))


def _plan(dump: Dump, subject: Subject, done: set[str], job: NaiveJob) -> TaskPlan:
    """Plan every call that is not done; those that need no run are settled with their reason."""
    alike = subject.asked.config.filter_alike
    plan = plan_tasks(dump, subject.framework, done, filter_alike=alike)
    tasks = [replace(task, cost_s=_COSTS_AS_MANY_CHECKS * task.cost_s) for task in plan.tasks]
    return TaskPlan(tasks, map(job.settled, plan.skipped))


def _rows(path: Path) -> Iterator[NaiveRow]:
    with open_file(path) as file:
        for line in rows_below(file, NAIVE_TABLES.result):
            name, verdict, *others = decode_row(line)
            row = NaiveRow(decode_name(name), verdict_in(verdict), *others)
            yield row._replace(output=decode_name(row.output))
