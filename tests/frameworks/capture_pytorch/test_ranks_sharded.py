"""Collectives of FSDP and DTensor, functional ones, and messages: training stays as it is, and locate
recomputes all of them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from rank_scripts import RankScripts, records

from ray_precheck.commands.locate.exchange import WholeExchanges, exchanges_of
from ray_precheck.schema.result import Verdict
from ray_precheck.trace.flow import meetings_of
from ray_precheck.trace.side import open_side

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="torch has no distributed part"
    ),
]
_SCRIPTS = RankScripts()
ranks_do = _SCRIPTS.add


@pytest.fixture(scope="module")
def all_done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with that of each script."""
    return _SCRIPTS.run(tmp_path_factory.mktemp("ranks"))


@pytest.fixture
def done(all_done: Path, request: pytest.FixtureRequest) -> Path:
    """Return the folder of what the script of a test has captured."""
    return all_done / str(request.function.__name__)


def _recomputed(folder: Path) -> dict[str, str]:
    """Return the verdicts of the collectives of two ranks, by their names."""
    found = []
    for rank in range(2):
        with open_side(folder / "step0" / f"rank{rank}" / "dump.json") as side:
            found += exchanges_of(side, f"step0/rank{rank}", "0", str(rank))
    rows = [done.row.decode() for done in WholeExchanges(found).rows(set())]
    return {row[0]: row[1] for row in csv.reader(rows)}


_TRAINING = """
import contextlib
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module,
)
mesh = init_device_mesh("cpu", (world,))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

def made(kind):
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(16, 4))
    options = {"reshard_after_forward": kind != "kept"}
    if kind == "mixed":
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model[:2]:
        if kind == "tensor parallel":
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        elif kind == "sequence parallel":
            parallelize_module(block, mesh, {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
            })
        elif kind != "flat":
            fully_shard(block, **options)
    if kind == "flat":
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    return model if "parallel" in kind else fully_shard(model, **options)

def train(kind, capture):
    model = made(kind)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    torch.manual_seed(7 if "parallel" in kind else rank)
    kept = []
    for step in range(2):
        with capture(step):
            x = torch.randn(2, 8, 16)
            if kind == "sequence parallel":
                y = model[1](model[0](distribute_tensor(x, mesh, [Shard(1)]))).full_tensor()
            else:
                y = model(x)
            loss = y.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        kept.append(loss.detach().clone())
    parts = [each.to_local() if isinstance(each, DTensor) else each for each in model.parameters()]
    return kept + [each.detach().clone() for each in parts]
"""
_SHARDED = ("sharded", "kept", "mixed", "flat", "tensor parallel", "sequence parallel")


@ranks_do(
    _TRAINING
    + f"""
for kind in {_SHARDED!r}:
    plain = train(kind, lambda step: contextlib.nullcontext())
    captured = train(kind, lambda step: Capture(
        f"{{out}}/{{kind}}/{{step}}", step_by="manual", task="tensor", level="mix"))
    assert all(map(torch.equal, plain, captured)), f"{{kind}}: the capture has changed the training"
"""
)
def test_who_makes_a_collective_is_told_and_training_is_bit_equal(done: Path) -> None:
    for kind in _SHARDED:
        for step in range(2):
            folder = done / kind / str(step)
            verdicts = _recomputed(folder)
            assert verdicts, kind
            assert set(verdicts.values()) == {Verdict.PASS.value}, (kind, verdicts)
            found = records(folder, 0)
            exchanged = [each for key, each in found.items() if key.startswith("Distributed.")]
            by = "DTensor" if "parallel" in kind else "FSDP"
            told = [each for each in exchanged if each.get("by") == by]
            assert len(told) == len(exchanged) - (kind == "sequence parallel"), kind
            _require_told(kind, told)
            reductions = {
                each.get("reduction") for key, each in found.items() if "parameters_grad" in key
            }
            assert reductions == ({None} if "parallel" in kind else {"before"}), kind
            # Buffers that FSDP has not filled yet hold anything.
            unfilled = [key for key in found if key.startswith(("fsdp.", "Torch.empty."))]
            assert kind == "flat" or not unfilled, (kind, unfilled)
            # Gradients of norms are partial sums, which the optimizer adds up.
            update = found["Optimizer.AdamW.0.forward"]
            assert update.get("exchanges", False) == (kind == "sequence parallel")


def _require_told(kind: str, told: list[dict[str, Any]]) -> None:
    """Compare what the records of a training say with what it exchanges."""
    names = [f"norm.{word}" for word in ("weight", "bias")]
    names += [f"{layer}.{word}" for layer in ("up", "down") for word in ("weight", "bias")]
    blocks = [[f"{number}.{name}" for name in names] for number in range(2)]
    last = ["2.weight", "2.bias"]
    if kind == "flat":
        assert [each["parameters"] for each in told] == [[*blocks[0], *blocks[1], *last]] * 2
    elif "parallel" not in kind:
        # Each is gathered at least once, and its gradients are scattered once.
        several = [each["parameters"] for each in told]
        assert all(several.count(each) >= 2 for each in (*blocks, last))
        reduced = [each["parameters"] for each in told if "op" in each["input_kwargs"]]
        assert sorted(reduced) == sorted([*blocks, last])
    elif kind == "tensor parallel":
        moves = [each["placements"] for each in told]
        # Each block adds the parts of its output, and those of the gradient of its input.
        assert (
            moves
            == [
                {"from": [{"Partial": {"reduce_op": "sum"}}], "to": [{"Replicate": {}}]},
            ]
            * 4
        )
    else:
        moves = [each["placements"] for each in told]
        assert {"from": [{"Shard": {"dim": 1}}], "to": [{"Replicate": {}}]} in moves
        assert {"from": [{"Partial": {"reduce_op": "sum"}}], "to": [{"Shard": {"dim": 1}}]} in moves


