"""When a kernel is wrong: facts of the tensors that it gets.

Each function here returns a `Condition`: whether one call of a kernel meets it. `at` is the position or the
name of an argument; of a list of tensors any may meet it.
"""

from collections.abc import Callable
from typing import Any

import torch

from scripts.attack.calls import KernelCall, as_rows

Condition = Callable[[KernelCall], bool]
At = int | str
_FAR_FROM_ZERO = 8.0


def _of(at: At, holds: Callable[[torch.Tensor], bool]) -> Condition:
    def condition(call: KernelCall) -> bool:
        value = call.argument(at)
        leaves = value if isinstance(value, list | tuple) else [value]
        return any(torch.is_tensor(leaf) and leaf.numel() > 0 and holds(leaf) for leaf in leaves)

    return condition


def always(_: KernelCall) -> bool:
    """Meet every call."""
    return True


def both(*conditions: Condition) -> Condition:
    """All of several."""
    return lambda call: all(condition(call) for condition in conditions)


def strided(at: At = 0) -> Condition:
    """Neither contiguous nor expanded: transposed, permuted, or a part of rows."""
    return _of(at, lambda one: _dense(one) and not one.is_contiguous() and not _repeats(one))


def transposed(at: At = 0) -> Condition:
    """All of its memory, in another order than that of its dimensions."""

    return _of(at, _strided_in_full)


def channels_last(at: At = 0) -> Condition:
    """Pictures whose channels lie side by side."""

    def holds(one: torch.Tensor) -> bool:
        last = torch.channels_last
        return (
            _dense(one)
            and one.dim() == 4
            and not one.is_contiguous()
            and one.is_contiguous(memory_format=last)
        )

    return _of(at, holds)


def expanded(at: At = 0) -> Condition:
    """A dimension with stride 0."""
    return _of(at, lambda one: _dense(one) and _repeats(one))


def stepped(at: At = 0) -> Condition:
    """No dimension with stride 1: every second element, or the like."""
    return _of(
        at,
        lambda one: _dense(one) and one.dim() > 0 and min(one.stride()) > 1 and not _repeats(one),
    )


def offset(at: At = 0) -> Condition:
    """It begins inside of its storage."""
    return _of(at, lambda one: _dense(one) and one.storage_offset() > 0)


def same_memory(one: At, other: At) -> Condition:
    """Two arguments have one storage."""

    def condition(call: KernelCall) -> bool:
        first, second = call.tensor(one), call.tensor(other)
        if first is None or second is None or not (_dense(first) and _dense(second)):
            return False
        return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()

    return condition


def conjugated(at: At = 0) -> Condition:
    """A lazy conjugate or negative."""
    return _of(at, lambda one: one.is_conj() or one.is_neg())


def in_layout(at: At, layout: torch.layout) -> Condition:
    """A sparse layout."""
    return _of(at, lambda one: one.layout is layout)


def index_repeats(at: At) -> Condition:
    """An index that occurs twice."""

    def holds(one: torch.Tensor) -> bool:
        if one.layout is torch.sparse_coo:
            one = one._indices()
            return one.unique(dim=1).shape[1] < one.shape[1]
        return one.unique().numel() < one.numel()

    return _of(at, holds)


def index_repeats_along(at: At, dim: At) -> Condition:
    """An index that occurs twice along the dimension of a scatter."""

    def condition(call: KernelCall) -> bool:
        index, along = call.tensor(at), call.argument(dim)
        if index is None or not index.dim():
            return False
        ordered = as_rows(index, along).sort(-1).values
        return bool((ordered[:, 1:] == ordered[:, :-1]).any())

    return condition


def row_where(
    holds: Callable[[torch.Tensor], torch.Tensor], at: At = 0, dim: int = -1
) -> Condition:
    """A row (of two elements or more) for which a function of all rows is true."""

    def of_rows(one: torch.Tensor) -> bool:
        if not _dense(one) or not one.dim() or one.shape[dim] < 2:
            return False
        return bool(holds(as_rows(one, dim)).any())

    return _of(at, of_rows)


