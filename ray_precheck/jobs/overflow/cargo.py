"""The dumps of `overflow_check`, for workers on machines that do not see their folder.

Comes in: tasks. Goes out: dump.json with the files beside it that name modules and lines, and on the other
machine a folder with them. Called by the runtime's shipper, and by the runner.
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
from ray_precheck.trace.overflow.modules import CONSTRUCT_FILE

_BESIDE = (CONSTRUCT_FILE, "stack.json")


class OverflowCargo:
    """Reads dumps for other machines; `paths` are those of the tasks, by their index."""

    def __init__(self, paths: Sequence[Path]) -> None:
        absolute = [path.absolute() for path in paths]
        self.folder = Path(os.path.commonpath([path.parent for path in absolute]))
        self._paths = [path.relative_to(self.folder) for path in absolute]
        self._files = FolderFiles(self.folder)

    def limits(self, task: Task, most_bytes: int) -> Mapping[str, int]:
        """Return the files of a dump; none is sent that is larger than all that may be on their way."""
        path = self._paths[task.index]
        names = [str(path), *(str(path.with_name(name)) for name in _BESIDE)]
        return {name: most_bytes for name in names if self._files.size_bytes(name)}

    def size_bytes(self, name: str) -> int:
        """Return how many bytes a file has; 0 where it cannot be read."""
        return self._files.size_bytes(name)

    def ship(self, name: str, limit_bytes: int) -> Any:
        """Read a file; returns its bytes, or an object with the reason why it is not sent."""
        return self._files.ship(name, limit_bytes)

    def packed(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the files of one dump by their names in its folder."""
        return {Path(name).name: each for name, each in content.items()}


@contextmanager
def unpacked(files: Mapping[str, Any], name: str) -> Iterator[Path]:
    """Write the files of a dump into a folder of their own, for as long as it is looked at.

    Raises:
        DumpError: the dump was not sent, because it cannot be read or is too large.
    """
    if not isinstance(files.get(name), np.ndarray):
        reason = getattr(files.get(name), "reason", "it is larger than what may be sent at a time")
        raise DumpError(f"{name} was not sent to this machine: {reason}; use --shared-fs")
    with tempfile.TemporaryDirectory(prefix="ray_precheck_overflow_") as folder:
        for each, content in files.items():
            if isinstance(content, np.ndarray):
                Path(folder, each).write_bytes(content.data)
        yield Path(folder, name)
