"""The files of a simulated run, and the writers and drivers that die while they write them.

Comes in: results, and where the disk is to be hurt. Goes out: rows, written by the package's own
journal; `Restart` or `StoppedError` where the driver ends. Does what `runtime/recorder.py` does.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import cache
from pathlib import Path

from ray_precheck.errors import StoppedError
from ray_precheck.schema.result import TaskResult
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import RunFiles, load_done, resume_run, run_files, start_run
from ray_precheck.store.settings import RunSettings, save_settings
from scripts.histories.answers import Choices, Say, rows_of
from scripts.histories.disk import Died, Disk
from scripts.histories.rules import Ledger, read_files, require

_STAMP = "20260101120000"
_FINGERPRINT = {"dump": "simulated", "seed": "0"}
_MOST_UNACKNOWLEDGED = 8
_MOST_WRITER_DEATHS = 3


class Restart(Exception):
    """The driver ends and is started again with the files that it left."""

    def __init__(self, *, loses_power: bool = False) -> None:
        super().__init__("the power fails" if loses_power else "the driver ends")
        self.loses_power = loses_power


class Hurt(Enum):
    """What happens in the middle of a write."""

    WRITER_DIES = 0
    DRIVER_DIES = 1
    POWER_FAILS = 2
    DISK_IS_FULL = 3


class Files:
    """The files of one history, through all its drivers.

    `has_trouble` says, for one in so many, whether the disk is to be hurt now; `say` is told.
    """

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        choices: Choices,
        names: list[str],
        has_trouble: Callable[[int], bool],
        say: Say,
    ) -> None:
        self._disk = disk
        self._choices = choices
        self._has_trouble = has_trouble
        self._say = say
        self._ledger = Ledger(names)
        self._folder = folder
        self._files = start_run(folder, _STAMP, _FINGERPRINT)
        # The driver makes both files before there is a writer, as the recorder does.
        Journal.open(self._files.result, self._files.details).close()
        self._base = self._read()
        self.begin_life()

    def begin_life(self) -> None:
        """Be the writer of a new driver."""
        self.unwritten: deque[tuple[TaskResult, ...]] = deque()
        self._journal: Journal | None = None
        self._deaths = 0
        self._hurt: Hurt | None = None
        self._disk.log.clear()

    def hurt_next_write(self) -> None:
        """Have something happen in the middle of the next write."""
        self._hurt = Hurt(self._choices.below(len(Hurt)))

    def record(self, results: tuple[TaskResult, ...]) -> None:
        """Take on results; where the writer falls behind, wait for it."""
        self._ledger.record(results, rows_of)
        self.unwritten.append(results)
        while len(self.unwritten) > _MOST_UNACKNOWLEDGED:
            self.write()

    def flush(self) -> None:
        """Write everything."""
        while self.unwritten:
            self.write()

    def write(self) -> None:
        """Have the oldest results written, or a part of them."""
        results = self.unwritten[0]
        hurt, self._hurt = self._hurt, None
        if hurt is not None:
            size = sum(len(data) for result in results for data in rows_of(result))
            size += 0 if self._journal is not None else 200  # the headers
            self._disk.fuse = self._choices.below(size + 3)
            self._disk.is_full = hurt is Hurt.DISK_IS_FULL
        try:
            self._opened().append(results)
        except Died:
            self._say("the writer dies while it writes {}", results)
            self._succeed(hurt)
            return
        finally:
            self._disk.fuse, self._disk.is_full = None, False
        self._deaths = 0
        self.unwritten.popleft()
        self._ledger.acknowledged.update(result.name for result in results)

    def _opened(self) -> Journal:
        if self._journal is None:
            make = Journal.reopen if self._deaths else Journal.open
            self._journal = make(self._files.result, self._files.details)
            if self._deaths:
                self._base = self._read()
                self._disk.log.clear()
        return self._journal

    def _succeed(self, hurt: Hurt | None) -> None:
        """Go on with the next writer, unless the driver or the machine died with this one."""
        self._journal = None
        self._disk.forget_process()
        if hurt in (Hurt.DRIVER_DIES, Hurt.POWER_FAILS):
            raise Restart(loses_power=hurt is Hurt.POWER_FAILS)
        self._deaths += 1
        if self._deaths >= _MOST_WRITER_DEATHS:
            raise StoppedError("the writer died three times in a row")

    def complete(self, *, every_prefix: bool) -> None:
        """Have both files put in order, whoever dies of it."""
        self.flush()
        self._check_prefixes(every=every_prefix)
        while True:
            if self._has_trouble(4):
                self._disk.fuse = self._choices.below(8)
            try:
                self._opened().complete(self._ledger.names)
                break
            except Died:
                self._say("the writer dies while it completes the files")
                self._succeed(Hurt(self._choices.below(3)))
        self._disk.fuse = None

    def after_death(self, *, loses_power: bool) -> None:
        """Leave what the driver's death, and a power loss, leave."""
        self._disk.forget_process()
        if loses_power:
            self._disk.lose_power((self._files.result, self._files.details), self._choices.below)

    def resume(self) -> set[str]:
        """Repair what the last driver left; whoever dies of it is followed by the next one."""
        names = set(self._ledger.names)
        while True:
            self._ledger.forget_last(self._read()[1])
            if self._has_trouble(8):
                self._disk.fuse = self._choices.below(6)
            try:
                done = resume_run(self._files, names, _FINGERPRINT)
            except Died:
                self._say("the driver dies while it repairs")
                self.after_death(loses_power=self._choices.chance(3))
                continue
            self._disk.fuse = None
            self._ledger.check_done(done)
            self._base = self._read()
            self._ledger.check_files(*self._base, done)
            return done

    def check_end(self) -> None:
        """Every record has its one row and its details, in the order of the dump."""
        self._ledger.check_end(*self._read())

    def _read(self) -> tuple[bytes, bytes]:
        return read_files((self._files.result, self._files.details))

    def _check_prefixes(self, *, every: bool) -> None:
        """Check what a kill at some byte, or at every byte, of what was written would have left."""
        self._opened()
        total = sum(len(data) for _, data in self._disk.log)
        chosen = self._choices.below(total + 1)
        if not every:
            self._check_first_bytes(chosen, repairs=False)
            return
        with self._disk.elsewhere():
            for size in range(total + 1):
                self._check_first_bytes(size, repairs=True)

    def _check_first_bytes(self, size: int, *, repairs: bool) -> None:
        files = files_in(self._folder / "prefix")
        paths = files.result, files.details
        data = {path.name: base for path, base in zip(paths, self._base, strict=True)}
        for name, chunk in self._disk.log:
            data[name] += chunk[:size]
            size -= min(size, len(chunk))
        for path in paths:
            path.write_bytes(data[path.name])
        names, settings = set(self._ledger.names), RunSettings(_FINGERPRINT)
        done = load_done(files, names, settings)
        self._ledger.check_prefix(data[files.result.name], data[files.details.name], done)
        if repairs:
            save_settings(files.settings, settings)
            require(resume_run(files, names, _FINGERPRINT) == done, "resumed with other records")
            self._ledger.check_files(*read_files(paths), done)


@cache
def files_in(folder: Path) -> RunFiles:
    """Return the names of the files of a history in a folder."""
    return run_files(folder / f"accuracy_checking_result_{_STAMP}.csv")
