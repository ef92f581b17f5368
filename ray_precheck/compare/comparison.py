"""What a standard may look at when it judges one output.

Comes in: arrays of one shape, from `compare.outputs`. Goes out: `Comparison`, which every standard
takes. What costs another run of the API is a function, called only by the standards that need it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Metrics


def no_peers() -> tuple[Array, ...]:
    """Return what a comparison has where the CPU cannot be run in the tested dtype: nothing."""
    return ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output, or one gradient, beside its bench.

    `type_name` is the API without its number (`Mint.matmul`), `direction` forward or backward.
    `dtype` is the canonical dtype of the tested output and `device_out` its carrier array;
    `bench_out` is the bench, float64, complex128 or integers, before it is rounded to `dtype`, and
    `metrics` are the distances to it after that. `peers` are what honest implementations on this
    machine's CPU make of the same inputs, each the carrier array of `dtype`, the first one torch's own operator run
    in the recorded dtypes, or where that cannot run a composed one; () where there is none. The
    sequence is lazy: each is run when it is first asked for.
    """

    type_name: str
    direction: str
    dtype: str
    device_out: Array
    bench_out: Array
    metrics: Metrics
    peers: Callable[[], Sequence[Array]] = no_peers
