"""What Ascend's own checks say of a run: overflow flags of operators, and the fusions of its graphs.

Comes in: the files of a capture. Goes out: `OverflowFlag` and `Fusion`, which `precision_tool` writes into
`tool.json`. `msaccucmp convert` makes a JSON of each `Opdebug.Node_OpDebug.*` file, in one of two versions:

    {"DHA Atomic Add": {"task_id": 0, "stream_id": 0, "status": 0}, "L2 Atomic Add": {..}, "AI Core": {..}}
    {"magic": "0x5a5a5a5a", "version": 0, "acc_list": {"acc_type": "AIC", "data": {"task_id": 3, ..}}}

The bits of a status are those of the guides (hiascend.com, MindStudio, on operators that overflow; for both
atomic units precision_tool v0.1.11, lib/adapter/overflow.py).
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ray_precheck.foreign import from_json

_CORE_BITS = {
    0x8: "sign change of the smallest integer",
    0x10: "integer add, subtract or multiply overflows",
    0x20: "float computation overflows",
    0x80: "negative float to unsigned",
    0x100: "float32 or int32 to float16 overflows",
    0x400: "CUBE accumulation overflows",
}
# Bits 8 to 15 of the status of a DHA atomic add, and bits 16 to 18 of that of an L2 atomic add.
_DHA_CODES = {
    0x9: "atomic add overflows",
    0xA: "atomic add underflows",
    0xB: "atomic add of an invalid source",
    0xC: "atomic add to an invalid destination",
    0xD: "atomic add of invalid operands",
}
_L2_CODES = dict(enumerate(_DHA_CODES.values(), 1))
_UNITS = ("AI Core", "DHA Atomic Add", "L2 Atomic Add")
# Of the new version: the vector and the cube cores, which have the bits of the AI core.
_CORES = ("AI Core", "AIC", "AIV")
_NOBODY = -1
_LARGEST_NUMBER = 1 << 64
_MOST_WORDS = 64
# What stands between objects that were glued together.
_BLANKS = re.compile(r"[\s,\ufeff]*")


@dataclass(frozen=True, slots=True)
class OverflowFlag:
    """An overflow that a device has seen. `unit` is what saw it (`AI Core`), `bits` what it was, in words;
    `task` and `stream` tell the operator, -1 where the file does not."""

    unit: str
    status: str
    bits: tuple[str, ...]
    task: int
    stream: int


@dataclass(frozen=True, slots=True)
class Fusion:
    """A pass that fused operators of a graph: `kind` is `graph_fusion` or `ub_fusion`."""

    name: str
    kind: str
    graph: str
    effect_times: int
    match_times: int


def read_overflow(text: bytes) -> list[OverflowFlag]:
    """Return the flags in the JSON of an `Opdebug` file; none where no status is set.

    Raises:
        ValueError: it is no such JSON.
    """
    found = from_json(text)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    flags = [_flag(unit, found[unit]) for unit in _UNITS if isinstance(found.get(unit), dict)]
    listed = found.get("acc_list")
    for each in listed if isinstance(listed, list) else [listed]:
        if isinstance(each, dict) and isinstance(each.get("data"), dict):
            flags.append(_flag(str(each.get("acc_type") or "unknown unit"), each["data"]))
    if not flags:
        raise ValueError(f"it has neither {', '.join(map(repr, _UNITS))} nor 'acc_list'")
    return [each for each in flags if each.bits]


def _flag(unit: str, data: Mapping[str, Any]) -> OverflowFlag:
    status = data.get("status")
    words = [_number(each) for each in (status if isinstance(status, list) else [status])]
    words = words[:_MOST_WORDS]
    is_set = any(each > 0 for each in words)
    bits: tuple[str, ...] = ()
    if len(words) == 1 and is_set:
        bits = _bits(unit, words[0])
    elif is_set:
        # Newer devices have eight words, whose bits are not documented.
        bits = tuple(f"word {place} is {each:#x}" for place, each in enumerate(words) if each > 0)
    shown = " ".join(f"{max(each, 0):#x}" for each in words)
    return OverflowFlag(
        unit, shown, bits, _number(data.get("task_id")), _number(data.get("stream_id"))
    )


def _bits(unit: str, status: int) -> tuple[str, ...]:
    """Return in words what a status says; numbers in front, as the guides list them."""
    if unit in _CORES:
        known = [f"{bit:#x} {words}" for bit, words in _CORE_BITS.items() if status & bit]
        rest = status & ~sum(_CORE_BITS)
        return (*known, *([f"{rest:#x} of unknown meaning"] if rest else []))
    codes, code = {}, status
    if unit == "DHA Atomic Add":
        codes, code = _DHA_CODES, (status >> 8) & 0xFF
    elif unit == "L2 Atomic Add":
        codes, code = _L2_CODES, (status >> 16) & 0b111
    return (f"{code:#x} {codes[code]}" if code in codes else f"{status:#x} of unknown meaning",)


def _number(value: Any) -> int:
    """Return a number that may be a text, -1 for none."""
    if isinstance(value, str) and len(value) <= 20:
        try:
            value = int(value, 0)
        except ValueError:
            return _NOBODY
    return value if type(value) is int and 0 <= value < _LARGEST_NUMBER else _NOBODY


def read_fusions(text: str) -> Iterator[Fusion]:
    """Yield the passes in a `fusion_result.json`: an object, a list of them, or several one behind the other.

    An object has `graph_fusion` and `ub_fusion` itself, with the graph in `graphId` or
    `session_and_graph_id`; or for each graph under a key `session_and_graph_id_0_1`.

    Raises:
        ValueError: it is no JSON; what stands before the broken place was yielded.
    """
    decoder = json.JSONDecoder()
    place = 0
    while (place := _end_of_blanks(text, place)) < len(text):
        try:
            found, place = decoder.raw_decode(text, place)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        for each in found if isinstance(found, list) else [found]:
            if isinstance(each, dict):
                yield from _fusions(each)


def _end_of_blanks(text: str, place: int) -> int:
    match = _BLANKS.match(text, place)
    return match.end() if match else place


def _fusions(result: Mapping[str, Any]) -> Iterator[Fusion]:
    named = result.get("session_and_graph_id", result.get("graphId"))
    yield from _passes(result, str(named) if isinstance(named, str | int) else "")
    for key, value in result.items():
        if key.startswith("session_and_graph_id_") and isinstance(value, dict):
            yield from _passes(value, key.removeprefix("session_and_graph_id_"))


def _passes(result: Mapping[str, Any], graph: str) -> Iterator[Fusion]:
    for kind in ("graph_fusion", "ub_fusion"):
        passes = result.get(kind)
        for name, times in passes.items() if isinstance(passes, dict) else ():
            if isinstance(times, dict):
                counts = (
                    max(0, _number(times.get(each))) for each in ("effect_times", "match_times")
                )
                yield Fusion(name, kind, graph, *counts)
