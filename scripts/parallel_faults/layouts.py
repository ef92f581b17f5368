"""Trainings of one model in the layouts that torch and hands make, right or wrong in one place.

Comes in: a `TrainingCase`. Goes out: a `Training`, whose `train` makes one step and returns the loss. Called
by `launch.py`, in each process of a layout. Each names its faults where they are (`case.wrong`).
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from scripts.parallel_faults import tensor_parallel as tensor
from scripts.parallel_faults.model import (
    BATCH,
    STEPS,
    LanguageModel,
    Parts,
    TrainingCase,
    batch_of,
    whole_weights,
)

LARGEST_NORM = 0.5  # below the norm of the gradients in all steps, so that clipping does something
LOSS_SCALE = 1024.0
ALONE = "blocks.0.n2.weight"  # the parameter whose gradient is not reduced
STALE = "blocks.0.mlp.up.weight"  # the parameter that is not updated
MOVED = "blocks.1.n2.weight"  # the parameter that begins otherwise


@dataclass(frozen=True)
class Training:
    """A model on this rank, and what makes one step of it: the number of the step to the loss."""

    model: nn.Module
    train: Callable[[int], Tensor]


def whole_model(
    case: TrainingCase, parts: Parts | None = None, tied: bool = False
) -> LanguageModel:
    """Return the model in one piece, with its weights."""
    model = LanguageModel(parts or Parts(case), tied=tied)
    model.load_state_dict(whole_weights(case, model))
    return model


def moved_start(case: TrainingCase, model: nn.Module) -> None:
    """Let one parameter begin otherwise on rank 1, as after a checkpoint that one rank did not read."""
    if case.wrong("other_start", rank=1):
        with torch.no_grad():
            dict(model.named_parameters())[MOVED].add_(0.125)


def optimizer_of(
    case: TrainingCase, kind: str, named: Iterable[tuple[str, nn.Parameter]], **more: Any
) -> torch.optim.Optimizer:
    """Return the optimizer of a layout, sgd or adamw, which may have another rate or lack a parameter."""
    rate = (0.1 if kind == "sgd" else 1e-2) * (1.5 if case.wrong("other_rate", rank=1) else 1.0)
    left_out = STALE if case.wrong("stale_update", rank=1) else ""
    chosen = [value for name, value in named if name.removeprefix("module.") != left_out]
    if kind == "sgd":
        return torch.optim.SGD(chosen, lr=rate, momentum=0.9, foreach=False)
    return torch.optim.AdamW(chosen, lr=rate, weight_decay=0.1, foreach=False, **more)


def own_batches(case: TrainingCase, rank: int, ranks: int) -> list[tuple[Tensor, Tensor]]:
    """Return the samples of a data-parallel rank in each step: neighbours, or for DDP every second one."""
    own = 0 if case.wrong("same_samples") else rank
    stream = int(case.wrong("other_samples", rank=1))
    batches = [batch_of(step, stream) for step in range(STEPS)]
    if case.layout != "ddp":
        return [(x.chunk(ranks)[own], y.chunk(ranks)[own]) for x, y in batches]
    data = TensorDataset(*(torch.cat(each) for each in zip(*batches, strict=True)))
    sampler: Any = DistributedSampler(data, num_replicas=ranks, rank=own, shuffle=False)
    return [(x, y) for x, y in DataLoader(data, BATCH // ranks, sampler=sampler)]


def scaled_loss(case: TrainingCase, loss: Tensor) -> Tensor:
    """Return the loss from which the backward pass starts."""
    return loss * 2.0 if case.wrong("loss_doubled") else loss


def one(case: TrainingCase, kind: str, parts: Parts | None = None, tied: bool = False) -> Training:
    """The whole model in one process: the golden run of every layout."""
    model = whole_model(case, parts, tied)
    optimizer = optimizer_of(case, kind, model.named_parameters())
    batches = own_batches(case, 0, 1)

    def train(step: int) -> Tensor:
        optimizer.zero_grad()
        tokens, targets = batches[step]
        loss = model.parts[0].loss(model(tokens), targets)
        loss.backward()
        if case.variant == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM, foreach=False)
        optimizer.step()
        return loss.detach()

    return Training(model, train)


def _summed_bucket(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return done.then(lambda future: future.value()[0])


def _broken_bucket(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    def broken(future: torch.futures.Future[Tensor]) -> Tensor:
        out = future.value()
        if dist.get_rank() == 1:
            out[17] += 0.5
        return out

    return allreduce_hook(group, bucket).then(broken)


def wrapped(case: TrainingCase, model: nn.Module, **more: Any) -> DistributedDataParallel:
    """Wrap a model, and do what users do to it by mistake."""
    ignored = {"not_reduced": ALONE}.get(case.fault)
    if ignored:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, [ignored])
    made = DistributedDataParallel(model, **more)
    moved_start(case, model)
    if case.wrong("sum_for_mean"):
        made.register_comm_hook(None, _summed_bucket)
    if case.wrong("wrong_element"):
        made.register_comm_hook(None, _broken_bucket)
    return made


def ddp(case: TrainingCase, kind: str = "adamw", zero: bool = False) -> Training:
    """DistributedDataParallel, perhaps with ZeroRedundancyOptimizer."""
    model = whole_model(case)
    return _ddp_training(case, model, wrapped(case, model), kind, zero)


def _ddp_training(
    case: TrainingCase,
    model: LanguageModel,
    spread: DistributedDataParallel,
    kind: str,
    zero: bool = False,
) -> Training:
    if zero:
        rate = 1e-2 * (1.5 if case.wrong("other_rate", rank=1) else 1.0)
        optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(
            spread.parameters(), torch.optim.AdamW, lr=rate, weight_decay=0.1, foreach=False
        )
        if case.wrong("not_gathered"):
            optimizer._sync_params = lambda: None
    else:
        optimizer = optimizer_of(case, kind, spread.named_parameters())
    batches = own_batches(case, case.rank, case.world)

    def train(step: int) -> Tensor:
        optimizer.zero_grad()
        tokens, targets = batches[step]
        loss = model.parts[0].loss(spread(tokens), targets)
        scaled_loss(case, loss).backward()
        if case.wrong("reduced_twice"):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        return loss.detach()

    return Training(spread, train)


def zero1(case: TrainingCase) -> Training:
    """DDP, and an optimizer of which each rank has the states of some parameters."""
    return ddp(case, zero=True)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm of vectors `(batch, length, width)`, over batch and length."""

    def forward(self, x: Tensor) -> Tensor:
        """Norm."""
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class BatchNormParts(Parts):
    """Batch norms for layer norms, for their buffers."""

    def norm(self, width: int = 24) -> nn.Module:
        """Batch norm."""
        return BatchNorm(width)


