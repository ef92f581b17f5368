"""Functions of Bessel and Airy, of which torch's own float64 is good to seven digits.

Comes in: a float64 tensor. Goes out: a new one, without a derivative, as torch has none. Named by `table` and
by MindSpore's rows.

torch.special.bessel_j0, j1, y0 and y1 are off by up to 9e-7 beyond 5, airy_ai by 3e-6 below -2 (torch 2.13,
found by `tests/frameworks/test_references.py`): more than the rounding of float32, so a right device would be
accused. mpmath, which torch brings with sympy, computes them to the last bit, at some 20 us for each
different number.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ray_precheck.errors import NotCheckable


def _bench(name: str, *order: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def bench(input: torch.Tensor) -> torch.Tensor:
        try:
            import mpmath  # type: ignore[import-untyped]
        except ImportError:
            raise NotCheckable("its bench needs mpmath, which comes with torch's sympy") from None
        function: Any = getattr(mpmath, name)
        values, places = np.unique(input.detach().double().numpy(), return_inverse=True)
        found = np.array([_real(function, order, value) for value in values])
        return torch.from_numpy(found[places].reshape(tuple(input.shape)))

    return bench


def _real(function: Any, order: tuple[int, ...], value: float) -> float:
    """Return a value of a function; NaN where it is not real, as below 0 for those of the second kind."""
    if np.isnan(value):
        return np.nan
    try:
        found = complex(function(*order, value))
    except (ValueError, ZeroDivisionError):  # a pole
        return -np.inf
    return found.real if abs(found.imag) <= abs(found.real) * 1e-15 else np.nan


j0, j1 = (_bench("besselj", order) for order in (0, 1))
y0, y1 = (_bench("bessely", order) for order in (0, 1))
airy_ai = _bench("airyai")
