"""What limits the precision of a device comes through from its process to the end of the run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dumps import additions, write_dump

pytestmark = pytest.mark.cluster

STAYS_ON = """
import sys
if "ray_precheck.runtime.workers." in " ".join(sys.orig_argv):
    import ray_precheck.frameworks.pytorch.backend as module
    opened = module.TorchBackend.__init__
    def init(self, kind):
        opened(self, kind)
        self.caveat = "HF32 stays on"
    module.TorchBackend.__init__ = init
"""


def test_hf32_that_stays_on_is_said_at_the_end_and_kept(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STAYS_ON)
    write_dump(tmp_path / "dump.json", additions(3))
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    out, machine = tmp_path / "out", tmp_path / "r.json"
    command = [sys.executable, "-m", "ray_precheck", "run_ut", "--device-type", "cpu"]
    command += ["-api_info", str(tmp_path / "dump.json"), "-o", str(out), "--json", str(machine)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Note:     HF32 stays on\n" in done.stdout
    (view,) = json.loads(machine.read_text())["views"]
    facts = {each["name"]: each["value"] for each in view["facts"]}
    assert facts["Limits of the device"] == "HF32 stays on"
    (noted,) = out.glob("*.run.json")
    assert json.loads(noted.read_text())["environment"]["device caveats"] == ["HF32 stays on"]
    (result,) = out.glob("accuracy_checking_result_*.csv")
    command = [sys.executable, "-m", "ray_precheck", "summary", str(result)]
    again = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert "Note:     HF32 stays on\n" in again.stdout
