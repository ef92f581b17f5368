"""What is said of a tensor's values: Max, Min, Mean and Norm as msprobe defines them, checksums, structure.

Comes in: a dense tensor. Goes out: fields of its record, at once on the CPU; on an accelerator a mark, which
stands in the record until the statistics have arrived on the host. Called by the recorder, for each tensor
that was not seen before. A tensor without values (meta, empty, fp8) has no statistics.

msprobe 26.2 (`pytorch_processor.get_stat_info`): bool tensors have any and all, 0-d tensors their value
four times, complex ones the statistics of the absolute values without a norm; integers and float64 have
neither Mean nor Norm. `md5` adds the CRC-32 of the contiguous bytes to the statistics; `xor` has, in their
place, the exclusive or of the bytes. Both stand in the field `md5`.

An accelerator computes a handful of scalars for each tensor, in its own order between the program's kernels.
They travel in batches: a batch is copied into pinned memory without blocking, and read when its event has
passed. Nothing waits inside a step but for the last batch, at the step's end. Not run on an accelerator here:
the tests drive the same code with tensors on the CPU.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import orjson
import torch

from ray_precheck.capture.pytorch.tensors.memory import (
    array_of,
    borrowed_array,
    covers_memory,
)
from ray_precheck.capture.pytorch.tensors.sums import KINDS, sums_of
from ray_precheck.capture.recording.measures import (
    array_structure,
    chosen_part,
    crc32_text,
    structure_field,
    xor_text,
)
from ray_precheck.capture.settings import TensorSlice
from ray_precheck.capture.writing.elements import NO_STATISTICS, statistics_text
from ray_precheck.numerics.statistics import FIELDS, MAX, MEAN, MIN, NORM, TensorSummary

WITHOUT_VALUES = frozenset(
    dtype
    for name in dir(torch)
    if name.startswith(("float8", "float4", "bits", "uint1", "uint2", "uint3", "int1", "int2"))
    and isinstance(dtype := getattr(torch, name), torch.dtype)
    and name not in ("int16", "uint16")
)
# A character that JSON escapes, so that it stands in no record's text.
MARK = "\0"
_MARKED = re.compile("\0([0-9]+)\0")
_BATCH = 1024
_Key: TypeAlias = tuple[torch.device, torch.dtype]
Words: TypeAlias = Callable[[list[Any]], str]


def host_summary(tensor: torch.Tensor) -> TensorSummary | None:
    """Return the statistics of a tensor on the CPU; None where it has no values to look at."""
    dtype = tensor.dtype
    if dtype in WITHOUT_VALUES or not tensor.numel():
        return None
    if dtype in KINDS:
        return _of_float_tensor(tensor)
    if dtype is torch.complex32:  # which NumPy does not have
        tensor = tensor.to(torch.complex64)
    if dtype.is_complex or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    flat, _ = _flat_memory(tensor)
    values = array_of(flat)
    if dtype.is_complex:
        return _of_complex(values, tensor.dim())
    top, bottom = values.max().item(), values.min().item()
    if dtype is torch.bool:
        return TensorSummary(top, bottom)
    return TensorSummary(top, bottom) if tensor.dim() else TensorSummary.of_single(top)


def _of_float_tensor(tensor: torch.Tensor) -> TensorSummary:
    if not tensor.dim():
        return TensorSummary.of_single(tensor.item())
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    flat, repeated = _flat_memory(tensor)
    flat = flat.contiguous()  # a vector may have gaps
    top, bottom, total, squares = sums_of(flat)
    return TensorSummary(top, bottom, total / flat.numel(), math.sqrt(squares * repeated))


def _flat_memory(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
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
    if (
        tensor.dtype is torch.float32
        and tensor.is_contiguous()
        and tensor.dim()
        and tensor.numel()
        and not tensor.is_neg()
    ):
        return statistics_of_floats(tensor)
    return statistics_text(host_summary(tensor))


def statistics_of_floats(tensor: torch.Tensor) -> str:
    """Return the same of contiguous float32 values with dimensions and without a lazy negative, without the
    questions of `host_summary`, which take 2 us."""
    top, bottom, total, squares = sums_of(tensor)
    text = orjson.dumps(
        {MAX: top, MIN: bottom, MEAN: total / tensor.numel(), NORM: math.sqrt(squares)}
    )
    if b"null" not in text:
        return text.decode()[1:-1]
    return statistics_text(host_summary(tensor))


def structure(tensor: torch.Tensor, look: str | None, nan: bool) -> str:
    """Return the field that tells of the structure of a dense tensor on the CPU; `nan`: it has NaN."""
    if tensor.dtype in WITHOUT_VALUES or not tensor.numel():
        return ""
    if tensor.dtype is torch.float32 and tensor.is_contiguous() and not tensor.is_neg():
        # A quarter of the time of what follows.
        return array_structure(borrowed_array(tensor).reshape(tensor.shape), look, nan)
    tensor = tensor.detach().resolve_neg()
    if tensor.dtype is torch.bfloat16:
        bits = array_of(tensor.view(torch.int16))
        return structure_field(lambda at: _widened(bits[at]), bits.shape, "f", look, nan)
    return array_structure(array_of(tensor), look, nan)


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


class _Layout(NamedTuple):
    """Where the numbers of a mark lie in its batch: among those of `key`, from `start`; and the words
    that are made of them."""

    number: int
    key: _Key
    start: int
    length: int
    words: Words


class _Batch(NamedTuple):
    layouts: list[_Layout]
    numbers: dict[_Key, torch.Tensor]
    events: list[Any]


class DeviceValues:
    """Statistics that arrive later, and the records that wait for them."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._layouts: list[_Layout] = []
        self._vectors: dict[_Key, list[torch.Tensor]] = {}
        self._lengths: dict[_Key, int] = {}
        self._under_way: deque[_Batch] = deque()
        self._texts: dict[int, str] = {}
        self._records: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._next = 0

    def text(self, tensor: torch.Tensor) -> str:
        """Return the mark of a tensor's statistics."""
        dtype = tensor.dtype
        if dtype in WITHOUT_VALUES or not tensor.numel():
            return NO_STATISTICS
        tensor = tensor.detach()
        if dtype.is_complex:
            scalars = _float_scalars(tensor.abs())[:3]
        elif dtype.is_floating_point:
            scalars = _float_scalars(tensor)
        else:
            scalars = _integer_scalars(tensor)
        return self.later(torch.stack(scalars), _truths if dtype is torch.bool else _statistics)

    def later(self, numbers: torch.Tensor, words: Words) -> str:
        """Return a mark for what `words` makes of a vector on a device, once it has arrived."""
        number, self._next = self._next, self._next + 1
        key = (numbers.device, numbers.dtype)
        start = self._lengths.get(key, 0)
        self._vectors.setdefault(key, []).append(numbers)
        self._lengths[key] = start + numbers.numel()
        self._layouts.append(_Layout(number, key, start, numbers.numel(), words))
        if len(self._layouts) >= _BATCH:
            self._send()
            self._receive(wait=False)
        return f"{MARK}{number}{MARK}"

    def record(self, fields: str, *rest: Any) -> None:
        """Write a record when the statistics in it have arrived; `rest` is handed through."""
        self._records.append((fields, rest))

    def finish(self) -> None:
        """Wait for everything, and write all records."""
        self._send()
        self._receive(wait=True)

    def _send(self) -> None:
        """Let the numbers that are there travel to the host."""
        if not self._layouts:
            return
        sent, events = {}, []
        for key, vectors in self._vectors.items():
            together = torch.cat(vectors)
            if together.device.type != "cpu":
                together = _pinned(together)
                events.append(torch.get_device_module(key[0]).Event())
                events[-1].record()
            sent[key] = together
        self._under_way.append(_Batch(self._layouts, sent, events))
        self._layouts, self._vectors, self._lengths = [], {}, {}

    def _receive(self, *, wait: bool) -> None:
        """Take what has arrived, in the order of the batches, and write the records that it completes."""
        while self._under_way:
            batch = self._under_way[0]
            if wait:
                for event in batch.events:
                    event.synchronize()
            elif not all(event.query() for event in batch.events):
                break
            self._under_way.popleft()
            self._take(batch)
        while self._records:
            fields, rest = self._records[0]
            wanted = [int(number) for number in _MARKED.findall(fields)]
            if not all(number in self._texts for number in wanted):
                break
            self._records.popleft()
            self._write(_MARKED.sub(lambda found: self._texts[int(found[1])], fields), *rest)

    def _take(self, batch: _Batch) -> None:
        arrived = {key: numbers.tolist() for key, numbers in batch.numbers.items()}
        for layout in batch.layouts:
            numbers = arrived[layout.key][layout.start : layout.start + layout.length]
            self._texts[layout.number] = layout.words(numbers)


