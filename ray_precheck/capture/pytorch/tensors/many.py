"""The statistics of small tensors, which are known by their bytes, and of many of them at once.

Comes in: a tensor, or those of one list, as the parameters, gradients and states that an optimizer gets. Goes
out: the fields of each, as `TensorTexts.fields` has them, with statistics that are bit by bit those of
`values.statistics`. Called by the recorder for each tensor of each call, and for the elements of such a list:
96 tensors of 32 to 1,024 values take 1 us each, and 4 us one by one.

To find 32 to 2,048 values by their bytes takes 0.1 to 1.4 us, their statistics 3.4 us; and the same bytes
have the same statistics, whoever wrote them, so that neither versions nor addresses have to be asked for.
"""

import operator
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, compress
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch

from ray_precheck.capture.pytorch.tensors.memory import ALL_MEMORY, FIRST_BYTE
from ray_precheck.capture.pytorch.tensors.text import TENSORS, header_text, needs_text
from ray_precheck.capture.pytorch.tensors.values import (
    FEW,
    LARGE,
    MARK,
    ONES,
    SMALL,
    statistics,
    statistics_of_piece,
)
from ray_precheck.numerics.statistics import MAX, MEAN, MIN, NORM
from ray_precheck.schema.dtypes import Array

# What tells small tensors from others, and their texts from each other, but for what lies in the memory.
_facts_of = operator.attrgetter("dtype", "layout", "is_cpu", "shape", "requires_grad")
_SMALL = torch.float32, torch.strided, True
# What is raised where a tensor has no memory, or no shape of numbers: a symbol has no hash.
_WITHOUT_MEMORY = RuntimeError, NotImplementedError, TypeError
# So many bytes of a tensor are looked up faster than their statistics are found, and so many are kept of all.
_MOST_BYTES, _MOST_KEPT = 1 << 13, 1 << 11


class _Kind(NamedTuple):
    """What stands before and behind the statistics of tensors that are alike; their size in bytes, 0 where
    they are not small; and this size where they are known by their bytes, else 0, as the statistics of a
    tensor without dimensions are not those of one element."""

    before: str
    behind: str
    size: int
    known_size: int


_OTHER = _Kind("", "", 0, 0)


class SmallTensors:
    """Writes small tensors, and remembers the statistics of their values.

    Those are contiguous float32 of torch's own classes on the CPU, whose memory is there: what a transform of
    torch.func has wrapped has none, and a nested tensor has no shape.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}
        self._kinds: dict[object, _Kind] = {}

    def fields(self, tensor: torch.Tensor) -> str:
        """Return the fields of a tensor, "" of one that is not small or has no dimensions.

        All in one piece: each tensor of each call comes here.
        """
        if type(tensor) not in TENSORS:
            return ""
        try:
            facts = _facts_of(tensor)
            before, behind, _, size = self._kinds.get(facts) or self._kind_of(tensor, facts)
            if not size or not tensor.is_contiguous() or tensor.is_neg():
                return ""
            place = tensor.data_ptr() - FIRST_BYTE
        except _WITHOUT_MEMORY:
            return ""
        if place < 0:
            return ""
        held = ALL_MEMORY[place : place + size]
        text = self._known.get(held)
        if text is None:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            text = self._known[held] = statistics_of_piece(tensor)
        offset = tensor.storage_offset()
        if offset:
            return f'{before}{text}{behind}, "offset": {offset}'
        return f"{before}{text}{behind}"

    def fields_of_many(self, values: Sequence[Any]) -> list[str]:
        """Return the fields of the small tensors among some values, and "" for the others; here they may have
        no dimensions, and some more values."""
        texts = [""] * len(values)
        kinds, known = self._kinds, self._known
        if len(known) >= _MOST_KEPT:
            known.clear()
        new: list[tuple[int, torch.Tensor, bytes]] = []
        for number, each in enumerate(values):
            if type(each) not in TENSORS:
                continue
            try:
                facts = _facts_of(each)
                before, behind, size, known_size = kinds.get(facts) or self._kind_of(each, facts)
                if not size or not each.is_contiguous() or each.is_neg():
                    continue
                place = each.data_ptr() - FIRST_BYTE
            except _WITHOUT_MEMORY:
                continue
            if place < 0:
                continue
            offset = each.storage_offset()
            if offset:
                behind = f'{behind}, "offset": {offset}'
            held = ALL_MEMORY[place : place + known_size]
            text = known.get(held)
            if text is None:
                new.append((number, each, held))
                texts[number] = f"{before}{MARK}{behind}"
            else:
                texts[number] = f"{before}{text}{behind}"
        found = statistics_of_many([each for _, each, _ in new])
        for (number, _, held), text in zip(new, found, strict=True):
            texts[number] = texts[number].replace(MARK, text)
            if held:
                known[held] = text
        return texts

    def _kind_of(self, tensor: torch.Tensor, facts: tuple[Any, ...]) -> _Kind:
        kind, size = _OTHER, tensor.nbytes if facts[:3] == _SMALL else 0
        if 0 < size <= 4 * FEW:
            is_known = size <= _MOST_BYTES and tensor.dim()
            before, behind = header_text("torch.Tensor", tensor), needs_text(tensor)
            kind = _Kind(f"{before}, ", f", {behind}", size, size if is_known else 0)
        self._kinds[facts] = kind
        return kind


def statistics_of_many(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Return the fields of the statistics of small tensors of torch's own class, in their order."""
    texts = [""] * len(tensors)
    places: dict[torch.Size, list[int]] = defaultdict(list)
    for place, tensor in enumerate(tensors):
        places[tensor.shape].append(place)
    for several in places.values():
        with torch.no_grad():
            rows = torch.stack([tensors[place] for place in several]).numpy()
        columns, is_alone = _columns_of(rows)
        # All numbers become texts at once, and no number has a comma.
        count = len(several)
        words = orjson.dumps(list(chain(*columns))).decode()[1:-1].split(",")
        numbers = (words[begin : begin + count] for begin in range(0, 4 * count, count))
        for place, top, bottom, mean, norm in zip(several, *numbers, strict=True):
            texts[place] = f'"{MAX}":{top},"{MIN}":{bottom},"{MEAN}":{mean},"{NORM}":{norm}'
        for place in compress(several, is_alone):
            texts[place] = statistics(tensors[place])
    return texts


def _columns_of(rows: Array) -> tuple[list[list[float]], list[bool]]:
    """Return largest and smallest values, means and norms of tensors of one shape, and of each whether sums
    in float32 do not do for it."""
    if rows.ndim == 1:
        alone = ~np.isfinite(rows)
        return [rows.tolist()] * 4, alone.tolist()
    rows = rows.reshape(len(rows), -1)
    size = rows.shape[1]
    # What is infinite or NaN is looked at alone; here it only must not be told of.
    with np.errstate(all="ignore"):
        tops, bottoms = np.maximum.reduce(rows, axis=1), np.minimum.reduce(rows, axis=1)
        # numpy takes the product of a row and a column for that of two vectors, as in `values`.
        squares = np.matmul(rows[:, None, :], rows[:, :, None]).reshape(-1)
        totals = np.matmul(rows[:, None, :], ONES[:size, None]).reshape(-1)
        is_near = (bottoms > -LARGE) & (tops < LARGE) & (squares < LARGE)
        is_near &= (squares > SMALL) | ((tops == 0) & (bottoms == 0))
        means, norms = totals.astype(np.float64) / size, np.sqrt(squares.astype(np.float64))
    return [each.tolist() for each in (tops, bottoms, means, norms)], (~is_near).tolist()
