"""How much memory a worker needs for a record, and that it gives it back."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
from records import call, ms_tensor, tensor

from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = pytest.mark.frameworks

MIB = 1 << 20
ELEMENTS = 1 << 24
# Two inputs and an output in float32, and the bench's copies of them in float64.
RECORD_MIB = 3 * ELEMENTS * (4 + 8) // MIB
# Measured: 577 MiB, 1.00 of the record's tensors and float64 copies; the second record adds 0.
BOUND = 1.25

# The peak is read from the kernel: resource.getrusage would count the parent's before the exec.
SCRIPT = f"""
import re
from records import call, statistics_checker, tensor

def peak_kib():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read()).group(1))

checker = statistics_checker("pytorch")
checker.check(call("Tensor.add", tensor(8), tensor(8)))
peaks = [peak_kib()]
for _ in range(2):
    result = checker.check(call("Tensor.add", tensor({ELEMENTS}), tensor({ELEMENTS})))
    assert result.forward.value == "pass", result
    peaks.append(peak_kib())
print(*peaks)
"""


@pytest.fixture(scope="module")
def peaks_mib() -> list[float]:
    """The peak memory of a process before, after one, and after two large records."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [int(word) / 1024 for word in done.stdout.split()]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_a_large_record_needs_little_more_than_its_tensors_and_their_float64_copies(
    peaks_mib: list[float],
) -> None:
    before, first, _ = peaks_mib
    assert 0.5 * RECORD_MIB < first - before < BOUND * RECORD_MIB


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_a_second_large_record_adds_nothing_to_the_peak(peaks_mib: list[float]) -> None:
    _, first, second = peaks_mib
    assert second - first < 0.05 * RECORD_MIB


def _kept_after(checker: Checker, payload: TaskPayload) -> list[str]:
    """Return the executions, with all their tensors, that wait for Python's cycle collector."""
    gc.collect()
    gc.disable()
    try:
        assert checker.check(payload).forward is Verdict.PASS
        kept = [type(found).__name__ for found in gc.get_objects()]
    finally:
        gc.enable()
    return [name for name in kept if name.endswith("Execution")]


@pytest.mark.parametrize("grads", [None, [tensor(3)]], ids=["forward", "backward"])
def test_nothing_of_a_torch_call_waits_for_the_cycle_collector(
    torch_checker: Checker, grads: list[dict[str, object]] | None
) -> None:
    leaves = [tensor(3, grad=True), tensor(3, grad=True)]
    assert _kept_after(torch_checker, call("Torch.mul", *leaves, grads=grads)) == []


@pytest.mark.parametrize(
    "grads",
    [
        None,
        pytest.param(
            [ms_tensor(3)],
        ),
    ],
    ids=["forward", "backward"],
)
def test_nothing_of_a_mindspore_call_waits_for_the_cycle_collector(
    mindspore_checker: Checker, grads: list[dict[str, object]] | None
) -> None:
    assert _kept_after(mindspore_checker, call("Mint.mul", *[ms_tensor(3)] * 2, grads=grads)) == []


def test_a_record_larger_than_the_limit_is_skipped_before_it_allocates(tmp_path: Path) -> None:
    settings = CheckSettings("pytorch", "statistics", tmp_path, memory_limit_bytes=2**30)
    huge = call("Torch.add.0", tensor(10**6, 10**6), tensor(10**6, 10**6))
    result = Checker(settings, "cpu").check(huge)
    assert result.forward is Verdict.SKIP
    assert "more than the 1 GiB that a worker may take (--max-memory)" in result.message
