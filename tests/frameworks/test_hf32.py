"""HF32: the backends switch it off on an NPU, and an error says where that was not possible."""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from records import NEEDS_MINDSPORE, altered, call, replace_kernel, statistics_checker, tensor

from ray_precheck.check.settings import CheckSettings
from ray_precheck.errors import BackendMissingError, NotCheckable
from ray_precheck.frameworks.mindtorch.backend import MindTorchBackend
from ray_precheck.replay.job import PrecheckOpener
from ray_precheck.runtime.workers.process import CheckProcess
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import DeviceSlot

pytestmark = pytest.mark.frameworks


def stand_in(**options: Any) -> ModuleType:
    """A torch_npu that has an NPU and these options of it."""
    found: Any = ModuleType("torch_npu")
    found.npu = SimpleNamespace(set_device=lambda number: None, **options)
    return found


def test_opening_an_npu_with_torch_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray_precheck.frameworks.pytorch.backend import TorchBackend

    conv, matmul = SimpleNamespace(allow_hf32=True), SimpleNamespace(allow_hf32=True)
    monkeypatch.setitem(sys.modules, "torch_npu", stand_in(conv=conv, matmul=matmul))
    backend = TorchBackend("npu")
    assert (conv.allow_hf32, matmul.allow_hf32, backend.caveat) == (False, False, "")
    monkeypatch.setitem(sys.modules, "torch_npu", stand_in(conv=conv))
    assert "float32 products may have 11 bits" in TorchBackend("npu").caveat
    assert TorchBackend("cpu").caveat == ""


def test_a_torch_npu_that_refuses_this_torch_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ray_precheck.frameworks.pytorch.backend import TorchBackend

    refusal = "Two accelerators cannot be used at the same time in PyTorch: npu and cuda."
    source = f'raise RuntimeError("{refusal}\\n[ERROR] 2026-11-23-05:00:00 (PID:7)")\n'
    (tmp_path / "torch_npu.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    with pytest.raises(BackendMissingError, match=rf"cannot be imported \({refusal}\); PyTorch"):
        TorchBackend("npu")
    with pytest.raises(NotCheckable, match=rf"cannot be imported here: {refusal}$"):
        TorchBackend("cpu").resolve(ApiName("NPU", "npu_mish", 0))


@NEEDS_MINDSPORE
def test_mindspore_has_the_functions_that_switch_it_off() -> None:
    import mindspore

    op_precision = mindspore.device_context.ascend.op_precision
    assert callable(op_precision.conv_allow_hf32)
    assert callable(op_precision.matmul_allow_hf32)


@pytest.mark.parametrize(("dtype", "is_said"), [("float32", True), ("float16", False)])
def test_an_error_in_float32_says_that_it_was_on(
    monkeypatch: pytest.MonkeyPatch, dtype: str, is_said: bool
) -> None:
    checker = statistics_checker("pytorch")
    device: Any = checker.device()
    monkeypatch.setattr(
        device, "caveat", "HF32 could not be switched off on this NPU", raising=False
    )
    payload = call("Torch.matmul", tensor(8, 8, dtype=dtype), tensor(8, 8, dtype=dtype))
    assert checker.caveat not in checker.check(payload).message
    replace_kernel(monkeypatch, device, altered(lambda out: out * 1.5))
    result = checker.check(payload)
    assert result.forward is Verdict.ERROR
    assert (checker.caveat in result.message) == is_said


# In the process that checks, or in that of MSAdapter, the backend cannot switch it off.
_STAYS_ON = """
import sys
if "ray_precheck.{process}" in sys.orig_argv:
    import ray_precheck.frameworks.{backend}.backend as module
    opened = module.{name}.__init__
    def init(self, kind):
        opened(self, kind)
        self.caveat = "HF32 stays on"
    module.{name}.__init__ = init
"""


def assert_told(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    stays_on: str,
    caveat_of: Callable[[], str],
) -> None:
    """A process that is started tells where HF32 stays on, and nothing where it does not."""
    for code, said in ((stays_on, "HF32 stays on"), ("", "")):
        with monkeypatch.context() as patch:
            plant(folder, patch, code)
            assert caveat_of() == said


def plant(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have every Python that is started run this first."""
    (folder / "sitecustomize.py").write_text(code)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def test_the_process_that_checks_tells_it_when_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays_on = _STAYS_ON.format(
        process="runtime.workers.check_process", backend="pytorch", name="TorchBackend"
    )
    slot = DeviceSlot("cpu", 0, "", "", "")
    opener = PrecheckOpener(CheckSettings("pytorch", "statistics", tmp_path))

    def caveat() -> str:
        with contextlib.closing(CheckProcess(slot, opener)) as process:
            return process.wait_ready()

    assert_told(tmp_path, monkeypatch, stays_on, caveat)


@NEEDS_MINDSPORE
def test_the_process_of_mindtorch_tells_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays_on = _STAYS_ON.format(
        process="frameworks.mindtorch.device", backend="mindspore", name="MindSporeBackend"
    )
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "data" / "mindtorch")

    def caveat() -> str:
        with contextlib.closing(MindTorchBackend("cpu")) as backend:
            return backend.caveat

    assert_told(tmp_path, monkeypatch, stays_on, caveat)
