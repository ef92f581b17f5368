"""HF32 of an NPU is switched off where that is possible, with stand-ins: no NPU is at hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from ray_precheck.frameworks.hf32 import mindspore_compute_in, mindspore_hf32, torch_hf32_off
from ray_precheck.schema.dtypes import Float32

pytestmark = pytest.mark.unit

HF32 = Float32("hf32", "hf32", "hf32")


class Fixed:
    """An option that takes any value and keeps its own, as where the device has no other."""

    @property
    def allow_hf32(self) -> bool:
        return True

    @allow_hf32.setter
    def allow_hf32(self, value: bool) -> None:
        pass


def test_torch_npu_is_asked_for_full_float32() -> None:
    npu = SimpleNamespace(
        conv=SimpleNamespace(allow_hf32=True), matmul=SimpleNamespace(allow_hf32=True)
    )
    assert torch_hf32_off(npu) == ""
    assert (npu.conv.allow_hf32, npu.matmul.allow_hf32) == (False, False)


def test_what_stays_on_in_torch_npu_is_said() -> None:
    npu = SimpleNamespace(conv=Fixed(), matmul=SimpleNamespace(allow_hf32=False))
    assert torch_hf32_off(npu) == (
        "HF32 could not be switched off on this NPU: float32 convolutions may have 11 bits of"
        " fraction only"
    )
    assert "float32 convolutions and products may" in torch_hf32_off(SimpleNamespace())


class Precision:
    """MindSpore's op_precision; with `given` somebody has set both before."""

    def __init__(self, *, given: bool = False) -> None:
        self.given, self.seen = given, {}

    def _set(self, name: str, value: bool) -> None:
        if self.given:
            raise RuntimeError(f"The '{name}' can not be set repeatedly.")
        self.seen[name] = value

    def conv_allow_hf32(self, value: bool) -> None:
        self._set("conv", value)

    def matmul_allow_hf32(self, value: bool) -> None:
        self._set("matmul", value)


def mindspore(precision: Precision) -> Any:
    return SimpleNamespace(
        device_context=SimpleNamespace(ascend=SimpleNamespace(op_precision=precision))
    )


def test_mindspore_is_asked_for_full_float32() -> None:
    precision = Precision()
    assert mindspore_compute_in(mindspore(precision), Float32()) == (Float32(), "")
    assert precision.seen == {"conv": False, "matmul": False}
    found, said = mindspore_compute_in(mindspore(Precision(given=True)), Float32())
    assert found == HF32
    assert said.startswith("HF32 could not be switched off on this NPU: float32 convolutions and")


def test_mindspore_is_asked_for_the_hf32_of_the_program() -> None:
    precision, wanted = Precision(), Float32(convolutions="hf32")
    assert mindspore_compute_in(mindspore(precision), wanted) == (wanted, "")
    assert precision.seen == {"conv": True, "matmul": False}
    _, said = mindspore_compute_in(mindspore(Precision()), Float32("tf32", "tf32", "tf32"))
    assert said == (
        "the program computed with TF32 (10 bits of fraction) in matrix products, convolutions and"
        " recurrent layers, and this NPU with full float32"
    )


def test_an_older_mindspore_is_asked_by_its_context() -> None:
    seen: dict[str, bool] = {}
    older = SimpleNamespace(set_context=lambda ascend_config: seen.update(ascend_config))
    assert mindspore_compute_in(older, Float32()) == (Float32(), "")
    assert seen == {"conv_allow_hf32": False, "matmul_allow_hf32": False}
    assert mindspore_hf32(older) == Float32()


@pytest.mark.parametrize(
    ("matmul", "conv", "found"),
    [
        ("", "", Float32(convolutions="hf32")),  # CANN's default
        ("1", "0", Float32("hf32", "ieee", "hf32")),
        ("0", "1", Float32(convolutions="hf32")),
        ("0", "0", Float32()),
    ],
)
def test_what_mindspore_was_asked_for_is_read(matmul: str, conv: str, found: Float32) -> None:
    there = SimpleNamespace(matmul_allow_hf32=lambda: matmul, conv_allow_hf32=lambda: conv)
    precision: Any = SimpleNamespace(
        AscendOpPrecisionConf=SimpleNamespace(get_instance=lambda: there)
    )
    assert mindspore_hf32(mindspore(precision)) == found
