"""MSAdapter as the device, in a process of its own, beside the native torch: with a stand-in."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from records import (
    NEEDS_MINDSPORE,
    call,
    dtypes,
    ms_tensor,
    rows,
    statistics_checker,
    symbol,
    timeless,
)

from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.errors import DeviceDied, DeviceError, NotCheckable
from ray_precheck.frameworks.base import CallPlan
from ray_precheck.frameworks.mindtorch.backend import MindTorchBackend
from ray_precheck.runtime.workers.messages import seal
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.result import Outcome, TaskResult, Verdict
from ray_precheck.schema.task import BENCH, TaskPayload
from ray_precheck.schema.values import HostCall, HostTensor, Symbol

pytestmark = [pytest.mark.frameworks, NEEDS_MINDSPORE]
STAND_IN = Path(__file__).parents[1] / "data" / "mindtorch"
ONES = HostTensor("float32", np.ones((2, 3), np.float32))


@pytest.fixture(scope="module", autouse=True)
def _stand_in() -> Iterator[None]:
    """Put the stand-in on the path; this process has loaded the native torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(STAND_IN)
        yield


@pytest.fixture(scope="module")
def checker() -> Checker:
    return statistics_checker("mindtorch")


@pytest.fixture
def backend() -> Iterator[MindTorchBackend]:
    opened = MindTorchBackend("cpu")
    yield opened
    opened.close()


def pid_of(backend: Any) -> int:
    return int(backend._popen.pid)


def run(backend: MindTorchBackend, name: str, *args: Any) -> Any:
    api = ApiName(*name.split(".", 1), 0)
    return backend.forward(backend.resolve(api), HostCall(args, {}), CallPlan())


