"""Trainings that divide the model by hand otherwise: stages of a pipeline, experts, parts of the context.

Comes in: a `TrainingCase`. Goes out: a `Training`. Called as those of `layouts.py` are.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from scripts.parallel_faults import layouts
from scripts.parallel_faults.layouts import ALONE, Training, optimizer_of, scaled_loss
from scripts.parallel_faults.model import (
    BATCH,
    EXPERTS,
    HIDDEN,
    LENGTH,
    STEPS,
    WIDTH,
    LanguageModel,
    Parts,
    TrainingCase,
    batch_of,
    whole_weights,
)
from scripts.parallel_faults.tensor_parallel import Gathered, marked

MICROBATCHES = 4


def pipeline_in_stages(case: TrainingCase) -> Training:
    """Two stages, all forward passes before all backward passes; the head is the embedding of the first."""
    last = case.rank == 1
    model = LanguageModel(Parts(case), range(1, 2) if last else range(1))
    whole = whole_weights(case, LanguageModel(Parts(case), tied=True))
    if case.wrong("wrong_slice", rank=1):  # the second stage loads the layers of the first
        whole |= {
            name.replace("blocks.0.", "blocks.1."): value
            for name, value in whole.items()
            if name.startswith("blocks.0.")
        }
    model.load_state_dict({name: whole[name] for name in model.state_dict()})
    shared: Any = model.head.weight if last else model.embedding.weight
    if case.wrong("other_start", rank=1):
        with torch.no_grad():
            shared[3].add_(0.125)
    optimizer = optimizer_of(case, "sgd", model.named_parameters())
    shape = (BATCH // MICROBATCHES, LENGTH, WIDTH)
    parts = Parts(case)
    stream = int(case.wrong("other_samples", rank=1))
    batches = [
        [each.chunk(MICROBATCHES) for each in batch_of(step, stream)] for step in range(STEPS)
    ]

    def train_first(step: int) -> Tensor:
        pieces = batches[step][0]
        made = []
        for tokens in pieces:
            out = model(tokens)
            dist.send(out.detach(), dst=1)
            made.append(out)
        order = [0, 1, 2, 3]
        if case.wrong("gradients_swapped"):
            order = [1, 0, 2, 3]
        for number in order:
            gradient = torch.empty(shape)
            dist.recv(gradient, src=1)
            made[number].backward(gradient)
        return torch.zeros(())

    def train_last(step: int) -> Tensor:
        pieces = list(batches[step][1])
        if case.wrong("microbatches_swapped"):
            pieces[1], pieces[2] = pieces[2], pieces[1]
        arrived, losses = [], []
        for targets in pieces:
            x = torch.empty(shape)
            dist.recv(x, src=0)
            x.requires_grad_()
            losses.append(parts.loss(model(x), targets))
            arrived.append(x)
        for number, (x, loss) in enumerate(zip(arrived, losses, strict=True)):
            divided = loss if case.wrong("not_divided") else loss / MICROBATCHES
            if case.wrong("microbatch_left_out") and number == 2:
                divided = divided * 0.0
            divided.backward()
            dist.send(x.grad, dst=0)
        return torch.stack(losses).mean().detach()

    def train(step: int) -> Tensor:
        optimizer.zero_grad()
        loss = (train_last if last else train_first)(step)
        if not case.wrong("not_reduced"):
            dist.all_reduce(shared.grad)
        if case.wrong("reduced_twice"):
            dist.all_reduce(shared.grad)
        optimizer.step()
        return loss

    return Training(model, train)


class ContextParts(Parts):
    """The layers of a model of which each rank has a part of the sequence; keys and values are gathered."""

    def __init__(self, case: TrainingCase, group: dist.ProcessGroup) -> None:
        super().__init__(case)
        self.group = group

    def first_position(self, length: int) -> int:
        """Return where this rank's part begins."""
        return 0 if self.case.wrong("positions_not_offset") else length * self.group.rank()

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of this rank's queries to the keys and values of all ranks."""
        sums = not self.case.wrong("no_sum_of_keys")
        turned = self.case.wrong("gather_order")
        joined = torch.stack([k, v]).movedim(3, 1)  # (2, length, batch, heads, width)
        k, v = Gathered.apply(joined, self.group, sums, turned).movedim(1, 3)
        own, all_ = q.shape[2], k.shape[2]
        first = own * self.group.rank()
        seen = torch.arange(all_)[None, :] <= torch.arange(first, first + own)[:, None]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def cp_by_hand(case: TrainingCase) -> Training:
    """Context parallelism: each rank has half of each sequence; keys and values are gathered."""
    torch.manual_seed(31 + (0 if case.wrong("same_masks") else case.rank))
    model = layouts.whole_model(case, ContextParts(case, dist.group.WORLD))
    layouts.moved_start(case, model)
    optimizer = optimizer_of(case, "adamw", model.named_parameters())
    own = 0 if case.wrong("wrong_slice") else case.rank
    stream = int(case.wrong("other_samples", rank=1))
    batches = [
        [each.chunk(case.world, 1)[own] for each in batch_of(step, stream)] for step in range(STEPS)
    ]

    def train(step: int) -> Tensor:
        optimizer.zero_grad()
        tokens, targets = batches[step]
        logits = model(tokens)
        # The mean over all tokens of the batch: each rank has a part of the sum.
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        whole = loss / (targets.numel() * case.world)
        scaled_loss(case, whole).backward()
        for name, parameter in model.named_parameters():
            if case.wrong("not_reduced") and name == ALONE:
                continue
            dist.all_reduce(parameter.grad)
            if case.wrong("mean_for_sum"):
                parameter.grad /= case.world
            if case.wrong("reduced_twice") and name == ALONE:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        return whole.detach()

    return Training(model, train)


