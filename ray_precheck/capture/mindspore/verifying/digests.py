"""Digests of the bytes of MindSpore's tensors, and of the states of random generators.

Comes in: values as operators get and give them. Goes out: texts that are equal where every bit is. Called by
the tracing of a step. Values are read on the host, so that no operator of MindSpore runs.

The states of kernels that draw by a seed of their own (`ops.dropout`) cannot be read: what they draw is.
"""

from typing import Any

import mindspore as ms

from ray_precheck.capture.measures.checksums import raw_bytes
from ray_precheck.capture.mindspore.summary import values_on_host
from ray_precheck.capture.verifying.digests import Digests, other_random_digests
from ray_precheck.foreign import caught


def digest_of(value: Any) -> str:
    """Return the digest of the tensors and plain values in a nested value.

    Of a tensor that cannot be read (not yet initialised, of a failed operator) it has the dtype and shape.
    """
    return _DIGESTS.of(value)


def _raw(tensor: ms.Tensor) -> Any:
    values, _ = caught(lambda: values_on_host(tensor))
    return None if values is None else raw_bytes(values).data


_DIGESTS = Digests(ms.Tensor, _raw)


def random_digest() -> str:
    """Return the digest of the state of MindSpore's generator, which is taken behind each operator."""
    return digest_of(ms.get_rng_state())


def random_digests() -> dict[str, str]:
    """Return the digests of the states of the generators of MindSpore, numpy and Python."""
    return {"the random state of MindSpore": random_digest()} | other_random_digests()
