"""A comparison in forks that is asked to stop ends with exit code 3 and goes on to the same bytes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ray_precheck.commands.compare.run import compare_captures
from tests.unit.commands.small_captures import write_capture

pytestmark = pytest.mark.unit
CALLS = 200
LIMIT_S = 120.0
# The command, with forks that take some time for each pair and write the rows of four at once.
SLOW = """
import sys, time
from ray_precheck.commands.compare import run as comparing
from ray_precheck.cli import main
from ray_precheck.commands.compare import run as forks
from ray_precheck.commands.compare import run as here
from ray_precheck.commands.compare.job import ComparisonRunner
from ray_precheck.runtime import driving

def slow(*arguments, **named):
    time.sleep(0.05)
    return run(*arguments, **named)

run, ComparisonRunner.run = ComparisonRunner.run, slow
forks._MOST_AT_A_TIME, here._WORTH_FORKS_S, driving._BATCH_S = 4, 0.0, 0.0
comparing.cores_for_forks = lambda devices: 2
sys.exit(main(sys.argv[1:]))
"""


def rows(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") - 1 for path in out.glob("compare_calls_*.csv"))


def waited(process: subprocess.Popen[bytes], out: Path) -> None:
    """Wait until the first rows are written."""
    end = time.monotonic() + LIMIT_S
    while rows(out) < 4:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)


def is_alone(group: int) -> bool:
    """Return whether no process of a group is left."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("number", "to_all"),
    [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGTERM, True)],
    ids=["Ctrl-C", "SIGTERM", "SIGTERM to all"],
)
def test_a_signal_stops_forks_with_exit_code_3_and_the_run_goes_on(
    tmp_path: Path, number: int, to_all: bool
) -> None:
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    captures = [
        write_capture(
            tmp_path / side,
            [(f"Mint.exp.{call}.forward", [values], [values * scale]) for call in range(CALLS)],
        )
        for side, scale in (("target", 1.001), ("golden", 1.0))
    ]
    (whole,) = compare_captures(*captures, out=tmp_path / "whole").reports
    out = tmp_path / "out"
    words = ["compare", "-tp", str(captures[0]), "-gp", str(captures[1]), "-o", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *words], stderr=subprocess.PIPE, start_new_session=True
    )
    waited(process, out)
    (os.killpg if to_all else os.kill)(process.pid, number)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3, said.decode()
    assert is_alone(process.pid)
    assert 0 < rows(out) < CALLS
    (again,) = compare_captures(*captures, resume_csv=out).reports
    assert again.completed
    for name in ("result", "details"):
        own, other = (getattr(each.files, name).read_bytes() for each in (again, whole))
        assert own == other
