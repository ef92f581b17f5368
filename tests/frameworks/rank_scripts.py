"""Scripts that several processes run, each a rank, for the tests of a module.

Comes in: the script of each test. Goes out: the folders of what they have captured. The ranks of a module run
the scripts of all its tests one after the other, because to start them costs seconds.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., None])
# The ranks meet at a file: a port may be another program's, or still that of a group that is being destroyed.
_BEGIN = """
import os, sys, torch, torch.distributed as dist
from torch.distributed import all_reduce
from ray_precheck.capture import Capture
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def meet(file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
"""


class RankScripts:
    """What the ranks of a test module do, by the name of its test."""

    def __init__(self) -> None:
        self._scripts: dict[str, str] = {}

    def add(self, script: str) -> Callable[[Test], Test]:
        """Let the ranks run a script for a test, which gets the folder `out` of its captures."""

        def added(test: Test) -> Test:
            self._scripts[test.__name__] = script
            return test

        return added

    def run(self, folder: Path) -> Path:
        """Run all scripts, and return the folder with that of each."""
        parts = (
            f"out = {str(folder / name)!r}\ntorch.manual_seed(rank)\n{script}"
            for name, script in self._scripts.items()
        )
        run_ranks("\n".join(parts), folder / "meeting")
        return folder


def run_ranks(script: str, meeting: Path, world: int = 2) -> None:
    """Run a script in several processes, each a rank; they meet at a file."""
    processes = []
    for rank in range(world):
        environ = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-c", f"{_BEGIN}meet({str(meeting)!r})\n{script}"]
        processes.append(subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * world, errors


def records(out: Path, rank: int) -> dict[str, Any]:
    """Return the records of step 0 of a rank."""
    return dict(json.loads((out / "step0" / f"rank{rank}" / "dump.json").read_text())["data"])
