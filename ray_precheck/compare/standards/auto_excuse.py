"""Elements whose error says nothing: ties, kinks, steps, and overflow at its edge.

Comes in: a `Comparison` that is beyond a limit. Goes out: flags. Called by `auto`. At a tie `max`
may give the gradient to either side, and `floor` of a quotient may be one less: honest results
differ there by more than rounding. The bench shows such places when its inputs are moved.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from ray_precheck.compare.comparison import Comparison
from ray_precheck.compare.errors import chunks
from ray_precheck.compare.standards.auto_envelope import is_strange
from ray_precheck.schema.dtypes import Array

# How many benches of moved inputs there are: half a unit ahead and back, and next to nothing.
_MOVES = 4
# A step is to one side where the other side moves by less than this share of it.
_ONE_SIDED = 0.1
# Jumps are at single elements. Where the inputs move more of them, the function is steep, and its
# error is no accident of rounding.
_MOST_JUMPS = 0.05


@runtime_checkable
class WithMoved(Protocol):
    """Peers that can also say what the bench makes of moved inputs."""

    @property
    def moved(self) -> Sequence[Array]:
        """The bench, rounded, for inputs moved by up to half a unit in the last place, back by as
        much, and by next to nothing, both ways."""


def moved_benches(peers: Sequence[Array]) -> Sequence[Array]:
    """Return the benches of moved inputs; () where the peers have none."""
    return peers.moved if isinstance(peers, WithMoved) else ()


def excused_elements(comparison: Comparison, peers: Sequence[Array], limit: float) -> Array:
    """Return flags, `(N,)`, of the elements that do not count.

    That are those where a peer is NaN or infinite in the same way, and those where the bench jumps
    by more than `limit`, and the error is not beyond the jump.
    """
    out, bench, dtype = comparison.device_out, comparison.bench_out, comparison.dtype
    device = out.reshape(-1)
    same = np.zeros(out.size, bool)
    for peer in peers:
        flat = peer.reshape(-1)
        same |= (device == flat) | (np.isnan(device) & np.isnan(flat))
    moved = [each.reshape(-1) for each in moved_benches(peers)]
    jump = _jumps(moved, bench.reshape(-1), limit)
    excused = np.zeros(out.size, bool)
    for chunk in chunks(out, bench, dtype):
        piece = slice(chunk.start, chunk.start + len(chunk.abs_err))
        odd = is_strange(chunk, dtype)
        # At a tie the bench may be half way between both sides.
        at_jump = ~odd & (jump[piece] > 0.0) & (chunk.abs_err <= 2.0 * jump[piece])
        excused[piece] = (odd & same[piece]) | at_jump
    return excused


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
    if np.count_nonzero(found) > _MOST_JUMPS * len(found):
        return jump
    return np.where(found, np.maximum(farther, least), 0.0)
