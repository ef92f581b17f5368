"""The sums, the health and the sketch of values in memory, in one compiled pass over it.

Comes in: the address of contiguous float32, bfloat16 or float16 values. Goes out: an `Everything`, or None
where the extension was not built: then `statistics` and `sketch` find the same one by one, with numpy. Called
for each tensor of a capture of PyTorch with sketches.
"""

import math
from typing import NamedTuple

import numpy as np

from ray_precheck.numerics.one_pass import COMPILED, EndsAndSums
from ray_precheck.numerics.sketch import Array, is_summed_unscaled
from ray_precheck.numerics.statistics import Health, headroom, largest_finite


class Everything(NamedTuple):
    """What one pass over a tensor finds.

    `below` counts the values below the smallest normal one, zeros with them; the next three count NaN, +inf
    and -inf. `largest_finite` is the largest finite absolute value. `buckets` is the sketch, `(64,)` float64,
    None where the values must be scaled or cleaned for it (`sketch`).
    """

    sums: EndsAndSums
    below: int
    zero: int
    nan: int
    positive: int
    negative: int
    largest_finite: float
    buckets: Array | None

    @property
    def is_usual(self) -> bool:
        """Whether all values are finite and none is zero or subnormal."""
        return not (self.below or self.nan or self.positive or self.negative)

    @property
    def largest(self) -> float:
        """The largest absolute value, NaN or infinity if not all are finite."""
        top, bottom = self.sums.max, self.sums.min
        return math.nan if math.isnan(top) else max(top, -bottom)

    def health(self, dtype: str) -> Health:
        """Return the health of the values, which are of this dtype ("bfloat16")."""
        limit = largest_finite(dtype)
        room = None if limit is None else headroom(self.largest_finite, limit)
        subnormal = self.below - self.zero
        return Health(self.nan, self.positive, self.negative, self.zero, subnormal, room)


def everything(address: int, count: int, kind: int) -> Everything | None:
    """Return what one pass over values finds, which are stored as `kind` of `one_pass` says; None without the
    extension."""
    if COMPILED is None:
        return None
    found = COMPILED.everything(address, count, kind)
    below, zero, nan, positive, negative, finite, buckets = found[4:]
    is_whole = not (nan or positive or negative) and is_summed_unscaled(finite)
    return Everything(
        EndsAndSums(*found[:4]),
        below,
        zero,
        nan,
        positive,
        negative,
        finite,
        np.frombuffer(buckets) if is_whole else None,
    )
