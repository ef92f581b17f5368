"""Kernels that are wrong for one memory layout alone are run with it, and found."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from alone import run_here
from torch.utils._python_dispatch import TorchDispatchMode

from ray_precheck.accuracy.standards.user_file import load_standard
from ray_precheck.capture import Capture
from ray_precheck.check.checker import Checker
from ray_precheck.check.options import CheckOptions
from ray_precheck.check.settings import CheckSettings
from ray_precheck.commands.precheck.run import rerun
from ray_precheck.commands.repro.script import repro_script
from ray_precheck.dump.parse import open_dump
from ray_precheck.frameworks.pytorch.backend import TorchBackend
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import Task

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
F = torch.nn.functional
Tensors = list[torch.Tensor]


class WrongKernel(TorchDispatchMode):
    """Below autograd, an operator whose results are 1.25 times too large for some layouts of its inputs."""

    def __init__(self, operator: str, applies: Callable[[Tensors], bool]) -> None:
        super().__init__()
        self.operator, self.applies, self.hits = operator, applies, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*args, *(kwargs or {}).values()]
        flat = [each for one in given for each in (one if isinstance(one, list) else [one])]
        wrong = func.__name__.partition(".")[0] == self.operator and self.applies(
            [each for each in flat if isinstance(each, torch.Tensor)]
        )
        result = func(*args, **(kwargs or {}))
        if not wrong:
            return result
        self.hits += 1
        if result.dtype is torch.bool:
            return ~result
        own = self.operator.endswith("_") or "out" in (kwargs or {})
        return result.mul_(1.25) if own else result * 1.25


@contextmanager
def with_kernel(mode: WrongKernel) -> Iterator[None]:
    """Let the tested side compute, forward and backward, with a wrong kernel."""
    forward = TorchBackend.forward

    def run(self: Any, function: Any, call: Any, plan: Any) -> Any:
        with mode:
            execution = forward(self, function, call, plan)
        gradients = execution.gradients

        def run_gradients(cotangents: Any) -> Any:
            with mode:
                return gradients(cotangents)

        execution.gradients = run_gradients
        return execution

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchBackend, "forward", run)
        yield


def checked(folder: Path, **options: Any) -> dict[str, TaskResult]:
    """Check each call of a dump on the device."""
    with open_dump(folder / "dump.json") as dump:
        settings = CheckSettings(
            "pytorch", dump.task, dump.data_folder, knows_layouts=dump.knows_layouts, **options
        )
        checker = Checker(settings, "cpu")
        payloads = [dump.payload(Task(i, call.name, 0.0)) for i, call in enumerate(dump.calls)]
        return {payload.name: checker.check(payload) for payload in payloads}


def captured(folder: Path, program: Callable[[], object], task: str) -> Path:
    torch.manual_seed(0)
    with Capture(folder, step_by="manual", framework="pytorch", task=task):
        program()
    (dump,) = folder.glob("step0/*/dump.json")
    return dump.parent


def some(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.rand(*shape, requires_grad=grad) + (0 if grad else 0.5)


def strided(tensors: Tensors) -> bool:
    return any(not each.is_contiguous() and 0 not in each.stride() for each in tensors)


def channels_last(tensors: Tensors) -> bool:
    return any(
        each.ndim == 4
        and each.is_contiguous(memory_format=torch.channels_last)
        and not each.is_contiguous()
        for each in tensors
    )


def expanded(tensors: Tensors) -> bool:
    return any(0 in each.stride() for each in tensors)


def offset(tensors: Tensors) -> bool:
    return any(each.storage_offset() % 64 for each in tensors)


def aliased(tensors: Tensors) -> bool:
    places = [each.untyped_storage().data_ptr() for each in tensors]
    return len(set(places)) < len(places)


def windows(tensors: Tensors) -> bool:
    return any(each.stride()[-2:] == (1, 1) and each.shape[-1] > 1 for each in tensors)


def _out() -> None:
    x = some(4, 4)
    torch.add(x, some(4, 4), out=x)


def _in_place() -> None:
    some(4, 5, grad=True).t().clone(memory_format=torch.preserve_format).mul_(2.0).sum().backward()


def _cache() -> None:
    cache = torch.rand(2, 3, 4096, 8)
    torch.exp(cache[:, :, :5])


# What the program does, the call that is wrong, the kernel, and for which layouts it is.
CASES: dict[str, tuple[Callable[[], object], str, str, Callable[[Tensors], bool]]] = {
    "transposed": (lambda: torch.mm(some(4, 3).t(), some(4, 5)), "Torch.mm.0", "mm", strided),
    "transposed leaf": (
        lambda: torch.sin(some(4, 3, grad=True).t()).sum().backward(),
        "Torch.sin.0",
        "sin",
        strided,
    ),
    "channels_last": (
        lambda: F.relu(some(2, 3, 4, 5).to(memory_format=torch.channels_last)),
        "Functional.relu.0",
        "relu",
        channels_last,
    ),
    "expanded": (lambda: torch.exp(some(1, 5).expand(4, 5)), "Torch.exp.0", "exp", expanded),
    "expanded mask": (
        lambda: torch.logical_not((some(1, 5) > 0.8).expand(4, 5)).float(),
        "Torch.logical_not.0",
        "logical_not",
        expanded,
    ),
    "offset": (lambda: torch.exp(some(4, 5)[1:]), "Torch.exp.0", "exp", offset),
    "aliased": (lambda: torch.mul(*[some(4, 5)] * 2), "Torch.mul.0", "mul", aliased),
    "aliased, a view": (
        lambda: (lambda x: torch.mm(x, x.t()))(some(4, 5)),
        "Torch.mm.0",
        "mm",
        aliased,
    ),
    "out": (_out, "Torch.add.0", "add", aliased),
    "windows": (lambda: torch.exp(some(9).unfold(0, 3, 1)), "Torch.exp.0", "exp", windows),
    "contiguous": (lambda: some(4, 3).t().contiguous(), "Tensor.contiguous.0", "clone", strided),
    "reshape": (lambda: some(4, 3).t().reshape(-1), "Tensor.reshape.0", "clone", strided),
    "copy_": (lambda: some(3, 4).copy_(some(4, 3).t()), "Tensor.copy_.0", "copy_", strided),
    "in place": (_in_place, "Tensor.mul_.0", "mul_", strided),
    "a slice of a cache": (_cache, "Torch.exp.0", "exp", strided),
    "complex view": (
        lambda: torch.exp(torch.view_as_real(torch.view_as_complex(some(4, 5, 2)).t())),
        "Torch.exp.0",
        "exp",
        strided,
    ),
    "cotangent": (
        lambda: torch.tanh(some(4, 5, grad=True)).sum().backward(),
        "Torch.tanh.0",
        "tanh_backward",
        expanded,
    ),
}


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("case", CASES)
def test_a_kernel_that_is_wrong_for_a_layout_is_run_with_it(
    tmp_path: Path, case: str, task: str
) -> None:
    program, call, operator, applies = CASES[case]
    folder = captured(tmp_path, program, task)
    honest = checked(folder)[call]
    assert honest.forward is Verdict.PASS, honest.message
    assert honest.backward in (Verdict.PASS, Verdict.NONE), honest.message
    kernel = WrongKernel(operator, applies)
    with with_kernel(kernel):
        wrong = checked(folder)[call]
    assert (bool(kernel.hits), Verdict.ERROR in (wrong.forward, wrong.backward)) == (
        True,
        True,
    ), wrong.message


def without_layouts(folder: Path) -> None:
    """Take from a dump what msprobe does not write."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {k: v for k, v in value.items() if k not in ("stride", "offset", "shares")}
            return {key: plain(item) for key, item in kept.items()}
        return [plain(item) for item in value] if isinstance(value, list) else value

    dump = json.loads((folder / "dump.json").read_text())
    (folder / "dump.json").write_text(json.dumps(plain({**dump, "layouts": False})))


