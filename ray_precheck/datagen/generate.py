"""Inputs of an API call as host arrays.

Comes in: an `ApiRecord` and a source of tensors. Goes out: a `HostCall` whose arguments are Python
values, symbols and `HostTensor`s. Called by `check`. The generated numbers depend on nothing but
(seed, API name, argument path): the same on every host and in any order, and no two arguments are
copies of each other.
"""

import hashlib
import math
from typing import Any, Protocol

import numpy as np

from ray_precheck.datagen.ranges import INFINITE_SHARE, ValueRange, value_range
from ray_precheck.dump.shown import shown
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.dtypes import CHUNK_ELEMENTS, DTYPES, Array, round_to_dtype
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import (
    Constant,
    HostCall,
    HostTensor,
    MappingSpec,
    SequenceSpec,
    Symbol,
    TensorSpec,
    UnknownSpec,
    ValueSpec,
)

_MOST_DIMENSIONS = 32
_LARGEST_ELEMENT_BYTES = 16


class TensorSource(Protocol):
    """Where the tensors of a call come from: a generator, or files of the dump."""

    def tensor(self, spec: TensorSpec, path: str) -> HostTensor:
        """Return the tensor at an argument path; raise `NotCheckable` with the reason."""


class GeneratedTensors:
    """Draws tensors of one API call from their recorded ranges; collects notes for the Message."""

    def __init__(self, seed: int, api_name: str) -> None:
        self._seed = seed
        self._api_name = api_name
        self.notes: list[str] = []

    def tensor(self, spec: TensorSpec, path: str) -> HostTensor:
        """Draw a tensor: uniform over its range, rounded once to its dtype."""
        _require_array(spec, path)
        span = value_range(spec)
        if span.note:
            self.notes.append(f"{path}: {span.note}")
        generator = self._generator(path)
        kind = DTYPES[spec.dtype].kind
        if kind == "float":
            data = _floats(generator, span, spec.shape, spec.dtype)
        elif kind == "complex":
            data = np.empty(spec.shape, DTYPES[spec.dtype].carrier)
            data.real = _floats(generator, span, spec.shape, "float64")
            data.imag = _floats(generator, span, spec.shape, "float64")
        else:
            data = _integers(generator, span, spec)
        return HostTensor(spec.dtype, np.asarray(data))

    def _generator(self, path: str) -> np.random.Generator:
        """Return the counter-based generator of one argument.

        Philox 4x64 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC11), keyed by a
        128-bit BLAKE2b digest of seed, API name and path.
        """
        text = f"{self._seed}\0{self._api_name}\0{path}".encode("utf-8", errors="surrogatepass")
        key = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
        return np.random.Generator(np.random.Philox(key=key))


def _require_array(spec: TensorSpec, path: str) -> None:
    """Raise where NumPy has no array of this shape, however little it would hold."""
    if len(spec.shape) > _MOST_DIMENSIONS:
        raise NotCheckable(
            f"{path}: a tensor of {len(spec.shape)} dimensions cannot be made, NumPy has at most"
            f" {_MOST_DIMENSIONS}"
        )
    # NumPy counts the bytes of the extents that are not 0, also of an array without elements.
    count = math.prod(extent for extent in spec.shape if extent)
    if count * _LARGEST_ELEMENT_BYTES > np.iinfo(np.intp).max:
        raise NotCheckable(f"{path}: a tensor of shape {shown(list(spec.shape))} cannot be made")


def _floats(
    generator: np.random.Generator, span: ValueRange, shape: tuple[int, ...], dtype: str
) -> Array:
    """Return numbers uniform over the range, rounded once, with the infinities that it asks for.

    The float64 numbers that are rounded exist only in chunks.
    """
    values = np.empty(shape, DTYPES[dtype].carrier)
    flat = values.reshape(-1)
    for start in range(0, len(flat), CHUNK_ELEMENTS):
        chunk = flat[start : start + CHUNK_ELEMENTS]
        chunk[:] = round_to_dtype(_uniform(generator, span, len(chunk)), dtype)
    for wanted, infinity in ((span.minus_infinity, -np.inf), (span.plus_infinity, np.inf)):
        if wanted and len(flat):
            flat[generator.integers(len(flat), size=_share(len(flat)))] = infinity
    return values


def _uniform(generator: np.random.Generator, span: ValueRange, count: int) -> Array:
    """Return float64 numbers, uniform over the range; a range of one value costs no draw."""
    if span.low == span.high:
        return np.full(count, span.low, dtype=np.float64)
    share = generator.random(count)
    # low + share * (high - low) would overflow where the range is wider than the largest float.
    return np.clip(span.low * (1.0 - share) + span.high * share, span.low, span.high)


def _share(count: int) -> int:
    """Return how many elements are made infinite, at least one."""
    return max(1, round(count * INFINITE_SHARE))


def _integers(generator: np.random.Generator, span: ValueRange, spec: TensorSpec) -> Array:
    """Return whole numbers of the closed range, or booleans."""
    carrier = DTYPES[spec.dtype].carrier
    low, high = int(span.low), int(span.high)
    if carrier == "bool":
        return generator.integers(low, high, spec.shape, endpoint=True).astype(bool)
    return np.asarray(
        generator.integers(low, high, spec.shape, dtype=np.dtype(carrier).type, endpoint=True)
    )


def build_call(record: ApiRecord, source: TensorSource) -> HostCall:
    """Build the arguments of a call.

    Raises:
        NotCheckable: an argument is not described well enough, or its file cannot be used.
    """
    args = [_build(spec, f"input_args.{i}", source) for i, spec in enumerate(record.args)]
    if _is_indexed_by_tuple(record):
        args[1] = tuple(args[1])
    kwargs = {key: _build(spec, f"input_kwargs.{key}", source) for key, spec in record.kwargs}
    return HostCall(tuple(args), kwargs)


def _is_indexed_by_tuple(record: ApiRecord) -> bool:
    """Return whether `x[0, 1]` was called, which the dump writes like `x[[0, 1]]`.

    Lists are rare, and all of whole numbers: they keep the number of dimensions, which a tuple of
    whole numbers lowers.
    """
    if record.name.api not in ("__getitem__", "__setitem__") or len(record.args) < 2:
        return False
    tensor, index = record.args[:2]
    if not isinstance(index, SequenceSpec):
        return False
    numbers = all(isinstance(i, Constant) and type(i.value) is int for i in index.items)
    out = record.outputs[0] if record.outputs else None
    if not numbers or not isinstance(tensor, TensorSpec) or not isinstance(out, TensorSpec):
        return True
    return len(out.shape) != len(tensor.shape)


def _build(spec: ValueSpec, path: str, source: TensorSource) -> Any:
    if isinstance(spec, TensorSpec):
        return source.tensor(spec, path)
    if isinstance(spec, Constant):
        return spec.value
    if isinstance(spec, Symbol):
        return spec
    if isinstance(spec, SequenceSpec):
        return [_build(item, f"{path}.{i}", source) for i, item in enumerate(spec.items)]
    if isinstance(spec, MappingSpec):
        return {key: _build(item, f"{path}.{key}", source) for key, item in spec.items}
    assert isinstance(spec, UnknownSpec)
    raise NotCheckable(f"{path}: {spec.reason}")