@ranks_do("""
from torch.distributed import _functional_collectives as functional
world_group = dist.group.WORLD
def use(x):
    y = functional.all_gather_tensor(x, 0, world_group) * 1
    z = functional.reduce_scatter_tensor(x, "sum", 1, world_group) * 1
    moved = functional.all_to_all_single(x, None, None, world_group).view(-1).sum()
    sums = functional.all_reduce_coalesced([x.detach(), x.detach() * 2], "max", world_group)
    sent = functional.broadcast(x.detach(), 1, [0, 1])
    total = functional.all_reduce(x, "sum", world_group)
    again = functional.all_gather_tensor(total, 0, world_group)  # of what may not have arrived
    parts = [y.square(), z.square(), moved, sums[0], sums[1], sent, again.square()]
    loss = sum(each.sum() for each in parts)
    loss.backward()
    return loss.detach()
torch.manual_seed(rank)
first = torch.randn(2, 4, requires_grad=True)
plain = use(first), first.grad.clone()
first.grad = None
with Capture(out, step_by="manual", task="tensor"):
    captured = use(first), first.grad.clone()
    functional.all_reduce(first.detach(), "sum", world_group)  # whom nobody waits for
assert all(map(torch.equal, plain, captured))
""")
def test_functional_collectives_are_recorded_in_both_directions(done: Path) -> None:
    verdicts = _recomputed(done)
    left = "functional.all_reduce#2 in 0-1"
    assert verdicts.pop("step0 " + left) == Verdict.SKIP.value
    assert set(verdicts.values()) == {Verdict.PASS.value}, verdicts
    found = records(done, 1)
    counts = {
        name: sum(key.startswith(f"Distributed.functional.{name}.") for key in found)
        for name in ("all_reduce", "all_gather_tensor", "reduce_scatter_tensor", "broadcast")
    }
    # The gradient of a gather is scattered, that of a scatter gathered, that of a sum summed.
    assert counts == {
        "all_reduce": 3,
        "all_gather_tensor": 3,
        "reduce_scatter_tensor": 3,
        "broadcast": 1,
    }
    assert "output" in found["Distributed.functional.all_reduce.0.forward"]
    assert found["Distributed.functional.all_reduce.2.forward"]["output"] == []
    assert found["Distributed.functional.broadcast.0.forward"]["input_kwargs"]["src"]["value"] == 1


@ranks_do("""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
torch.manual_seed(0)
part = distribute_tensor(torch.randn(4, 8), init_device_mesh("cpu", (world,)), [Shard(1)])
with Capture(out, step_by="manual", task="tensor"):
    torch.argmax(part, 1)
    dist.all_reduce(torch.ones(2) + rank, op=dist.ReduceOp(dist.ReduceOp.MAX))
""")
def test_an_exchange_within_an_operator_and_an_operation_that_is_an_object_are_told(
    done: Path,
) -> None:
    found = records(done, 0)
    assert found["Torch.argmax.0.forward"]["exchanges"] is True
    reduced = found["Distributed.all_reduce.0.forward"]
    assert reduced["input_kwargs"]["op"]["value"] == "RedOpType.MAX"
    assert set(_recomputed(done).values()) == {Verdict.PASS.value}


@ranks_do("""
peer = 1 - rank
def swap(several):
    x, y = torch.full((2,), rank + 1.0), torch.zeros(2)
    for _ in range(several):
        works = [dist.isend(x, peer), dist.irecv(y, peer)]
        for work in works:
            work.wait()
    pair = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    if rank:
        dist.send(x, 0)
    else:
        dist.recv(y)  # from anyone
capture = Capture(out, steps="2", ranks="0-1", step_by="manual").start()
for several in (1, 0, 2):
    swap(several)
    capture.step()
capture.stop()
""")
def test_messages_have_their_numbers_since_the_capture_was_made(done: Path) -> None:
    names = {}
    for rank in range(2):
        dump = done / "step2" / f"rank{rank}" / "dump.json"
        with open_side(dump) as side:
            names[rank] = [each.name_on(rank) for each in meetings_of(side).values()]
        found = json.loads(dump.read_text())["data"]
        # In three swaps before: two, one, and now the third and fourth, and that of the batch.
        assert found["Distributed.isend.0.forward"]["sequence"] == (3, 5)[rank]
    assert [name for name in names[0] if name.startswith("from 0")] == [
        name for name in names[1] if name.startswith("from 0")
    ]
    # Rank 0 has received from anyone, and may have missed messages of any rank.
    assert sum("alone" in name for name in names[0]) == 4
    assert not any("alone" in name for name in names[1])
