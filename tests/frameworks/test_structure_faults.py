"""Kernels that are wrong only for repeated indices, masked, equal or zero rows, rows with an offset, or ties,
are found in statistics mode, with a record that tells of them and with one that does not."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from records import Element, call, replace_kernel, statistics_checker, tensor, whole
from torch.nn import functional

from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = pytest.mark.frameworks

Kernel = Callable[..., Any]


def told(made: Element, **structure: Any) -> Element:
    """Return an element whose record tells of the structure."""
    return Element(made, structure=structure)


def normal(*shape: int, grad: bool = False, size: float = 1.0) -> Element:
    """A tensor of normal numbers, none beyond three deviations."""
    made = tensor(*shape, low=-3 * size, high=3 * size, grad=grad)
    return Element(made, Mean=0.0, Norm=size * math.sqrt(math.prod(shape)))


def masked(*shape: int) -> Element:
    """Scores of which half is hidden."""
    low = -3.0e4
    return Element(
        tensor(*shape, low=low, high=3.0), Mean=low / 2, Norm=-low * math.sqrt(math.prod(shape) / 2)
    )


class _Lost(torch.autograd.Function):
    """A gradient of a gather in which of several additions to one place the last one counts."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.index, ctx.shape, ctx.dim = index, weight.shape, dim
        return weight.index_select(dim, index.reshape(-1))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        lost = gradient.new_zeros(ctx.shape).index_copy(ctx.dim, ctx.index.reshape(-1), gradient)
        return lost, None, None


def embedding(index: torch.Tensor, weight: torch.Tensor) -> Any:
    return _Lost.apply(weight, index, 0)


