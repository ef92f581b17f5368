"""Statistics of tensors on an accelerator, without waiting for it.

Comes in: tensors, in the order in which a program uses them. Goes out: a mark for each, which stands in a
record until the statistics have arrived on the host. Called by the recorder for tensors that are not on
the CPU.

The device computes a handful of scalars for each tensor, in its own order between the program's kernels.
They travel in batches: a batch is copied into pinned memory without blocking, and read when its event has
passed. Nothing waits inside a step but for the last batch, at the step's end.

Not run on an accelerator here: the tests drive the same code with tensors on the CPU.
"""

import re
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

from ray_precheck.capture.pytorch.tensors.values import WITHOUT_VALUES
from ray_precheck.capture.writing.elements import NO_STATISTICS, statistics_text
from ray_precheck.numerics.statistics import FIELDS, TensorSummary

# A character that JSON escapes, so that it stands in no record's text.
MARK = "\0"
_MARKED = re.compile("\0([0-9]+)\0")
_BATCH = 1024


_Key: TypeAlias = tuple[torch.device, torch.dtype]
Words: TypeAlias = Callable[[list[Any]], str]


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