TRANSPOSED = ["transposed", "transposed leaf", "channels_last", "contiguous", "copy_", "in place"]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("case", TRANSPOSED)
def test_without_layouts_a_second_run_with_transposed_inputs_finds_it(
    tmp_path: Path, case: str, task: str
) -> None:
    program, call, operator, applies = CASES[case]
    folder = captured(tmp_path, program, task)
    without_layouts(folder)
    both = CheckOptions(layouts="on")
    with with_kernel(WrongKernel(operator, applies)):
        plain, found = checked(folder)[call], checked(folder, options=both)[call]
    honest = checked(folder, options=both)[call]
    assert (plain.forward, plain.message) in [
        (Verdict.PASS, ""),
        (
            Verdict.PASS,
            "layout not exercised: the dump does not say it, and the inputs were"
            " contiguous; see --layouts",
        ),
    ]
    assert Verdict.ERROR in (found.forward, found.backward)
    assert "with transposed inputs alone (contiguous ones pass)" in found.message
    assert (honest.forward, honest.message) == (Verdict.PASS, "")


def test_auto_runs_again_where_the_dump_does_not_know(tmp_path: Path) -> None:
    _, call, operator, applies = CASES["transposed"]
    folder = captured(tmp_path, lambda: torch.mm(some(3, 4), some(4, 5)), "statistics")
    auto = {"standard": load_standard("auto")}
    with with_kernel(WrongKernel(operator, applies)):
        known = checked(folder, **auto)[call]
        without_layouts(folder)
        unknown = checked(folder, **auto)[call]
        off = checked(folder, options=CheckOptions(layouts="off"), **auto)[call]
    assert (known.forward, unknown.forward, off.forward) == (
        Verdict.PASS,
        Verdict.ERROR,
        Verdict.PASS,
    )


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_call_in_place_may_read_its_own_memory(tmp_path: Path, task: str) -> None:
    """What it changes is its output, under each of its names."""

    def step() -> None:
        x = some(4, 4)
        x.add_(x)
        torch.sub(x, x.t(), out=torch.empty(4, 4))
        torch.exp(x, out=x)

    results = checked(captured(tmp_path, step, task))
    assert [each.message for each in results.values() if each.forward is Verdict.ERROR] == []
    assert results["Tensor.add_.0"].forward is Verdict.PASS


