"""In which module a record was made: the `construct.json` beside a dump.

Comes in: the folder of a dump. Goes out: the module of a record, and which modules hold a record that
explains what they gave. Used by the walk through a capture and for the rows. msprobe's form: `{key: parent}`,
where the parent of a call is a module, and that of a module the one around it.
"""

from pathlib import Path

import orjson

from ray_precheck.foreign import read_file

CONSTRUCT_FILE = "construct.json"
# A larger file is left alone: it is read as a whole.
_LARGEST_BYTES = 512 << 20
_DEEPEST = 1000


class Modules:
    """The modules of a dump; without the file, and without a folder, no record is in one that is not
    learned."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._read: dict[str, object] | None = {} if folder is None else None
        self._marked: set[str] = set()

    def of(self, key: str) -> str:
        """Return the key of the module around a record, "" where there is none or it is not known."""
        if self._read is None:
            self._read = {} if self._folder is None else _construct(self._folder / CONSTRUCT_FILE)
        found = self._read.get(key)
        if isinstance(found, list):
            found = next(iter(found), None)
        return found if isinstance(found, str) else ""

    def learn(self, key: str, module: str | None) -> None:
        """Take note of the module around a record, while a capture goes on."""
        if self._read is not None:
            self._read[key] = module

    def mark(self, key: str) -> None:
        """Take note that a record explains what the modules around it give."""
        for _ in range(_DEEPEST):
            key = self.of(key)
            if not key or key in self._marked:
                return
            self._marked.add(key)

    def holds(self, key: str) -> bool:
        """Return whether a record within this module was marked."""
        return key in self._marked


def _construct(path: Path) -> dict[str, object]:
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return {}
        found = orjson.loads(read_file(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
