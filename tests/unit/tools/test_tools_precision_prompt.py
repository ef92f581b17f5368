"""The prompt of precision_tool, and its words without the prompt."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ray_precheck.tools.precision_tool.__main__ import main
from ray_precheck.tools.precision_tool.prompt import session_of
from ray_precheck.tools.precision_tool.settings import ToolSettings
from tests.unit.commands.inspect.test_inspect_shell import Terminal
from tests.unit.commands.small_captures import write_capture

pytestmark = pytest.mark.unit

_X = np.linspace(-1, 1, 6).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with precision_data, which holds dumps of both sides as their readers make them."""
    for name, factor in (("precision_data", 2.0), ("precision_data/dump/cpu", 3.0)):
        made = write_capture(tmp_path / name, [("Ge.MatMulV2.0.forward", [_X], [_X * factor])])
        dump = json.loads(made.read_text())
        named = {"type": "MatMulV2", "name": "LeNet/conv1/Matmul", "graph": "ge_proto_00001"}
        dump["data"]["Ge.MatMulV2.0.forward"]["operator"] = named
        made.write_text(json.dumps(dump))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_words_without_the_prompt(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "-n", "conv1", "-t", "Mul"]) == 0
    assert capsys.readouterr().out == "[MatMulV2] LeNet/conv1/Matmul\n"
    assert main(["ac", "-c"]) == 0
    assert "first difference: Ge.MatMulV2.0.forward" in capsys.readouterr().out
    assert main(["pt", "Ge.MatMulV2.0.forward.output.0.npy"]) == 0
    assert "Shape: (6,)" in capsys.readouterr().out
    assert main(["ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"MatMulV2": 1}
    for wrong in (["nonsense"], ["ni", "nothing"], ["cp", "a"]):
        assert main(wrong) == 2
        assert capsys.readouterr().err.startswith("precision_tool: error: ")


def test_the_settings_name_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "precision_data").rename(folder / "elsewhere")
    assert main(["ls"]) == 2
    assert "no capture is open" in capsys.readouterr().err
    (folder / "precision_tool").mkdir()
    (folder / "precision_tool" / "config.py").write_text("DATA_ROOT_DIR = './elsewhere'\n")
    assert main(["ls", "-t", "Mul"]) == 0
    assert "LeNet/conv1/Matmul" in capsys.readouterr().out


def test_the_cpu_is_what_is_compared_with(folder: Path) -> None:
    session = session_of(ToolSettings())
    assert session.path == Path("precision_data")
    assert session.golden_path == Path("precision_data/dump/cpu")
    (folder / "precision_data" / "dump").rename(folder / "away")
    (folder / "precision_data" / "tf" / "dump").mkdir(parents=True)
    (folder / "precision_data" / "tf" / "dump" / "x.1.npy").touch()
    assert session_of(ToolSettings()).golden_path == Path("precision_data/tf/dump")


def test_the_prompt_of_precision_tool(folder: Path) -> None:
    terminal = Terminal([sys.executable, "-m", "ray_precheck.tools.precision_tool"], 100, folder)
    try:
        terminal.expect("PrecisionTool >")
        terminal.type("ls -n conv1 -t Mul\r")
        terminal.expect("[MatMulV2] LeNet/conv1/Matmul")
        terminal.expect("PrecisionTool >")
        terminal.type("echo shell-$((40 + 2))\r")
        terminal.expect("shell-42")
        terminal.expect("PrecisionTool >")
        terminal.type("run echo again-$((40 + 3))\r")
        terminal.expect("again-43")
        terminal.expect("PrecisionTool >")
        terminal.type("\x03")
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_unknown_words_run_as_shell_commands(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ray_precheck.tools.precision_tool"],
        input="echo one two\nrun printf 'a  b\\n'\nls -t Mul\nfalse\n",
        capture_output=True, text=True, check=False, cwd=folder, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.splitlines()[1:] == [
        "one two", "a  b", "[MatMulV2] LeNet/conv1/Matmul", "exit code 1",
    ]  # fmt: skip
