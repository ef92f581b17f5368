"""Captures of scripts that transform, trace or watch their own calls."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import grad, hessian, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.capture import Capture
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.parse import open_dump
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Task

pytestmark = pytest.mark.frameworks


def _cubes(x: torch.Tensor) -> torch.Tensor:
    return x.pow(3).sum()


@pytest.mark.parametrize(
    "options",
    [{}, {"task": "tensor"}, {"sketch": True}, {"summary_mode": "md5"}],
    ids=["statistics", "tensor", "sketch", "md5"],
)
def test_transforms_are_captured_to_their_end(captured: Any, options: dict[str, Any]) -> None:
    x = torch.arange(1.0, 7.0).reshape(2, 3)
    found: list[torch.Tensor] = []

    def step() -> None:
        found.append(vmap(grad(_cubes))(x))
        found.append(hessian(_cubes)(x[0]))
        torch.sin(x)

    records = captured(step, **options)

    assert "Torch.sin.0.forward" in records
    assert torch.equal(found[0], 3 * x**2)
    assert torch.equal(found[1], torch.diag(6 * x[0]))


def test_a_call_that_is_mapped_has_the_shapes_that_it_got(captured: Any) -> None:
    x = torch.arange(1.0, 7.0).reshape(2, 3)

    records = captured(lambda: vmap(lambda row: row.sum())(x), task="tensor")

    record = records["Tensor.sum.0.forward"]
    (given,), (made,) = record["input_args"], record["output"]
    assert (given["shape"], given["Max"], given["Min"]) == ([3], 6.0, 1.0)
    assert (made["shape"], made["Max"], made["Min"]) == ([], 15.0, 6.0)
    assert "data_name" not in given  # the values of all rows are no values of this call
    assert given["vmapped"] == made["vmapped"] == 2


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_the_precheck_says_that_a_call_was_mapped(task: str, tmp_path: Path) -> None:
    x = torch.arange(1.0, 301.0).reshape(100, 3)
    with Capture(tmp_path, task=task, framework="pytorch"):
        vmap(lambda row: torch.sin(row))(x)
    (path,) = tmp_path.glob("step0/*/dump.json")
    with open_dump(path) as dump:
        settings = CheckSettings("pytorch", task, dump.data_folder, standard=Auto())
        found = Checker(settings, "cpu").check(dump.payload(Task(0, "Torch.sin.0", 0.0)))
    if task == "tensor":
        assert found.forward is Verdict.SKIP
        assert "vmap runs this call once for 100 samples" in found.message
    else:
        assert found.forward is Verdict.PASS
        assert "called within vmap for 100 samples: one is checked" in found.message
        assert "norm" not in found.message.lower()


class _Seen(TorchDispatchMode):
    """A mode of a script, which counts what is computed."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_script_does_not_see_what_the_capture_computes(captured: Any) -> None:
    x = torch.rand(200, 200, requires_grad=True)

    def computed() -> int:
        with _Seen() as seen:
            (torch.sin(x.t()) @ x).sum().backward()
        return seen.count

    plain, counts = computed(), []
    captured(lambda: counts.append(computed()), task="tensor", sketch=True)

    assert counts == [plain]


def test_a_traced_program_has_nothing_of_the_capture(captured: Any) -> None:
    model = torch.nn.Linear(3, 3)
    x = torch.rand(2, 3)

    def graph() -> list[str]:
        traced = torch.jit.trace(model, x)  # type: ignore[no-untyped-call]
        return [node.kind() for node in traced.inlined_graph.nodes()]

    plain, graphs = graph(), []
    captured(lambda: graphs.append(graph()), task="tensor", level="mix", model=model)

    assert graphs == [plain]


def test_an_exported_program_keeps_its_dynamic_sizes(captured: Any) -> None:
    model = torch.nn.Linear(3, 3)
    programs: list[Any] = []

    def export() -> None:
        sizes = {"input": {0: torch.export.Dim("batch")}}
        program = torch.export.export(model, (torch.rand(5, 3),), dynamic_shapes=sizes)
        programs.append(program.module())

    captured(export, level="mix", model=model)

    assert programs[0](torch.rand(7, 3)).shape == (7, 3)
