"""The selected calls of a dump, with one framework, on the devices of a run.

Comes in: a `RunConfig`, an open dump and the cluster. Goes out: `SelectedCalls`, from which a run gets the
fingerprint of the run, the settings of its workers and its plan. Called by every command that runs calls
again.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.accuracy.standards.base import Standard, added_headings
from ray_precheck.accuracy.standards.user_file import load_standard
from ray_precheck.bench.declared import (
    BenchModule,
    bench_digest,
    load_declarations,
    read_bench_modules,
)
from ray_precheck.check.options import SAMPLED, CheckOptions
from ray_precheck.check.settings import CheckSettings
from ray_precheck.descriptors.descriptor import find_framework, framework_names, require_sole
from ray_precheck.dump.parse import TENSOR, Dump
from ray_precheck.errors import DumpError, UsageError
from ray_precheck.frameworks.base import require_framework
from ray_precheck.options.declared import group_of
from ray_precheck.replay.config import RunConfig
from ray_precheck.replay.job import done_of
from ray_precheck.replay.loading import load_checker
from ray_precheck.replay.planner import plan_tasks
from ray_precheck.replay.selection import Selection, select_calls, selection_of
from ray_precheck.running.run import Feature, JobType, Report, RunSession
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.places.choice import Places, find_places
from ray_precheck.runtime.progress import Progress, StageProgress
from ray_precheck.schema.environment import Environment
from ray_precheck.store.resume import error_folder
from ray_precheck.store.settings import Reads, load_settings
from ray_precheck.store.tables import API_TABLES, RunFiles, Tables, added_setting


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a run, with the standard and the users' benches that they name."""

    config: RunConfig
    selection: Selection
    standard: Standard
    bench_modules: tuple[BenchModule, ...]


@dataclass(frozen=True, slots=True)
class SelectedCalls:
    """The selected calls of an open dump, with the framework and the devices that are tested.

    `tests_dump` is True where the results that the dump captured are tested.
    """

    asked: Asked
    dump: Dump
    framework: str
    tests_dump: bool
    places: Places

    def fingerprint(self) -> dict[str, str]:
        """Return the settings that another run must have to resume this one."""
        asked = self.asked
        found = asked.config.fingerprint(
            self.dump.digest(),
            self.framework,
            self.places.request.kind,
            asked.standard.name,
            asked.selection.text,
        )
        found |= added_setting(added_headings(asked.standard))
        # Runs from before this setting do not have it: a resume takes them for the same.
        return {**found, "benches": bench_digest(asked.bench_modules)}

    @property
    def reads(self) -> Reads:
        """The files beside the records that the rows are made of: those of captured tensors."""
        is_read = self.dump.task == TENSOR
        return {"dump_tensor_data": self.dump.data_folder} if is_read else {}

    @property
    def environment(self) -> Environment:
        """The facts about devices and versions that the closing lines show."""
        return self.places.environment(
            framework=self.framework,
            rule=self.asked.config.standard,
            calls=len(self.dump.calls),
            dump=str(self.dump.path.absolute()),
            tests_dump=self.tests_dump,
        )

    def error_folder(self, files: RunFiles) -> Path:
        """Return the absolute folder for the tensors of failing outputs."""
        config = self.asked.config
        return error_folder(files, config.error_data_path, as_msprobe=config.error_data_as_msprobe)

    def check_settings(self, files: RunFiles) -> CheckSettings:
        """Return the settings of the check, the same for every worker of the run."""
        config = self.asked.config
        made_with = load_settings(files.settings)
        machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return CheckSettings(
            framework=self.framework,
            task=self.dump.task,
            data_folder=self.dump.data_folder.absolute(),
            options=group_of(config, CheckOptions),
            tests_dump=self.tests_dump,
            error_folder=self.error_folder(files) if config.save_error_data else None,
            memory_limit_bytes=config.memory_limit_bytes(machine_bytes, self.places.most_on_a_node),
            standard=self.asked.standard,
            bench_modules=self.asked.bench_modules,
            device_type=self.places.request.kind,
            knows_layouts=self.dump.knows_layouts,
            float32=self.dump.float32,
            columns=None if made_with is None else made_with.added_columns,
        )

    def plan(self, done: set[str], progress: Progress) -> TaskPlan:
        """Plan every call that is not `done`."""
        plan = plan_tasks(
            self.dump,
            self.framework,
            done,
            filter_alike=self.asked.config.filter_alike,
            on_progress=StageProgress(f"planning {len(self.dump.calls)} calls", progress.say),
        )
        return TaskPlan(plan.tasks, map(done_of, plan.skipped))


