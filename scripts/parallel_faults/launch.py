"""Captures of all cases of a layout, one after the other in the same processes.

Comes in: the name of a layout, its cases, a folder. Goes out: captures/{layout}/{case}/step{S}/rank{R},
losses and digests of parameters in captures/{layout}/results-{rank}.json. Called by `main.py`, which starts
this module once for each rank.
"""

import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ray_precheck.capture import Capture
from scripts.parallel_faults.layouts import Training
from scripts.parallel_faults.model import STEPS, TrainingCase
from scripts.parallel_faults.table import LAYOUTS, case_name, make_parallel_training


@contextmanager
def broken_backend(case: TrainingCase) -> Iterator[None]:
    """Let the backend of rank 1 add something to one element of a sum."""
    names = ("all_reduce", "reduce_scatter_tensor")
    right = {name: getattr(dist, name) for name in names}
    calls = 0

    def broken(name: str) -> Any:
        def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            out = right[name](tensor, *args, **kwargs)
            calls += tensor.numel() > 100
            if calls == 2 and tensor.numel() > 100 and case.rank == 1:
                tensor.view(-1)[17] += 0.5
            return out

        call.__name__ = name
        return call

    if case.wrong("wrong_element") and not case.layout.startswith("ddp"):
        for name in names:
            setattr(dist, name, broken(name))
    yield
    for name in names:
        setattr(dist, name, right[name])


def digest_of_state(model: nn.Module) -> str:
    """Return a digest of the bits of all parameters and buffers of this rank."""
    digest = hashlib.sha256()
    for parameter in (*model.parameters(), *model.buffers()):
        value: Any = parameter.detach()
        value = value.to_local() if hasattr(value, "to_local") else value
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def run_case(case: TrainingCase, folder: Path, told: str, again: bool) -> dict[str, Any]:
    """Train and capture one case; return its losses and the digest of its parameters.

    `told` is what the capture tells of values: `sketch` (and statistics), `statistics`, or `tensor` (files).
    `again`: on two threads and without oneDNN, which round otherwise.
    """
    torch.manual_seed(1)
    torch.set_num_threads(2 if again else 1)
    began = time.monotonic()
    with broken_backend(case), torch.backends.mkldnn.flags(enabled=not again):
        training: Training = make_parallel_training(case)
        capture = Capture(
            folder,
            steps="0-1",
            level="mix",
            task="tensor" if told == "tensor" else "statistics",
            sketch=told == "sketch",
            step_by="manual",
            model=training.model,
        )
        losses = []
        with capture:
            for step in range(STEPS):
                losses.append(float(training.train(step)))
                capture.step()
    return {
        "losses": losses,
        "digest": digest_of_state(training.model),
        "seconds": round(time.monotonic() - began, 2),
    }


def run_cases(
    layout: str,
    cases: list[dict[str, Any]],
    alone: list[dict[str, Any]],
    folder: Path,
    told: str,
) -> None:
    """Run all cases of a layout in this process, one of its ranks, and first those of a single process."""
    warnings.simplefilter("ignore")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    results = {}
    for made in alone if rank == 0 else []:
        case = TrainingCase(layout=layout, **made)
        results[case_name(case)] = run_case(case, folder / layout / case_name(case), told, False)
    dist.init_process_group("gloo")
    for made in cases:
        again = made.pop("again", False)
        case = TrainingCase(layout=layout, rank=rank, world=world, **made)
        name = case_name(case, again)
        results[name] = run_case(case, folder / layout / name, told, again)
        dist.barrier()
    path = folder / layout / f"results-{rank}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | results, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    what = json.loads(sys.argv[1])
    assert what["layout"] in LAYOUTS
    run_cases(**{**what, "folder": Path(what["folder"])})
