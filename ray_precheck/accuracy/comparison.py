"""The facts by which a standard judges one output.

Comes in: arrays of one shape, from `accuracy.outputs`. Goes out: `Comparison`, which every standard
takes. Facts that cost another run of the API are functions, called only by the standards that need
them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Metrics


def no_implementations() -> tuple[Array, ...]:
    """Return the implementations of a comparison if the CPU cannot run in the tested dtype: none."""
    return ()


@runtime_checkable
class WithMoved(Protocol):
    """Implementations that can also compute the bench of moved inputs."""

    @property
    def moved(self) -> Sequence[Array]:
        """The bench, not rounded, for inputs moved by up to half a unit in the last place, back by as
        much, and by next to nothing, both ways."""


def moved_benches(implementations: Sequence[Array]) -> Sequence[Array]:
    """Return the benches of moved inputs; () where the implementations have none."""
    return implementations.moved if isinstance(implementations, WithMoved) else ()


def coarse_implementations(implementations: Sequence[Array]) -> tuple[Sequence[Array], str]:
    """Return the results of honest implementations whose float32 products have operands of fewer bits, as
    the tested one's have, and the words for these; (), "" where it has full float32, or makes no product."""
    found = getattr(implementations, "coarse", ())
    return (found, getattr(implementations, "formats", "")) if len(found) else ((), "")


def narrowed_implementations(implementations: Sequence[Array]) -> Sequence[Array]:
    """Return the results of implementations of a half type that also round the numbers of a formula to it;
    () where there are none."""
    return getattr(implementations, "narrowed", ())


def moved_farther(implementations: Sequence[Array]) -> float:
    """Return how many times as far from the bench as the moves bring it the benches of moved inputs are.

    It is 1 but for float64, which has no room for what half a unit in the last place of the inputs does.
    """
    return float(getattr(implementations, "moved_farther", 1.0))


def kernel_of(implementations: Sequence[Array]) -> Array | None:
    """Return the values of torch's own operator on the CPU in the recorded dtypes, which may be wrong;
    None if the implementations do not have it, or if it is the kernel under test."""
    # No protocol: to look whether it is there would run it.
    return getattr(implementations, "kernel", None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output, or one gradient, beside its bench.

    `type_name` is the API without its number (`Mint.matmul`) in a dump of `framework` ("": unknown),
    `direction` forward, backward, or changed. `dtype` is the canonical dtype of the tested output and
    `device_out` its carrier array; `bench_out` is the bench in float64, complex128 or integers, before
    it is rounded to `dtype`, and `metrics` are the distances to it after rounding. `implementations` are the
    results of honest implementations for the same inputs, carrier arrays of `dtype` computed without a
    kernel of the tested dtype; () if there are none. The sequence is lazy: an implementation is computed
    when it is first read. `kernel_of`, `moved_benches`, `coarse_implementations` and
    `narrowed_implementations` give further results that it may be compared with. `is_coarse`: the
    implementations are those of `coarse_implementations`. `is_exact`: the output moves, compares or chooses
    the given numbers, so that it has one right value.
    """

    type_name: str
    direction: str
    dtype: str
    device_out: Array
    bench_out: Array
    metrics: Metrics
    implementations: Callable[[], Sequence[Array]] = no_implementations
    framework: str = ""
    is_coarse: bool = False
    is_exact: bool = False
