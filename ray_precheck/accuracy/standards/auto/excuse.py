"""Elements whose error says nothing: ties, kinks, steps, steep places, and overflow at its edge.

Comes in: a `Comparison` that is beyond a limit. Goes out: flags. Called by `auto`. At a tie `max`
may give the gradient to either side, and `floor` of a quotient may be one less: honest results
differ there by more than rounding. The bench shows such places when its inputs are moved.
"""

from collections.abc import Sequence

import numpy as np

from ray_precheck.accuracy.metrics import chunks
from ray_precheck.accuracy.standards.auto.envelope import Distance, is_strange
from ray_precheck.accuracy.standards.base import Comparison, moved_benches, moved_farther
from ray_precheck.numerics.arrays import same_values
from ray_precheck.schema.dtypes import Array

# How many benches of moved inputs there are: half a unit ahead and back, and next to nothing.
_MOVES = 4
# A step is to one side where the other side moves by less than this share of it.
_ONE_SIDED = 0.1
# Where moves of 2**-6 of the others change the bench by at most this share, its change goes with the
# move: it is steep there, and does not jump.
_GOES_ALONG = 0.1
_STEEPER_THAN_MOST = 16.0
# Jumps are at single elements. Where the inputs move more of them, the function is steep, and its
# error is no accident of rounding.
MOST_JUMPS = 0.05


def excused_elements(
    comparison: Comparison, limits: Distance, steep: float, kernels: Sequence[Array] = ()
) -> Array:
    """Return flags, bool `(N,)`, of the elements that do not count; `kernels` are further implementations.

    An element does not count if an implementation is NaN or infinite in the same way; if the bench jumps
    there by more than the largest error of `limits`, and the error is not beyond the jump; or if its error
    is at most `steep` times the change that half a unit in the last place of the inputs causes (0: no
    element is excused so).
    """
    implementations = comparison.implementations()
    out, bench, dtype = comparison.device_out, comparison.bench_out, comparison.dtype
    device = out.reshape(-1)
    same = np.zeros(out.size, bool)
    for implementation in (*implementations, *kernels):
        flat = implementation.reshape(-1)
        same |= same_values(device, flat)
    moved = [each.reshape(-1) for each in moved_benches(implementations)]
    if moved_farther(implementations) != 1.0:  # nothing is known of jumps
        moved = []
    jump = _jumps(moved, bench.reshape(-1), limits.largest)
    allowed = steep * steepness(comparison) if steep else np.zeros(out.size)
    excused = np.zeros(out.size, bool)
    for chunk in chunks(out, bench, dtype):
        piece = slice(chunk.start, chunk.start + len(chunk.abs_err))
        odd = is_strange(chunk, dtype)
        # At a tie the bench may be half way between both sides.
        at_jump = ~odd & (jump[piece] > 0.0) & (chunk.abs_err <= 2.0 * jump[piece])
        at_steep = ~odd & (chunk.abs_err > 0.0) & (chunk.abs_err <= allowed[piece])
        excused[piece] = (odd & same[piece]) | at_jump | at_steep
    return excused


def steepness(comparison: Comparison) -> Array:
    """Return how far half a unit in the last place of the inputs moves the bench, `(N,)` float64.

    It is 0 where the bench jumps: it must be moved both ways, and less by less. An implementation is
    stable that is exact for inputs which are so far off (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., section 1.5).
    """
    bench = comparison.bench_out.reshape(-1)
    moved = [each.reshape(-1) for each in moved_benches(comparison.implementations())]
    if len(moved) != _MOVES:
        return np.zeros(bench.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        ahead, back, least_ahead, least_back = (np.nan_to_num(np.abs(m - bench)) for m in moved)
    nearer = np.minimum(ahead, back)
    goes_along = np.maximum(least_ahead, least_back) <= _GOES_ALONG * nearer
    return np.where(goes_along, nearer, 0.0) / moved_farther(comparison.implementations())


def steep_result(comparison: Comparison, halves: float = 1.0) -> Array:
    """Return the bench with the error that inputs make which are so many halves of a unit in the
    last place off.

    It is of the shape of the tested output, float64 or complex128. An element that is far steeper
    than most has no more error than so many times theirs: it is excused by itself, and makes nothing
    of the others.
    """
    steep = steepness(comparison)
    if len(steep):
        steep = np.minimum(steep, _STEEPER_THAN_MOST * np.median(steep))
    return np.asarray(comparison.bench_out + halves * steep.reshape(comparison.bench_out.shape))


def _jumps(moved: Sequence[Array], bench: Array, limit: float) -> Array:
    """Return how far the bench jumps at each element, `(N,)`; 0 where it is steep at most.

    A jump is larger than the limit, and there either for a move of next to nothing or to one side
    alone. None counts where there are many.
    """
    jump = np.zeros(bench.shape)
    if len(moved) != _MOVES:
        return jump
    with np.errstate(invalid="ignore", over="ignore"):
        ahead, back, least_ahead, least_back = (np.nan_to_num(np.abs(m - bench)) for m in moved)
    nearer, farther = np.minimum(ahead, back), np.maximum(ahead, back)
    least = np.maximum(least_ahead, least_back)
    found = (least > limit) | ((farther > limit) & (nearer < _ONE_SIDED * farther))
    if np.count_nonzero(found) > MOST_JUMPS * len(found):
        return jump
    return np.where(found, np.maximum(farther, least), 0.0)
