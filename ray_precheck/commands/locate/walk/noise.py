"""Which difference between two honest runs rounding explains, where no call was replayed; and the size of a
value, as its statistics tell it.

Goes out: floors and factors, whether a difference stands out, norms. Called by `walk` and `estimate`.
"""

import math
from functools import cache

from ray_precheck.numerics.arrays import epsilon_of, machine_epsilon
from ray_precheck.numerics.statistics import MAX, MIN
from ray_precheck.trace.items import Item

# Two honest kernels that got the same differ by so many units in the last place, as a share of the norm: wide
# ones sum in other orders; those of half types sum in float32, so that few elements are rounded otherwise.
_FLOOR_UNITS, _HALF_UNITS = 4.0, 0.25
# So many times what is explained stands for a suspect: honest pairs have up to 12.7 (a sum in place whose
# largest element is another one). In half types rounding is nearly all of a difference, and scatters less.
_SUSPICIOUS, _SUSPICIOUS_HALF = 14.0, 4.0
# The same for gradients that were added up outside of what is captured.
_ADDED_OUTSIDE = 10.0
# Kernels add the rows of a gradient of weights in accumulators of a half type, one for each thread.
_NARROW_UNITS = 1.0
_MOST_LOST = 0.25
# How many rows a gradient is taken for the sum of, of which only the shape is known.
_UNKNOWN_ROWS = 128.0
# How much of the gradient of a vector may cancel, where its parts are not known.
_CANCELLED = 16.0
# A value that no captured record gave is compared with those that the records around it gave, whose
# differences scatter: two times that of any of them is beyond it (see scripts.locate_faults).
STANDS_OUT = 3.0
# Weights, inputs and masks are the same bits in honest runs at the first step. Of the same bits, the sums
# that make statistics and sketches differ by so much with another number of threads.
_SAME_SUMS = 1e-5


@cache
def floor_of(dtype: str) -> float:
    """Return the relative difference that two honest kernels may have in one call, at least."""
    return (_HALF_UNITS if has_half_digits(dtype) else _FLOOR_UNITS) * epsilon_of(dtype)


@cache
def narrow_sum_of(dtype: str, rows: float = 1.0) -> float:
    """Return the relative difference of two honest sums of so many rows with accumulators of a dtype.

    A running sum of n terms of one sign errs by up to n roundings (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., section 4.2), and what is below half a unit of the sum is lost: kernels of
    one and of two threads differ by an eighth of that (scripts.locate_faults), up to the sum itself.
    """
    if not has_half_digits(dtype):
        return _FLOOR_UNITS * epsilon_of(dtype)
    return max(_NARROW_UNITS * epsilon_of(dtype), min(_MOST_LOST, rows * epsilon_of(dtype) / 16))


@cache
def suspicious(dtype: str) -> float:
    """Return how many times what is explained makes a difference a suspect."""
    return _SUSPICIOUS_HALF if has_half_digits(dtype) else _SUSPICIOUS


@cache
def has_half_digits(dtype: str) -> bool:
    """Return whether a floating dtype has at most the digits of float16."""
    return epsilon_of(dtype) >= machine_epsilon("float16")


def stands_out(
    difference: float, expected: float, dtype: str, *, is_gradient: bool, is_vector: bool = False
) -> bool:
    """Return whether a relative difference is beyond what is expected of it; NaN is not.

    Gradients are added up outside of what is captured, and cancel: they count as an estimate does. One that
    `is_vector`, of a bias, is the sum of rows, perhaps of several calls whose parts cancel: those of a
    discriminator, for pictures that are real and that are not.
    """
    if is_gradient:
        least = narrow_sum_of(dtype, _UNKNOWN_ROWS if is_vector else 1.0)
        if is_vector and not has_half_digits(dtype):
            least *= _CANCELLED
        return difference > _ADDED_OUTSIDE * max(expected, least)
    return difference > STANDS_OUT * max(expected, floor_of(dtype))


def is_other(difference: float, *, by_sums: bool) -> bool:
    """Return whether a value that both runs were given is another one in the target.

    `by_sums`: its statistics or sketches tell.
    """
    return difference > (_SAME_SUMS if by_sums else 0.0)


# Values beyond this stand for a mask of attention: their norm says nothing of the values beside them.
MASKED = 1e30


def is_masked(item: Item) -> bool:
    """Return whether the norm of a value is that of a mask of attention in it."""
    element = item.element or {}
    high, low = element.get(MAX), element.get(MIN)
    if type(high) is not float or type(low) is not float:  # nearly all are
        high, low = item.ends
    return (high is not None and abs(high) > MASKED) or (low is not None and abs(low) > MASKED)


def norm_of(item: Item) -> float:
    """Return the norm, 0 where it is not known or not finite."""
    found = item.norm
    return found if found is not None and math.isfinite(found) else 0.0


def count_of(item: Item) -> int:
    """Return how many elements a value has, at least 1."""
    return max(1, math.prod(item.shape or ()))


def rms_of(item: Item) -> float:
    """Return the root mean square of the elements."""
    return norm_of(item) / math.sqrt(count_of(item))
