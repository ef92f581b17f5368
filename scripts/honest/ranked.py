"""Programs of two processes (gloo): a pipeline by hand, a layer that is divided by DTensor, DDP."""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from scripts.honest.programs import Results, Training

RANKS = 2
RANKED_PROGRAMS: dict[str, Callable[[], Training]] = {}


def ranked_program(make: Callable[[], Training]) -> Callable[[], Training]:
    """Register a program; it runs in both processes."""

    def joined() -> Training:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        return make()

    RANKED_PROGRAMS[make.__name__] = joined
    return make


def own_rank() -> int:
    """Return the rank of this process, 0 where there is one."""
    return int(os.environ.get("RANK", 0))


def _state(module: nn.Module) -> Results:
    return [value.detach().clone() for value in module.state_dict().values()]


@ranked_program
def pipeline_by_hand() -> Training:
    """Activations go to the next rank and gradients come back, by `batch_isend_irecv`."""
    rank = dist.get_rank()
    part = nn.Sequential(nn.Linear(8, 8), nn.GELU()) if rank == 0 else nn.Linear(8, 3)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    x, y = torch.randn(4, 8), torch.randint(0, 3, (4,))

    def swapped(sent: torch.Tensor | None, got: torch.Tensor | None) -> None:
        kind, tensor = (dist.isend, sent) if got is None else (dist.irecv, got)
        assert tensor is not None
        for request in dist.batch_isend_irecv([dist.P2POp(kind, tensor, 1 - rank)]):
            request.wait()

    def train() -> Results:
        kept = []
        for _ in range(2):
            optimizer.zero_grad()
            if rank == 0:
                h = part(x)
                swapped(h.detach(), None)
                gradient = torch.zeros_like(h)
                swapped(None, gradient)
                h.backward(gradient * 1.0)
                kept.append(gradient)
            else:
                arrived = torch.zeros(4, 8)
                swapped(None, arrived)
                h = arrived.mul(1.0).requires_grad_()
                loss = nn.functional.cross_entropy(part(h), y)
                loss.backward()
                swapped(h.grad, None)
                kept.append(loss.detach())
            optimizer.step()
        return [*(each.clone() for each in kept), *_state(part)]

    return train


@ranked_program
def tensor_parallel() -> Training:
    """Two layers that are divided over the ranks: the second one's output is a partial sum."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))
    mesh = init_device_mesh("cpu", (RANKS,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    x, y = torch.randn(5, 8), torch.randn(5, 4)

    def train() -> Results:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        state = [value.to_local() for value in model.state_dict().values()]
        return [loss.detach().clone(), *(each.detach().clone() for each in state)]

    return train


@ranked_program
def data_parallel() -> Training:
    """DistributedDataParallel, gradients that are averaged in buckets, a metric that is gathered."""
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = torch.randn(2, 4, 6)[dist.get_rank()], torch.randn(4, 2)

    def train() -> Results:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return [mean / RANKS, *_state(model)]

    return train
