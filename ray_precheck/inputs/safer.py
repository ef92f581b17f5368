"""Safer inputs: the second try of a call whose first inputs made both sides raise.

Comes in: a record, the spec of one of its arguments. Goes out: a spec of values that almost any API
takes: floats from 0.5 to 1.5, whole numbers from 0 to below the smallest extent of the call's
tensors; square matrices are positive definite. Meanings count as before, within these. Called by
`inputs.generate`.
"""

from dataclasses import replace

from ray_precheck.inputs.meaning import Meaning, is_whole
from ray_precheck.inputs.meaning_values import Matrix
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import TensorSpec

SAFE_FLOATS = (0.5, 1.5)
# The meaning of arguments without one of their own: it changes square matrices only.
SAFE_MEANING: Meaning = Matrix(symmetric=True)


def smallest_extent(record: ApiRecord) -> int:
    """Return the smallest extent of all tensor arguments that is not 0; 1 if there is none."""
    return min((e for _, spec in record.input_tensors() for e in spec.shape if e), default=1)


def safe_spec(spec: TensorSpec, below: int) -> TensorSpec:
    """Return the spec with a range of safe values; booleans stay as they were recorded."""
    if is_whole(spec):
        most = 2 ** (DTYPES[spec.dtype].bits - 1) - 1
        low, high = 0.0, float(min(below - 1, most))
    elif DTYPES[spec.dtype].kind == "bool":
        return spec
    else:
        low, high = SAFE_FLOATS
    return replace(spec, low=low, high=high, mean=None, norm=None, structure=None)


def describe_safer(below: int) -> str:
    """Return a description of the safe values, for the Message."""
    low, high = SAFE_FLOATS
    return f"floats from {low:g} to {high:g}, whole numbers from 0 to {below - 1}"
