"""A bisect from its configuration to its report.

Comes in: a target and its configuration. Goes out: a `BisectReport`. Called by the command `bisect`, and by
programs that import the package.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ray_precheck.commands.bisect.closing import BisectReport, TrialCells
from ray_precheck.commands.bisect.findings import write_findings
from ray_precheck.commands.bisect.job import TABLES, BisectJob, recorded_answers
from ray_precheck.commands.bisect.options import BisectConfig
from ray_precheck.commands.bisect.target import Survey, Target
from ray_precheck.errors import UsageError
from ray_precheck.options.declared import settings_of
from ray_precheck.running.run import (
    Feature,
    RunEnd,
    RunSession,
    resumed_table,
    run_job,
    session_of_one,
)
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.places.choice import find_places, on_cores
from ray_precheck.runtime.places.scratch import private_folder
from ray_precheck.runtime.progress import Progress
from ray_precheck.store.journal import decoded_rows
from ray_precheck.store.tables import RunFiles

# Of the memory of a machine, what all trials together may take, as of a precheck's records.
_MEMORY_SHARE = 0.7


def survey_target(
    target: Target, config: BisectConfig, scratch: Path, say: Callable[[str], None]
) -> Survey:
    """Return what a target can switch.

    Raises:
        UsageError: it cannot be bisected, or has no switch.
    """
    config.validate()
    scratch.mkdir(parents=True, exist_ok=True)
    survey = target.survey(config, scratch, say)
    if not survey.rungs:
        raise UsageError("there is nothing to switch: no rung was found")
    return survey


def bisect(
    target: Target,
    config: BisectConfig,
    *,
    show_progress: bool = True,
    on_files: Callable[[Path], None] = lambda path: None,
) -> BisectReport:
    """Find the smallest set of switches that makes the result wrong, and keep what was found beside the rows.

    Raises:
        UsageError: a wrong option, or a target that cannot be bisected.
        PrecheckError: the files cannot be gone on with, or the run stopped before a row was written.
    """
    config = on_cores(config)
    resumed = resumed_table(config.resume_csv, TABLES)
    with (
        private_folder() as scratch,
        session_of_one(config, show=show_progress, on_files=on_files) as session,
    ):
        survey = survey_target(target, config, scratch, session.say)
        for note in survey.notes:
            session.say(f"note: {note}")
        feature = _Bisecting(target, config, survey, scratch, session, resumed)
        report = run_job(feature, config, session, config.out, resumed)
        if report.completed:
            found = list(report.findings)
            said = target.close_up(config, survey, found, config.out, scratch)
            report = replace(report, said=tuple(said))
        write_findings(target, config, report)
        return report


class _Bisecting(Feature[BisectJob, BisectReport]):
    """The trials of a search: of an earlier part of the run the answers are known."""

    def __init__(
        self,
        target: Target,
        config: BisectConfig,
        survey: Survey,
        scratch: Path,
        session: RunSession,
        resumed: Path | None,
    ) -> None:
        self.tables = TABLES
        self._target, self._config, self._survey, self._scratch = target, config, survey, scratch
        self._resumed = resumed
        self.names = [] if resumed is None or not resumed.exists() else _names_in(resumed)
        self.fingerprint = {
            "target": target.name,
            **settings_of(config),
            "switches": _digest(survey),
            **survey.fingerprint,
        }
        self.places = find_places(
            config, "pytorch", session.cluster, show=session.show, device_runs=False
        )
        self._job: BisectJob | None = None

    def job(self, files: RunFiles, done: set[str]) -> BisectJob:
        there = self._resumed is not None and files.result.exists()
        recorded = recorded_answers(files.result) if there else {}
        names = _names_in(files.result) if there else []
        job = BisectJob(self._target, self._config, self._survey, self._scratch, recorded, names)
        job.memory_limit_bytes = self._memory_limit_bytes()
        self._job = job
        return job

    def _memory_limit_bytes(self) -> int:
        """Return how many bytes the processes of a trial may allocate: --max-memory, or a share of the
        machine's; 0 where they may use an accelerator, whose driver reserves memory that it never uses."""
        assert self.places is not None
        if self._config.max_memory_gib:
            return int(self._config.max_memory_gib * 2**30)
        if any(ids for node in self.places.nodes for ids in node.visible.values()):
            return 0
        machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return int(_MEMORY_SHARE * machine_bytes / max(1, len(self.places.slots)))

    def plan(self, job: BisectJob, done: set[str], progress: Progress) -> TaskPlan:
        assert self.places is not None
        return TaskPlan(job.first_tasks(len(self.places.slots)), ())

    def report(self, files: RunFiles, end: RunEnd) -> BisectReport:
        assert self._job is not None
        trials = tuple(TrialCells(*cells) for cells in decoded_rows(files.result, TABLES.result))
        return BisectReport(
            files,
            self._survey,
            tuple(self._job.findings),
            trials,
            tuple(self._job.history),
            end.completed,
            end.stop_reason,
        )


def _names_in(table: Path) -> list[str]:
    """Return the numbers of the trials of a table, as text, in their order."""
    found = {name for name, *_ in decoded_rows(table, TABLES.result) if name.isdecimal()}
    return sorted(found, key=int)


def _digest(survey: Survey) -> str:
    """Return what tells these rungs and switches from others."""
    digest = hashlib.sha256()
    for rung in survey.rungs:
        digest.update(repr((rung.name, rung.over, rung.is_ordered, rung.members)).encode())
    return digest.hexdigest()[:16]
