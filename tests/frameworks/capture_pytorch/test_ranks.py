"""Captures of several ranks: folders, collectives with their group, shards."""

import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from rank_scripts import RankScripts, records
from records import capture_settings, payloads_of

from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.check.checker import Checker
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


@ranks_do("""
x = torch.full((4,), float(rank + 1))
pair = dist.new_group([0, 1])
with Capture(out, step_by="manual"):
    all_reduce(x)
    gathered = [torch.empty(4) for _ in range(world)]
    dist.all_gather(gathered, x, group=pair)
    work = dist.all_reduce(x * 2, async_op=True)
    work.wait()
    dist.broadcast(x, src=0)
""")
def test_each_rank_has_its_folder_and_collectives_their_group(done: Path) -> None:
    for rank in range(2):
        found = records(done, rank)
        reduced = found["Distributed.all_reduce.0.forward"]
        assert reduced["input_args"][0]["Max"] == rank + 1
        assert reduced["output"][0]["Max"] == 3
        assert reduced["group"]["group_ranks"] == [0, 1]
        gathered = found["Distributed.all_gather.0.forward"]
        assert gathered["input_args"][0] is None
        assert [each["Max"] for each in gathered["output"][0]] == [3, 3]
        assert gathered["input_kwargs"]["group"]["group_ranks"] == [0, 1]
        waited = found["Distributed.all_reduce.1.forward"]
        assert waited["input_args"][0]["Max"] == 6
        assert waited["output"][0]["Max"] == 12
        assert "Distributed.broadcast.0.forward" in found


@pytest.mark.skipif(
    not hasattr(torch.distributed, "all_gather_single"), reason="torch before 2.13 lacks them"
)
@ranks_do("""
x = torch.arange(4.0) + 10 * rank
wide, part = torch.empty(8), torch.empty(2)
if hasattr(dist, "all_gather_single"):
    with Capture(out, step_by="manual"):
        dist.all_gather_single(wide, x)
        dist.all_gather_into_tensor(wide, x)
        dist.reduce_scatter_single(part, x)
""")
def test_collectives_of_single_tensors_have_one_record_each(done: Path) -> None:
    for rank in range(2):
        found = records(done, rank)
        # The older name calls the newer one, which then has no record of its own.
        assert sorted(found) == [
            "Distributed.all_gather_into_tensor.0.forward",
            "Distributed.all_gather_single.0.forward",
            "Distributed.reduce_scatter_single.0.forward",
        ]
        gathered = found["Distributed.all_gather_single.0.forward"]
        assert gathered["input_args"][0] is None
        assert gathered["output"][0]["Max"] == 13
        scattered = found["Distributed.reduce_scatter_single.0.forward"]
        assert scattered["output"][0]["Max"] == (12, 16)[rank]


@ranks_do("""
dist.destroy_process_group()
capture = Capture(out, step_by="manual").start()
torch.ones(2) + 1
meet(f"{out}.meeting")
capture.stop()
""")
def test_a_process_that_becomes_a_rank_has_the_folder_of_that_rank(done: Path) -> None:
    assert sorted(path.name for path in (done / "step0").iterdir()) == ["rank0", "rank1"]


@ranks_do("""
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with Capture(out, steps="0", level="mix", model=model):
    for _ in range(2):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
""")
def test_data_parallel_training_is_captured_on_each_rank(done: Path) -> None:
    for rank in range(2):
        found = records(done, rank)
        assert "Functional.linear.0.backward" in found
        assert "Module.module.Linear.forward.0" in found
    assert not (done / "step1").exists()


@ranks_do("""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
mesh = init_device_mesh("cpu", (world,))
whole = torch.arange(20.0).reshape(5, 4)
part = distribute_tensor(whole, mesh, [Shard(0)])
with Capture(out, step_by="manual"):
    part * 2
""")
def test_a_sharded_tensor_shows_its_part_and_where_it_lies(done: Path) -> None:
    for rank, shape in enumerate([[3, 4], [2, 4]]):
        element = records(done, rank)["Tensor.__mul__.0.forward"]["input_args"][0]
        assert element["type"] == "torch.distributed.tensor.DTensor"
        assert element["shape"] == shape
        assert element["global_shape"] == [5, 4]
        assert element["device_mesh"] == [0, 1]
        assert element["placements"] == [{"Shard": {"dim": 0}}]
        assert element["Max"] == [11.0, 19.0][rank]


