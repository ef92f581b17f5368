"""The comparison of two captures from its configuration to its report.

Comes in: a `ComparisonConfig`. Goes out: a `ComparisonReport`, one for each pair of dumps. Called by the
command line, and by programs that import the package. Folders of ranks and steps are paired by step and
rank; each pair is a run of its own, with the same file names in `OUT/{step}/{rank}/`.

Comparing pieces without Ray: in the process of the command, or in forks of it, of which one may be killed.
A fork shares the open captures and the pieces of its parent, and needs no start; nothing is scheduled: the
tasks are cut into runs that go round. Where a fork is killed (a file was cut while its pages were read:
SIGBUS; memory ran out: SIGKILL) the first run that is not finished is done again, each piece alone in a
fresh fork; a piece that kills that one, too, has failed. Then forks go on with the rest.
"""

import gc
import hashlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_precheck.commands.compare.closing import (
    ComparisonSummary,
    errors_told,
    summarise_comparison,
)
from ray_precheck.commands.compare.job import ComparisonJob, ComparisonRunner, tables_of, tasks_of
from ray_precheck.commands.compare.layouts import DumpPair, WholePaths, written_whole
from ray_precheck.commands.compare.options import ComparisonConfig
from ray_precheck.commands.compare.pairing import pair_dumps
from ray_precheck.commands.compare.plan import ComparisonPlan, plan_comparison
from ray_precheck.commands.compare.rows import ComparisonSettings, PieceReading
from ray_precheck.errors import UsageError
from ray_precheck.foreign import read_file
from ray_precheck.options.declared import settings_of
from ray_precheck.options.shared import MEGENGINE
from ray_precheck.processes import end_with_parent
from ray_precheck.running.run import (
    Feature,
    RunEnd,
    RunSession,
    Series,
    results_folder,
    run_each,
    run_job,
    session_of_several,
)
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.places.choice import on_cores
from ray_precheck.runtime.places.devices import usable_cores
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.schema.environment import Environment, environment_to_dict
from ray_precheck.schema.result import Outcome
from ray_precheck.schema.task import Done, Task
from ray_precheck.store.results import read_table
from ray_precheck.store.settings import TENSOR_FOLDER, note_environment, reads_of_dumps
from ray_precheck.store.tables import RunFiles
from ray_precheck.trace.difference.rows import ComparisonMode
from ray_precheck.trace.side import CaptureSide, float32_note, open_side, without_collector

if TYPE_CHECKING:
    import pandas

# Below this work forks, which take 20 ms each, gain nothing.
_WORTH_FORKS_S = 1.0
_MOST_FORKS = 8


def cores_for_forks(devices: Sequence[int] | str) -> int:
    """Return how many cores were named, each by an id, or else on how many this process may run, at most as
    many as comparisons are forked to."""
    named = 0 if isinstance(devices, str) else len(devices)
    return min(named or usable_cores(), _MOST_FORKS)


def compared_here(
    job: ComparisonJob,
    tasks: Sequence[Task],
    settings: ComparisonSettings,
    reading: PieceReading,
    cores: int,
) -> Iterator[Done]:
    """Compare pieces as they are asked for, on so many cores.

    This process reads files whole: a mapped one that another program cuts meanwhile would end it (SIGBUS). A
    fork maps them, because it may be killed.
    """
    is_forked = cores > 1 and sum(task.cost_s for task in tasks) >= _WORTH_FORKS_S
    runner = ComparisonRunner(settings, reading if is_forked else reading.read_whole())

    def compare(task: Task) -> Done:
        return runner.run(job.payload(task), Stage.DEVICE)

    def fail(task: Task, reason: str) -> Done:
        return job.failed(task, Outcome.CRASHED, reason)

    yield from (
        compared_in_forks(compare, fail, tasks, cores) if is_forked else map(compare, tasks)
    )


# Pieces that a fork is given at a time: many, since most take less than a millisecond, but no more than take
# so many seconds, which a run that is killed loses.
_MOST_AT_A_TIME, _LONGEST_RUN_S = 128, 0.5

Compare = Callable[[Task], Done]
# Makes the rows of a piece that failed, of the sentence that says why.
Fail = Callable[[Task, str], Done]
# In a fork: the function that compares, alone.
_compare: list[Compare] = []


def compared_in_forks(
    compare: Compare, fail: Fail, tasks: Sequence[Task], cores: int
) -> Iterator[Done]:
    """Compare pieces on so many cores, as they are asked for."""
    runs = list(_runs(tasks))
    finished = 0
    while finished < len(runs):
        try:
            for done in _pooled(compare, runs[finished:], cores):
                yield from done
                finished += 1
        except BrokenProcessPool:
            for task in runs[finished]:
                yield _compared_alone(compare, fail, task)
            finished += 1


