"""How a tensor holds its values, where it is not by one value for each element in its own dtype.

A `TensorSpec` has such a storage as the dump describes it; a `HostTensor` has it with its indices, and its
`data` are the values that are stored. Pure NumPy.
"""

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ray_precheck.schema.dtypes import Array

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