@ranks_do("""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, Replicate, distribute_tensor
mesh = init_device_mesh("cpu", (world,))
torch.manual_seed(0)
whole = torch.randn(7, 30)
columns = distribute_tensor(whole, mesh, [Shard(1)])
rows = distribute_tensor(whole, mesh, [Shard(0)])
both = distribute_tensor(whole, mesh, [Replicate()])
with Capture(out, step_by="manual", sketch=True):
    columns * 2
    rows * 2
    both * 2
""")
def test_sketches_of_shards_add_up_to_that_of_the_whole(done: Path) -> None:
    import numpy as np

    from ray_precheck.dump.tensors import read_sketches
    from ray_precheck.numerics.sketch import sketch

    torch.manual_seed(0)
    expected = sketch(torch.randn(7, 30).numpy())
    for call in range(3):
        total = np.zeros(64)
        for rank in range(2):
            key = f"Tensor.__mul__.{call}.forward"
            element = records(done, rank)[key]["input_args"][0]
            if element.get("sketch_counted", True):
                total += read_sketches(done / "step0" / f"rank{rank}")[element["sketch"]]
        assert np.allclose(total, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("again", ["left", "came"], ids=["the same name", "another name"])
def test_a_module_that_comes_for_one_that_was_removed_has_its_collectives_recorded(
    captured: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    original, seen = torch.distributed.all_reduce, []
    for name in ("left", "left", again):  # the first capture may import something itself
        monkeypatch.delitem(sys.modules, "left", raising=False)
        module = types.ModuleType(name)
        module.all_reduce = original  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
        captured(lambda module=module: seen.append(module.all_reduce is not original))
    assert seen == [True, True, True]


_EXCHANGES = {
    "batch": """
    operations = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)]
    works = dist.batch_isend_irecv(operations)
    works[1].wait()
    torch.sin(y)
    y.mul_(0)
    works[0].wait()
""",
    "an older batch": """
    for work in dist.batch_isend_irecv(older):
        work.wait()
    torch.sin(y)
""",
    "irecv": """
    works = [dist.isend(x, group_dst=peer), dist.irecv(y, group_src=peer)]
    works[1].wait()
    torch.sin(y)
    works[0].wait()
""",
    "recv": """
    if rank:
        dist.recv(y, 0)
        dist.send(x, 0)
    else:
        dist.send(x, 1)
        dist.recv(y, 1)
    torch.sin(y)
""",
}


@ranks_do(
    "from torch.distributed import _functional_collectives as functional\n"
    "peer, kept = 1 - rank, []\n"
    + "".join(
        f"""
x, y = torch.full((3,), rank + 1.0), torch.full((3,), -1.0)
older = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)]
with Capture(f"{{out}}/{kind}", step_by="manual", task="tensor"):
    torch.sin(y)
{body}
    kept += [[dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)], older]
"""
        for kind, body in _EXCHANGES.items()
    )
    + """
for operations in kept:
    for work in dist.batch_isend_irecv(operations):
        work.wait()
with Capture(f"{out}/functional", step_by="manual"):
    functional.all_reduce(torch.ones(3) + rank, "sum", [0, 1]) * 2
"""
)
def test_what_is_received_is_an_output_when_it_has_arrived(done: Path) -> None:
    for kind in _EXCHANGES:
        words = ("send", "recv") if kind == "recv" else ("isend", "irecv")
        names = []
        for rank in range(2):
            found = records(done / kind, rank)
            sent, received = (found[f"Distributed.{word}.0.forward"] for word in words)
            assert sent["input_args"][0]["Max"] == rank + 1
            assert received["input_args"][0] is None
            assert received["output"][0]["Max"] == 2 - rank
            assert found["Torch.sin.1.forward"]["input_args"][0]["Max"] == 2 - rank
            with open_side(done / kind / "step0" / f"rank{rank}" / "dump.json") as side:
                names.append({each.name_on(rank) for each in meetings_of(side).values()})
        assert names[0] == names[1] == {"from 0 to 1#0", "from 1 to 0#0"}
    # It waits where it is used.
    given = records(done / "functional", 0)["Tensor.__mul__.0.forward"]["input_args"][0]
    assert (given["type"], given["Max"]) == ("torch.Tensor", 3.0)


@ranks_do("""
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module,
)
F = nn.functional
mesh = init_device_mesh("cpu", (world,))
def made(first, second):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 6))
    return parallelize_module(net, mesh, {"0": first, "2": second})
plain = made(ColwiseParallel(), RowwiseParallel())
split = made(ColwiseParallel(input_layouts=Shard(0)), RowwiseParallel(output_layouts=Shard(0)))
words = parallelize_module(
    nn.Sequential(nn.Embedding(12, 8)), mesh, {"0": RowwiseParallel(input_layouts=Replicate())}
)
torch.manual_seed(0)
x, part = torch.randn(4, 10), torch.randn(4, 10) + rank
logits = distribute_tensor(torch.randn(4, 8), mesh, [Shard(1)])
rows = distribute_tensor(torch.randn(4, 8), mesh, [Shard(0)])
left = distribute_tensor(torch.randn(1, 4, 6), mesh, [Shard(2)])
right = distribute_tensor(torch.randn(1, 6, 3), mesh, [Shard(1)])
whole = distribute_tensor(torch.randn(1, 4, 3), mesh, [Replicate()])
labels = distribute_tensor(torch.tensor([1, 7, 3, 4]), mesh, [Replicate()])
with Capture(out, step_by="manual", task="tensor", level="mix", model=plain):
    plain(x).square().mean().backward()
    split(part).square().mean().backward()
    words(torch.arange(12)).sum()
    torch.softmax(logits, 1)
    F.layer_norm(logits, (8,))
    logits + rows
    torch.baddbmm(whole, left, right)
    torch.bmm(left, right) + whole
    F.cross_entropy(logits, labels)
    with loss_parallel():
        F.cross_entropy(logits, labels)
""")
def test_the_parts_of_distributed_tensors_are_those_that_the_rank_computed_with(done: Path) -> None:
    """Tensor and sequence parallel MLPs with biases, as in PyTorch's tutorial, and relatives of them."""
    for rank in range(2):
        folder = str(done / "step0" / f"rank{rank}")
        checker = Checker(replace(capture_settings(folder), standard=STANDARDS["auto"]()), "cpu")
        results = {
            payload.name: checker.check(payload)
            for payload in payloads_of(folder)
            if not payload.name.startswith("Module.")
        }
        assert [
            (r.name, r.message)
            for r in results.values()
            if Verdict.ERROR in (r.forward, r.backward)
        ] == []
        passed = """Functional.linear.1 Functional.linear.2 Functional.linear.3 Functional.embedding.0
            Torch.softmax.0 Functional.layer_norm.0 Torch.baddbmm.0 Functional.cross_entropy.0"""
        for name in passed.split():
            assert results[name].forward is Verdict.PASS, (name, results[name].message)
        assert "exchanges values" in results["Functional.cross_entropy.1"].message
