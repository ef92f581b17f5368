"""The mutants that are tried: places to change, drawn by a seed.

Comes in: the rooms of a tree. Goes out: `Mutant`s. Called by `main`.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.mutants.changes import Change, find_changes


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one file; `path` is below the root."""

    path: str
    change: Change

    @property
    def room(self) -> str:
        """The folder of the unit tests that are for this file."""
        return self.path.split("/")[1]


def draw(root: Path, rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return so many mutants of the modules of the rooms, which are folders or files."""
    mutants = [
        Mutant(str(path.relative_to(root)), change)
        for room in rooms
        for path in _modules(root / "ray_precheck" / room)
        for change in find_changes(path.read_text("utf-8"))
    ]
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def importers(root: Path, path: str) -> list[str]:
    """Return the files of the package that import a module by its name."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    needle = re.compile(rf"^\s*(from|import) {re.escape(name)}\b(?!\.)", re.MULTILINE)
    modules = _modules(root / "ray_precheck")
    return [
        str(each.relative_to(root)) for each in modules if needle.search(each.read_text("utf-8"))
    ]


def _modules(room: Path) -> list[Path]:
    return [room] if room.is_file() else sorted(room.rglob("*.py"))
