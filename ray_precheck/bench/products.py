"""Products as equations: which axes the operands of a call share, and what a part of it is.

Comes in: an API's name and the tensors of a call. Goes out: a `Product`, whose `leaves` say of the output and
of each gradient from which tensors it is added up, and along which axis it can be cut into parts or have its
rows sums_of_rows. Called by `check.sampled`.

A product is linear in each of its operands. So rows of a result that are added with signs are the result of
operands whose rows are added with these signs, along any axis that one operand of each term has. In an
equation each axis has a letter, as in `einsum`; those of capital letters (the places of a convolution) belong
to one tensor alone and are never cut.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ray_precheck.frameworks.base import mapped_call
from ray_precheck.operators.table import FactTable
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.values import HostCall, HostTensor

# The place of the incoming gradient among the tensors of a term.
INCOMING = -1
# Axes of fewer elements are neither cut nor sums_of_rows.
_LEAST_ROWS = 64
_LEADING = "abcdefgh"

# What the equation of an operator is made by; the names are those of the functions below.
_KINDS: FactTable[str] = FactTable(
    "equations",
    [
        ("torch.nn.functional mindspore.mint.nn.functional: linear", "linear"),
        ("mindspore.ops: dense", "linear"),
        (
            """
            torch torch.Tensor torch.linalg mindspore.mint mindspore.Tensor mindspore.ops: matmul
            torch.Tensor mindspore.Tensor: __matmul__
            torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops: bmm mm
            """,
            "matmul",
        ),
        (
            "torch torch.Tensor mindspore.mint mindspore.Tensor mindspore.ops: addmm baddbmm",
            "addmm",
        ),
        ("torch mindspore.mint mindspore.ops: einsum", "einsum"),
        (
            """
            torch torch.nn.functional mindspore.mint mindspore.mint.nn.functional mindspore.ops: conv2d
            torch torch.nn.functional mindspore.mint.nn.functional mindspore.ops: conv1d conv3d
            """,
            "convolution",
        ),
        (
            """
            torch torch.nn.functional: conv_transpose1d conv_transpose3d
            torch torch.nn.functional mindspore.mint.nn.functional mindspore.ops: conv_transpose2d
            """,
            "transposed convolution",
        ),
    ],
)


@dataclass(frozen=True, slots=True)
class ProductLeaf:
    """The output of a product, or the gradient of its tensor at `position`.

    `letters` are its axes. `terms` are what it adds up: each the places of the tensors that are multiplied,
    `INCOMING` that of the incoming gradient. `axis` is the letter along which it is cut.
    """

    letters: str
    terms: tuple[tuple[int, ...], ...]
    position: int | None = None
    axis: str = ""

    @property
    def is_sum(self) -> bool:
        """Whether it is the incoming gradient, added up: no product is computed for it."""
        return all(len(term) == 1 for term in self.terms)


@dataclass(frozen=True, slots=True)
class Product:
    """A call of a product: its axes, `tensors` in the order of the arguments, and `out`.

    `factors` are the two that are multiplied, the others are added; `sizes` are the lengths of the axes, and
    `macs` the multiply-adds of the output.
    """

    tensors: tuple[str, ...]
    out: str
    factors: tuple[int, int]
    sizes: Mapping[str, int]
    macs: float

    def output(self) -> ProductLeaf | None:
        """Return the output, None where it has no axis to be cut along."""
        added = tuple((at,) for at in range(len(self.tensors)) if at not in self.factors)
        return self._cut(ProductLeaf(self.out, (self.factors, *added)))

    def gradient(self, position: int) -> ProductLeaf | None:
        """Return the gradient of the tensor at a position, None where it has no axis to be cut along."""
        others = tuple(at for at in self.factors if at != position and position in self.factors)
        found = ProductLeaf(self.tensors[position], ((*others, INCOMING),), position)
        return found if found.is_sum else self._cut(found)

    def letters(self, place: int) -> str:
        """Return the axes of a tensor, or of the incoming gradient."""
        return self.out if place == INCOMING else self.tensors[place]

    def _cut(self, leaf: ProductLeaf) -> ProductLeaf | None:
        """Return a leaf with the axis along which the least of the operands is read whole."""

        def size(letters: str) -> int:
            return math.prod(self.sizes[each] for each in letters)

        def whole(axis: str) -> int:
            read = (self.letters(place) for term in leaf.terms for place in term)
            return sum(size(letters) for letters in read if axis not in letters)

        axes = [
            axis
            for axis in leaf.letters
            if axis.islower()
            and self.sizes[axis] >= _LEAST_ROWS
            and all(sum(axis in self.letters(at) for at in term) == 1 for term in leaf.terms)
        ]
        return replace(leaf, axis=min(axes, key=whole)) if axes else None

    @property
    def inner(self) -> str:
        """The axis over which the product adds up, "" for none."""
        shared = set(self.tensors[self.factors[0]]) & set(self.tensors[self.factors[1]])
        return min(shared - set(self.out), default="")


def product_of(
    type_name: str, framework: str, call: HostCall, out: tuple[int, ...]
) -> Product | None:
    """Return a call as a product; None for any other operator, and for arguments that no equation here
    describes. `out` is the shape of the output."""
    kind = _KINDS.of(type_name, framework)
    if kind is None:
        return None
    tensors: list[HostTensor] = []

    def collect(value: Any) -> Any:
        if isinstance(value, HostTensor):
            tensors.append(value)
        return value

    mapped_call(call, collect)
    shapes = [tensor.shape for tensor in tensors]
    ranks = [len(shape) for shape in shapes]
    if kind == "einsum":
        found = _einsum(call, ranks)
    elif len(shapes) < 2:
        found = None
    elif kind == "linear":
        found = _linear(ranks)
    elif kind == "matmul":
        found = _matmul(ranks)
    elif kind == "addmm":
        found = _addmm(ranks)
    else:
        found = _convolution(shapes, is_transposed=kind != "convolution")
    if found is None:
        return None
    operands, result, factors = found
    sizes: dict[str, int] = {}
    for letters, shape in zip((*operands, result), (*shapes, out), strict=True):
        if len(letters) != len(shape):
            return None
        for letter, length in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, length) != length:
                return None
    # A convolution multiplies its weight for each place of the output, a transposed one of the input.
    axes = {*operands[factors[1]], *(operands[0] if "transposed" in kind else result)}
    macs = math.prod(
        sizes[axis] for axis in axes | set("" if "U" in "".join(operands) else operands[factors[0]])
    )
    return Product(operands, result, factors, sizes, float(macs))


_Found = tuple[tuple[str, ...], str, tuple[int, int]]


def _linear(ranks: Sequence[int]) -> _Found | None:
    leading = _LEADING[: ranks[0] - 1]
    if ranks[1] != 2 or ranks[0] < 2 or ranks[0] - 1 > len(_LEADING) or len(ranks) > 3:
        return None
    return (f"{leading}k", "nk", "n")[: len(ranks)], f"{leading}n", (0, 1)


def _matmul(ranks: Sequence[int]) -> _Found | None:
    first, second = ranks[:2]
    if len(ranks) != 2 or min(ranks) < 2 or max(ranks) > len(_LEADING):
        return None
    if second == 2:
        leading = _LEADING[: first - 1]
        return (f"{leading}k", "kn"), f"{leading}n", (0, 1)
    batch = _LEADING[: second - 2]
    return ((f"{batch}mk", f"{batch}kn"), f"{batch}mn", (0, 1)) if first == second else None


def _addmm(ranks: Sequence[int]) -> _Found | None:
    if len(ranks) != 3 or ranks[1] != ranks[2] or ranks[1] not in (2, 3):
        return None
    batch = "b" if ranks[1] == 3 else ""
    out = f"{batch}mn"
    added = {1: "n", ranks[1]: out}.get(ranks[0])
    return None if added is None else ((added, f"{batch}mk", f"{batch}kn"), out, (1, 2))


def _einsum(call: HostCall, ranks: Sequence[int]) -> _Found | None:
    equation = call.args[0] if call.args else call.kwargs.get("equation")
    if not isinstance(equation, str) or len(ranks) != 2:
        return None
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    operands = tuple(inputs.split(","))
    if len(operands) != 2 or not arrow or not all(map(str.isalpha, (*operands, out))):
        return None
    known = (*operands, out)
    # A letter of one tensor alone is added up before the product, and one that is there twice is a diagonal.
    alone = any(sum(letter in each for each in known) < 2 for letter in "".join(known))
    twice = any(len(set(each)) < len(each) for each in known)
    if alone or twice:
        return None
    lower = str.maketrans({c: chr(0x3B1 + ord(c) - ord("A")) for c in out + inputs if c.isupper()})
    return tuple(each.translate(lower) for each in operands), out.translate(lower), (0, 1)


def _convolution(shapes: Sequence[tuple[int, ...]], *, is_transposed: bool) -> _Found | None:
    data, weight = shapes[:2]
    places = len(weight) - 2
    if len(data) != len(weight) or not 1 <= places <= 3 or len(shapes) > 3:
        return None
    inner = 0 if is_transposed else 1
    if data[1] != weight[inner]:  # It has groups.
        return None
    kernel = f"{'io' if is_transposed else 'oi'}{'UVW'[:places]}"
    operands = (f"zi{'XYZ'[:places]}", kernel, "o")[: len(shapes)]
    return operands, f"zo{'PQR'[:places]}", (0, 1)


def sums_of_rows(array: Array, axis: int, signs: Array) -> Array:
    """Return the sums of rows of an array along an axis, in the dtype of the signs.

    `signs`, `(g, B)` of 1 and -1, are those of the row j B + b in the sum b. The rows of a sum are B apart,
    so that neighbours are in different ones; there may be fewer than g B.
    """
    count, blocks = signs.shape
    shape = list(array.shape)
    length, shape[axis] = shape[axis], blocks
    total = np.zeros(shape, signs.dtype)
    for number in range(count):
        first = number * blocks
        here = max(0, min(blocks, length - first))
        rows = [slice(None)] * array.ndim
        rows[axis] = slice(first, first + here)
        into = [slice(None)] * array.ndim
        into[axis] = slice(0, here)
        along = [1] * array.ndim
        along[axis] = here
        total[tuple(into)] += array[tuple(rows)] * signs[number, :here].reshape(along)
    return total