def ddp_buffers(case: TrainingCase) -> Training:
    """DDP of a model with batch norm, whose buffers are broadcast before each forward pass."""
    model = whole_model(case, BatchNormParts(case))
    spread = wrapped(case, model, broadcast_buffers=not case.wrong("buffers_not_synced"))
    return _ddp_training(case, model, spread, "adamw")


def ddp_no_sync(case: TrainingCase) -> Training:
    """DDP with two microbatches a step, of which the first is not reduced."""
    model = whole_model(case)
    spread = wrapped(case, model)
    optimizer = optimizer_of(case, "adamw", spread.named_parameters())
    batches = own_batches(case, case.rank, case.world)

    def train(step: int) -> Tensor:
        optimizer.zero_grad()
        tokens, targets = batches[step]
        losses = []
        for number, (x, y) in enumerate(zip(tokens.chunk(2), targets.chunk(2), strict=True)):
            if case.wrong("microbatch_left_out", rank=1) and number == 0:
                continue
            waits = number == (1 if case.wrong("reduced_early") else 0)
            with spread.no_sync() if waits else nullcontext():
                loss = model.parts[0].loss(spread(x), y)
                (loss if case.wrong("not_divided") else loss / 2).backward()
            losses.append(loss.detach())
        optimizer.step()
        return torch.stack(losses).mean()

    return Training(spread, train)


def ddp_checkpoint(case: TrainingCase) -> Training:
    """DDP of blocks whose forward pass runs again in the backward pass."""
    torch.manual_seed(31 + case.rank)

    class Checkpointed(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            keep = not case.wrong("recomputed_otherwise")
            return checkpoint(self.block, x, use_reentrant=False, preserve_rng_state=keep)

    model = whole_model(case)
    spread = wrapped(case, model)
    for name, block in model.blocks.items():
        model.blocks[name] = Checkpointed(block)
    optimizer_names = ((n.replace(".block.", "."), p) for n, p in spread.named_parameters())
    optimizer = optimizer_of(case, "adamw", optimizer_names)
    batches = own_batches(case, case.rank, case.world)

    def train(step: int) -> Tensor:
        optimizer.zero_grad()
        tokens, targets = batches[step]
        loss = model.parts[0].loss(spread(tokens), targets)
        scaled_loss(case, loss).backward()
        optimizer.step()
        return loss.detach()

    return Training(spread, train)


def dp_by_hand(case: TrainingCase) -> Training:
    """Each gradient is summed over the ranks, and divided, by hand."""
    model = whole_model(case)
    if case.wrong("wrong_source"):  # rank 1's seed was another one
        if case.rank == 1:
            with torch.no_grad():
                dict(model.named_parameters())[MOVED].add_(0.125)
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=1)
    moved_start(case, model)
    optimizer = optimizer_of(case, "sgd", model.named_parameters())
    batches = own_batches(case, case.rank, case.world)

    def reduce() -> None:
        for name, parameter in model.named_parameters():
            if case.wrong("not_reduced") and name == ALONE:
                continue
            dist.all_reduce(parameter.grad)
            if not case.wrong("sum_for_mean"):
                parameter.grad /= case.world
        if case.wrong("reduced_twice"):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)

    def train(step: int) -> Tensor:
        optimizer.zero_grad()
        tokens, targets = batches[step]
        micro = 2 if case.variant == "accumulate" else 1
        losses = []
        for number, (x, y) in enumerate(
            zip(tokens.chunk(micro), targets.chunk(micro), strict=True)
        ):
            loss = model.parts[0].loss(model(x), y)
            scaled_loss(case, loss / micro).backward()
            losses.append(loss.detach())
            if number == (0 if case.wrong("reduced_early") else micro - 1):
                reduce()
        if case.variant == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM, foreach=False)
        optimizer.step()
        return torch.stack(losses).mean()

    return Training(model, train)


