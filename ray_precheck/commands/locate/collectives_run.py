"""The collectives of a search, from the records of all ranks to what is known of each.

Comes in: the records of collectives of all dumps, and what the parts of a search share. Goes out: a
`Recomputed` for each rank's record that could be recomputed. Called by `run`, when the calls of all dumps are
there. The journal is `OUT/locate_collectives_calls_{timestamp}.csv` and
`OUT/locate_collectives_ranks_{timestamp}.csv`.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from ray_precheck.commands.locate.search import LocationSearch, PartEnd
from ray_precheck.commands.locate.walk.collectives import Recomputed
from ray_precheck.commands.locate.work.exchange import (
    EXCHANGE_TABLES,
    Exchanged,
    WholeExchanges,
    read_recomputed,
)
from ray_precheck.running.run import Feature, RunEnd, run_job
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.progress import Progress
from ray_precheck.store.resume import RunFiles


def recompute_exchanges(
    exchanges: Iterable[Exchanged], search: LocationSearch
) -> PartEnd[dict[str, list[Recomputed]]]:
    """Recompute the collectives whose ranks are all there, in this process, because all of it is reading.

    Raises:
        StoppedError: the run stopped before a row was written.
    """
    feature = _Collectives(list(exchanges), search)
    if not feature.names:
        return PartEnd({})
    resumed = search.session.resumed(search.folder, EXCHANGE_TABLES)
    return run_job(feature, search.config, search.session, search.folder, resumed)


class _Collectives(Feature[WholeExchanges, PartEnd[dict[str, list[Recomputed]]]]):
    """The collectives of a search, each recomputed from what all its ranks brought."""

    tables = EXCHANGE_TABLES

    def __init__(self, exchanges: Sequence[Exchanged], search: LocationSearch) -> None:
        self._whole, self._search = WholeExchanges(exchanges), search
        self.names = self._whole.names
        self.fingerprint = search.fingerprint(collectives=_digest(self._whole))
        self.reads = {each.dump: each.folder for each in exchanges}

    def to_go_on_with(self, files: RunFiles) -> Path:
        return self._search.folder

    def job(self, files: RunFiles, done: set[str]) -> WholeExchanges:
        return self._whole

    def plan(self, job: WholeExchanges, done: set[str], progress: Progress) -> TaskPlan:
        return TaskPlan((), job.rows(done))

    def report(self, files: RunFiles, end: RunEnd) -> PartEnd[dict[str, list[Recomputed]]]:
        if not end.completed:
            return PartEnd(None, False, end.stop_reason)
        return PartEnd(read_recomputed(files.details))


def _digest(whole: WholeExchanges) -> str:
    """Return what tells these collectives from others: their names, and the records of all ranks."""
    state = hashlib.sha256()
    for name in whole.names:
        state.update(f"{name}\0".encode())
        for each in whole.of(name):
            state.update(each.raw)
    return state.hexdigest()[:32]
