"""precision_tool's words that run a training do what the guide sets, and pass the exit code on."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ray_precheck.errors import UsageError
from ray_precheck.tools.precision_tool import tf_config
from ray_precheck.tools.precision_tool.training import WORDS

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[3]


def tool(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ray_precheck.tools.precision_tool", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_npu_dump_sets_the_variables_of_the_guide_and_passes_the_failure_on(tmp_path: Path) -> None:
    shown = "$DUMP_GE_GRAPH $DUMP_GRAPH_LEVEL $DUMP_GRAPH_PATH $PRECISION_TOOL_DUMP"
    done = tool(tmp_path, "npu_dump", f"echo {shown}; exit 7")
    assert (done.returncode, done.stdout) == (7, "2 3 precision_data/graph/all True\n")
    assert (tmp_path / "precision_data" / "dump" / "npu").is_dir()
    assert "nothing was written into precision_data/dump/npu: that is done by an NPU" in done.stderr


def test_npu_overflow_tells_the_script_to_detect_overflows(tmp_path: Path) -> None:
    folder = "precision_data/dump/overflow"
    done = tool(tmp_path, "npu_overflow", f"echo $PRECISION_TOOL_OVERFLOW; touch {folder}/a")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_tf_dump_of_what_is_no_tensorflow_says_so(tmp_path: Path) -> None:
    done = tool(tmp_path, "tf_dump", "true")
    assert done.returncode == 2
    assert "nothing was captured" in done.stderr
    assert not list((tmp_path / "precision_data" / "dump" / "cpu").iterdir())


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("given", [(), ("sh", "run.sh"), ("  ",)])
def test_a_command_is_one_text_in_quotes(word: str, given: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="runs one command in quotes"):
        WORDS[word](given)


def test_what_needs_an_npu_is_said() -> None:
    with pytest.raises(UsageError, match="needs npu_bridge, which comes with CANN"):
        tf_config.estimator_dump_config()


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("", {}),
        ("PRECISION_TOOL_DUMP", {"enable_dump": True, "dump_path": "precision_data/dump/npu"}),
        (
            "PRECISION_TOOL_OVERFLOW",
            {"enable_dump_debug": True, "dump_path": "precision_data/dump/overflow"},
        ),
    ],
)
def test_an_estimators_configuration_is_what_the_word_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, expected: dict[str, object]
) -> None:
    """npu_bridge is a stand-in: the real one needs an NPU."""
    bridge, init = ModuleType("npu_bridge"), ModuleType("npu_bridge.npu_init")
    init.DumpConfig = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "npu_bridge", bridge)
    monkeypatch.setitem(sys.modules, "npu_bridge.npu_init", init)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    if flag:
        monkeypatch.setitem(os.environ, flag, "True")
    found = tf_config.estimator_dump_config()
    assert {key: found[key] for key in expected} == expected
    assert bool(found) == bool(flag)
    if flag:
        assert (found["dump_step"], found["dump_mode"], found["op_debug_level"]) == ("0", "all", 4)
