"""TensorFlow's scripts are captured by its own debugger, in TensorFlow's own environment (scripts/setup)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ray_precheck.formats.conversion import as_our_dump
from ray_precheck.trace.flow import FlowRecord, flow_of
from ray_precheck.trace.side import open_side

ROOT = Path(__file__).parents[2]
TENSORFLOW = Path(
    os.environ.get("RAY_PRECHECK_TENSORFLOW", ROOT / ".venv-tensorflow" / "bin" / "python")
)
LENET = ROOT / "tests" / "data" / "tensorflow" / "lenet.py"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not TENSORFLOW.exists(), reason="scripts/test makes .venv-tensorflow"),
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*words: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def capture(out: Path, *script: str | Path) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "ray_precheck", "capture", "--framework", "tensorflow")
    return run(*command, "-o", out, "--", TENSORFLOW, *script, cwd=out.parent)


@pytest.mark.parametrize("how", ["graph", "eager"])
def test_a_script_runs_as_it_would_alone_and_is_read_with_its_flow(
    tmp_path: Path, how: str
) -> None:
    alone = run(TENSORFLOW, LENET, how, cwd=tmp_path)
    done = capture(tmp_path / "dump", LENET, how)
    assert (done.returncode, done.stdout) == (0, alone.stdout), done.stderr
    assert "MB of TensorFlow's debugger in" in done.stderr
    with open_side(as_our_dump(tmp_path / "dump") / "dump.json") as side:
        flow = flow_of(FlowRecord(entry, side.items(entry)) for entry in side.entries)
        inputs = [
            flow.producer(f"TensorFlow.Conv2D.{number}.forward", "input.0") for number in range(4)
        ]
    kinds = [each.key.split(".")[1] if each else "" for each in inputs]
    assert kinds == [kinds[0], "MaxPool", kinds[0], "MaxPool"]
    assert kinds[0] in ("Const", "Placeholder")


def test_tensorflows_own_reader_reads_what_was_completed(tmp_path: Path) -> None:
    """The events that were added are events of its format."""
    assert capture(tmp_path / "dump", LENET, "graph").returncode == 0
    script = (
        "import sys, json\n"
        "from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader\n"
        "with DebugDataReader(sys.argv[1]) as reader:\n"
        "    reader.update()\n"
        "    traces = reader.graph_execution_traces()\n"
        "    print(json.dumps([len(reader.executions()), [t.op_type for t in traces],\n"
        "        reader.graph_execution_trace_to_tensor_value(traces[-1]).tolist()]))\n"
    )
    done = run(TENSORFLOW, "-c", script, tmp_path / "dump", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    executions, kinds, _ = json.loads(done.stdout)
    assert executions > 2
    assert {"Placeholder", "Conv2D", "Conv2DBackpropFilter"} <= {*kinds}


def test_control_flow_gives_its_values_to_what_follows(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(
        "import tensorflow as tf\n"
        "@tf.function\n"
        "def turn(x):\n"
        "    for _ in tf.range(3):\n"
        "        x = tf.tanh(x) * 2.0\n"
        "    if tf.reduce_sum(x) > 0:\n"
        "        x = tf.exp(x)\n"
        "    return x + 1.0\n"
        "print(turn(tf.constant([0.5, 1.0])).numpy().tolist())\n"
    )
    done = capture(tmp_path / "dump", script)
    assert done.returncode == 0, done.stderr
    with open_side(as_our_dump(tmp_path / "dump") / "dump.json") as side:
        calls = [entry.call for entry in side.entries]
        assert sum(call.startswith("TensorFlow.Tanh.") for call in calls) == 3
        flow = flow_of(FlowRecord(entry, side.items(entry)) for entry in side.entries)
    last = [each for each in calls if each.startswith("TensorFlow.AddV2.")][-1]
    seen, key, path = [], f"{last}.forward", "input.0"
    while (maker := flow.producer(key, path)) is not None and len(seen) < 20:
        seen.append(maker.key.split(".")[1])
        key = maker.key
        ways = [place for place in flow.producers if place[0] == key]
        path = ways[-1][1] if ways else ""
    assert "Exp" in seen


def test_a_script_that_imports_no_tensorflow_says_so(tmp_path: Path) -> None:
    script = tmp_path / "other.py"
    script.write_text("raise SystemExit(7)\n")
    done = capture(tmp_path / "dump", script)
    assert done.returncode == 7
    assert "nothing was captured: no Python of the script imported TensorFlow" in done.stderr


def test_tf_dump_answers_for_the_debugger_of_a_session_and_writes_its_first_run(
    tmp_path: Path,
) -> None:
    tool = (sys.executable, "-m", "ray_precheck.tools.precision_tool", "tf_dump")
    done = run(*tool, f"{TENSORFLOW} {LENET} session; exit 3", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    files = list((tmp_path / "precision_data" / "dump" / "cpu").iterdir())
    (product,) = [each for each in files if each.name.startswith("LeNet_fc1_1_MatMul.0.")]
    assert np.load(product).shape == (3, 10)
    assert sum(each.name.startswith("LeNet_conv1_1_Conv2D.0.") for each in files) == 1


def test_a_sessions_configuration_keeps_what_it_has(tmp_path: Path) -> None:
    script = (
        "import tensorflow as tf\n"
        "import ray_precheck.tools.precision_tool.tf_config as CONFIG\n"
        "config = tf.compat.v1.ConfigProto(allow_soft_placement=True)\n"
        "config.graph_options.rewrite_options.custom_optimizers.add(name='Own')\n"
        "config = CONFIG.session_dump_config(CONFIG.session_dump_config(config))\n"
        "names = [e.name for e in config.graph_options.rewrite_options.custom_optimizers]\n"
        "found = config.graph_options.rewrite_options.custom_optimizers[-1].parameter_map\n"
        "print(config.allow_soft_placement, names, found['enable_dump'].b, found['dump_path'].s,\n"
        "    found['dump_step'].s, found['enable_dump_debug'].b, found['dump_debug_mode'].s)\n"
    )
    (tmp_path / "precision_tool").mkdir()
    (tmp_path / "precision_tool" / "config.py").write_text("TF_DUMP_STEP = '0|5'\n")
    for flag, expected in (
        ("PRECISION_TOOL_DUMP", "True b'precision_data/dump/npu' b'0|5' False b''"),
        ("PRECISION_TOOL_OVERFLOW", "False b'precision_data/dump/overflow' b'0|5' True b'all'"),
    ):
        done = run(TENSORFLOW, "-c", script, cwd=tmp_path, **{flag: "True"})
        assert done.stdout == f"True ['Own', 'NpuOptimizer'] {expected}\n", done.stderr
