"""Layers that are divided over ranks by hand, in form as those of Megatron-LM, and what may be wrong in them.

Comes in: a process group and a `TrainingCase`. Goes out: `TensorParts`, from which `model.LanguageModel` is
built, and the reductions of gradients, norms and flags that belong to it. Called by `layouts.py`.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from scripts.parallel_faults.model import (
    VOCABULARY,
    WIDTH,
    Parts,
    Positions,
    RandomStates,
    TrainingCase,
)


class Copied(torch.autograd.Function):
    """The same forward; the sum over the ranks backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return `x`."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the sum of the gradients."""
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Summed(torch.autograd.Function):
    """The sum over the ranks forward; the same backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the sum."""
        out = x.contiguous().clone()
        dist.all_reduce(out, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradient."""
        return gradients[0], None


def gathered(x: Tensor, group: dist.ProcessGroup, turned: bool = False) -> Tensor:
    """Return the parts `(batch, length, ...)` of all ranks, one after the other along the length."""
    part = x.transpose(0, 1).contiguous()
    out = part.new_empty(part.shape[0] * group.size(), *part.shape[1:])
    dist.all_gather_into_tensor(out, part, group=group)
    if turned:
        out = torch.cat(out.chunk(group.size())[::-1])
    return out.transpose(0, 1).contiguous()


def scattered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's part, along the length, of the sum over the ranks."""
    whole = x.transpose(0, 1).contiguous()
    out = whole.new_empty(whole.shape[0] // group.size(), *whole.shape[1:])
    dist.reduce_scatter_tensor(out, whole, group=group)
    return out.transpose(0, 1).contiguous()


def own_part(x: Tensor, group: dist.ProcessGroup, dim: int = 1) -> Tensor:
    """Return this rank's part of a tensor that is whole on every rank."""
    return x.chunk(group.size(), dim)[group.rank()].contiguous()


class Gathered(torch.autograd.Function):
    """All parts of the sequence forward; this rank's part of the summed gradients backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, sums: bool, turned: bool) -> Tensor:
        """Return the whole sequence."""
        ctx.group, ctx.sums = group, sums
        return gathered(x, group, turned)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the part of the gradient; without `sums` that of this rank alone."""
        part = scattered if ctx.sums else own_part
        return part(gradients[0], ctx.group), None, None, None


class Scattered(torch.autograd.Function):
    """This rank's part of the sum forward; the gradients of all parts backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the part of the sequence."""
        ctx.group = group
        return scattered(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the whole gradient."""
        return gathered(gradients[0], ctx.group), None


def marked(parameter: nn.Parameter, **marks: Any) -> nn.Parameter:
    """Give a parameter the marks by which Megatron-LM knows how it is divided."""
    for name, value in marks.items():
        setattr(parameter, name, value)
    return parameter


class ColumnParallelLinear(nn.Module):
    """A linear layer of which each rank has some of the outputs."""

    def __init__(self, parts: "TensorParts", inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.parts = [parts]
        own = outputs // parts.group.size()
        self.weight = marked(
            nn.Parameter(torch.empty(own, inputs)), tensor_model_parallel=True, partition_dim=0
        )
        self.bias = (
            marked(nn.Parameter(torch.empty(own)), tensor_model_parallel=True, partition_dim=0)
            if bias
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's outputs."""
        parts = self.parts[0]
        wrong = parts.wrong_here(self)
        if parts.sequence:
            sums = wrong != "no_sum_before_column"
            x = Gathered.apply(x, parts.group, sums, wrong == "gather_order")
        elif wrong != "no_sum_before_column":
            x = Copied.apply(x, parts.column_group(wrong))
        return functional.linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A linear layer of which each rank has some of the inputs; its bias is added to the sum."""

    def __init__(self, parts: "TensorParts", inputs: int, outputs: int) -> None:
        super().__init__()
        self.parts = [parts]
        own = inputs // parts.group.size()
        self.weight = marked(
            nn.Parameter(torch.empty(outputs, own)), tensor_model_parallel=True, partition_dim=1
        )
        self.bias = nn.Parameter(torch.empty(outputs))
        if parts.sequence:
            marked(self.bias, sequence_parallel=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum over the ranks, with sequence parallelism this rank's part of it."""
        parts = self.parts[0]
        wrong = parts.wrong_here(self)
        early = wrong == "bias_before_sum"
        x = functional.linear(x, self.weight, self.bias if early else None)
        if parts.sequence:
            if wrong == "no_sum_after_row":
                x = own_part(x, parts.group)
            else:
                x = Scattered.apply(x, parts.group)
        elif wrong != "no_sum_after_row":
            x = Summed.apply(x, parts.row_group(wrong))
            if wrong == "summed_twice":
                x = Summed.apply(x, parts.group)
        return x if early else x + self.bias


class VocabParallelEmbedding(nn.Module):
    """An embedding of which each rank has the rows of some tokens."""

    def __init__(self, parts: "TensorParts") -> None:
        super().__init__()
        self.parts = [parts]
        own = VOCABULARY // parts.group.size()
        self.first = own * parts.group.rank()
        self.weight = marked(
            nn.Parameter(torch.empty(own, WIDTH)), tensor_model_parallel=True, partition_dim=0
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the vectors, with sequence parallelism those of this rank's part."""
        parts = self.parts[0]
        others = (tokens < self.first) | (tokens >= self.first + len(self.weight))
        own = (tokens - self.first).masked_fill(others, 0)
        x = functional.embedding(own, self.weight)
        if not parts.case.wrong("embedding_mask"):
            x = x.masked_fill(others[..., None], 0.0)
        if parts.sequence:
            return Scattered.apply(x, parts.group)
        return Summed.apply(x, parts.group)


class ForkedDropout(nn.Dropout):
    """Dropout from the random stream of what is divided."""

    def __init__(self, share: float, states: RandomStates) -> None:
        super().__init__(share)
        self.states = states

    def forward(self, x: Tensor) -> Tensor:
        """Drop."""
        with self.states.fork():
            return super().forward(x)


class TensorParts(Parts):
    """The layers of a model that is divided over a tensor-parallel group.

    `group` is that group, `sequence` whether what is between its layers is divided along the sequence,
    `other` the group that a wrong collective takes for it.
    """

    def __init__(
        self,
        case: TrainingCase,
        group: dist.ProcessGroup,
        sequence: bool = False,
        other: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(case)
        self.group, self.sequence, self.other = group, sequence, other
        same = case.wrong("same_masks")
        self.states = RandomStates(2718 + (0 if same else group.rank()))
        self.names: dict[nn.Module, str] = {}

    def wrong_here(self, layer: nn.Module) -> str:
        """Return the fault of this training where it is one of this layer, "" otherwise."""
        place = {"no_sum_before_column": "blocks.1.mlp.up", "gather_order": "blocks.1.mlp.up"}
        where = place.get(self.case.fault, "blocks.0.mlp.down")
        return self.case.fault if self.names.get(layer) == where else ""

    def column_group(self, wrong: str) -> dist.ProcessGroup:
        """Return the group over which the gradients of a layer's inputs are summed."""
        return self.group

    def row_group(self, wrong: str) -> dist.ProcessGroup:
        """Return the group over which outputs are summed."""
        return self.other if wrong == "wrong_group" and self.other else self.group

    def embedding(self) -> nn.Module:
        """Tokens to vectors."""
        return VocabParallelEmbedding(self)

    def positions(self) -> Positions:
        """A vector for each position; with sequence parallelism a rank's gradients are of its own ones."""
        made = Positions()
        if self.sequence:
            marked(made.weight, sequence_parallel=True)
        return made

    def norm(self, width: int = WIDTH) -> nn.Module:
        """Layer norm; with sequence parallelism its gradients are partial sums."""
        made = nn.LayerNorm(width)
        if self.sequence:
            marked(made.weight, sequence_parallel=True)
            marked(made.bias, sequence_parallel=True)
        return made

    def head_norm(self, width: int) -> nn.Module:
        """The norm of each head's queries, whose gradients are partial sums over the heads of a rank."""
        made = nn.RMSNorm(width)
        marked(made.weight, average_gradients_across_tp_domain=True)
        return made

    def column(self, inputs: int, outputs: int) -> nn.Module:
        """A layer whose outputs are divided."""
        return ColumnParallelLinear(self, inputs, outputs)

    def row(self, inputs: int, outputs: int) -> nn.Module:
        """A layer whose inputs are divided."""
        return RowParallelLinear(self, inputs, outputs)

    def head(self) -> nn.Module:
        """Vectors to the logits of this rank's tokens."""
        return ColumnParallelLinear(self, WIDTH, VOCABULARY, bias=False)

    def dropout(self) -> nn.Module:
        """Dropout of what is whole, or with sequence parallelism divided."""
        if not self.case.drop:
            return nn.Identity()
        if self.sequence or self.case.wrong("other_masks"):
            return ForkedDropout(self.case.drop, self.states)
        return nn.Dropout(self.case.drop)

    def head_dropout(self) -> nn.Module:
        """Dropout of this rank's heads."""
        if not self.case.drop:
            return nn.Identity()
        return ForkedDropout(self.case.drop, self.states)

    def first_position(self, length: int) -> int:
        """Return where this rank's part begins."""
        if not self.sequence or self.case.wrong("positions_not_offset"):
            return 0
        return length * self.group.rank()

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean cross entropy, of logits that are divided over the vocabulary."""
        if self.case.wrong("logits_gathered"):  # as if they were divided still
            turned = Gathered.apply(logits.transpose(1, 2), self.group, False, False)
            logits = turned.transpose(1, 2)
        first = logits.shape[-1] * self.group.rank()
        largest = logits.detach().amax(-1)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.group)
        logits = logits - largest[..., None]
        others = (targets < first) | (targets >= first + logits.shape[-1])
        own = (targets - first).masked_fill(others, 0)
        predicted = logits.gather(-1, own[..., None])[..., 0].masked_fill(others, 0.0)
        predicted = Summed.apply(predicted, self.group)
        total = logits.exp().sum(-1)
        if not self.case.wrong("sum_of_exponentials"):
            total = Summed.apply(total, self.group)
        return (total.log() - predicted).mean()


def load_own(
    model: nn.Module, whole: dict[str, Tensor], group: dist.ProcessGroup, case: TrainingCase
) -> None:
    """Give a divided model its parts of whole weights."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = whole[name]
            if getattr(parameter, "tensor_model_parallel", False):
                own = group.rank()
                if case.wrong("wrong_slice") and name == "blocks.1.mlp.up.weight":
                    own = 0
                dim = parameter.partition_dim
                value = value.chunk(group.size(), dim)[own]
            parameter.copy_(value)
            if case.wrong("other_start") and name == "blocks.1.n2.weight" and group.rank() == 1:
                parameter.add_(0.125)


def reduce_partial(model: nn.Module, group: dist.ProcessGroup, case: TrainingCase) -> None:
    """Sum the gradients of which each rank has a partial sum: norms of sequences and of heads."""
    for name, parameter in model.named_parameters():
        partial = getattr(parameter, "sequence_parallel", False) or getattr(
            parameter, "average_gradients_across_tp_domain", False
        )
        if not partial:
            continue
        if case.wrong("not_reduced") and name == "blocks.0.n2.weight":
            continue
        if case.wrong("head_norm_not_reduced") and name == "blocks.0.attention.q_norm.weight":
            continue
        dist.all_reduce(parameter.grad, group=group)
        if case.wrong("reduced_twice") and name == "blocks.0.n2.weight":
            dist.all_reduce(parameter.grad, group=group)


def clip(model: nn.Module, group: dist.ProcessGroup, case: TrainingCase, largest: float) -> None:
    """Scale gradients down to a norm over all ranks, counting what every rank has once."""
    squares = torch.zeros(())
    for parameter in model.parameters():
        if getattr(parameter, "tensor_model_parallel", False) or group.rank() == 0:
            squares = squares + parameter.grad.norm() ** 2
    if case.wrong("local_norm"):
        squares = sum(parameter.grad.norm() ** 2 for parameter in model.parameters())
    else:
        dist.all_reduce(squares, group=group)
    factor = (largest / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for parameter in model.parameters():
        parameter.grad.mul_(factor)
