"""The errors of sums and products as they are estimated, beside those that summing really makes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from ray_precheck.bench.rounded import rounded_arithmetic  # noqa: E402
from ray_precheck.bench.rounded_sums import (  # noqa: E402
    FLOAT32_UNIT,
    Noise,
    accumulation_error,
    equal_run,
)
from ray_precheck.capture import Capture  # noqa: E402
from scripts.honest.child import checked_dump  # noqa: E402

pytestmark = pytest.mark.frameworks


def wide(*shape: int, low: float = -1.0, high: float = 1.0, seed: int = 0) -> "torch.Tensor":
    drawn = np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)
    return torch.from_numpy(drawn.astype(np.float64))


def summed_one_by_one(terms: "torch.Tensor") -> "torch.Tensor":
    """Sum along the first dimension in float32, each term after the other."""
    total = np.zeros(terms.shape[1], np.float32)
    for row in terms.numpy().astype(np.float32):
        total += row
    return torch.from_numpy(total.astype(np.float64))


def rms(values: "torch.Tensor") -> float:
    return float((values**2).mean().sqrt())


@pytest.mark.parametrize("low", [-1.0, 0.0], ids=["both signs", "positive"])
@pytest.mark.parametrize("count", [64, 1024])
def test_the_estimate_is_that_of_a_sum_made_term_by_term(count: int, low: float) -> None:
    terms = wide(count, 2000, low=low)
    exact, squares = terms.sum(0), (terms**2).sum(0)
    estimate = rms(accumulation_error(exact, squares, count, FLOAT32_UNIT))
    assert 0.5 < rms(summed_one_by_one(terms) - exact) / estimate < 2.0


def test_several_accumulators_err_less() -> None:
    terms = wide(1024, 50)
    exact, squares = terms.sum(0), (terms**2).sum(0)
    one, four = (
        rms(accumulation_error(exact, squares, 1024, FLOAT32_UNIT, lanes)) for lanes in (1, 4)
    )
    assert one / four == pytest.approx(2.2, rel=0.2)


def test_noise_is_no_smaller_than_its_deviation_and_the_same_again() -> None:
    exact, deviation = wide(1000), torch.full((1000,), 0.5, dtype=torch.float64)
    first, again = (Noise().added_to(exact, deviation) for _ in "ab")
    assert torch.equal(first, again)
    assert float((first - exact).abs().min()) >= 0.5 * (1 - 1e-12)
    assert 0.5 < rms(first - exact) < 0.75
    turned = Noise().added_to(exact.to(torch.complex128), deviation)
    assert float(turned.imag.abs().max()) > 0


PRODUCTS = {
    "mm": lambda a, b: a @ b,
    "bmm": lambda a, b: torch.bmm(a.reshape(4, -1, a.shape[1]), b.expand(4, *b.shape)),
    "linear": lambda a, b: torch.nn.functional.linear(a, b.T.contiguous()),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "conv1d": lambda a, b: torch.nn.functional.conv1d(
        a.reshape(1, 64, -1), b[:192, :].T.reshape(-1, 64, 3)
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_composed_product_errs_as_torchs_own_kernel_does(name: str) -> None:
    """Within a factor of 5 either way, without running that kernel."""
    product = PRODUCTS[name]
    a, b = wide(64, 512), wide(512, 64, seed=1)
    exact = product(a, b)
    with rounded_arithmetic("float32"):
        composed = product(a, b)
    own = product(a.float(), b.float()).double()
    assert 0.2 < rms(own - exact) / rms(composed - exact) < 5.0


def test_gradients_of_weights_are_summed_in_the_half_type_where_honest_kernels_do() -> None:
    x, weight, grad = wide(1024, 64), wide(64, seed=1), wide(1024, 64, seed=2)

    def gradient(dtype: "torch.dtype") -> "torch.Tensor":
        own = weight.to(dtype).requires_grad_()
        out = torch.nn.functional.layer_norm(x.to(dtype), [64], own)
        return torch.autograd.grad(out, own, grad.to(dtype))[0].double()

    x, weight, grad = (t.bfloat16().double() for t in (x, weight, grad))
    exact = gradient(torch.float64)
    with rounded_arithmetic("bfloat16"):
        composed = gradient(torch.float64)
    once = rms(exact.bfloat16().double() - exact)
    own = rms(gradient(torch.bfloat16) - exact)
    assert own > 2 * once
    assert 0.3 < own / rms(composed - exact) < 3.0


def test_a_sum_that_is_exact_by_luck_still_has_the_error_of_its_partial_sums() -> None:
    terms = torch.tensor([1.0, 2.0**-24, 1.0, -(2.0**-24)], dtype=torch.float64)
    with rounded_arithmetic("float32"):
        assert float(terms.sum()) != 2.0
    with rounded_arithmetic("float64"):
        assert float(terms.sum()) == 2.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_of_a_norms_weight_errs_as_its_partial_sums_do(dtype: str) -> None:
    """Behind a mean over positions all rows of a sample have one gradient, and two samples cancel."""
    rows = 512
    x, bias = wide(rows, 24), torch.zeros(24, dtype=torch.float64)
    signs = torch.cat([torch.full((rows // 2, 1), sign) for sign in (1.0, -0.9)]).double()
    narrow = getattr(torch, dtype)
    grad = (signs * wide(1, 24, low=0.5, seed=2)).to(narrow).double()

    def gradient(of: "torch.dtype") -> "torch.Tensor":
        own = bias.to(of).requires_grad_()
        out = torch.nn.functional.layer_norm(x.to(narrow).to(of), [24], None, own)
        return torch.autograd.grad(out, own, grad.to(of))[0].double()

    exact = gradient(torch.float64)
    with rounded_arithmetic(dtype):
        composed = gradient(torch.float64)
    own = rms(gradient(narrow) - exact)
    assert own > 0
    assert 0.1 < own / rms(composed - exact) < 3.0


def test_rows_of_an_embedding_are_added_one_after_the_other_in_half_types() -> None:
    grad = wide(1024, 64).bfloat16()
    indices = torch.zeros(1024, dtype=torch.long)

    def gradient(of: "torch.dtype") -> "torch.Tensor":
        weight = torch.zeros(4, 64, dtype=of, requires_grad=True)
        out = torch.nn.functional.embedding(indices, weight)
        return torch.autograd.grad(out, weight, grad.to(of))[0][0].double()

    exact = gradient(torch.float64)
    with rounded_arithmetic("bfloat16"):
        composed = gradient(torch.float64)
    assert 0.3 < rms(gradient(torch.bfloat16) - exact) / rms(composed - exact) < 1.0


def test_a_cube_is_rounded_after_each_of_its_two_products() -> None:
    x = wide(2000).bfloat16().double()
    with rounded_arithmetic("bfloat16"):
        composed = x**3
    twice = ((x.bfloat16() * x.bfloat16()) * x.bfloat16()).double()
    assert torch.equal(composed, twice)
    assert torch.equal(composed, (x.bfloat16() ** 3).double())


def test_a_norms_weight_errs_as_equal_rows_do_which_are_rounded_alike() -> None:
    """Of 512 equal gradients each is rounded to the same side, unlike errors of random directions."""
    x = wide(512, 24).bfloat16()
    grad = wide(1, 24, low=0.5, seed=2).bfloat16().expand(512, 24)

    def gradient(of: "torch.dtype") -> "torch.Tensor":
        bias = torch.zeros(24, dtype=of, requires_grad=True)
        out = torch.nn.functional.layer_norm(x.to(of), [24], None, bias)
        return torch.autograd.grad(out, bias, grad.to(of))[0].double()

    exact = gradient(torch.float64)
    with rounded_arithmetic("bfloat16"):
        composed = gradient(torch.float64)
    own = rms(gradient(torch.bfloat16) - exact)
    # On two threads torch has two accumulators, and a quarter of the error.
    assert 0.15 < own / rms(composed - exact) < 1.2


def test_the_gradient_of_an_index_is_added_in_half_types() -> None:
    indices, grad = torch.arange(512) % 4, wide(512, 32).bfloat16()

    def gradient(of: "torch.dtype") -> "torch.Tensor":
        table = torch.zeros(4, 32, dtype=of, requires_grad=True)
        return torch.autograd.grad(table[indices], table, grad.to(of))[0].double()

    exact = gradient(torch.float64)
    with rounded_arithmetic("bfloat16"):
        composed = gradient(torch.float64)
    own = rms(gradient(torch.bfloat16) - exact)
    assert own > 2 * rms(exact.bfloat16().double() - exact)
    assert 0.2 < own / rms(composed - exact) < 1.2


def _of_a_mean(kind: str) -> None:
    """Add up equal terms, as the gradient of a mean is: all are rounded in the same direction."""
    torch.manual_seed(0)
    if kind.startswith("Conv"):
        dims = int(kind.removesuffix(" relu")[-2])
        layer = getattr(torch.nn, kind.removesuffix(" relu"))(4, 8, 3)
        pictures = torch.randn(2, 4, *(int(8100 ** (1 / dims)),) * dims)
        found = layer(pictures)
        found = found.relu() if kind.endswith("relu") else found
        found.flatten(2).mean(-1).cos().sum().backward()
    elif kind == "getitem":
        x = torch.randn(4, 5, requires_grad=True)
        x[torch.randint(0, 4, (4000,))].mean().backward()
    elif kind == "embedding":
        weight = torch.randn(5, 4, dtype=torch.bfloat16, requires_grad=True)
        torch.nn.functional.embedding(torch.randint(0, 5, (3000,)), weight).mean().backward()
    elif kind == "upsample":
        x = torch.randn(2, 3, 8, 8, requires_grad=True)
        torch.nn.functional.interpolate(x, scale_factor=16, mode="nearest").mean().backward()
    elif kind == "matmul":
        torch.full((30, 2000), 0.1) @ torch.ones(2000, 4)
    else:
        index, terms = torch.randint(0, 3, (3000, 4)), torch.full((3000, 4), 0.1)
        torch.zeros(3, 4).index_add(0, index[:, 0], terms)
        torch.zeros(3, 4).scatter_add(0, index, terms)


@pytest.mark.parametrize(
    "kind",
    [
        "Conv1d",
        "Conv2d",
        "Conv2d relu",
        "ConvTranspose2d",
        "getitem",
        "embedding",
        "upsample",
        "matmul",
        "add",
    ],
)
def test_an_honest_sum_of_equal_terms_is_not_accused(kind: str, tmp_path: Path) -> None:
    with Capture(tmp_path, task="tensor", step_by="manual", framework="pytorch", stacks=False):
        _of_a_mean(kind)
    (dump,) = tmp_path.glob("step0/*/dump.json")
    found = checked_dump(dump, "auto")
    assert found["accused"] == []
    assert found["calls"] > 0


HALVES = ("bfloat16", "float16")


def _drawn(*shape: int, dtype: str) -> "torch.Tensor":
    return torch.randn(*shape).to(getattr(torch, dtype)).requires_grad_()


def _added_in_memory(kind: str, dtype: str) -> "torch.Tensor":
    """Return what kernels of half types add up in the memory of the result, or of a gradient."""
    functional = torch.nn.functional
    if kind == "bilinear":
        factors = _drawn(64, 40, dtype=dtype), _drawn(64, 24, dtype=dtype)
        return functional.bilinear(*factors, _drawn(12, 40, 24, dtype=dtype))
    if kind == "addbmm_":
        factors = _drawn(64, 8, 8, dtype=dtype), _drawn(64, 8, 8, dtype=dtype)
        return torch.randn(8, 8).to(factors[0].dtype).addbmm_(*factors)
    if kind == "unfold":
        return functional.unfold(_drawn(2, 3, 24, 24, dtype=dtype), 7)
    if kind == "fold":
        return functional.fold(_drawn(2, 147, 324, dtype=dtype), (24, 24), 7)
    if kind == "Tensor.unfold":
        return _drawn(2, 64, dtype=dtype).unfold(1, 16, 1)
    if kind.startswith("embedding_bag"):
        indices, weight = torch.randint(0, 10, (64, 16)), _drawn(10, 32, dtype=dtype)
        return functional.embedding_bag(indices, weight, mode=kind.split()[-1])
    if kind.startswith("grid_sample"):
        dims = int(kind[-2])
        grid = torch.rand(2, *(64 if dims == 2 else 8,) * dims, dims) * 2 - 1
        grid = grid.to(getattr(torch, dtype)).requires_grad_()
        pictures = _drawn(2, 3, *(3,) * dims, dtype=dtype)
        return functional.grid_sample(pictures, grid, align_corners=False)
    pictures = _drawn(2, 3, 32, 32, dtype=dtype)
    if kind == "avg_pool2d":
        return functional.avg_pool2d(pictures, 3, 1, 1)
    if kind == "avg_pool2d of many":
        return functional.avg_pool2d(pictures, 9, 2, 4, ceil_mode=True, count_include_pad=False)
    if kind == "max_pool2d":
        return functional.max_pool2d(pictures, 5, 1, 2)
    if kind == "pad":
        return functional.pad(_drawn(2, 3, 8, 8, dtype=dtype), (9, 9, 9, 9), mode="replicate")
    return functional.adaptive_avg_pool2d(_drawn(2, 3, 7, 7, dtype=dtype), (20, 20))


KINDS = "bilinear addbmm_ unfold fold Tensor.unfold avg_pool2d max_pool2d pad adaptive_avg_pool2d".split()
KINDS += ["avg_pool2d of many", "grid_sample 2D", "grid_sample 3D"]
KINDS += [f"embedding_bag {mode}" for mode in ("sum", "mean", "max")]


def _accused(step: Callable[[], Any], folder: Path, task: str = "tensor") -> list[str]:
    """Capture an honest step; return the calls that the precheck accuses."""
    torch.manual_seed(0)
    with Capture(folder, task=task, step_by="manual", framework="pytorch", stacks=False):
        step()
    (dump,) = folder.glob("step0/*/dump.json")
    found = checked_dump(dump, "auto")
    assert found["calls"] > 0
    return found["accused"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_added_up_in_a_half_type_is_not_accused(kind: str, tmp_path: Path) -> None:
    """The gradients that come in are equal (of a mean), or random."""

    def step() -> None:
        for dtype in HALVES:
            _added_in_memory(kind, dtype).mean().backward()
            out = _added_in_memory(kind, dtype)
            (out * torch.randn(out.shape).to(out.dtype)).sum().backward()

    if kind == "addbmm_":

        def step() -> None:
            for dtype in HALVES:
                _added_in_memory(kind, dtype)

    for task in ("tensor", "statistics"):
        assert _accused(step, tmp_path / task, task) == []


def _two_batches() -> None:
    """Two batches of positive pictures through one norm: the gradients of each cancel."""
    functional = torch.nn.functional
    layers = torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU()
    network = torch.nn.Sequential(*layers)
    one, other = (network(torch.rand(6, 1, 28, 28)).mean((2, 3)) for _ in "ab")
    functional.pairwise_distance(one, other).mean().backward()


def _channels_last() -> None:
    layers = [
        layer
        for channels in (3, 8)
        for layer in (
            torch.nn.Conv2d(channels, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
        )
    ]
    network = torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)
    pictures = torch.randn(4, 3, 12, 12).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    for _ in "ab":
        network(pictures).square().mean().backward()
        optimizer.step()


def _norms_of_matrices() -> None:
    for rows in (33, 64, 128):
        for order in ("nuc", 2, -2):
            for drawn in (torch.randn, torch.rand):
                matrices = drawn(3, rows, rows + 7, requires_grad=True)
                torch.linalg.matrix_norm(matrices, order).sum().backward()


def _norms_of_many_elements() -> None:
    for size in (torch.full((16384,), 0.3), torch.randn(16384).mul(2).exp()):
        gradients = [size * torch.randn(16384).sign() for _ in "ab"]
        torch._foreach_norm(gradients)
        for order in (1, 2):
            torch.linalg.vector_norm(torch.stack(gradients), order, dim=1)


def _gradients_that_change_slowly() -> None:
    """Positions of a bias's gradient cancel, but the sums of those before the last do not."""
    for _ in range(4):
        out = torch.nn.Conv2d(2, 4, 3, padding=1)(torch.randn(3, 2, 64, 64))
        slope = torch.linspace(-1.0, 1.0, 64)[:, None] * torch.rand(out.shape)
        out.backward(slope - slope.mean((0, 2, 3), keepdim=True))


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize(
    "step",
    [
        _two_batches,
        _channels_last,
        _norms_of_matrices,
        _norms_of_many_elements,
        _gradients_that_change_slowly,
    ],
    ids=lambda step: step.__name__.strip("_"),
)
def test_sums_in_float32_of_terms_that_are_alike_are_not_accused(
    step: Callable[[], None], task: str, tmp_path: Path
) -> None:
    assert _accused(step, tmp_path, task) == []


