"""The station that decodes: the raw records of a call become an `ApiRecord`.

Comes in: a `TaskPayload`. Goes out: `Decoded`. Called by the checker, first of all stations. Calls that
cannot be checked end here, before any of their tensors is allocated: those that need too much memory, too.
No framework is imported here.
"""

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ray_precheck.accuracy.standards.msprobe import MSPROBE
from ray_precheck.bench.checkable import (
    changed_tensors,
    changes_its_input,
    is_random,
    skip_by_name,
    skip_by_record,
)
from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.decode import decode_record
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import CallPlan
from ray_precheck.inputs.layouts import buffers_of
from ray_precheck.operators.effects import KEEPS_ALL_BUT_FIRST, READS_LAYOUT
from ray_precheck.schema.dtypes import DTYPES, is_differentiable
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.values import TensorSpec, walk_specs

if TYPE_CHECKING:
    from ray_precheck.bench.run import Bench

_FLOAT64_BYTES = 8
# What differs between the records of calls of one kind, as writers of JSON have it: the statistics of their
# tensors, and the names of their files. Nothing that a `CallKind` tells depends on these.
_OWN = re.compile(
    rb'"(?:Max|Min|Mean|Norm)": ?(?:[-+.0-9eE]+|NaN|-?Infinity)|"(?:data_name|md5)": ?"[^"\\]*"'
)
# A large capture has some hundred kinds of calls, and a record some kilobytes.
_MOST_KINDS = 1 << 10
_LARGEST_KIND = 1 << 14


@dataclass(frozen=True, slots=True)
class Decoded:
    """A call without its inputs: its record, how both sides run it, and whether it draws numbers."""

    payload: TaskPayload
    record: ApiRecord
    plan: CallPlan
    is_random: bool


class CallKind(NamedTuple):
    """What calls have in common whose records differ in statistics alone: the bytes that they need, how both
    sides run them, and whether they draw numbers."""

    needed: int
    plan: CallPlan
    is_random: bool


# The kinds of the calls before, because there are few kinds among many calls.
_kinds: dict[tuple[str, str, bool, bytes, bytes], CallKind] = {}


def _kind_of(payload: TaskPayload, record: ApiRecord, *, with_implementations: bool) -> CallKind:
    """Return the kind of a call; `with_implementations` is that of `needed_bytes`.

    Raises:
        NotCheckable: calls of this kind cannot be checked.
    """
    ahead, behind = (_OWN.sub(b"", raw or b"") for raw in (payload.forward, payload.backward))
    key = record.name.type_name, record.framework, with_implementations, ahead, behind
    found = _kinds.get(key)
    if found is None:
        reason = skip_by_name(record.name, record.framework) or skip_by_record(record)
        if reason:
            raise NotCheckable(reason)
        found = CallKind(
            needed_bytes(record, with_implementations=with_implementations),
            call_plan(record),
            is_random(record),
        )
        if len(_kinds) >= _MOST_KINDS:
            _kinds.clear()
        if len(ahead) + len(behind) <= _LARGEST_KIND:
            _kinds[key] = found
    return found


def decode(payload: TaskPayload, settings: CheckSettings, bench: "Bench") -> Decoded:
    """Decode a call.

    Raises:
        NotCheckable: the record is broken, the call needs too much memory, or it has no bench.
    """
    record = decode_record(payload.name, payload.forward, payload.backward, settings.framework)
    own_rule = settings.standard.name == MSPROBE.name
    kind = _kind_of(payload, record, with_implementations=not own_rule)
    _require_memory(kind.needed, settings.memory_limit_bytes)
    decoded = Decoded(payload, record, kind.plan, kind.is_random)
    # Before any API runs: an API without a bench must not be called on the device either.
    if not decoded.is_random:
        bench.resolve(record.name)
    return decoded


def decoded_record(payload: TaskPayload, record: ApiRecord) -> Decoded:
    """Return a call of which the record is already decoded."""
    return Decoded(payload, record, call_plan(record), is_random(record))


