"""A run of calls under default and plain kernels, from its configuration to its report.

Comes in: a `NaiveConfig`. Goes out: a `NaiveReport`. Called by the command `naive`, and by programs that
import the package. It is a precheck of the device's own results with another job: `commands.naive.job`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ray_precheck.commands.naive.job import NAIVE_TABLES, NaiveJob
from ray_precheck.commands.naive.options import NaiveConfig
from ray_precheck.dump.folders import one_dump
from ray_precheck.dump.parse import open_dump
from ray_precheck.replay.planner import plan_tasks
from ray_precheck.replay.selected import (
    CallsFeature,
    SelectedCalls,
    find_selected,
    read_options,
)
from ray_precheck.running.run import RunEnd, resumed_table, run_job, session_of_one
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.progress import Progress
from ray_precheck.schema.environment import environment_to_dict
from ray_precheck.schema.result import Verdict, verdict_in
from ray_precheck.store.journal import decoded_rows
from ray_precheck.store.results import read_table
from ray_precheck.store.settings import RunSettings, note_environment, noted_environment
from ray_precheck.store.tables import RunFiles, decode_name

if TYPE_CHECKING:
    import pandas

# A call runs under both sides, several times, and its bench with its implementations is computed for each.
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
    on_files: Callable[[Path], None] = lambda path: None,
) -> NaiveReport:
    """Run the calls of a dump under default and plain kernels, and compare.

    Raises:
        PrecheckError: a wrong option, dump or device, or a run that stopped before a row was written. A run
            that had to stop later is reported as not completed, and is resumed with `resume_csv`.
    """
    config = replace(config, tested="device", standard="msprobe", bench_workers=0)
    config.validate()
    path = one_dump(config.dump)
    resumed = resumed_table(config.resume_csv, NAIVE_TABLES)
    one = session_of_one(config, show=show_progress, on_files=on_files)
    with one as session, open_dump(path) as dump:
        if dump.note:
            session.say(f"warning: {dump.note}")
        selected = find_selected(read_options(config), dump, session, is_alone=True)
        return run_job(_Contrast(selected, config.runs), config, session, config.out, resumed)


class _Contrast(CallsFeature[NaiveJob, NaiveReport]):
    """The calls of a dump, each under both sides; a setting that changes nothing here is no setting."""

    def __init__(self, selected: SelectedCalls, runs: int) -> None:
        super().__init__(selected, NAIVE_TABLES)
        self._runs = runs
        self.fingerprint = {k: v for k, v in self.fingerprint.items() if k not in _WITHOUT}

    def job(self, files: RunFiles, done: set[str]) -> NaiveJob:
        settings = self.selected.check_settings(files)
        shares = self.selected.asked.config.shared_fs
        if len(done) < len(self.names):
            # The caveats are those of the rows that stay.
            caveats = noted_environment(files.settings).caveats
            there = replace(self.selected.environment, caveats=caveats)
            note_environment(files.settings, environment_to_dict(there))
        return NaiveJob(self.selected.dump, settings, self._runs, shared_fs=shares)

    def plan(self, job: NaiveJob, done: set[str], progress: Progress) -> TaskPlan:
        selected, alike = self.selected, self.selected.asked.config.filter_alike
        plan = plan_tasks(selected.dump, selected.framework, done, filter_alike=alike)
        tasks = [replace(task, cost_s=_COSTS_AS_MANY_CHECKS * task.cost_s) for task in plan.tasks]
        return TaskPlan(tasks, map(job.settled, plan.skipped))

    def report(self, files: RunFiles, end: RunEnd) -> NaiveReport:
        rows, note = tuple(_rows(files.result)), self.selected.dump.note
        return NaiveReport(files, rows, end.completed, end.stop_reason, note)


def read_contrast(files: RunFiles, settings: RunSettings | None) -> NaiveReport:
    """Return the report of a run from its files, as far as they go.

    Raises:
        ResumeError: the table has other columns.
        OSError: it cannot be read.
    """
    completed = settings is None or settings.completed is not None
    return NaiveReport(files, tuple(_rows(files.result)), completed)


def _rows(path: Path) -> Iterator[NaiveRow]:
    for name, verdict, *others in decoded_rows(path, NAIVE_TABLES.result):
        row = NaiveRow(decode_name(name), verdict_in(verdict), *others)
        yield row._replace(output=decode_name(row.output))
