"""Records of any API, made from sample arguments as msprobe writes them, and what a check makes of them.

A sample's arguments are torch tensors, whatever the framework: the record has their dtypes, shapes
and extremes. The checker draws inputs of its own from those; an operator that asks more of its
inputs than extremes can say (a positive definite matrix) gets the sample's own tensors, as from a
dump that holds them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from records import Element, call, symbol

from ray_precheck.check.checker import Checker
from ray_precheck.descriptors.descriptor import framework_dtype
from ray_precheck.inputs.generate import GeneratedTensors
from ray_precheck.schema.result import OutputCheck, TaskResult, Verdict
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.values import HostTensor, TensorSpec


@dataclass(frozen=True)
class Sample:
    """Arguments of a call; `grads` are the outputs that gradients come in at, None for none.

    `fits` says that the reference takes these arguments.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    grads: list[Any] | None = None
    fits: bool = True


@dataclass(frozen=True)
class Finding:
    """What became of the samples of one API: how it passed, or why it did not.

    `before` is the difference in numbers that another sample, or generated inputs, showed before.
    """

    how: str
    reason: str = ""
    before: str = ""

    @property
    def executed(self) -> bool:
        return self.how in (GENERATED, OWN_INPUTS)


# A fixture `findings` looks at every so many-th name. A share of all names can only be said of all.
SOME_AND_ALL_NAMES = pytest.mark.parametrize(
    "findings", [8, pytest.param(1, marks=pytest.mark.exhaustive)], indirect=True
)
ALL_NAMES = pytest.mark.parametrize(
    "findings", [pytest.param(1, marks=pytest.mark.exhaustive)], indirect=True
)
GENERATED = "generated inputs"
OWN_INPUTS = "the sample's own inputs"
NO_KERNEL = "no kernel"
FAILED = "failed"
SKIPPED = "skipped"


class SampleTensors(GeneratedTensors):
    """A source that gives the sample's own tensors by their paths, and draws the gradients."""

    def __init__(self, name: str, sample: Sample) -> None:
        super().__init__(0, name)
        self._own = {
            f"input_{kind}.{path}": tensor
            for kind, value in (("args", sample.args), ("kwargs", sample.kwargs))
            for path, tensor in _tensors(value)
        }

    def tensor(self, spec: TensorSpec, path: str, *rest: Any) -> HostTensor:
        if path not in self._own:
            return super().tensor(spec, path, *rest)
        own = self._own[path].detach()
        if own.dtype is torch.bfloat16:
            own = own.float()
        return HostTensor(spec.dtype, np.array(own.resolve_conj().numpy()))


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if torch.is_tensor(value):
        yield path[1:], value
        return
    if not isinstance(value, dict | list | tuple):
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _tensors(item, f"{path}.{key}")


def payload(name: str, sample: Sample, framework: str) -> TaskPayload:
    """Return the record of a call as msprobe writes it in statistics mode."""
    grads = None
    if sample.grads is not None:
        grads = [None if g is None else _incoming(g, framework) for g in sample.grads]
    kwargs = {key: _argument(value, framework) for key, value in sample.kwargs.items()}
    args = [_argument(value, framework) for value in sample.args]
    return call(name, *args, grads=grads, **kwargs)


def _incoming(output: torch.Tensor, framework: str) -> Element:
    return Element(_described(output, framework), Max=1.0, Min=-1.0, requires_grad=False)


_SYMBOLS = {torch.dtype: "torch.dtype", torch.device: "torch.device"}


def _argument(value: Any, framework: str) -> Any:
    if torch.is_tensor(value):
        return _described(value, framework)
    if isinstance(value, torch.Size):
        return Element(type="torch.Size", value=list(value))
    if isinstance(value, torch.memory_format):
        return Element(type="torch.memory_format", format=str(value))
    if type(value) in _SYMBOLS:
        if framework == "mindspore":
            return symbol("mindspore.dtype", framework_dtype(str(value)[6:], framework))
        return symbol(_SYMBOLS[type(value)], str(value))
    if isinstance(value, list | tuple):
        return [_argument(item, framework) for item in value]
    if isinstance(value, dict):
        return {key: _argument(item, framework) for key, item in value.items()}
    if value is None or value is Ellipsis or isinstance(value, _PLAIN):
        return value
    raise TypeError(f"a dump has no {type(value).__name__}")


