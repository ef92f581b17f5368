"""A run in which each dump of a folder is a piece that needs no device, as `overflow_check` and `ranks` are.

Comes in: the dumps that a configuration names, and the job of them. Goes out: a `Feature`, to which a command
adds its report.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ray_precheck.dump.folders import FoundDumps
from ray_precheck.errors import DumpError
from ray_precheck.options.declared import settings_of
from ray_precheck.options.shared import CoreJobOptions
from ray_precheck.running.dumps_job import DumpsJob, Payload, digest_of_dumps
from ray_precheck.running.run import Feature, Report, RunEnd, RunSession, planned
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.progress import Progress
from ray_precheck.schema.environment import Environment, environment_to_dict
from ray_precheck.store.resume import remove_run
from ray_precheck.store.settings import note_environment, reads_of_dumps
from ray_precheck.store.tables import RunFiles


class DumpRow(Protocol):
    """The row of a dump; `records` is None where it could not be read, which `message` says."""

    @property
    def records(self) -> int | None:
        """How many records it has."""

    @property
    def message(self) -> str:
        """What there is to say of it."""


class DumpsFeature(Feature[DumpsJob[Payload], Report]):
    """The dumps of the folder or file `dump`, each looked at by itself."""

    def __init__(
        self,
        config: CoreJobOptions,
        dump: Path,
        found: FoundDumps,
        job: DumpsJob[Payload],
        session: RunSession,
    ) -> None:
        self._dump, self._found, self._job = dump, found, job
        self.tables, self.names = job.tables, job.names
        labelled = [(each.label, [each.path]) for each in found.dumps]
        self.fingerprint = {"dump": digest_of_dumps(labelled)} | settings_of(config)
        self.reads = reads_of_dumps(labelled, tensors=False)
        if len(self.names) > 1:
            cost_s = sum(task.cost_s for task in job.tasks(set()))
            self.places = session.cores_for(config, "pytorch", cost_s)

    @property
    def is_shown(self) -> bool:
        """What this process looks at by itself is soon done."""
        return self.places is not None

    def job(self, files: RunFiles, done: set[str]) -> DumpsJob[Payload]:
        """Return the job, and note where it runs."""
        there = Environment(dump=str(self._dump.absolute()))
        note_environment(files.settings, environment_to_dict(there))
        return self._job

    def plan(self, job: DumpsJob[Payload], done: set[str], progress: Progress) -> TaskPlan:
        """Return the dumps that have no row yet."""
        return planned(job, job.tasks(done), self.places)

    def require_one(self, files: RunFiles, end: RunEnd, dumps: Sequence[DumpRow]) -> None:
        """Refuse to report on a run that has ended and of whose dumps none could be read.

        Raises:
            DumpError: that is so; a new run leaves no file.
        """
        if end.completed and dumps and all(each.records is None for each in dumps):
            if end.is_new:
                remove_run(files)
            raise DumpError(dumps[0].message)
