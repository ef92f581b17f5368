"""Inputs that lie in memory as they did in the captured program.

Comes in: the tensors of a call, and what its record says of their memory. Goes out: the same tensors, each
with its `Layout`. Called by `check` for the arguments of a call, and by `inputs.generate`.

Elements of several tensors, or of one that is expanded, may lie in one place of the memory. Their values are
made the same here, once, so that the tested side and the bench get the same numbers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import HostTensor, Layout, TensorSpec

# Offsets and steps keep their remainder, by which kernels choose how many elements they load at once.
_ALIGNMENT = 64
# A buffer may have so many times the elements of its tensors, or this many: a slice of a cache for all
# positions of a model does not bring the whole cache.
_MOST_TIMES, _ALWAYS = 8, 1 << 16
# The numbers of dimensions of tensors that have their channels last.
_CHANNELS_LAST = (4, 5)


@dataclass(frozen=True, slots=True)
class Memory:
    """A buffer of `extent` elements, with the position, steps and offset of each tensor in it."""

    members: tuple[tuple[int, tuple[int, ...], int], ...]
    extent: int
    overlaps: bool


def memories_of(specs: Sequence[tuple[str, TensorSpec]]) -> tuple[list[Memory], list[str]]:
    """Return the buffers that tensors need, and the paths of those whose layout cannot be had.

    Tensors that are contiguous in a memory of their own need none.
    """
    if not any(spec.stride is not None or spec.offset or spec.shares for _, spec in specs):
        return [], []
    places = {path: place for place, (path, _) in enumerate(specs)}
    first: list[int] = []
    for place, (_, spec) in enumerate(specs):
        first.append(first[places[spec.shares]] if spec.shares else place)
    found, lost = [], []
    for root in dict.fromkeys(first):
        group = [place for place, start in enumerate(first) if start == root]
        alike = [p for p in group if specs[p][1].dtype == specs[root][1].dtype and specs[p][1].size]
        memory = _memory([(place, specs[place][1]) for place in alike])
        if memory is None or len(alike) < sum(specs[place][1].size > 0 for place in group):
            lost += [specs[place][0] for place in group]
        elif memory.extent:
            found.append(memory)
    return found, lost


def _memory(group: Sequence[tuple[int, TensorSpec]]) -> Memory | None:
    """Return the buffer of tensors of one dtype, with no extent where they need none; None where it would
    be too large."""
    base = min((spec.offset for _, spec in group), default=0) // _ALIGNMENT * _ALIGNMENT
    members = [(place, stride_of(spec), spec.offset - base) for place, spec in group]
    sizes = {place: spec.shape for place, spec in group}
    if len(members) == 1:
        ((place, stride, offset),) = members
        if not offset and group[0][1].stride is None:
            return Memory((), 0, overlaps=False)
        stride, overlaps = _closed_up(sizes[place], stride)
        members = [(place, stride, offset)]
    else:
        overlaps = True
    extent = max((offset + _span(sizes[at], steps) for at, steps, offset in members), default=0)
    if extent > max(_MOST_TIMES * sum(spec.size for _, spec in group), _ALWAYS):
        return None
    return Memory(tuple(members), extent, overlaps)


def stride_of(spec: TensorSpec) -> tuple[int, ...]:
    """Return the steps of a tensor: the recorded ones, or those of a contiguous tensor."""
    return spec.stride if spec.stride is not None else row_major(spec.shape)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the steps of a contiguous tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return the elements from the first to the last one of a tensor that has some."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _closed_up(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """Return steps without the wide gaps between the rows of a tensor, and whether elements of it lie in
    one place."""
    steps, block, overlaps = list(stride), 1, False
    for axis in sorted(range(len(shape)), key=lambda axis: stride[axis]):
        if shape[axis] > 1:
            gap = stride[axis] - block
            overlaps = overlaps or gap < 0
            if gap > max(block, _ALIGNMENT):
                steps[axis] = block + gap % _ALIGNMENT
            block += (shape[axis] - 1) * steps[axis]
    return tuple(steps), overlaps


def placed_together(
    tensors: Sequence[HostTensor], specs: Sequence[tuple[str, TensorSpec]], *, may_change: bool
) -> tuple[list[HostTensor], list[str]]:
    """Return the tensors of a call with their layouts, and the paths of those whose layout cannot be had.

    Where elements lie in one place the value of the first tensor counts, and of an expanded one the value
    of the last element. Unless their values `may_change`, because they were generated, tensors that
    contradict the layout have none.
    """
    found = [
        replace(tensor, lazy=spec.lazy) if spec.lazy else tensor
        for tensor, (_, spec) in zip(tensors, specs, strict=True)
    ]
    memories, lost = memories_of(specs)
    for memory in memories:
        buffer = _filled(found, memory)
        views = {at: _view(buffer, found[at], step, start) for at, step, start in memory.members}
        if memory.overlaps and not may_change and not _hold(found, views):
            lost += [specs[place][0] for place in views]
            continue
        for place, stride, offset in memory.members:
            data = np.array(views[place], order="C") if memory.overlaps else found[place].data
            found[place] = replace(found[place], data=data, layout=Layout(stride, offset, buffer))
    return found, lost


def _filled(tensors: Sequence[HostTensor], memory: Memory) -> Array:
    first = tensors[memory.members[0][0]]
    buffer = np.zeros(memory.extent, first.data.dtype)
    for place, stride, offset in reversed(memory.members):
        _view(buffer, tensors[place], stride, offset)[...] = tensors[place].data
    return buffer


def _view(buffer: Array, tensor: HostTensor, stride: tuple[int, ...], offset: int) -> Array:
    steps = [step * buffer.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(buffer[offset:], tensor.shape, steps)


def _hold(tensors: Sequence[HostTensor], views: dict[int, Array]) -> bool:
    """Return whether the memory holds the values of all its tensors."""
    return all(
        np.array_equal(view, tensors[place].data, equal_nan=view.dtype.kind in "fc")
        for place, view in views.items()
    )


def placed_alone(tensor: HostTensor, spec: TensorSpec, *, may_change: bool) -> HostTensor:
    """Return a tensor with the layout that its record says, if it has the recorded shape."""
    if (spec.stride is None and not spec.offset) or tensor.shape != spec.shape:
        return tensor
    alone = replace(spec, dtype=tensor.dtype, shares="")
    return placed_together([tensor], [("", alone)], may_change=may_change)[0][0]


def transposed(tensor: HostTensor) -> HostTensor:
    """Return a tensor with the same values and its dimensions in another order in memory: reversed, of
    images the channels last. One with a layout, or with no other order, stays as it is."""
    if tensor.storage is not None:
        return tensor
    axes = list(range(tensor.data.ndim))
    order = [axes[0], *axes[2:], axes[1]] if len(axes) in _CHANNELS_LAST else axes[::-1]
    found = _reordered(tensor, order)
    return found if found is not tensor else _reordered(tensor, axes[::-1])


def _reordered(tensor: HostTensor, order: list[int]) -> HostTensor:
    wide = [axis for axis in order if tensor.shape[axis] > 1]
    if wide == sorted(wide) or tensor.layout is not None or not tensor.data.size:
        return tensor
    steps = row_major([tensor.shape[axis] for axis in order])
    stride = tuple(steps[order.index(axis)] for axis in range(len(order)))
    buffer = np.ascontiguousarray(tensor.data.transpose(order)).reshape(-1)
    return replace(tensor, layout=Layout(stride, 0, buffer))


def buffers_of(record: ApiRecord) -> Iterator[TensorSpec]:
    """Yield the buffers that the layouts of a call's inputs and incoming gradients need, as tensors."""
    incoming = [("", spec) for spec in record.grads_in or () if isinstance(spec, TensorSpec)]
    for specs in (list(record.input_tensors()), *([each] for each in incoming)):
        for memory in memories_of(specs)[0]:
            yield TensorSpec(specs[memory.members[0][0]][1].dtype, (memory.extent,))
