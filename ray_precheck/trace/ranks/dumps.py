"""The dumps of a run, a few of them open at a time, for what summaries do not tell.

Comes in: their paths. Goes out: the values, the module and the line of a record. Used by the checks of this
folder.
"""

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray_precheck.dump.tensors import read_sketches
from ray_precheck.errors import DumpError
from ray_precheck.trace.items import Item
from ray_precheck.trace.ranks.nouns import (
    RankTrace,
    TensorFact,
)
from ray_precheck.trace.ranks.summary import fact_of
from ray_precheck.trace.side import CaptureSide, open_side
from ray_precheck.trace.sources import Modules, source_lines

_OPEN = 16


class OpenDumps:
    """The dumps of a run, of which a few are open at a time, for what summaries do not tell.

    `paths` are theirs by step and rank.
    """

    def __init__(self, paths: Mapping[tuple[int, int], Path]) -> None:
        self._paths = paths
        self._open: OrderedDict[tuple[int, int], tuple[CaptureSide, dict[str, int], Any]] = (
            OrderedDict()
        )

    def items(self, summary: RankTrace, key: str) -> list[Item]:
        """Return the values of a record; none where the dump cannot be read."""
        found = self._side(summary)
        if found is None or key not in found[1]:
            return []
        return found[0].items(found[0].entries[found[1][key]])

    def fact(self, summary: RankTrace, item: Item) -> TensorFact:
        """Return what a tensor's element says of its values."""
        found = self._side(summary)
        number = item.statistic("sketch")
        rows = found[2] if found is not None else ()
        is_known = type(number) is int and number < len(rows)
        return fact_of(item, rows[number] if is_known else None)

    def modules(self, summary: RankTrace) -> Modules:
        """Return the modules around the records."""
        path = self._paths.get((summary.step, summary.rank))
        return Modules(path.parent) if path is not None else Modules()

    def source(self, summary: RankTrace, key: str) -> str:
        """Return the program's line of a record, "" where it is not known."""
        path = self._paths.get((summary.step, summary.rank))
        return source_lines(path, {key}).get(key, "") if path is not None and key else ""

    def close(self) -> None:
        """Close what is open."""
        while self._open:
            self._open.popitem()[1][0].file.close()

    def _side(self, summary: RankTrace) -> tuple[CaptureSide, dict[str, int], Any] | None:
        at = summary.step, summary.rank
        if at not in self._open and at in self._paths:
            try:
                side = open_side(self._paths[at])
                rows = read_sketches(side.folder)
            except (DumpError, OSError):
                return None
            places = {entry.key: place for place, entry in enumerate(side.entries)}
            self._open[at] = side, places, rows
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)[1][0].file.close()
        if at in self._open:
            self._open.move_to_end(at)
        return self._open.get(at)


def module_words(modules: Modules, key: str) -> str:
    """Return ` in layers.0.mlp` for the module around a record, "" where there is none."""
    found = modules.of(key) if key else ""
    parts = found.split(".")[1:]
    cut = next((at for at, part in enumerate(parts) if part in ("forward", "backward")), len(parts))
    return f" in {'.'.join(parts[: max(0, cut - 1)])}" if cut > 1 else ""
