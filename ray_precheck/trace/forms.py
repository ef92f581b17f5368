"""The form of a dump: all of its text but the values that differ from rank to rank.

Comes in: the path of a dump.json. Goes out: a `FormedSide`, an open capture that knows its `DumpForm`; None
for what has none. Called by the search of pairs and by the summaries of ranks, whose processes read hundreds
of dumps of one program.

The ranks of a run write the same records with other numbers. What is said of records and not of numbers is
worked out once for a form. That a dump has a form is found out by comparing all of its text with it, but the
blanks: the values of the fields `_FIELDS`. Only these are decoded, which takes a third of the time that
decoding all of the dump does (12 of 30 ms for 8 MB). Colons tell where the blanks are: between two of them
all but the blank has the same length.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ray_precheck.dump.folders import LOG_FILE, standing_for
from ray_precheck.dump.scan import Member, scan_dump, value_of
from ray_precheck.errors import DumpError
from ray_precheck.foreign import open_file
from ray_precheck.numerics.statistics import FIELDS
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.side import (
    CaptureSide,
    Header,
    RecordEntry,
    entry_without_place,
    header_of,
    json_with_words,
)

# Values that differ between the ranks of a run, or between two runs of one program.
_FIELDS = (
    *FIELDS, "value", "generator", "group_ranks", "group_id", "sequence", "offset", "md5", "data_name",
    "sketch", "sketch_counted", "sketch_exponent", "distinct", "zero", "subnormal", "headroom", "nan", "+inf",
    "-inf",
)  # fmt: skip
_NAMES = {name.encode(): name for name in _FIELDS}
# A number, a word, a text without escapes, a list of numbers, up to the comma or bracket behind it.
_LIST_TEXT = rb'\[[^\[\]{}"\\]*\]'
_BLANK = re.compile(
    rb'"(%b)":(\s*(?:-?\d[\d.eE+-]*|null|true|false|NaN|-?Infinity|"[^"\\]*"|%b)\s*)(?=[,}])'
    % (b"|".join(re.escape(name.encode()) for name in _FIELDS), _LIST_TEXT)
)
_LIST = re.compile(rb"\s*%b\s*" % _LIST_TEXT)
_COLON, _COMMA, _ZERO, _BRACKET, _SPACE = map(ord, ":,0[ ")
# A blank of a template is a text: this and its number.
BLANK_SIGN = "\0blank "
_BLANK_TEXT = b'"\\u0000blank %d"'
# The folder of the tensors of a rank, in the header.
_FOLDER = re.compile(rb'"(dump_data_dir)":(\s*"[^"\\]*"\s*)(?=[,}])')
_IN_A_BLANK = {int, float, bool, type(None), str, bytes}
# A larger dump is not held in memory as a whole.
_LARGEST_BYTES = 64 << 20
# A process keeps the forms that it used last: a pipeline has one for each of its stages.
_MOST_FORMS, _MOST_FORM_BYTES = 16, 128 << 20


class DumpForm:
    """The text of a dump without its blanks. Dumps of one form have the same object.

    `names` are, by blank, the fields that they are the values of, `entries` the records in the order of the
    file, without places in it, `places` their numbers by key. `borders` are, by record, its first blank and
    the first one behind it. `has_folder`: the first blank is the folder of the tensors.
    """

    def __init__(self, text: bytes, records: Sequence[Member], header: Header) -> None:
        self.header = header
        self.entries = [entry_without_place(key) for key, _ in records]
        self.places = {key: place for place, (key, _) in enumerate(records)}
        self._spans = np.array([span for _, span in records], np.int64)
        first, last = int(self._spans[0, 0]), int(self._spans[-1, 1])
        folders = [*_FOLDER.finditer(text, 0, first)]
        self.has_folder = len(folders) == 1
        names, begins, ends = _blanks_in(text[first:last])
        self.names = [match[1].decode() for match in folders[: int(self.has_folder)]] + names
        if self.has_folder:
            begin, end = folders[0].span(2)
            begins, ends = np.append(begin - first, begins), np.append(end - first, ends)
        begins, ends = begins + first, ends + first
        self._fields: dict[str, bool] = {}
        colons = _colons_in(text)
        self.borders: Array = np.searchsorted(begins, self._spans)
        self._begins = np.append(begins, len(text))
        self._colons = len(colons)
        self._first, self._last = np.searchsorted(colons, begins - 1), np.searchsorted(colons, ends)
        self._tails = colons[self._last] - ends
        self._gaps = _gaps_between(begins, ends, len(text))
        self._literal = np.frombuffer(text, np.uint8)[_are_between(self._gaps, ends - begins)]
        self._types: list[type] = []
        self._others: list[int] = []
        array = np.frombuffer(text, np.uint8)
        is_list = array[begins] == _BRACKET
        is_list |= (array[begins] == _SPACE) & (array[begins + 1] == _BRACKET)
        self._lists = np.flatnonzero(is_list)

    @property
    def size_bytes(self) -> int:
        """How much memory it takes, about."""
        return len(self._literal) + 64 * len(self.names)

    def has(self, field: str) -> bool:
        """Return whether the text has a field of this name anywhere."""
        if field not in self._fields:
            self._fields[field] = b'"%b"' % field.encode() in self._literal.tobytes()
        return self._fields[field]

    def read(self, text: bytes) -> "FormedText | None":
        """Return a text that has this form; None where it has another one."""
        colons = _colons_in(text)
        if len(colons) != self._colons:
            return None
        begins, ends = colons[self._first] + 1, colons[self._last] - self._tails
        gaps, sizes = _gaps_between(begins, ends, len(text)), ends - begins
        if not (np.array_equal(gaps, self._gaps) and (sizes > 0).all()):
            return None
        literal = np.frombuffer(text, np.uint8)[_are_between(gaps, sizes)]
        if not np.array_equal(literal, self._literal):
            return None
        values = self._values(text, begins, gaps, sizes)
        if values is None:
            return None
        return FormedText(self, text, begins, values, self._others)

    def spans(self, begins: Array, length: int) -> list[list[int]]:
        """Return from which byte to which each record stands in a text whose blanks begin there."""
        # What stands behind a blank has moved as the next blank has.
        moved = np.append(begins, length) - self._begins
        found: list[list[int]] = (self._spans + moved[self.borders]).tolist()
        return found

    def without_blanks(self) -> tuple[Array, list[list[int]], list[int]]:
        """Return the text without its blanks, `(N,)` uint8; from which to which of its bytes each record
        stands; and behind how many of them each blank stood."""
        places = np.cumsum(self._gaps)
        # As many bytes were left out before a border as the blanks before it have.
        left_out = self._begins - places
        spans: list[list[int]] = (self._spans - left_out[self.borders]).tolist()
        return self._literal, spans, places[:-1].tolist()

    def _learn(self, types: list[type]) -> bool:
        """Take note of the types of the values, which are mostly those of the last dump; returns whether
        blanks have such values."""
        if types != self._types:
            if not set(types) <= _IN_A_BLANK:
                return False
            self._types = types
            self._others = [number for number, each in enumerate(types) if each is not float]
        return True

    def _values(self, text: bytes, begins: Array, gaps: Array, sizes: Array) -> list[Any] | None:
        """Return the values of the blanks; None where one is not what a blank has."""
        if not len(sizes):
            return []
        lists = self._lists
        # Of each blank its text and the comma or bracket behind it, of a list the last byte of these.
        before, taken = gaps.copy(), sizes + 1
        taken[lists] = 2
        before[1:] -= 1
        before[lists] += sizes[lists] - 1
        raw = np.frombuffer(text, np.uint8)[~_are_between(before, taken)]
        ends = np.cumsum(taken) - 1
        raw[ends], raw[ends[lists] - 1] = _COMMA, _ZERO
        scalars = raw[:-1].tobytes()
        values = None if b"\\" in scalars else json_with_words(b"[%b]" % scalars)
        if not isinstance(values, list) or len(values) != len(sizes):
            return None
        for number, begin, size in zip(
            lists.tolist(), begins[lists].tolist(), sizes[lists].tolist(), strict=True
        ):
            values[number] = text[begin : begin + size]
            if not _LIST.fullmatch(values[number]):
                return None
        return values if self._learn([*map(type, values)]) else None

    def template(self) -> Mapping[str, Any]:
        """Return the records, decoded, in which each blank is `BLANK_SIGN` and its number; none where the
        text is broken between blanks."""
        ends, raw = np.cumsum(self._gaps).tolist(), self._literal.tobytes()
        pieces = [raw[begin:end] for begin, end in pairwise([0, *ends])]
        blanks = [_BLANK_TEXT % number for number in range(len(self.names))]
        text = b"".join(chain.from_iterable(zip_longest(pieces, blanks, fillvalue=b"")))
        found = json_with_words(text)
        data = found.get("data") if isinstance(found, dict) else None
        return data if isinstance(data, dict) else {}


@dataclass(eq=False)
class FormedText:
    """A text of a form: where its blanks begin, their values, and which of these are no floats (`others`).
    Bare words, as NaN, are texts; a list of numbers is JSON as it stands there."""

    form: DumpForm
    text: bytes
    begins: Array
    values: list[Any]
    others: Sequence[int]

    @cached_property
    def numbers(self) -> Array:
        """The values that are floats, NaN for others, `(N + 1,)` float64: the last is that of no blank."""
        found = [*self.values, math.nan]
        for number in self.others:
            found[number] = math.nan
        return np.array(found, np.float64)


def blank_of(value: Any) -> int:
    """Return the number of the blank that a value of a template is, -1 for another one."""
    is_blank = type(value) is str and value.startswith(BLANK_SIGN)
    return int(value[len(BLANK_SIGN) :]) if is_blank else -1


def same_blanks(mine: Any, other: Any) -> bool:
    """Return whether the values of two blanks are the same."""
    if type(mine) is bytes is type(other) and mine != other:
        mine, other = json_with_words(mine), json_with_words(other)
    return bool(mine == other)


@dataclass
class FormedSide(CaptureSide):
    """An open capture whose text has a form. Its entries have no places; records that were read are kept."""

    formed: FormedText = field(kw_only=True)
    _records: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def raw(self, entry: RecordEntry) -> bytes:
        """Return the JSON of a record."""
        begin, end = self._spans[self.formed.form.places[entry.key]]
        return value_of(self.formed.text[begin:end])

    def record(self, entry: RecordEntry) -> Mapping[str, Any]:
        """Return a record, decoded; an empty one where it cannot be read."""
        found = self._records.get(entry.key)
        if found is None:
            found = self._records[entry.key] = super().record(entry)
        return found

    @cached_property
    def _spans(self) -> list[list[int]]:
        return self.formed.form.spans(self.formed.begins, len(self.formed.text))


class _Forms:
    """The forms that a process used last, the last one at the end."""

    def __init__(self) -> None:
        self._known: list[DumpForm] = []

    def read(self, text: bytes) -> FormedText | None:
        """Return a text of a form that is known."""
        for form in reversed(self._known):
            if (found := form.read(text)) is not None:
                self._known.remove(form)
                self._known.append(form)
                return found
        return None

    def add(self, form: DumpForm) -> None:
        """Keep a form, and let go those that were not used for long."""
        self._known.append(form)
        while len(self._known) > _MOST_FORMS or (
            len(self._known) > 1 and sum(each.size_bytes for each in self._known) > _MOST_FORM_BYTES
        ):
            del self._known[0]


_FORMS = _Forms()


def open_formed(path: str | os.PathLike[str]) -> FormedSide | None:
    """Open a dump.json and read it by its form; None for what `open_side` has to look at: the log of a
    capture, a large or a broken dump, and one that has a record twice, or none."""
    where = standing_for(Path(path))
    if where.suffix == Path(LOG_FILE).suffix:
        return None
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_file(where))
            if os.fstat(file.fileno()).st_size > _LARGEST_BYTES:
                return None
            text = file.read()
            formed = _FORMS.read(text) or _newly_formed(file, text, str(where))
        except (OSError, DumpError):
            return None
        if formed is None:
            return None
        stack.pop_all()
    header = formed.form.header
    if formed.form.has_folder:
        header = replace(header, data_folder=formed.values[0])
    return FormedSide(where, file, header, formed.form.entries, formed=formed)


def _newly_formed(file: BinaryIO, text: bytes, where: str) -> FormedText | None:
    """Return a text with a form of its own, None for what has none.

    Raises:
        DumpError: it is no dump.
    """
    members, found = scan_dump(file, where)
    records = [*found]
    if not records or len({key for key, _ in records}) < len(records) or b"\\u0000" in text:
        return None
    form = DumpForm(text, records, header_of(file, dict(members)))
    formed = form.read(text)
    if formed is None:
        return None
    _FORMS.add(form)
    return formed


def _blanks_in(text: bytes) -> tuple[list[str], Array, Array]:
    """Return the fields of the blanks of a text, where they begin and where they end."""
    parts = _BLANK.split(
        text
    )  # What stands before a field, its name, its value, what stands behind ...
    names = [*map(_NAMES.__getitem__, parts[1::3])]
    sizes = np.fromiter(map(len, parts[:-1]), np.int64, len(parts) - 1).reshape(-1, 3)
    ends = np.cumsum(sizes.sum(axis=1) + len('"":'))
    return names, ends - sizes[:, 2], ends


def _colons_in(text: bytes) -> Array:
    """Return where the colons are, and the end of the text."""
    array = np.frombuffer(text, np.uint8)
    return np.append(np.flatnonzero(array == _COLON), len(text))


def _gaps_between(begins: Array, ends: Array, length: int) -> Array:
    """Return how many bytes stand before each blank, behind the one before it, and behind the last one."""
    found: Array = np.append(begins, length)
    found[1:] -= ends
    return found


def _are_between(gaps: Array, sizes: Array) -> Array:
    """Return which bytes of a text stand in no blank."""
    lengths = np.empty(len(gaps) + len(sizes), np.int64)
    lengths[::2], lengths[1::2] = gaps, sizes
    is_between = np.zeros(len(lengths), bool)
    is_between[::2] = True
    return np.repeat(is_between, lengths)
