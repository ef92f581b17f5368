"""Faults in the kernels themselves: whoever calls them gets the fault, the tested side and implementations
alike.

Comes in: a call. Goes out: the verdicts of the real `Checker` with a fault in one of the kernels that
the call runs on the CPU, forward or backward. Called by `verdicts.py --kernels`.

The fault is planted below autograd, in torch's dispatcher, for float32, float16 and bfloat16, wherever
the kernel is called; float64, in which the bench and what rounding explains are computed, stays right.
MindSpore's kernels are no part of that dispatcher: there every output and gradient of the tested call
has the fault, and torch's kernels have the same one at the same time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ray_precheck.accuracy.standards.base import Standard
from ray_precheck.check.checker import Checker
from ray_precheck.check.options import CheckOptions
from ray_precheck.check.settings import CheckSettings
from ray_precheck.frameworks.base import Execution, Leaf
from ray_precheck.frameworks.mindspore.backend import MindSporeBackend
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.values import HostTensor
from scripts.verdicts.calls import Call
from scripts.verdicts.faults import EDITS, Edit
from scripts.verdicts.subject import REFUSALS, Key, Results, Run, Shared
from scripts.verdicts.tally import Tally, error_of, worst

_NATIVE = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
# These move values or make them, and compute nothing.
_NO_KERNELS = frozenset(
    """_to_copy clone copy_ detach lift_fresh empty empty_like empty_strided zeros zeros_like ones
    ones_like full full_like fill_ zero_ new_zeros new_empty new_empty_strided new_full new_ones
    scalar_tensor arange _local_scalar_dense item contiguous alias set_ resize_""".split()
)
# MindSpore 2.10 takes a gradient that is a view for a contiguous one (scripts/README.md).
_NOT_HONEST = {("mindspore", "split", "backward")}
_NOWHERE = Path()
_FACTOR, _INPUTS = "factor 1 + 0.1", "inputs rounded to bf16"
FAULTS: dict[str, Edit | None] = {
    **{
        name: edit
        for name, edit in EDITS.items()
        if name not in (_FACTOR, "infinity clamped", "subnormals flushed")
    },
    _INPUTS: None,
}


class KernelFault(TorchDispatchMode):
    """Torch with one faulty kernel, or with all of them faulty (`kernel` "")."""

    def __init__(self, fault: str, kernel: str = "") -> None:
        super().__init__()
        self._edit = FAULTS[fault]
        self._kernel = kernel

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not is_kernel(func) or self._kernel not in ("", kernel_name(func)):
            return func(*args, **kwargs)
        if self._edit is None:
            return func(*tree_map(_in_bfloat16, args), **kwargs)
        result = func(*args, **kwargs)
        if not func._schema.is_mutable:
            return tree_map(self._edited, result)
        if torch.is_tensor(result) and result.dtype in _NATIVE:
            result.copy_(self._edited(result))
        return result

    def _edited(self, value: Any) -> Any:
        if not torch.is_tensor(value) or value.dtype not in _NATIVE or value.numel() == 0:
            return value
        assert self._edit is not None
        dtype = _NATIVE[value.dtype]
        with np.errstate(all="ignore"):
            changed = self._edit(value.detach().double().numpy(), dtype)
            rounded = round_to_dtype(np.asarray(changed, np.float64), dtype)
        return torch.empty_like(value).copy_(torch.from_numpy(rounded))


def _in_bfloat16(value: Any) -> Any:
    native = torch.is_tensor(value) and value.dtype in (torch.float32, torch.float16)
    return value.bfloat16().to(value.dtype) if native else value


def is_kernel(func: Any) -> bool:
    """Return whether an operator of the dispatcher computes something."""
    return not func.is_view and kernel_name(func) not in _NO_KERNELS


def kernel_name(func: Any) -> str:
    """Return the name of an operator without its overload."""
    return str(func.overloadpacket.__name__)


class _Recorder(TorchDispatchMode):
    """Notes which kernels give results of native dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, None] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_kernel(func):
            tree_map(lambda leaf: self._note(func, leaf), result)
        return result

    def _note(self, func: Any, leaf: Any) -> None:
        if torch.is_tensor(leaf) and leaf.dtype in _NATIVE:
            self.seen[kernel_name(func)] = None


def kernels_of(run: Run) -> list[str]:
    """Return the kernels that a call runs in its recorded dtypes, forward and backward."""
    recorder = _Recorder()
    run.tested(run.function, recorder)
    return list(recorder.seen)


class _EditedExecution(Execution):
    """An execution with a fault in each of its outputs and gradients."""

    def __init__(self, execution: Execution, edit: Callable[[Leaf], Leaf]) -> None:
        self._execution = execution
        self._edit = edit
        self.outputs = [edit(leaf) for leaf in execution.outputs]

    def gradients(self, cotangents: list[HostTensor | None]) -> list[HostTensor]:
        grads = self._execution.gradients(cotangents)
        return [leaf for leaf in map(self._edit, grads) if isinstance(leaf, HostTensor)]


