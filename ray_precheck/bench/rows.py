"""Operators that compute each row by itself, and how a call of one is cut into tiles of rows.

Comes in: an API's name, the call and the shape of its output. Goes out: `Tiles`, each of which cuts the part
of a tensor out that belongs to some rows of the output. Called by `check.sampled.tiles`.

Elementwise operators may be cut anywhere; softmax and the norms along the axes before those over which they
add up. A tile that is cut where it must not be has other results than the whole: it says that a right result
is in doubt, but never that a wrong one is right.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ray_precheck.frameworks.base import tensors_of
from ray_precheck.numerics.arrays import CACHED_ELEMENTS
from ray_precheck.operators.table import FactTable
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.values import HostCall

_ALL = "torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops"
_FUNCTIONS = "torch torch.nn.functional mindspore.mint mindspore.mint.nn.functional mindspore.ops"
_EVERYWHERE, _DIMENSION, _TRAILING = "everywhere", "dimension", "trailing"

# Along which axes an operator may be cut.
_KINDS: FactTable[str] = FactTable(
    "rows",
    [
        (
            f"""
            {_ALL}:
                abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh ceil clamp clamp_max clamp_min
                clip cos cosh div divide erf erfc erfinv exp exp2 expm1 floor fmod lerp log log10 log1p log2
                masked_fill maximum minimum mul multiply nan_to_num neg negative pow reciprocal remainder
                rsqrt sign sin sinh sqrt square sub subtract tan true_divide trunc where
            torch.Tensor mindspore.Tensor:
                __abs__ __add__ __div__ __mod__ __mul__ __neg__ __pow__ __radd__ __rmul__ __rpow__ __rsub__
                __rtruediv__ __sub__ __truediv__ bfloat16 clone float half type_as
            {_FUNCTIONS}:
                celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6
                selu sigmoid silu softplus softshrink softsign tanh tanhshrink threshold
            torch.Tensor mindspore.Tensor: relu sigmoid tanh
            """,
            _EVERYWHERE,
        ),
        (
            f"""
            {_ALL}: softmax log_softmax
            torch.nn.functional mindspore.mint.nn.functional: softmax log_softmax softmin
            """,
            _DIMENSION,
        ),
        (
            """
            torch torch.nn.functional mindspore.mint.nn.functional mindspore.ops: layer_norm
            torch torch.nn.functional: rms_norm
            """,
            _TRAILING,
        ),
    ],
)


@dataclass(frozen=True, slots=True)
class Tile:
    """Some rows of an output: `parts` of its first axes, which lie together in memory from the flat place
    `start` on."""

    parts: tuple[slice, ...]
    axes: int
    start: int

    def places(self, shape: Sequence[int]) -> tuple[slice, ...]:
        """Return which part of a tensor of a shape belongs to these rows: all of an axis that it lacks, or
        along which it is repeated."""
        missing = self.axes - len(shape)
        return tuple(
            slice(None) if shape[axis - missing] == 1 else part
            for axis, part in enumerate(self.parts)
            if axis >= missing
        )

    def of(self, data: Array) -> Array:
        """Return the part of an array that belongs to these rows."""
        # Of a number that is a tensor `ascontiguousarray` would make one with an axis.
        return np.asarray(data[self.places(data.shape)], order="C")


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of an output of `shape`: its first axes by their elements, then `rows` along `axis`."""

    shape: tuple[int, ...]
    axis: int
    rows: int

    def __iter__(self) -> Iterator[Tile]:
        """Yield all tiles in the order in which they lie in memory."""
        size, length = math.prod(self.shape[self.axis + 1 :]), self.shape[self.axis]
        for number, index in enumerate(np.ndindex(*self.shape[: self.axis])):
            leading = tuple(slice(each, each + 1) for each in index)
            for first in range(0, length, self.rows):
                part = slice(first, min(first + self.rows, length))
                start = (number * length + first) * size
                yield Tile((*leading, part), len(self.shape), start)


def tiles_of(
    type_name: str, framework: str, call: HostCall, shape: tuple[int, ...]
) -> Tiles | None:
    """Return how a call whose output has a shape is cut into tiles that stay in the core's cache; None for an
    operator that is not known to compute each row by itself, and for tensors of other shapes."""
    free = _free_axes(_KINDS.of(type_name, framework), call, len(shape))
    if not free or any(not _is_broadcast(each.shape, shape) for each in tensors_of(call)):
        return None
    for axis in range(free):
        size = math.prod(shape[axis + 1 :])
        if size <= CACHED_ELEMENTS or axis == free - 1:
            return Tiles(shape, axis, max(1, CACHED_ELEMENTS // max(size, 1)))
    return None


def _is_broadcast(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Return whether a tensor of a shape is repeated to another, or has it."""
    ending = to[len(to) - len(shape) :]
    return len(shape) <= len(to) and all(
        mine in (1, other) for mine, other in zip(shape, ending, strict=True)
    )


def _free_axes(kind: str | None, call: HostCall, axes: int) -> int:
    """Return along how many of the first axes an operator may be cut."""
    if kind == _EVERYWHERE:
        return axes
    given = call.args[1] if len(call.args) > 1 else None
    if kind == _DIMENSION:
        found = call.kwargs.get("dim", call.kwargs.get("axis", given))
        if not isinstance(found, int) or isinstance(found, bool):
            return 0
        return found + axes if found < 0 else found
    if kind == _TRAILING:
        found = call.kwargs.get("normalized_shape", given)
        return axes - (len(found) if isinstance(found, list | tuple) else 1) if found else 0
    return 0
