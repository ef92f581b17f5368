"""Tensors that are written in the quickest way that there is, most of those that a capture meets.

Comes in: a tensor, or those of one list, as the parameters, gradients and states that an optimizer gets. Goes
out: the fields of each, as `TensorTexts.fields` has them, with statistics that are bit by bit those of
`values.statistics`; "" for a tensor that needs another look. Called by the recorder for each tensor of each
call, and for the elements of such a list.

The extension (`numerics/_texts.c`) writes float32 and half types on the CPU, of any size that lie in one
piece of memory, and smaller ones of other strides; the statistics of up to 32,768 float32 take less time than
to know them again. Where it was not built, `SmallTensors` writes float32 tensors of up to 8,192 values.
"""

import math
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import orjson
import torch

from ray_precheck.capture.pytorch.tensors.memory import covers_memory
from ray_precheck.capture.pytorch.tensors.sums import KINDS
from ray_precheck.capture.pytorch.tensors.text import TENSORS, header_text, needs_text
from ray_precheck.capture.pytorch.tensors.values import statistics, statistics_of_floats
from ray_precheck.capture.writing.elements import statistics_text
from ray_precheck.numerics.one_pass import COMPILED
from ray_precheck.numerics.statistics import FIELDS, TensorSummary

MORE = "\0"
Met = Callable[[torch.Tensor], object]
# What tells small tensors from others, and their texts from each other, but for what lies in the memory.
_facts_of = operator.attrgetter("dtype", "layout", "is_cpu", "shape", "requires_grad")
_SMALL = torch.float32, torch.strided, True
# What is raised where a tensor has no memory, or no shape of numbers: a symbol has no hash.
_WITHOUT_MEMORY = RuntimeError, NotImplementedError, TypeError
# So many bytes are looked at in the time that it takes to know them again; numpy needs longer.
LOOKED_AT_BYTES, SMALL_BYTES = 1 << 17, 1 << 15
# Of so many values that do not lie side by side a copy takes less time than to know them again.
_MOST_COPIED = 1 << 16
_LABELS = tuple(f'{"," if place else ""}"{name}":'.encode() for place, name in enumerate(FIELDS))


class QuickTexts(Protocol):
    """What writes most tensors; `met` is called with each that is looked at, and not known."""

    def fields(self, tensor: torch.Tensor, met: Met | None, /) -> str:
        """Return the fields of a tensor, or ""."""

    def fields_of_many(self, values: Sequence[Any], /) -> list[str]:
        """Return the fields of each value, or ""."""

    def forget(self, tensor: torch.Tensor, /) -> None:
        """Forget what shares the memory of a tensor."""

    def forget_all(self) -> None:
        """Forget all that is known of memory."""


def quick_texts(
    look: Callable[[torch.Tensor], str] | None = None,
    take: Callable[..., str | None] | None = None,
) -> QuickTexts | None:
    """Return what writes the tensors of a step; None where nothing is quick.

    Where `look` is given it says of a tensor its statistics, and behind `MORE` what follows the other fields
    and depends on the order of the values: such text stands behind `MORE` in what is written, too. `take`
    says this of what the extension has found in a tensor, None where `look` is needed (`Sketching.take`).
    """
    if COMPILED is None:
        return SmallTensors() if look is None else None
    small = LOOKED_AT_BYTES if look is None else 0
    texts: QuickTexts = COMPILED.Texts(
        tuple(TENSORS), _kind, _stride_text, orjson.dumps, _words, _LABELS, small, look, take
    )
    return texts


def _kind(tensor: torch.Tensor) -> tuple[bytes, bytes, int, int, int, int] | None:
    """Return what stands before and behind the statistics of tensors that are alike, how they are stored,
    their number of values, bytes and dimensions; None where the extension does not write them."""
    kind = KINDS.get(tensor.dtype)
    count = tensor.numel()
    if kind is None or tensor.layout is not torch.strided or not tensor.is_cpu or not count:
        return None
    before, behind = header_text("torch.Tensor", tensor), needs_text(tensor)
    return f"{before}, ".encode(), f", {behind}".encode(), kind, count, tensor.nbytes, tensor.dim()


def _stride_text(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[bytes, bytes] | None:
    """Return the field of the strides of a tensor, and how its values lie where it does not take one piece
    of memory (`_texts.c` says in which order); None for one whose many values are to be known again.

    Of an expanded tensor each value is looked at once, as `values.host_summary` does.
    """
    text = f', "stride": {list(stride)}'.encode()
    if covers_memory(shape, stride):
        return text, b""
    sizes = [1 if not step else size for size, step in zip(shape, stride, strict=True)]
    count = math.prod(sizes)
    is_copied = not covers_memory((*sizes,), stride)
    if is_copied and count > _MOST_COPIED:
        return None
    plan = (math.prod(shape) // count, count, int(is_copied), *sizes, *stride)
    return text, struct.pack(f"={len(plan)}q", *plan)


def _words(*numbers: float) -> str:
    return statistics_text(TensorSummary(*numbers))


class _Kind(NamedTuple):
    """What stands before and behind the statistics of tensors that are alike, and whether they are small."""

    before: str
    behind: str
    is_small: bool


_OTHER = _Kind("", "", False)


class SmallTensors:
    """Writes small tensors.

    Those are contiguous float32 of torch's own classes on the CPU, whose memory is there: what a transform of
    torch.func has wrapped has none, and a nested tensor has no shape.
    """

    def __init__(self) -> None:
        self._kinds: dict[object, _Kind] = {}

    def fields(self, tensor: torch.Tensor, met: Met | None, /) -> str:
        """Return the fields of a tensor, "" of one that is not small.

        All in one piece: each tensor of each call comes here.
        """
        if type(tensor) not in TENSORS:
            return ""
        try:
            facts = _facts_of(tensor)
            before, behind, is_small = self._kinds.get(facts) or self._kind_of(tensor, facts)
            if not is_small or not tensor.is_contiguous() or tensor.is_neg():
                return ""
            if not tensor.data_ptr():
                return ""
        except _WITHOUT_MEMORY:
            return ""
        if met is not None:
            met(tensor)
        text = statistics_of_floats(tensor) if tensor.dim() else statistics(tensor)
        offset = tensor.storage_offset()
        if offset:
            return f'{before}{text}{behind}, "offset": {offset}'
        return f"{before}{text}{behind}"

    def fields_of_many(self, values: Sequence[Any], /) -> list[str]:
        """Return the fields of the small tensors among some values, and "" for the others."""
        return [self.fields(each, None) for each in values]

    def forget(self, tensor: torch.Tensor, /) -> None:
        """Forget nothing: small tensors are looked at each time."""

    def forget_all(self) -> None:
        """Forget nothing."""

    def _kind_of(self, tensor: torch.Tensor, facts: tuple[Any, ...]) -> _Kind:
        kind = _OTHER
        if facts[:3] == _SMALL and 0 < tensor.nbytes <= SMALL_BYTES:
            before, behind = header_text("torch.Tensor", tensor), needs_text(tensor)
            kind = _Kind(f"{before}, ", f", {behind}", True)
        self._kinds[facts] = kind
        return kind
