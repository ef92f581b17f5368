"""Captured random outputs: judged without a device."""

import json
import shutil
from pathlib import Path

import pytest
from records import tensor

from ray_precheck.check.checker import Checker
from ray_precheck.check.options import CheckOptions
from ray_precheck.check.settings import CheckSettings
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import BENCH, TaskPayload

pytestmark = pytest.mark.frameworks

WIDE = (64, 200)
PASS, ERROR = Verdict.PASS, Verdict.ERROR
JUDGED = "its output is random: judged by statistics"


@pytest.fixture(scope="module")
def captured_dropout(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TaskPayload]:
    """A capture of one dropout, as msprobe saves it."""
    import torch

    folder = tmp_path_factory.mktemp("dump_tensor_data")
    torch.manual_seed(3)
    x, incoming = torch.randn(*WIDE, requires_grad=True), torch.randn(*WIDE)
    out = torch.nn.functional.dropout(x, 0.25)
    (grad,) = torch.autograd.grad(out, x, incoming)
    saved = {"x": x, "out": out, "incoming": incoming, "grad": grad}
    names = {}
    for name, value in saved.items():
        torch.save(value.detach(), folder / f"{name}.pt")
        names[name] = tensor(*WIDE, grad=name == "x") | {"data_name": f"{name}.pt"}
    forward = {"input_args": [names["x"]], "input_kwargs": {"p": {"type": "float", "value": 0.25}}}
    payload = TaskPayload(
        0,
        "Functional.dropout.0",
        json.dumps({**forward, "output": [names["out"]]}).encode(),
        json.dumps({"input": [names["incoming"]], "output": [names["grad"]]}).encode(),
    )
    return folder, payload


class TestRealMode:
    def checked(self, folder: Path, payload: TaskPayload) -> TaskResult:
        settings = CheckSettings(
            "pytorch", "tensor", folder, tests_dump=True, options=CheckOptions(tested="dump")
        )
        return Checker(settings, BENCH).check(payload)

    def test_captured_draws_are_judged_without_a_device(
        self, captured_dropout: tuple[Path, TaskPayload]
    ) -> None:
        result = self.checked(*captured_dropout)
        assert (result.forward, result.backward, result.message) == (PASS, PASS, JUDGED)
        assert "the share of dropped elements is 0.2" in result.checks[0].message

    def test_a_captured_gradient_of_another_mask_is_found(
        self, captured_dropout: tuple[Path, TaskPayload], tmp_path: Path
    ) -> None:
        import torch

        folder, payload = captured_dropout
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        grad = torch.load(folder / "grad.pt", weights_only=True)
        torch.save(grad.flip(0).contiguous(), tmp_path / "grad.pt")
        result = self.checked(tmp_path, payload)
        assert (result.forward, result.backward) == (PASS, ERROR)
