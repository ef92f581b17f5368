"""What the runs of one command share, and which earlier run they go on with.

Comes in: the configuration of a command. Goes out: a `RunSession`, open until it ends. Called by each
command that runs a job, and by a command that runs several of the others as its parts.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.errors import ResumeError
from ray_precheck.options.shared import CoreJobOptions, JobOptions
from ray_precheck.runtime.places.choice import Cluster, Places, find_places
from ray_precheck.runtime.stop_signal import stop_on_signal
from ray_precheck.store.opening import (
    NewFiles,
    new_stamp,
    newest_of,
    newest_there,
    release_stamp,
    reserved_stamp,
    stamp_in,
)
from ray_precheck.store.tables import Tables

# Ray and its workers, which import the bench's framework, take so much longer to start than a process that
# is there: less work is done in the command's own process.
START_OF_RAY_S = 8.0


@dataclass(frozen=True, slots=True)
class RunSession:
    """What the runs of one command share: over several dumps, or of several jobs.

    `stamp` is in the names of their files; with `goes_on` it is that of an earlier part of them.
    `stop_requested` tells whether they have to stop; None: a run heeds signals while its job is driven.
    `on_files` is called with the file or the folder to go on with, once it is there. `show`: progress and
    warnings are printed on the standard error.
    """

    cluster: Cluster
    stamp: str
    stop_requested: Callable[[], bool] | None
    goes_on: bool
    show: bool
    on_files: Callable[[Path], None]

    @property
    def is_stopped(self) -> bool:
        """Whether the runs have been asked to stop."""
        return self.stop_requested is not None and self.stop_requested()

    def say(self, line: str) -> None:
        """Print a line for the user."""
        if self.show:
            print(line, file=sys.stderr, flush=True)

    def new_files(self, folder: Path) -> NewFiles:
        """Return where a run that has no files yet makes them."""
        return NewFiles(folder, self.stamp, self.goes_on)

    def cores_for(self, config: CoreJobOptions, framework: str, cost_s: float) -> Places | None:
        """Return processor cores for so much work, one for each id of `-d`; None where it is done by this
        process: it is less than Ray and its workers take to start, or a single core was asked for.

        Raises:
            DeviceError: see `find_places`.
        """
        is_local = not config.address and not isinstance(config.devices, str)
        if is_local and (cost_s < START_OF_RAY_S or len(config.devices) == 1):
            return None
        return find_places(config, framework, self.cluster, show=self.show, device_runs=False)

    def resumed(self, folder: Path, tables: Tables) -> Path | None:
        """Return the result table in `folder` to go on in, None where a run has to begin."""
        table = folder / tables.file("result", self.stamp)
        return table if self.goes_on and table.exists() else None


@dataclass(frozen=True, slots=True)
class Series:
    """The files of runs that share one stamp: in these `places` below `folder`.

    `begin` is how the names of their tables begin; `stem` is in the name of the file that keeps their stamp
    from other runs.
    """

    folder: Path
    places: Sequence[Path]
    stem: str
    begin: str

    def stamp_of(self, resumed: Path) -> str:
        """Return the stamp of the runs to go on with, named by their folder or by one of their tables.

        Raises:
            ResumeError: there are no such runs.
        """
        if not _is_table(resumed):
            stamp = newest_there(resumed, self.places, f"{self.begin}*.csv")
            if not stamp:
                raise ResumeError(f"-csv_path: {resumed} has no {self.begin}*.csv to go on in")
            return stamp
        stamp = stamp_in(resumed)
        if not (stamp and resumed.name.startswith(f"{self.stem}_")):
            raise ResumeError(
                f"-csv_path: {resumed} is no table of such a run; a name like"
                f" {self.begin}20260101120000.csv is expected, or the folder of the results"
            )
        if not resumed.exists():
            raise ResumeError(f"-csv_path: cannot read {resumed}: there is no such file")
        return stamp


@contextmanager
def session_of_one(
    config: JobOptions, *, show: bool, on_files: Callable[[Path], None]
) -> Iterator[RunSession]:
    """Open the session of a single run, which makes its own files or names those to go on in."""
    with ExitStack() as opened:
        yield RunSession(Cluster(config, opened), new_stamp(), None, False, show, on_files)


@contextmanager
def session_of_several(
    config: JobOptions,
    series: Series,
    resumed: Path | None,
    *,
    show: bool,
    on_files: Callable[[Path], None],
) -> Iterator[RunSession]:
    """Open the session of runs that share one stamp: a new one, or that of the runs `resumed`.

    Raises:
        ResumeError: there are no such runs.
        UsageError: the folder cannot be made or written.
    """
    with ExitStack() as opened:
        stop = opened.enter_context(stop_on_signal())
        if resumed is None:
            stamp = opened.enter_context(reserved_stamp(series.folder, series.stem, series.places))
        else:
            stamp = series.stamp_of(resumed)
            release_stamp(series.folder, series.stem, stamp)
        cluster = Cluster(config, opened)
        yield RunSession(cluster, stamp, stop.is_set, resumed is not None, show, on_files)


def resumed_table(resumed: Path | None, tables: Tables) -> Path | None:
    """Return the result table of a single run to go on with: named itself, by its details, or by its folder,
    of which the newest counts.

    Raises:
        ResumeError: there is none in the folder.
    """
    if resumed is None:
        return None
    begin, other = (tables.file(kind, "").removesuffix(".csv") for kind in ("result", "details"))
    if not resumed.is_dir():
        return resumed.with_name(resumed.name.replace(other, begin, 1))
    # Where the result table has no word of its own, the names of the details begin like its name.
    stamps = (
        stamp_in(path)
        for path in resumed.glob(f"{begin}*.csv")
        if path.name == f"{begin}{stamp_in(path)}.csv"
    )
    newest = newest_of(stamps)
    if not newest:
        raise ResumeError(f"-csv_path: {resumed} has no {begin}*.csv to go on in")
    return resumed / tables.file("result", newest)


def results_folder(out: Path, resumed: Path | None) -> Path:
    """Return the folder of the results of several runs: `out`, or that of the runs to go on with, which are
    named by their folder or by one of their tables."""
    if resumed is None:
        return out
    return resumed.parent if _is_table(resumed) else resumed


def _is_table(resumed: Path) -> bool:
    return resumed.suffix == ".csv" and not resumed.is_dir()
