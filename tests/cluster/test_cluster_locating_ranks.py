"""Ranks are searched on a cluster, and a wrong collective of two processes is named as what it is."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SLOTS_AND_FILE_SYSTEMS

from ray_precheck.commands.locate.run import locate_captures
from ray_precheck.commands.locate.search import LocationReport
from scripts.speed.locate_scale import make_runs

distributed = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
# Two captures more; what statistics tell of a collective: tests/unit/commands/locate.
STATISTICS = pytest.param("statistics", marks=pytest.mark.exhaustive)
has_gloo = distributed.is_available() and distributed.is_gloo_available()
TRAINING = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
if sys.argv[1] == "collective":
    right, calls = dist.all_reduce, []

    def all_reduce(tensor, *args, **kwargs):
        found = right(tensor, *args, **kwargs)
        calls.append(tensor)
        if len(calls) == 2:
            tensor.mul_(1.01)
        return found

    dist.all_reduce = all_reduce
kind = "tanh" if sys.argv[1] == "setting" and rank == 1 else "none"
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(kind), torch.nn.Linear(32, 8))
torch.manual_seed(1 + rank)
h = net(torch.randn(6, 16))
z = torch.relu(h.detach()) + h.detach()
dist.all_reduce(z)
parts = [torch.empty_like(z) for _ in range(world)]
dist.all_gather(parts, z * 2)
q = torch.nn.functional.layer_norm(z, (8,)) + parts[0]
dist.all_reduce(q)
dist.broadcast(q, src=0)
(h * q).mean().backward()
for parameter in net.parameters():
    dist.all_reduce(parameter.grad)
    parameter.grad /= world
torch.optim.SGD(net.parameters(), 0.1).step()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gloo")
    (place / "train.py").write_text(TRAINING)
    return place


def captured(folder: Path, kind: str, task: str) -> Path:
    """Capture the step of two processes, once for each kind and task."""
    out = folder / f"{kind}-{task}"
    if out.exists():
        return out
    launcher = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2"
    words = ["capture", "-o", out.name, "--level", "L1", "--task", task, "--"]
    done = subprocess.run(
        [sys.executable, "-m", "ray_precheck", *words, *launcher.split(), "train.py", kind],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


def roots(report: LocationReport) -> list[tuple[str, str, str]]:
    with report.table.open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["Place"]]
    return [(row["Rank"], row["API Name"], row["Verdict"]) for row in rows]


@pytest.mark.skipif(not has_gloo, reason="this torch has no gloo")
@pytest.mark.parametrize("task", ["tensor", STATISTICS])
def test_a_wrong_collective_of_two_processes_is_named(
    folder: Path, tmp_path: Path, task: str
) -> None:
    golden = captured(folder, "honest", task)
    report = locate_captures(captured(folder, "collective", task), golden, out=tmp_path)
    assert roots(report) == [("0-1", "Distributed.all_reduce.1", "wrong collective")]


@pytest.mark.skipif(not has_gloo, reason="this torch has no gloo")
def test_a_wrong_collective_is_recomputed_without_a_golden_run(
    folder: Path, tmp_path: Path
) -> None:
    report = locate_captures(captured(folder, "collective", "tensor"), out=tmp_path)
    assert roots(report) == [("0-1", "Distributed.all_reduce.1", "wrong collective")]
    assert "48 of 48 elements are not the SUM of 2 ranks" in report.places[0].root.message


@pytest.mark.skipif(not has_gloo, reason="this torch has no gloo")
@pytest.mark.parametrize(
    ("task", "has_golden"),
    [
        ("tensor", True),
        ("tensor", False),
        pytest.param("statistics", True, marks=pytest.mark.exhaustive),
    ],
)
def test_honest_processes_accuse_nobody(
    folder: Path, tmp_path: Path, task: str, has_golden: bool
) -> None:
    target = captured(folder, "honest", task)
    report = locate_captures(target, target if has_golden else None, out=tmp_path)
    assert roots(report) == []


@pytest.mark.skipif(not has_gloo, reason="this torch has no gloo")
@pytest.mark.exhaustive  # Of captures that are written: tests/unit/commands/locate.
@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_what_one_process_was_set_to_is_named_there_and_the_other_one_inherits(
    folder: Path, tmp_path: Path, task: str
) -> None:
    golden = captured(folder, "honest", task)
    report = locate_captures(captured(folder, "setting", task), golden, out=tmp_path)
    assert roots(report) == [("1", "Functional.gelu.0", "other configuration")]
    with report.table.open(encoding="utf-8-sig", newline="") as file:
        said = [row["Message"] for row in csv.DictReader(file) if row["Rank"] == "0"]
    assert "inherited from rank 1 (Functional.gelu.0.forward)" in said


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    make_runs(place, 6, 303, 3)
    return place


def contents(report: LocationReport) -> list[bytes]:
    tables = ("locate_2*.csv", "locate_dumps_*.csv", "locate_roots_*.csv")
    return [path.read_bytes() for name in tables for path in report.folder.glob(name)]


@pytest.fixture(scope="module")
def alone(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    out = tmp_path_factory.mktemp("alone")
    report = locate_captures(runs / "target", runs / "golden", out=out)
    assert not list(out.glob("*.timeline*")), "it was done in this process"
    assert [found.dump.rank for found in report.places] == ["3"]
    return contents(report)


@SLOTS_AND_FILE_SYSTEMS
def test_on_any_number_of_slots_ranks_make_the_bytes_of_one_process(
    runs: Path,
    alone: list[bytes],
    cluster_address: str,
    tmp_path: Path,
    devices: tuple[int, ...],
    shared_fs: bool,
) -> None:
    report = locate_captures(
        runs / "target",
        runs / "golden",
        out=tmp_path,
        address=cluster_address,
        devices=devices,
        shared_fs=shared_fs,
    )
    assert list(tmp_path.glob("*timeline*")), "workers did it"
    assert contents(report) == alone
