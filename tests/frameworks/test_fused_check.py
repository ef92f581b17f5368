"""Fused operators through the checker: captured without an NPU, and on a stand-in of torch_npu."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from records import call, element, ms_tensor, rows, tensor
from torch.nn import functional

from ray_precheck.bench.fused.table import NPU_ROWS
from ray_precheck.check.checker import Checker
from ray_precheck.check.options import CheckOptions
from ray_precheck.check.settings import CheckSettings
from ray_precheck.errors import BackendMissingError
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = pytest.mark.frameworks

Tensor = torch.Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, heads: int, scale: float) -> Tensor:
    """Return attention in layout BSH by torch's own operator."""
    parts = [x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value)]
    out = functional.scaled_dot_product_attention(*parts, is_causal=True, scale=scale)
    return out.transpose(1, 2).flatten(2)


def npu_fusion_attention(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *, scale: float,
    atten_mask: Tensor, sparse_mode: int,
) -> tuple[Any, ...]:  # fmt: skip
    """What torch_npu returns: the attention, its kernel's buffers, and what made the dropout mask."""
    assert (input_layout, sparse_mode, atten_mask.shape) == ("BSH", 2, (2048, 2048))
    out = attention(query, key, value, head_num, scale)
    buffer = torch.full((1, head_num, query.shape[1], 8), 7.0)
    return out, buffer, buffer, torch.empty(0), 123456789, 42, 0


def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """What torch_npu returns: the norm, and a reciprocal root without a gradient."""
    rstd = torch.rsqrt(self.float().square().mean(-1, keepdim=True) + epsilon)
    return functional.rms_norm(self, gamma.shape, gamma, epsilon), rstd.detach()


def npu_apply_adam_w(*scalars: Any, out: list[Tensor]) -> tuple[Tensor, ...]:
    """What torch_npu does: it changes what it is given, and returns it."""
    power1, power2, lr, decay, beta1, beta2, eps, grad, _, _, _ = scalars
    variable, m, v = out
    variable.mul_(1 - lr * decay)
    m.lerp_(grad, 1 - beta1)
    v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    denominator = (v / (1 - power2 * beta2)).sqrt() + eps
    variable.addcdiv_(m, denominator, value=-lr / (1 - power1 * beta1))
    return variable, m, v