def selected(x: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
    return _Lost.apply(x, index, dim)


def subscript(x: torch.Tensor, index: torch.Tensor) -> Any:
    return _Lost.apply(x, index, 0)


def index_add(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    return x.index_copy(dim, index, x.index_select(dim, index) + source)


def scatter_add(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    return x.scatter(dim, index, x.gather(dim, index) + source)


def index_put(x: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool) -> Any:
    return x.index_put(tuple(indices), x[tuple(indices)] + values)


def counted_once(index: torch.Tensor) -> Any:
    return torch.bincount(index).clamp(max=1)


def softmax_of_differences(x: torch.Tensor, dim: int) -> Any:
    """What divides by the range of the scores."""
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    return torch.where(low == high, torch.zeros_like(x), functional.softmax(x, dim))


def softmax_of_seen(x: torch.Tensor, dim: int) -> Any:
    """What gives 0 for a row in which everything is hidden."""
    return torch.where(
        (x > -1e4).any(dim, keepdim=True), functional.softmax(x, dim), torch.zeros_like(x)
    )


def one_pass(x: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    mean = x.mean(dims, keepdim=True)
    return mean, ((x * x).mean(dims, keepdim=True) - mean * mean).clamp(min=0)


def normed_by_one_pass(x: torch.Tensor, dims: tuple[int, ...], eps: float = 1e-5) -> torch.Tensor:
    mean, variance = one_pass(x, dims)
    return (x - mean) * torch.rsqrt(variance + eps)


def layer_norm(x: torch.Tensor, *_: Any) -> Any:
    return normed_by_one_pass(x, (-1,))


def batch_norm(x: torch.Tensor, *_: Any) -> Any:
    return normed_by_one_pass(x, (0, *range(2, x.dim())))


def group_norm(x: torch.Tensor, groups: int) -> Any:
    return normed_by_one_pass(x.reshape(x.shape[0], groups, -1), (2,)).reshape(x.shape)


def instance_norm(x: torch.Tensor) -> Any:
    return normed_by_one_pass(x, tuple(range(2, x.dim())))


def variance(x: torch.Tensor, dim: int) -> Any:
    return one_pass(x, (dim,))[1].squeeze(dim) * (x.shape[dim] / (x.shape[dim] - 1))


def layer_norm_without_epsilon(x: torch.Tensor, shape: Any) -> Any:
    return functional.layer_norm(x, shape, eps=0.0)


def unit_vectors(x: torch.Tensor, **_: Any) -> Any:
    return x / x.norm(dim=-1, keepdim=True)


def rms_norm_without_epsilon(x: torch.Tensor, shape: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True))


def cosine_without_epsilon(x: torch.Tensor, y: torch.Tensor, **_: Any) -> Any:
    return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))


def first_of_its_kind(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return for each chosen element the first one that is equal."""
    chosen = x.gather(-1, index)
    return (x.unsqueeze(-2) == chosen.unsqueeze(-1)).to(torch.int8).argmax(-1)


def topk_by_value(x: torch.Tensor, k: int) -> Any:
    values, index = torch.topk(x, k)
    return values, first_of_its_kind(x, index)


def sort_by_value(x: torch.Tensor, dim: int) -> Any:
    values, index = torch.sort(x, dim)
    return values, first_of_its_kind(x, index)


def argsort_by_value(x: torch.Tensor, dim: int) -> Any:
    return first_of_its_kind(x, torch.argsort(x, dim))


def unstable_sort(x: torch.Tensor, dim: int, stable: bool) -> Any:
    values, index = torch.sort(x.flip(dim), dim=dim, stable=True)
    return values, x.shape[dim] - 1 - index


def unique_neighbours(x: torch.Tensor) -> Any:
    return x.reshape(-1).sort().values


class Fault(NamedTuple):
    """A wrong kernel, a call whose record tells of the structure, and one whose record does not, if the
    inputs of that have it by default."""

    kernel: Kernel
    told: TaskPayload
    untold: TaskPayload | None


X, TABLE = normal(16, 32), normal(500, 4, grad=True)
SOURCE, GRADIENT = normal(8, 4), tensor(8, 4)
INDEX = whole(8, high=499)
TWICE = told(INDEX, distinct=5)
LINES = {"rows": 16}
LARGE = told(normal(16, 32, size=100.0), rows=16, row_means=[200.0, 290.0], row_deviation=1.0)
OFFSET = told(normal(16, 32), rows=16, row_means=[2.0, 2.9], row_deviation=0.01)
ZERO = told(X, zero_rows=3, **LINES)
IMAGE = normal(8, 16, 5, 5)
OF_CHANNELS = told(IMAGE, rows=16, row_means=[2.0, 2.9], row_deviation=0.01)
OF_SAMPLES = told(IMAGE, rows=128, row_means=[2.0, 2.9], row_deviation=0.01)
NORMED, LENGTHS = normal(16, 32, grad=True), tensor(16, 1)
TIED = told(X, distinct=100)


def _both(
    kernel: Kernel, make: Callable[[Element], TaskPayload], has: Element, plain: Element
) -> Fault:
    return Fault(kernel, make(has), make(plain))


FAULTS = {
    "embedding": _both(
        embedding, lambda i: call("Functional.embedding", i, TABLE, grads=[GRADIENT]), TWICE, INDEX
    ),
    "index_select": _both(
        selected, lambda i: call("Torch.index_select", TABLE, 0, i, grads=[GRADIENT]), TWICE, INDEX
    ),
    "__getitem__": _both(
        subscript, lambda i: call("Tensor.__getitem__", TABLE, i, grads=[GRADIENT]), TWICE, INDEX
    ),
    "index_add": _both(
        index_add, lambda i: call("Torch.index_add", TABLE, 0, i, SOURCE), TWICE, INDEX
    ),
    "index_put": _both(
        index_put, lambda i: call("Torch.index_put", TABLE, [i], SOURCE, True), TWICE, INDEX
    ),
    "scatter_add": Fault(
        scatter_add,
        call("Torch.scatter_add", TABLE, 0, told(whole(8, 4, high=499), distinct=9), SOURCE),
        call("Torch.scatter_add", normal(64, 1), 0, whole(9, 1, high=63), normal(9, 1)),
    ),
    "bincount": _both(counted_once, lambda i: call("Torch.bincount", i), TWICE, INDEX),
    "softmax of equal scores": _both(
        softmax_of_differences,
        lambda x: call("Functional.softmax", x, -1),
        told(X, equal_rows=2, **LINES),
        X,
    ),
    "softmax of hidden scores": _both(
        softmax_of_seen,
        lambda x: call("Functional.softmax", x, -1),
        told(masked(16, 32), masked_rows=2, **LINES),
        masked(16, 32),
    ),
    "layer_norm": _both(layer_norm, lambda x: call("Functional.layer_norm", x, [32]), OFFSET, X),
    # Where the dump does not tell no channel has an offset: torch's own kernels for channels_last are so.
    "batch_norm": Fault(
        batch_norm,
        call("Functional.batch_norm", OF_CHANNELS, None, None, None, None, True),
        None,
    ),
    "group_norm": Fault(group_norm, call("Functional.group_norm", OF_SAMPLES, 4), None),
    "instance_norm": Fault(instance_norm, call("Functional.instance_norm", OF_SAMPLES), None),
    # The variance of one row is lost in the rounding of the others', if these are not alike.
    "var": Fault(variance, call("Torch.var", LARGE, -1), None),
    "std": Fault(lambda x, dim: variance(x, dim).sqrt(), call("Torch.std", LARGE, -1), None),
    "layer_norm of zeros": _both(
        layer_norm_without_epsilon, lambda x: call("Functional.layer_norm", x, [32]), ZERO, X
    ),
    "normalize": _both(unit_vectors, lambda x: call("Functional.normalize", x, dim=-1), ZERO, X),
    "rms_norm": _both(
        rms_norm_without_epsilon, lambda x: call("Functional.rms_norm", x, [32]), ZERO, X
    ),
    "cosine_similarity": _both(
        cosine_without_epsilon,
        lambda x: call("Functional.cosine_similarity", x, X, dim=-1),
        ZERO,
        X,
    ),
    "vector_norm": _both(
        lambda x, **_: (x * x).sum(-1, keepdim=True).log().mul(0.5).exp(),
        lambda x: call("Torch.linalg.vector_norm", x, dim=-1, keepdim=True, grads=[LENGTHS]),
        told(NORMED, zero_rows=3, **LINES),
        NORMED,
    ),
    "topk": _both(topk_by_value, lambda x: call("Torch.topk", x, 20), TIED, X),
    "sort": _both(sort_by_value, lambda x: call("Torch.sort", x, -1), TIED, X),
    "argsort": _both(argsort_by_value, lambda x: call("Torch.argsort", x, -1), TIED, X),
    "stable sort": _both(
        unstable_sort, lambda x: call("Torch.sort", x, dim=-1, stable=True), TIED, X
    ),
    "unique": _both(unique_neighbours, lambda x: call("Torch.unique", x), TIED, X),
}


@pytest.mark.parametrize("standard", ["msprobe", "auto"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_kernel_that_is_wrong_only_there_is_found(
    name: str, standard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    checker = statistics_checker("pytorch", standard=STANDARDS[standard](), knows_layouts=True)
    payloads = [fault.told, *([fault.untold] if fault.untold else [])]
    for payload in payloads:
        honest = checker.check(payload)
        assert (honest.message, Verdict.ERROR in (honest.forward, honest.backward)) == ("", False)
        assert honest.forward is Verdict.PASS
    replace_kernel(monkeypatch, checker.device(), lambda _: fault.kernel)
    for payload in payloads:
        found = checker.check(payload)
        assert Verdict.ERROR in (found.forward, found.backward), payload
