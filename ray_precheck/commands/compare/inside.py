"""What the parameters inside of a module bring to its outputs.

Comes in: both records of an update, which have all parameters as the calls before it got them; then the rows
of a pair of modules. Goes out: how far the parameters are apart (`ParameterGaps`), and for each output how
far that explains it. Called by the plan of a comparison, and for each piece.

The record of a module has no parameters: a module whose parameters went apart in an earlier step would be in
error, though each call in it is judged by the weights that it got.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ray_precheck.trace.difference.measuring import Reading, rows_of_operators
from ray_precheck.trace.difference.rows import TensorRow
from ray_precheck.trace.difference.standards.base import distance_apart
from ray_precheck.trace.difference.unsteady import Unsteady
from ray_precheck.trace.items import INPUT, Item, bare_name, parameter_names, parameter_place

_PARAMS = ".params."
MODULES = ("Module.", "Cell.")


class ParameterGap(NamedTuple):
    """How far a parameter is apart in two runs: its relative L2 distance, or at least that, and where honest
    updates explain it, which may move it wholly, the length of the difference and its number of elements."""

    relative_l2: float
    length: float = 0.0
    size: int = 0

    def brought(self, row: TensorRow) -> float:
        """Return the relative distance that it brings to an output: an unsteady parameter is as a bias added
        to each sample."""
        if not self.size:
            return self.relative_l2
        norm = row.golden.norm if row.golden is not None else None
        times = max(1.0, math.prod(row.item.shape or ()) / self.size)
        return self.length * math.sqrt(times) / norm if norm else 0.0


ParameterGaps = dict[str, ParameterGap]


def parameter_gaps(
    target: Sequence[Item], golden: Sequence[Item], unsteady: Unsteady, reading: Reading
) -> ParameterGaps:
    """Return by name the parameters that are apart before an update."""
    names, others = parameter_names(target), parameter_names(golden)
    sides = [[item for item in items if _is_parameter(item)] for items in (target, golden)]
    found: ParameterGaps = {}
    for row in rows_of_operators("", "", sides[0], sides[1], reading):
        place = parameter_place(row.item)
        name = names.get(place, "") if place is not None else ""
        if not name or place is None or others.get(place) != name or not row.is_matched:
            continue
        apart, norm = distance_apart(row), row.both[1].norm
        if apart is None or not apart.value or not norm or not math.isfinite(norm):
            continue
        slack, length = unsteady.get(row.item.mark, 0.0), apart.value * norm
        is_unsteady = 0.0 < length <= slack
        size = max(1, math.prod(row.item.shape or ())) if is_unsteady else 0
        found[name] = ParameterGap(apart.value, length, size)
    return found


def give_gaps(key: str, rows: Iterable[TensorRow], gaps: Mapping[str, ParameterGap]) -> None:
    """Note on the outputs of a module by how much the parameters inside of it are apart (`inside`)."""
    if not key.startswith(MODULES) or not gaps:
        return
    path = key.partition(".")[2].partition(".forward.")[0].rpartition(".")[0]
    begin = bare_name(f"{path}.") if path else ""
    inside = [gap for name, gap in gaps.items() if name.startswith(begin)]
    for row in rows:
        if row.is_output:
            row.inside = max((gap.brought(row) for gap in inside), default=0.0)


def _is_parameter(item: Item) -> bool:
    return item.part == INPUT and _PARAMS in item.path
