"""What is said of a tensor's values, as the configuration chooses.

Comes in: a dense tensor. Goes out: fields of its record. Called by the recorder, for each tensor that was
not seen before.

As msprobe 26.2 has it: `md5` adds the CRC-32 of the contiguous bytes to the statistics; `xor` has, in their
place, the exclusive or of the bytes. Both stand in the field `md5`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ray_precheck.capture.measures.checksums import crc32_text, xor_text
from ray_precheck.capture.measures.part import chosen_part
from ray_precheck.capture.measures.structure import structure_field
from ray_precheck.capture.pytorch.tensors.memory import array_of
from ray_precheck.capture.pytorch.tensors.summary import WITHOUT_VALUES, host_summary
from ray_precheck.capture.settings import TensorSlice
from ray_precheck.capture.writing.elements import statistics_text


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
