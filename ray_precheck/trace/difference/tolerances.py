"""The tolerances of `torch.testing.assert_close` for two dtypes.

Called by `measuring`, which counts the elements that are beyond them, and by the standard `assert-close`.
"""

# Source: the table in the documentation of torch.testing.assert_close (torch 2.13): rtol and atol by
# dtype, 0 and 0 for all others; of two dtypes the larger ones count. Complex64 has those of float32.
_BY_DTYPE = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


def tolerances(target: str, golden: str) -> tuple[float, float]:
    """Return rtol and atol for two canonical dtypes."""
    pairs = [_BY_DTYPE.get(dtype, (0.0, 0.0)) for dtype in (target, golden)]
    return max(rtol for rtol, _ in pairs), max(atol for _, atol in pairs)