@pytest.fixture
def torch_npu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A torch_npu whose operators run on the CPU."""
    module = ModuleType("torch_npu")
    for operator in (npu_fusion_attention, npu_rms_norm, npu_apply_adam_w):
        setattr(module, operator.__name__, operator)
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return module


MASK = tensor(2048, 2048, dtype="bool", low=0.0, high=1.0)
ATTENTION = call(
    "NPU.npu_fusion_attention",
    *[tensor(2, 8, 16, grad=True) for _ in range(3)],
    4,
    "BSH",
    atten_mask=MASK,
    scale=0.5,
    sparse_mode=2,
    grads=[tensor(2, 8, 16)],
)
NORM = call(
    "NPU.npu_rms_norm",
    tensor(4, 8, grad=True),
    tensor(8, grad=True),
    epsilon=1e-5,
    grads=[tensor(4, 8)],
)


@pytest.mark.parametrize("name", sorted(name for name in NPU_ROWS if name.startswith("NPU.")))
def test_without_torch_npu_a_record_is_a_skip_that_says_so(
    torch_checker: Checker, name: str
) -> None:
    result = torch_checker.check(call(name, tensor(2, 4), grads=[tensor(2, 4)]))
    assert (result.forward, result.backward) == (Verdict.SKIP, Verdict.SKIP)
    assert result.message.startswith(
        f"{name} is an operator of torch_npu, which cannot be imported"
    )


@pytest.mark.usefixtures("torch_npu")
@pytest.mark.parametrize("payload", [ATTENTION, NORM], ids=["attention", "norm"])
def test_on_a_device_forward_and_backward_pass(
    torch_checker: Checker, payload: TaskPayload
) -> None:
    result = torch_checker.check(payload)
    assert (result.forward, result.backward, result.message) == (Verdict.PASS, Verdict.PASS, "")
    assert len(rows(result, "backward")) == (3 if payload is ATTENTION else 2)
    assert all(check.metrics is not None for check in rows(result, "backward"))


@pytest.mark.usefixtures("torch_npu")
def test_outputs_that_are_the_kernels_own_are_rows_that_say_so(torch_checker: Checker) -> None:
    found = rows(torch_checker.check(ATTENTION), "forward")
    assert [check.verdict for check in found] == [Verdict.PASS, *[Verdict.SKIP] * 6]
    assert found[4].message == "not compared: the seed of the dropout mask"
    assert (found[1].shape, found[4].shape) == ("(1, 4, 8, 8)", "")


def test_a_wrong_kernel_is_found(torch_checker: Checker, torch_npu: ModuleType) -> None:
    def wrong(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        out, *others = npu_fusion_attention(*args, **{**kwargs, "scale": 0.6})
        return (out, *others)

    torch_npu.npu_fusion_attention = wrong  # type: ignore[attr-defined]
    result = torch_checker.check(ATTENTION)
    assert (result.forward, result.backward) == (Verdict.ERROR, Verdict.ERROR)


@pytest.mark.usefixtures("torch_npu")
def test_an_optimizers_step_is_compared_by_what_it_returns(torch_checker: Checker) -> None:
    state = [tensor(3, 4), tensor(3, 4), tensor(3, 4, low=0.0)]
    scalars = (0.9, 0.99, 0.01, 0.1, 0.9, 0.99, 1e-3)
    payload = call("NPU.npu_apply_adam_w", *scalars, tensor(3, 4), None, False, False, out=state)
    result = torch_checker.check(payload)
    assert (result.forward, result.message) == (Verdict.PASS, "")
    assert len(rows(result, "forward")) == 3


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("NPU.npu_foo", "NPU.npu_foo has no bench: it is an operator of torch_npu"),
        ("NPU.npu_change_data_ptr", "has no bench"),
        ("Aten.add", "Aten.add has no bench: capture the API that calls it"),
        ("MyOps.mul", "MyOps.mul has no bench: prefix MyOps is not supported for pytorch"),
    ],
)
@pytest.mark.usefixtures("torch_npu")
def test_names_without_a_bench_say_what_gives_one(
    torch_checker: Checker, name: str, says: str
) -> None:
    result = torch_checker.check(call(name, tensor(2, 4)))
    assert result.forward is Verdict.SKIP
    assert says in result.message
    assert "--bench-module FILE can add one" in result.message


@pytest.mark.usefixtures("torch_npu")
def test_what_torch_npu_lacks_is_named(torch_checker: Checker) -> None:
    result = torch_checker.check(call("NPU.npu_mish", tensor(2, 4)))
    assert "NPU.npu_mish is not an operator of torch_npu" in result.message


class Capture:
    """A call with its tensors in files, as msprobe writes them with task tensor."""

    def __init__(self, folder: Path, name: str, suffix: str) -> None:
        self.folder, self.name, self.suffix = folder, name, suffix

    def save(self, where: str, value: Tensor) -> dict[str, Any]:
        """Save a tensor; return its description."""
        data_name = f"{self.name}.0.{where}.{self.suffix}"
        held = value.detach()
        if self.suffix == "pt":
            torch.save(held, self.folder / data_name)
            made = tensor(*held.shape, dtype=str(held.dtype)[6:], grad=value.requires_grad)
        else:
            np.save(self.folder / data_name, held.numpy())
            names = {torch.bool: "Bool", torch.uint8: "UInt8"}
            made = ms_tensor(*held.shape, dtype=names.get(held.dtype, "Float32"))
        return {**made, "data_name": data_name}

    def payload(
        self,
        args: list[Any],
        kwargs: dict[str, Any],
        outputs: list[Any],
        grads: tuple[list[Any], list[Any]],
    ) -> TaskPayload:
        """Return the call; `grads` are the gradients that came in and those that went out."""

        def described(values: list[Any], where: str) -> list[Any]:
            return [
                self.save(f"{where}.{i}", value) if isinstance(value, Tensor) else element(value)
                for i, value in enumerate(values)
            ]

        keywords = {
            key: self.save(f"forward.input.{key}", value)
            if isinstance(value, Tensor)
            else element(value)
            for key, value in kwargs.items()
        }
        forward = {
            "input_args": described(args, "forward.input"),
            "input_kwargs": keywords,
            "output": described(outputs, "forward.output"),
        }
        backward = {
            "input": described(grads[0], "backward.input"),
            "output": described(grads[1], "backward.output"),
        }
        name = f"{self.name}.0"
        return TaskPayload(0, name, json.dumps(forward).encode(), json.dumps(backward).encode())


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Return float32 tensors that require a gradient."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


def real_mode(folder: Path, framework: str, monkeypatch: pytest.MonkeyPatch) -> Checker:
    """Return a checker of captured results that can open no device."""

    def refuse(*_: Any) -> Any:
        raise BackendMissingError("the device is not to be opened")

    monkeypatch.setattr("ray_precheck.check.device.open_backend", refuse)
    settings = CheckSettings(
        framework, "tensor", folder, tests_dump=True, options=CheckOptions(tested="dump")
    )
    return Checker(settings, "cpu")


Edit = Callable[[list[Any], list[Any]], None]


def captured_attention(folder: Path, edit: Edit = lambda outputs, grads: None) -> TaskPayload:
    """Return a capture of npu_fusion_attention, which torch's attention computed in float32."""
    query, key, value = inputs = leaves((2, 8, 16), (2, 8, 16), (2, 8, 16))
    out = attention(query, key, value, 4, 0.5)
    (cotangent,) = leaves((2, 8, 16))
    grads: list[Any] = [*torch.autograd.grad(out, inputs, cotangent), None]
    buffer = torch.full((2, 4, 8, 8), 7.0)
    # msprobe writes null for the seed and the offset.
    outputs: list[Any] = [out.detach().clone(), buffer, buffer, torch.empty(0), None, None, 0]
    edit(outputs, grads)
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    options = {"atten_mask": mask, "scale": 0.5, "sparse_mode": 2}
    capture = Capture(folder, "NPU.npu_fusion_attention", "pt")
    return capture.payload([*inputs, 4, "BSH"], options, outputs, ([cotangent.detach()], grads))


