"""Errors of the script's own operators, which MindSpore raises where a value is read next."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.frameworks

# In a process of its own, because checks make MindSpore raise at once.
_SCRIPT = """
import sys
import mindspore as ms
from mindspore import mint, nn, ops
from ray_precheck.capture import Capture

class Wrong(nn.Cell):
    def construct(self, x):
        return ops.matmul(x, x)

x = ms.Tensor([[1.0, 2.0, 3.0]])
with Capture(sys.argv[1], step_by="manual", framework="mindspore", level=sys.argv[2]):
    for call in (Wrong(), lambda y: Wrong()(y)):
        try:
            call(x)
        except RuntimeError as error:
            print("raised", "MatMul" in str(error))
    nn.ReLU()(mint.add(x, x))
"""


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_they_reach_the_script_and_the_capture_goes_on(tmp_path: Path, level: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(tmp_path / "dump"), level],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["raised", "True"] * 2, done.stderr
    (dump,) = (tmp_path / "dump").glob("step0/*/dump.json")
    assert "Mint.add.0.forward" in json.loads(dump.read_text())["data"]