_PLAIN = (bool, int, float, complex, str, slice, Element)


def _described(tensor: torch.Tensor, framework: str) -> Element:
    """Return a tensor as the dump has it; bool tensors have true and false, empty ones null."""
    name = str(tensor.dtype).removeprefix("torch.")
    kind = "torch.Tensor" if framework == "pytorch" else "mindspore.Tensor"
    dtype = framework_dtype(name, framework)
    head = Element(type=kind, dtype=dtype, shape=list(tensor.shape), Mean=None, Norm=None)
    if framework == "pytorch":
        head["requires_grad"] = tensor.requires_grad
    values = tensor.detach().resolve_conj()
    if values.is_complex():
        values = torch.view_as_real(values)
    if tensor.numel() == 0:
        return Element(head, Max=None, Min=None)
    high, low = values.max().item(), values.min().item()
    if tensor.dtype is torch.bool:
        return Element(head, Max=high, Min=low)
    wide = values.double()
    return Element(head, Max=high, Min=low, Mean=wide.mean().item(), Norm=wide.norm().item())


def try_samples(checker: Checker, name: str, samples: list[Sample]) -> Finding:
    """Return what becomes of an API: the first sample that passes counts, then the first failure."""
    findings: list[Finding] = []
    for sample in samples:
        record = payload(name, sample, checker.framework)
        found = first = _judged(checker.check(record), GENERATED)
        if not found.executed and found.how != NO_KERNEL:
            own = _judged(checker.check(record, SampleTensors(f"{name}.0", sample)), OWN_INPUTS)
            found = own if own.executed or found.how == SKIPPED else found
        if first.how == FAILED:
            findings.append(first)
        if found.executed or found.how == NO_KERNEL:
            return replace(found, before=next((f.reason for f in findings if _differs(f)), ""))
        findings.append(found)
    failed = [found for found in findings if found.how == FAILED]
    return (failed or findings or [Finding(SKIPPED, "no sample")])[0]


def _differs(found: Finding) -> bool:
    return found.how == FAILED and "raised" not in found.reason


def _judged(result: TaskResult, how: str) -> Finding:
    """Return a finding; an error that the number format alone explains is none."""
    wrong = [c for c in result.checks if c.verdict is Verdict.ERROR and not _is_rounding(c)]
    verdicts = (result.forward, result.backward)
    if wrong:
        return Finding(FAILED, f"{wrong[0].name}: {wrong[0].message}")
    if "the CPU has no kernel" in result.message and result.forward is Verdict.SKIP:
        return Finding(NO_KERNEL, result.message)
    if result.forward is Verdict.SKIP:
        return Finding(SKIPPED, result.message)
    if not result.checks or (Verdict.ERROR in verdicts and "raised" in result.message):
        return Finding(FAILED, result.message)
    if result.backward is Verdict.SKIP:
        return Finding(how, result.message)
    return Finding(how)


def _is_rounding(check: OutputCheck) -> bool:
    return "rounding:" in check.message


def unexplained(
    findings: Mapping[str, Finding], explained: Mapping[str, str]
) -> dict[str, Finding]:
    """Return what did not pass for a reason that fits no pattern of `explained`'s values."""
    patterns = [re.compile(pattern) for pattern in explained.values()]
    return {
        name: found
        for name, found in findings.items()
        if not found.executed and not any(p.search(found.reason) for p in patterns)
    }


def differing_once(findings: Mapping[str, Finding]) -> set[str]:
    """Return the last names of the APIs whose numbers differed for a sample, not for the next."""
    return {name.rsplit(".", 1)[-1] for name, found in findings.items() if found.before}
