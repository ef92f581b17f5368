"""A job whose pieces are whole dumps, which needs no device.

Comes in: a `DumpWork`, which says what is done with a piece, and payloads that name its dumps. Goes out: a
`Job`, its `Opener` and its `Runner`. Made by `commands.overflow` (a piece is a dump) and
`commands.locate.pairs` (a piece is a dump of each run).

Also here: whole dumps, for workers on machines that do not see their folders.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ray_precheck.dump.tensors import FolderFiles
from ray_precheck.errors import DumpError
from ray_precheck.foreign import open_file
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.runtime.workers.shared import require_folders, seen_folders
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import Cause, DeviceSlot, Done, Phase, Task
from ray_precheck.store.tables import Tables

# What a piece's files are called where they arrive: the number of the side, and the name in its folder.
SentFiles = Mapping[tuple[int, str], Any]


class DumpsInputFiles:
    """Reads dumps for other machines.

    `paths` are those of the tasks, by their index, one for each side; `beside` names the files in the folder
    of a dump that are read with it.
    """

    def __init__(self, paths: Sequence[Sequence[Path]], beside: Sequence[str]) -> None:
        absolute = [[path.absolute() for path in piece] for piece in paths]
        self.folder = Path(
            os.path.commonpath([path.parent for piece in absolute for path in piece])
        )
        self._paths = [[path.relative_to(self.folder) for path in piece] for piece in absolute]
        self._sides_of: dict[str, set[int]] = {}
        for piece in self._paths:
            for side, path in enumerate(piece):
                self._sides_of.setdefault(str(path.parent), set()).add(side)
        self._beside = tuple(beside)
        self._files = FolderFiles(self.folder)

    def limits(self, task: Task, most_bytes: int) -> Mapping[str, int]:
        """Return the files of a piece; none is sent that is larger than all that may be on their way."""
        names = [
            str(each)
            for path in self._paths[task.index]
            for each in (path, *(path.with_name(name) for name in self._beside))
        ]
        return {name: most_bytes for name in names if self._files.size_bytes(name)}

    def size_bytes(self, name: str) -> int:
        """Return how many bytes a file has; 0 where it cannot be read."""
        return self._files.size_bytes(name)

    def ship(self, name: str, limit_bytes: int) -> Any:
        """Read a file; returns its bytes, or an object with the reason why it is not sent."""
        return self._files.ship(name, limit_bytes)

    def packed(self, content: Mapping[str, Any]) -> SentFiles:
        """Return the files of one piece by their side and their name in its folder."""
        return {
            (side, Path(name).name): each
            for name, each in content.items()
            for side in self._sides_of[str(Path(name).parent)]
        }


@contextmanager
def unpacked_dumps(files: SentFiles, names: Sequence[str]) -> Iterator[tuple[Path, ...]]:
    """Write the files of a piece into a folder for each side, for as long as the block runs.

    `names` are those of the dumps in their folders, one for each side.

    Raises:
        DumpError: a dump was not sent, because it cannot be read or is too large.
    """
    for side, name in enumerate(names):
        found = files.get((side, name))
        if not isinstance(found, np.ndarray):
            reason = getattr(found, "reason", "it is larger than what may be sent at a time")
            raise DumpError(f"{name} was not sent to this machine: {reason}; use --shared-fs")
    with tempfile.TemporaryDirectory(prefix="ray_precheck_dumps_") as folder:
        for side in range(len(names)):
            Path(folder, str(side)).mkdir()
        for (side, name), content in files.items():
            if isinstance(content, np.ndarray):
                Path(folder, str(side), name).write_bytes(content.data)
        yield tuple(Path(folder, str(side), name) for side, name in enumerate(names))


_TAIL_BYTES = 1 << 16


class DumpPayload(Protocol):
    """What a worker needs for a piece; it is pickled."""

    @property
    def index(self) -> int:
        """The number of the piece."""

    @property
    def name(self) -> str:
        """The name of the piece, which its row has."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The dumps of the piece, absolute: a worker is in another folder."""


Payload = TypeVar("Payload", bound=DumpPayload)


@dataclass(frozen=True, slots=True)
class DumpWork(Generic[Payload]):
    """What is done with a piece.

    The functions are those of a module, since they are pickled by their names. `look` returns the rows of a
    piece whose dumps stand at some paths; `without_rows` its row where there is nothing but a verdict and a
    reason. A core looks at the dumps of `bytes_of_a_second` in a second. `broken` is the verdict of a piece
    that broke its worker. `beside` names the files in a dump's folder that are read with it.
    """

    tables: Tables
    look: Callable[[Payload, tuple[Path, ...]], Done]
    without_rows: Callable[[Payload, Verdict, str], Done]
    bytes_of_a_second: float
    broken: Verdict
    beside: tuple[str, ...]


