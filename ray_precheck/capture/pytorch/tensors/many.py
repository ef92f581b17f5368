"""Tensors whose statistics take less time than to find out whether they were seen before.

Comes in: a tensor, or those of one list, as the parameters, gradients and states that an optimizer gets. Goes
out: the fields of each, as `TensorTexts.fields` has them, with statistics that are bit by bit those of
`values.statistics`. Called by the recorder for each tensor of each call, and for the elements of such a list.

The statistics of 32 to 2,048 values take 1 to 2 us with their text, and those of 32,768 values 5 us, without
asking for versions, addresses and glimpses of memory.
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ray_precheck.capture.pytorch.tensors.text import TENSORS, header_text, needs_text
from ray_precheck.capture.pytorch.tensors.values import statistics, statistics_of_floats
from ray_precheck.numerics.one_pass import COMPILED

# What tells small tensors from others, and their texts from each other, but for what lies in the memory.
_facts_of = operator.attrgetter("dtype", "layout", "is_cpu", "shape", "requires_grad")
_SMALL = torch.float32, torch.strided, True
# What is raised where a tensor has no memory, or no shape of numbers: a symbol has no hash.
_WITHOUT_MEMORY = RuntimeError, NotImplementedError, TypeError
# So many bytes are looked at in the time that it takes to know them again; numpy needs longer.
SMALL_BYTES = 1 << 17 if COMPILED is not None else 1 << 15


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

    def fields(self, tensor: torch.Tensor) -> str:
        """Return the fields of a tensor, "" of one that is not small or has no dimensions."""
        return self._fields(tensor) if type(tensor) in TENSORS and tensor.dim() else ""

    def fields_of_many(self, values: Sequence[Any]) -> list[str]:
        """Return the fields of the small tensors among some values, and "" for the others; here they may have
        no dimensions."""
        return [self._fields(each) if type(each) in TENSORS else "" for each in values]

    def _fields(self, tensor: torch.Tensor) -> str:
        """All in one piece: each tensor of each call comes here."""
        try:
            facts = _facts_of(tensor)
            before, behind, is_small = self._kinds.get(facts) or self._kind_of(tensor, facts)
            if not is_small or not tensor.is_contiguous() or tensor.is_neg():
                return ""
            if not tensor.data_ptr():
                return ""
        except _WITHOUT_MEMORY:
            return ""
        text = statistics_of_floats(tensor) if tensor.dim() else statistics(tensor)
        offset = tensor.storage_offset()
        if offset:
            return f'{before}{text}{behind}, "offset": {offset}'
        return f"{before}{text}{behind}"

    def _kind_of(self, tensor: torch.Tensor, facts: tuple[Any, ...]) -> _Kind:
        kind = _OTHER
        if facts[:3] == _SMALL and 0 < tensor.nbytes <= SMALL_BYTES:
            before, behind = header_text("torch.Tensor", tensor), needs_text(tensor)
            kind = _Kind(f"{before}, ", f", {behind}", True)
        self._kinds[facts] = kind
        return kind
