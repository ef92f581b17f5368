"""The part of a tensor that is looked at and saved.

Comes in: a tensor's shape, and the slices of the settings. Goes out: an index. Called by the tensors of each
framework, for each tensor of each call.
"""

from collections.abc import Sequence

from ray_precheck.capture.settings import TensorSlice


def chosen_part(shape: Sequence[int], slices: Sequence[TensorSlice]) -> tuple[slice, ...] | None:
    """Return the index of the part that is chosen; None for the whole, where no slice fits.

    A slice is left out for a tensor that lacks the dimension, or has another size there.
    """
    chosen = {
        part.dim: slice(part.begin, part.end)
        for part in slices
        if part.dim < len(shape) and part.size in (None, shape[part.dim])
    }
    if not chosen:
        return None
    return tuple(chosen.get(dim, slice(None)) for dim in range(len(shape)))
