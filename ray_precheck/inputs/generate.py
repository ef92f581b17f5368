"""Inputs of an API call as host arrays.

Comes in: an `ApiRecord` and a source of tensors. Goes out: a `HostCall` whose arguments are Python
values, symbols and `HostTensor`s. Called by `check`. The generated numbers depend on nothing but
(seed, API name, argument path): the same on every host and in any order, and no two arguments are
copies of each other.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import shown
from ray_precheck.inputs import RECORDED
from ray_precheck.inputs.distribution import recorded_body, true_share
from ray_precheck.inputs.draws import (
    complex_numbers,
    floats,
    integers,
    two_values,
    whole_numbers,
)
from ray_precheck.inputs.ranges import ValueRange, value_range
from ray_precheck.inputs.roles.role import Role, is_whole
from ray_precheck.inputs.roles.rowwise import with_nan, without_zero_rows
from ray_precheck.inputs.roles.table import roles_of
from ray_precheck.inputs.roles.values import Matrix
from ray_precheck.inputs.storages import as_whole_numbers, with_indices
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import (
    Constant,
    HostCall,
    HostTensor,
    MappingSpec,
    Quantized,
    SequenceSpec,
    Sparse,
    Storage,
    Symbol,
    TensorSpec,
    UnknownSpec,
    ValueSpec,
)

# Safer inputs are for a second try, where both sides have raised: values that almost any API takes. Whole
# numbers are below the smallest extent of the call's tensors; square matrices are positive definite.
SAFE_FLOATS = (0.5, 1.5)
# The role of arguments without one of their own: it changes square matrices only.
SAFE_ROLE: Role = Matrix(symmetric=True)


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


_INPUTS = ("input_args.", "input_kwargs.")
_MOST_DIMENSIONS = 32
_LARGEST_ELEMENT_BYTES = 16


class _Key(ISeedSequence):
    """A key for Philox as the seed that it asks for: its own parameter `key` asks the system for a seed
    first, which takes three times as long."""

    def __init__(self, key: Array) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Array:
        """Return the key, which is of two 64-bit words, as Philox wants them."""
        return self._key


class TensorSource(Protocol):
    """Where the tensors of a call come from: a generator, or files of the dump."""

    def tensor(self, spec: TensorSpec, path: str) -> HostTensor:
        """Return the tensor at an argument path; raise `NotCheckable` with the reason."""


class GeneratedTensors:
    """Draws tensors of one API call as their records say; collects notes for the Message.

    `roles` are, by argument path, the roles that an argument's values must have for the API.
    With `distribution` uniform floats are uniform over their range, as are whole numbers, and
    roles do not count. `below` is None but for safer inputs, as `safe_spec` has them. With
    `keeps` the drawn tensors are also kept in `drawn`, by argument path.
    """

    def __init__(
        self,
        seed: int,
        api_name: str,
        distribution: str = RECORDED,
        roles: Mapping[str, Role] | None = None,
        below: int | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        self._seed = seed
        self._api_name = api_name
        self._is_recorded = distribution == RECORDED
        self._roles = roles if roles and self._is_recorded else {}
        self._below = below
        self._keeps = keeps
        self._given: Mapping[str, HostTensor] = {}
        self.drawn: dict[str, HostTensor] = {}
        self.notes: list[str] = []

    @property
    def may_be_safer(self) -> bool:
        """Whether there are safer inputs: not of safer ones, and not of the uniform distribution."""
        return self._is_recorded and self._below is None

    def safer(self, record: ApiRecord, why: str) -> "GeneratedTensors":
        """Return the source of safer inputs of this call; `why` is the text of the device's error."""
        below = smallest_extent(record)
        found = GeneratedTensors(
            self._seed, self._api_name, RECORDED, self._roles, below, keeps=self._keeps
        )
        found.notes.append(
            f"checked with safer inputs ({describe_safer(below)}): with inputs in the recorded ranges"
            f" device and bench raised; device: {why}"
        )
        return found

    def take(self, drawn: Mapping[str, HostTensor], notes: Sequence[str]) -> None:
        """Take the tensors that such a source has drawn for this call elsewhere, by argument path,
        and its notes: tensors that are missing there are drawn here."""
        self._given = drawn
        self.notes = list(notes)

    def tensor(self, spec: TensorSpec, path: str) -> HostTensor:
        """Draw a tensor of its range, distribution and role, rounded once to its dtype."""
        given = self._given.get(path)
        # A cotangent has the shape of its output, and the two sides may have outputs of different
        # shapes.
        if given is not None and (given.dtype, given.shape) == (spec.dtype, spec.shape):
            return given
        tensor = self._draw(spec, path)
        if self._keeps:
            self.drawn[path] = tensor
        return tensor

    def _draw(self, spec: TensorSpec, path: str) -> HostTensor:
        if spec.storage is not None:
            return self._draw_stored(spec, spec.storage, path)
        _require_array(spec, path)
        role = self._roles.get(path)
        if self._below is not None and path.startswith(_INPUTS):
            spec, role = safe_spec(spec, self._below), role or SAFE_ROLE
        if role is not None:
            spec = role.bounded(spec)
        span = value_range(spec)
        if span.note:
            self.notes.append(f"{path}: {span.note}")
        if spec.vmapped > 1:
            note = f"called within vmap for {spec.vmapped} samples: one is checked, without vmap"
            self.notes += [] if note in self.notes else [note]
        data = self._drawn(spec, span, self._generator(path))
        if role is not None and role.companion is not None:
            path_beside, spec_beside = role.companion
            data = role.beside(data, self._draw(spec_beside, path_beside).data)
        elif role is not None and spec.size:
            data = role.shaped(data, spec, self._generator(f"{role.stream(path)}\0meaning"))
        if spec.structure is not None and spec.structure.nan and self._is_recorded:
            data = with_nan(data, spec, self._generator(f"{path}\0nan"))
        return HostTensor(spec.dtype, np.asarray(data))

    def _draw_stored(self, spec: TensorSpec, storage: Storage, path: str) -> HostTensor:
        """Draw the values that a tensor stores, and the places of those of a sparse one."""
        values = replace(spec.stored, storage=None)
        if isinstance(storage, Quantized):
            values = as_whole_numbers(values, storage)
        elif isinstance(storage, Sparse):
            storage = with_indices(storage, self._generator(f"{path}\0indices"))
        return HostTensor(spec.dtype, self._draw(values, path).data, storage=storage)

    def _drawn(self, spec: TensorSpec, span: ValueRange, generator: np.random.Generator) -> Array:
        kind = DTYPES[spec.dtype].kind
        wanted = self._is_recorded and kind != "bool"
        body = recorded_body(without_zero_rows(spec), span) if wanted else None
        if kind == "float":
            return floats(generator, span, spec.shape, spec.dtype, body)
        if kind == "complex":
            return complex_numbers(generator, span, spec, body)
        share = true_share(spec, span) if self._is_recorded else None
        if share is not None and spec.size > 1:
            return two_values(generator, span, spec, share)
        if body is not None:
            return whole_numbers(generator, span, spec, body)
        return integers(generator, span, spec)

    def _generator(self, path: str) -> np.random.Generator:
        """Return the counter-based generator of one argument.

        Philox 4x64 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC11), keyed by a
        128-bit BLAKE2b digest of seed, API name and path.
        """
        text = f"{self._seed}\0{self._api_name}\0{path}".encode("utf-8", errors="surrogatepass")
        key = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), "<u8")
        seed: Any = _Key(key)  # NumPy's annotations know of no other sequence of seeds than its own
        return np.random.Generator(np.random.Philox(seed))


def generated_tensors(
    seed: int, record: ApiRecord, distribution: str, *, keeps: bool = False
) -> GeneratedTensors:
    """Return the source of the generated tensors of a call. `keeps`: it keeps the tensors that it draws."""
    return GeneratedTensors(seed, str(record.name), distribution, roles_of(record), keeps=keeps)


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


def build_call(record: ApiRecord, source: TensorSource) -> HostCall:
    """Build the arguments of a call.

    Raises:
        NotCheckable: an argument is not described well enough, or its file cannot be used.
    """
    args = [_build(spec, f"input_args.{i}", source) for i, spec in enumerate(record.args)]
    if record.is_indexed_by_tuple:
        args[1] = tuple(args[1])
    kwargs = {key: _build(spec, f"input_kwargs.{key}", source) for key, spec in record.kwargs}
    return HostCall(tuple(args), kwargs)


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
