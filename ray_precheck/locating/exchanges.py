"""The collectives of a search, from the records of all ranks to what is known of each.

Comes in: the records of collectives of all dumps, and what the parts of a search share. Goes out: a
`Recomputed` for each rank's record that could be recomputed. Called by `run`, when the calls of all dumps are
there. The journal is `OUT/locate_collectives_calls_{timestamp}.csv` and
`OUT/locate_collectives_ranks_{timestamp}.csv`.
"""

import hashlib
from collections.abc import Iterable

from ray_precheck.jobs.location.exchange import (
    EXCHANGE_TABLES,
    Exchanged,
    WholeExchanges,
    read_recomputed,
)
from ray_precheck.locating.search import LocationSearch
from ray_precheck.runtime.driving import RunSetting, write_rows
from ray_precheck.runtime.progress import Progress
from ray_precheck.store.opening import opened_run
from ray_precheck.store.resume import discard_run
from ray_precheck.trace.locating.ranks.collectives import Recomputed


def recompute_exchanges(
    exchanges: Iterable[Exchanged], search: LocationSearch
) -> dict[str, list[Recomputed]] | None:
    """Recompute the collectives whose ranks are all there, in this process, because all of it is reading.

    Returns None if it was stopped on request.

    Raises:
        StoppedError: the run had to stop.
    """
    exchanges = list(exchanges)
    whole = WholeExchanges(exchanges)
    if not whole.names:
        return {}
    resumed = search.resumed(search.folder, EXCHANGE_TABLES)
    fingerprint = search.fingerprint(collectives=_digest(whole))
    new, names = search.shared.new_files(search.folder), set(whole.names)
    config, shared = search.config, search.shared
    reads = {each.dump: each.folder for each in exchanges}
    with opened_run(resumed, new, names, fingerprint, config, EXCHANGE_TABLES, reads) as opened:
        files, done = opened.files, opened.done
        progress = Progress(len(whole.names), len(done), show=search.show)
        setting = RunSetting(config, shared.cluster, None, files, progress, shared.stop_requested)
        try:
            completed = write_rows(whole, whole.rows(done), setting)
        finally:
            progress.close()
        if not completed:
            if opened.is_new:
                discard_run(files)
            return None
        return read_recomputed(files.details)


def _digest(whole: WholeExchanges) -> str:
    """Return what tells these collectives from others: their names, and the records of all ranks."""
    state = hashlib.sha256()
    for name in whole.names:
        state.update(f"{name}\0".encode())
        for each in whole.of(name):
            state.update(each.raw)
    return state.hexdigest()[:32]
