"""Values in a layout of Ascend's devices, brought into that of the model.

Comes in: an array, and what the graph says of its tensor. Goes out: the array in the model's layout. Called
by `precision_tool`. The layouts are those of CANN's documentation ("data layout formats"): `NC1HWC0` holds
the channels in blocks of C0; `FRACTAL_NZ` a matrix in blocks of 16 x 16, column of blocks by column;
`FRACTAL_Z` weights in blocks of channels on both sides. All are padded with zeros.
"""

from collections.abc import Callable

import numpy as np

from ray_precheck.formats.ge_graph import GraphTensor
from ray_precheck.schema.dtypes import Array

_CHANNELS_FIRST = "NCHW"


def is_of_the_device(tensor: GraphTensor | None) -> bool:
    """Return whether a tensor is in a layout that `in_layout_of_the_model` brings into another one."""
    return tensor is not None and tensor.layout in _LAYOUTS and bool(tensor.origin_shape)


def in_layout_of_the_model(values: Array, tensor: GraphTensor | None) -> Array:
    """Return the values in the layout of the model where they are in one of the device that is known, and
    fit the shape that the graph has; else as they are."""
    if tensor is None or not tensor.origin_shape or values.shape == tensor.origin_shape:
        return values
    convert = _LAYOUTS.get(tensor.layout)
    if convert is None or min(tensor.origin_shape) < 0:
        return values
    try:
        found = convert(values, tensor.origin_layout, tensor.origin_shape)
    except (ValueError, IndexError, KeyError, ZeroDivisionError):
        return values
    return np.ascontiguousarray(found) if found.shape == tensor.origin_shape else values


def _from_blocks_of_channels(values: Array, layout: str, shape: tuple[int, ...]) -> Array:
    batch, blocks, height, width, size = values.shape
    found = values.transpose(0, 1, 4, 2, 3).reshape(batch, blocks * size, height, width)
    return _of_channels(found, layout, shape)


def _from_blocks_of_weights(values: Array, layout: str, shape: tuple[int, ...]) -> Array:
    """`(C1 H W, N1, N0, C0)`, where H and W are those of the model."""
    places, outs, out_size, size = values.shape
    sizes = dict(zip(layout, shape, strict=True))
    height, width = sizes["H"], sizes["W"]
    blocks = places // (height * width)
    found = values.reshape(blocks, height, width, outs, out_size, size).transpose(3, 4, 0, 5, 1, 2)
    return _of_channels(found.reshape(outs * out_size, blocks * size, height, width), layout, shape)


def _of_channels(values: Array, layout: str, shape: tuple[int, ...]) -> Array:
    """Cut the padding of `(N, C, H, W)`, and bring it into the layout."""
    if sorted(layout) != sorted(_CHANNELS_FIRST):
        raise ValueError(layout)
    sizes = dict(zip(layout, shape, strict=True))
    kept = values[: sizes["N"], : sizes["C"]]
    return kept.transpose([_CHANNELS_FIRST.index(axis) for axis in layout])


def _from_blocks_of_a_matrix(values: Array, layout: str, shape: tuple[int, ...]) -> Array:
    *outer, columns, rows, row_size, column_size = values.shape
    order = (*range(len(outer)), *(len(outer) + each for each in (1, 2, 0, 3)))
    found = values.transpose(order).reshape(*outer, rows * row_size, columns * column_size)
    return found[..., : shape[-2], : shape[-1]]


_LAYOUTS: dict[str, Callable[[Array, str, tuple[int, ...]], Array]] = {
    "NC1HWC0": _from_blocks_of_channels,
    "FRACTAL_Z": _from_blocks_of_weights,
    "FRACTAL_NZ": _from_blocks_of_a_matrix,
}
