"""What a standard of comparisons is, and the facts that every standard names alike.

Called by the standards and by `registry`.
"""

import math
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np

from ray_precheck.numerics.statistics import FIELDS
from ray_precheck.trace.difference.elements import ElementDifference
from ray_precheck.trace.difference.row import ComparisonMode, TensorRow
from ray_precheck.trace.difference.statistics import ENDS, OURS, THEIRS

_NOT_FINITE = frozenset(("Nan", " inf", " -inf"))


# A rule for the rows of one pair of operators: it gives each row that both sides have its result and
# messages; all of them say pass before.
CaptureStandard = Callable[[Sequence[TensorRow], ComparisonMode], None]


def index_of(row: TensorRow, place: int) -> str:
    """Return a flat position as an index of the row's tensor, `[1, 2]`."""
    shape = row.item.shape or ()
    if place < 0 or not 0 <= place < math.prod(shape):
        return "[]"
    return str([int(each) for each in np.unravel_index(place, shape)])


def shortened(text: str) -> str:
    """Return a text of at most 80 characters."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def counted(found: ElementDifference) -> str:
    """Return what the counts of a difference are out of, `24 elements`."""
    return f"{found.numbers} " + ("elements" if found.parts == 1 else "real and imaginary parts")


def odd_sentence(row: TensorRow) -> str:
    """Return where NaN and infinities are not the same on both sides, "" where they are.

    From files it is known exactly; from statistics by Max and Min, which show that there are some, and by
    Mean and Norm, because the maximum of some devices leaves NaN out.
    """
    found = row.elements
    if found is not None:
        return _odd_elements(row, found) if found.odd else ""
    return _odd_statistics(row)


def _odd_elements(row: TensorRow, found: ElementDifference) -> str:
    kind = "NaN or infinite on one side only"
    if found.flipped == found.odd:
        kind = "infinities of opposite signs"
    elif found.flipped:
        kind += f" or infinities of opposite signs ({found.flipped})"
    return (
        f"{found.odd} of {counted(found)} are {kind}, the first at {index_of(row, found.first_odd)}"
    )


def _odd_statistics(row: TensorRow) -> str:
    texts = row.statistics
    if not texts or not row.tensors:
        return ""
    ours, theirs = texts[OURS][:ENDS], texts[THEIRS][:ENDS]
    if _NOT_FINITE.isdisjoint((*ours, *theirs)):
        return _odd_sums(texts)
    if ours == theirs:
        return ""
    own = [text if text in _NOT_FINITE else "" for text in ours]
    other = [text if text in _NOT_FINITE else "" for text in theirs]
    if own == other:
        return ""
    shown = [" and ".join(text.strip() for text in side) for side in (ours, theirs)]
    return f"Max and Min are {shown[0]}, in the golden capture {shown[1]}"


def _odd_sums(texts: Sequence[str]) -> str:
    """Return that Mean or Norm is NaN on one side alone, where Max and Min are finite on both."""
    if "Nan" not in texts:  # nearly all of them
        return ""
    named = zip(FIELDS, texts[OURS], texts[THEIRS], strict=True)
    for name, own, other in islice(named, ENDS, None):
        if own != other and "Nan" in (own, other):
            return f"{name} is {own.strip()}, in the golden capture {other.strip()}"
    return ""


def dtypes_differ(row: TensorRow) -> bool:
    """Return whether both sides are tensors of other dtypes, however their frameworks spell them."""
    from ray_precheck.trace.difference.measuring import dtype_of

    target, golden = row.target, row.golden
    if target is None or golden is None or target.dtype == golden.dtype:
        return False
    ours, theirs = dtype_of(target.dtype), dtype_of(golden.dtype)
    return ours is None or ours != theirs
