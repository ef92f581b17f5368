"""The driver's end of the writer: it keeps results until the writer has acknowledged them.

Comes in: finished pieces, and when each ran where. Goes out: progress, once they are acknowledged.
Called by the driver. If the writer dies, a new one is started and gets everything that was not
acknowledged; it leaves out the rows that it finds in the files.

Also here: the actor that owns the files of a run: both tables, and the timeline.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from ray_precheck.errors import PrecheckError, StoppedError
from ray_precheck.runtime.actors import ActorError, ActorLost, ActorPulses, Actors, CallFailed
from ray_precheck.runtime.progress import Progress
from ray_precheck.schema.task import Done
from ray_precheck.store.error_data import save_files
from ray_precheck.store.journal import Journal
from ray_precheck.store.tables import RunFiles, Tables, with_note
from ray_precheck.store.timeline import Timeline, Track


class Writer:
    """Appends to the journal; errors of the disk come back as `StoppedError`.

    The files are opened at the first use, so that an error there is an answer and no dead actor.
    `reopen` repairs them first, because another writer died while it wrote. The token of `files` is
    that of the run's claim on them, so the files of another run are not written.
    """

    # A disk that hangs does not keep it from telling that it is there.
    THREADS: ClassVar[Mapping[str, tuple[int, tuple[str, ...]]]] = {"pulse": (1, ("pulse",))}

    def __init__(self, files: RunFiles, tables: Tables, *, reopen: bool) -> None:
        self._open = Journal.reopen if reopen else Journal.open
        self._files = files
        self._tables = tables
        self._opened: Journal | None = None
        self._timeline: Timeline | None = None

    def append(self, finished: Sequence[Done], tracks: Sequence[Track] = ()) -> int:
        """Write finished pieces, and when each ran where; return how many pieces were written."""
        journal = self._journal()
        if finished:
            journal.append([self._with_evidence(done) for done in finished])
        if tracks:
            # The journal has locked the files by now, so no other process has this timeline.
            if self._timeline is None:
                self._timeline = Timeline.open(self._files.timeline)
            self._timeline.add(chain.from_iterable(track.spans() for track in tracks))
        return len(finished)

    def _with_evidence(self, done: Done) -> Done:
        """Save the evidence that a worker on another machine has sent with a piece."""
        if not done.evidence:
            return done
        try:
            save_files(self._files.errors, done.evidence)
        except OSError as error:
            note = f"its tensors could not be saved: {error.strerror or error}"
            return replace(done, row=with_note(done.row, note))
        return done

    def pulse(self) -> None:
        """Answer: the process is there (`runtime.actors.ActorPulses`)."""

    def complete(self, order: Sequence[str]) -> None:
        """Put both files in the order of these names and close them."""
        self._journal().complete(order)

    def close(self) -> None:
        """Close the files; the timeline so that it is JSON for every reader, even if the writer that began it
        has died."""
        if self._timeline is None and self._opened is not None and self._files.timeline.exists():
            self._timeline = Timeline.open(self._files.timeline)
        if self._timeline is not None:
            self._timeline.close()
        if self._opened is not None:
            self._opened.close()

    def _journal(self) -> Journal:
        if self._opened is None:
            files = self._files
            self._opened = self._open(files.result, files.details, files.token, self._tables)
        return self._opened


# Appends that the writer may have at a time. Pieces that finish meanwhile are gathered for the next
# append: the slower the disk, the larger the appends.
_MOST_UNACKNOWLEDGED = 4
# How many finished pieces, beside those of the last step, may wait for the writer before the driver
# waits for the writer: some megabytes of rows.
_MOST_WAITING = 16_384
# Deaths in a row, with nothing acknowledged in between, after which the run stops.
_MOST_DEATHS = 3
_NODE_INTERVAL_S = 2.0
# How long the writer may take to close the timeline; readers can also read one that was not closed.
_CLOSE_S = 2.0


class _Append(NamedTuple):
    """What one message to the writer holds."""

    finished: list[Done]
    tracks: list[Track]


class Recorder:
    """Hands finished pieces to the writer actor on this node, and counts those that are on the disk.

    Every method may raise `StoppedError`: the disk is full or gone, or the writer dies every time.
    """

    def __init__(self, actors: Actors, files: RunFiles, tables: Tables, progress: Progress) -> None:
        self._actors = actors
        # Actors of a cluster that was there before run in the folder in which its `ray start` was called.
        self._files = files.absolute()
        self._tables = tables
        self._progress = progress
        self._unacknowledged: dict[Any, _Append] = {}
        self._gathered = _Append([], [])
        self._waiting = 0
        self._deaths = 0
        self._pulses = ActorPulses(actors)
        # The table is made here: if a writer misses it later, even at its first use, it was removed.
        Journal.open(files.result, files.details, files.token, tables).close()
        self._writer = self._start(reopen=False)

    def _start(self, *, reopen: bool) -> Any:
        return self._actors.start(Writer, "", self._files, self._tables, reopen=reopen)

    @property
    def pending(self) -> list[Any]:
        """The answers that are awaited, the oldest first."""
        return [*self._unacknowledged, *self._pulses.pending]

    @property
    def has_gathered(self) -> bool:
        """Whether any finished piece or track has not been sent to the writer yet."""
        return bool(self._gathered.finished or self._gathered.tracks)

    def record(self, finished: Sequence[Done], tracks: Sequence[Track] = ()) -> None:
        """Take finished pieces, and when each ran where.

        They are handed to the writer if it has few appends before them; if it is far behind, this
        waits for it.
        """
        if self._unacknowledged:
            self._give_up_silent()
        self._gathered.finished.extend(finished)
        self._gathered.tracks.extend(tracks)
        self._waiting += len(finished)
        self._hand_over()
        while self._waiting - len(finished) > _MOST_WAITING:
            self.acknowledge(next(iter(self._unacknowledged)))
            self._hand_over()

    def _hand_over(self) -> None:
        if self.has_gathered and len(self._unacknowledged) < _MOST_UNACKNOWLEDGED:
            gathered, self._gathered = self._gathered, _Append([], [])
            self._send(gathered)

    def _send(self, append: _Append) -> None:
        if not self._unacknowledged:
            self._pulses.owes(self._writer)
        self._unacknowledged[self._actors.call(self._writer, "append", *append)] = append

    def _give_up_silent(self) -> bool:
        """Start a new writer where the one that owes an answer is not heard from; return whether it was."""
        is_lost = self._pulses.is_lost(self._writer)
        if is_lost:
            self._succeed(ActorLost("no answer"))
        return is_lost

    def acknowledge(self, answer: Any) -> None:
        """Wait for an answer of the writer; if the writer died, its appends are sent again.

        An answer of another actor is ignored: the error of a worker that was dismissed a moment ago
        must not be taken for the end of the writer.
        """
        if self._pulses.take(answer) or answer not in self._unacknowledged:
            return
        if self._ask(answer):
            finished = self._unacknowledged.pop(answer).finished
            self._waiting -= len(finished)
            self._progress.add(finished)

    def flush(self) -> None:
        """Hand all finished pieces to the writer, and wait until they are on the disk."""
        while self._unacknowledged or self.has_gathered:
            self._hand_over()
            self.acknowledge(next(iter(self._unacknowledged)))

    def complete(self, order: Sequence[str]) -> None:
        """Have both files put in the order of these names."""
        self.flush()
        self._pulses.owes(self._writer)
        while not self._ask(self._actors.call(self._writer, "complete", order)):
            pass

    def close(self) -> None:
        """End the writer. In a Ray that others started it would live on and keep the files locked."""
        with suppress(ActorError, StoppedError):
            self._actors.wait([self._actors.call(self._writer, "close")], _CLOSE_S)
        self._actors.kill(self._writer)

    def _ask(self, answer: Any) -> bool:
        """Wait for an answer; return False if the writer died and a new one was started."""
        # A call of an actor on a dead node may never come back.
        while answer not in (
            news := self._actors.wait([answer, *self._pulses.pending], _NODE_INTERVAL_S)
        ):
            self._actors.nodes()
            if not any(map(self._pulses.take, news)) and self._give_up_silent():
                return False
        try:
            self._actors.result(answer)
        except CallFailed as error:
            cause = error.cause
            raise cause if isinstance(cause, PrecheckError) else StoppedError(str(cause)) from None
        except ActorLost as error:
            self._succeed(error)
            return False
        self._pulses.heard(self._writer)
        self._deaths = 0
        return True

    def _succeed(self, error: ActorLost) -> None:
        """Start a new writer and send it the appends that the last one did not acknowledge."""
        self._deaths += 1
        if self._deaths >= _MOST_DEATHS:
            raise StoppedError(
                f"the process that writes the results died {_MOST_DEATHS} times in a row"
                f" ({error.reason})"
            ) from None
        # If the old writer lives and only cannot be reached, it must not write beside the new one.
        self._actors.kill(self._writer)
        self._pulses.forget(self._writer)
        self._writer = self._start(reopen=True)
        self._pulses.owes(self._writer)
        again = list(self._unacknowledged.values())
        self._unacknowledged = {}
        for append in again:
            self._send(append)