def _pooled(compare: Compare, runs: Sequence[Sequence[Task]], cores: int) -> Iterator[list[Done]]:
    """Yield the finished pieces of each run; raises `BrokenProcessPool` where a fork was killed."""
    pool = ProcessPoolExecutor(cores, get_context("fork"), _begin, (compare, os.getpid()))
    try:
        yield from pool.map(_compare_run, runs)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(compare: Compare, parent: int) -> None:
    """Prepare a fork: it ends with its parent, which alone looks at signals of the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # By which the pool ends its forks where one of them was killed.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    end_with_parent(parent)
    _compare[:] = [compare]


def _compare_run(tasks: Sequence[Task]) -> list[Done]:
    (compare,) = _compare
    return [compare(task) for task in tasks]


def _compared_alone(compare: Compare, fail: Fail, task: Task) -> Done:
    """Compare a piece in a fork of its own; the rows of one that kills it say so."""
    context = get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    fork = context.Process(target=_answer, args=(sending, compare, task, os.getpid()))
    fork.start()
    sending.close()
    done: Done | None
    try:
        done = receiving.recv()
    except EOFError:
        done = None
    receiving.close()
    fork.join()
    if done is not None:
        return done
    code = fork.exitcode or 0
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    reason = f"the process that compared it ended with {how}, also where it compared nothing else"
    if code == -signal.SIGBUS:
        reason += "; a file that is cut while it is read does that"
    return fail(task, reason)


def _answer(sending: Connection, compare: Compare, task: Task, parent: int) -> None:
    _begin(compare, parent)
    # A signal to the whole process group is for the parent, and must not be held against the piece.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sending.send(compare(task))


def _runs(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """Yield the tasks in runs of about the same length."""
    run: list[Task] = []
    took_s = 0.0
    for task in tasks:
        run.append(task)
        took_s += task.cost_s
        if len(run) >= _MOST_AT_A_TIME or took_s > _LONGEST_RUN_S:
            yield run
            run, took_s = [], 0.0
    if run:
        yield run


@contextmanager
def out_of_collector() -> Iterator[None]:
    """Leave out of the collector what there is now, until the end; garbage that is made meanwhile is
    collected. In a fork the collector would copy the pages of all records by looking at them. Where the
    caller has taken objects out of it, nothing is changed."""
    is_ours = not gc.get_freeze_count()
    if is_ours:
        gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()


# Tensors are compared on processor cores, whatever framework made them.
_ANY_FRAMEWORK = "pytorch"


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """The report of the comparison of two dumps. `completed` is False if it stopped before its end."""

    label: str
    files: RunFiles
    summary: ComparisonSummary
    completed: bool
    stop_reason: str = ""

    @property
    def results(self) -> "pandas.DataFrame":
        """`compare_result_*.csv` as a data frame, one row for each tensor of both sides."""
        return read_table(self.files.details)

    @property
    def calls(self) -> "pandas.DataFrame":
        """`compare_calls_*.csv` as a data frame, one row for each pair of records."""
        return read_table(self.files.result)


@dataclass(frozen=True, slots=True)
class ComparisonReports:
    """The reports of all pairs of dumps. `without` names dumps of one side that the other lacks."""

    folder: Path
    reports: tuple[ComparisonReport, ...]
    completed: bool
    stop_reason: str = ""
    without: tuple[str, ...] = ()


def compare_captures(
    target: str | Path,
    golden: str | Path,
    *,
    out: str | Path = "./",
    show_progress: bool = False,
    **options: Any,
) -> ComparisonReports:
    """Compare two captures; the tables of each report are pandas data frames.

    `options` are the other fields of `ComparisonConfig`: `standard`, `match`, `noise`, `devices`, ...

    Raises:
        PrecheckError: a capture or an option is wrong.
    """
    config = ComparisonConfig(target=Path(target), golden=Path(golden), out=Path(out), **options)
    return run_comparison(config, show_progress=show_progress)


def run_comparison(
    config: ComparisonConfig,
    *,
    show_progress: bool = True,
    on_files: Callable[[Path], None] = lambda path: None,
    session: RunSession | None = None,
) -> ComparisonReports:
    """Run what `config` asks for. `on_files` is called with the file or folder that resumes it.

    A comparison that is a part of a larger run has the `session` of all parts.

    Raises:
        PrecheckError: a wrong option, capture or device. A run that had to stop later on is reported
            as not completed, and can be resumed with `resume_csv`.
    """
    config.validate()
    config = replace(config, device_type="cpu")
    pairs, without = pair_dumps(config)
    folder = results_folder(config.out, config.resume_csv)
    series = Series(folder, [pair.place for pair in pairs], "compare", "compare_calls_")
    with session_of_several(
        config, series, config.resume_csv, session, show=show_progress, on_files=on_files
    ) as session:
        for label in without:
            session.say(f"warning: {label} has no partner on the other side and is left out")
        is_many = len(pairs) > 1 or bool(pairs[0].place.parts)
        compare = partial(_compare_pair, config, folder, session)
        ends = run_each(pairs, compare, session, [pair.label for pair in pairs if is_many])
    return ComparisonReports(folder, ends.reports, ends.completed, ends.stop_reason, without)


def _compare_pair(
    config: ComparisonConfig, folder: Path, session: RunSession, pair: DumpPair
) -> ComparisonReport:
    """Compare two dumps, or resume their comparison.

    Raises:
        UsageError: `-csv_path` names the table of a run, which is not there.
    """
    with ExitStack() as held:
        own = folder / pair.place
        with without_collector():
            paths = WholePaths(pair.target[0], pair.golden[0], next(iter(pair.noise), None))
            if pair.is_whole:
                paths = written_whole(pair, own)
            target, golden = (held.enter_context(open_side(path)) for path in paths[:2])
            noise = held.enter_context(open_side(paths.noise)) if paths.noise else None
            if pair.is_whole:
                session.say(
                    f"tensors are put together: the target is laid out as {target.header.layout}, the golden"
                    f" run as {golden.header.layout}"
                )
            for note in filter(None, (target.note, golden.note)):
                session.say(f"warning: {note}")
            plan = plan_comparison(target, golden, noise, config)
        held.enter_context(out_of_collector())
        feature = _Comparison(config, pair, (target, golden, noise), plan, session, folder)
        resumed = session.resumed(own, feature.tables)
        named = config.resume_csv
        if resumed is None and named is not None and named.is_file():
            table = own / feature.tables.file("result", session.stamp)
            raise UsageError(f"{named} names no run to go on with: {table} is not there")
        return run_job(feature, config, session, own, resumed)


class _Comparison(Feature[ComparisonJob, ComparisonReport]):
    """Two dumps, compared on the cluster, or on the cores of this machine where that is little work."""

    def __init__(
        self,
        config: ComparisonConfig,
        pair: DumpPair,
        sides: tuple[CaptureSide, CaptureSide, CaptureSide | None],
        plan: ComparisonPlan,
        session: RunSession,
        folder: Path,
    ) -> None:
        self._config, self._pair, self._plan, self._folder = config, pair, plan, folder
        self._target, self._golden, self._noise = sides
        self.tables = tables_of(plan.settings.mode)
        self.names = plan.names
        self.fingerprint = self._settings()
        named = [("target", pair.target), ("golden", pair.golden), ("noise", pair.noise)]
        given = [(*each, side) for each, side in zip(named, sides, strict=True) if side is not None]
        folders = {
            f"{label}/{TENSOR_FOLDER}": side.data_folder
            for label, paths, side in given
            if not pair.is_whole
        }
        self.reads = reads_of_dumps((label, paths) for label, paths, _ in given) | folders
        # Forks of this process compare as fast as workers where no slots were asked for.
        if plan.settings.mode is ComparisonMode.REAL and (config.devices or config.address):
            framework = self._target.header.framework or _ANY_FRAMEWORK
            self.places = session.cores_for(on_cores(config), framework, sum(plan.costs_s))

    def _settings(self) -> dict[str, str]:
        target, golden, noise, config = self._target, self._golden, self._noise, self._config
        mode = self._plan.settings.mode.value
        found = {"target": target.digest(), "golden": golden.digest(), "mode": mode}
        if noise is not None:
            found["noise"] = noise.digest()
        for name in ("api_mapping", "cell_mapping", "data_mapping"):
            path = getattr(config, name)
            if path is not None:
                found[name] = hashlib.sha256(read_file(path)).hexdigest()
        return found | settings_of(config)

    def to_go_on_with(self, files: RunFiles) -> Path:
        return self._folder if self._pair.place.parts else files.details

    def job(self, files: RunFiles, done: set[str]) -> ComparisonJob:
        plan = self._plan
        there = Environment(
            framework=self._target.header.framework,
            rule=self._config.standard,
            calls=len(self.names),
            dump=str(self._target.path.absolute()),
            golden=str(self._golden.path.absolute()),
        )
        note_environment(files.settings, environment_to_dict(there))
        return ComparisonJob(
            self._target,
            self._golden,
            plan.pieces,
            plan.settings,
            noise=self._noise,
            noise_of=plan.noise_of,
            shared_fs=self._config.shared_fs,
        )

    def plan(self, job: ComparisonJob, done: set[str], progress: Progress) -> TaskPlan:
        """Plan the pieces that are not done, the longest first; or their rows as this machine makes them."""
        plan = self._plan
        tasks = tasks_of(job, done, plan.costs_s)
        if self.places is None:
            cores = cores_for_forks(self._config.devices)
            return TaskPlan((), compared_here(job, tasks, plan.settings, plan.reading, cores))
        return TaskPlan(sorted(tasks, key=lambda task: -task.cost_s), ())

    def report(self, files: RunFiles, end: RunEnd) -> ComparisonReport:
        summary = summarise_comparison(files.result, files.details, self.tables, len(self.names))
        is_measured = self._config.standard == MEGENGINE and files.details.exists()
        errors = errors_told(files.details, self.tables) if is_measured else ()
        note = float32_note(self._target, self._golden)
        summary = replace(summary, note=note, errors=errors)
        return ComparisonReport(self._pair.label, files, summary, end.completed, end.stop_reason)
