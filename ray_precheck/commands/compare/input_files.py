"""The captured tensors of two captures, for workers on machines that do not see their folders.

Comes in: tasks. Goes out: which files their records name, and the contents of these. Called by the
runtime's shipper, on a thread of its own. A file is named by its side,
`target/Torch.add.0.forward.input.0.pt`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from ray_precheck.commands.compare.payload import ComparisonPayload, ComparisonSettings
from ray_precheck.dump.tensors import FolderFiles, Shipped, ShippedFiles, TensorFiles
from ray_precheck.schema.task import Task
from ray_precheck.trace.items import items_of
from ray_precheck.trace.side import record_from_json

TARGET, GOLDEN, NOISE = "target", "golden", "noise"


@dataclass(frozen=True, slots=True)
class PairFiles:
    """The files of one piece that were read on another machine, by the side that they are of."""

    files: Mapping[str, Mapping[str, Any]]

    def folders(self) -> dict[str, TensorFiles]:
        """Return them as the folders that they come from."""
        sides = (TARGET, GOLDEN, NOISE)
        return {side: ShippedFiles(self.files.get(side, {})) for side in sides}


class ComparisonInputFiles:
    """Reads captured files of all sides for other machines; `payload` returns that of a task."""

    def __init__(
        self, payload: Callable[[Task], ComparisonPayload], settings: ComparisonSettings
    ) -> None:
        self._payload = payload
        self._folders = {
            TARGET: FolderFiles(settings.target_folder),
            GOLDEN: FolderFiles(settings.golden_folder),
        }
        if settings.noise_folder is not None:
            self._folders[NOISE] = FolderFiles(settings.noise_folder)

    @property
    def folder(self) -> Path:
        """The folder of the target's files, for messages."""
        return self._folders[TARGET].folder

    def limits(self, task: Task, most_bytes: int) -> Mapping[str, int]:
        """Return the files of a task by name; each may have `most_bytes`."""
        payload = self._payload(task)
        saved = [each.records for each in payload.saved]
        records = {
            TARGET: payload.target.records + saved[0],
            GOLDEN: payload.golden.records + saved[1],
            NOISE: payload.noise.records,
        }
        found: dict[str, int] = {}
        for side in self._folders:
            for key, raw in records[side]:
                for item in items_of(record_from_json(raw), key):
                    if item.file:
                        found[f"{side}/{item.file}"] = most_bytes
        return found

    def size_bytes(self, name: str) -> int:
        """Return how many bytes a file has; 0 where it cannot be read."""
        folder, inner = self._place(name)
        return folder.size_bytes(inner)

    def ship(self, name: str, limit_bytes: int) -> Shipped:
        """Read a file; returns its content, or why it is not sent."""
        folder, inner = self._place(name)
        return folder.ship(inner, limit_bytes)

    def packed(self, content: Mapping[str, Any]) -> PairFiles:
        """Return the files of one task as its runner reads them."""
        sides: dict[str, dict[str, Any]] = {}
        for name, each in content.items():
            side, _, inner = name.partition("/")
            sides.setdefault(side, {})[inner] = each
        return PairFiles(sides)

    def _place(self, name: str) -> tuple[FolderFiles, str]:
        side, _, inner = name.partition("/")
        return self._folders[side], str(PurePath(inner))
