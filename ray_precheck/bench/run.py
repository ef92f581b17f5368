"""The float64 bench.

Comes in: an API name and the `HostCall` that the device got. Goes out: a `TorchExecution` in
float64 on the CPU. Called by `check`. Integers and booleans keep their dtypes, complex numbers become
complex128; dtype arguments that name a float become float64, and the result is rounded to the tested
dtype only when it is compared. A user's own bench comes first, then the benches of fused operators,
then the function to which the framework's descriptor maps the name.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from ray_precheck.bench.registry import References
from ray_precheck.descriptors.known import find_framework, load_part
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import CallPlan
from ray_precheck.frameworks.pytorch.names import absence
from ray_precheck.frameworks.pytorch.quantized import on_meaning
from ray_precheck.frameworks.pytorch.run import TorchExecution, TorchPlace
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall

_PLACE = TorchPlace(device="cpu", widen=True)


@contextmanager
def computing_threads(count: int) -> Iterator[None]:
    """Let torch compute with this number of threads inside the block."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Bench:
    """Finds and runs references for the APIs of one framework; `version` is that of torch."""

    version = torch.__version__

    def __init__(self, framework: str, references: References | None = None) -> None:
        # One thread: the same bits on every host, and the cores are shared out over records.
        torch.set_num_threads(1)
        self._resolve: Callable[[ApiName], Callable[..., Any]]
        self._resolve = load_part(find_framework(framework).bench)
        self._references = references or References(framework)

    def warm_up(self) -> None:
        """Compute something small, forward and backward: the first time takes 0.3 s longer."""
        value = torch.ones((64, 64), dtype=torch.float64, requires_grad=True)
        product = torch.nn.functional.linear(value, value)
        torch.autograd.grad(product, value, torch.ones_like(product))

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        """Return the function that is the bench of an API; raises `NotCheckable` where there is none."""
        found = self._references.find(name)
        if found is not None:
            return found
        return on_meaning(self._resolve(name))

    def origin(self, name: ApiName) -> str:
        """Return file and function of a user's own bench, "" for every other."""
        return self._references.origin(name)

    def forward(
        self, function: Callable[..., Any], call: HostCall, plan: CallPlan
    ) -> TorchExecution:
        """Run the reference in float64.

        Raises:
            NotCheckable: the reference uses a part of torch that the installed version lacks.
        """
        try:
            return TorchExecution(function, call, plan, _PLACE)
        except AttributeError as error:
            lacking = _part_of_torch(error)
            if lacking:
                raise NotCheckable(absence(lacking)) from error
            raise
        except TypeError as error:
            # Arguments come with versions, too.
            if "unexpected keyword argument" in str(error):
                raise TypeError(f"{error} (torch {self.version})") from error
            raise


def _part_of_torch(error: AttributeError) -> str:
    """Return the full name of the part of torch that an error misses, "" where it misses another."""
    home = error.obj
    name = getattr(home, "__name__", "") if isinstance(home, ModuleType) else ""
    return f"{name}.{error.name}" if name.split(".")[0] == "torch" else ""
