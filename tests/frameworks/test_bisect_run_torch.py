"""A bisect by the own error of an operator, which `locate` measures in captures, and one of torch's flags."""

import csv
import sys
from pathlib import Path

import pytest

from ray_precheck.cli import main

pytestmark = pytest.mark.frameworks
# A chain of sines with its tensors in files; the fourth is off by 1 % with FUSED, all take a wrong input with
# SCALED, for which no operator is to blame.
PROGRAM = """
import json, os, pathlib
import numpy as np
folder = pathlib.Path(os.environ["BISECT_TRIAL"]) / "capture"
tensors = folder / "dump_tensor_data"
tensors.mkdir(parents=True)

def saved(name, values):
    np.save(tensors / name, values)
    facts = {"Max": values.max(), "Min": values.min(), "Mean": values.mean(), "Norm": np.linalg.norm(values)}
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(values.shape), "data_name": name,
            **{name: float(value) for name, value in facts.items()}}

values = np.random.default_rng(5).standard_normal((16, 32)).astype(np.float32)
values *= np.float32(1.5 if os.environ["SCALED"] == "1" else 1)
data = {}
for number in range(5):
    key = f"Torch.sin.{number}.forward"
    data[key] = {"input_args": [saved(f"{key}.input.0.npy", values)]}
    values = np.sin(values)
    if number == 3 and os.environ["FUSED"] == "1":
        values *= np.float32(1.01)
    data[key]["output"] = [saved(f"{key}.output.0.npy", values)]
header = {"task": "tensor", "level": "L1", "framework": "pytorch"}
(folder / "dump.json").write_text(json.dumps({**header, "data": data}))
"""


def bisect(folder: Path, *options: str) -> int:
    switches = [word for name in ("FUSED", "SCALED") for word in ("--switch", f"env:{name}=1|0")]
    words = [*switches, "-o", str(folder), "-d", "0", "1", "--repeats", "1", *options]
    return main(["bisect", "run", *words, "--", sys.executable, "-c", PROGRAM])


def test_the_switch_behind_an_own_error_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect(tmp_path, "--own-error", "Torch.sin.3") == 1
    assert "env:FUSED=1|0 makes the result wrong" in capsys.readouterr().out
    (table,) = tmp_path.glob("bisect_2*.csv")
    with table.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    metrics = {row["Verdict"]: float(row["Metric"]) for row in rows}
    assert metrics["FAIL"] > 100 * metrics["PASS"]
    assert all("Torch.sin.3.forward" in row["Message"] for row in rows)


def test_a_tolerance_decides_instead_of_locate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect(tmp_path, "--own-error", "Torch.sin", "--tolerance", "1e9") == 0
    assert "switches: right" in capsys.readouterr().out


def test_the_ready_list_of_torch_is_set_and_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import torch; raise SystemExit(torch.backends.mkldnn.enabled)"
    words = ["--switch", "list:torch", "-o", str(tmp_path), "-d", "0", "1", "--repeats", "1"]
    assert main(["bisect", "run", *words, "--", sys.executable, "-c", code]) == 1
    printed = capsys.readouterr().out
    assert "py:torch.backends.mkldnn.enabled=|False makes the result wrong" in printed
    assert "Python: import torch; torch.backends.mkldnn.enabled = False" in printed
