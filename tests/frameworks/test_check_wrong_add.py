"""A device that adds wrongly lives: it is checked on, and its `add` is the row in error."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from records import row_of

from ray_precheck.check.settings import CheckSettings
from ray_precheck.errors import DeviceError
from ray_precheck.replay.job import PrecheckOpener
from ray_precheck.runtime.workers.messages import Work
from ray_precheck.runtime.workers.process import CheckProcess
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import DeviceSlot, TaskPayload

pytestmark = pytest.mark.frameworks
TENSOR = b'{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "Max": 1.0, "Min": 0.5}'
# In a process that checks, 1 + 1 is what WRONG makes of the sum in every dtype but float64; and
# special.entr raises, after which a device has to prove itself.
_PLANTED = """
import os, sys
if "ray_precheck.runtime.workers." in " ".join(sys.orig_argv):
    import torch
    right = torch.Tensor.__add__
    def __add__(self, other):
        total = right(self, other)
        return total if total.dtype == torch.float64 else eval(os.environ["WRONG"])
    torch.Tensor.__add__ = __add__
    def entr(input, **kwargs):
        if input.dtype != torch.float64:
            raise RuntimeError("the kernel has failed")
        return input
    torch.special.entr = entr
"""


@pytest.fixture(autouse=True)
def _planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(_PLANTED)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[CheckProcess]:
    opener = PrecheckOpener(CheckSettings("pytorch", "statistics", tmp_path))
    opened = CheckProcess(DeviceSlot("cpu", 0, "", "", ""), opener)
    yield opened
    opened.close()


def payload(index: int, name: str, inputs: int = 1) -> TaskPayload:
    tensors = b", ".join([TENSOR] * inputs)
    forward = b'{"input_args": [%s], "input_kwargs": {}, "output": [%s]}' % (tensors, TENSOR)
    return TaskPayload(index, name, forward, None)


@pytest.mark.parametrize("wrong", ["total * 1.002", "total * float('nan')", "-total"])
def test_the_row_in_error_is_its_add_and_the_others_are_checked(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, wrong: str
) -> None:
    monkeypatch.setenv("WRONG", wrong)
    process: CheckProcess = request.getfixturevalue("process")
    process.wait_ready()
    calls = [
        payload(0, "Torch.special.entr.0"),
        payload(1, "Tensor.__add__.0", 2),
        payload(2, "Torch.abs.0"),
    ]
    batch = [Work(call.index, call) for call in calls]
    process.submit(batch)
    report, _ = process.collect(batch, [60.0] * 3)
    assert report.failure is None
    found = {done.name: row_of(done) for done in report.results}
    assert {name: row.forward for name, row in found.items()} == {
        "Torch.special.entr.0": Verdict.ERROR,
        "Tensor.__add__.0": Verdict.ERROR,
        "Torch.abs.0": Verdict.PASS,
    }
    assert "the kernel has failed" in found["Torch.special.entr.0"].message
    assert "unusable" not in found["Torch.special.entr.0"].message


@pytest.mark.parametrize("wrong", ["total[:3]", "total.to(torch.float16)", "1 / 0"])
def test_a_device_that_gives_no_sum_at_all_is_dead(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, wrong: str
) -> None:
    monkeypatch.setenv("WRONG", wrong)
    process: CheckProcess = request.getfixturevalue("process")
    with pytest.raises(DeviceError, match=r"^cpu answers|division by zero"):
        process.wait_ready()
