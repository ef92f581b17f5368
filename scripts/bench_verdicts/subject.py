"""One call with what an honest device made of it, and what one with a fault does.

Comes in: a `Known` call, a dtype, and how hard its inputs are. Goes out: a `Subject`: the payload, the inputs
by path, and honest outputs and gradients, which are handed to `Checker.check` as another process's device
would hand them over. Called by `bench_verdicts.main` and `bench_verdicts.faults`. Nothing here knows the
bench.

The device computes in float32 and rounds each result once, as accelerators do. torch's own kernels of half
types take some hundred times as long on a CPU; they are a second honest device where the call is small.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.check.attempt import Measured
from ray_precheck.check.checker import Checker
from ray_precheck.check.decode import decode
from ray_precheck.check.inputs import Inputs, cotangents_of, make_inputs, source_of
from ray_precheck.check.settings import CheckSettings
from ray_precheck.frameworks.base import Leaf, map_leaves
from ray_precheck.frameworks.pytorch.run import TorchExecution, TorchPlace
from ray_precheck.inputs.generate import GeneratedTensors, TensorSource
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.values import HostCall, HostTensor
from scripts.bench_verdicts.records import HARD, Known

# A result and where it stands: "forward" or "backward", and its position.
Place = tuple[str, int]
Tensors = dict[Place, HostTensor]
_PLACE = TorchPlace()


def settings_of(standard: Any, **more: Any) -> CheckSettings:
    """Return the settings of a check of torch's calls by a standard; `more` are those of the bench."""
    return CheckSettings("pytorch", "statistics", Path(), standard=standard, **more)


@dataclass(frozen=True)
class Subject:
    """A call with its inputs; `checker` only decodes it and finds the function.

    `hard` is the name of what its inputs are made (`records.HARD`).
    """

    known: Known
    dtype: str
    hard: str
    seed: int
    checker: Checker
    settings: CheckSettings

    @property
    def label(self) -> str:
        """The call, its dtype and its inputs, in words."""
        return f"{self.known.label}, {self.dtype}, {self.hard}, {self.seed}"

    @cached_property
    def payload(self) -> TaskPayload:
        """The call as the scheduler would send it to a worker; its number makes its inputs others."""
        made = self.known.case.payload(self.dtype)
        return replace(made, name=f"{self.known.case.name}.{self.seed}")

    @cached_property
    def inputs(self) -> Inputs:
        """The arguments, drawn of the record and then made hard."""
        decoded = decode(self.payload, self.settings, self.checker.bench)
        first = source_of(decoded.record, self.settings, keeps=True)
        make_inputs(decoded, first)
        rng = np.random.default_rng(self.seed)
        drawn = {path: self._hardened(one, rng) for path, one in _drawn(first).items()}
        source = source_of(decoded.record, self.settings, keeps=True)
        assert isinstance(source, GeneratedTensors)
        source.take(drawn, ())
        made = make_inputs(decoded, source)
        self.given.update(drawn)
        return made

    @cached_property
    def given(self) -> dict[str, HostTensor]:
        """The tensors by path, which the bench takes instead of drawing them."""
        return {}

    def _hardened(self, tensor: HostTensor, rng: np.random.Generator) -> HostTensor:
        """Return a tensor made hard; weights (of the first axes alone, such as a norm's) stay as they are."""
        if DTYPES[tensor.dtype].kind != "float" or tensor.data.ndim < 2:
            return tensor
        wide = HARD[self.hard](np.array(tensor.data, np.float64, order="C"), rng)
        limit = 0.1 * DTYPES[tensor.dtype].largest
        return replace(tensor, data=round_to_dtype(np.clip(wide, -limit, limit), tensor.dtype))

    @cached_property
    def cotangents(self) -> list[HostTensor | None]:
        """The incoming gradients."""
        found = cotangents_of(self.inputs, list(self._forward.outputs))
        drawn = _drawn(self.inputs.source)
        self.given.update({path: one for path, one in drawn.items() if path.startswith("backward")})
        return found

    @cached_property
    def _forward(self) -> Any:
        return self._execution(self.inputs.call)

    @cached_property
    def honest(self) -> Tensors:
        """Outputs and gradients of an honest device."""
        return self.computed()

    def computed(
        self,
        change: Callable[[HostCall], HostCall] = lambda call: call,
        cotangents: Sequence[HostTensor | None] | None = None,
        function: Callable[..., Any] | None = None,
        *,
        wide: bool = True,
        finish: Callable[[HostTensor], HostTensor] | None = None,
    ) -> Tensors:
        """Run the call in float32 (not `wide`: in its dtypes), perhaps changed, and round once (`finish`)."""
        incoming = list(self.cotangents if cotangents is None else cotangents)
        call = change(self.inputs.call)
        ran = self._execution(call, function, wide=wide)
        found: dict[Place, Leaf] = {("forward", i): one for i, one in enumerate(ran.outputs)}
        if self.inputs.record.has_backward and self.inputs.plan.differentiable:
            grads = ran.gradients([_float32(one) if wide else one for one in incoming])
            found |= {("backward", i): one for i, one in enumerate(grads)}
        finish = finish or self.rounded
        return {at: finish(one) for at, one in found.items() if isinstance(one, HostTensor)}

    def _execution(
        self, call: HostCall, function: Callable[..., Any] | None = None, *, wide: bool = True
    ) -> TorchExecution:
        if wide:
            call = HostCall(map_leaves(call.args, _float32), map_leaves(call.kwargs, _float32))
        function = function or self.checker.device().resolve(self.inputs.record.name)
        return TorchExecution(function, call, self.inputs.plan, _PLACE)

    def rounded(self, tensor: HostTensor) -> HostTensor:
        """Return a result in the dtype of the record."""
        if DTYPES[tensor.dtype].kind != "float" or tensor.dtype == self.dtype:
            return tensor
        return HostTensor(self.dtype, round_to_dtype(tensor.data.astype(np.float64), self.dtype))

    def measured(self, results: Mapping[Place, HostTensor]) -> Measured:
        """Return results as another process's device hands them over."""
        both: dict[str, list[Any]] = {"forward": [], "backward": []}
        for (direction, _), one in sorted(results.items()):
            both[direction].append(one)
        gradients = both["backward"] or None
        return Measured(both["forward"], gradients=gradients, inputs=self.given)


def _drawn(source: TensorSource) -> dict[str, HostTensor]:
    return source.drawn if isinstance(source, GeneratedTensors) else {}


def _float32(value: Any) -> Any:
    """Return a float tensor in float32, which is the carrier of bfloat16."""
    if isinstance(value, HostTensor) and DTYPES[value.dtype].kind == "float":
        return HostTensor("float32", value.data.astype(np.float32))
    return value
