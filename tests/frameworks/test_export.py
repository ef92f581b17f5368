"""`export` writes one call into one file, which runs with the framework and NumPy alone."""

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from records import DATA

from ray_precheck.cli import main
from ray_precheck.commands.precheck.run import rerun
from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.frameworks
TORCH, MINDSPORE = DATA / "torch_llm_tensor", DATA / "mindspore_llm_tensor"
# Code that makes an operator wrong by 2 %, and runs a case.
WRONG = """
import runpy, sys
import torch
right = torch.nn.functional.linear
torch.nn.functional.linear = lambda *given, **named: right(*given, **named) * 1.02
sys.argv = [sys.argv[1]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def first_call(dump: Path, kind: str) -> str:
    keys = json.loads((dump / "dump.json").read_text())["data"]
    return next(key for key in keys if key.startswith(f"{kind}."))


def alone(*words: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run Python without this package on its path."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    blocked = "import sys; sys.modules['ray_precheck'] = None\n"
    (folder / "sitecustomize.py").write_text(blocked)
    environment["PYTHONPATH"] = str(folder)
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, cwd=folder, check=False
    )  # fmt: skip


def exported(tmp_path: Path, dump: Path, kind: str) -> Path:
    case = tmp_path / "case.zip"
    assert (
        main(["export", first_call(dump, kind), "-api_info", str(dump), "--case", str(case)]) == 0
    )
    return case


def test_a_case_runs_by_itself_and_shows_a_wrong_kernel(tmp_path: Path) -> None:
    case = exported(tmp_path, TORCH, "Functional.linear")
    ran = alone(str(case), "cpu", folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "forward.output.0: worst at" in ran.stdout
    assert "no failure here" in ran.stdout
    ran = alone("-c", WRONG, str(case), folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "IN ERROR" in ran.stdout


def test_a_case_of_mindspore_runs_by_itself(tmp_path: Path) -> None:
    case = exported(tmp_path, MINDSPORE, "Mint.matmul")
    ran = alone(str(case), "CPU", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "no failure here" in ran.stdout


def test_a_case_says_what_it_holds_and_is_the_same_each_time(tmp_path: Path) -> None:
    case = exported(tmp_path, TORCH, "Functional.linear")
    first = case.read_bytes()
    assert exported(tmp_path, TORCH, "Functional.linear").read_bytes() == first
    with zipfile.ZipFile(case) as archive:
        said = json.loads(archive.read("case.json"))
        assert said["versions"]["NumPy"] == np.__version__
        assert said["record"]["forward"]["input_args"]
        files = [*said["inputs"].values(), *said["incoming_gradients"]]
        for output in said["outputs"]:
            files += [output["device"], output["reference"]]
            assert output["reference"]["dtype"] == "float64"
        assert len(said["captured"]) == 2
        files += said["captured"]
        assert {each["file"] for each in files} <= set(archive.namelist())


def test_what_was_unpacked_is_a_saved_call(tmp_path: Path) -> None:
    case = exported(tmp_path, TORCH, "Functional.linear")
    with zipfile.ZipFile(case) as archive:
        archive.extractall(tmp_path / "case")
    (saved,) = set((tmp_path / "case").glob("*.json")) - {tmp_path / "case" / "case.json"}
    assert rerun(saved).forward is Verdict.PASS
    assert main(["repro", str(saved)]) == 0


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            "Functional.linear.999999.forward",
            "has no call 'Functional.linear.999999.forward'; it has Func",
        ),
        ("nothing", "has no call 'nothing'; it has"),
    ],
)
def test_a_call_that_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], call: str, reason: str
) -> None:
    assert main(["export", call, "-api_info", str(TORCH), "--case", str(tmp_path / "c")]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_a_wrong_captured_result_is_told_and_stands_beside_the_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = tmp_path / "dump"
    shutil.copytree(TORCH, dump)
    call = first_call(dump, "Functional.linear")
    file = dump / "dump_tensor_data" / f"{call}.output.0.pt"
    torch.save(torch.load(file) * 1.02, file)
    exported(tmp_path, dump, "Functional.linear")
    said = capsys.readouterr().out
    assert "2 captured results, 1 in error" in said
    assert f"{call}.output.0: " in said
    # The machine that wrote the case is right: the script shows nothing there.
    assert alone(str(tmp_path / "case.zip"), "cpu", folder=tmp_path).returncode == 0
    with zipfile.ZipFile(tmp_path / "case.zip") as archive:
        (wrong, _) = json.loads(archive.read("case.json"))["captured"]
        values = np.load(io.BytesIO(archive.read(wrong["file"])))
    assert wrong["verdict"] == "error"
    np.testing.assert_array_equal(values, torch.load(file).numpy())
