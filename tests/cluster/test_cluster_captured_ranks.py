"""Ranks of a training, captured by the command without a change of the script, and prechecked as a folder."""

import csv
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

distributed = pytest.importorskip("torch.distributed")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        not distributed.is_available() or not distributed.is_gloo_available(),
        reason="this torch has no gloo",
    ),
]
ROOT = Path(__file__).resolve().parents[2]
TRAINING = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.GELU(), torch.nn.Linear(6, 3))
if sys.argv[1] == "ddp":
    net = DistributedDataParallel(net)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for each in (net[0], net[2], net):
        fully_shard(each, mesh=mesh)
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(2):
    loss = net(torch.randn(5, 4)).square().mean()
    loss.backward()
    dist.all_reduce(loss.detach())
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in a folder."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", "ray_precheck", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        timeout=400,
        check=False,
    )


def captured(folder: Path, kind: str, world: int, task: str) -> None:
    (folder / "train.py").write_text(TRAINING)
    launcher = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node={world}"
    words = ("capture", "-o", "dump", "--level", "mix", "--task", task)
    done = run(folder, *words, "--", *launcher.split(), "train.py", kind)
    assert done.returncode == 0, done.stderr
    assert f"step 0-1 of rank 0-{world - 1} captured in" in done.stderr


def records(folder: Path, step: int, rank: int) -> dict[str, Any]:
    dump = folder / "dump" / f"step{step}" / f"rank{rank}" / "dump.json"
    return dict(json.loads(dump.read_text())["data"])


def rows(folder: Path) -> list[dict[str, str]]:
    (file,) = folder.glob("accuracy_checking_result_*.csv")
    with file.open(encoding="utf-8-sig", newline="") as text:
        return list(csv.DictReader(text))


@pytest.mark.parametrize(
    ("kind", "world", "task"),
    [
        ("ddp", 2, "tensor"),
        pytest.param("fsdp", 2, "statistics", marks=pytest.mark.exhaustive),
        pytest.param("ddp", 4, "tensor", marks=pytest.mark.exhaustive),
    ],
)
def test_the_folder_of_a_step_is_prechecked_as_a_folder_of_ranks(
    tmp_path: Path, cluster_address: str, kind: str, world: int, task: str
) -> None:
    if kind == "fsdp":
        pytest.importorskip("torch.distributed.fsdp", reason="this torch has no FSDP")
        if not hasattr(distributed.fsdp, "fully_shard"):
            pytest.skip("this torch has no fully_shard")
    captured(tmp_path, kind, world, task)
    for rank in range(world):
        found = records(tmp_path, 0, rank)
        assert found["Distributed.all_reduce.0.forward"]["group"]["group_ranks"] == list(
            range(world)
        )
        assert "Functional.linear.1.backward" in found
    done = run(
        tmp_path,
        *(
            "run_ut",
            "-api_info",
            "dump/step1",
            "-o",
            str(tmp_path / "out"),
            "--address",
            cluster_address,
        ),
        *("--device-type", "cpu"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(world):
        results = rows(tmp_path / "out" / "step1" / f"rank{rank}")
        verdicts = Counter(
            row[f"{way} Test Success"] for row in results for way in ("Forward", "Backward")
        )
        assert verdicts["error"] == 0, results
        checked = {row["API Name"]: row for row in results}
        for name in ("Functional.linear.0", "Functional.linear.1", "Functional.gelu.0"):
            assert checked[name]["Forward Test Success"] == "pass"
            assert checked[name]["Backward Test Success"] == "pass"
        assert checked["Optimizer.AdamW.0"]["Forward Test Success"] in ("pass", "SKIP")
        reduced = checked["Distributed.all_reduce.0"]
        assert reduced["Forward Test Success"] == "SKIP"
        assert "needs its other ranks" in reduced["Message"]


PARALLEL = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

class WrongOnRank1(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.gelu.default and dist.get_rank() == 1:
            found.to_local()[:, 3] *= 1.02
        return found

dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
plan = {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel(use_local_output=False)}
parallelize_module(net, mesh, plan)
if sys.argv[1] == "weight":
    with torch.no_grad():
        net[2].weight.to_local()[3] *= 1.02
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(2):
    if step and sys.argv[1] == "two":
        WrongOnRank1().__enter__()
    net(torch.randn(5, 16)).full_tensor().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def compared(folder: Path, target: str, step: int) -> "subprocess.CompletedProcess[str]":
    """Compare a step with that of the right run."""
    sides = ("-tp", f"{target}/step{step}", "-gp", f"right/step{step}")
    return run(folder, "compare", *sides, "-o", "out", "--standard", "auto")


def parallel(folder: Path, **worlds: int) -> None:
    """Capture trainings by so many ranks, each in a folder of its name."""
    (folder / "train.py").write_text(PARALLEL)
    for name, world in worlds.items():
        launcher = (
            f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node={world}"
        )
        words = ("capture", "-o", name, "--sketch", "--steps", "0-1", "--")
        done = run(folder, *words, *launcher.split(), "train.py", name)
        assert done.returncode == 0, done.stderr


def test_runs_of_other_numbers_of_ranks_are_compared_by_their_whole_tensors(tmp_path: Path) -> None:
    parallel(tmp_path, right=1, two=2)
    honest = compared(tmp_path, "two", 0)
    assert honest.returncode == 0, honest.stdout + honest.stderr
    assert " 0 error, 1 unmatched" in honest.stdout  # The sum over ranks, which one has not.
    kernel = compared(tmp_path, "two", 1)  # in which a kernel of one rank is wrong
    assert kernel.returncode == 1, kernel.stdout + kernel.stderr
    first = kernel.stdout.partition("first errors, in the order of the run:\n")[2].lstrip()
    assert first.startswith("Functional.gelu.0.forward, "), kernel.stdout


@pytest.mark.exhaustive
def test_no_operator_is_to_blame_for_a_weight_that_was_another_before_the_step(
    tmp_path: Path,
) -> None:
    parallel(tmp_path, right=1, weight=2)
    weight = compared(tmp_path, "weight", 0)
    assert weight.returncode == 0, weight.stdout + weight.stderr
    first = weight.stdout.partition("first warnings:\n")[2].lstrip()
    assert first.startswith("Functional.linear.1.forward: input.1 (2.weight): "), weight.stdout
