"""Pairs of dumps of `locate`, for workers on machines that do not see their folders.

Comes in: tasks. Goes out: both dump.json with the files beside them that name modules and lines and that hold
sketches, and on the other machine two folders with them. Called by the runtime's shipper, and by the runner.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.capture.writing.sketches import SKETCHES
from ray_precheck.dump.tensors import FolderFiles
from ray_precheck.errors import DumpError
from ray_precheck.schema.task import Task
from ray_precheck.trace.overflow.modules import CONSTRUCT_FILE

_SIDES = ("target", "golden")
_BESIDE = (CONSTRUCT_FILE, "stack.json", SKETCHES)


class PairCargo:
    """Reads pairs of dumps for other machines; `paths` are those of the tasks, by their index."""

    def __init__(self, paths: Sequence[tuple[Path, Path]]) -> None:
        absolute = [(one.absolute(), other.absolute()) for one, other in paths]
        parents = [path.parent for pair in absolute for path in pair]
        self.folder = Path(os.path.commonpath(parents))
        self._paths = [tuple(path.relative_to(self.folder) for path in pair) for pair in absolute]
        self._sides_of: dict[str, set[str]] = {}
        for pair in self._paths:
            for side, path in zip(_SIDES, pair, strict=True):
                self._sides_of.setdefault(str(path.parent), set()).add(side)
        self._files = FolderFiles(self.folder)

    def limits(self, task: Task, most_bytes: int) -> Mapping[str, int]:
        """Return the files of a pair; none is sent that is larger than all that may be on their way."""
        names = [
            str(each)
            for path in self._paths[task.index]
            for each in (path, *(path.with_name(name) for name in _BESIDE))
        ]
        return {name: most_bytes for name in names if self._files.size_bytes(name)}

    def size_bytes(self, name: str) -> int:
        """Return how many bytes a file has; 0 where it cannot be read."""
        return self._files.size_bytes(name)

    def ship(self, name: str, limit_bytes: int) -> Any:
        """Read a file; returns its bytes, or an object with the reason why it is not sent."""
        return self._files.ship(name, limit_bytes)

    def packed(self, content: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
        """Return the files of one pair by their side and their name in its folder."""
        return {
            (side, Path(name).name): each
            for name, each in content.items()
            for side in self._sides_of[str(Path(name).parent)]
        }


@contextmanager
def unpacked_pair(
    files: Mapping[tuple[str, str], Any], target: str, golden: str
) -> Iterator[tuple[Path, Path]]:
    """Write the files of a pair into two folders of their own, for as long as it is searched.

    Raises:
        DumpError: a dump was not sent, because it cannot be read or is too large.
    """
    for side, name in zip(_SIDES, (target, golden), strict=True):
        found = files.get((side, name))
        if not isinstance(found, np.ndarray):
            reason = getattr(found, "reason", "it is larger than what may be sent at a time")
            raise DumpError(f"{name} was not sent to this machine: {reason}; use --shared-fs")
    with tempfile.TemporaryDirectory(prefix="ray_precheck_locate_") as folder:
        for side in _SIDES:
            Path(folder, side).mkdir()
        for (side, name), content in files.items():
            if isinstance(content, np.ndarray):
                Path(folder, side, name).write_bytes(content.data)
        yield Path(folder, "target", target), Path(folder, "golden", golden)