class TestProcesses:
    def test_two_packages_called_torch_are_never_in_one_process(
        self, backend: MindTorchBackend
    ) -> None:
        import torch

        assert Path(torch.__file__).is_relative_to(sys.prefix)
        maps = Path(f"/proc/{pid_of(backend)}/maps").read_text()
        assert "_c_expression" in maps  # MindSpore's own
        assert "libtorch" not in maps

    def test_the_process_ends_with_the_backend(self) -> None:
        backend = MindTorchBackend("cpu")
        pid = pid_of(backend)
        backend.close()
        backend.close()
        assert not psutil.pid_exists(pid)

    def test_the_process_ends_with_the_one_that_started_it(self) -> None:
        code = (
            "from ray_precheck.frameworks.mindtorch.backend import MindTorchBackend as B;"
            "import os; b = B('cpu'); print(b._popen.pid, flush=True); os.kill(os.getpid(), 9)"
        )
        environment = {**os.environ, "PYTHONPATH": str(STAND_IN)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL
        child = int(done.stdout)
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(child).wait(20)
        assert not psutil.pid_exists(child)

    @pytest.mark.parametrize(
        ("api", "exit_code"), [("Torch.special.erfcx", -signal.SIGSEGV), ("Torch.floor", 7)]
    )
    def test_a_death_is_told_with_its_exit_code(
        self, backend: MindTorchBackend, api: str, exit_code: int
    ) -> None:
        with pytest.raises(DeviceDied) as caught:
            run(backend, api, ONES)
        assert caught.value.exit_code == exit_code

    def test_a_death_is_no_exception_of_the_api(self) -> None:
        assert not issubclass(DeviceDied, Exception)

    def test_a_torch_whose_tensors_are_not_those_of_mindspore_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "torch").mkdir()
        text = "# no mindspore\ndef tensor(value): return value\n"
        (tmp_path / "torch" / "__init__.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(DeviceError, match="are not those of MindSpore"):
            MindTorchBackend("cpu")


class TestCalls:
    def test_outputs_and_gradients_come_from_mindspore(self, backend: MindTorchBackend) -> None:
        api = ApiName("Torch", "mul", 0)
        x = HostTensor("float32", np.array([1.0, 2.0, 3.0], np.float32))
        ran = backend.forward(backend.resolve(api), HostCall((x, x), {}), CallPlan((0, 1)))
        assert ran.outputs[0].data.tolist() == [1.0, 4.0, 9.0]
        grads = ran.gradients([HostTensor("float32", np.ones(3, np.float32))])
        assert [grad.data.tolist() for grad in grads] == [[1.0, 2.0, 3.0]] * 2

    def test_gradients_are_those_of_the_last_call_alone(self, backend: MindTorchBackend) -> None:
        api = ApiName("Torch", "neg", 0)
        first, second = (
            backend.forward(backend.resolve(api), HostCall((ONES,), {}), CallPlan((0,)))
            for _ in range(2)
        )
        with pytest.raises(Exception, match="another call has run since"):
            first.gradients([ONES])
        (grad,) = second.gradients([ONES])
        assert grad.data.tolist() == [[-1.0] * 3] * 2

    def test_what_is_drawn_depends_on_the_seed_alone(self, backend: MindTorchBackend) -> None:
        def drawn(seed: int) -> list[float]:
            backend.seed(seed)
            (found,) = run(backend, "Torch.rand", [8]).outputs
            return list(found.data)

        assert drawn(7) == drawn(7) != drawn(8)

    def test_after_a_recording_that_raises_the_next_call_is_as_good_as_before(
        self, backend: MindTorchBackend
    ) -> None:
        api = ApiName("Torch", "acos", 0)
        # MindSpore's CPU has no kernel for it, which shows while it records for the gradient.
        # Twice: without an end, it is from the second one on that others suffer.
        for _ in range(2):
            with pytest.raises(Exception, match="unregistered"):
                backend.forward(backend.resolve(api), HostCall((ONES,), {}), CallPlan((0,)))
        vector = HostTensor("float32", np.ones(3, np.float32))
        (product,) = run(backend, "Torch.mv", ONES, vector).outputs
        assert product.data.tolist() == [3.0, 3.0]

    def test_a_function_of_ones_own_is_not_sent_there(self, backend: MindTorchBackend) -> None:
        with pytest.raises(NotCheckable, match="a function of one's own"):
            backend.forward(abs, HostCall((ONES,), {}), CallPlan())

    def test_values_that_are_no_tensors_come_as_values_of_python(
        self, backend: MindTorchBackend
    ) -> None:
        (leaf,) = run(backend, "Torch.numel", ONES).outputs
        assert (type(leaf), leaf) == (int, 6)

    def test_a_value_that_belongs_to_msadapter_does_not_leave_its_process(
        self, backend: MindTorchBackend
    ) -> None:
        with pytest.raises(NotCheckable, match="an output of type object cannot be compared"):
            run(backend, "Torch.is_same_size", ONES, ONES)

    def test_lists_of_numbers_are_tuples_for_mindspore_but_not_where_they_index(
        self, backend: MindTorchBackend
    ) -> None:
        (permuted,) = run(backend, "Torch.permute", ONES, [1, 0]).outputs
        assert permuted.shape == (3, 2)
        (rows_,) = run(backend, "Tensor.__getitem__", ONES, [0, 1]).outputs
        assert rows_.shape == (2, 3)
        (cell,) = run(backend, "Tensor.__getitem__", ONES, (0, 1)).outputs
        assert cell.shape == ()

    def test_a_dtype_of_the_dump_is_one_of_msadapter(self, backend: MindTorchBackend) -> None:
        (half,) = run(backend, "Tensor.to", ONES, Symbol("dtype", "float16")).outputs
        assert half.dtype == "float16"

    def test_denormals_are_flushed_whatever_ran_before(self, backend: MindTorchBackend) -> None:
        tiny = HostTensor("float32", np.full(4, 1e-38, np.float32))
        tenth = HostTensor("float32", np.full(4, 0.1, np.float32))
        for _ in range(2):
            (product,) = run(backend, "Torch.mul", tiny, tenth).outputs
            assert product.data.tolist() == [0.0] * 4

    def test_what_an_api_raises_keeps_the_name_of_its_type(self, backend: MindTorchBackend) -> None:
        with pytest.raises(Exception, match="left out of this stand-in") as caught:
            run(backend, "Torch.hypot", ONES, ONES)
        assert type(caught.value).__name__ == "NotImplementedError"
        assert not backend.lacks_kernel(caught.value)

    def test_a_missing_kernel_is_known_as_one(self, backend: MindTorchBackend) -> None:
        with pytest.raises(Exception, match="No implementation for function") as caught:
            run(backend, "Torch.trunc", ONES)
        assert backend.lacks_kernel(caught.value)

    def test_a_failed_allocation_is_a_memory_error(self, backend: MindTorchBackend) -> None:
        with pytest.raises(MemoryError):
            run(backend, "Torch.frac", ONES)

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("Torch.cholesky_ex_of_nobody", "MSAdapter's torch 2.1.0 .* has no Torch.cholesky"),
            ("Tensor.__reduce_ex__", "is refused"),
            ("Distributed.all_reduce", "has no Distributed.all_reduce"),
        ],
    )
    def test_what_msadapter_lacks_or_may_not_be_called_is_no_error_of_it(
        self, backend: MindTorchBackend, name: str, why: str
    ) -> None:
        with pytest.raises(NotCheckable, match=why):
            backend.resolve(ApiName(*name.split(".", 1), 0))

    def test_it_proves_itself_after_an_error(self, backend: MindTorchBackend) -> None:
        with pytest.raises(Exception, match="left out"):
            run(backend, "Torch.hypot", ONES, ONES)
        backend.prove()
        assert run(backend, "Torch.add", ONES, ONES).outputs[0].data.tolist() == [[2.0] * 3] * 2


