"""Whole dumps, for workers on machines that do not see their folders.

Comes in: tasks. Goes out: dump.json of each side with the files beside it that are read with it, and on the
other machine a folder for each side. Called by the runtime's shipper, and by the runner.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.dump.tensors import FolderFiles
from ray_precheck.errors import DumpError
from ray_precheck.schema.task import Task

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
