"""What is said of a tensor's values: Max, Min, Mean and Norm as msprobe defines them, checksums, structure.

Comes in: a dense tensor. Goes out: fields of its record. Called by the recorder, for each tensor that was
not seen before. A tensor without values (meta, empty, fp8) has no statistics.

msprobe 26.2 (`pytorch_processor.get_stat_info`): bool tensors have any and all, 0-d tensors their value
four times, complex ones the statistics of the absolute values without a norm; integers and float64 have
neither Mean nor Norm. `md5` adds the CRC-32 of the contiguous bytes to the statistics; `xor` has, in their
place, the exclusive or of the bytes. Both stand in the field `md5`.

On the CPU numpy finds the ends in the tensor's own memory, in two thirds of the time that torch takes for
both. The sums are float32 as torch's, and float64 where those overflow; large ones are torch's own, since
the linear algebra of numpy would wake a thread on each core.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from ray_precheck.capture.pytorch.tensors.memory import array_of, borrowed_array, covers_memory
from ray_precheck.capture.recording.measures import (
    chosen_part,
    crc32_text,
    structure_field,
    xor_text,
)
from ray_precheck.capture.settings import TensorSlice
from ray_precheck.capture.writing.elements import statistics_text
from ray_precheck.numerics.arrays import pieces
from ray_precheck.numerics.statistics import TensorSummary

# Values whose squares may vanish or overflow in float32 although they are finite.
_SMALL, _LARGE = 1e-30, 1e37
_PIECE = 1 << 17  # 512 KiB of float32: they stay in the second level's cache of a core
_FEW = 1 << 13  # OpenBLAS, which numpy has, uses threads for products of more than 10,000 elements
_ONES = np.ones(_FEW, np.float32)
_highest, _lowest = np.maximum.reduce, np.minimum.reduce
_WIDENED = frozenset({torch.float16, torch.bfloat16})
WITHOUT_VALUES = frozenset(
    dtype
    for name in dir(torch)
    if name.startswith(("float8", "float4", "bits", "uint1", "uint2", "uint3", "int1", "int2"))
    and isinstance(dtype := getattr(torch, name), torch.dtype)
    and name not in ("int16", "uint16")
)
# The largest and the smallest value, the sum and the sum of squares.
_Found: TypeAlias = tuple[float, float, float, float]


def host_summary(tensor: torch.Tensor) -> TensorSummary | None:
    """Return the statistics of a tensor on the CPU; None where it has no values to look at."""
    dtype = tensor.dtype
    if dtype in WITHOUT_VALUES or not tensor.numel():
        return None
    if dtype is torch.float32 or dtype in _WIDENED:
        return _of_float_tensor(tensor)
    if dtype is torch.complex32:  # which NumPy does not have
        tensor = tensor.to(torch.complex64)
    if dtype.is_complex or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    flat, _ = flat_memory(tensor)
    values = array_of(flat)
    if dtype.is_complex:
        return _of_complex(values, tensor.dim())
    top, bottom = values.max().item(), values.min().item()
    if dtype is torch.bool:
        return TensorSummary(top, bottom)
    return TensorSummary(top, bottom) if tensor.dim() else TensorSummary.of_single(top)


def _of_float_tensor(tensor: torch.Tensor) -> TensorSummary:
    if not tensor.dim():
        value = tensor.item()
        return TensorSummary.of_single(value)
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    is_simple = tensor.dtype is torch.float32 and tensor.is_contiguous()
    if is_simple and tensor.numel() <= _FEW:
        return _of_floats(tensor, 1)  # no need for a vector
    flat, repeated = flat_memory(tensor)
    # A vector may have gaps.
    return _of_floats(flat if is_simple else flat.float().contiguous(), repeated)


def flat_memory(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a tensor's values as a vector in the order of its memory, and how often each occurs.

    A transposed tensor is not copied; of an expanded one each value is looked at once.
    """
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_contiguous():
        return tensor.view(-1), 1
    repeated = 1
    if 0 in tensor.stride():
        for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            if not stride and size > 1:
                tensor = tensor.narrow(dim, 0, 1)
                repeated *= size
    if covers_memory(tensor.shape, tensor.stride()):
        return tensor.as_strided((tensor.numel(),), (1,)), repeated
    return tensor.reshape(-1), repeated


def _of_floats(flat: torch.Tensor, repeated: int) -> TensorSummary:
    """Return the statistics of contiguous float32 values, read once in pieces that stay in the core's
    cache; few of them may have any shape.

    Each piece is summed in float32, the pieces in float64, so that the error does not grow with the size
    of the tensor.
    """
    values = borrowed_array(flat)
    size = values.size
    if size <= _FEW:
        found = _of_few(values)
    elif size <= _PIECE:
        found = _of_piece(flat, values)
    else:
        found = _of_pieces(flat, values)
    if found is None:
        return TensorSummary(*_wide_ends(values), *_wide_sums(values, repeated))
    top, bottom, total, squares = found
    return TensorSummary(top, bottom, total / size, math.sqrt(squares * repeated))