def test_a_dtype_that_stands_for_another_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `bfloat16`, which is float32 in msadapter 0.1.0: its results would be too good."""
    shutil.copytree(STAND_IN, tmp_path, dirs_exist_ok=True)
    with (tmp_path / "torch" / "__init__.py").open("a") as file:
        file.write("\nbfloat16 = float32\n")
    monkeypatch.syspath_prepend(tmp_path)
    opened = MindTorchBackend("cpu")
    try:
        with pytest.raises(NotCheckable, match="makes Float32 of bfloat16"):
            run(opened, "Torch.abs", HostTensor("bfloat16", np.ones(3, np.float32)))
        assert run(opened, "Torch.abs", ONES).outputs[0].dtype == "float32"
    finally:
        opened.close()


class TestChecks:
    def test_a_right_api_passes_forward_and_backward(self, checker: Checker) -> None:
        result = checker.check(
            call("Torch.matmul", ms_tensor(4, 5), ms_tensor(5, 6), grads=[ms_tensor(4, 6)])
        )
        assert (result.forward, result.backward) == (Verdict.PASS, Verdict.PASS)
        assert len(rows(result, "backward")) == 2
        assert dtypes(result) == [("Float64", "Float32")]

    def test_a_wrong_output_is_found(self, checker: Checker) -> None:
        result = checker.check(call("Torch.sinc", ms_tensor(64)))
        assert result.forward is Verdict.ERROR
        assert "MaxAbsErr" in result.message

    def test_a_wrong_gradient_of_a_right_output_is_found(self, checker: Checker) -> None:
        result = checker.check(call("Torch.expm1", ms_tensor(64), grads=[ms_tensor(64)]))
        assert (result.forward, result.backward) == (Verdict.PASS, Verdict.ERROR)

    def test_an_api_that_raises_is_an_error_where_the_bench_is_fine(self, checker: Checker) -> None:
        result = checker.check(call("Torch.hypot", ms_tensor(4), ms_tensor(4)))
        assert (result.outcome, result.forward) == (Outcome.RAISED, Verdict.ERROR)
        assert "NotImplementedError: hypot is left out of this stand-in" in result.message

    def test_a_missing_kernel_is_a_skip(self, checker: Checker) -> None:
        result = checker.check(call("Torch.trunc", ms_tensor(4)))
        assert result.forward is Verdict.SKIP
        assert "the CPU has no kernel for it" in result.message

    def test_half_precision_goes_there_and_back(self, checker: Checker) -> None:
        half = ms_tensor(8, dtype="BFloat16")
        result = checker.check(call("Tensor.to", half, symbol("mindspore.dtype", "Float32")))
        assert result.forward is Verdict.PASS
        result = checker.check(call("Torch.reshape", half, [2, 4]))
        assert dtypes(result) == [("Float64", "BFloat16")]
        assert result.forward is Verdict.PASS

    def test_names_that_torch_does_not_list_are_refused_before_they_reach_msadapter(
        self, checker: Checker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def reached(name: ApiName) -> None:
            raise AssertionError(name)

        monkeypatch.setattr(checker.device(), "resolve", reached)
        result = checker.check(call("Torch.from_numpy", ms_tensor(4)))
        assert result.forward is Verdict.SKIP
        result = checker.check(call("Torch.hub.load", ms_tensor(4)))
        assert "is not an operator of torch" in result.message

    @pytest.mark.parametrize(
        "payload",
        [
            call("Torch.matmul", ms_tensor(4, 5), ms_tensor(5, 6), grads=[ms_tensor(4, 6)]),
            call("Torch.sinc", ms_tensor(64), grads=[ms_tensor(64)]),
            call("Torch.hypot", ms_tensor(4), ms_tensor(4)),
            call("Torch.trunc", ms_tensor(4)),
        ],
        ids=["right", "wrong", "raises", "no kernel"],
    )
    def test_in_two_halves_it_says_the_same(self, checker: Checker, payload: TaskPayload) -> None:
        bench = Checker(CheckSettings("mindtorch", "statistics", Path()), BENCH)
        whole = checker.check(payload)
        measured = checker.measure(payload)
        assert not isinstance(measured, TaskResult)
        halves = bench.check(payload, measured=seal(measured).open())
        assert timeless(halves) == timeless(whole)

    def test_a_device_that_dies_is_not_judged(self) -> None:
        own = statistics_checker("mindtorch")
        with pytest.raises(DeviceDied):
            own.check(replace(call("Torch.special.erfcx", ms_tensor(4)), index=3))