class Exchanged(torch.autograd.Function):
    """Tokens to the ranks of their experts, and gradients back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], got: list[int], group: Any) -> Tensor:
        """Return what arrived."""
        ctx.back = got, sent, group
        out = x.new_empty(sum(got), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), got, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Send the gradients back."""
        sent, got, group = ctx.back
        out = gradients[0].new_empty(sum(got), *gradients[0].shape[1:])
        dist.all_to_all_single(out, gradients[0].contiguous(), got, sent, group=group)
        return out, None, None, None


class Expert(nn.Module):
    """One expert."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)
        for parameter in self.parameters():
            marked(parameter, allreduce=not own)

    def forward(self, x: Tensor) -> Tensor:
        """`(tokens, width)` to the same."""
        return self.down(functional.gelu(self.up(x)))


class Experts(nn.Module):
    """A router that gives each token one expert; experts may be those of some of the ranks."""

    def __init__(self, case: TrainingCase, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.case, self.group = case, group
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        ranks = group.size() if group else 1
        first = EXPERTS // ranks * (group.rank() if group else 0)
        own = range(first, first + EXPERTS // ranks)
        self.experts = nn.ModuleDict({str(number): Expert(ranks > 1) for number in own})

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, length, width)` to the same."""
        tokens = x.flatten(0, 1)
        shares = self.router(tokens).softmax(-1)
        share, chosen = shares.max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=EXPERTS)
        out = self._through_experts(tokens[order], counts)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        if self.case.wrong("gather_order"):
            back = order
        return (out[back] * share[:, None]).view_as(x)

    def _through_experts(self, tokens: Tensor, counts: Tensor) -> Tensor:
        if self.group is None:
            parts = tokens.split(counts.tolist())
            made = [expert(part) for expert, part in zip(self.experts.values(), parts, strict=True)]
            return torch.cat(made)
        ranks, own = self.group.size(), len(self.experts)
        others = torch.empty(ranks * own, dtype=counts.dtype)
        dist.all_to_all_single(others, counts, group=self.group)
        sent = counts.view(ranks, own).sum(1).tolist()
        got = others.view(ranks, own).sum(1).tolist()
        arrived = Exchanged.apply(tokens, sent, got, self.group)
        pieces = arrived.split(others.tolist())  # by rank, then by expert
        made: list[Tensor] = [torch.empty(0)] * len(pieces)
        for number, expert in enumerate(self.experts.values()):
            joined = torch.cat([pieces[rank * own + number] for rank in range(ranks)])
            sizes = [len(pieces[rank * own + number]) for rank in range(ranks)]
            for rank, part in enumerate(expert(joined).split(sizes)):
                made[rank * own + number] = part
        return Exchanged.apply(torch.cat(made), got, sent, self.group)


class ExpertParts(Parts):
    """A mixture of experts in the place of each MLP."""

    def __init__(self, case: TrainingCase, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(case)
        self.group = group

    def mlp(self) -> nn.Module:
        """Router and experts."""
        return Experts(self.case, self.group)


def moe_ep(case: TrainingCase) -> Training:
    """Data parallelism of all but the experts, of which each rank has half."""
    group = dist.group.WORLD
    model = LanguageModel(ExpertParts(case, group))
    whole = whole_weights(case, LanguageModel(ExpertParts(case)))
    if case.wrong("wrong_slice", rank=1):
        whole |= {
            name.replace(".experts.0.", ".experts.2."): value
            for name, value in whole.items()
            if name.startswith("blocks.1.mlp.experts.0.")
        }
    model.load_state_dict({name: whole[name] for name in model.state_dict()})
    layouts.moved_start(case, model)
    optimizer = optimizer_of(case, "adamw", model.named_parameters())
    batches = layouts.own_batches(case, case.rank, case.world)
    router = "blocks.0.mlp.router.weight"

    def train(step: int) -> Tensor:
        optimizer.zero_grad()
        tokens, targets = batches[step]
        loss = model.parts[0].loss(model(tokens), targets)
        scaled_loss(case, loss).backward()
        for name, parameter in model.named_parameters():
            if getattr(parameter, "allreduce", True):
                if case.wrong("not_reduced") and name == router:
                    continue
                dist.all_reduce(parameter.grad)
                if case.wrong("reduced_twice") and name == router:
                    dist.all_reduce(parameter.grad)
            elif case.wrong("experts_not_divided"):
                continue
            if not case.wrong("sum_for_mean"):
                parameter.grad /= case.world
        optimizer.step()
        return loss.detach()

    return Training(model, train)
