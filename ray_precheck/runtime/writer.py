"""The actor that owns the files of a run: both tables, and the timeline.

Comes in: finished pieces. Goes out: an acknowledgement, once they are on the disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import ClassVar

from ray_precheck.schema.done import Done
from ray_precheck.store.error_data import save_files
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import RunFiles
from ray_precheck.store.tables import Tables, with_note
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
        """Close the timeline, so that it is JSON for every reader, even if the writer that began it has
        died."""
        if self._timeline is None and self._opened is not None and self._files.timeline.exists():
            self._timeline = Timeline.open(self._files.timeline)
        if self._timeline is not None:
            self._timeline.close()

    def _journal(self) -> Journal:
        if self._opened is None:
            files = self._files
            self._opened = self._open(files.result, files.details, files.token, self._tables)
        return self._opened