def call_plan(record: ApiRecord) -> CallPlan:
    """Return how both sides run a call.

    With a backward record, gradients are compared for the tensors that the dump flags as requiring
    one, or for all floating tensors if it flags none (MindSpore has no such flags).
    """
    in_place = changes_its_input(record)
    changed = tuple(each.position for each in changed_tensors(record))
    reads = bool(READS_LAYOUT.of(record.name.type_name, record.framework))
    tensors = [spec for _, spec in record.input_tensors()]
    keeps = KEEPS_ALL_BUT_FIRST.of(record.name.type_name, record.framework)
    written = (*changed, 0) if in_place else changed
    uncast = tuple(range(1, len(tensors))) if keeps else written
    plan = CallPlan((), in_place, record.autocast, changed, reads, uncast)
    if not record.has_backward:
        return plan
    floating = [i for i, spec in enumerate(tensors) if is_differentiable(spec.dtype)]
    flagged = [i for i in floating if tensors[i].requires_grad]
    return replace(plan, differentiable=tuple(flagged or floating))


def _require_memory(needed: int, limit: int) -> None:
    if limit and needed > limit:
        raise NotCheckable(
            f"it needs about {needed / 2**30:.3g} GiB of memory, more than the"
            f" {limit / 2**30:.3g} GiB that a worker may take (--max-memory)"
        )


def needed_bytes(record: ApiRecord, *, with_implementations: bool = False) -> int:
    """Return the bytes that the tensors of a call take at the same time, on one host.

    Every tensor exists on the host, on the device and, in float64, in the bench; outputs once more as
    the bench's result on the host. Tensors that are not contiguous lie in a buffer on the host and on the
    device. With a backward record each input has a gradient like an output.
    What the call changes is compared as outputs are.
    `with_implementations`: the standard compares with other implementations on the CPU, one at a time. Each
    of them takes as much as the bench, and three times its results for the estimate of its rounding errors;
    the results of two are kept.
    """
    whole = [spec for _, spec in record.input_tensors()]
    inputs = [spec.stored for spec in whole]
    changed = [whole[each.position] for each in changed_tensors(record)]
    results = [
        leaf
        for spec in (*record.outputs, *(record.grads_in or ()))
        for _, leaf in walk_specs(spec, "")
        if isinstance(leaf, TensorSpec)
    ] + changed
    total = sum(_copies(spec) for spec in (*inputs, *results))
    total += sum(spec.size * _FLOAT64_BYTES for spec in results)
    total += sum(spec.nbytes + _host_bytes(spec) for spec in buffers_of(record))
    if record.has_backward:
        # The gradients of sparse inputs are compared with all their elements.
        inputs = [spec for spec in whole if spec.storage is None or spec.requires_grad is not False]
        total += sum(_copies(spec) + spec.size * _FLOAT64_BYTES for spec in inputs)
    if with_implementations:
        compared = [*results, *(inputs if record.has_backward else ())]
        total += sum(spec.size * _FLOAT64_BYTES for spec in (*inputs, *compared))
        total += 3 * sum(spec.size * _FLOAT64_BYTES for spec in compared)
        total += 2 * sum(_host_bytes(spec) for spec in compared)
    return total


def _copies(spec: TensorSpec) -> int:
    """Return the bytes of a tensor on the host, on the device and in the bench."""
    wide = 2 * _FLOAT64_BYTES if DTYPES[spec.dtype].kind == "complex" else _FLOAT64_BYTES
    return spec.nbytes + _host_bytes(spec) + spec.size * wide


def _host_bytes(spec: TensorSpec) -> int:
    """Return the bytes of a tensor in NumPy, which holds formats that it lacks as float32."""
    return spec.size * (
        DTYPES[spec.dtype].bits // 8 if DTYPES[spec.dtype].carrier == spec.dtype else 4
    )