def masked_whole(rows: torch.Tensor) -> torch.Tensor:
    """Rows that are -inf, or the smallest number, as a whole."""
    return (rows < -1e4).all(-1)


def masked_partly(rows: torch.Tensor) -> torch.Tensor:
    """Rows of which a part is masked."""
    masked = rows < -1e4
    return masked.any(-1) & ~masked.all(-1)


def zero(rows: torch.Tensor) -> torch.Tensor:
    """Rows of zeros."""
    return (rows == 0).all(-1)


def tied(rows: torch.Tensor) -> torch.Tensor:
    """Rows whose largest value occurs twice."""
    return (rows == rows.amax(-1, keepdim=True)).sum(-1) > 1


def repeats_values(rows: torch.Tensor) -> torch.Tensor:
    """Rows in which any value occurs twice."""
    ordered = rows.sort(-1).values
    return (ordered[:, 1:] == ordered[:, :-1]).any(-1)


def far_from_zero(rows: torch.Tensor) -> torch.Tensor:
    """Rows whose mean is many times their deviation."""
    return rows.mean(-1).abs() > _FAR_FROM_ZERO * rows.std(-1, unbiased=False)


def masked_rows_of(at: At) -> Condition:
    """A mask that leaves nothing of a row: no True, or -inf throughout."""

    def holds(one: torch.Tensor) -> bool:
        rows = as_rows(one)
        return bool(((~rows) if one.dtype is torch.bool else rows < -1e4).all(-1).any())

    return _of(at, holds)


def channels_far_from_zero(at: At = 0) -> Condition:
    """A channel (dimension 1) whose mean is many times its deviation."""

    def holds(one: torch.Tensor) -> bool:
        if not one.is_floating_point() or one.dim() < 2:
            return False
        return bool(far_from_zero(one.transpose(0, 1).reshape(one.shape[1], -1).double()).any())

    return _of(at, holds)


def odd_tail(at: At = 0, multiple: int = 8) -> Condition:
    """A last dimension that vectors do not fill, and more than one vector."""
    return _of(
        at, lambda one: one.dim() > 0 and one.shape[-1] > multiple and one.shape[-1] % multiple
    )


def number(at: At) -> Condition:
    """A tensor without dimensions."""
    return _of(at, lambda one: one.dim() == 0)


def single(at: At, dim: int) -> Condition:
    """A dimension of size 1."""
    return _of(at, lambda one: one.dim() > 1 and one.shape[dim] == 1)


def both_broadcast(one: At, other: At) -> Condition:
    """Each of two arguments is repeated along a dimension of the other."""

    def condition(call: KernelCall) -> bool:
        first, second = call.tensor(one), call.tensor(other)
        if first is None or second is None:
            return False
        out = torch.broadcast_shapes(first.shape, second.shape)
        return out not in (first.shape, second.shape)

    return condition


def dims(at: At, count: int) -> Condition:
    """A number of dimensions."""
    return _of(at, lambda one: one.dim() == count)


def argument(at: At, holds: Callable[[Any], bool]) -> Condition:
    """A fact of any argument."""
    return lambda call: holds(call.argument(at))


def not_contiguous(at: At = 0) -> Condition:
    """Any layout but that of a contiguous tensor."""
    return _of(at, lambda one: _dense(one) and not one.is_contiguous())


def _dense(one: torch.Tensor) -> bool:
    return one.layout is torch.strided


def _repeats(one: torch.Tensor) -> bool:
    return any(
        stride == 0 and size > 1 for stride, size in zip(one.stride(), one.shape, strict=True)
    )


def _strided_in_full(one: torch.Tensor) -> bool:
    """Return whether a tensor has all elements of a block of memory, in another order."""
    if not _dense(one) or one.is_contiguous():
        return False
    extents = sorted(
        (stride, size) for stride, size in zip(one.stride(), one.shape, strict=True) if size > 1
    )
    expected = 1
    for stride, size in extents:
        if stride != expected:
            return False
        expected *= size
    return True
