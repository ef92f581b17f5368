"""The command, on scripts that train."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.frameworks
ROOT = Path(__file__).resolve().parents[3]
TRAINING = """
import sys
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)


def train(steps, batch=torch.ones(3, 4)):
    for _ in range(steps):
        net(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def capture(folder: Path, *words: str, text: str = "", path: str = "") -> Any:
    (folder / "train.py").write_text(TRAINING + textwrap.dedent(text))
    path = os.pathsep.join(filter(None, (str(ROOT), path)))
    return subprocess.run(
        [sys.executable, "-m", "ray_precheck", "capture", "-o", "dump", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=False,
    )


def dumps_in(folder: Path) -> dict[str, dict[str, Any]]:
    """The records by the name of the step and, without its number, that of the process."""
    found = {}
    for file in (folder / "dump").glob("*/*/dump.json"):
        name = f"{file.parent.parent.name}/{file.parent.name.rstrip('0123456789')}"
        rank = file.parent.name.removeprefix("rank")
        found[name if rank == file.parent.name else f"{name}{rank}"] = json.loads(file.read_text())[
            "data"
        ]
    return found


def test_a_script_is_captured_and_ends_with_its_own_code(tmp_path: Path) -> None:
    done = capture(
        tmp_path, "--steps", "0-4", "--", sys.executable, "train.py", text="train(3); sys.exit(3)"
    )
    assert done.returncode == 3
    dumps = dumps_in(tmp_path)
    assert set(dumps) == {"step0/proc", "step1/proc", "step2/proc"}
    assert {"Functional.linear.0.forward", "Functional.linear.0.backward"} <= set(
        dumps["step0/proc"]
    )
    assert "step 0-2 captured in" in done.stderr
    assert "step 3-4 never came: 3 steps of the optimizer were made" in done.stderr


def test_modules_have_their_names_in_the_model_whose_call_begins_the_step(tmp_path: Path) -> None:
    done = capture(tmp_path, "--level", "L0", "--", sys.executable, "train.py", text="train(2)")
    assert done.returncode == 0
    names = [f"Module.{name}.forward.0" for name in ("0.Linear", "1.ReLU", "2.Linear")]
    for step in ("step0", "step1"):
        assert [key for key in dumps_in(tmp_path)[f"{step}/proc"] if "forward" in key] == names


def test_workers_of_a_data_loader_write_nothing(tmp_path: Path) -> None:
    done = capture(
        tmp_path,
        "--",
        sys.executable,
        "train.py",
        text="""
        class Rows(torch.utils.data.Dataset):
            def __init__(self): self.net = torch.nn.Linear(4, 4)
            def __len__(self): return 4
            def __getitem__(self, index):
                with torch.no_grad():
                    return torch.relu(self.net(torch.ones(4)))

        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                loader = torch.utils.data.DataLoader(
                    Rows(), 2, num_workers=2, multiprocessing_context=method
                )
                train(1)
                for batch in loader:
                    train(1, batch)
        """,
    )
    assert done.returncode == 0, done.stderr
    folders = {file.parent.name for file in (tmp_path / "dump").glob("*/*/dump.json")}
    assert len(folders) == 1
    assert not list((tmp_path / "dump").glob("*/*/dump.jsonl"))
    assert len(dumps_in(tmp_path)) == 6


def test_ranks_of_torchrun_have_folders_of_their_own(tmp_path: Path) -> None:
    done = capture(
        tmp_path,
        "--level",
        "mix",
        "--",
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--standalone",
        "train.py",
        text="""
        import torch.distributed
        torch.distributed.init_process_group("gloo")
        net = torch.nn.parallel.DistributedDataParallel(net)
        train(2)
        torch.distributed.destroy_process_group()
        """,
    )
    assert done.returncode == 0, done.stderr
    assert set(dumps_in(tmp_path)) == {
        f"step{step}/rank{rank}" for step in (0, 1) for rank in (0, 1)
    }
    assert "step 0-1 of rank 0-1 captured" in done.stderr


def test_ranks_that_torch_spawns_are_captured(tmp_path: Path) -> None:
    done = capture(
        tmp_path,
        "--",
        sys.executable,
        "train.py",
        text="""
        import torch.distributed

        def rank(number, folder):
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{folder}/store", rank=number, world_size=2
            )
            train(1)
            torch.distributed.destroy_process_group()

        if __name__ == "__main__":
            import os
            torch.multiprocessing.spawn(rank, (os.getcwd(),), nprocs=2)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert set(dumps_in(tmp_path)) == {"step0/rank0", "step0/rank1"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_script_that_is_killed_leaves_a_log_that_can_be_finished(
    tmp_path: Path, number: signal.Signals
) -> None:
    done = capture(
        tmp_path,
        "--",
        sys.executable,
        "-m",
        "train",
        text=f"""
        import os
        train(1)
        net(torch.ones(3, 4))
        os.kill(os.getpid(), {int(number)})
        """,
    )
    assert done.returncode == -number
    assert "was ended in the middle of step1/proc" in done.stderr
    assert set(dumps_in(tmp_path)) == {"step0/proc"}
    finished = capture(tmp_path, "--finish", "dump")
    # The option -o stands before: it is not needed, and does no harm.
    assert finished.returncode == 0, finished.stderr
    assert "Functional.linear.1.forward" in dumps_in(tmp_path)["step1/proc"]
