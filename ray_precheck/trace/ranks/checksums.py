"""Checksums of the records of a dump, by which ranks are compared.

Comes in: an open capture, and what stands for its sketches. Goes out: `RecordSums`. Called by `summary`.
What differs between honest ranks is left out: numbers of sketches and stacks, names of files, indices of
devices, random states; a sketch itself counts.

A checksum is made of the text without its blanks (`trace.forms`), once for all dumps of a form, and of the
values of these, for all records at once. It is the same whatever dumps a process has read before.
"""

import re
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import orjson

from ray_precheck.dump.scan import ByteRange, value_of
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.forms import DumpForm, FormedSide, FormedText
from ray_precheck.trace.items import GRADIENTS
from ray_precheck.trace.side import CaptureSide, Header, RecordEntry

# Fields that honestly differ between ranks with equal values, and devices.
_OWN = frozenset(("data_name", "generator", "group_id", "sketch_counted"))
_DEVICE = re.compile(r"(?:cuda|npu|xpu|mlu|gcu|hpu|musa):\d+")
# In a text, with the meshes of distributed tensors, which are other ranks in each data-parallel group.
_DEVICES = re.compile(rb'"%b"|"device_mesh": ?\[[\[\]0-9, ]*\]' % _DEVICE.pattern.encode())
# Parameters, buffers and inputs of the model.
OPTIMIZER = "Optimizer."
NAMED = re.compile(rb'"(?:parameter|buffer|argument)": ?"([^"]*)"')
_FLOAT = re.compile(rb'"type": ?"float", ?"value":$')
_LONGEST_FLOAT = 40
# Floats among the arguments of these functions set how they work; those of others may be counts of samples.
_SET = "Functional."
_GRADIENTS = f".{GRADIENTS}"
# Odd numbers whose multiples spread over 64 bits: those of the golden ratio, and of xxHash.
_SPREAD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_HALF = np.uint64(32)
_WORD = 1 << 32
_BLOCK_BYTES = 4 << 20
# Most records of two forms are the same, where these differ in a few: those of the last dumps.
_KNOWN_RECORDS = 1 << 15


# Whether a record tells more than checksums do, by its entry and its text without blanks.
Tells = Callable[[RecordEntry, bytes], bool]


class RecordSums(NamedTuple):
    """What is told of records in the order of the file: checksums of what came before "output", and of what
    came behind, 0 without one; of the floats among the settings of functions, 0 for none, `(R,)` uint32 each.
    `looked_at` are the places of the records that tell more than that; `has_files`: tensors have files."""

    got: Array
    gave: Array
    settings: Array
    looked_at: Sequence[int]
    has_files: bool


def record_sums(
    side: CaptureSide, tells_more: Tells, mark_of_sketch: Callable[[int], int]
) -> RecordSums:
    """Return what is told of the records of a dump.

    Those of which `tells_more` says so are looked at, updates and gradients, and those that are the first to
    name a parameter, buffer or input. `mark_of_sketch` tells what stands for a sketch of this number.
    """
    if isinstance(side, FormedSide):
        return _form_sums(side.formed.form, tells_more).of(side.formed, mark_of_sketch)
    found = [*_sums_of_blocks(side, tells_more, mark_of_sketch)]
    starts = np.cumsum([0, *(len(each.got) for each in found)]).tolist()
    got, gave, settings = (np.concatenate([each[column] for each in found]) for column in range(3))
    looked_at = [
        start + place
        for start, each in zip(starts, found, strict=False)
        for place in each.looked_at
    ]
    return RecordSums(got, gave, settings, looked_at, any(each.has_files for each in found))


def _sums_of_blocks(
    side: CaptureSide, tells_more: Tells, mark_of_sketch: Callable[[int], int]
) -> Iterator[RecordSums]:
    """Yield what is told of the records of a dump that has no form, some of them at a time."""
    block: list[tuple[RecordEntry, bytes]] = []
    size = 0
    for entry in side.entries:
        raw = side.raw(entry)
        if block and size + len(raw) > _BLOCK_BYTES:
            yield from _sums_of_block(block, tells_more, mark_of_sketch)
            block, size = [], 0
        block.append((entry, raw))
        size += len(raw)
    yield from _sums_of_block(block, tells_more, mark_of_sketch)


def _sums_of_block(
    block: Sequence[tuple[RecordEntry, bytes]],
    tells_more: Tells,
    mark_of_sketch: Callable[[int], int],
) -> Iterator[RecordSums]:
    text, spans = bytearray(b"{"), []
    for _, raw in block:
        spans.append(ByteRange(len(text), len(text) + len(raw)))
        text += raw + b","
    form = DumpForm(
        bytes(text),
        [(entry.key, span) for (entry, _), span in zip(block, spans, strict=True)],
        Header(),
    )
    formed = form.read(bytes(text))
    if formed is not None:
        yield _FormSums.of_form(form, tells_more).of(formed, mark_of_sketch)
    elif len(block) > 1:
        half = len(block) // 2
        yield from _sums_of_block(block[:half], tells_more, mark_of_sketch)
        yield from _sums_of_block(block[half:], tells_more, mark_of_sketch)
    else:  # A broken record.
        got, nothing = np.array([zlib.crc32(block[0][1])], np.uint32), np.zeros(1, np.uint32)
        yield RecordSums(got, nothing, nothing, [0], has_files=False)


def _form_sums(form: DumpForm, tells_more: Tells) -> "_FormSums":
    known = _SUMS.setdefault(form, {})
    if tells_more not in known:
        known[tells_more] = _FormSums.of_form(form, tells_more)
    return known[tells_more]


# What is known of a form is kept as long as it is.
_SUMS: "WeakKeyDictionary[DumpForm, dict[Tells, _FormSums]]" = WeakKeyDictionary()


