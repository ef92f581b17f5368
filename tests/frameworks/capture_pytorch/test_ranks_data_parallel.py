"""What DistributedDataParallel exchanges: buckets of gradients, and buffers; training stays as it is."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from rank_scripts import RankScripts

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


# How a model is wrapped, and what its training does beside that.
_VARIANTS = {
    "plain": "",
    "view": "gradient_as_bucket_view=True",
    "unused": "find_unused_parameters=True",
    "static": "static_graph=True",
    "small": "bucket_cap_mb=0.0005",
    "without private parts": "bucket_cap_mb=0.0005",
    "accumulating": "",
    "reentrant": "",
    "sparse": "",
    "join": "",
    "fp16": "",
    "powersgd": "",
}
_TRAINING = """
import contextlib
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.last, self.norm = nn.Linear(40, 40), nn.Linear(40, 4), nn.BatchNorm1d(40)
        self.spare = nn.Linear(3, 3) if kind == "unused" else None
        self.words = nn.Embedding(8, 40, sparse=True) if kind == "sparse" else None

    def forward(self, x):
        if self.words is not None:
            x = x + self.words(torch.arange(8))
        part = lambda h: torch.relu(self.first(h))
        if self.kind == "reentrant":
            x = checkpoint(part, x.requires_grad_(), use_reentrant=True)
        else:
            x = part(x)
        if self.spare is not None and rank:
            x = x + self.spare(x[:, :3]).sum()
        return self.last(self.norm(x))

def train(kind, options, capture):
    torch.manual_seed(0)
    model = DDP(Net(kind), **options)
    if kind == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if kind == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0 if kind == "sparse" else 0.9)
    torch.manual_seed(1 + rank)
    kept = []
    with model.join() if kind == "join" else contextlib.nullcontext():
        for step in range(3 + (rank if kind == "join" else 0)):
            with capture(step):
                optimizer.zero_grad(set_to_none=kind != "view")
                for last in (False, True) if kind == "accumulating" else (True,):
                    with contextlib.nullcontext() if last else model.no_sync():
                        loss = model(torch.randn(8, 40)).square().mean()
                        loss.backward()
                optimizer.step()
            kept.append(loss.detach().clone())
    return kept + [each.detach().clone() for each in model.state_dict().values()]
"""


@ranks_do(
    _TRAINING
    + f"""
from ray_precheck import private_parts
find = private_parts.find
absent = private_parts.DDP_BUCKETS, private_parts.DDP_FINALIZED
for kind, text in {_VARIANTS!r}.items():
    options = eval(f"dict({{text}})")
    plain = train(kind, options, lambda step: contextlib.nullcontext())
    if kind == "without private parts":
        private_parts.find = lambda part: None if part in absent else find(part)
    captured = train(kind, options, lambda step: Capture(
        f"{{out}}/{{kind}}/{{step}}", step_by="manual", task="tensor", level="mix"))
    private_parts.find = find
    assert len(plain) == len(captured), kind
    assert all(map(torch.equal, plain, captured)), f"{{kind}}: the capture has changed the training"
"""
)
def test_the_buckets_of_a_reducer_are_recorded_and_the_training_is_bit_equal(done: Path) -> None:
    for kind in _VARIANTS:
        for step in range(3):
            folder = done / kind / str(step) / "step0"
            ranks = [_reductions(folder, rank) for rank in range(2)]
            # Torch rebuilds the buckets after the first step, in the order of the gradients.
            several = (kind == "small" and step > 0) or (kind == "sparse" and step == 2)
            assert [len(each) for each in ranks] == [1 + several] * 2, (kind, step)
            for first, second in zip(*ranks, strict=True):
                assert first["parameters"] == second["parameters"]
                assert first["group"]["group_ranks"] == [0, 1]
                assert first["by"] == "DistributedDataParallel"
                hook = {"fp16": "fp16_compress_hook", "powersgd": "powerSGD_hook"}.get(kind)
                assert first.get("hook") == hook
                assert first.get("join", False) == (kind == "join")
                assert bool(first["input_kwargs"]) == (hook is None and kind != "join")
                _require_means(folder, first, second, exact=hook is None)


def _reductions(folder: Path, rank: int) -> list[dict[str, Any]]:
    found = json.loads((folder / f"rank{rank}" / "dump.json").read_text())["data"]
    return [found[key] for key in found if key.startswith("Distributed.ddp_all_reduce.")]


def _require_means(
    folder: Path, first: dict[str, Any], second: dict[str, Any], *, exact: bool
) -> None:
    """Compare what each rank got with the mean of what both brought, which halves make exact."""

    def loaded(rank: int, element: dict[str, Any] | None) -> torch.Tensor:
        if element is None:
            return torch.zeros(())
        file = folder / f"rank{rank}" / "dump_tensor_data" / element["data_name"]
        found: torch.Tensor = torch.load(file)
        return found.to_dense()

    assert len(first["parameters"]) == len(first["input_args"][0]) == len(first["output"][0])
    columns = [first["input_args"][0], second["input_args"][0]]
    columns += [first["output"][0], second["output"][0]]
    for name, *elements in zip(first["parameters"], *columns, strict=True):
        brought = [loaded(rank, each) for rank, each in enumerate(elements[:2])]
        got = [loaded(rank, each) for rank, each in enumerate(elements[2:])]
        if "spare" in name:
            assert elements[0] is None
            assert elements[1] is not None
        assert not torch.equal(*brought), name
        assert torch.equal(*got), name
        if exact:
            assert torch.equal(got[0], brought[0] / 2 + brought[1] / 2), name


@ranks_do(
    _TRAINING
    + """
with Capture(f"{out}/start", step_by="manual"):
    model = DDP(Net("plain"))
model.module.norm.running_mean.fill_(rank + 5.0)
with Capture(f"{out}/step", step_by="manual"):
    model(torch.randn(8, 40))
with Capture(f"{out}/sync_off", step_by="manual"), model.no_sync():
    model(torch.randn(8, 40)).sum().backward()
"""
)
def test_broadcasts_of_buffers_are_recorded_and_passes_without_a_reduction_are_not(
    done: Path,
) -> None:
    key = "Distributed.ddp_broadcast.0.forward"
    for rank in range(2):
        started = _data(done / "start", rank)[key]
        assert "module.first.weight" in started["parameters"]
        told = _data(done / "step", rank)[key]
        assert told["parameters"][0] == "module.norm.running_mean"
        assert told["input_kwargs"]["src"]["value"] == 0
        assert told["input_args"][0][0]["Max"] == rank + 5.0
        assert told["output"][0][0]["Max"] == 5.0
        off = _data(done / "sync_off", rank)
        assert not [each for each in off if each.startswith("Distributed.ddp_all_reduce.")]


def _data(folder: Path, rank: int) -> dict[str, Any]:
    return dict(json.loads((folder / "step0" / f"rank{rank}" / "dump.json").read_text())["data"])
