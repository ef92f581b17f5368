"""A result that comes in tiles beside its bench, and is compared while they are in the core's cache.

Comes in: tiles of the tested result and of the float64 bench. Goes out: the detail row that `check_output`
makes of the whole, if the result is right by the first limits of `auto`, those of rounding once. Called by
`check.sampled.tiles`.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ray_precheck.accuracy.metrics import ErrorSums, MetricSums, chunks, rounded_bench
from ray_precheck.accuracy.outputs import Judge, row_of
from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.accuracy.standards.base import Comparison, error_cells
from ray_precheck.accuracy.standards.bias import MOST_ELEMENTS
from ray_precheck.accuracy.standards.honest import Distance, DistanceSums
from ray_precheck.numerics.arrays import pieces, smallest_normal
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Metrics, OutputCheck
from ray_precheck.schema.values import HostTensor


@dataclass(slots=True)
class TiledComparison:
    """A tested result beside the tiles of its bench.

    `judge` is that of `auto`. The tiles are parts of the result as it is when flat, in any order. Of the
    bench only so many evenly spaced elements are kept as `auto` looks at for a bias.
    """

    name: str
    tested: HostTensor
    judge: Judge
    standard: Auto
    _metrics: MetricSums = field(default_factory=MetricSums, init=False)
    _errors: ErrorSums = field(init=False)
    _own: DistanceSums = field(init=False)
    _honest: DistanceSums = field(init=False)
    _flat: Array = field(init=False)
    _step: int = field(init=False)
    _kept: Comparison = field(init=False)

    def __post_init__(self) -> None:
        """Make room for the elements that are kept."""
        dtype, self._flat = self.tested.dtype, self.tested.data.reshape(-1)
        self._errors = ErrorSums(dtype)
        self._own, self._honest = DistanceSums(dtype), DistanceSums(dtype)
        self._step = -(-len(self._flat) // MOST_ELEMENTS)
        kept = self._flat[:: self._step]
        self._kept = Comparison(
            type_name=self.judge.type_name,
            direction=self.judge.direction,
            dtype=dtype,
            device_out=kept,
            bench_out=np.empty(len(kept)),
            metrics=Metrics(None, 0.0, 0.0),
            framework=self.judge.framework,
            is_exact=self.judge.is_exact,
        )

    def add(self, bench: Array, start: int) -> bool:
        """Compare a tile, whose first element is at the flat place `start`; return False where it alone
        leaves a doubt."""
        bench = bench.reshape(-1)
        return all(self._add(bench[each], start + each.start) for each in pieces(len(bench)))

    def _add(self, bench: Array, start: int) -> bool:
        dtype = self.tested.dtype
        device = self._flat[start : start + len(bench)]
        once = rounded_bench(bench, dtype)
        is_equal = self._metrics.add_tile(device, once, start, smallest_normal(dtype))
        if is_equal is None:
            return False
        (chunk,) = chunks(device, bench, dtype, start)
        self._errors.add(chunk)
        if is_equal:
            # What is no farther off than rounding has no error that is large for its element.
            self._honest.add(chunk, math.inf)
            self._own.add(chunk, math.inf)
        else:
            (rounding,) = chunks(once, bench, dtype, start)
            largest = self._honest.add(rounding)
            scale = float(np.max(chunk.magnitude))
            self._own.add(chunk, self.standard.measure.least(self._kept, largest, scale))
        first = -start % self._step
        place = (start + first) // self._step
        kept = bench[first :: self._step]
        self._kept.bench_out[place : place + len(kept)] = kept
        return self._own.strange == 0

    def row(self) -> OutputCheck | None:
        """Return the detail row, once all tiles are compared; None where there is a doubt."""
        size = len(self._flat)
        metrics = self._metrics.metrics(self.tested.shape)
        if metrics.left_out == size:
            return None
        kept = replace(self._kept, metrics=metrics)
        scale = Distance(math.sqrt(self._metrics.bench_square / size), metrics.bench_largest)
        judgement = self.standard.settled(
            kept, self._own.distance(), self._honest.distance(), scale
        )
        if judgement is None:
            return None
        errors = self._errors.errors(self.tested.shape)
        columns = error_cells(self.standard, errors, judgement.columns)
        bench = HostTensor("float64", kept.bench_out)
        found = judgement.verdict, judgement.message, metrics, columns
        return row_of(self.name, self.tested, bench, self.judge.framework, *found)
