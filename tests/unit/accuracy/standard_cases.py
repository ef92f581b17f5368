"""Comparisons as `accuracy.outputs` makes them, for the tests of the standards."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ray_precheck.accuracy.metrics import metrics_of, rounded_bench
from ray_precheck.accuracy.standards.base import Comparison
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES, Array


def comparison(
    device: Any,
    bench: Any,
    dtype: str = "float32",
    *,
    api: str = "Torch.exp",
    direction: str = "forward",
    implementations: Sequence[Array] = (),
) -> Comparison:
    """One output beside its bench; `device` is rounded to `dtype`, `bench` is exact."""
    exact = np.asarray(bench)
    device_out = round_to_dtype(np.asarray(device), dtype)
    smallest = 2.0 ** DTYPES[dtype].min_exponent if DTYPES[dtype].mantissa_bits else 1.0
    return Comparison(
        type_name=api,
        direction=direction,
        dtype=dtype,
        device_out=device_out,
        bench_out=exact,
        metrics=metrics_of(device_out, rounded_bench(exact, dtype), smallest),
        implementations=lambda: implementations,
    )


def normal(*shape: int, seed: int = 0) -> Array:
    """Normally distributed float64 numbers."""
    return np.random.default_rng(seed).standard_normal(shape)
