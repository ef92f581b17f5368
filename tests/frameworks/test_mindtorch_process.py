"""A check process whose device is MSAdapter in a process below it, with MSAdapter in PYTHONPATH."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from records import NEEDS_MINDSPORE, call, ms_tensor, row_of, tensor

from ray_precheck.check.settings import CheckSettings
from ray_precheck.errors import DeviceError
from ray_precheck.processes import descendants
from ray_precheck.replay.job import PrecheckOpener
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.runtime.workers.messages import Work
from ray_precheck.runtime.workers.process import CheckProcess
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import BENCH, BatchReport, Cause, DeviceSlot, TaskPayload

pytestmark = [pytest.mark.frameworks, NEEDS_MINDSPORE]
STAND_IN = Path(__file__).parents[1] / "data" / "mindtorch"
GOOD = call("Torch.abs", ms_tensor(4))
LIMIT_BYTES = 1 << 28


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))


def started(framework: str, kind: str = "cpu", limit_bytes: int = 0) -> CheckProcess:
    settings = CheckSettings(framework, "statistics", Path(), memory_limit_bytes=limit_bytes)
    process = CheckProcess(DeviceSlot(kind, 0, "", "", ""), PrecheckOpener(settings))
    try:
        process.wait_ready()
    except DeviceError:
        process.close()
        raise
    return process


@pytest.fixture
def process() -> Iterator[CheckProcess]:
    made = started("mindtorch", limit_bytes=LIMIT_BYTES)
    yield made
    made.close()


def check(
    process: CheckProcess, payload: TaskPayload, limit_s: float = 60.0, stage: Stage = Stage.CHECK
) -> BatchReport:
    work = [Work(payload.index, payload, stage)]
    process.submit(work)
    return process.collect(work, [limit_s])[0]


def test_a_record_is_checked(process: CheckProcess) -> None:
    (result,) = check(process, GOOD).results
    assert row_of(result).forward is Verdict.PASS


def test_an_api_that_kills_msadapter_kills_its_process_in_the_same_way(
    process: CheckProcess,
) -> None:
    report = check(process, call("Torch.special.erfcx", ms_tensor(4)))
    assert report.failure is not None
    assert report.failure.cause is Cause.CRASHED
    assert report.failure.reason == "killed its worker (SIGSEGV: the driver: no such stream)"


def test_an_api_that_leaves_is_known_by_its_exit_code(process: CheckProcess) -> None:
    report = check(process, call("Torch.floor", ms_tensor(4)))
    assert report.failure is not None
    assert report.failure.reason.startswith("killed its worker (exit code 7")


def test_an_api_that_hangs_is_ended_with_both_processes(process: CheckProcess) -> None:
    (child,) = map(psutil.Process, descendants(process.pid))
    report = check(process, call("Torch.ceil", ms_tensor(4)), limit_s=0.5)
    assert report.failure is not None
    assert report.failure.cause is Cause.TIMED_OUT
    assert psutil.wait_procs([child], 20)[1] == []


def test_what_msadapter_waits_for_a_processor_is_counted(process: CheckProcess) -> None:
    (child,) = descendants(process.pid)
    assert {str(process.pid), str(child)} <= set(process._queued_ns())


def test_the_limit_of_memory_holds_in_the_process_of_msadapter(process: CheckProcess) -> None:
    report = check(process, call("Torch.cov", ms_tensor(4)), stage=Stage.DEVICE)
    assert report.failure is not None
    assert report.failure.cause is Cause.OUT_OF_MEMORY


@pytest.mark.parametrize(("framework", "kind"), [("pytorch", "cpu"), ("mindtorch", BENCH)])
def test_what_computes_with_the_native_torch_has_no_process_below_it(
    framework: str, kind: str
) -> None:
    process = started(framework, kind)
    try:
        assert descendants(process.pid) == []
        if kind == "cpu":
            (result,) = check(process, call("Torch.abs", tensor(4))).results
            assert row_of(result).forward is Verdict.PASS
    finally:
        process.close()


@pytest.mark.parametrize("kind", ["cpu", BENCH])
def test_only_a_device_needs_msadapter(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")
    if kind == BENCH:
        started("mindtorch", kind).close()
        return
    with pytest.raises(DeviceError, match="MSAdapter's torch is what a mindtorch dump tests"):
        started("mindtorch", kind)


def test_an_msadapter_that_dies_while_it_loads_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    text = "import mindspore, os\nos.write(2, b'no driver')\nos._exit(5)\n"
    (tmp_path / "torch" / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"died while it started \(exit code 5: .*no driver\)"):
        started("mindtorch")


def test_an_msadapter_that_cannot_be_imported_says_with_what_where_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    text = "import mindspore\nfrom mindspore.common.api import set_adapter_configuration\n"
    (tmp_path / "torch" / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(DeviceError) as caught:
        started("mindtorch")
    said = str(caught.value)
    assert f"torch of {tmp_path} cannot be imported with MindSpore " in said
    assert "ImportError: cannot import name 'set_adapter_configuration'" in said
    assert f"{tmp_path}/torch/__init__.py:2" in said
    assert "install that one, or a release for this one" in said
    assert f"PYTHONPATH={tmp_path} python -c 'import torch'" in said
