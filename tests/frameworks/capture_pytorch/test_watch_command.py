"""The command, watching scripts that train: ranks, kills, restarts, and folders that cannot be written."""

import csv
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.frameworks
ROOT = Path(__file__).resolve().parents[3]
# `train` makes one step for each factor, by which the targets of this process are multiplied.
TRAINING = """
import os, sys, torch, torch.distributed
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), 1e-3)


def train(factors):
    for factor in factors:
        torch.nn.functional.mse_loss(net(torch.ones(3, 4)), torch.full((3, 2), factor)).backward()
        clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""
RANKS = (
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--nproc-per-node=2",
    "--standalone",
    "train.py",
)


def watch(folder: Path, *words: str, text: str, script: tuple[str, ...] = ()) -> Any:
    (folder / "train.py").write_text(TRAINING + textwrap.dedent(text))
    return subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "ray_precheck",
                "capture",
                "--watch",
                "-o",
                "out",
                *words,
                "--",
            ),
            *(script or (sys.executable, "train.py")),
        ],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=300,
    )


def rows_of(folder: Path, rank: int = 0) -> list[dict[str, str]]:
    with (folder / "out" / f"watch_{rank}.csv").open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def dumps_in(folder: Path) -> list[str]:
    return sorted(
        str(each.parent.relative_to(folder / "out")).rstrip("0123456789")
        if "proc" in each.parent.name
        else str(each.parent.relative_to(folder / "out"))
        for each in folder.glob("out/*/*/dump.json")
    )


def test_a_jump_before_clipping_captures_the_next_step(tmp_path: Path) -> None:
    done = watch(
        tmp_path,
        *("--trigger", "grad_norm > 10 * median", "--level", "L0"),
        text="train([1.0] * 30 + [1000.0] + [1.0] * 10)",
    )
    assert done.returncode == 0, done.stderr
    assert dumps_in(tmp_path) == ["step31/proc"]
    rows = rows_of(tmp_path)
    assert len(rows) == 41
    assert [row["Step"] for row in rows if row["Trigger"]] == ["30"]
    assert "step 31 is captured: grad_norm > 10 * median" in done.stderr
    assert "41 steps watched in" in done.stderr


@pytest.mark.parametrize("rule", ["grad_norm > 10 * median", "loss > 10 * median"])
def test_ranks_capture_a_step_together(tmp_path: Path, rule: str) -> None:
    done = watch(
        tmp_path,
        *("--trigger", rule, "--level", "L0"),
        text="""
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        net = torch.nn.parallel.DistributedDataParallel(net)
        train([1.0] * 30 + [1000.0 if rank else 1.0] + [1.0] * 10)
        # A DistributedDataParallel that is there when Python ends keeps gloo's threads, and 5 of 30 such
        # trainings end with SIGABRT on a busy machine, without a capture, too (torch 2.13).
        del net
        torch.distributed.destroy_process_group()
        """,
        script=RANKS,
    )
    assert done.returncode == 0, done.stderr
    # Gradients are the same on both ranks; the loss of one is its own.
    fired = [[row["Step"] for row in rows_of(tmp_path, rank) if row["Trigger"]] for rank in (0, 1)]
    assert fired == ([["30"], ["30"]] if rule.startswith("grad") else [[], ["30"]])
    dumps = dumps_in(tmp_path)
    both = [step for step in ("step31", "step32") if {f"{step}/rank0", f"{step}/rank1"} <= {*dumps}]
    assert both
    assert {each.partition("/")[0] for each in dumps} <= {"step31", "step32"}
    assert "41 steps of rank 0-1 watched" in done.stderr


def test_a_killed_run_has_whole_rows_and_the_next_one_goes_on(tmp_path: Path) -> None:
    words = ("--trigger", "nan > 0")
    done = watch(tmp_path, *words, text="train([1.0] * 7)\nos.kill(os.getpid(), 9)")
    assert done.returncode == -9
    assert "steps watched in" in done.stderr
    assert len(rows_of(tmp_path)) == 7
    done = watch(tmp_path, *words, text="train([1.0, float('nan'), 1.0])")
    assert done.returncode == 0, done.stderr
    assert [row["Step"] for row in rows_of(tmp_path)] == [*map(str, range(7)), "0", "1", "2"]
    assert dumps_in(tmp_path) == ["step2/proc"]
    done = watch(tmp_path, *words, text="train([1.0, float('nan'), 1.0, 1.0])")
    assert len(dumps_in(tmp_path)) == 2  # that of the run before stays
    assert len(rows_of(tmp_path)) == 14


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trigger", "grad_nrm > 1"), "at character 1: 'grad_nrm' is no column"),
        (("--trigger", "@rules.txt"), "the file of rules cannot be read: No such file"),
        (("--trigger", "@/dev/zero"), "the file of rules cannot be read: it is a device"),
        (("--trigger-most", "-1"), "--trigger-most -1 is wrong"),
        (("--verify",), "--watch"),
        (("--framework", "tensorflow"), "leave watch out"),
    ],
)
def test_wrong_words_are_said_before_the_script_starts(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = watch(tmp_path, *words, text="open('started', 'w')")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "started").exists()


def test_a_folder_that_cannot_be_written_is_said_and_the_script_goes_on(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "watch_0.csv").mkdir()
    done = watch(tmp_path, text="train([1.0] * 3)\nprint('trained')")
    assert done.returncode == 0
    assert done.stdout == "trained\n"
    assert "Traceback" not in done.stderr
    assert "watch_0.csv" in done.stderr or "Is a directory" in done.stderr


def test_a_script_of_two_processes_without_ranks_has_a_table_for_each(tmp_path: Path) -> None:
    done = watch(
        tmp_path,
        text="""
        import multiprocessing
        if __name__ == "__main__":
            train([1.0])
            child = multiprocessing.get_context("spawn").Process(target=train, args=([1.0] * 2,))
            child.start(); child.join()
            train([1.0])
        """,
    )
    assert done.returncode == 0, done.stderr
    tables = [each.read_text().count("\n") - 1 for each in (tmp_path / "out").glob("watch_*.csv")]
    assert sorted(tables) == [2, 2]
