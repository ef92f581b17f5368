"""Programs with sparse, nested and quantized tensors, captured and prechecked in this process."""

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from records import capture_settings, failing, payloads_of
from torch.utils._python_dispatch import TorchDispatchMode

from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.capture import Capture
from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import TaskResult, Verdict

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
TASKS = pytest.mark.parametrize("task", ["tensor", "statistics"])
Program = Callable[[], object]


@pytest.fixture
def checked(tmp_path: Path) -> Callable[..., list[TaskResult]]:
    """Capture a program, and precheck its dump on this machine's CPU by the standard `auto`."""

    def run(program: Program, task: str, kernel: Any = None) -> list[TaskResult]:
        with Capture(tmp_path, step_by="manual", framework="pytorch", task=task):
            program()
        folder = str(tmp_path / "step0" / f"proc{os.getpid()}")
        settings = capture_settings(folder, tests_dump=task == "tensor" and kernel is None)
        terms = {"standard": STANDARDS["auto"]()}
        checker = Checker(replace(settings, **terms), "cpu")
        if kernel is not None:
            plant(checker, kernel)
        return [checker.check(payload) for payload in payloads_of(folder)]

    return run


def plant(checker: Checker, kernel: Any) -> None:
    """Let the device, and not the bench, run below a mode that may change what kernels give."""
    device: Any = checker.device()
    forward = device.forward

    class Below(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return kernel(str(func).removeprefix("aten."), func(*args, **(kwargs or {})), args)

    def wrong_forward(*given: Any) -> Any:
        with Below():
            execution = forward(*given)
        gradients = execution.gradients

        def wrong_gradients(cotangents: Any) -> Any:
            with Below():
                return gradients(cotangents)

        execution.gradients = wrong_gradients
        return execution

    device.forward = wrong_forward


def graph_network(adjacency: torch.Tensor) -> Program:
    """A training step of a graph network, with the products that PyTorch's example has."""
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(*shape)) for shape in ((12, 8), (8, 3))]
    features = torch.randn(adjacency.shape[0], 12)

    def step() -> None:
        hidden = torch.relu(torch.spmm(adjacency, features @ weights[0]))
        out = torch.sparse.mm(adjacency, hidden @ weights[1])
        out = out + adjacency @ out
        torch.log_softmax(out, 1).mean().backward()

    return step


def _adjacency() -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.rand(40, 40) * (torch.rand(40, 40) < 0.1)).to_sparse()


def sparse_functions() -> None:
    """What `torch.sparse` and the methods of sparse tensors compute, forward and backward."""
    torch.manual_seed(2)
    a = (torch.randn(6, 8) * (torch.rand(6, 8) < 0.4)).to_sparse().requires_grad_()
    b, c = (torch.randn(*shape, requires_grad=True) for shape in ((8, 5), (6, 5)))
    (torch.sparse.mm(a, b) + torch.sparse.addmm(c, a, b, beta=0.5)).sin().sum().backward()
    total = torch.sparse.sum(a, dim=0).to_dense() + torch.sparse.softmax(a, 1).to_dense().sum(0)
    (total + torch.sparse.log_softmax(a, 1).to_dense().sum(0)).square().sum().backward()
    twice = torch.sparse_coo_tensor([[0, 0, 5], [1, 1, 7]], torch.randn(3), (6, 8))
    (a + twice).coalesce().values().sin().sum().backward()
    rows = a.detach().to_sparse_csr()
    torch.sparse.sampled_addmm(rows, c.detach(), b.detach().t(), beta=2.0, alpha=0.5)
    torch.randn(6, 8).sparse_mask(a.detach())
    (rows * 2.0).to_dense(), rows.crow_indices(), rows.values(), a.detach().t().to_dense()
    a.detach().mul(3.0), torch.sparse.mm(a.detach(), b.detach().to_sparse())
    for blocks in (rows.to_sparse_bsr((2, 2)), rows.to_sparse_csc(), rows.to_sparse_bsc((3, 4))):
        blocks.to_dense()
    torch.sparse.spdiags(torch.randn(2, 6), torch.tensor([0, 1]), (6, 8))


def skipped(results: list[TaskResult]) -> dict[str, str]:
    return {r.name: r.message for r in results if Verdict.SKIP in (r.forward, r.backward)}


def failed(results: list[TaskResult]) -> list[tuple[str, str]]:
    found = [(check.name, check.message) for check in failing(results)]
    errors = [r for r in results if Verdict.ERROR in (r.forward, r.backward)]
    return found or [(r.name, r.message) for r in errors]


PROGRAMS = {
    "coo": lambda: graph_network(_adjacency()),
    "csr": lambda: graph_network(_adjacency().to_sparse_csr()),
    "functions": lambda: sparse_functions,
}


