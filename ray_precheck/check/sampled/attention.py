"""Attention, judged by some heads, and as a whole in finer arithmetic.

Comes in: a `LargeCall`. Goes out: the detail rows of results that are clearly right. Called by
`sampled.judge`.

Attention is no linear function of queries and keys, so that no sums of rows say what is in them. But its
heads are computed each by itself: some of them are computed in float64, and judged. And each result is linear
in its last factor: sums of columns, each with a sign by chance, are compared (`bench.attention`), in float32
for half types. Where there is a mask, all results are computed in that arithmetic instead; the heads in
float64 say whether it does not suffice: then all differences are too large.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from ray_precheck.bench.attention import sums_of_attention
from ray_precheck.bench.products import sums_of_rows
from ray_precheck.check.attempt import attempt
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
from ray_precheck.frameworks.base import CallPlan, Leaf, mapped_call, tensors_of
from ray_precheck.frameworks.pytorch.run import TorchPlace
from ray_precheck.operators.table import table_of_names
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import HostCall, HostTensor

_ATTENTION = table_of_names(
    "attention",
    "torch.nn.functional mindspore.mint.nn.functional: scaled_dot_product_attention",
)
# In the order of torch 2.13.
_ARGUMENTS = (
    "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"
)  # fmt: skip
# Queries, keys and values; a mask may follow.
_OPERANDS = 3
# Of the heads of a sample so many have the largest numbers; each has enough elements for itself.
_FEWEST_ROWS, _LARGEST_ROWS = 2, 1
_Results = tuple[HostTensor, Sequence[Leaf]]


def attention_of(
    call: LargeCall, least_macs: float, incoming: HostTensor | None
) -> "SampledAttention | None":
    """Return a call of attention with at least so many multiply-adds; None for any other call, and for one
    without an axis of heads, or of samples, that all its tensors have."""
    record, out = call.tested.inputs.record, call.output
    tensors = tensors_of(call.call)
    if not _ATTENTION.of(record.name.type_name, record.framework) or len(tensors) < _OPERANDS:
        return None
    operands = tensors[:_OPERANDS]
    if any(each.dtype != out.dtype or len(each.shape) != len(out.shape) for each in operands):
        return None
    # The scores, and their product with the values.
    macs = 2.0 * math.prod(out.shape) * operands[1].shape[-2]
    leading = range(len(out.shape) - 2)
    axes = [axis for axis in leading if len({each.shape[axis] for each in (*operands, out)}) == 1]
    axis = max(axes, key=lambda each: out.shape[each], default=None)
    wanted = call.tested.inputs.plan.differentiable
    if axis is None or macs < least_macs or any(at >= _OPERANDS for at in wanted):
        return None
    return SampledAttention(call, axis, incoming)


@dataclass(frozen=True)
class SampledAttention:
    """A call of attention that is cut along an axis; `incoming` is the incoming gradient, None without
    one."""

    call: LargeCall
    axis: int
    incoming: HostTensor | None = None

    def output(self, name: str, tested: HostTensor) -> Compared | None:
        """Return the row of the output, None if it is in doubt."""
        return self._row(name, tested, None)

    def gradient(self, name: str, position: int, tested: HostTensor) -> Compared | None:
        """Return the row of the gradient of the tensor at a position, None if it is in doubt."""
        return self._row(name, tested, self._plan.differentiable.index(position))

    def _row(self, name: str, tested: HostTensor, number: int | None) -> Compared | None:
        """Return the row of the gradient of a number, None: of the output."""
        first = self._rows

        sums = self._sums
        operand = None if number is None else self._plan.differentiable[number]

        def differences() -> Array | None:
            if sums is not None:
                return sums.differences(tested, operand)
            whole = _leaf(self._whole, number)
            if whole is None or whole.shape != tested.shape:
                return None
            with np.errstate(invalid="ignore"):
                return np.asarray(tested.data - whole.data)

        def look(rows: SampleRows) -> Look | None:
            sample = self._sample if rows is first else self._computed(rows)
            direction, plan, cut = "forward", CallPlan(), None
            if number is not None and self.incoming is not None:
                direction, plan, cut = "backward", self._plan, rows.of(self.incoming)
            ways = implementations_of(self.call, direction, sample.call, plan, cut)
            part = rows.of(tested)
            its = partial(ways.of, number or 0, part)
            return look_at(self.call, name, direction, part, _leaf(sample.results, number), its)

        if first is None:
            return None

        return judged_row(self.call, tested, first, look, differences)

    @property
    def _plan(self) -> CallPlan:
        wanted = self.call.tested.inputs.plan.differentiable
        return CallPlan(differentiable=wanted if self.incoming is not None else ())

    @cached_property
    def _rows(self) -> SampleRows | None:
        generator = self.call.generator(self.call.tested.inputs.output_name("forward", 0))
        return sample_of(self.call.output.data, self.axis, generator, _LARGEST_ROWS, _FEWEST_ROWS)

    @cached_property
    def _sample(self) -> "_Sample":
        """The heads of the sample, which serve all results."""
        assert self._rows is not None
        return self._computed(self._rows)

    def _computed(self, rows: SampleRows) -> "_Sample":
        """Compute some heads in float64."""
        shape = self.call.output.shape

        def cut(value: Any) -> Any:
            if not isinstance(value, HostTensor):
                return value
            # A mask counts its axes from the last one.
            axis = self.axis - len(shape) + len(value.shape)
            is_whole = axis >= 0 and value.shape[axis] == shape[self.axis]
            return rows.of(value, axis) if is_whole else value

        call = mapped_call(self.call.call, cut)
        incoming = None if self.incoming is None else rows.of(self.incoming)
        place = TorchPlace(widen=True)
        return _Sample(call, computed(self.call.function, call, self._plan, incoming, place))

    @cached_property
    def _sums(self) -> "_Columns | None":
        """The sums of the columns of all results; None where the call has a mask, or other arguments."""
        mode = _plain_arguments(self.call.call)
        if mode is None:
            return None
        operands = [each.data for each in tensors_of(self.call.call)]
        number, dtype = BLOCKS[self.call.output.dtype], DTYPES_SEEN[self.call.output.dtype]
        generator = self.call.generator(self.call.tested.inputs.output_name("backward", 0))
        signs = [
            generator.choice([-1.0, 1.0], (number, -(-each.shape[-1] // number))).astype(dtype)
            for each in operands[1:]
        ]
        incoming = None if self.incoming is None else self.incoming.data
        found, _ = attempt(
            lambda: sums_of_attention(
                operands, incoming, signs, is_causal=mode.is_causal, scale=mode.scale
            )
        )
        return None if found is None else _Columns(found[0], found[1], signs[0], signs[1])

    @cached_property
    def _whole(self) -> _Results | None:
        """All results, in arithmetic that is finer than theirs."""
        dtype = DTYPES_SEEN[self.call.output.dtype]

        def seen(value: Any) -> Any:
            if not isinstance(value, HostTensor) or DTYPES[value.dtype].kind != "float":
                return value
            return HostTensor(dtype, value.data.astype(dtype, copy=False))

        call = mapped_call(self.call.call, seen)
        return computed(self.call.function, call, self._plan, seen(self.incoming), TorchPlace())


@dataclass(frozen=True, slots=True)
class _Columns:
    """Sums of columns of the output and of the gradients, and the signs of those of queries and keys
    (`inner`) and of values and results (`outer`)."""

    output: Array
    gradients: tuple[Array, ...]
    inner: Array
    outer: Array

    def differences(self, tested: HostTensor, operand: int | None) -> Array:
        """Return how far the sums of the gradient of an operand (None: of the output) are from these."""
        bench = self.output if operand is None else self.gradients[operand]
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(
                sums_of_rows(tested.data, tested.data.ndim - 1, self._signs(operand)) - bench
            )

    def _signs(self, operand: int | None) -> Array:
        return self.inner if operand in (0, 1) else self.outer


class _Mode(NamedTuple):
    """Arguments of attention beside its tensors."""

    is_causal: bool
    scale: float | None


def _plain_arguments(call: HostCall) -> _Mode | None:
    """Return the arguments of a call without a mask, and with as many keys as queries; None for others."""
    values = dict(zip(_ARGUMENTS, call.args, strict=False)) | call.kwargs
    tensors = [values.pop(name, None) for name in _ARGUMENTS[:_OPERANDS]]
    causal, scale = values.pop("is_causal", False), values.pop("scale", None)
    # What is left is no mask, no dropout, and no group of heads.
    if any(values.values()) or not all(isinstance(each, HostTensor) for each in tensors):
        return None
    if not isinstance(causal, bool) or not (scale is None or isinstance(scale, float)):
        return None
    return _Mode(causal, scale) if tensors[0].shape[:-1] == tensors[1].shape[:-1] else None


@dataclass(frozen=True, slots=True)
class _Sample:
    """The call of some heads, and its results, None where they cannot be computed."""

    call: HostCall
    results: _Results | None


def _leaf(results: _Results | None, number: int | None) -> HostTensor | None:
    """Return the gradient of a number, or the output."""
    if results is None:
        return None
    found = results[0] if number is None else results[1][number]
    return found if isinstance(found, HostTensor) else None
