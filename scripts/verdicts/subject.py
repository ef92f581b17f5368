"""One call with its bench and everything that may be judged against it.

Comes in: a payload. Goes out: for each output and gradient the bench, the honest results by name,
and a way to run the tested side with something wrong in it. Called by `verdicts.py`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from ray_precheck.bench.checkable import is_random, skip_by_name, skip_by_record
from ray_precheck.bench.run import Bench
from ray_precheck.check.bench import Implementations
from ray_precheck.check.decode import call_plan
from ray_precheck.check.inputs import as_in_dtype
from ray_precheck.dump.decode import decode_record
from ray_precheck.dump.tensors import CapturedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Leaf
from ray_precheck.frameworks.pytorch.run import TorchExecution, TorchPlace
from ray_precheck.inputs import RECORDED
from ray_precheck.inputs.generate import (
    GeneratedTensors,
    assign_cotangents,
    build_call,
    generated_tensors,
)
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.values import HostCall, HostTensor
from scripts.verdicts.honest import honest_functions

Key = tuple[str, int]  # direction and position
Results = dict[Key, HostTensor]
Function = Callable[..., Any]

_RECORDED, _WIDE = TorchPlace(), TorchPlace(widen=True)
# What an implementation says that does not take these arguments, or this dtype.
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotCheckable)


class Shared:
    """What all runs of one framework's calls share; MindSpore is opened only where it is wanted."""

    def __init__(self, framework: str, with_mindspore: bool = True) -> None:
        self.framework = framework
        self.bench = Bench(framework)
        self.mindspore: Any = None
        if with_mindspore:
            from ray_precheck.frameworks.mindspore.backend import MindSporeBackend

            self.mindspore = MindSporeBackend("cpu")


class Run:
    """A call with its inputs; runs forward and backward in any way.

    `mint` is the call's name in MindSpore, "" for none. With `data` the inputs are the captured
    ones of that folder, else they are generated.

    Raises:
        NotCheckable: it is not for element-wise comparison, or cannot be built.
    """

    def __init__(
        self,
        payload: TaskPayload,
        mint: str,
        shared: Shared,
        seed: int = 0,
        data: Path | None = None,
    ) -> None:
        self.record = decode_record(
            payload.name, payload.forward, payload.backward, shared.framework
        )
        reason = skip_by_name(self.record.name, shared.framework) or skip_by_record(self.record)
        if reason or is_random(self.record):
            raise NotCheckable(reason or "random")
        self._source: Any = CapturedTensors(data) if data else _generated(seed, self.record)
        self._mint, self._shared = mint, shared
        self.call = build_call(self.record, self._source)
        self.plan = call_plan(self.record)
        self.bench_call = as_in_dtype(self.record.name.type_name, shared.framework, self.call)
        self.function = shared.bench.resolve(self.record.name)
        self.cotangents: list[HostTensor | None] = []
        if self.plan.differentiable:
            outputs = TorchExecution(self.function, self.call, self.plan, _RECORDED).outputs
            tensors = [leaf if isinstance(leaf, HostTensor) else None for leaf in outputs]
            self.cotangents = assign_cotangents(
                self.record, tensors, self._source, may_reshape=data is None
            )

    @property
    def framework(self) -> str:
        """The framework of the record."""
        return self._shared.framework

    @property
    def type_name(self) -> str:
        """The API, `Torch.matmul`."""
        return self.record.name.type_name

    @cached_property
    def bench(self) -> Results:
        """The bench, not rounded."""
        return self._results(TorchExecution(self.function, self.bench_call, self.plan, _WIDE))

    @cached_property
    def native(self) -> Results:
        """torch's own operator in the recorded dtypes."""
        return self.tested(self.function)

    def tested(
        self,
        function: Function,
        context: AbstractContextManager[Any] | None = None,
        call: HostCall | None = None,
        cotangents: Sequence[HostTensor | None] | None = None,
    ) -> Results:
        """Run a function of the call's arguments in the recorded dtypes."""
        with context or nullcontext():
            execution = TorchExecution(function, call or self.call, self.plan, _RECORDED)
            return self._results(execution, cotangents)

    def _results(
        self, execution: Any, cotangents: Sequence[HostTensor | None] | None = None
    ) -> Results:
        found: dict[Key, Leaf] = {("forward", i): leaf for i, leaf in enumerate(execution.outputs)}
        if self.plan.differentiable:
            incoming = self.cotangents if cotangents is None else cotangents
            grads = execution.gradients(list(incoming))
            found |= {("backward", i): grad for i, grad in enumerate(grads)}
        return {key: leaf for key, leaf in found.items() if isinstance(leaf, HostTensor)}

    @cached_property
    def honest(self) -> dict[str, Results]:
        """The results of every honest implementation that takes the call, by its name."""
        found = {"torch": self.native}
        for name, (function, context) in honest_functions(self.torch_name, self.function).items():
            try:
                if _takes(function, self.call):
                    found[name] = self.tested(function, context())
            except REFUSALS:
                continue
        results = self.on_mindspore()
        if results:
            found["MindSpore"] = results
        return found

    @property
    def torch_name(self) -> str:
        """The API as torch calls it."""
        prefixes = {"Mint": "Torch", "MintFunctional": "Functional"}
        prefix, _, api = self.type_name.partition(".")
        return f"{prefixes.get(prefix, prefix)}.{api}"

    def on_mindspore(self) -> Results:
        """What MindSpore's kernels make of the call; nothing where they do not take it."""
        prefix, _, api = self._mint.partition(".")
        backend = self._shared.mindspore
        if not self._mint or backend is None:
            return {}
        try:
            function = backend.resolve(ApiName(prefix, api, 0))
            return self._results(backend.forward(function, self.call, self.plan))
        except REFUSALS:
            return {}

    @cached_property
    def implementations(self) -> Mapping[str, Implementations]:
        """What the tool itself takes for honest, for each direction."""
        function, call, plan = self.function, self.bench_call, self.plan
        return {
            "forward": Implementations(function, call, plan, lambda run, _: run.outputs),
            "backward": Implementations(
                function, call, plan, lambda run, incoming: run.gradients(incoming), self.cotangents
            ),
        }


def _generated(seed: int, record: ApiRecord) -> GeneratedTensors:
    return generated_tensors(seed, record, RECORDED)


def _takes(function: Function, call: HostCall) -> bool:
    """Return whether a function has parameters for the arguments of a call."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # torch's own functions have none
        return True
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError:
        return False
    return True