@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.01, "amsgrad": True}], ids=["plain", "decay and amsgrad"]
)
def test_an_optimizer_of_bfloat16_is_rounded_as_its_kernels_round(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """0.999 v is v or next to it: all second moments are off in one direction."""
    network = torch.nn.Linear(128, 256).bfloat16()
    optimizer = torch.optim.Adam(network.parameters(), **options)

    def step() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            network(torch.randn(64, 128).bfloat16()).square().mean().backward()
            optimizer.step()

    assert _accused(step, tmp_path) == []


def test_a_norm_of_channels_that_stand_last_errs_as_its_plain_sums_do() -> None:
    x = wide(6, 16, 28, 28, low=0.0)

    def normed(x: "torch.Tensor") -> "torch.Tensor":
        return torch.nn.functional.batch_norm(x, None, None, training=True)

    exact = normed(x)
    with rounded_arithmetic("float32"):
        composed = normed(x)
    own = normed(x.float().to(memory_format=torch.channels_last)).double()
    assert 0.3 < rms(own - exact) / rms(composed - exact) < 3.0


@pytest.mark.parametrize("dtype", [*HALVES, "float32"])
@pytest.mark.parametrize("name", ["add", "sub", "add_"])
def test_the_multiple_in_a_sum_is_rounded_before_it_is_added(name: str, dtype: str) -> None:
    """As `param.add_(grad, alpha=-lr)` of SGD is: of few elements each error is at least one rounding."""
    narrow = getattr(torch, dtype)
    grad = wide(500, seed=1).to(narrow).double()
    given = (grad * (-0.3 if name == "sub" else 0.3)).to(narrow).double()
    exact = given + grad * (0.3 if name == "sub" else -0.3)
    with rounded_arithmetic(dtype):
        composed = getattr(given.clone(), name)(grad, alpha=-0.3)
    error = (composed - exact).abs()
    assert bool((error >= 0.3 * grad.abs() * torch.finfo(narrow).eps / 2).all())
    assert bool((error <= 0.3 * grad.abs() * torch.finfo(narrow).eps).all())


def test_the_run_of_equal_terms_is_measured() -> None:
    rows = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    assert equal_run(rows, 1) == 4 / (1 + 1.5)
    assert equal_run(torch.ones(7, 3), 0) == 7
    assert equal_run(torch.randn(50, 3), 0) == 1
    assert equal_run(torch.ones(1), 0) == equal_run(torch.tensor(1.0), 0) == 1


class _PlacesInFloat32(TorchDispatchMode):
    """Resamples as a GPU does: places in float32 (or somewhat off, which is a fault)."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self._shift = shift

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> "torch.Tensor":
        if func is not torch.ops.aten.upsample_bilinear2d.default or args[0].dtype != torch.float32:
            return func(*args, **(kwargs or {}))
        found = args[0].double()
        for dim, (size, to) in enumerate(zip(args[0].shape[2:], args[1], strict=True), 2):
            ratio = torch.tensor(size, dtype=torch.float32) / to
            place = ((torch.arange(to) + 0.5) * ratio - 0.5 + self._shift).clamp(0, size - 1)
            low = place.floor().long()
            part = (place - low).double().reshape(-1, *(1,) * (3 - dim))
            near, far = (found.index_select(dim, i) for i in (low, (low + 1).clamp(max=size - 1)))
            found = near * (1 - part) + far * part
        return found.float()


@pytest.mark.parametrize(("shift", "count"), [(0.0, 0), (1e-3, 1)])
def test_places_of_a_resampling_may_be_computed_in_float32(
    shift: float, count: int, tmp_path: Path
) -> None:
    """Found on an H200: torchvision's detection resizes its pictures to 320 pixels."""
    torch.manual_seed(0)
    picture = torch.rand(1, 3, 96, 96)
    with (
        _PlacesInFloat32(shift),
        Capture(tmp_path, task="tensor", step_by="manual", framework="pytorch", stacks=False),
    ):
        torch.nn.functional.interpolate(picture, size=(307, 320), mode="bilinear")
    (dump,) = tmp_path.glob("step0/*/dump.json")
    assert len(checked_dump(dump, "auto")["accused"]) == count
