"""A dump's description of one value, and the host arrays that are made from it.

A `ValueSpec` is one element of `input_args`, `input_kwargs` or `output` in dump.json: a tensor's
description, a constant, a symbol of the framework, or a container of these. `HostTensor` is a
tensor's data on the host, the only form in which tensors cross from generation to the device, to
the bench and back.

How a tensor holds its values, where it is not by one value for each element in its own dtype. A
`TensorSpec` has such a storage as the dump describes it; a `HostTensor` has it with its indices, and its
`data` are the values that are stored. Pure NumPy.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from ray_precheck.schema.dtypes import DTYPES, Array

# The compressed layouts, by the dimension of the (last) two that is compressed: rows or columns.
COMPRESSED = {"csr": 0, "bsr": 0, "csc": 1, "bsc": 1}


@dataclass(frozen=True, slots=True)
class Sparse:
    """A sparse tensor of a `shape` with `nnz` stored values, or blocks of `block`, in each matrix of a batch.

    `dense_dim` of its dimensions are dense. `distinct` is the number of different places of a COO tensor;
    where that is `coalesced` they stand in order, once each. A row, or a column where these are compressed,
    has `fewest` to `most` places. `indices` are those of COO, `(dimensions, nnz)`, or the compressed and the
    plain ones; () in a spec.
    """

    layout: str
    shape: tuple[int, ...]
    nnz: int
    dense_dim: int = 0
    coalesced: bool = True
    distinct: int = 0
    fewest: int = 0
    most: int = 0
    block: tuple[int, ...] = ()
    indices: tuple[Array, ...] = field(default=(), compare=False)

    @property
    def dense_shape(self) -> tuple[int, ...]:
        """The extents of the dense dimensions."""
        return self.shape[len(self.shape) - self.dense_dim :]

    @property
    def sparse_shape(self) -> tuple[int, ...]:
        """The extents of the other ones."""
        return self.shape[: len(self.shape) - self.dense_dim]

    @property
    def values_shape(self) -> tuple[int, ...]:
        """The shape of the values that are stored."""
        batch = () if self.layout == "coo" else self.sparse_shape[:-2]
        return (*batch, self.nnz, *self.block, *self.dense_shape)

    @property
    def grid(self) -> tuple[int, int]:
        """How many lines a matrix has that are compressed (of COO: extents of the first dimension), and how
        many places each of them has; blocks count as one."""
        if self.layout == "coo":
            return (self.sparse_shape or (1,))[0], math.prod(self.sparse_shape[1:])
        rows, columns = (
            extent // size
            for extent, size in zip(self.sparse_shape[-2:], self.block or (1, 1), strict=True)
        )
        return (rows, columns) if COMPRESSED[self.layout] == 0 else (columns, rows)

    def dense(self, values: Array) -> Array:
        """Return the whole tensor of these values; what stands at one place several times is added.

        Raises:
            IndexError: an index is beyond the shape.
        """
        found = np.zeros(self.shape, values.dtype)
        if self.layout == "coo":
            np.add.at(found, tuple(self.indices[0]), values)
            return found
        count = math.prod(self.sparse_shape[:-2])
        compressed, plain = (each.reshape(count, each.shape[-1]) for each in self.indices)
        matrices = found.reshape(count, *self.shape[len(self.sparse_shape) - 2 :])
        blocks = values.reshape(count, self.nnz, *(self.block or (1, 1)), *self.dense_shape)
        height, width = blocks.shape[2:4]
        inside = np.arange(height)[:, None], np.arange(width)[None, :]
        for matrix, lines, others, each in zip(matrices, compressed, plain, blocks, strict=True):
            line = np.repeat(np.arange(len(lines) - 1), np.diff(lines))
            row, column = (line, others) if COMPRESSED[self.layout] == 0 else (others, line)
            place = (
                (row * height)[:, None, None] + inside[0],
                (column * width)[:, None, None] + inside[1],
            )
            np.add.at(matrix, place, each)
        return found


@dataclass(frozen=True, slots=True)
class Quantized:
    """Whole numbers q that stand for (q - zero_point) * scale; several of both along a dimension `axis`.

    Of a bench's output `slack` is how much farther than half a step it may be rounded.
    """

    scale: tuple[float, ...]
    zero_point: tuple[float, ...]
    axis: int | None = None
    slack: float = field(default=0.0, compare=False)

    def meant(self, whole: Array) -> Array:
        """Return the numbers that whole ones stand for, float64."""
        scale, zero_point = self.along(whole.ndim)
        return np.asarray((whole.astype(np.float64) - zero_point) * scale)

    def steps(self, numbers: Array) -> Array:
        """Return numbers in steps of the scale from the zero point, float64, before they are rounded."""
        scale, zero_point = self.along(numbers.ndim)
        return np.asarray(numbers / scale + zero_point)

    def along(self, dimensions: int) -> tuple[Array, Array]:
        """Return scale and zero point as they broadcast against a tensor of so many dimensions."""
        found = np.asarray(self.scale, np.float64), np.asarray(self.zero_point, np.float64)
        if self.axis is None:
            return found[0].reshape(()), found[1].reshape(())
        shape = [-1 if at == self.axis else 1 for at in range(dimensions)]
        return found[0].reshape(shape), found[1].reshape(shape)


@dataclass(frozen=True, slots=True)
class Nested:
    """Tensors of these `sizes` one after the other; the shape of the whole is that of the stored values.

    A jagged one has its values as `(sum of sizes[i][ragged], ...)` and pieces that begin at `offsets`, which
    may be shorter than up to the next one: then `lengths` has how long each is.
    """

    sizes: tuple[tuple[int, ...], ...] = ()
    offsets: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    ragged: int = 0

    @property
    def is_jagged(self) -> bool:
        """Whether it is a jagged one."""
        return bool(self.offsets)


Storage: TypeAlias = Sparse | Quantized | Nested

Bound = float | int | bool | None


@dataclass(frozen=True, slots=True)
class Structure:
    """What a look at a tensor's values has shown, beside their statistics.

    `distinct` is the number of different values, None where it was not counted. Of `rows` rows (the
    operator decides what a row is: `inputs.roles.rowwise`) `zero_rows` hold nothing but 0, `masked_rows`
    one value of -1e4 or less, and `equal_rows` one other value. `row_means` are the smallest and the
    largest mean of a row, where these are large beside `row_deviation`, the root of the mean variance
    within the rows. `nan` elements are NaN.
    """

    distinct: int | None = None
    rows: int = 0
    zero_rows: int = 0
    masked_rows: int = 0
    equal_rows: int = 0
    row_means: tuple[float, float] | None = None
    row_deviation: float = 0.0
    nan: int = 0


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor in a dump: canonical dtype, shape, recorded statistics and the captured file.

    `low`, `high`, `mean` and `norm` are Min, Max, Mean and Norm (the L2 norm) of the dump; None
    where the dump has null. `finite_low` and `finite_high` are the extremes of the finite elements, which
    captures of msprobe's first versions have where Min or Max is not finite. `requires_grad` is None where
    the framework does not record it (MindSpore).

    `stride` and `offset`, in elements, say how it lay in its memory: None and 0 for a contiguous tensor
    at the beginning of its own, and where the dump does not know. `shares` is the argument path of an
    earlier tensor of the same call that lay in the same memory, "" for none. `lazy` is "conj" or "neg" where
    the memory held the conjugates or the negatives of the values, else "". `structure` is None where the
    dump tells nothing but statistics. `storage` is how a sparse, quantized or nested tensor holds its values,
    None for all others. `vmapped` is the number of samples that `vmap` maps the call over, 1 for none: the
    shape and the norm are those of one, the other statistics those of all.
    """

    dtype: str
    shape: tuple[int, ...]
    low: Bound = None
    high: Bound = None
    requires_grad: bool | None = None
    data_name: str | None = None
    mean: Bound = None
    norm: Bound = None
    finite_low: float | None = None
    finite_high: float | None = None
    stride: tuple[int, ...] | None = None
    offset: int = 0
    shares: str = ""
    lazy: str = ""
    structure: Structure | None = None
    storage: Storage | None = None
    vmapped: int = 1

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def stored(self) -> "TensorSpec":
        """The values that a sparse tensor stores, as a tensor; any other tensor itself."""
        if not isinstance(self.storage, Sparse):
            return self
        return replace(self, shape=self.storage.values_shape, storage=None)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in its own dtype."""
        return self.size * DTYPES[self.dtype].bits // 8


@dataclass(frozen=True, slots=True)
class Constant:
    """A Python value: int, float, bool, str, None, slice, Ellipsis or a tuple of ints."""

    value: Any


@dataclass(frozen=True, slots=True)
class Symbol:
    """A constant of the framework: `kind` is dtype, device or memory_format."""

    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """A list or tuple; the dump writes both alike.

    `is_list` is told of the index of `x[[1, 2]]` alone, by our own captures.
    """

    items: tuple["ValueSpec", ...]
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class MappingSpec:
    """A dict (or named tuple) of values."""

    items: tuple[tuple[str, "ValueSpec"], ...]


@dataclass(frozen=True, slots=True)
class UnknownSpec:
    """A value that the dump does not describe well enough to be built, with the reason."""

    reason: str


ValueSpec = TensorSpec | Constant | Symbol | SequenceSpec | MappingSpec | UnknownSpec


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies in memory: steps and offset, in elements, in a buffer `(N,)` of its carrier.

    Arguments of one call whose `buffer` is the same array share memory.
    """

    stride: tuple[int, ...]
    offset: int
    buffer: Array


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A tensor's data on the host: canonical dtype and its carrier array (see `schema.dtypes`).

    `layout` is how the tested side has to place it in its memory, None for a contiguous tensor of its
    own; it says nothing about `data`, and a bench need not care. `lazy` says that the memory is to hold the
    conjugates ("conj") or the negatives ("neg") of the data, as torch's lazy views do.
    The data of a sparse, quantized or nested tensor are the values that it stores, in the way of `storage`.
    """

    dtype: str
    data: Array
    layout: Layout | None = None
    storage: Storage | None = None
    lazy: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor; of a nested one that of the values."""
        if isinstance(self.storage, Sparse):
            return self.storage.shape
        return tuple(self.data.shape)

    @property
    def dense(self) -> "HostTensor":
        """A sparse tensor with all its elements; any other tensor itself."""
        if not isinstance(self.storage, Sparse):
            return self
        return HostTensor(self.dtype, self.storage.dense(self.data))

    @property
    def flat(self) -> "HostTensor":
        """The values of a nested tensor as one tensor; any other tensor itself."""
        return replace(self, storage=None) if isinstance(self.storage, Nested) else self


@dataclass(frozen=True, slots=True)
class HostCall:
    """The arguments of one API call. Leaves are Python values, `Symbol`s and `HostTensor`s."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def walk_specs(spec: ValueSpec, path: str) -> Iterator[tuple[str, ValueSpec]]:
    """Yield every leaf of `spec` with its argument path (`input_args.0.1`), in order."""
    if isinstance(spec, SequenceSpec):
        for position, item in enumerate(spec.items):
            yield from walk_specs(item, f"{path}.{position}")
    elif isinstance(spec, MappingSpec):
        for key, item in spec.items:
            yield from walk_specs(item, f"{path}.{key}")
    else:
        yield path, spec