def constructors() -> None:
    """Sparse tensors that are made of their parts."""
    torch.manual_seed(3)
    begins, places = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 3, 1, 2, 4])
    torch.sparse_csr_tensor(begins, places, torch.randn(5), (3, 5))
    torch.sparse_csc_tensor(begins, places, torch.randn(5), size=(5, 3))
    torch.sparse_bsr_tensor(begins, places, torch.randn(5, 2, 3), (6, 15))
    torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.randn(3, 4), (2, 3, 4))


PROGRAMS["constructors"] = lambda: constructors


def _is_sparse(*tensors: Any) -> bool:
    found = [each for each in tensors if isinstance(each, torch.Tensor)]
    return any(each.layout is not torch.strided for each in found)


def products_of_sparse(name: str, result: Any, args: Any) -> Any:
    """Products that are wrong in one row, where one side is sparse and in float32."""
    if name.split(".")[0] in ("mm", "addmm", "_sparse_addmm") and _is_sparse(*args):
        result[result.abs().sum(1).argmax()] *= 1.01
    return result


def sums_over_a_dimension(name: str, result: Any, args: Any) -> Any:
    """The sum of all stored values but the last one, as a wrong count gives it."""
    if name.startswith(("_sparse_sum", "_sparse_softmax", "_sparse_log_softmax")):
        result._values()[-1] *= 1.01
    return result


FAULTS = {
    "coo": (products_of_sparse, 3),
    "csr": (products_of_sparse, 3),
    "functions": (sums_over_a_dimension, 3),
}


def quantized_layers() -> Program:
    """Layers of whole numbers as `torch.ao.quantization` makes them, and what is around them."""
    torch.manual_seed(4)
    q = torch.ops.quantized
    x = torch.quantize_per_tensor(torch.randn(3, 20), 0.031, 66, torch.quint8)
    scales, zeros = torch.rand(7) * 0.01 + 0.005, torch.zeros(7, dtype=torch.int64)
    weight = torch.quantize_per_channel(torch.randn(7, 20) * 0.3, scales, zeros, 0, torch.qint8)
    packed = q.linear_prepack(weight, torch.randn(7))
    image = torch.quantize_per_tensor(torch.randn(2, 3, 8, 8), 0.03, 64, torch.quint8)
    kernel = torch.quantize_per_tensor(torch.randn(4, 3, 3, 3) * 0.2, 0.011, 0, torch.qint8)
    filters = q.conv2d_prepack(kernel, torch.randn(4), [1, 1], [1, 1], [1, 1], 1)

    def step() -> None:
        torch.quantize_per_tensor(torch.randn(40, 40), 0.013, 40, torch.quint8)
        torch.quantize_per_channel(torch.randn(7, 20) * 0.3, scales, zeros, 0, torch.qint8)
        y = q.linear_relu(x, packed, 0.05, 3)
        torch.relu(q.add(q.linear(x, packed, 0.06, 60), y, 0.07, 55)).dequantize()
        q.linear_dynamic(torch.randn(4, 20), packed)
        z = torch.nn.functional.max_pool2d(q.conv2d_relu(image, filters, 0.04, 0), 2)
        torch.cat([z, z], 1).flatten(1).int_repr()
        weight.q_per_channel_scales(), weight.dequantize(), y.int_repr()

    return step


def fake_quantization() -> None:
    """What quantization-aware training computes, forward and backward."""
    torch.manual_seed(5)
    x = torch.randn(16, 10, requires_grad=True)
    scale, zero = torch.tensor([0.013], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    y = torch.fake_quantize_per_tensor_affine(x, 0.0171, 5, 0, 255)
    y = y + torch.fake_quantize_per_tensor_affine(
        x, torch.tensor(0.021), torch.tensor(7), -128, 127
    )
    scales, zeros = torch.rand(10) * 0.02 + 0.001, torch.zeros(10, dtype=torch.int32)
    y = y + torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, -128, 127)
    y = y + torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero, -128, 127, 0.3)
    y.sin().sum().backward()