def test_captured_attention_is_checked_without_an_npu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = real_mode(tmp_path, "pytorch", monkeypatch).check(captured_attention(tmp_path))
    assert (result.forward, result.backward, result.message) == (Verdict.PASS, Verdict.PASS, "")
    assert len(rows(result, "forward")) == 7
    assert len(rows(result, "backward")) == 3


def test_a_wrong_captured_output_or_gradient_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong_output(outputs: list[Any], _: list[Any]) -> None:
        outputs[0][1, 2, 3] += 0.01

    def wrong_gradient(_: list[Any], grads: list[Any]) -> None:
        grads[1] = grads[1] * 1.01

    checker = real_mode(tmp_path, "pytorch", monkeypatch)
    result = checker.check(captured_attention(tmp_path, wrong_output))
    assert (result.forward, result.backward) == (Verdict.ERROR, Verdict.PASS)
    result = checker.check(captured_attention(tmp_path, wrong_gradient))
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.ERROR)
    assert [c.name[-1] for c in rows(result, "backward") if c.verdict is Verdict.ERROR] == ["1"]


def test_captured_gradients_of_a_norm_are_those_of_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, gamma = leaves((4, 8), (8,))
    out, rstd = npu_rms_norm(x, gamma, 1e-5)
    (cotangent,) = leaves((4, 8))
    grads = torch.autograd.grad(out, (x, gamma), cotangent)
    payload = Capture(tmp_path, "NPU.npu_rms_norm", "pt").payload(
        [x, gamma], {"epsilon": 1e-5}, [out, rstd], ([cotangent.detach(), None], [*grads])
    )
    result = real_mode(tmp_path, "pytorch", monkeypatch).check(payload)
    assert (result.forward, result.backward, result.message) == (Verdict.PASS, Verdict.PASS, "")
    assert len(rows(result, "backward")) == 2


def test_mindspores_captured_flash_attention_is_checked_without_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = leaves((2, 8, 16), (2, 8, 16), (2, 8, 16))
    out = attention(*inputs, 4, 0.5)
    (cotangent,) = leaves((2, 8, 16))
    grads = torch.autograd.grad(out, inputs, cotangent)
    mask = torch.ones(8, 8, dtype=torch.uint8).triu(1)
    arguments = [*inputs, 4, None, None, None, mask, None, None, None, 1.0, 0.5]
    payload = Capture(tmp_path, "Functional.flash_attention_score", "npy").payload(
        arguments, {"input_layout": "BSH"}, [out], ([cotangent.detach()], [*grads])
    )
    result = real_mode(tmp_path, "mindspore", monkeypatch).check(payload)
    assert (result.forward, result.backward, result.message) == (Verdict.PASS, Verdict.PASS, "")
    assert len(rows(result, "backward")) == 3


def test_mindspores_kernels_on_the_cpu_agree(mindspore_checker: Checker) -> None:
    payload = call(
        "Functional.fast_gelu", ms_tensor(4, 8, low=-4.0, high=4.0), grads=[ms_tensor(4, 8)]
    )
    result = mindspore_checker.check(payload)
    assert (result.forward, result.backward, result.message) == (Verdict.PASS, Verdict.PASS, "")


@pytest.mark.parametrize(
    "payload",
    [
        call("Functional.rms_norm", ms_tensor(4, 8), ms_tensor(8)),
        call("Functional.swiglu", ms_tensor(4, 8)),
        call("Functional.rotary_position_embedding", *[ms_tensor(1, 1, 4, 8)] * 3),
        call(
            "Functional.flash_attention_score",
            *[ms_tensor(1, 8, 16, dtype="Float16")] * 3,
            head_num=2,
        ),
        call(
            "Functional.cross_entropy_loss",
            ms_tensor(4, 8),
            ms_tensor(4, dtype="Int64", low=0, high=7),
        ),
    ],
    ids=lambda payload: payload.name,
)
def test_what_mindspore_has_for_ascend_alone_is_found_and_skipped_on_the_cpu(
    mindspore_checker: Checker, payload: TaskPayload
) -> None:
    result = mindspore_checker.check(payload)
    assert result.forward is Verdict.SKIP
    assert result.message.startswith("the CPU has no kernel for it")
