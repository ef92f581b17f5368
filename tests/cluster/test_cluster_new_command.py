"""A command of the tests gets resume, ranks, signals and both ways to run from the runner."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import squares
import squares_command

pytestmark = pytest.mark.cluster
COUNTS = ["150", "120"]
# In the process of the command, and on two workers.
WAYS = {"here": ["-d", "0"], "workers": ["-d", "0", "1"]}
PROGRAM = """
import runpy, sys
from ray_precheck.running import run
run.START_OF_RAY_S = 0.0
sys.argv = {argv!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def begun(*words: str, pause_s: float = 0.0) -> "subprocess.Popen[str]":
    argv = [squares_command.__file__, "squares", "--counts", *COUNTS, *words]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(argv=argv)],
        env={**os.environ, "SQUARES_PAUSE_S": str(pause_s)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def done(*words: str) -> str:
    process = begun(*words)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def bytes_of(out: Path) -> dict[str, bytes]:
    """Return the tables of each rank, by their names without the stamp."""
    paths = out.glob("rank*/squares_*.csv")
    return {
        f"{path.parent.name}/{path.name.rsplit('_', 1)[0]}": path.read_bytes() for path in paths
    }


@pytest.mark.parametrize(
    ("ending", "way"),
    [
        (signal.SIGKILL, "workers"),
        (signal.SIGTERM, "here"),
        pytest.param(signal.SIGKILL, "here", marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGTERM, "workers", marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_that_was_ended_goes_on_to_the_same_bytes(
    tmp_path: Path, way: str, ending: signal.Signals
) -> None:
    done("-o", str(tmp_path / "whole"), *WAYS[way])
    whole = bytes_of(tmp_path / "whole")
    assert sorted(whole) == [
        f"rank{rank}/squares_{table}" for rank in (0, 1) for table in ("details", "result")
    ]
    assert whole["rank0/squares_result"].count(b",pass,") == 150
    assert any((tmp_path / "whole").glob("rank0/*.timeline.json")) == (way == "workers")
    out = tmp_path / "ended"
    process = begun("-o", str(out), *WAYS[way], pause_s=0.02)
    try:
        while bytes_of(out).get("rank0/squares_result", b"").count(b",pass,") < 20:
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, ending)
    said, _ = process.communicate(timeout=60)
    if ending == signal.SIGTERM:
        assert process.returncode == 3
        assert "Stopped before the end. To go on:\n" in said
        assert f"-csv_path {out}" in said
    assert bytes_of(out)["rank0/squares_result"].count(b",pass,") < 150
    done("-csv_path", str(out), *WAYS[way])
    assert bytes_of(out) == whole


def test_it_is_two_files_of_120_lines() -> None:
    """Lines of code: neither blank, nor imports, nor the sentences of docstrings and comments."""
    sources = [
        Path(module.__file__ or "").read_text("utf-8") for module in (squares, squares_command)
    ]
    code = [
        line
        for source in sources
        for line in source.split('"""', 2)[2].splitlines()
        if line.strip() and not line.lstrip().startswith(("#", '"""', "from ", "import "))
    ]
    assert len(code) <= 120, len(code)