class DumpsJob(Generic[Payload]):
    """Whole dumps as a job. `shared_fs`: every machine sees them by the same paths."""

    has_bench = bench_suffices = False
    memory_limit_bytes = 0

    def __init__(
        self, work: DumpWork[Payload], payloads: Sequence[Payload], *, shared_fs: bool
    ) -> None:
        self._work = work
        self._payloads = payloads
        self._shares = shared_fs
        self.tables = work.tables
        self.names = [each.name for each in payloads]
        self.sizes = [sum(map(_size_of, each.paths)) for each in payloads]
        paths = [each.paths for each in payloads]
        self.input_files = None if shared_fs else DumpsInputFiles(paths, work.beside)

    def tasks(self, done: set[str]) -> list[Task]:
        """Return the pieces that have no row yet, the largest first."""
        found = [
            Task(index, name, size / self._work.bytes_of_a_second)
            for index, (name, size) in enumerate(zip(self.names, self.sizes, strict=True))
            if name not in done
        ]
        return sorted(found, key=lambda task: -task.cost_s)

    def payload(self, task: Task) -> Payload:
        """Return the paths of a piece, and what to look for."""
        return self._payloads[task.index]

    def opener(self, *, is_home: bool) -> "DumpsOpener[Payload]":
        """Return the opener of runners, which need no device. With a shared file system other machines must
        see the folders of the dumps."""
        every = {path.parent for each in self._payloads for path in each.paths}
        folders = every if self._shares else ()
        return DumpsOpener(self._work, seen_folders(sorted(folders), is_home=is_home))

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        """Return the row of a piece that broke its worker."""
        return self._work.without_rows(self.payload(task), self._work.broken, reason)

    def unchecked(self, task: Task, reason: str) -> Done:
        """Return the row of a piece that could not be looked at."""
        return self._work.without_rows(self.payload(task), Verdict.SKIP, reason)


@dataclass(frozen=True, slots=True)
class DumpsOpener(Generic[Payload]):
    """Opens a runner; it loads no framework. `must_see` are folders that its machine has to have."""

    work: DumpWork[Payload]
    must_see: tuple[Path, ...] = ()
    memory_limit_bytes: int = 0

    def open(self, slot: DeviceSlot, tell: Callable[[Phase], None]) -> "DumpsRunner[Payload]":
        """Return a runner.

        Raises:
            DeviceError: the machine does not share the dumps that it is said to share.
        """
        require_folders(slot, self.must_see, "the dumps")
        return DumpsRunner(self.work)


@dataclass(frozen=True, slots=True)
class DumpsRunner(Generic[Payload]):
    """Looks at one piece after the other."""

    work: DumpWork[Payload]
    caveat: str = ""

    def run(self, payload: Payload, stage: Stage, *, files: Any = None, **_: Any) -> Done:
        """Return the rows of a piece; `files` are those that were sent to a machine that lacks it."""
        if files is None:
            return self.work.look(payload, payload.paths)
        try:
            with unpacked_dumps(files, [path.name for path in payload.paths]) as paths:
                return self.work.look(payload, paths)
        except DumpError as error:
            return self.work.without_rows(payload, Verdict.SKIP, str(error))

    def damage(self) -> tuple[Cause, str] | None:
        """Return None: a dump cannot damage the process."""
        return None


def digest_of_dumps(labelled: Iterable[tuple[str, Iterable[Path]]]) -> str:
    """Return what tells these dumps from others: their labels, their sizes and how each of them ends."""
    digest = hashlib.sha256()
    for label, paths in labelled:
        digest.update(f"{label}\0".encode())
        for path in paths:
            try:
                with open_file(path) as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(0, size - _TAIL_BYTES))
                    digest.update(f"{size}\0".encode() + file.read())
            except OSError:
                continue  # Its row says that it cannot be read.
    return digest.hexdigest()[:32]


def as_told(text: str, here: Sequence[Path], told: Sequence[Path]) -> str:
    """Return a sentence with the paths that the user knows in the place of those on this machine."""
    for path, name in zip(here, told, strict=True):
        text = text.replace(str(path), str(name))
    return text


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