@dataclass
class _FormSums:
    """What the dumps of a form have in common. `sums` are checksums of the text without blanks, `(2, R)`;
    `parts` the blanks in both parts of a record, from which to which, `(3, R)`: the second begins where the
    first ends. `factors` are those of the blanks, by their places in a part, 0 for what ranks may differ in.
    `settings` has the blanks of floats by record."""

    sums: Array
    parts: Array
    factors: Array
    sketches: list[int]
    settings: dict[int, list[int]] = field(default_factory=dict)
    looked_at: list[int] = field(default_factory=list)

    @classmethod
    def of_form(cls, form: DumpForm, tells_more: Tells) -> "_FormSums":
        """Return what the dumps of a form have in common."""
        literal, spans, blanks = form.without_blanks()
        borders = form.borders.tolist()
        parts: list[tuple[int, int, int]] = []
        sums: list[tuple[int, int]] = []
        found = cls(
            np.zeros(0),
            np.zeros(0),
            np.zeros(0),
            [number for number, name in enumerate(form.names) if name == "sketch"],
        )
        text, seen = literal.tobytes(), set[bytes]()
        for place, (entry, (begin, end)) in enumerate(zip(form.entries, spans, strict=True)):
            raw = text[begin:end]
            begin += len(raw) - len(raw.lstrip())
            raw = value_of(raw)
            told = _told_by(raw)
            if entry.key.startswith(OPTIMIZER) or _GRADIENTS in entry.key:
                found.looked_at.append(place)
            elif tells_more(entry, raw) or not seen.issuperset(told.names):
                seen.update(told.names)
                found.looked_at.append(place)
            first, last = borders[place]
            middle = bisect_left(blanks, begin + told.cut, first, last)
            behind = bisect_left(blanks, begin + told.stack, middle, last)
            parts.append((first, middle, behind))
            sums.append(told.sums)
            if b'"float"' in raw and entry.key.startswith(_SET):
                floats = [
                    number
                    for number in range(first, last)
                    if _FLOAT.search(text, blanks[number] - _LONGEST_FLOAT, blanks[number])
                ]
                if floats:
                    found.settings[place] = floats
        found.sums, found.parts = np.array(sums, np.uint32).T, np.array(parts, np.int64).T
        found.factors = _factors(len(blanks), *found.parts)
        found.factors[[number for number, name in enumerate(form.names) if name in _OWN]] = 0
        return found

    def of(self, formed: FormedText, mark_of_sketch: Callable[[int], int]) -> RecordSums:
        """Return what is told of the records of a dump of this form."""
        words = self._words(formed, mark_of_sketch)
        words ^= words >> _HALF
        words *= _SPREAD[0]
        words ^= words >> _HALF
        words *= self.factors
        until = np.zeros(len(words) + 1, np.uint64)
        np.cumsum(words, out=until[1:])
        inside = until[self.parts[1:]] - until[self.parts[:-1]]
        got, gave = self.sums ^ (inside * _SPREAD[1] >> _HALF).astype(np.uint32)
        settings = np.zeros(len(got), np.uint32)
        for place, blanks in self.settings.items():
            settings[place] = zlib.crc32(repr([formed.values[blank] for blank in blanks]).encode())
        return RecordSums(got, gave, settings, self.looked_at, formed.form.has("data_name"))

    def _words(self, formed: FormedText, mark_of_sketch: Callable[[int], int]) -> Array:
        """Return a number for the value of each blank, `(N,)` uint64."""
        words = formed.numbers[:-1].view(np.uint64).copy()
        values = formed.values
        others = np.array(formed.others, np.int64)
        for number in others[self.factors[others] != 0].tolist():
            words[number] = _word_of(values[number])
        for number in self.sketches:
            if type(values[number]) is int:
                words[number] = mark_of_sketch(values[number])
        return words


class _TextFacts(NamedTuple):
    """What the text of a record says without its blanks: checksums of both parts, the names of parameters,
    buffers and inputs, and where its parts end, before "output" and before its stack."""

    sums: tuple[int, int]
    names: list[bytes]
    cut: int
    stack: int


@lru_cache(_KNOWN_RECORDS)
def _told_by(raw: bytes) -> _TextFacts:
    cut = raw.rfind(b'"output"')
    cut = cut if cut >= 0 else len(raw)
    stack = raw.rfind(b'"stack"', cut)
    stack = stack if stack > 0 else len(raw)
    given = zlib.crc32(_DEVICES.sub(b"", raw[cut:stack])) if cut < len(raw) else 0
    sums = zlib.crc32(_DEVICES.sub(b"", raw[:cut])), given
    return _TextFacts(sums, NAMED.findall(raw), cut, stack)


def _word_of(value: Any) -> int:
    """Return a number for a value that is no float."""
    if type(value) is str and _DEVICE.fullmatch(value):
        return 0
    return _WORD | zlib.crc32(value if type(value) is bytes else orjson.dumps(value))


def _factors(count: int, starts: Array, middles: Array, ends: Array) -> Array:
    """Return odd factors for blanks by their places in the parts of their records, 0 outside of them."""
    begins = np.full(count, -1)
    for first, last in ((starts, middles), (middles, ends)):
        sizes = last - first
        before = np.cumsum(sizes) - sizes
        inside = np.arange(int(sizes.sum())) - np.repeat(before, sizes)
        begins[np.repeat(first, sizes) + inside] = inside
    places = (begins + 1).astype(np.uint64) * _SPREAD[0]
    factors = (places ^ (places >> _HALF)) * _SPREAD[1] | np.uint64(1)
    return np.where(begins < 0, np.uint64(0), factors)
