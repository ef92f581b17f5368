"""Makes the tasks of a dump.

Comes in: an open dump and the names that are done. Goes out: the tasks that are left, the costly ones first,
and the SKIP results of calls that need no run: their name rules them out, or with `--filter_api` another call
is alike. Costs are estimated from the raw JSON of records, good for ordering, batch sizes and the choice of
the worker, and for nothing else: nothing is decoded.
"""

import functools
import re
from collections.abc import Set
from dataclasses import dataclass

from ray_precheck.bench.checkable import skip_by_name
from ray_precheck.dump.names import ApiKey, parse_key
from ray_precheck.dump.parse import LARGEST_RECORD_BYTES, Dump, DumpCall
from ray_precheck.dump.scan import OnProgress, RecordWindow, silent
from ray_precheck.replay.plan.alike import AlikeCalls
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.result import TaskResult, skipped
from ray_precheck.schema.task import Task

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
    judge = _Names(framework)
    ahead, behind = (RecordWindow(dump.file.fileno()) for _ in range(2))
    alike = AlikeCalls() if filter_alike else None
    for index, call in enumerate(dump.calls):
        if index % _CALLS_A_REPORT == 0:
            on_progress(index, len(dump.calls))
        is_done = call.name in done
        if is_done and alike is None:
            continue
        name, reason = judge.judged(call)
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


class _Names:
    """Judges calls by their names: thousands are of one API, whose name is read once."""

    def __init__(self, framework: str) -> None:
        self._framework = framework
        self._kinds: dict[str, tuple[ApiName | None, str]] = {}

    def judged(self, call: DumpCall) -> tuple[ApiName | None, str]:
        """Return the API of a call, and the reason why it is not checked, "" if it is."""
        kind = call.name.rpartition(".")[0]
        if kind not in self._kinds:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            self._kinds[kind] = _judged(call.name, self._framework)
        name, reason = self._kinds[kind]
        return name, call.foreign or _broken(call) or reason


def _judged(call: str, framework: str) -> tuple[ApiName | None, str]:
    """Return the API of a call, and why its name rules it out, "" if it does not."""
    key = parse_key(f"{call}.forward")
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
    longer = len(record) - _FREE_BYTES
    return longer * _PER_BYTE_S if longer > 0 else 0.0


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