@contextmanager
def faulty_mindspore(fault: str) -> Iterator[None]:
    """Give every result of MindSpore a fault."""
    edit, honest = FAULTS[fault], MindSporeBackend.forward
    assert edit is not None

    def edited(leaf: Leaf) -> Leaf:
        if not isinstance(leaf, HostTensor) or DTYPES[leaf.dtype].kind != "float":
            return leaf
        with np.errstate(all="ignore"):
            changed = edit(leaf.data.astype(np.float64), leaf.dtype)
        return HostTensor(leaf.dtype, round_to_dtype(changed, leaf.dtype))

    def forward(self: MindSporeBackend, *args: Any) -> Execution:
        return _EditedExecution(honest(self, *args), edited)

    MindSporeBackend.forward = forward  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        MindSporeBackend.forward = honest  # type: ignore[method-assign]


class KernelCourt:
    """Judges calls whose kernels have faults, with the checker that runs judge with."""

    def __init__(self, standards: dict[str, Standard], shared: dict[str, Shared]) -> None:
        self._standards = standards
        self._shared = shared
        self.tally = Tally()

    def judge(self, call: Call) -> None:
        """Plant each fault in each kernel of a call, and count what its checks find.

        Raises:
            one of `REFUSALS`: the call cannot be run, or there is nothing to compare.
        """
        run = call.run(self._shared[call.framework])
        clean = self._subject(run, call)
        if not clean:
            return
        honest = {
            key: worst(
                error_of(results[key].data, run.bench[key].data, results[key].dtype)
                for results in (*run.honest.values(), clean)
                if key in results and results[key].shape == run.bench[key].shape
            )
            for key in run.bench
        }
        for name, standard in self._standards.items():
            result = self._checked(call, standard, ())
            for key, leaf in clean.items():
                if (call.framework, run.record.name.api, key[0]) in _NOT_HONEST:
                    continue
                row = _message(result, key)
                self.tally.add_honest(name, leaf.dtype, call.framework, f"{call.label} {key}", row)
        for fault, kernel, contexts in self._plants(run, call):
            try:
                with _all_of(contexts()):
                    faulty = self._subject(run, call)
            except REFUSALS:
                continue
            counting = {
                key: leaf
                for key, leaf in faulty.items()
                if key in honest
                and leaf.shape == run.bench[key].shape
                and error_of(leaf.data, run.bench[key].data, leaf.dtype).beyond(honest[key])
            }
            if not counting:
                continue
            for name, standard in self._standards.items():
                result = self._checked(call, standard, contexts())
                for key, leaf in counting.items():
                    where = f"{call.label} {key[0]}.{key[1]} in {call.framework}'s {kernel}"
                    found = bool(_message(result, key))
                    self.tally.add_fault(name, leaf.dtype, fault, where, found)

    def _subject(self, run: Run, call: Call) -> Results:
        """Return what the device of the call's framework makes of it."""
        if call.framework == "mindspore":
            return run.on_mindspore()
        return run.tested(run.function)

    def _plants(
        self, run: Run, call: Call
    ) -> Iterator[tuple[str, str, Callable[[], Sequence[AbstractContextManager[Any]]]]]:
        if call.framework == "mindspore":
            for fault, edit in FAULTS.items():
                if edit is not None:
                    yield (
                        fault,
                        "kernels",
                        lambda fault=fault: (KernelFault(fault), faulty_mindspore(fault)),
                    )
            return
        for kernel in kernels_of(run):
            for fault in FAULTS:
                yield (
                    fault,
                    kernel,
                    lambda fault=fault, kernel=kernel: (KernelFault(fault, kernel),),
                )

    def _checked(
        self, call: Call, standard: Standard, contexts: Sequence[AbstractContextManager[Any]]
    ) -> TaskResult:
        settings = CheckSettings(
            call.framework,
            "tensor" if call.data else "statistics",
            call.data or _NOWHERE,
            CheckOptions(seed=call.seed),
            standard=standard,
        )
        checker = Checker(settings, "cpu")
        with _all_of(contexts):
            return checker.check(call.payload)


@contextmanager
def _all_of(contexts: Sequence[AbstractContextManager[Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def _message(result: TaskResult, key: Key) -> str:
    """Return the error of an output or gradient, "" where there is none."""
    direction, position = key
    name = f".{direction}.output.{position}"
    for check in result.checks:
        if check.name.endswith(name):
            is_error = check.verdict is Verdict.ERROR
            return (check.message or "error") if is_error else ""
    # The device raised, or its output has another shape: the call is in error without a row.
    verdict = result.forward if direction == "forward" else result.backward
    return result.message if verdict is Verdict.ERROR else ""
