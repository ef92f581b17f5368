"""Inputs of an API call as host arrays.

Comes in: an `ApiRecord` and a source of tensors. Goes out: a `HostCall` whose arguments are Python
values, symbols and `HostTensor`s. Called by `check`. The generated numbers depend on nothing but
(seed, API name, argument path): the same on every host and in any order, and no two arguments are
copies of each other. The incoming gradients (cotangents) of the outputs come from the same source, once for
device and bench alike.
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
from ray_precheck.inputs.distribution import (
    ValueRange,
    complex_numbers,
    floats,
    integers,
    recorded_body,
    true_share,
    two_values,
    value_range,
    whole_numbers,
)
from ray_precheck.inputs.layouts import placed_alone
from ray_precheck.inputs.roles.role import Beside, Matrix, Role, is_whole
from ray_precheck.inputs.roles.rowwise import with_nan, without_zero_rows
from ray_precheck.inputs.roles.table import roles_of
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES, Array, is_differentiable
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
    walk_specs,
)

# Draws for a line that is almost full find few new places; what these rounds leave is filled in order.
_MOST_ROUNDS = 16
# Safer inputs are for a second try, where both sides have raised: values that almost any API takes. Whole
# numbers are below the smallest extent of the call's tensors; square matrices are positive definite.
SAFE_FLOATS = (0.5, 1.5)
# The role of arguments without one of their own: it changes square matrices only.
SAFE_ROLE: Role = Matrix(symmetric=True)
_INPUTS = ("input_args.", "input_kwargs.")
_MOST_DIMENSIONS = 32
_LARGEST_ELEMENT_BYTES = 16
_MOST_BYTES = int(np.iinfo(np.intp).max)


def with_indices(storage: Sparse, generator: np.random.Generator) -> Sparse:
    """Return a sparse storage with as many different places, in each line between the fewest and the most.

    What a COO tensor has beyond its different places repeats some of them.
    """
    lines, width = storage.grid
    bounds = storage.fewest, storage.most
    if storage.layout == "coo":
        flat = _places(generator, lines, width, storage.distinct, bounds)
        if storage.nnz > len(flat):
            flat = np.concatenate([flat, generator.choice(flat, storage.nnz - len(flat))])
        if not storage.coalesced:
            generator.shuffle(flat)
        shape = storage.sparse_shape
        found = np.stack(np.unravel_index(flat, shape)) if shape else np.zeros((0, len(flat)))
        return replace(storage, indices=(found.astype(np.int64),))
    batch = storage.sparse_shape[:-2]
    compressed = np.zeros((math.prod(batch), lines + 1), np.int64)
    plain = np.zeros((math.prod(batch), storage.nnz), np.int64)
    for matrix in range(len(compressed)):
        flat = _places(generator, lines, width, storage.nnz, bounds)
        line, plain[matrix] = np.divmod(flat, max(width, 1))
        compressed[matrix, 1:] = np.cumsum(np.bincount(line, minlength=lines))
    return replace(
        storage,
        indices=(
            compressed.reshape(*batch, lines + 1),
            plain.reshape(*batch, storage.nnz),
        ),
    )


def _places(
    generator: np.random.Generator, lines: int, width: int, count: int, bounds: tuple[int, int]
) -> Array:
    """Return `(count,)` different places of a matrix, numbered row by row, in order."""
    wanted = _counts(generator, lines, count, bounds)
    found = np.zeros(0, np.int64)
    lacking = wanted
    for _ in range(_MOST_ROUNDS):
        line = np.repeat(np.arange(lines), lacking)
        if not len(line):
            return found
        found = np.union1d(found, line * width + generator.integers(width, size=len(line)))
        lacking = wanted - np.bincount(found // width, minlength=lines)
    rest = []
    for line in np.flatnonzero(lacking):
        taken = found[found // width == line] % width
        free = np.setdiff1d(np.arange(width), taken)
        rest.append(line * width + generator.choice(free, lacking[line], replace=False))
    return np.union1d(found, np.concatenate(rest)) if rest else found


def _counts(
    generator: np.random.Generator, lines: int, count: int, bounds: tuple[int, int]
) -> Array:
    """Return how many places each line has, `(lines,)`; some have the fewest, some the most if they can."""
    fewest, most = bounds
    counts = np.full(lines, fewest, np.int64)
    left = count - fewest * lines
    order = generator.permutation(lines)
    full = min(1, lines, left // max(most - fewest, 1))
    counts[order[:full]] = most
    left -= full * (most - fewest)
    while left > 0:
        open_lines = order[counts[order] < most]
        some = generator.choice(open_lines, min(left, len(open_lines)), replace=False)
        # As many at once as fit evenly: a matrix with long lines takes few rounds.
        step = max(1, min(left // len(open_lines), int((most - counts[some]).min())))
        counts[some] += step
        left -= step * len(some)
    return counts


def as_whole_numbers(spec: TensorSpec, storage: Quantized) -> TensorSpec:
    """Return the spec of the whole numbers of a quantized tensor, whose statistics are of what they mean."""
    if storage.axis is not None or spec.low is None or spec.high is None:
        return replace(spec, low=None, high=None, mean=None, norm=None)
    (scale,), (zero_point,) = storage.scale, storage.zero_point
    low, high = (round(float(end) / scale + zero_point) for end in (spec.low, spec.high))
    return replace(spec, low=low, high=high, mean=None, norm=None)


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
        # Drawn where they are asked for first, for themselves or for the argument beside.
        self._companions: dict[str, HostTensor | None] = {
            role.path: None for role in self._roles.values() if isinstance(role, Beside)
        }
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
        if path not in self._companions:
            return self._draw_new(spec, path)
        kept = self._companions[path]
        if kept is None:
            kept = self._companions[path] = self._draw_new(spec, path)
        return kept

    def _draw_new(self, spec: TensorSpec, path: str) -> HostTensor:
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
        if isinstance(role, Beside):
            other = self._draw(role.spec, role.path).data
            data = role.beside(lambda: self._drawn(spec, span, self._generator(path)), other)
        else:
            data = self._drawn(spec, span, self._generator(path))
            if role is not None and spec.size:
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
    if count * _LARGEST_ELEMENT_BYTES > _MOST_BYTES:
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


def assign_cotangents(
    record: ApiRecord,
    outputs: list[HostTensor | None],
    source: TensorSource,
    *,
    may_reshape: bool,
) -> list[HostTensor | None]:
    """Return the incoming gradient of every output, None where it has none (zeros).

    `outputs` are the flattened outputs, None for those that are no tensors. Gradients and outputs
    are matched by position where their numbers agree; PyTorch records the gradients of an autograd
    node, which may have other outputs too, so otherwise each gradient goes to the first float
    output of its size that has none yet, and of which the record does not say that it needs none (one that
    says so of all outputs saw them detached). With `may_reshape` (generated gradients) a gradient that fits
    none takes the shape of the first one left: outputs such as those of `masked_select` have another size
    for other values.

    Raises:
        NotCheckable: no gradient fits any output.
    """
    grads = record.grads_in or ()
    by_position = len(grads) == len(outputs)
    cotangents: list[HostTensor | None] = [None] * len(outputs)
    constant = _constant(record, len(outputs))
    for position, spec in enumerate(grads):
        if not isinstance(spec, TensorSpec):
            continue
        candidates = [position] if by_position else sorted(set(range(len(outputs))) - constant)
        free = {
            place: output
            for place in candidates
            if cotangents[place] is None
            and (output := outputs[place]) is not None
            and is_differentiable(output.dtype)
        }
        fitting = (place for place, output in free.items() if output.data.size == spec.size)
        chosen = next(fitting, None)
        if chosen is None and may_reshape and free:
            chosen = next(iter(free))
            # The norm is that of as many elements as were recorded.
            shape = free[chosen].shape
            spec = replace(spec, shape=shape, norm=None, stride=None, offset=0, storage=None)
        if chosen is not None:
            tensor = source.tensor(spec, f"backward input.{position}").dense
            cotangent = _shaped_like(tensor, free[chosen])
            cotangents[chosen] = placed_alone(cotangent, spec, may_change=may_reshape)
    if all(cotangent is None for cotangent in cotangents):
        shapes = [list(spec.shape) for spec in grads if isinstance(spec, TensorSpec)]
        raise NotCheckable(f"no output fits the incoming gradients of shapes {shapes}")
    return cotangents


def _constant(record: ApiRecord, count: int) -> set[int]:
    """Return the places of the `count` outputs that need no gradient, if the record tells them apart."""
    recorded = [leaf for spec in record.outputs for _, leaf in walk_specs(spec, "")]
    needed = {
        place: leaf.requires_grad
        for place, leaf in enumerate(recorded)
        if isinstance(leaf, TensorSpec)
    }
    if len(recorded) != count or not any(needed.values()):
        return set()
    return {place for place, needs in needed.items() if needs is False}


def _shaped_like(tensor: HostTensor, output: HostTensor) -> HostTensor:
    """Return the gradient with its output's shape and dtype, as autograd wants it."""
    data = tensor.data.reshape(output.shape)
    if DTYPES[output.dtype].kind == "float":
        data = data.real  # a record may name a complex gradient for a real output
    if tensor.dtype != output.dtype:
        data = round_to_dtype(data, output.dtype)
    return replace(output, data=data, layout=None)
