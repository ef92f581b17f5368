"""Calls under default and plain kernels on a cluster: a broken kernel, slots, and runs that are killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA
from naive_faults import FAULTS
from naive_switches import problem_of

from ray_precheck.commands.naive.options import NaiveConfig
from ray_precheck.commands.naive.report import view
from ray_precheck.commands.naive.run import NaiveReport, contrast_kernels
from ray_precheck.running.views import found_run
from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.cluster
CNN = DATA / "torch_cnn" / "dump.json"
ROOT = DATA.parent.parent
# Each operator that a step of it calls as a function; the others are the optimizer's, a hundred and more.
SOME = ("Functional.", "Torch.")


def contrasted(out: Path, address: str, **options: object) -> NaiveReport:
    settings: dict[str, Any] = {"keywords": SOME, **options}
    config = NaiveConfig(dump=CNN, out=out, address=address, **settings)
    return contrast_kernels(config, show_progress=False)


def contents(report: NaiveReport) -> tuple[bytes, bytes]:
    return report.files.result.read_bytes(), report.files.details.read_bytes()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, cluster_address: str) -> NaiveReport:
    return contrasted(tmp_path_factory.mktemp("alone"), cluster_address)


def assert_honest(report: NaiveReport, calls: int) -> None:
    assert report.completed
    assert {row.verdict for row in report.rows} == {Verdict.PASS}
    assert {row.reproducible for row in report.rows} == {"yes"}
    conv = next(row for row in report.rows if row.name == "Functional.conv2d.0")
    assert 0 < float(conv.default_error) < 20
    assert len(report.results) == len(report.rows) == calls


def test_an_honest_model_passes_call_by_call(alone: NaiveReport) -> None:
    assert_honest(alone, 24)


@pytest.mark.exhaustive
def test_so_does_its_whole_step(tmp_path: Path, cluster_address: str) -> None:
    assert_honest(contrasted(tmp_path, cluster_address, keywords=()), 189)


def test_the_bytes_do_not_depend_on_the_slots(
    tmp_path: Path, cluster_address: str, alone: NaiveReport
) -> None:
    found = contrasted(tmp_path, cluster_address, devices=(0, 1))
    assert contents(found) == contents(alone)


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path: Path, alone: NaiveReport) -> None:
    command = [sys.executable, "-m", "ray_precheck", "naive", str(CNN), "-o", str(tmp_path)]
    command += [f"-k={word}" for word in SOME]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    begun = subprocess.Popen(
        command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    )
    until = time.monotonic() + 300
    while not (rows := _rows_so_far(tmp_path)) and begun.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait()
    assert 0 < rows < len(alone.rows)
    again = subprocess.run(
        [*command, "-csv_path", str(tmp_path)], env=environment, timeout=300, check=False
    )
    assert again.returncode == 0
    (result,) = tmp_path.glob("naive_2*.csv")
    (details,) = tmp_path.glob("naive_outputs_*.csv")
    assert (result.read_bytes(), details.read_bytes()) == contents(alone)


def _rows_so_far(folder: Path) -> int:
    lines = sum(path.read_bytes().count(b"\n") for path in folder.glob("naive_2*.csv"))
    return max(0, lines - 1)


SHORT = ("products", "cudnn_tf32", "nnpack+onednn")
KEYS = FAULTS if "EVERY" in os.environ else SHORT


@pytest.mark.parametrize(
    "key",
    [key if key == SHORT[0] else pytest.param(key, marks=pytest.mark.exhaustive) for key in KEYS],
)
def test_the_switch_behind_a_broken_kernel_is_named(key: str, tmp_path: Path) -> None:
    assert problem_of(key, tmp_path) == ""
    fault = FAULTS[key]
    if fault.kind != "cpu":
        return  # A pretended device runs without the command, whose files have a view.
    (table,) = (tmp_path / key).glob("naive_2*.csv")
    (card,) = view([found_run(table)]).cards
    assert card.name == f"{fault.call}.0"
    assert ("Switch", ", ".join(fault.switches)) in [(fact.name, fact.value) for fact in card.facts]
    assert card.times > 1
    assert card.inputs
