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
from ray_precheck.capture.verifying.digests import Digests
from ray_precheck.foreign import caught


class MindSporeDigests(Digests):
    """Takes digests of the values of a MindSpore program."""

    tensor = ms.Tensor

    def raw(self, tensor: ms.Tensor) -> Any:
        """Return the bytes of a tensor, None for one not yet initialised, or of a failed operator."""
        values, _ = caught(lambda: values_on_host(tensor))
        return None if values is None else raw_bytes(values).data

    def states(self) -> dict[str, Any]:
        """Return the state of MindSpore's generator, with the seeds that the next kernels get."""
        seeds: dict[Any, int] = private_parts.find(private_parts.MINDSPORE_SEEDS) or {}
        state = [ms.get_rng_state(), *map(str, sorted(seeds.items(), key=str))]
        return {"the random state of MindSpore": state}
