"""The memory that the check of a call needs, estimated before any of it is allocated.

Comes in: an `ApiRecord`. Goes out: bytes. Called by the checker, which skips calls that need too
much.
"""

from ray_precheck.bench.checkable import changed_tensors
from ray_precheck.inputs.layouts import buffers_of
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import TensorSpec, walk_specs

_FLOAT64_BYTES = 8


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
