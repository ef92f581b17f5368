"""Matrix products and convolutions, judged by some rows and by sums of all rows.

Comes in: a `LargeCall` and the `Product` that it is. Goes out: the detail rows of results that are clearly
right. Called by `sampled.judge`.

All rows of a result are added up in blocks of g, each row with a sign by chance, and compared with the
product of operands whose rows are added up so: with blocks, what Freivalds does to verify a product
(Probabilistic machines can use less running time, IFIP 1977). The signs are independent, so that the mean
square of the differences is g times that of the errors, whatever these are; and an error of one element is in
one difference as large as it is. The signs depend on the seed and the call's name alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from ray_precheck.accuracy.thresholds import COMPUTED_IN
from ray_precheck.bench.products import INCOMING, Product, ProductLeaf, sums_of_rows
from ray_precheck.check.judge import Compared
from ray_precheck.check.sampled.parts import (
    BLOCKS,
    DTYPES_SEEN,
    LargeCall,
    Look,
    SampleRows,
    computed,
    implementations_of,
    judged_row,
    look_at,
    sample_of,
)
from ray_precheck.frameworks.base import CallPlan, mapped_call
from ray_precheck.frameworks.pytorch.run import TorchPlace
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.values import HostCall, HostTensor

# Gives another tensor for that at a place, which has an axis of this number.
_Change = Callable[[int, HostTensor, int], HostTensor]

# Rows of a sample, and those of them with the largest numbers, which set the limit of single errors.
_FEWEST_ROWS, _LARGEST_ROWS = 16, 4


@dataclass(frozen=True, slots=True)
class SampledProduct:
    """A call of a product; `incoming` is the incoming gradient, for gradients."""

    call: LargeCall
    product: Product
    incoming: HostTensor | None = None

    def output(self, name: str, tested: HostTensor) -> Compared | None:
        """Return the row of the output, None if it is in doubt."""
        leaf = self.product.output()
        return None if leaf is None else _Result(self, leaf, name, tested).row()

    def gradient(self, name: str, position: int, tested: HostTensor) -> Compared | None:
        """Return the row of the gradient of the tensor at a position, None if it is in doubt."""
        leaf = self.product.gradient(position)
        return None if leaf is None else _Result(self, leaf, name, tested).row()


@dataclass(frozen=True, slots=True)
class _Result:
    """A tested output or gradient, and what it is of the product."""

    of: SampledProduct
    leaf: ProductLeaf
    name: str
    tested: HostTensor

    @property
    def direction(self) -> str:
        return "forward" if self.leaf.position is None else "backward"

    @property
    def incoming(self) -> HostTensor | None:
        return None if self.leaf.position is None else self.of.incoming

    @property
    def plan(self) -> CallPlan:
        position = self.leaf.position
        return CallPlan(differentiable=() if position is None else (position,))

    def row(self) -> Compared | None:
        """Return the detail row of the result, None if it is in doubt."""
        leaf, tested = self.leaf, self.tested
        if leaf.is_sum:
            return self._row_of_sum()
        at = leaf.letters.index(leaf.axis)
        generator = self.of.call.generator(self.name)
        rows = sample_of(tested.data, at, generator, _LARGEST_ROWS, _FEWEST_ROWS)
        if rows is None:
            return None

        def look(rows: SampleRows) -> Look | None:
            call, incoming = self._changed(leaf.axis, lambda _, each, axis: rows.of(each, axis))
            return self._looked_at(rows.of(tested), call, incoming)

        differences = partial(self._projected, at, generator)
        return judged_row(self.of.call, tested, rows, look, differences)

    def _row_of_sum(self) -> Compared | None:
        """Return the row of the gradient of what is added: the incoming gradients are added up for it, and of
        the product one term is computed."""

        def first(_: int, tensor: HostTensor, axis: int) -> HostTensor:
            return replace(tensor, data=np.take(tensor.data, [0], axis), layout=None)

        call, incoming = self._changed(self.of.product.inner, first)
        found = self._looked_at(
            self.tested, call, incoming, is_part=self.tested.dtype in COMPUTED_IN
        )
        is_settled = found is not None and (found.limits is not None or self.of.call.is_final)
        return Compared(found.check, self.tested, found.bench) if found and is_settled else None

    def _looked_at(
        self,
        tested: HostTensor,
        call: HostCall,
        incoming: HostTensor | None,
        *,
        is_part: bool = True,
    ) -> Look | None:
        """Compare a part of the result with that of a part of the call; the honest implementations are those
        of the part, or of the whole call: few results of a half type need any, and these are those of the
        bench."""
        of = self.of.call
        bench = self._computed(call, incoming, TorchPlace(widen=True))
        if not is_part:
            call, incoming = of.call, self.incoming
        ways = implementations_of(of, self.direction, call, self.plan, incoming)
        return look_at(of, self.name, self.direction, tested, bench, lambda: ways.of(0, tested))

    def _projected(self, axis: int, generator: np.random.Generator) -> Array | None:
        """Return the differences of the sums of blocks of rows from those of the product, None where it
        cannot be computed."""
        tested, leaf = self.tested, self.leaf
        number, dtype = BLOCKS[tested.dtype], DTYPES_SEEN[tested.dtype]
        blocks = -(-tested.shape[axis] // number)
        signs = generator.choice([-1.0, 1.0], (number, blocks)).astype(dtype)
        places = {place for term in leaf.terms for place in term}

        def change(place: int, tensor: HostTensor, axis: int) -> HostTensor:
            if place in places:
                return HostTensor(dtype, sums_of_rows(tensor.data, axis, signs))
            # Only its shape counts.
            return HostTensor(
                dtype, np.zeros_like(np.take(tensor.data, range(blocks), axis), dtype)
            )

        call, incoming = self._changed(leaf.axis, change, dtype)
        bench = self._computed(call, incoming, TorchPlace())
        if bench is None:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(sums_of_rows(tested.data, axis, signs) - bench.data)

    def _changed(
        self, letter: str, change: _Change, dtype: str = ""
    ) -> tuple[HostCall, HostTensor | None]:
        """Return the call and its incoming gradient with other tensors where they have an axis, and all of
        them in a dtype ("": in their own)."""
        product, position = self.of.product, count()

        def changed(place: int, tensor: HostTensor) -> HostTensor:
            letters = product.letters(place)
            if letter in letters:
                return change(place, tensor, letters.index(letter))
            return HostTensor(dtype, tensor.data.astype(dtype, copy=False)) if dtype else tensor

        def leaf(value: Any) -> Any:
            return changed(next(position), value) if isinstance(value, HostTensor) else value

        call = mapped_call(self.of.call.call, leaf)
        return call, None if self.incoming is None else changed(INCOMING, self.incoming)

    def _computed(
        self, call: HostCall, incoming: HostTensor | None, place: TorchPlace
    ) -> HostTensor | None:
        """Return the result of another call."""
        found = computed(self.of.call.function, call, self.plan, incoming, place)
        if found is None:
            return None
        leaf = found[0] if self.leaf.position is None else found[1][0]
        return leaf if isinstance(leaf, HostTensor) else None
