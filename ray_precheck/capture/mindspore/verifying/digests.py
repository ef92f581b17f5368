"""Digests of the bytes of MindSpore's tensors, and of the states of random generators.

Comes in: values as operators get and give them. Goes out: texts that are equal where every bit is. Called by
the tracing of a step. Values are read on the host, so that no operator of MindSpore runs.

The states within random kernels cannot be read: what they draw is.
"""

from typing import Any

import mindspore as ms

from ray_precheck import private_parts
from ray_precheck.capture.measures.checksums import raw_bytes
from ray_precheck.capture.mindspore.tensors import values_on_host
from ray_precheck.capture.verifying.digests import Digests, other_random_digests
from ray_precheck.foreign import caught


def mindspore_digest_of(value: Any) -> str:
    """Return the digest of the tensors and plain values in a nested value.

    Of a tensor that cannot be read (not yet initialised, of a failed operator) it has the dtype and shape.
    """
    return _DIGESTS.of(value)


def _raw(tensor: ms.Tensor) -> Any:
    values, _ = caught(lambda: values_on_host(tensor))
    return None if values is None else raw_bytes(values).data


_DIGESTS = Digests(ms.Tensor, _raw)


def mindspore_random_digest() -> str:
    """Return one digest of MindSpore's random states, which is taken behind each operator.

    They are that of its generator, and the seeds that the next kernels get.
    """
    seeds: dict[Any, int] = private_parts.find(private_parts.MINDSPORE_SEEDS) or {}
    return mindspore_digest_of([ms.get_rng_state(), *map(str, sorted(seeds.items(), key=str))])


def mindspore_random_digests() -> dict[str, str]:
    """Return the digests of the states of the generators of MindSpore, numpy and Python."""
    return {"the random state of MindSpore": mindspore_random_digest()} | other_random_digests()
