"""The whole search for the operator to blame, from its configuration to its report.

Comes in: a `LocationConfig`. Goes out: a `LocationReport`. Called by the command line, and by programs that
import the package. Each dump is searched by itself (`dump`), those without files of tensors together
(`pairs`); then collectives are recomputed from what all ranks brought (`exchanges`), and
`OUT/locate_{timestamp}.csv` ranks what all dumps have.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray_precheck.errors import ResumeError, StoppedError
from ray_precheck.jobs.location.dumps import DumpToLocate, dumps_to_locate
from ray_precheck.jobs.location.payload import LOCATION_TABLES
from ray_precheck.jobs.location.rows import LocatedRows
from ray_precheck.locating.dump import Gathered, search_dump
from ray_precheck.locating.exchanges import recompute_exchanges
from ray_precheck.locating.pairs import has_tensor_files, search_pairs
from ray_precheck.locating.report import LocationReport
from ray_precheck.locating.search import LocationConfig, LocationSearch
from ray_precheck.report.location import write_location
from ray_precheck.runtime.driving import SharedRun
from ray_precheck.runtime.places.choice import Cluster, on_cores
from ray_precheck.runtime.stop_signal import stop_on_signal
from ray_precheck.store.opening import results_folder
from ray_precheck.store.stamps import newest_there, release_stamp, reserved_stamp, stamp_in
from ray_precheck.trace.locating.places import DumpRoots, ranked
from ray_precheck.trace.locating.ranks.collectives import Recomputed, joined_dumps

_BEGIN = "locate_"


def locate_captures(
    target: str | Path,
    golden: str | Path | None = None,
    *,
    out: str | Path = "./",
    show_progress: bool = False,
    **options: Any,
) -> LocationReport:
    """Find the operator to blame in a capture, perhaps with that of a golden run.

    `options` are the other fields of `LocationConfig`: `match`, `replay`, `graph`, `devices`, ...

    Raises:
        PrecheckError: a capture or an option is wrong.
    """
    other = Path(golden) if golden is not None else None
    config = LocationConfig(target=Path(target), golden=other, out=Path(out), **options)
    return run_location(config, show_progress=show_progress)


def run_location(
    config: LocationConfig,
    *,
    show_progress: bool = True,
    on_files: Callable[[Path], None] = lambda path: None,
    shared: SharedRun | None = None,
) -> LocationReport:
    """Run what `config` asks for. `on_files` is called with the file or folder to go on with.

    A search that is a part of a larger run has `shared` with the other parts.

    Raises:
        PrecheckError: a wrong option, capture or device. A run that had to stop later on is reported as not
            completed, and can go on with `resume_csv`.
    """
    config.validate()
    config = on_cores(config)
    pairs, without = dumps_to_locate(config.target, config.golden)
    folder = results_folder(config.out, config.resume_csv)
    first_step = min((pair.step for pair in pairs), key=_number_in)
    with ExitStack() as opened:
        if shared is None:
            shared = opened.enter_context(_alone(config, folder, pairs))
        if config.resume_csv is not None and not config.force:
            _require_own_files(folder, shared.stamp, pairs)
        search = LocationSearch(config, folder, shared, first_step, show_progress, on_files)
        whole = _WholeSearch(search, pairs)
        whole.gathered.notes.extend(
            f"{label} has no partner on the other side and is left out" for label in without
        )
        recomputed, reason = whole.search_all()
    return whole.report(recomputed, reason)


def _number_in(text: str) -> int:
    return int(text) if text.isdigit() else 0


@contextmanager
def _alone(
    config: LocationConfig, folder: Path, pairs: Sequence[DumpToLocate]
) -> Iterator[SharedRun]:
    """Open what a search shares with nothing else."""
    resume, stem = config.resume_csv, _BEGIN.removesuffix("_")
    places = [pair.place for pair in pairs]
    with ExitStack() as opened:
        stop = opened.enter_context(stop_on_signal())
        if resume is None:
            stamp = opened.enter_context(reserved_stamp(folder, stem, places))
        else:
            stamp = _stamp_of(resume, places)
            release_stamp(folder, stem, stamp)
        yield SharedRun(Cluster(config, opened), stamp, stop.is_set, resume is not None)


def _stamp_of(resume: Path, places: Iterable[Path]) -> str:
    """Return the stamp of the search that is gone on with, named by its folder or by one of its files.

    Raises:
        ResumeError: there is no such run.
    """
    if resume.is_dir():
        newest = newest_there(resume, places, f"{_BEGIN}*.csv")
        if newest:
            return newest
        raise ResumeError(f"-csv_path: {resume} has no {_BEGIN}*.csv to go on in")
    stamp = stamp_in(resume)
    if not (resume.name.startswith(_BEGIN) and resume.suffix == ".csv" and stamp):
        raise ResumeError(
            f"-csv_path: {resume} is none of the files of a search; a name like"
            f" {_BEGIN}calls_20260101120000.csv is expected, or the folder of the results"
        )
    if not resume.exists():
        raise ResumeError(f"-csv_path: cannot read {resume}: there is no such file")
    return stamp


def _require_own_files(folder: Path, stamp: str, pairs: Sequence[DumpToLocate]) -> None:
    """Require that the files of a search that is gone on with lie where its dumps have theirs: what another
    search found would be written over.

    Raises:
        ResumeError: a file is of a dump that is not searched.
    """
    places = {folder / pair.place for pair in pairs}
    for path in sorted(folder.rglob(LOCATION_TABLES.file("result", stamp))):
        if path.parent not in places:
            raise ResumeError(
                f"-csv_path: {path} is of another search than that of {pairs[0].target}; name the captures"
                " that it was begun with, start a new run, or add --force to go on all the same"
            )


@dataclass(frozen=True, slots=True)
class _WholeSearch:
    """A search of all dumps. Its results grow while it goes on: `found` has the roots of each dump that was
    searched, `together` the rows of the pairs that are one job, by their labels."""

    search: LocationSearch
    pairs: Sequence[DumpToLocate]
    found: list[DumpRoots] = field(default_factory=list)
    gathered: Gathered = field(default_factory=Gathered)
    together: dict[str, LocatedRows] = field(default_factory=dict)

    def search_all(self) -> tuple[Mapping[str, Sequence[Recomputed]] | None, str]:
        """Search the dumps, then the collectives between them.

        Returns what is known of the collectives of each dump, by its label; None where the search had to stop
        before its end, with the reason, "" for on request.
        """
        try:
            is_whole = self._search_dumps()
        except StoppedError as error:
            if not self.found and self.search.config.resume_csv is None:
                raise
            return None, "" if self.search.shared.stop_requested() else str(error)
        if not is_whole:
            return None, ""
        return recompute_exchanges(self.gathered.exchanges, self.search), ""

    def report(
        self, recomputed: Mapping[str, Sequence[Recomputed]] | None, reason: str
    ) -> LocationReport:
        """Rank what was found, and write the table; where the search came to no end, only report it."""
        search, notes, errors = self.search, tuple(self.gathered.notes), self.gathered.errors
        folder, config = search.folder, search.config
        table = folder / f"{_BEGIN}{search.shared.stamp}.csv"
        if recomputed is None:
            return LocationReport(
                folder, table, (), tuple(self.found), False, reason, notes, errors
            )
        found = joined_dumps(self.found, recomputed)
        places = tuple(ranked(found))
        known = {label: rows.looked for label, rows in self.together.items()}
        opened = self.gathered.opened
        graphs = write_location(table, found, places, opened, known, with_graph=config.graph)
        return LocationReport(
            folder, table, places, tuple(found), True, "", notes, errors, graphs,
            config.golden is not None,
        )  # fmt: skip

    def _search_dumps(self) -> bool:
        """Search one dump after the other; returns False if it was stopped on request."""
        one_job = _without_files(self.search.config, self.pairs)
        count = len(self.pairs)
        for number, pair in enumerate(self.pairs, 1):
            if count > 1 and pair not in one_job and self.search.show:
                print(f"{pair.label} ({number} of {count})", file=sys.stderr, flush=True)
            if pair in one_job and not self.together:
                self.together.update(search_pairs(one_job, self.search) or {})
            roots = None if self.search.shared.stop_requested() else self._roots_of(pair)
            if roots is None:
                return False
            self.found.append(roots)
        return True

    def _roots_of(self, pair: DumpToLocate) -> DumpRoots | None:
        """Search a dump, unless that was done with others; returns None if it was stopped on request."""
        rows = self.together.get(pair.label)
        if rows is None:
            return search_dump(pair, self.search, self.gathered)
        if rows.message:
            self.gathered.notes.append(
                rows.message if rows.known else f"{pair.label}: {rows.message}"
            )
        return DumpRoots(pair.step, pair.rank, pair.label, rows.located)


def _without_files(config: LocationConfig, pairs: Sequence[DumpToLocate]) -> Sequence[DumpToLocate]:
    """Return the pairs that are one job, because nothing can be replayed in them."""
    if config.golden is None or config.replay:
        return ()  # What is wrong with them is said where they are opened.
    return [pair for pair in pairs if not has_tensor_files(pair.target)]
