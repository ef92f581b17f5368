"""Real trainings of two ranks against the same training on one process: nobody right is accused, and faults
are found where they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

from ray_precheck.commands.compare.job import tables_of
from ray_precheck.commands.compare.run import compare_captures
from ray_precheck.commands.locate.run import locate_captures
from ray_precheck.store.journal import decoded_rows
from ray_precheck.trace.difference.rows import ComparisonMode

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="torch has no distributed part"
    ),
]
# The MLP of a transformer with an embedding and a loss: tensor parallel by hand as Megatron has it, or data
# parallel; without RANK on one process.
_PROGRAM = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from ray_precheck.capture import Capture
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=world)

class Shared(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x
    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient

class Summed(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        x = x.clone()
        if not Net.forgets:
            dist.all_reduce(x)
        return x
    @staticmethod
    def backward(context, gradient):
        return gradient

class Net(nn.Module):
    forgets, wrong = False, False
    def __init__(self, parts):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.norm = nn.Embedding(20, 8), nn.LayerNorm(8)
        self.up, self.down, self.head = nn.Linear(8, 12), nn.Linear(12, 8, bias=False), nn.Linear(8, 20)
        self.parts = parts
        if parts > 1:
            own = slice(rank * 12 // parts, (rank + 1) * 12 // parts)
            self.up.weight = nn.Parameter(self.up.weight.detach()[own].clone())
            self.up.bias = nn.Parameter(self.up.bias.detach()[own].clone())
            self.down.weight = nn.Parameter(self.down.weight.detach()[:, own].clone())
    def forward(self, tokens):
        x = self.words(tokens)
        y = self.norm(x)
        y = F.gelu(self.up(Shared.apply(y) if self.parts > 1 else y))
        if Net.wrong and rank:
            with torch.no_grad():
                y.data.mul_(1.02)
        y = self.down(y)
        return self.head(x + (Summed.apply(y) if self.parts > 1 else y))

def train(name, parts=1, is_split=False):
    net = Net(parts)
    model = nn.parallel.DistributedDataParallel(net) if is_split else net
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(1)
    tokens, targets = torch.randint(20, (4, 6)), torch.randint(20, (4, 6))
    if is_split:
        tokens, targets = tokens[rank::world], targets[rank::world]
    with Capture(f"{sys.argv[2]}/{name}", steps="0", level="mix", model=model, sketch=True):
        F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()

if world == 1:
    train("one")
else:
    train("tensor", world)
    train("data", is_split=True)
    Net.forgets = True
    train("forgets", world)
    Net.forgets, Net.wrong = False, True
    train("wrong", world)
"""


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the captures: `one` of one process, the others of two ranks."""
    folder = tmp_path_factory.mktemp("layouts")
    command = [sys.executable, "-c", _PROGRAM, str(folder / "meeting"), str(folder)]
    plain = os.environ | {"OMP_NUM_THREADS": "1"}
    environs = [plain] + [plain | {"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    started = [
        subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
        for environ in environs
    ]
    errors = [process.communicate(timeout=240)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], errors
    return folder


@pytest.mark.parametrize(
    ("target", "golden"),
    [("tensor", "one"), ("data", "one"), ("one", "tensor"), ("tensor", "data")],
)
def test_right_runs_of_other_layouts_are_not_accused(
    captures: Path, tmp_path: Path, target: str, golden: str
) -> None:
    sides = captures / target / "step0", captures / golden / "step0"
    (report,) = compare_captures(*sides, out=tmp_path, standard="auto").reports
    assert report.summary.results.get("error", 0) == 0
    calls = [
        (cells[0], cells[2], cells[3])
        for cells in decoded_rows(report.files.result, tables_of(ComparisonMode.STATISTICS).result)
    ]
    products = [row for row in calls if "linear" in row[0] and row[0].endswith("forward")]
    assert len(products) == 3
    assert all(golden for _, golden, _ in products), products
    assert locate_captures(*sides, out=tmp_path / "located").places == ()


def test_a_kernel_that_is_wrong_on_one_rank_is_found(captures: Path, tmp_path: Path) -> None:
    sides = captures / "wrong" / "step0", captures / "one" / "step0"
    first = locate_captures(*sides, out=tmp_path).places[0].root
    assert first.key in ("Functional.gelu.0.forward", "Functional.linear.1.forward")
    assert first.item in ("output.0", "input.0")


def test_a_sum_over_ranks_that_is_missing_is_told(captures: Path, tmp_path: Path) -> None:
    sides = captures / "forgets" / "step0", captures / "one" / "step0"
    first = locate_captures(*sides, out=tmp_path).places[0].root
    assert first.key in ("Functional.linear.1.forward", "Tensor.__add__.0.forward")
    assert "the sum of the ranks' values would be right" in first.message
