"""The files of a simulated run, and the writers and drivers that die while they write them.

Comes in: results, and the moment at which the disk fails. Goes out: rows, written by the package's own
writer; `Restart` where the driver or the machine ends with the writer. Called by `histories.actors`
around each call of the writer, and by `histories.world` between two drivers.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from ray_precheck.schema.task import Done
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import load_done, resume_run, start_run
from ray_precheck.store.settings import RunSettings, save_settings
from ray_precheck.store.tables import RunFiles, run_files
from scripts.histories.answers import Choices, Say
from scripts.histories.disk import Died, Disk
from scripts.histories.rules import Ledger, read_files, require

_STAMP = "20260101120000"
_FINGERPRINT = {"dump": "simulated", "seed": "0"}


class Restart(BaseException):
    """The driver ends, and another one is started with the files that it left."""

    def __init__(self, *, loses_power: bool = False) -> None:
        super().__init__("the power fails" if loses_power else "the driver ends")
        self.loses_power = loses_power


class Hurt(Enum):
    """The trouble that happens in the middle of a write."""

    WRITER_DIES = 0
    DRIVER_DIES = 1
    POWER_FAILS = 2
    DISK_IS_FULL = 3


class Files:
    """The files of one history, through all its drivers.

    `has_trouble(n)` says, with a chance of 1 / n, whether the disk fails now; `say` is told of each event.
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
        self._files = start_run(folder, _STAMP, RunSettings(_FINGERPRINT))
        self._base = self._read()
        self.begin_life()

    @property
    def run(self) -> RunFiles:
        """The files of the run."""
        return self._files

    def begin_life(self) -> None:
        """Prepare for a new driver."""
        self._hurt: Hurt | None = None
        self._is_checked = False
        self._base = self._read()
        self._disk.log.clear()

    def hurt_next_write(self) -> None:
        """Have trouble happen in the middle of the next write."""
        self._hurt = Hurt(self._choices.below(len(Hurt)))

    def handed(self, finished: Sequence[Done]) -> None:
        """Note the pieces that the driver hands to the writer."""
        self._ledger.record(finished)

    def acknowledged(self, finished: Sequence[Done]) -> None:
        """Note the pieces that are on the disk: these must never be lost again."""
        self._ledger.acknowledged.update(done.name for done in finished)

    def arm(
        self, writer: Any, method: str, args: Sequence[Any], *, every_prefix: bool
    ) -> Hurt | None:
        """Choose the trouble of the writer's next call; return it, None for none."""
        if writer._opened is None and writer._open == Journal.reopen:
            writer._open = self._reopen
        if method == "complete":
            self._check_prefixes(every=every_prefix)
            if self._has_trouble(4):
                self._disk.fuse = self._choices.below(8)
            return Hurt(self._choices.below(3))
        hurt, self._hurt = self._hurt, None
        if hurt is not None and method == "append":
            size = sum(len(done.row) + len(done.details) for done in args[0])
            size += 0 if writer._opened is not None else 200  # the headers
            self._disk.fuse = self._choices.below(size + 3)
            self._disk.is_full = hurt is Hurt.DISK_IS_FULL
        return hurt

    def _reopen(self, *args: Any) -> Journal:
        """Repair the files, as a writer does whose predecessor has died."""
        journal = Journal.reopen(*args)
        fuse, self._disk.fuse = self._disk.fuse, None
        self._base = self._read()
        self._disk.log.clear()
        self._disk.fuse = fuse
        return journal

    def disarm(self) -> None:
        """Keep the disk from failing for now."""
        self._disk.fuse, self._disk.is_full = None, False

    def forget_writer(self) -> None:
        """Forget the process of the writer, which is gone."""
        self._disk.forget_process()

    def restart_after(self, hurt: Hurt | None) -> Restart | None:
        """Return the trouble that ends the driver or the machine with the writer, None for neither."""
        if hurt in (Hurt.DRIVER_DIES, Hurt.POWER_FAILS):
            return Restart(loses_power=hurt is Hurt.POWER_FAILS)
        return None

    def after_death(self, *, loses_power: bool) -> None:
        """Leave the files as the death of the driver, and a power loss, leave them."""
        self._disk.forget_process()
        if loses_power:
            self._disk.lose_power((self._files.result, self._files.details), self._choices.below)

    def resume(self) -> set[str]:
        """Repair the files that the last driver left; a driver that dies meanwhile has a successor."""
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
        """Check that every record has one row and its details, in the order of the dump."""
        self._ledger.check_end(*self._read())

    def _read(self) -> tuple[bytes, bytes]:
        return read_files((self._files.result, self._files.details))

    def _check_prefixes(self, *, every: bool) -> None:
        """Check the files that a kill at a random byte, or at every byte, would have left."""
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
