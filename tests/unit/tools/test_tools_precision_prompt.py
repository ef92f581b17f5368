"""The prompt of precision_tool, and its words without the prompt."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ray_precheck.tools.precision_tool.__main__ import main
from ray_precheck.tools.precision_tool.prompt import session_of
from ray_precheck.tools.precision_tool.settings import ToolSettings
from tests.unit.commands.inspect.test_inspect_shell import Terminal
from tests.unit.formats.precision_data import GUIDE, V0_1_11
from tests.unit.formats.test_precision_compare import lenet

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with precision_data in the guide's layout, whose first ReLU is wrong on the NPU."""
    flag = {"AI Core": {"task_id": 7, "stream_id": 0, "status": 0x20}}
    capture = lenet(GUIDE, fault=1.0)
    capture.flags = [(flag, capture.operators[-1])]
    capture.fusions = json.dumps(
        {
            "graph_fusion": {"ConvBNFusion": {"effect_times": "2", "match_times": "3"}},
            "session_and_graph_id": "0_1",
        }
    )
    capture.write(tmp_path / "precision_data")
    monkeypatch.chdir(tmp_path)
    for name in ("state", "cache"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / name))
    monkeypatch.setenv("CMD_ROOT_PATH", str(tmp_path / "nowhere"))
    return tmp_path


@pytest.mark.parametrize("layout", [GUIDE, V0_1_11])
def test_words_without_the_prompt(
    folder: Path, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    if layout != GUIDE:
        shutil.rmtree(folder / "precision_data")
        lenet(layout, fault=1.0).write(folder / "precision_data")
    assert main(["ls", "-n", "fc", "-t", "Mul"]) == 0
    assert capsys.readouterr().out == "[MatMulV2] net/fc/MatMulfused\n"
    assert main(["ni", "net/fc/MatMulfused"]) == 0
    told = capsys.readouterr().out
    assert "Origins: net/fc/Relu" in told
    assert "[Relu] net/fc/Relu" in told  # what TensorFlow computed
    assert main(["ac", "-c"]) == 0
    told = capsys.readouterr().out
    assert "first difference: Tensorflow.net_fc_MatMulfused.0.forward" in told
    if layout == GUIDE:
        assert "ConvBNFusion" in told
        assert "[MatMulV2] net.out/MatMul" in told
        assert "[AI Core][Status:" in told
        assert "float computation overflows" in told
    assert main(["vcs", "-l", "1"]) == 0
    assert "Left:  Tensorflow.net_fc_MatMulfused.0.forward" in capsys.readouterr().out
    assert main(["diff", "net/fc/MatMulfused", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    # Three of TensorFlow's operators were fused: what went in is right, and what came out is not.
    assert [each["result"] for each in found["values"]] == ["pass", "pass", "pass", "error"]
    for name in (
        next((folder / "precision_data").rglob("MatMulV2.net_fc*output.0.npy")).name,
        next((folder / "precision_data").rglob("net_fc_Relu.*.npy")).name,
    ):
        assert main(["pt", name]) == 0
        told = capsys.readouterr().out
        assert "Shape: (16, 8)" in told
        assert f"{name}.txt" in told
    for wrong in (["nonsense"], ["ni", "nothing"], ["cp", "a"]):
        assert main(wrong) == 2
        assert capsys.readouterr().err.startswith("precision_tool: error: ")


def test_the_settings_name_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "precision_data").rename(folder / "elsewhere")
    assert main(["ls"]) == 2
    assert "cannot read the dump precision_data: No such file" in capsys.readouterr().err
    (folder / "precision_tool").mkdir()
    (folder / "precision_tool" / "config.py").write_text("DATA_ROOT_DIR = './elsewhere'\n")
    assert main(["ls", "-t", "Mul"]) == 0
    assert "net/fc/MatMulfused" in capsys.readouterr().out


def test_the_cpu_is_what_is_compared_with(folder: Path) -> None:
    session = session_of(ToolSettings())
    assert session.path == Path("precision_data")
    assert session.golden_path == Path("precision_data/dump/cpu")
    (folder / "precision_data" / "dump" / "cpu").rename(folder / "away")
    (folder / "precision_data" / "tf" / "dump").mkdir(parents=True)
    (folder / "precision_data" / "tf" / "dump" / "x.1.npy").touch()
    assert session_of(ToolSettings()).golden_path == Path("precision_data/tf/dump")


def test_the_prompt_of_precision_tool(folder: Path) -> None:
    terminal = Terminal([sys.executable, "-m", "ray_precheck.tools.precision_tool"], 100, folder)
    try:
        terminal.expect("PrecisionTool >")
        terminal.type("ls -n fc -t Mul\r")
        terminal.expect("[MatMulV2] net/fc/MatMulfused")
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
        input="echo one two\nrun printf 'a  b\\n'\nls -n fc -t Mul\nfalse\n",
        capture_output=True, text=True, check=False, cwd=folder, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.splitlines()[1:] == [
        "one two", "a  b", "[MatMulV2] net/fc/MatMulfused", "exit code 1",
    ]  # fmt: skip
