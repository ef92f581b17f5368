"""Mutations of the bytes of a dump.json, by a seeded generator.

Comes in: the bytes of a dump and a case's generator. Goes out: other bytes. Called by `fuzz.mutations`.
"""

from collections.abc import Callable
from random import Random


def _cut(raw: bytes, random: Random) -> bytes:
    return raw[: random.randrange(len(raw) + 1)]


def _flip(raw: bytes, random: Random) -> bytes:
    if not raw:
        return raw
    at = random.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ 1 << random.randrange(8)]) + raw[at + 1 :]


def _splice(raw: bytes, random: Random) -> bytes:
    start, end, at = (random.randrange(len(raw) + 1) for _ in range(3))
    return raw[:at] + raw[min(start, end) : max(start, end)] + raw[at:]


def _insert(raw: bytes, random: Random) -> bytes:
    at = random.randrange(len(raw) + 1)
    pieces = [*(bytes([each]) for each in b'"\\{}[]:,\x00\xff\xc3'), b"\r\n", b"NaN"]
    return raw[:at] + random.choice(pieces) * random.choice((1, 1, 2, 100)) + raw[at:]


def _repeat(raw: bytes, random: Random) -> bytes:
    at, length = random.randrange(len(raw) + 1), random.choice((1, 10, 100))
    return raw[:at] + raw[at : at + length] * random.choice((2, 10, 1000)) + raw[at:]


def _remove(raw: bytes, random: Random) -> bytes:
    at = random.randrange(len(raw) + 1)
    return raw[:at] + raw[at + random.choice((1, 2, 50)) :]


def _encoding(raw: bytes, random: Random) -> bytes:
    names = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "utf-7", "cp037")
    return raw.decode("utf-8", errors="replace").encode(random.choice(names), errors="replace")


BYTE_KINDS: dict[str, Callable[[bytes, Random], bytes]] = {
    "bytes: cut": _cut,
    "bytes: flip": _flip,
    "bytes: splice": _splice,
    "bytes: insert": _insert,
    "bytes: repeat": _repeat,
    "bytes: remove": _remove,
    "bytes: encoding": _encoding,
}
