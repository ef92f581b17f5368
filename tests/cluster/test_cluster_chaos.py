"""The short form of scripts/chaos; and that it would notice what it is there to notice."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA

from scripts.chaos import faults as chaos_faults
from scripts.chaos.main import fault_rows
from scripts.chaos.moments import KINDS

pytestmark = pytest.mark.cluster
ROOT = DATA.parent.parent
TORCH_DUMP = DATA / "torch_cnn" / "dump.json"


def chaos(folder: Path, *arguments: object) -> tuple[int, str, dict[str, Any]]:
    """Return the exit code, what was printed, and what was found."""
    report = folder / "report.json"
    places = ["--folder", str(folder / "work"), "--json", str(report)]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.chaos", *map(str, arguments), *places],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    return done.returncode, done.stdout, json.loads(report.read_text())


@dataclass(frozen=True)
class Chaos:
    """What a run of the script came to, and the folder of the undisturbed run."""

    code: int
    printed: str
    found: dict[str, Any]
    undisturbed: Path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chaos]:
    """Runs that are killed, one in each way (by this seed), and the undisturbed run beside them."""
    folder = tmp_path_factory.mktemp("killed")
    options = ["--runs", len(KINDS), "--seed", 32519, "--jobs", 2, "--dump", TORCH_DUMP]
    found = chaos(folder, "kills", *options, "--undisturbed", folder / "undisturbed")
    yield Chaos(*found, folder / "undisturbed")
    shutil.rmtree(folder)


@pytest.mark.exhaustive  # Of each kind one kill: test_cluster_faults, _command, _nodes and _signals.
def test_killed_runs_that_go_on_end_with_the_bytes_of_an_undisturbed_one(killed: Chaos) -> None:
    assert killed.code == 0, killed.printed
    runs = killed.found["kills"]
    assert [run["problems"] for run in runs] == [[]] * len(KINDS)
    assert {kill["kind"] for run in runs for kill in run["kills"]} == set(KINDS)
    assert "kills of a writer" in killed.printed


@pytest.mark.exhaustive
def test_a_byte_that_differs_is_noticed(tmp_path: Path, killed: Chaos) -> None:
    altered = tmp_path / "altered"
    shutil.copytree(killed.undisturbed, altered)
    (details,) = altered.glob("torch_cnn/out/accuracy_checking_details_*.csv")
    data = bytearray(details.read_bytes())
    data[-10] ^= 1
    details.write_bytes(data)
    options = ["--runs", 1, "--kinds", "worker", "--dump", TORCH_DUMP, "--undisturbed", altered]
    code, printed, found = chaos(tmp_path, "kills", *options)
    assert code == 1
    (problem,) = found["kills"][0]["problems"]
    assert problem.startswith("details: ")
    assert "FAILED: --seed 0 --first 0 --runs 1" in printed


@pytest.mark.exhaustive  # Every way to crash, hang and raise once: test_cluster_faults.
def test_calls_that_crash_hang_and_raise_are_errors_and_the_others_as_if_they_were_not_there(
    tmp_path: Path,
) -> None:
    options = ["--calls", 40, "--crash", 2, "--hang", 1, "--raise", 1]
    _, printed, found = chaos(tmp_path, "faults", *options)
    faults = found["faults"]
    assert faults["problems"] == [], printed
    assert faults["right"] == {"crash": 2, "hang": 1, "raise": 1}
    assert faults["others_right"] == 36


def test_a_run_with_faults_that_takes_longer_than_its_limit_is_noticed() -> None:
    counts = {"crash": 2, "hang": 1, "raise": 1}
    for faulty_s, good in ((9.0, 1), (11.0, 0)):
        over = chaos_faults.FaultsRun(40, counts, 2, right=counts, others_right=36)
        over.clean_s, over.faulty_s, over.limit_s = 5.0, faulty_s, 10.0
        found = {row.what: (row.tried, row.good) for row in fault_rows(over)}
        assert found["in time"] == (1, good)
        assert all(tried == right for what, (tried, right) in found.items() if what != "in time")


def test_a_row_of_the_faults_that_is_not_as_it_must_be_is_noticed() -> None:
    head = b"\xef\xbb\xbfAPI Name,Forward Test Success,Backward Test Success,Message\r\n"
    clean = {"result": head + b"Tensor.add.0,pass,,\r\n", "details": b"Tensor.add.0.forward\r\n"}
    counts = {"crash": 1, "hang": 1, "raise": 0}
    broken = chaos_faults.choose_broken(counts)
    rows = [f"{one.name},error,,{one.reason}\r\n".encode() for one in broken]
    whole = clean["result"] + b"".join(rows)

    def problems(result: bytes, details: bytes = clean["details"]) -> int:
        over = chaos_faults.FaultsRun(3, counts, 1)
        chaos_faults.compare(clean, {"result": result, "details": details}, broken, over)
        return len(over.problems)

    assert problems(whole) == 0
    assert problems(whole.replace(b"SIGSEGV", b"SIGBUS")) == 1
    assert problems(clean["result"] + rows[0]) == 1
    assert problems(whole.replace(b"add.0,pass", b"add.0,error")) == 1
    assert problems(whole, b"Tensor.add.1.forward\r\n") == 1
