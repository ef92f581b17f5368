"""The search of one dump: its calls replayed where it has files of tensors, and the walk through it.

Comes in: a dump, perhaps with that of a golden run. Goes out: its `DumpRoots`, and its collectives, which
wait for those of all ranks. Called by `run`. The replayed calls are a job of their own, whose journal is
`OUT/{step}/{rank}/locate_calls_{timestamp}.csv` and `locate_values_{timestamp}.csv`.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ray_precheck.commands.locate.dumps import DumpToLocate
from ray_precheck.commands.locate.exchange import Exchanged, exchanges_of
from ray_precheck.commands.locate.job import LocationJob
from ray_precheck.commands.locate.located import located_in
from ray_precheck.commands.locate.payload import LOCATION_TABLES, read_measured
from ray_precheck.commands.locate.plan import LocationPlan, plan_location, settings_of_replay
from ray_precheck.commands.locate.search import LocationSearch, PartEnd
from ray_precheck.commands.locate.walk.places import DumpRoots
from ray_precheck.errors import UsageError
from ray_precheck.running.run import Feature, RunEnd, planned, run_job
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.progress import Progress
from ray_precheck.store.resume import RunFiles
from ray_precheck.store.settings import TENSOR_FOLDER, reads_of_dumps
from ray_precheck.trace.side import CaptureSide, float32_note, open_side


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the searches of single dumps gather beside their roots.

    By the label of a dump, `opened` has its dump.json and the golden one, `errors` its folder of saved
    tensors. `notes` are sentences about captures that were cut off, `exchanges` the collectives of all dumps.
    """

    notes: list[str] = field(default_factory=list)
    opened: dict[str, tuple[Path, Path | None]] = field(default_factory=dict)
    errors: dict[str, Path] = field(default_factory=dict)
    exchanges: list[Exchanged] = field(default_factory=list)


def search_dump(
    pair: DumpToLocate, search: LocationSearch, gathered: Gathered
) -> PartEnd[DumpRoots]:
    """Search a dump, or resume that.

    Raises:
        UsageError: nothing can be replayed, and there is no golden run.
        PrecheckError: a capture cannot be read, or the search stopped before a row was written.
    """
    with ExitStack() as held:
        target = held.enter_context(open_side(pair.target))
        golden = held.enter_context(open_side(pair.golden)) if pair.golden else None
        gathered.notes.extend(
            side.note for side in (target, golden) if side is not None and side.note
        )
        gathered.notes.extend(filter(None, [float32_note(target, golden)]))
        gathered.opened[pair.label] = target.path, golden.path if golden is not None else None
        plan = plan_location(target, golden, search.options)
        if not plan.is_replayed and golden is None:
            raise UsageError(
                f"{target.path} has no files of tensors, so that nothing can be replayed: name a golden"
                " run with -gp, or capture with --task tensor (`overflow_check` finds where NaN and"
                " infinity were born)"
            )
        measured = None
        if plan.is_replayed:
            feature, folder = (
                _Replay(pair, target, golden, plan, search),
                search.folder / pair.place,
            )
            resumed = search.session.resumed(folder, LOCATION_TABLES)
            files, end = run_job(feature, search.config, search.session, folder, resumed)
            if not end.completed:
                return PartEnd(None, False, end.stop_reason)
            gathered.errors[pair.label] = files.errors
            measured = read_measured(files.details)
            gathered.exchanges.extend(exchanges_of(target, pair.label, pair.step, pair.rank))
        is_first_step = pair.step == search.first_step
        located = located_in(target, golden, plan, measured, is_first_step=is_first_step)
        return PartEnd(DumpRoots(pair.step, pair.rank, pair.label, located))


class _Replay(Feature[LocationJob, tuple[RunFiles, RunEnd]]):
    """The calls of a dump, replayed from its files of tensors."""

    tables = LOCATION_TABLES

    def __init__(
        self,
        pair: DumpToLocate,
        target: CaptureSide,
        golden: CaptureSide | None,
        plan: LocationPlan,
        search: LocationSearch,
    ) -> None:
        self._pair, self._plan, self._search = pair, plan, search
        self._sides = target, golden
        self.places = search.session.cores_for(
            search.config, target.header.framework, sum(plan.costs_s)
        )
        # Before any file is made: an error about what is installed leaves nothing behind.
        settings_of_replay(target, golden, None, 1)
        sides = {"target": target} | ({"golden": golden} if golden else {})
        self.names = list(dict.fromkeys(payload.name for payload in plan.payloads))
        self.fingerprint = search.fingerprint(
            **{label: side.digest() for label, side in sides.items()}
        )
        self.reads = reads_of_dumps((label, [side.path]) for label, side in sides.items())
        for label, side in sides.items():
            self.reads[f"{label}/{TENSOR_FOLDER}"] = side.data_folder

    def to_go_on_with(self, files: RunFiles) -> Path:
        return self._search.folder if self._pair.place.parts else files.result

    def job(self, files: RunFiles, done: set[str]) -> LocationJob:
        config = self._search.config
        slots = len(config.devices) if not isinstance(config.devices, str) else 1
        settings = settings_of_replay(*self._sides, files.errors.absolute(), slots)
        return LocationJob(self._plan.payloads, settings, shared_fs=config.shared_fs)

    def plan(self, job: LocationJob, done: set[str], progress: Progress) -> TaskPlan:
        return planned(job, self._plan.tasks(done), self.places)

    def report(self, files: RunFiles, end: RunEnd) -> tuple[RunFiles, RunEnd]:
        return files, end
