"""The driver's end of the writer: what was sent, and what is on the disk.

Comes in: results. Goes out: progress, once they are acknowledged. Called by the driver. A writer
that dies is started again, and what it had not acknowledged is sent again; it leaves out the rows
that it finds in the files.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_precheck.errors import PrecheckError, StoppedError
from ray_precheck.runtime.places.cluster import living_nodes, require_own_node
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.writer import WriterActor
from ray_precheck.schema.result import TaskResult
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import RunFiles

_MOST_UNACKNOWLEDGED = 8
# Deaths in a row, with nothing acknowledged in between, after which the run stops.
_MOST_DEATHS = 3
_NODE_INTERVAL_S = 2.0


class Recorder:
    """Hands results to the writer actor on this node and counts them when they are on the disk.

    Every method may raise `StoppedError`: the disk is full or gone, or the writer dies every time.
    """

    def __init__(self, files: RunFiles, progress: Progress) -> None:
        self._files = files
        self._progress = progress
        self._unacknowledged: dict[Any, Sequence[TaskResult]] = {}
        self._deaths = 0
        # From here on a result CSV that is missing was removed, also where no writer has opened it.
        Journal.open(files.result, files.details, files.token).close()
        self._writer = self._start(reopen=False)

    def _start(self, *, reopen: bool) -> Any:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = WriterActor.options(scheduling_strategy=here)
        files = self._files
        paths = files.result, files.details, files.errors
        return options.remote(*paths, files.token, reopen=reopen)

    @property
    def pending(self) -> list[Any]:
        """The answers that are awaited, the oldest first."""
        return list(self._unacknowledged)

    def record(self, results: Sequence[TaskResult]) -> None:
        """Hand results over; wait for the writer where it falls behind."""
        if results:
            self._unacknowledged[self._writer.append.remote(results)] = results
        while len(self._unacknowledged) > _MOST_UNACKNOWLEDGED:
            self.acknowledge(next(iter(self._unacknowledged)))

    def acknowledge(self, ref: Any) -> None:
        """Wait for one answer; one that a writer took to its grave is asked for again.

        What is no answer of the writer is ignored: the call of a worker that was dismissed a moment
        ago, with its error, must not pass for the end of the writer.
        """
        if ref not in self._unacknowledged:
            return
        if self._ask(ref):
            self._progress.add(self._unacknowledged.pop(ref))

    def flush(self) -> None:
        """Wait until everything is on the disk."""
        while self._unacknowledged:
            self.acknowledge(next(iter(self._unacknowledged)))

    def complete(self, order: Sequence[str]) -> None:
        """Have both files put in dump order."""
        self.flush()
        while not self._ask(self._writer.complete.remote(order)):
            pass

    def close(self) -> None:
        """End the writer. In somebody else's Ray it would live on, and have the files locked."""
        if ray.is_initialized():  # Otherwise ray.kill would start another Ray.
            with suppress(RayError, ValueError):
                ray.kill(self._writer)

    def _ask(self, ref: Any) -> bool:
        """Wait for an answer; False where the writer died and a new one has taken over."""
        # A call of an actor on a dead node may never come back.
        while not ray.wait([ref], timeout=_NODE_INTERVAL_S)[0]:
            require_own_node(living_nodes())
        try:
            ray.get(ref)
        except RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, PrecheckError) else StoppedError(str(cause)) from None
        except RayError as error:
            self._succeed(error)
            return False
        self._deaths = 0
        return True

    def _succeed(self, error: RayError) -> None:
        """Start a new writer and send it what the last one did not acknowledge."""
        self._deaths += 1
        if self._deaths >= _MOST_DEATHS:
            raise StoppedError(
                f"the process that writes the results died {_MOST_DEATHS} times in a row"
                f" ({type(error).__name__})"
            ) from None
        ray.kill(
            self._writer
        )  # Where it only cannot be reached, it must not write beside its heir.
        self._writer = self._start(reopen=True)
        again = list(self._unacknowledged.values())
        self._unacknowledged = {self._writer.append.remote(results): results for results in again}