def _statistics(numbers: list[Any]) -> str:
    return statistics_text(TensorSummary(*numbers))


def _truths(numbers: list[Any]) -> str:
    return statistics_text(TensorSummary(*(bool(number) for number in numbers)))


def _float_scalars(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return largest, smallest, mean and norm in float32; a tensor without dimensions has its value four
    times, one of float64 the first two, in float64."""
    if tensor.dtype is torch.float64:
        return list(torch.aminmax(tensor))[::-1] if tensor.dim() else [tensor] * len(FIELDS)
    if not tensor.dim():
        return [tensor.to(torch.float32)] * len(FIELDS)
    low, high = torch.aminmax(tensor)
    norm = torch.linalg.vector_norm(tensor, dtype=torch.float32)
    mean = tensor.mean(dtype=torch.float32)
    return [high.to(torch.float32), low.to(torch.float32), mean, norm]


def _integer_scalars(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.dtype is torch.bool:
        return [tensor.any().to(torch.int64), tensor.all().to(torch.int64)]
    if not tensor.dim():
        return [tensor.to(torch.int64)] * len(FIELDS)
    return [tensor.max().to(torch.int64), tensor.min().to(torch.int64)]


def _pinned(values: torch.Tensor) -> torch.Tensor:
    """Return a copy in the host's memory that arrives while the program goes on."""
    target = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return target.copy_(values, non_blocking=True)
