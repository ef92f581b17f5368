"""Operators that compute each row by itself, beside a bench that is computed and compared in tiles.

Comes in: a `LargeCall` and the gradients that are tested. Goes out: the detail rows of results that are
clearly right, which are those of the whole bench: all elements are compared in float64, but never lie in
memory together. Called by `sampled.judge`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ray_precheck.accuracy.ambiguous import is_exact
from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.accuracy.thresholds import COMPUTED_IN
from ray_precheck.accuracy.tiled import TiledComparison
from ray_precheck.bench.rows import Tile, Tiles, tiles_of
from ray_precheck.check.judge import Compared
from ray_precheck.check.sampled.parts import LargeCall, computed
from ray_precheck.frameworks.base import CallPlan, Leaf, mapped_call
from ray_precheck.frameworks.pytorch.run import TorchPlace
from ray_precheck.operators.exact import exactness
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.values import HostCall, HostTensor

# Fewer elements cost less as a whole than the calls for single tiles.
LEAST_ELEMENTS = 1 << 19


def tiled_of(
    call: LargeCall, incoming: HostTensor | None, asked: Sequence[tuple[str, int, Leaf]]
) -> "TiledCall | None":
    """Return a call of rows that is large enough to be cut, and whose limits need no more than its errors;
    None for any other. `asked` are the gradients: the name, the position of the tensor, the tested one."""
    tiles = tiles_in(call)
    known = [(name, at, mine) for name, at, mine in asked if isinstance(mine, HostTensor)]
    # Sums in float32 are mostly farther off than their results are by rounding once.
    has_sums = any(mine.shape != call.output.shape for *_, mine in known)
    if tiles is None or (has_sums and call.output.dtype in COMPUTED_IN):
        return None
    return TiledCall(call, tiles, incoming, tuple(sorted(known, key=lambda each: each[1])))


def tiles_in(call: LargeCall) -> Tiles | None:
    """Return the tiles of a call, None for one that is not cut."""
    record, output = call.tested.inputs.record, call.output
    name, framework = record.name.type_name, record.framework
    if output.data.size < LEAST_ELEMENTS or call.tested.inputs.plan.reads_layout:
        return None
    return tiles_of(name, framework, call.call, output.shape)


@dataclass(frozen=True)
class TiledCall:
    """A call that is computed tile by tile, with all its gradients."""

    call: LargeCall
    tiles: Tiles
    incoming: HostTensor | None
    asked: tuple[tuple[str, int, HostTensor], ...]

    def output(self, name: str, tested: HostTensor) -> Compared | None:
        """Return the row of the output, None if it is in doubt."""
        return self._rows.get(None)

    def gradient(self, name: str, position: int, tested: HostTensor) -> Compared | None:
        """Return the row of the gradient of the tensor at a position, None if it is in doubt."""
        return self._rows.get(position)

    @cached_property
    def _rows(self) -> dict[int | None, Compared]:
        """The rows by position, None: of the output; {} if one is in doubt."""
        found = self._compared()
        checks = {place: each.row() for place, each in found.items()}
        return {
            place: Compared(check, found[place].tested)
            for place, check in checks.items()
            if check is not None
        }

    def _compared(self) -> dict[int | None, TiledComparison]:
        """Compare all tiles; {} where one of them leaves a doubt."""
        inputs = self.call.tested.inputs
        compared: dict[int | None, TiledComparison] = {
            None: self._comparison(inputs.output_name("forward", 0), None, self.call.output)
        }
        for name, position, mine in self.asked:
            compared[position] = self._comparison(name, position, mine)
        shape = self.call.output.shape
        # Tensors that several tiles read have gradients that are added up.
        sums = {
            position: np.zeros(mine.shape)
            for _, position, mine in self.asked
            if mine.shape != shape
        }
        for tile in self.tiles:
            for place, bench in self._benched(tile):
                if bench is None:
                    return {}
                if place in sums:
                    sums[place][tile.places(sums[place].shape)] += bench
                elif not compared[place].add(bench, tile.start):
                    return {}
        is_clear = all(compared[place].add(total, 0) for place, total in sums.items())
        return compared if is_clear else {}

    def _benched(self, tile: Tile) -> Iterator[tuple[Any, Array | None]]:
        """Yield the results of the bench for a tile by position, None: of the output."""

        def cut(value: Any) -> Any:
            if not isinstance(value, HostTensor):
                return value
            return replace(value, data=tile.of(value.data), layout=None)

        call = mapped_call(self.call.call, cut)
        plan = CallPlan(differentiable=tuple(position for _, position, _ in self.asked))
        incoming = cut(self.incoming) if plan.differentiable else None
        found = computed(self.call.function, call, plan, incoming, TorchPlace(widen=True))
        if found is None:
            yield None, None
            return
        yield None, found[0].data
        for position, gradient in zip(plan.differentiable, found[1], strict=True):
            yield position, gradient.data if isinstance(gradient, HostTensor) else None

    def _comparison(self, name: str, position: int | None, tested: HostTensor) -> TiledComparison:
        of, inputs = self.call, self.call.tested.inputs
        direction = "forward" if position is None else "backward"
        judge = of.terms.judge(inputs.record.name, direction)
        if position is None:
            known = exactness(inputs.record.name.type_name, of.terms.framework)
            given: HostCall = (
                inputs.bench_call if known is not None and known.compares else inputs.call
            )
            judge = replace(judge, is_exact=is_exact(known, given, 0, tested.dtype))
        assert isinstance(judge.standard, Auto)
        return TiledComparison(name, tested, judge, judge.standard)
