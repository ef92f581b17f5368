"""Two processes that train a small model together (gloo), and a collective that is wrong on one of them.

    python -m scripts.locate_faults.planting.collective FOLDER DTYPE RANK

Comes in: a folder, and a dtype. Goes out: captures of both ranks, honest ones and faulty ones, and their
cases. `collective_cases` starts both processes; called by `main`. A fault changes what the collective
wrote, before the capture sees it.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as distributed
from torch import Tensor

from ray_precheck.capture.capturing import Capture
from scripts.locate_faults.cases import COLLECTIVE, HONEST, FaultCase, Judged
from scripts.measuring import ROOT

_WORLD = 2
_LIMIT_S = 120.0
_WIDTH = 16
PLAIN, GOLDEN = "plain", "two threads"


class Wrong(NamedTuple):
    """A wrong collective: its name, the number of the call, the rank that has it, and what it writes."""

    collective: str
    number: int
    rank: int
    write: Callable[[Tensor, Tensor], Tensor]


# What is written, of what was given and what is right.
WRONGS: dict[str, Wrong] = {
    "the other rank left out": Wrong("all_reduce", 1, 1, lambda given, right: 2 * given),
    "scale 1 + 1e-2": Wrong("all_reduce", 2, 0, lambda given, right: right * 1.01),
    "last 1/16 not sent": Wrong("all_reduce", 0, 0, lambda given, right: _end_of(given, right)),
}


def _end_of(given: Tensor, right: Tensor) -> Tensor:
    flat = right.flatten().clone()
    kept = max(1, len(flat) // 16)
    flat[-kept:] = given.flatten()[-kept:]
    return flat.reshape(right.shape)


@contextmanager
def _wrong(fault: Wrong | None) -> Iterator[None]:
    """Put a wrong collective in the place of torch's, on the rank that has it."""
    if fault is None or distributed.get_rank() != fault.rank:
        yield
        return
    original = getattr(distributed, fault.collective)
    calls = 0

    def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        given = tensor.clone()
        result = original(tensor, *args, **kwargs)
        if calls == fault.number:
            tensor.copy_(fault.write(given, tensor.clone()))
        calls += 1
        return result

    setattr(distributed, fault.collective, call)
    try:
        yield
    finally:
        setattr(distributed, fault.collective, original)


def _step(dtype: torch.dtype, rank: int) -> None:
    """Make a step of a model with the gradients of both ranks."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(_WIDTH, 4 * _WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * _WIDTH, 4)]
    model = torch.nn.Sequential(*layers).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    given = torch.randn(8, _WIDTH, generator=torch.Generator().manual_seed(rank)).to(dtype)
    model(given).square().mean().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        distributed.all_reduce(parameter.grad)
        parameter.grad.div_(_WORLD)
    optimizer.step()


def run_rank(folder: Path, dtype: torch.dtype, rank: int) -> None:
    """Capture all steps of a rank."""
    store = f"file://{(folder / 'store').absolute()}"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=_WORLD)
    runs: dict[str, Wrong | None] = {PLAIN: None, GOLDEN: None, **WRONGS}
    for number, (name, fault) in enumerate(runs.items()):
        torch.set_num_threads(2 if name == GOLDEN else 1)
        path = folder / str(number)
        settings = {"task": "tensor", "sketch": True, "step_by": "manual", "framework": "pytorch"}
        with _wrong(fault), Capture(path, **settings):
            _step(dtype, rank)
        distributed.barrier()
    distributed.destroy_process_group()


def collective_cases(folder: Path, dtype: str) -> list[Judged]:
    """Capture with two processes; return the cases, of which nothing is judged yet."""
    folder.mkdir(parents=True)
    words = [sys.executable, "-m", "scripts.locate_faults.planting.collective", str(folder), dtype]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ranks = [subprocess.Popen([*words, str(rank)], env=environment) for rank in range(_WORLD)]
    if any(rank.wait(_LIMIT_S) for rank in ranks):
        raise SystemExit(f"the ranks in {folder} ended with {[rank.returncode for rank in ranks]}")
    steps = [str(folder / str(number) / "step0") for number in range(len(WRONGS) + 2)]
    cases = [FaultCase("two ranks", dtype, HONEST, f"pair, {GOLDEN}", steps[0], steps[1])]
    for step, (name, fault) in zip(steps[2:], WRONGS.items(), strict=True):
        key = f"Distributed.{fault.collective}.{fault.number}.forward"
        cases.append(
            FaultCase("two ranks", dtype, COLLECTIVE, name, step, steps[1], culprits=(key,))
        )
    return [Judged(case) for case in cases]


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), getattr(torch, sys.argv[2]), int(sys.argv[3]))