class CallsFeature(Feature[JobType, Report]):
    """A feature on selected calls: what a precheck and its relatives share."""

    plans_long = True

    def __init__(self, selected: SelectedCalls, tables: Tables = API_TABLES) -> None:
        self.selected = selected
        self.tables = tables
        self.names = [call.name for call in selected.dump.calls]
        self.fingerprint = selected.fingerprint()
        self.reads = selected.reads
        self.places = selected.places
        self.load = partial(load_checker, selected.framework)

    def plan(self, job: JobType, done: set[str], progress: Progress) -> TaskPlan:
        """Plan every call that is not done; those that need no run are settled with their reason."""
        return self.selected.plan(done, progress)


def read_options(config: RunConfig) -> Asked:
    """Read the files that options name, so that an error in one of them is raised before the dump is
    opened.

    Raises:
        UsageError: a file, or the expression of `-k`, is wrong, or `--bench` does not go with `--standard`.
    """
    selection = selection_of(config)
    standard = load_standard(config.standard)
    if config.bench == SAMPLED and standard.name != Auto.name:
        raise UsageError(
            "--bench sampled judges by the limits of --standard auto, and this is --standard"
            f" {standard.name}: give --standard auto, or leave --bench out"
        )
    bench_modules = read_bench_modules(config.bench_modules)
    load_declarations(bench_modules)
    return Asked(config, selection, standard, bench_modules)


def find_selected(
    asked: Asked, dump: Dump, session: RunSession, *, is_alone: bool
) -> SelectedCalls:
    """Select the calls; find the framework, the results that are tested and the devices.

    The dump keeps the selected calls only. Of a run that is not
    `is_alone` the caller has looked up in all dumps the names that the user asked for.

    Raises:
        PrecheckError: no call is selected, a name that the user asked for is not in the dump, the
            framework is not installed, or a device is not there.
    """
    for warning in select_calls(dump, asked.selection, asked.standard if is_alone else None):
        session.say(f"warning: {warning}")
    framework = dump.framework = framework_of(asked.config, dump)
    tests_dump = tests_captured(asked.config, dump)
    require_framework(framework, device_runs=not tests_dump)
    places = find_places(
        asked.config, framework, session.cluster, show=session.show, device_runs=not tests_dump
    )
    return SelectedCalls(asked, dump, framework, tests_dump, places)


def framework_of(config: RunConfig, dump: Dump) -> str:
    """Return the framework of the run. msprobe takes dumps of mindtorch with -f mindspore.

    Raises:
        DumpError: the dump is of another framework than asked for, or does not tell.
        UsageError: the descriptor of the framework cannot be used.
    """
    asked, found = config.framework, dump.framework
    if asked and found and asked not in (found, *find_framework(found).asked_as):
        raise DumpError(
            f"{dump.path} is a dump of {found}, but -f {asked} was given; use -f {found}"
        )
    framework = found or asked
    if not framework:
        raise DumpError(
            f"{dump.path} does not name its framework; say it with -f {'|'.join(framework_names())}"
        )
    require_sole(framework)
    return framework


def tests_captured(config: RunConfig, dump: Dump) -> bool:
    """Return whether the captured results are tested, not those of a device here.

    Raises:
        UsageError: they are asked for, and the dump has none.
    """
    if config.tested == "dump" and dump.task != "tensor":
        raise UsageError(
            f"--tested dump needs captured tensors, but the task of {dump.path} is {dump.task}"
        )
    return config.tested != "device" and dump.task == "tensor"