def _of_pieces(flat: torch.Tensor, values: np.ndarray[Any, Any]) -> _Found | None:
    top, bottom, total, squares = -math.inf, math.inf, 0.0, 0.0
    for place in pieces(values.size, _PIECE):
        piece = values[place]
        found = _of_piece(flat.narrow(0, place.start, piece.size), piece)
        if found is None:
            return None
        top, bottom = max(top, found[0]), min(bottom, found[1])
        total += found[2]
        squares += found[3]
    return top, bottom, total, squares


def _of_piece(flat: torch.Tensor, values: np.ndarray[Any, Any]) -> _Found | None:
    """Return what is found in a piece; None where float32 does not hold the sum of squares.

    The product comes first, because it waits least for values that are not in the cache yet.
    """
    squares, total = torch.dot(flat, flat).item(), flat.sum().item()
    if not _SMALL < squares < _LARGE and squares:
        return None
    highest, lowest = float(_highest(values)), float(_lowest(values))
    return None if not squares and (highest or lowest) else (highest, lowest, total, squares)


def _of_few(values: np.ndarray[Any, Any]) -> _Found | None:
    """Return the same of a few values: a product with ones takes a quarter of the time of numpy's `sum`."""
    highest, lowest = float(_highest(values)), float(_lowest(values))
    if not (lowest > -_LARGE and highest < _LARGE):
        return None
    squares = float(np.dot(values, values))
    if not _SMALL < squares < _LARGE and (highest or lowest):
        return None
    return highest, lowest, float(np.dot(values, _ONES[: values.size])), squares


def _wide_ends(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return the largest and the smallest value, NaN where one of them is NaN."""
    return float(_highest(values)), float(_lowest(values))


def _wide_sums(values: np.ndarray[Any, Any], repeated: int) -> tuple[float, float]:
    """Return mean and norm by sums in float64."""
    # The script may have asked for exceptions, and what is in new memory may be a signalling NaN.
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        if wide.size <= _FEW:
            squares = float(np.dot(wide, wide))
        else:  # numpy's product would wake threads, which then wait for more in a busy loop
            flat = torch.from_numpy(wide).reshape(-1)
            squares = torch.dot(flat, flat).item()
        return float(np.add.reduce(wide)) / values.size, math.sqrt(squares * repeated)


def _of_complex(values: np.ndarray[Any, Any], dim: int) -> TensorSummary:
    # The script may have made errors of warnings.
    with np.errstate(all="ignore"):
        sizes = np.abs(values)
        if not dim:
            return TensorSummary(sizes.item(), sizes.item(), sizes.item())
        mean = sizes.mean(dtype=np.float64)
        return TensorSummary(sizes.max().item(), sizes.min().item(), mean.item())


def values_look(summary_mode: str) -> tuple[Callable[[torch.Tensor], str], bool]:
    """Return the function that says what a tensor's values are, and whether their order matters to it."""
    if summary_mode == "md5":
        return _with_checksum, True
    if summary_mode == "xor":
        return _words_text, True
    return statistics, False


def statistics(tensor: torch.Tensor) -> str:
    """Return the largest and the smallest value, mean and norm of a tensor, as far as its dtype has them."""
    return statistics_text(host_summary(tensor))


def structure(tensor: torch.Tensor, look: str | None, nan: bool) -> str:
    """Return the field that tells of the structure of a dense tensor on the CPU; `nan`: it has NaN."""
    if tensor.dtype in WITHOUT_VALUES or not tensor.numel():
        return ""
    tensor = tensor.detach().resolve_neg()
    if tensor.dtype is torch.bfloat16:
        bits = array_of(tensor.view(torch.int16))
        return structure_field(lambda at: _widened(bits[at]), bits.shape, "f", look, nan)
    values = array_of(tensor)
    if values.dtype == np.float16:
        return structure_field(
            lambda at: values[at].astype(np.float32), values.shape, "f", look, nan
        )
    return structure_field(lambda at: values[at], values.shape, values.dtype.kind, look, nan)


def _widened(bits: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return the numbers that the bits of bfloat16 stand for, in float32."""
    wide: np.ndarray[Any, Any] = np.atleast_1d(bits).astype(np.uint16).astype(np.uint32)
    return np.asarray(np.left_shift(wide, np.uint32(16)).view(np.float32))


def _with_checksum(tensor: torch.Tensor) -> str:
    return f'{statistics(tensor)}, "md5": {crc32_text(bytes_of(tensor))}'


def _words_text(tensor: torch.Tensor) -> str:
    return f'"md5": {xor_text(bytes_of(tensor), None if tensor.dim() else tensor.item())}'


def bytes_of(tensor: torch.Tensor) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Return the bytes of a tensor's values, in the order of its elements."""
    values = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return array_of(values.reshape(-1).view(torch.uint8))


def sliced(tensor: torch.Tensor, slices: Sequence[TensorSlice]) -> torch.Tensor:
    """Return the part of a tensor that is looked at and saved; the whole where no slice fits.

    A slice is left out for a tensor that lacks the dimension, or has another size there.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return tensor
    index = chosen_part(tensor.shape, slices)
    if index is None:
        return tensor
    with torch._C.DisableTorchFunction():
        found = tensor.detach()[index]
        return found.requires_grad_() if tensor.requires_grad else found