def _fsdp_training(case: TrainingCase, model: LanguageModel, rank: int, ranks: int) -> Training:
    optimizer = optimizer_of(case, "adamw", model.named_parameters())
    batches = own_batches(case, rank, ranks)

    def train(step: int) -> Tensor:
        optimizer.zero_grad()
        tokens, targets = batches[step]
        loss = model.parts[0].loss(model(tokens), targets)
        scaled_loss(case, loss).backward()
        if case.variant == "clip":
            _clip_sharded(case, model)
        optimizer.step()
        return loss.detach()

    return Training(model, train)


def _clip_sharded(case: TrainingCase, model: nn.Module) -> None:
    if not case.wrong("local_norm"):
        nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM, foreach=False)
        return
    own: list[Any] = [parameter.grad.to_local() for parameter in model.parameters()]
    norm = torch.stack([gradient.norm() for gradient in own]).norm()
    for gradient in own:
        gradient.mul_((LARGEST_NORM / (norm + 1e-6)).clamp(max=1.0))


def _sharded(case: TrainingCase, model: LanguageModel, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    ignored = {dict(model.named_parameters())[ALONE]} if case.wrong("not_reduced") else set()
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh, ignored_params=ignored)
    fully_shard(model, mesh=mesh, ignored_params=ignored)
    if case.wrong("sum_for_mean"):
        for module in (*model.blocks.values(), model):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def fsdp2(case: TrainingCase) -> Training:
    """FSDP2: each block and the rest, parameters in shards."""
    model = whole_model(case)
    moved_start(case, model)
    _sharded(case, model, init_device_mesh("cpu", (case.world,), mesh_dim_names=("dp",)))
    return _fsdp_training(case, model, case.rank, case.world)


def _tensor_plan(case: TrainingCase, sequence: bool) -> dict[str, Any]:
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    between: Any = Shard(1) if sequence else Replicate()
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    if sequence:
        plan["positions"] = PrepareModuleInput(
            input_layouts=(None, None), desired_input_layouts=(None, None)
        )
        plan["norm"] = SequenceParallel(use_local_output=True)
        del plan["positions"]
    for number in ("0", "1"):
        block = f"blocks.{number}."
        forgotten = case.wrong("no_sum_after_row") and number == "0" and not sequence
        plan |= {
            block + "attention.qkv": ColwiseParallel(input_layouts=between),
            block + "attention.q_norm": SequenceParallel(sequence_dim=1, use_local_output=True),
            block + "attention.o_proj": RowwiseParallel(output_layouts=between),
            block + "mlp.up": ColwiseParallel(input_layouts=between),
            block + "mlp.down": RowwiseParallel(output_layouts=Partial() if forgotten else between),
        }
        if sequence:
            plan |= {
                block + "n1": SequenceParallel(use_local_output=True),
                block + "n2": SequenceParallel(use_local_output=True),
            }
            if case.wrong("not_reduced") and number == "0":
                del plan[block + "n2"]
    return plan


class _DividedPositions(Parts):
    """The parts of a DTensor model whose activations are divided along the sequence."""

    def first_position(self, length: int) -> int:
        """Return where this rank's part begins."""
        return 0 if self.case.wrong("positions_not_offset") else length * self.case.rank