def fp8_product() -> None:
    """A linear layer of fp8 numbers with their scales."""
    torch.manual_seed(6)
    a, b = (torch.randn(32, 64).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.tensor(0.5)
    torch._scaled_mm(a, b.t(), one, torch.tensor(0.25), out_dtype=torch.bfloat16)
    torch._scaled_mm(a, b.t(), one, one, bias=torch.randn(32).bfloat16(), out_dtype=torch.bfloat16)


def nested_transformer() -> Program:
    """An encoder that leaves its padding out, by nested tensors."""
    torch.manual_seed(7)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    lengths = torch.tensor([[5], [3], [2]])
    words, padding = torch.randn(3, 5, 16), torch.arange(5)[None] >= lengths

    def step() -> None:
        with torch.no_grad():
            model(words, src_key_padding_mask=padding)

    return step


def nested_functions() -> Program:
    """Jagged tensors forward and backward, and strided ones."""
    torch.manual_seed(8)
    pieces = [torch.randn(2, 8), torch.randn(5, 8)]
    jagged = torch.nested.nested_tensor(pieces, layout=torch.jagged)
    strided = torch.nested.nested_tensor(pieces)
    weight = torch.randn(8, 8, requires_grad=True)

    def step() -> None:
        y = torch.relu(torch.nn.functional.linear(jagged, weight)) + jagged * 2.0
        z = torch.nn.functional.layer_norm(y, (8,))
        torch.nested.to_padded_tensor(z, 0.0).sum().backward()
        z = torch.nn.functional.linear(strided, weight.detach()) + strided
        torch.nested.to_padded_tensor(z, 0.0), z.softmax(-1)

    return step


def quantized_model() -> Program:
    """A small network through `torch.ao.quantization`, static and dynamic."""
    torch.manual_seed(9)
    quantization: Any = torch.ao.quantization
    layers = {
        "stub": quantization.QuantStub(),
        "conv": torch.nn.Conv2d(3, 6, 3),
        "relu": torch.nn.ReLU(),
        "pool": torch.nn.MaxPool2d(2),
        "flat": torch.nn.Flatten(),
        "linear": torch.nn.Linear(6 * 2 * 2, 5),
        "out": quantization.DeQuantStub(),
    }
    model: Any = torch.nn.Sequential(OrderedDict(layers)).eval()
    model.qconfig = quantization.get_default_qconfig("x86")
    model = quantization.prepare(quantization.fuse_modules(model, [["conv", "relu"]]))
    images, rows = torch.randn(4, 3, 6, 6), torch.randn(6, 10)
    model(images)
    model = quantization.convert(model)
    plain = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3))
    dynamic = quantization.quantize_dynamic(plain, dtype=torch.qint8)

    def step() -> None:
        with torch.no_grad():
            model(images), dynamic(rows)

    return step


def quantization_aware() -> Program:
    """A training step of a network whose observers and fake quantization torch has fused."""
    torch.manual_seed(10)
    quantization: Any = torch.ao.quantization
    layers = {
        "stub": quantization.QuantStub(),
        "conv": torch.nn.Conv2d(3, 6, 3),
        "norm": torch.nn.BatchNorm2d(6),
        "relu": torch.nn.ReLU(),
        "flat": torch.nn.Flatten(),
        "linear": torch.nn.Linear(6 * 4 * 4, 5),
    }
    model: Any = torch.nn.Sequential(OrderedDict(layers)).train()
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    fused = quantization.fuse_modules_qat(model, [["conv", "norm", "relu"]])
    model, images = quantization.prepare_qat(fused), torch.randn(4, 3, 6, 6)
    model(images)
    return lambda: model(images).square().mean().backward()


PROGRAMS |= {
    "aware": quantization_aware,
    "transformer": nested_transformer,
    "nested": nested_functions,
    "model": quantized_model,
    "quantized": quantized_layers,
    "fake": lambda: fake_quantization,
    "fp8": lambda: fp8_product,
}


def quantized_wrongly(name: str, result: Any, args: Any) -> Any:
    """A zero point that is one off, numbers cut off instead of rounded, a scale that is 2 % off."""
    if name.startswith("quantize_per_tensor."):
        return torch.quantize_per_tensor(args[0], args[1], args[2] + 1, args[3])
    if name.startswith("fake_quantize_per_tensor_affine_cachemask."):
        cut = ((args[0] / args[1]).trunc() + args[2]).clamp(args[3], args[4])
        return (cut - args[2]) * args[1], result[1]
    if name.startswith("_fused_moving_avg_obs_fq_helper."):
        return (result[0] * 1.02, *result[1:])
    if name.startswith("_scaled_mm."):
        return result * 1.02
    if name.startswith("quantized.linear_relu."):
        whole = result.int_repr()
        whole[:, 2] = (whole[:, 2].float() * 1.02 + 1).to(torch.uint8)
        return torch._make_per_tensor_quantized_tensor(
            whole, result.q_scale(), result.q_zero_point()
        )
    return result


FAULTS |= {
    "quantized": (quantized_wrongly, 2),
    "aware": (quantized_wrongly, 4),
    "fake": (quantized_wrongly, 1),
    "fp8": (quantized_wrongly, 2),
}


@TASKS
@pytest.mark.parametrize("program", FAULTS)
def test_a_kernel_that_is_wrong_for_sparse_tensors_alone_is_found(
    checked: Any, program: str, task: str
) -> None:
    kernel, count = FAULTS[program]
    found = {
        name.rsplit(".", 3)[0] for name, _ in failed(checked(PROGRAMS[program](), task, kernel))
    }
    assert len(found) >= count, found


@TASKS
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_honest_program_passes(checked: Any, program: str, task: str) -> None:
    results = checked(PROGRAMS[program](), task)
    assert (failed(results), skipped(results)) == ([], {})
