"""Makes the tasks of a dump.

Comes in: an open dump and the names that are done. Goes out: the tasks that are left, the costly ones first,
and the SKIP results of calls that need no run: their name rules them out, or with `--filter_api` another call
is alike. Costs are estimated from the raw JSON of records, good for ordering, batch sizes and the choice of
the worker, and for nothing else: nothing is decoded.

Calls of a dump that are alike: the same API with the same shapes, dtypes and scalars. Two calls are alike
if all their values in the dump are, nested ones too, forward and backward: tensors by their type, dtype,
shape and requires_grad, all other values by everything that the dump has of them. The contents of a tensor
(Max, Min, Mean, Norm, md5, the name of its file) do not count, nor does where in the program a call was
made.

Makes the tasks of a dump. Costs are estimated from the raw JSON of records, good for ordering, batch sizes
and the choice of the worker, and for nothing else: nothing is decoded.
"""

import functools
import json
import re
from collections.abc import Set
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

from ray_precheck.bench.checkable import skip_by_name
from ray_precheck.dump.parse import LARGEST_RECORD_BYTES, Dump, DumpCall
from ray_precheck.dump.scan import ApiKey, OnProgress, RecordWindow, loose_json, parse_key, silent
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.result import TaskResult, skipped
from ray_precheck.schema.task import Task

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
        value = loose_json(record)
        if isinstance(value, dict):
            value = {key: item for key, item in value.items() if key not in _PLACE_OF_CALL}
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


_MOST_KINDS = 10_000
_CALLS_A_REPORT = 1 << 12


@dataclass(frozen=True, slots=True)
class Plan:
    """The calls that are not done: tasks in the order to run them, and results that need no run."""

    tasks: tuple[Task, ...]
    skipped: tuple[TaskResult, ...]


def plan_tasks(
    dump: Dump,
    framework: str,
    done: Set[str],
    *,
    filter_alike: bool = False,
    on_progress: OnProgress = silent,
) -> Plan:
    """Plan every call of the dump that is not done, costly ones first, ties in dump order.

    With `filter_alike`, of calls that are alike the first one in dump order is planned, done or
    not, and the others are skipped. `on_progress` is told how many calls are planned, and of how
    many, every few thousand calls.
    """
    tasks: list[Task] = []
    skips: list[TaskResult] = []
    # Thousands of calls are of one API, whose name is read once.
    judge = functools.lru_cache(_MOST_KINDS)(partial(_judged, framework=framework))
    ahead, behind = (RecordWindow(dump.file.fileno()) for _ in range(2))
    alike = AlikeCalls() if filter_alike else None
    for index, call in enumerate(dump.calls):
        if index % _CALLS_A_REPORT == 0:
            on_progress(index, len(dump.calls))
        is_done = call.name in done
        if is_done and alike is None:
            continue
        name, reason = judge(call.name.rpartition(".")[0])
        reason = call.foreign or _broken(call) or reason
        if name is None or reason:
            if not is_done:
                skips.append(skipped(index, call.name, reason, call.backward is not None))
            continue
        forward, backward = ahead.raw(call.forward) or b"", behind.raw(call.backward)
        # Done calls are read too: a done call can be the first of its kind for calls that are not
        # done.
        reason = "" if alike is None else alike.reason(call.name, forward, backward)
        if is_done:
            continue
        if reason:
            skips.append(skipped(index, call.name, reason, backward is not None))
        else:
            tasks.append(Task(index, call.name, *estimate_load(name, forward, backward)))
    on_progress(len(dump.calls), len(dump.calls))
    tasks.sort(key=lambda task: (-task.cost_s, task.index))
    return Plan(tuple(tasks), tuple(skips))


def _judged(kind: str, framework: str) -> tuple[ApiName | None, str]:
    """Return the API of calls, as `Torch.add`, and why its name rules them out, "" if it does not."""
    key = parse_key(f"{kind}.0.forward")
    if not isinstance(key, ApiKey):
        return None, key.reason
    return key.name, skip_by_name(key.name, framework)


def _broken(call: DumpCall) -> str:
    for span in (call.forward, call.backward):
        if span is not None and span.end - span.start > LARGEST_RECORD_BYTES:
            return (
                f"a record of this call has {span.end - span.start} bytes;"
                f" at most {LARGEST_RECORD_BYTES >> 20} MiB are read"
            )
    if call.forward is None:
        return "the dump has a backward record of this call but no forward record"
    return ""


_SHAPE = re.compile(rb'"shape"\s*:\s*\[([0-9,\s]*)\]')
# Measured on the CPU captures that the repository ships, one core of a shared machine, +-50 %.
_PER_CALL_S = 1.2e-3
_PER_GRADIENT_S = 1.5e-3
_PER_ELEMENT_S = 60e-9
_PER_FLOP_S = 0.15e-9
# The cost of decoding records that are longer than those of the other measurements, so that a batch
# of tiny tensors does not have a thousand megabytes of JSON.
_PER_BYTE_S = 20e-9
_FREE_BYTES = 1 << 16
_LARGEST_S = 1e6
_MOST_ELEMENTS = 1 << 63
_ELEMENT_BYTES = 4
_OUTPUT = b'"output"'
_PRODUCTS = ("matmul", "linear", "bmm", "mm", "conv", "einsum", "attention", "dense", "dot")


def estimate_load(name: ApiName, forward: bytes, backward: bytes | None) -> tuple[float, int]:
    """Return the seconds that checking a call takes, device and bench together, and the bytes of its
    outputs and gradients, taken as 32-bit ones.

    Elements of all tensors are counted once; sums of products count 2 k floating-point operations
    an output element, with k**2 = |A| |B| / |C| as for a product of matrices A (m,k) and B (k,n).
    """
    sizes = _sizes(forward)
    elements = float(sum(sizes))
    made = sum(_sizes(forward[forward.rfind(_OUTPUT) :]))
    cost = _PER_CALL_S + _decoding_s(forward)
    passes = 1
    if backward is not None:
        elements += sum(_sizes(backward))
        made += sum(_sizes(backward[backward.rfind(_OUTPUT) :]))
        cost += _PER_GRADIENT_S + _decoding_s(backward)
        passes = 3
    cost += elements * _PER_ELEMENT_S
    if len(sizes) > 2 and _is_product(name.api):
        left, right, out = float(sizes[0]), float(sizes[1]), float(max(sizes[-1], 1))
        inner = (left * right / out) ** 0.5
        cost += passes * 2.0 * out * inner * _PER_FLOP_S
    return min(cost, _LARGEST_S), min(made, _MOST_ELEMENTS) * _ELEMENT_BYTES


def _sizes(record: bytes) -> list[int]:
    """Return the elements of every tensor of a record."""
    return list(map(_elements, _SHAPE.findall(record)))


def _decoding_s(record: bytes) -> float:
    return max(0, len(record) - _FREE_BYTES) * _PER_BYTE_S


@functools.lru_cache(1024)
def _is_product(api: str) -> bool:
    return any(part in api for part in _PRODUCTS)


@functools.lru_cache(1 << 14)
def _elements(shape: bytes) -> int:
    """Return the elements of a shape; more of them, or more digits, than any tensor has count as
    the most: the product of 100,000 long numbers would take minutes."""
    count = 1
    for extent in shape.replace(b",", b" ").split():
        count = min(count * int(extent[:19]), _MOST_ELEMENTS)
        if count == 0:
            break
    return count
