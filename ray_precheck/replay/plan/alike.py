"""Calls of a dump that are alike: the same API with the same shapes, dtypes and scalars.

Comes in: names and raw JSON records, in dump order. Goes out: for each call after the first of its
kind, the reason for its SKIP row. Called by the planner with `--filter_api`.

Two calls are alike if all their values in the dump are, nested ones too, forward and backward: tensors by
their type, dtype, shape and requires_grad, all other values by everything that the dump has of them. The
contents of a tensor (Max, Min, Mean, Norm, md5, the name of its file) do not count, nor does where in
the program a call was made.
"""

import json
import re
from hashlib import blake2b
from typing import Any

import orjson

_TELLS_APART = ("type", "dtype", "shape", "requires_grad")
# A digest for each kind of record, so that a million of them are 100 MB and not their text.
_DIGEST_BYTES = 16
_MOST_RECORDS = 1 << 16
# A call of 1,500 tensors has 0.5 MB. Decoded, a record takes 20 times as much.
_LARGEST_BYTES = 1 << 20
_NO_RECORD = b"-"

# A member that says nothing of a tensor's kind: a number, a word or a plain text; `~` is white space.
# All repeats are bounded, so that the time is linear in the length of every record. Records of tensors
# with more are decoded, as all others that the pattern does not match.
_STATISTIC = (
    rb'(?:~,~"(?!(?:%s)")[^"\\]{1,99}"~:~(?:[-+.\w]{1,99}|"[^"\\]{0,999}")){0,16}'
    % b"|".join(name.encode() for name in _TELLS_APART)
)
_REQUIRES_GRAD = rb'(~,~"requires_grad"~:~(?:true|false))?'
_KIND = (
    rb'(\{~"type"~:~"[^"\\]{0,99}"~,~"dtype"~:~"[^"\\]{0,99}"~,~"shape"~:~\[[^\[\]{}"]{0,999}\])'
)
# A whole tensor as msprobe writes it. In JSON no text can hold `{"type"`: its quotes are escaped.
_TENSOR = re.compile(
    (_KIND + _STATISTIC + _REQUIRES_GRAD + _STATISTIC + rb"~\}").replace(b"~", rb"\s{0,99}")
)
# Where a call was made, which our own captures write at the end of a record.
_PLACE_OF_CALL = ("stack", "parent", "recompute")
_PLACE = re.compile(rb'(?:, "stack": "\d{1,18}")?(?:, "parent": "[^"\\]{0,999}")?\}\s{0,99}\Z')
_LONGEST_PLACE = 1200


class AlikeCalls:
    """The kinds of calls seen so far, each with the name of its first call."""

    def __init__(self) -> None:
        self._reasons: dict[bytes, str] = {}
        self._digests: dict[bytes, bytes | None] = {}

    def reason(self, name: str, forward: bytes, backward: bytes | None) -> str:
        """Return why this call need not be checked, "" where it is the first of its kind.

        `name` is that of the call, with its number. A record that is no JSON, or larger than 1 MiB,
        is like no other.
        """
        ahead = self._digest(forward)
        behind = _NO_RECORD if backward is None else self._digest(backward)
        if ahead is None or behind is None:
            return ""
        kind = name.rpartition(".")[0].encode("utf-8", "surrogatepass")
        key = _digest(b"".join((ahead, behind, kind)))
        reason = self._reasons.get(key)
        if reason is not None:
            return reason
        self._reasons[key] = (
            f"not run: {name}, alike in name, shapes, dtypes and scalars, was checked (--filter_api)"
        )
        return ""

    def _digest(self, record: bytes) -> bytes | None:
        """Return a digest that is the same for all records alike, None for a record that is like no
        other.

        Records that differ in nothing but the statistics of tensors are decoded once.
        """
        if len(record) > _LARGEST_BYTES:
            return None
        # The text between the statistics; split takes half the time of sub.
        place = _PLACE.search(record, max(0, len(record) - _LONGEST_PLACE))
        said = record[: place.start()] if place else record
        text = _digest(b"\0".join(filter(None, _TENSOR.split(said))))
        if text not in self._digests:
            if len(self._digests) >= _MOST_RECORDS:
                self._digests.clear()
            self._digests[text] = _digest_of_values(record)
        return self._digests[text]


def _digest_of_values(record: bytes) -> bytes | None:
    try:
        # As `dump.decode` reads it: bare NaN and Infinity are for json, the rest is faster.
        value = orjson.loads(record)
    except ValueError:
        try:
            value = json.loads(record)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, dict):
        value = {key: item for key, item in value.items() if key not in _PLACE_OF_CALL}
    try:
        return _digest(json.dumps(_without_statistics(value), sort_keys=True).encode())
    except (ValueError, RecursionError):  # ValueError: an int of more digits than Python writes
        return None


def _without_statistics(value: Any) -> Any:
    """Return a value of a record without the statistics of its tensors."""
    if isinstance(value, list):
        return [_without_statistics(item) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("type"), str) and "dtype" in value and "shape" in value:
        return {key: value[key] for key in _TELLS_APART if key in value}
    return {key: _without_statistics(item) for key, item in value.items()}


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()