def test_a_call_that_refuses_transposed_inputs_passes(tmp_path: Path) -> None:
    folder = captured(tmp_path, lambda: some(4, 6).view(8, 3), "statistics")
    result = checked(folder, options=CheckOptions(layouts="on"))["Tensor.view.0"]
    assert result.forward is Verdict.PASS


def test_a_buffer_that_would_be_too_large_is_said(tmp_path: Path) -> None:
    def step() -> None:
        x = torch.rand(1 << 20)
        torch.mul(x[:8], x[-8:])

    folder = captured(tmp_path, step, "statistics")
    result = checked(folder)["Torch.mul.0"]
    assert (result.forward, result.message) == (
        Verdict.PASS,
        "layout not exercised: input_args.0, input_args.1 cannot lie in memory as the dump says,"
        " and was contiguous",
    )


def test_what_reads_layouts_gets_them_on_both_sides(tmp_path: Path) -> None:
    def step() -> None:
        x = some(3, 4)
        x.t().as_strided((2, 2), (1, 3), 1)
        x.t().is_contiguous()

    folder = captured(tmp_path, step, "statistics")
    results = checked(folder, options=CheckOptions(layouts="on"))
    assert [each.message for each in results.values() if each.forward is Verdict.ERROR] == []
    assert results["Tensor.as_strided.0"].forward is Verdict.PASS


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("case", ["transposed leaf", "aliased", "channels_last", "contiguous"])
def test_a_saved_failure_is_shown_again_with_its_layout(
    tmp_path: Path, case: str, task: str
) -> None:
    program, call, operator, applies = CASES[case]
    folder = captured(tmp_path / "dump", program, task)
    saved = {"error_folder": tmp_path / "errors"}
    with with_kernel(WrongKernel(operator, applies)):
        checked(folder, **saved)
        assert Verdict.ERROR in verdicts(rerun(tmp_path / "errors" / f"{call}.json"))
        if case != "aliased":
            without_layouts(folder)
            checked(folder, options=CheckOptions(layouts="on"), **saved)
            assert Verdict.ERROR in verdicts(rerun(tmp_path / "errors" / f"{call}.json"))
    assert Verdict.ERROR not in verdicts(rerun(tmp_path / "errors" / f"{call}.json"))


BROKEN = """
import torch
from alone import run_here
def wrong(owner, name, applies):
    right = getattr(owner, name)
    def kernel(*args, **kwargs):
        out = right(*args, **kwargs)
        return out * 1.25 if applies(*args) else out
    setattr(owner, name, kernel)
"""
# The kernel that is wrong in the script's process.
REPRODUCED = {
    "transposed leaf": "wrong(torch, 'sin', lambda x: not x.is_contiguous())",
    "aliased": "wrong(torch, 'mul', lambda x, y: x.data_ptr() == y.data_ptr())",
    "expanded": "wrong(torch, 'exp', lambda x: 0 in x.stride())",
    "in place": "wrong(torch.Tensor, 'mul_', lambda x, y: not x.is_contiguous())",
}


@pytest.mark.parametrize(
    ("case", "transposed"),
    [("transposed leaf", False), ("aliased", False), ("expanded", False), ("in place", True)],
)
def test_a_script_shows_the_failure_with_its_layout(
    tmp_path: Path, case: str, transposed: bool
) -> None:
    program, call, operator, applies = CASES[case]
    folder = captured(tmp_path / "dump", program, "statistics")
    if transposed:
        without_layouts(folder)
    with with_kernel(WrongKernel(operator, applies)):
        checked(folder, options=CheckOptions(layouts="on"), error_folder=tmp_path / "errors")
    script = repro_script(tmp_path / "errors" / f"{call}.json")
    codes = []
    for broken in (BROKEN + REPRODUCED[case], ""):
        done = run_here(script, broken)
        codes.append((done.returncode, done.stderr))
    assert codes == [(1, ""), (0, "")], script


def verdicts(result: TaskResult) -> tuple[Verdict, Verdict]:
    return result.forward, result.backward