def _dtensor(case: TrainingCase, sequence: bool) -> Training:
    from torch.distributed.tensor.parallel import parallelize_module

    model = whole_model(case, _DividedPositions(case) if sequence else Parts(case))
    moved_start(case, model)
    mesh = init_device_mesh("cpu", (case.world,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, _tensor_plan(case, sequence))
    if sequence:  # the positions of a rank are its own: their gradients are parts
        parameter = model.positions.weight

        def summed(gradient: Tensor) -> Tensor:
            gradient = gradient.clone()
            dist.all_reduce(gradient)
            return gradient

        parameter.register_hook(summed)
    return _fsdp_training(case, model, 0, 1)


def dtensor_tp(case: TrainingCase) -> Training:
    """Tensor parallelism by `parallelize_module`."""
    return _dtensor(case, sequence=False)


def dtensor_tp_sp(case: TrainingCase) -> Training:
    """Tensor and sequence parallelism by `parallelize_module`."""
    return _dtensor(case, sequence=True)


def fsdp_tp(case: TrainingCase) -> Training:
    """FSDP2 of a model that `parallelize_module` has divided: two by two ranks."""
    from torch.distributed.tensor.parallel import parallelize_module

    model = whole_model(case)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], _tensor_plan(case, sequence=False))
    _sharded(case, model, mesh["dp"])
    return _fsdp_training(case, model, case.rank // 2, 2)


def _tensor_training(
    case: TrainingCase, sequence: bool, tp: Any, dp: Any = None, kind: str = "sgd"
) -> Training:
    torch.manual_seed(31 + (dp.rank() if dp else 0))
    parts = tensor.TensorParts(case, tp, sequence, other=dp)
    model = LanguageModel(parts)
    parts.names = {module: name for name, module in model.named_modules()}
    whole = LanguageModel(Parts(case))
    tensor.load_own(model, whole_weights(case, whole), tp, case)
    optimizer = optimizer_of(case, kind, model.named_parameters())
    first = dist.get_process_group_ranks(tp)[0]

    def read(step: int) -> tuple[Tensor, Tensor]:
        """Read the samples of the data-parallel rank; only the first of a tensor-parallel group must."""
        right = case.wrong("other_samples") and dp and dp.rank() == 1
        tokens, targets = batch_of(step, stream=0 if right else tp.rank())
        own = dp.rank() if dp and not case.wrong("same_samples") else 0
        ranks = dp.size() if dp else 1
        return tokens.chunk(ranks)[own].clone(), targets.chunk(ranks)[own].clone()

    batches = [read(step) for step in range(STEPS)]

    def samples(step: int) -> tuple[Tensor, Tensor]:
        """Return what the first of the tensor-parallel group tells the others that it read."""
        tokens, targets = batches[step]
        if not case.wrong("other_samples"):
            source = first + 1 if case.wrong("wrong_source") else first
            dist.broadcast(tokens, src=source, group=tp)
            dist.broadcast(targets, src=source, group=tp)
        return tokens, targets

    def train(step: int) -> Tensor:
        optimizer.zero_grad()
        tokens, targets = samples(step)
        loss = parts.loss(model(tokens), targets)
        scale = LOSS_SCALE if case.variant == "scaled" else 1.0
        (scaled_loss(case, loss) * scale if scale != 1.0 else scaled_loss(case, loss)).backward()
        tensor.reduce_partial(model, tp, case)
        if dp is not None:
            _reduce_over(case, model, dp, tp)
        if case.variant == "clip":
            tensor.clip(model, tp, case, LARGEST_NORM)
        if scale == 1.0 or _unscaled(case, model, scale, step, tp):
            optimizer.step()
        return loss.detach()

    return Training(model, train)


def _reduce_over(case: TrainingCase, model: nn.Module, dp: Any, tp: Any) -> None:
    for name, parameter in model.named_parameters():
        if case.wrong("dp_not_reduced") and name == ALONE:
            continue
        group = tp if case.wrong("dp_wrong_group") and name == ALONE else dp
        dist.all_reduce(parameter.grad, group=group)
        if not case.wrong("sum_for_mean"):
            parameter.grad /= dp.size()


def _unscaled(case: TrainingCase, model: nn.Module, scale: float, step: int, tp: Any) -> bool:
    if step == 0 and tp.rank() == 1:  # an overflow in what this rank alone has
        dict(model.named_parameters())[STALE].grad[3, 5] = float("inf")
    found = torch.zeros(())
    for parameter in model.parameters():
        parameter.grad.div_(scale)
        found = found + (~parameter.grad.isfinite()).any()
    if not case.wrong("overflow_alone"):
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=tp)
    return bool(found == 0)


def tp_by_hand(case: TrainingCase) -> Training:
    """Tensor parallelism by hand, as Megatron-LM's."""
    return _tensor_training(case, False, dist.group.WORLD)


def tp_sp_by_hand(case: TrainingCase) -> Training:
    """Tensor and sequence parallelism by hand."""
    return _tensor_training(case, True, dist.group.WORLD, kind="adamw")


def dp_tp_by_hand(case: TrainingCase) -> Training:
    """Tensor parallelism by hand in pairs, data parallelism between them."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return _tensor_training(case, False, mesh.get_group("tp"), mesh.get_group("dp"))
