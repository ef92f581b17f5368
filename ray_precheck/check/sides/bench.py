"""The station of the bench: it runs a call forward in float64.

Comes in: `UnderTest`. Goes out: `Benched`, of which the judge gets gradients, and which can run again on
other inputs. Called by the checker, and by `check.random.judge` where a device has raised.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray_precheck.bench.run import Bench
from ray_precheck.check.inputs import Inputs
from ray_precheck.check.sides.attempt import Attempt, attempt_forward
from ray_precheck.check.sides.tested import UnderTest
from ray_precheck.descriptors.known import find_framework
from ray_precheck.frameworks.base import Execution
from ray_precheck.frameworks.pytorch.run import TorchExecution
from ray_precheck.schema.values import HostCall, HostTensor


@dataclass(frozen=True, slots=True)
class Benched:
    """A call whose results are tested, and the outcome of the bench's forward pass."""

    tested: UnderTest
    attempt: Attempt
    bench: Bench

    @property
    def function(self) -> Callable[..., Any]:
        """The torch callable that is the bench."""
        return self.bench.resolve(self.tested.inputs.record.name)

    @property
    def author(self) -> str:
        """The file and function of a user's own bench, "" for the benches of this package."""
        return self.bench.origin(self.tested.inputs.record.name)

    def run_again(self, call: HostCall) -> Execution:
        """Run the bench on other inputs of the same call; its exceptions are not caught."""
        return self.bench.forward(self.function, call, self.tested.inputs.plan)


def run_bench(bench: Bench, tested: UnderTest) -> Benched:
    """Run the bench forward, unless the second try has run it already.

    Raises:
        NotCheckable: there is no bench.
        OutOfMemory: an allocation failed.
    """
    return Benched(tested, tested.bench or attempt_bench(bench, tested.inputs), bench)


def attempt_bench(bench: Bench, inputs: Inputs) -> Attempt:
    """Return the outcome of the bench's forward pass; raises as `run_bench`."""
    return attempt_forward(bench, inputs.record.name, inputs.bench_call, inputs.plan)


def gradients_as_dumped(
    inputs: Inputs, framework: str, run: Execution, cotangents: list[HostTensor | None]
) -> list[HostTensor | None]:
    """Return gradients of a run in the order in which the framework's dumps list them.

    Where the dump says to which input each gradient belongs, there is one for each tensor of the inputs.
    """
    if inputs.record.gradient_of is not None:
        return _by_input(inputs, run.gradients(cotangents))
    if find_framework(framework).node_gradients and isinstance(run, TorchExecution):
        return run.node_gradients(cotangents)
    return _by_input(inputs, run.gradients(cotangents))


def _by_input(inputs: Inputs, grads: list[HostTensor | None]) -> list[HostTensor | None]:
    """Return a gradient or None for each tensor of the inputs, as MindSpore's dumps list them, too."""
    spread: list[HostTensor | None] = [None] * sum(1 for _ in inputs.record.input_tensors())
    for position, grad in zip(inputs.plan.differentiable, grads, strict=True):
        spread[position] = grad
    return spread
